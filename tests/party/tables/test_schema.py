"""A schema that parties share: three banks that agree by it, and one sentence for each way in which they do not."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.hetero import load_graph
from fedgraph_flwr.data.preprocess import moved
from fedgraph_flwr.data.schema import Column, Schema, check_fingerprints, fingerprint, fitted_schema
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import store
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.tables.statistics import ERROR, _value, merge, party_sums, quantiles, read_sums, sketch
from fedgraph_flwr.party.use.prediction_input import InputSpec, from_pyg
from tests.party import banks

BANKS = ("a", "b", "c")


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return banks.write(tmp_path)


def imported(tables, bank, *args):
    nodes, edges = tables[bank]
    given = ["import", "--nodes", nodes, "--edges", edges, "columns.split=part", *args]
    return cli.main([*map(str, given)])


def client(tables, bank, *args):
    index = BANKS.index(bank)
    out = f"parts/client_{index:04d}.safetensors"
    return imported(tables, bank, "--client", index, "--num-clients", 3, "--out", out, *args)


def test_a_first_party_writes_the_schema_and_others_obey_it(tables, tmp_path, capsys):
    kinds = ["kinds.branch=ignored"]
    assert client(tables, "a", "--classes", "ok,fraud", "--schema", "schema.yaml", "--unit", "age=years") == 0
    output = capsys.readouterr().out
    assert "ignored: amount, time (edge_columns=NAMES keeps them)" in output
    assert "ignored: name (300 different values in 300 rows)" in output
    schema = Schema.load(tmp_path / "schema.yaml")
    assert schema.nodes["node"]["age"] == Column("number", unit="years", missing=True)
    assert schema.nodes["node"]["trade"].categories == ("clerk", "farmer", "miner", "nurse", "student", "teacher")
    assert client(tables, "b", "--schema", "schema.yaml") == 0
    assert client(tables, "c", "--schema", "schema.yaml", "--classes", "fraud,ok") == 0
    output = capsys.readouterr().out
    assert "columns reordered as in schema.yaml" in output
    assert "classes reordered as in schema.yaml: ok, fraud" in output
    store.check(tmp_path / "parts")
    c = ClientGraph.load("parts/client_0002.safetensors")
    table = pd.read_csv(tables["c"][0])
    assert c.y.tolist() == (table["label"] == "fraud").astype(int).tolist()
    age = table["age"].fillna(table["age"].median())
    np.testing.assert_allclose(c.x[:, 0], (age - table["age"].mean()) / table["age"].std(ddof=0), rtol=1e-4)
    assert c.x.shape[1] == ClientGraph.load("parts/client_0000.safetensors").x.shape[1]
    assert imported(tables, "c", "--classes", "ok,fraud", *kinds, "--name", "c") == 0
    assert "makes it" not in capsys.readouterr().out
    assert imported(tables, "c", *kinds, "--name", "d") == 0
    assert "second class, 'ok', which is the more frequent one: pass --classes ok,fraud" in capsys.readouterr().out


@pytest.mark.slow
def test_banks_that_import_by_themselves_are_refused_with_the_column(tables, tmp_path):
    for bank in BANKS:
        assert client(tables, bank, "--classes", "ok,fraud") == 0
    with pytest.raises(
        FedGraphError, match=r"client_0001.* differs from .*column 'trade' has categories .*sailor.* here"
    ):
        store.check(tmp_path / "parts")
    for bank in "ab":
        assert client(tables, bank, "--classes", "ok,fraud", "kinds.trade=ignored") == 0
    assert client(tables, "c", "--classes", "ok,fraud", "kinds.trade=ignored") == 0
    with pytest.raises(FedGraphError, match=r"column 'branch' is here and not there; import both with one --schema"):
        store.check(tmp_path / "parts")
    args = ("kinds.trade=ignored", "kinds.branch=ignored")
    assert client(tables, "c", "--classes", "ok,fraud", *args) == 0
    with pytest.raises(FedGraphError, match="column 1 is 'balance' here and 'age' there"):
        store.check(tmp_path / "parts")
    assert client(tables, "c", "--classes", "fraud,ok", *args) == 0
    with pytest.raises(FedGraphError, match="classes are fraud, ok here and ok, fraud there"):
        store.check(tmp_path / "parts")


def test_a_file_without_a_schema_is_refused_beside_one_with(tables, tmp_path):
    for bank in BANKS:
        assert client(tables, bank, "--classes", "ok,fraud", "--schema", "schema.yaml") == 0
    path = tmp_path / "parts/client_0001.safetensors"
    dataclasses.replace(ClientGraph.load(path), schema={}).save(path)
    with pytest.raises(
        FedGraphError, match=r"client_0001.* differs from .*client_0000.*: .*client_0001\.safetensors has no schema"
    ):
        store.check(tmp_path / "parts")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--classes", "ok,fraud,maybe"), "--classes ok,fraud,maybe differ from those of schema.yaml, ok,fraud: leave"),
        (("kinds.age=category",), "kinds.age=category conflicts with number in schema.yaml"),
        (("--scaling", "none"), "--scaling none conflicts with scaling local in schema.yaml"),
        (("feature_columns=age,income",), "has no column 'balance' (number) of schema.yaml"),
        (("kinds.agee=category",), "did you mean 'age'? Expected one of: age, balance"),
        (("kinds.age=words",), "kinds.age 'words' is unknown"),
        (("kinds=age",), "expected KEY=VALUE, or KEY.NAME=VALUE"),
        (("--min-count", "0"), "--min-count must be >= 1"),
    ],
)
def test_words_against_the_schema_are_one_sentence(tables, capsys, args, message):
    assert client(tables, "a", "--classes", "ok,fraud", "--schema", "schema.yaml") == 0
    capsys.readouterr()
    assert client(tables, "b", "--schema", "schema.yaml", *args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_federated_statistics_are_those_of_all_rows_together(tables, tmp_path, capsys):
    args = ("--classes", "ok,fraud", "scales.income=log", "scales.balance=robust")
    for bank in BANKS:
        also = ("kinds.branch=ignored",) if bank == "c" else ()
        assert imported(tables, bank, *args, *also, "--statistics", f"{bank}.json") == 0
    assert cli.main(["schema", "merge", "a.json", "b.json", "c.json", "--out", "schema.yaml"]) == 0
    assert cli.main(["schema", "merge", "a.json", "b.json", "./a.json", "--out", "twice.yaml"]) == 2
    assert "a.json b.json a.json: a party's file is named twice" in capsys.readouterr().err
    merged = Schema.load(tmp_path / "schema.yaml").nodes["node"]
    rows = pd.concat([pd.read_csv(tables[bank][0]) for bank in BANKS])
    age, income = rows["age"].dropna(), np.log1p(rows["income"].dropna())
    assert merged["age"].statistics["center"] == pytest.approx(age.mean(), rel=1e-12)
    assert merged["age"].statistics["spread"] == pytest.approx(age.std(ddof=0), rel=1e-12)
    assert merged["income"].statistics["center"] == pytest.approx(income.mean(), rel=1e-12)
    assert merged["income"].statistics["fill"] == pytest.approx(rows["income"].median(), rel=0.02)
    low, middle, high = rows["balance"].quantile([0.25, 0.5, 0.75])
    assert merged["balance"].statistics["center"] == pytest.approx(middle, rel=0.02)
    assert merged["balance"].statistics["spread"] == pytest.approx(high - low, rel=0.03)
    counts = rows["trade"].value_counts()
    assert set(merged["trade"].categories) == set(counts.index)
    assert merged["trade"].statistics["fill"] == counts.index[0]
    for bank in BANKS:
        assert client(tables, bank, "--schema", "schema.yaml") == 0
    store.check(tmp_path / "parts")
    x = torch.cat([ClientGraph.load(path).x for path in sorted((tmp_path / "parts").iterdir())])
    known = rows["age"].notna().to_numpy()
    assert float(x[known, 0].mean()) == pytest.approx(0, abs=1e-5)
    assert float(x[known, 0].std(unbiased=False)) == pytest.approx(1, rel=1e-5)
    capsys.readouterr()
    assert cli.main(["schema", "show", "parts/client_0002.safetensors"]) == 0
    assert "node    2  income: number; scale: log" in capsys.readouterr().out
    assert client(tables, "a", "--classes", "ok,fraud", "--scaling", "federated") == 2
    assert "needs --schema FILE" in capsys.readouterr().err


def test_a_category_without_values_is_all_other(tmp_path):
    """`schema merge` writes one if no value has 5 rows at all parties together."""
    column = Column("category", missing=True, statistics={"fill": ""})
    schema = Schema(("a", "b"), {"node": {"town": column}}, scaling="federated")
    (tmp_path / "nodes.csv").write_text("id,label,town\n1,a,Ulm\n2,b,\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    treatment = Treatment(schema=schema, where="schema.yaml")
    graph = from_tables(tmp_path / "nodes.csv", tmp_path / "edges.csv", Columns(label="label"), treatment=treatment)
    assert graph.x.tolist() == [[1, 0], [1, 1]]


def test_what_a_party_tells_holds_no_row_of_its_own(tables, tmp_path):
    """Words of fewer than five rows stay at home, and no bin has fewer."""
    table = pd.read_csv(tables["a"][0])
    table.loc[:3, "trade"] = "spy"
    table.to_csv(tables["a"][0], index=False)
    assert imported(tables, "a", "--classes", "ok,fraud", "--statistics", "a.json") == 0
    text = (tmp_path / "a.json").read_text()
    assert "spy" not in text
    assert "customer a" not in text
    sums = json.loads(text)["sums"]["node"]
    assert min(sums["trade"]["words"].values()) >= 5
    for column in ("age", "income", "balance", "opened"):
        assert min(sums[column]["bins"].values()) >= 5
        assert sum(sums[column]["bins"].values()) == sums[column]["count"]
    alone = party_sums(
        Schema(("x",), {"node": {"v": Column()}}), {"node": (pd.DataFrame({"v": [1.0, 2, 3, 4]}), "t")}, floor=5
    )
    assert alone["sums"]["node"]["v"] == {"count": 0}


@pytest.mark.parametrize("floor", [1, 5])
def test_quantiles_of_added_sketches(floor):
    rng = np.random.default_rng(0)
    parts = [rng.normal(0, scale, 400) * np.exp(rng.normal(0, 2, 400)) for scale in (1.0, 10.0)]
    bins: dict[str, int] = {}
    for part in parts:
        for number, count in sketch(part, floor).items():
            bins[number] = bins.get(number, 0) + count
    levels = [0.25, 0.5, 0.75, 0.9]
    expected = np.quantile(np.concatenate(parts), levels, method="lower")
    np.testing.assert_allclose(quantiles(bins, levels), expected, rtol=ERROR, atol=0.02)


def test_zero_and_negative_values_keep_their_order():
    bins = sketch(np.array([-3.0, -1e-12, 0.0, 1e-3, 2.0, 1e6]), 1)
    assert list(bins.values()) == [1, 2, 1, 1, 1]
    np.testing.assert_allclose(
        quantiles(bins, [0, 0.2, 0.4, 0.6, 0.8, 1]), [-3, 0, 0, 1e-3, 2, 1e6], rtol=ERROR, atol=1e-9
    )


def test_edges_of_bins_do_not_depend_on_the_data():
    """A bin lay at one row's value: 18 % of 50 values were read to a thousandth."""
    read = []
    for seed in range(40):
        values = np.exp(np.random.default_rng(seed).normal(3, 2, 50)) * np.sign(
            np.random.default_rng(-seed + 99).normal(size=50)
        )
        bins = sketch(values, 5)
        assert min(bins.values()) >= 5
        assert sum(bins.values()) == 50
        nodes = [tuple(map(int, key.split(":"))) for key in bins]
        assert all(0 <= level <= 14 and 0 <= index < 2 ** (14 - level) for level, index in nodes)
        ends = np.array([[_value(index * 2.0**level), _value((index + 1) * 2.0**level)] for level, index in nodes])
        counted = [int(((values > low) & (values <= high)).sum()) for low, high in ends]
        assert min(counted) >= 5, "folding adds rows, it takes none from a bin"
        shown = np.array(quantiles(bins, [*np.linspace(0, 1, 200).tolist(), 0.5]))
        middles = ends.mean(1)
        read.append(np.mean(np.abs(values[:, None] / middles - 1).min(1) < 1e-3))
        assert np.isfinite(shown).all()
    assert np.mean(read) < 0.01


@pytest.mark.parametrize("values", [[1.7e308, -1.7e308, 0, 1, 2, 3] * 5, [0.0] * 30, [5e-324] * 30, [7.0] * 30])
def test_extreme_values_have_bins(values):
    bins = sketch(np.array(values), 5)
    assert sum(bins.values()) == 30
    assert np.isfinite(quantiles(bins, [0, 0.5, 1])).all()


def test_remainders_tell_no_single_row():
    """A category that one row has, and one missing value, showed as 50 - 40 - 9."""
    table = pd.DataFrame(
        {
            "word": ["a"] * 40 + ["b"] * 9 + ["spy"],
            "flag": ["yes"] * 47 + ["no"] * 2 + [None],
            "number": [*np.arange(1.0, 50), np.nan],
        }
    )
    columns = {"word": Column("category"), "flag": Column("flag"), "number": Column()}
    sums = party_sums(Schema(("x", "y"), {"node": columns}), {"node": (table, "t")}, 5)["sums"]["node"]
    assert sums["word"] == {"count": 50, "words": {"a": 41, "b": 9}}
    assert sums["flag"] == {"count": 50, "ones": 50}
    assert sums["number"]["count"] == sum(sums["number"]["bins"].values()) == 50
    assert sums["number"]["mean"] == 25
    table.loc[:9, "number"] = np.nan
    sums = party_sums(Schema(("x", "y"), {"node": columns}), {"node": (table, "t")}, 5)["sums"]["node"]
    assert sums["number"]["count"] == 39, "eleven missing values may be told"


def one(name, values, **keys):
    return name, party_sums(
        Schema(("x", "y"), {"node": {"v": Column(**keys)}}), {"node": (pd.DataFrame({"v": values}), "t")}, 1
    ) | {"schema": Schema(("x", "y"), {"node": {"v": Column(**keys)}})}


def test_parties_that_disagree_cannot_be_merged():
    numbers = one("a.json", [1.0, 2])
    with pytest.raises(
        FedGraphError, match=r"column 'v' has kind number in a\.json and flag in b\.json: pass kinds\.v=KIND in both"
    ):
        merge([numbers, one("b.json", ["yes", "no"], kind="flag")])
    with pytest.raises(FedGraphError, match=r"column 'v' has scale standard in a\.json and log in b\.json"):
        merge([numbers, one("b.json", [1.0], scale="log")])
    other = {"v": Column("ignored"), "w": Column()}
    sums = party_sums(Schema((), {"node": {"w": Column()}}), {"node": (pd.DataFrame({"w": [1.0]}), "t")}, 1)
    with pytest.raises(FedGraphError, match=r"column 'v' is used in a\.json and not in b\.json"):
        merge([numbers, ("b.json", sums | {"schema": Schema((), {"node": other})})])


def test_means_far_from_zero_lose_no_digits():
    """Sums of squares would: 1e9² leaves no digit for a variance of 1."""
    parts = [1e9 + np.random.default_rng(i).normal(size=50) for i in range(3)]
    column = merge([one(f"{i}.json", part) for i, part in enumerate(parts)]).nodes["node"]["v"]
    assert column.statistics["spread"] == pytest.approx(np.concatenate(parts).std(), rel=1e-6)
    assert moved(column.scale, parts[0]) is parts[0]


def test_yaml_of_people_is_read_and_wrong_one_is_a_sentence(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("classes: [no, yes]\nnodes:\n  node:\n    age: number\n    on: {kind: flag}\n")
    schema = Schema.load(path)
    assert schema.classes == ("no", "yes")  # words, as in the table
    assert list(schema.nodes["node"]) == ["age", "on"]
    schema.save(tmp_path / "t.yaml")
    assert Schema.load(tmp_path / "t.yaml") == schema
    for text, message in (
        ("classes: [a]", "expected a schema with the keys classes, nodes.*got {'classes': ['a']}"),
        ("nodes: {node: [age]}", "expected a schema with the keys classes, nodes"),
        ("a schema", "expected a schema with the keys classes, nodes.*got a schema"),
        ("nodes: {node: {age: {kid: number}}}", "did you mean 'kind'"),
        (
            "nodes: {node: {age: {kind: numbr}}}",
            "column 'age': kind of a column 'numbr' is unknown; did you mean 'number'",
        ),
        (
            "nodes: {node: {age: {statistics: {fill: x}}}}",
            "column 'age': expected a kind such as number.*got .*'fill': 'x'",
        ),
        ("nodes: {}\nscalling: none", "did you mean 'scaling'"),
        ("nodes: {}\nscaling: wide", "scaling 'wide' is unknown"),
        ("nodes: {}\nclasses: [a, a]", "classes must differ"),
        ("nodes: {}\nedge_classes: [a, b, a]", "edge_classes must differ from each other, got a, b, a"),
        ("nodes: [", "cannot be read as a schema"),
    ):
        path.write_text(text)
        with pytest.raises(FedGraphError, match=message.replace("[", r"\[")) as caught:
            Schema.load(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(FedGraphError, match="holds no statistics"):
        read_sums(path)


def test_fingerprints_tell_where_two_clients_differ(tables, tmp_path):
    for bank in "ab":
        assert client(tables, bank, "--classes", "ok,fraud", "kinds.trade=ignored") == 0
    a, b = (ClientGraph.load(tmp_path / f"parts/client_000{i}.safetensors") for i in range(2))
    assert fingerprint(a) == fingerprint(b)
    check_fingerprints({0: fingerprint(a), 1: fingerprint(b)})
    assert client(tables, "b", "--classes", "ok,fraud", "kinds.trade=ignored", "scales.balance=log") == 0
    b = ClientGraph.load(tmp_path / "parts/client_0001.safetensors")
    with pytest.raises(FedGraphError, match="schemas of clients 0 and 1 differ: column 3;"):  # age, income, balance
        check_fingerprints({0: fingerprint(a), 1: fingerprint(b)})
    assert client(tables, "b", "--classes", "fraud,ok", "kinds.trade=ignored") == 0
    b = ClientGraph.load(tmp_path / "parts/client_0001.safetensors")
    with pytest.raises(FedGraphError, match="differ: the classes"):
        check_fingerprints({0: fingerprint(a), 1: fingerprint(b)})
    b.schema = {}
    with pytest.raises(FedGraphError, match="one of them has none"):
        check_fingerprints({0: fingerprint(a), 1: fingerprint(b)})
    assert all(0 <= number < 2**48 for number in fingerprint(a))


def test_a_cut_dataset_keeps_its_schema(tables, tmp_path, capsys):
    assert imported(tables, "a", "--classes", "ok,fraud", "--name", "bank") == 0
    assert cli.main(["partition", "dataset=bank", "num_clients=2", "split.kind=ratio", "--out", "cut"]) == 0
    whole = load_graph(tmp_path / "root/imported/bank.safetensors")
    assert ClientGraph.load("cut/client_0001.safetensors").schema == whole.schema
    assert whole.schema["agreed"]["classes"] == ["ok", "fraud"]
    assert "statistics" in whole.schema["fitted"]["nodes"]["node"]["age"]


def saved(tmp_path, x, **more):
    from torch_geometric.data import Data

    data = Data(x=x, edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 1, 0]), **more)
    torch.save(data, tmp_path / "d.pt")
    return ["import", "--data", str(tmp_path / "d.pt"), "--schema", str(tmp_path / "s.yaml")]


def test_a_saved_graph_is_taken_as_it_is_or_scaled(tmp_path, capsys, monkeypatch):
    x = torch.tensor([[1.0, 2000.0], [3.0, 4000.0], [5.0, 0.0], [7.0, 2000.0]])
    args = saved(tmp_path, x, edge_attr=torch.ones(2, 1))
    out = ["--out", str(tmp_path / "g.safetensors")]
    assert cli.main([*args, *out]) == 0
    output = capsys.readouterr().out
    assert "edges carry 1 features; parallel edges stay separate" in output
    assert Graph.load(tmp_path / "g.safetensors").edge_attr.tolist() == [[1.0], [1.0]]
    assert "warning: features have very different magnitudes ('x_1' reaches 4000" in output
    assert torch.equal(Graph.load(tmp_path / "g.safetensors").x, x)
    assert Schema.load(tmp_path / "s.yaml").nodes["node"] == {"x": Column(width=2)}
    args = saved(tmp_path, x[:, :1])
    assert cli.main([*args, *out]) == 2
    assert "has 1 columns x, but" in capsys.readouterr().err
    (tmp_path / "s.yaml").unlink()
    assert cli.main([*saved(tmp_path, x), *out, "--undirected"]) == 0
    assert cli.main([*saved(tmp_path, x), *out]) == 0  # as the schema says
    assert Graph.load(tmp_path / "g.safetensors").edge_index.size(1) == 4
    (tmp_path / "s.yaml").unlink()
    assert cli.main([*saved(tmp_path, x), *out, "--scaling", "local"]) == 0
    torch.testing.assert_close(Graph.load(tmp_path / "g.safetensors").x, (x - x.mean(0)) / x.std(0, unbiased=False))
    graph = Graph.load(tmp_path / "g.safetensors")
    spec = InputSpec(("0", "1"), 2, fitted_schema(graph.schema, "g"))
    new = torch.load(tmp_path / "d.pt", weights_only=False)
    assert torch.equal(from_pyg(new, spec).x, graph.x)  # scaled as in the import
    assert torch.equal(from_pyg(graph.to_pyg(), spec).x, graph.x)  # scaled already
    assert torch.equal(from_pyg(new, dataclasses.replace(spec, scaled=True)).x, x)


def test_what_remains_two_reports_one_row_apart_give_the_row():
    """One report has at least five rows behind each value; the difference of two has one."""
    values = np.random.default_rng(0).normal(50, 9, 400)
    schema = Schema((), {"node": {"x": Column()}})
    before, after = (
        party_sums(schema, {"node": (pd.DataFrame({"x": values[:n]}), "t")}, 5)["sums"]["node"]["x"] for n in (399, 400)
    )
    difference = after["count"] * after["mean"] - before["count"] * before["mean"]
    assert difference == pytest.approx(values[399], rel=1e-9)
