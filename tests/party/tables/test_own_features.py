"""Import with a recipe of columns of the party's own records, and prediction of later rows by the same columns."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr import cli
from fedgraph_flwr.clients.row_gradients import _check_payments
from fedgraph_flwr.config import SplitConfig, compose
from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.features import Book, Recipe, edge_columns, node_columns
from fedgraph_flwr.data.graph import ClientGraph, Graph, unpack_words
from fedgraph_flwr.data.pyg import client_graph
from fedgraph_flwr.data.schema import Schema, check_same, fingerprint
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.prediction_input import InputSpec, new_nodes
from fedgraph_flwr.secure.keyring import Keyring
from tests.party.linked_banks import BANKS, KEY, banks, once
from tests.support import last_given

RECIPE = Recipe(windows=(2.0,))


@pytest.fixture
def made(tmp_path):
    three_banks = banks(tmp_path, accounts=15, payments=60)
    three_banks.columns = replace(three_banks.columns, recipe="payments", windows="2", label="label")
    return three_banks


def by_hand(book: pd.DataFrame, bank: str, nodes: list[str], until: int | None = None):
    """Columns of a bank's records and accounts, from its table by pandas."""
    rows = once(book, bank)
    rows = rows[(rows.from_bank == bank) | (rows.to_bank == bank)]
    ends = [rows.from_bank + ":" + rows.source, rows.to_bank + ":" + rows.target]
    names = [f"{bank}:{name}" for name in nodes]
    code = {name: place for place, name in enumerate([*names, *sorted(set(pd.concat(ends)) - set(names))])}
    source, target = (end.map(code).to_numpy() for end in ends)
    first = rows.reset_index(drop=True).reset_index().groupby(KEY)["index"].transform("min")  # booked twice with a bank
    place = first.fillna(pd.Series(np.arange(len(rows)))).to_numpy(dtype=np.int64)
    b = Book(source, target, rows.time.to_numpy(), np.rint(rows.amount.to_numpy() * 100).astype(np.int64))
    kept = np.unique(place)
    b = b.where(kept)
    columns = edge_columns(b, RECIPE)[np.searchsorted(kept, place)]
    return rows, columns, node_columns(b, RECIPE, len(nodes), until=until)


@pytest.mark.parametrize("undirected", [False, True])
def test_columns_of_an_import(made, undirected):
    made.undirected = undirected
    for bank in BANKS:
        graph = made.client(bank)
        rows, columns, table = by_hand(made.books[bank], bank, made.nodes[bank]["id"].tolist())
        inner = ((rows.from_bank == bank) & (rows.to_bank == bank)).to_numpy()
        assert graph.num_shared_edge_features == 1
        expected = sorted(map(tuple, np.repeat(columns[inner], 1 + undirected, axis=0).tolist()))
        loops = undirected * int((rows.source == rows.target)[inner].sum())
        assert len(expected) - loops == graph.num_edges
        edge_rows = sorted(map(tuple, graph.edge_attr[:, 1:].tolist()))
        assert edge_rows == expected or loops
        assert sorted(graph.foreign_edge_attr[:, 1:].tolist()) == sorted(columns[~inner].tolist())
        np.testing.assert_array_equal(graph.x[:, -table.shape[1] :].numpy(), table)
        assert graph.own_columns["nodes"] == table.shape[1]
        check_file(graph, bank)


def test_node_columns_of_a_temporal_split_read_the_training_time(made):
    made.columns = replace(made.columns, split="")
    made.client("A")
    paths = made.folder / "A_nodes.csv", made.folder / "A_edges.csv"
    graph = client_graph(made.read(*paths, own="A"), 0, 3, SplitConfig(kind="temporal"))
    until = int(graph.edge_time[graph.edge_split == 0].max())
    _, _, table = by_hand(made.books["A"], "A", made.nodes["A"]["id"].tolist(), until)
    np.testing.assert_array_equal(graph.x[:, -table.shape[1] :].numpy(), table)


def test_a_linked_file_keeps_book_and_columns(made):
    files = [made.client(bank) for bank in BANKS]
    parties = [LinkParty(graph, LinkRules(), Keyring(graph.client)) for graph in files]
    simulate(parties)
    for graph, party in zip(files, sorted(parties, key=lambda p: p.client), strict=True):
        linked_graph = party.result()
        assert linked_graph.book.shape == graph.book.shape
        assert linked_graph.own_columns == graph.own_columns
        table = node_columns(Book.of(linked_graph.book), RECIPE, linked_graph.num_nodes)
        np.testing.assert_array_equal(linked_graph.x[:, -table.shape[1] :].numpy(), table)
        assert linked_graph.cut_in_edge_attr[:, 1:].any()
        check_file(linked_graph, "linked")


def test_link_refuses_another_recipe(made):
    first = made.client("A")
    (made.folder / "schema.yaml").unlink()
    made.columns = replace(made.columns, windows="3")
    second, third = made.client("B"), made.client("C")
    with pytest.raises(FedGraphError, match="differ in own columns"):
        simulate([LinkParty(graph, LinkRules(), Keyring(graph.client)) for graph in (first, second, third)])


def tables(folder, later: bool = True):
    """Write accounts, payments of two weeks, and those of the third week; return all."""
    rng = np.random.default_rng(0)
    accounts = pd.DataFrame({"id": [f"a{i}" for i in range(20)], "label": rng.choice(["ok", "bad"], 20)})
    size = 300
    pays = pd.DataFrame(
        {
            "ref": [f"p{i}" for i in range(size)],
            "source": [f"a{i}" for i in rng.integers(20, size=size)],
            "target": [f"a{i}" for i in rng.integers(20, size=size)],
            "time": np.sort(rng.integers(0, 21 * 86_400, size)) // 600 * 600,
            "amount": rng.choice([10.0, 20.5, 21.0, 99.99], size).round(2),
            "fraud": rng.choice(["no", "yes"], size),
        }
    )
    accounts.to_csv(folder / "accounts.csv", index=False)
    pays[pays.time < 14 * 86_400].to_csv(folder / "first.csv", index=False)
    pays[pays.time >= 14 * 86_400].drop(columns="fraud").sample(frac=1, random_state=1).to_csv(
        folder / "later.csv", index=False
    )
    pays.to_csv(folder / "all.csv", index=False)
    return accounts, pays


ROLES = ["columns.time=time", "columns.edge_label=fraud", "columns.edge_id=ref", "edge_classes=no,yes"]


def imported(folder, edges: str, *more: str) -> ClientGraph:
    out = folder / f"{edges}.safetensors"
    args = ["import", "--nodes", folder / "accounts.csv", "--edges", folder / edges, *ROLES, "features=payments"]
    args += [*more, "--classes", "ok,bad", "--client", "0", "--num-clients", "1", "--out", out]
    assert cli.main(last_given(args)) == 0
    return ClientGraph.load(out)


@pytest.mark.parametrize("dates", [False, True], ids=["hours", "dates"])
@pytest.mark.parametrize("nodes", ["all", "none new"])
def test_later_rows_have_the_columns_of_an_import_of_all_rows(tmp_path, nodes, dates):
    tables(tmp_path)
    for name in ("first", "later", "all") if dates else ():
        read = pd.read_csv(tmp_path / f"{name}.csv")
        read.assign(time=read["time"] // 86_400 * 86_400).to_csv(tmp_path / f"{name}.csv", index=False)
    stored, whole = imported(tmp_path, "first.csv"), imported(tmp_path, "all.csv")
    schema = Schema.from_dict(stored.schema["fitted"], "x")
    columns = Columns.of(schema.tables)
    if nodes == "none new":
        pd.DataFrame({"id": ["a0"]}).to_csv(tmp_path / "accounts.csv", index=False)
    spec = InputSpec(("no", "yes"), stored.num_features, schema, parallel=True)
    additions = new_nodes(tmp_path / "accounts.csv", tmp_path / "later.csv", columns, spec, stored, "stored")
    expected = {
        (*ends, time): sorted(map(tuple, rows.tolist()))
        for (*ends, time), rows in by_ends(whole, whole.edge_attr).items()
    }
    later = pd.read_csv(tmp_path / "later.csv")
    attr = additions.graph.edge_attr[torch.from_numpy(additions.edges)]
    words = additions.ids.tolist()
    ends = additions.graph.edge_index[:, torch.from_numpy(additions.edges)]
    assert [words[i] for i in ends[0].tolist()] == later.source.tolist()
    assert additions.edge_ids.tolist() == later.ref.tolist()
    for source, target, time, row in zip(later.source, later.target, later.time, attr.tolist(), strict=True):
        assert tuple(row) in expected[source, target, time]
    assert additions.graph.num_features == stored.num_features == whole.num_features
    assert stored.own_columns["recipe"].get("day", "before") == ("whole" if dates else "before")


def test_later_rows_that_name_other_parties_have_the_columns_of_an_import_of_all_rows(made):
    books = dict(made.books)
    whole = made.client("A")
    cut = int(np.median(books["A"].time))
    made.books = {bank: book[book.time < cut] for bank, book in books.items()}
    parties = [LinkParty(made.client(bank), LinkRules(), Keyring(BANKS.index(bank))) for bank in BANKS]
    simulate(parties)
    stored = parties[0].result()
    later = books["A"][books["A"].time >= cut]
    later = later[(later.from_bank == "A") | (later.to_bank == "A")]
    made.nodes["A"].to_csv(made.folder / "n.csv", index=False)
    later.to_csv(made.folder / "later.csv", index=False)
    schema = Schema.from_dict(stored.schema["fitted"], "x")
    spec = InputSpec(("ok", "fraud"), stored.num_features, schema, parallel=True)
    columns = replace(made.columns, features=(), edge_features=("risk",))
    joined_graph = new_nodes(made.folder / "n.csv", made.folder / "later.csv", columns, spec, stored, "stored").graph
    assert not joined_graph.edge_attr.isnan().any()
    rows = []
    for key, count in (
        ("", stored.num_edges),
        ("cut_out_", stored.cut_out.size(1)),
        ("cut_in_", stored.cut_in.size(1)),
    ):
        rows += getattr(joined_graph, f"{key}edge_attr")[count:, 1:].tolist()
    late = [
        getattr(whole, f"{key}edge_attr")[getattr(whole, f"{key}edge_time") >= cut, 1:].tolist()
        for key in ("", "foreign_")
    ]
    assert len(rows) == len(later)
    assert sorted(rows) == sorted(late[0] + late[1])


def by_ends(graph: Graph, values: torch.Tensor) -> dict[tuple, np.ndarray]:
    words = unpack_words(graph.ids)
    keys = zip(*(words[graph.edge_index[i]].tolist() for i in (0, 1)), graph.edge_time.tolist(), strict=True)
    rows = sorted(zip(keys, values.numpy().tolist(), strict=True))
    return {key: np.array([row for _, row in group]) for key, group in itertools.groupby(rows, lambda row: row[0])}


def test_overlapping_tables_are_counted(tmp_path, capsys, caplog):
    tables(tmp_path)
    stored = imported(tmp_path, "first.csv")
    schema = Schema.from_dict(stored.schema["fitted"], "x")
    spec = InputSpec(("no", "yes"), stored.num_features, schema, parallel=True)
    columns, whole = Columns.of(schema.tables), imported(tmp_path, "all.csv")
    additions = new_nodes(tmp_path / "accounts.csv", tmp_path / "all.csv", columns, spec, stored, "stored")
    attr = additions.graph.edge_attr[torch.from_numpy(np.sort(additions.edges))]
    assert sorted(map(tuple, attr.tolist())) == sorted(map(tuple, whole.edge_attr.tolist()))
    start = stored.num_features - stored.own_columns["nodes"]
    assert torch.equal(additions.graph.x[additions.rows, :start], whole.x[:, :start])
    assert not additions.graph.x[additions.rows, start:].any()  # models of payments do not read them
    assert "rows repeat records that stored has" in caplog.text + capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"drop": "amount"}, [], "amount column 'amount' is unknown"),
        ({}, ["columns.amount=amuont"], "amount column 'amuont' is unknown"),
        ({}, ["windows=0"], "windows of a recipe must be numbers of days above 0"),
        ({}, ["features=paymnts"], "recipe of features 'paymnts'"),
        ({}, ["features=payments,flow_*"], "expected NAME, NAME,-PATTERN or NAME,last=R"),
        ({}, ["columns.time="], "features=payments reads the times of edges"),
        ({"amount": "n/a"}, [], "row 1 has 'n/a' in column 'amount', expected an amount"),
        (
            {"amount": "2,317"},
            [],
            "has '2,317', which can mean 2.317 (--decimal amount=,) or 2317 (--decimal amount=.): pass one",
        ),
        (
            {"time": "1e30"},
            [],
            "row 1 has '1e30' in column 'time', expected seconds below 253,402,300,800 (the year 10000)",
        ),
        ({"time": "1700000000000"}, [], "or a date: divide milliseconds by 1000"),
        ({"time": "soon"}, [], "row 1 has 'soon' in column 'time', which is neither a number of seconds nor a date"),
    ],
)
def test_wrong_input(tmp_path, capsys, change, more, message):
    _, pays = tables(tmp_path)
    if "drop" in change:
        pays = pays.drop(columns=change["drop"])
    for column in {"amount", "time"} & set(change):
        pays[column] = pays[column].astype(str)
        pays.loc[slice(None) if change[column] == "2,317" else 0, column] = change[column]
    pays.to_csv(tmp_path / "all.csv", index=False)
    args = [
        "import",
        "--nodes",
        tmp_path / "accounts.csv",
        "--edges",
        tmp_path / "all.csv",
        *ROLES,
        "features=payments",
    ]
    args += [*more, "--name", "x"]
    assert cli.main(last_given(args)) != 0
    assert message in capsys.readouterr().err


def test_amounts_of_zero_and_below_are_counted(tmp_path, capsys):
    _, pays = tables(tmp_path)
    pays.loc[:2, "amount"] = [0, -5, -1]
    pays.to_csv(tmp_path / "all.csv", index=False)
    graph = imported(tmp_path, "all.csv")
    said = capsys.readouterr().out
    assert "3 of 300 rows have an amount of 0 or below" in said
    assert "different times" not in said
    assert int((graph.book[3] == 0).sum()) == 3
    pays["time"] = np.arange(300) % 29 * 86_400  # dates without hours
    pays.to_csv(tmp_path / "all.csv", index=False)
    imported(tmp_path, "all.csv", "day=before")
    said = capsys.readouterr().out
    assert "all.csv: 300 rows have 29 different times, and columns of own records do not read" in said
    graph = imported(tmp_path, "all.csv")
    assert "no time of 'time' has hours: records read the other records of their day" in capsys.readouterr().out
    assert graph.own_columns["recipe"]["day"] == graph.schema["agreed"]["tables"]["day"] == "whole"


def test_rows_out_of_order_and_equal_times(tmp_path):
    """The order of rows changes no column, and rows of one moment do not read each other; an account may only pay."""
    _, pays = tables(tmp_path)
    pays.loc[pays["time"] >= 10 * 86_400, "time"] = 10 * 86_400
    pays["source"] = pays["source"].where(pays["target"] != "a0", "a1")
    pays["target"] = pays["target"].replace("a0", "a1")  # a0 only pays
    readings = []
    for name, rows in (("sorted.csv", pays), ("mixed.csv", pays.sample(frac=1, random_state=3))):
        rows.to_csv(tmp_path / name, index=False)
        graph = imported(tmp_path, name)
        assert graph.edge_attr.isfinite().all()
        assert graph.x.isfinite().all()
        readings.append((by_ends_and_amount(graph), graph.x))
    assert readings[0][0] == readings[1][0]
    assert torch.equal(readings[0][1], readings[1][1])
    last = pays[pays["time"] < 10 * 86_400]
    last = pd.concat([last, pays[pays["time"] == 10 * 86_400].iloc[:1]])
    last.to_csv(tmp_path / "one.csv", index=False)
    one = by_ends_and_amount(imported(tmp_path, "one.csv"))
    assert set(one) <= set(readings[0][0])  # as if the others of that moment were not there


def by_ends_and_amount(graph: Graph) -> list[tuple]:
    words = unpack_words(graph.ids)
    rows = [*(words[graph.edge_index[i]].tolist() for i in (0, 1)), graph.edge_time.tolist(), graph.edge_attr.tolist()]
    return sorted((*ends, tuple(columns)) for *ends, columns in zip(*rows, strict=True))


@pytest.mark.parametrize("column", ["amount", "time"])
def test_later_tables_lack_no_column_of_the_recipe(tmp_path, column):
    tables(tmp_path)
    stored = imported(tmp_path, "first.csv")
    schema = Schema.from_dict(stored.schema["fitted"], "x")
    spec = InputSpec(("no", "yes"), stored.num_features, schema, parallel=True)
    pd.read_csv(tmp_path / "later.csv").drop(columns=column).to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(FedGraphError, match=rf"{column} column '{column}' is unknown .*less\.csv"):
        new_nodes(tmp_path / "accounts.csv", tmp_path / "less.csv", Columns.of(schema.tables), spec, stored, "stored")


def test_the_schema_holds_the_recipe(tmp_path, capsys):
    tables(tmp_path)
    imported(tmp_path, "all.csv", "features=payments,-flow_*", "windows=1", "--schema", str(tmp_path / "s.yaml"))
    agreed = Schema.load(tmp_path / "s.yaml")
    assert (agreed.tables.recipe, agreed.tables.windows) == ("payments,-flow_*", "1")
    args = ["import", "--nodes", tmp_path / "accounts.csv", "--edges", tmp_path / "all.csv", "--client", "0"]
    args += ["--num-clients", "1", "--schema", tmp_path / "s.yaml", "--out", tmp_path / "b.safetensors"]
    assert cli.main([str(arg) for arg in args]) == 0
    graph = ClientGraph.load(tmp_path / "b.safetensors")
    assert graph.own_columns["edges"] == len(Recipe(windows=(1.0,), without=("flow_*",)).edge_columns)
    assert cli.main([str(arg) for arg in [*args, "windows=2"]]) != 0
    assert "windows=2 conflicts with 1" in capsys.readouterr().err


def test_a_damaged_book_is_refused(made):
    graph = made.client("A")
    for key, value in (
        ("book", graph.book + 10**6),
        ("book", graph.book[:3]),
        ("own_columns", {"edges": 10**6}),
        ("own_columns", {"edges": 1, "recipe": {"name": "x"}}),
        ("own_columns", {"colums": 1}),
        ("own_columns", {"until": 0.5}),
    ):
        with pytest.raises(FedGraphError, match="a file: "):
            check_file(replace(graph, **{key: value}), "a file")


def test_a_run_on_two_tables_scores_later_rows(tmp_path, monkeypatch, caplog):
    """Two CSV files, a recipe, a run and scored rows."""
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    imported(tmp_path, "first.csv", "--split", "temporal")
    (tmp_path / "parts").mkdir()
    (tmp_path / "first.csv.safetensors").rename(tmp_path / "parts" / "client_0000.safetensors")
    words = ["run", "graph=parts", "task=edges", "rounds=1", "model.hidden=8", "out=run", "--quiet", "--no-report"]
    assert cli.main(words) == 0
    args = ["predict", "run", "--client", "0", "--nodes", "accounts.csv", "--edges", "later.csv", "--out", "scored.csv"]
    assert cli.main(args) == 0
    scored, later = pd.read_csv("scored.csv"), pd.read_csv("later.csv")
    assert scored["edge"].tolist() == later["ref"].tolist()
    assert "bound" not in caplog.text
    graph = ClientGraph.load(path := tmp_path / "parts" / "client_0000.safetensors")
    old = copy.deepcopy(graph)
    assert old.schema["agreed"]["tables"].pop("alike") == old.schema["fitted"]["tables"].pop("alike") == "0.1054"
    assert fingerprint(old) != fingerprint(graph)
    with pytest.raises(
        FedGraphError, match=r"a differs from b: the bound of alike amounts .* is none here and 0\.1054 there"
    ):
        check_same([("b", graph.schema), ("a", old.schema)])
    old.save(path)  # as of a release with another bound
    assert cli.main(args) == 0
    assert (
        caplog.text.count(
            "with the bound 0.1054 of alike amounts, but client 0's file has them with that of an earlier"
        )
        == 1
    )
    spec = tmp_path / "run" / "input_spec.json"
    spec.write_text(spec.read_text().replace('"0.1054"', '""'))
    assert cli.main(args) == 0
    assert (
        caplog.text.count(
            "with the bound of an earlier release of alike amounts, but this release computes them with 0.1054"
        )
        == 1
    )
    assert compose(["task=edges"]).task.name == "edges"


def dated(folder, start: int = 20_000) -> pd.DataFrame:
    """Write payments whose times are dates in texts; return them."""
    _, pays = tables(folder)
    days = pd.to_datetime((pays["time"] // 86_400 + start) * 86_400, unit="s")
    pays = pays.assign(time=days.dt.strftime("%Y-%m-%d"))
    pays.to_csv(folder / "dated.csv", index=False)
    return pays


def test_a_date_is_the_end_of_its_day(tmp_path):
    """Cuts of the split fall between days, also those of dates in times with hours."""
    pays = dated(tmp_path)
    first, second = (sorted(pays["time"].unique())[place] for place in (10, 15))
    cut = ["--split", "temporal", "--until", f"{first},{second}"]
    graph = imported(tmp_path, "dated.csv", *cut)
    stage = (pays["time"] > first).astype(int) + (pays["time"] > second)
    assert torch.bincount(graph.edge_split.long()).tolist() == np.bincount(stage).tolist()
    hours = imported(tmp_path, "all.csv", "--split", "temporal", "--until", "1970-01-11,1970-01-16")
    assert int(hours.edge_time[hours.edge_split == 0].max()) > 10 * 86_400
    assert (
        int(hours.edge_time[hours.edge_split == 0].max())
        < 11 * 86_400
        <= int(hours.edge_time[hours.edge_split > 0].min())
    )


def test_no_cut_divides_a_whole_day(tmp_path):
    """With hours and whole days, a share of the edges ends within a day: the rest of that day is of the same stage."""
    tables(tmp_path)
    graph = imported(tmp_path, "all.csv", "day=whole", "--split", "temporal")
    days = [set((graph.edge_time[graph.edge_split == stage] // 86_400).tolist()) for stage in range(3)]
    assert all(days)
    assert not (days[0] & days[1])
    assert not (days[1] & days[2])


def test_the_rule_of_days_is_of_the_schema(tmp_path, capsys):
    dated(tmp_path)
    schema = ["--schema", str(tmp_path / "schema.yaml")]
    imported(tmp_path, "dated.csv", *schema)
    assert Schema.load(tmp_path / "schema.yaml").tables.day == "whole"
    assert imported(tmp_path, "all.csv", *schema).own_columns["recipe"]["day"] == "whole"
    args = ["import", "--nodes", tmp_path / "accounts.csv", "--edges", tmp_path / "all.csv", *schema, "day=before"]
    assert cli.main([str(arg) for arg in [*args, "--name", "x"]]) != 0
    assert "day=before conflicts with whole" in capsys.readouterr().err
    (tmp_path / "schema.yaml").unlink()
    imported(tmp_path, "all.csv", *schema)
    assert "day" not in (tmp_path / "schema.yaml").read_text()  # as earlier releases wrote it
    capsys.readouterr()
    assert "day" not in imported(tmp_path, "dated.csv", *schema).own_columns["recipe"]
    assert "make the schema with day=whole" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["features=payments,last=8", "day=whole"], "leave out last, or set day=before"),
        (["day=whole"], "day=whole has no effect without columns of own records"),
    ],
)
def test_rules_of_days_that_have_no_effect(tmp_path, capsys, more, message):
    dated(tmp_path)
    args = [
        "import",
        "--nodes",
        tmp_path / "accounts.csv",
        "--edges",
        tmp_path / "dated.csv",
        *ROLES,
        *more,
        "--name",
        "x",
    ]
    assert cli.main([str(arg) for arg in args]) != 0
    assert message in capsys.readouterr().err


def test_private_payments_refuse_whole_days(tmp_path):
    dated(tmp_path)
    graph = imported(tmp_path, "dated.csv")
    with pytest.raises(FedGraphError, match="with day=whole every payment of a day is read by all"):
        _check_payments(graph, 1000, 8)


def test_one_import_serves_accounts_and_payments(tmp_path, monkeypatch):
    """Accounts keep the split of their column and read all payments; payments are split by time. Both tasks run and predict."""
    accounts, _ = tables(tmp_path)
    part = np.resize(["train", "train", "val", "test"], len(accounts))
    accounts.assign(part=part).to_csv(tmp_path / "accounts.csv", index=False)
    (tmp_path / "parts").mkdir()
    graph = imported(tmp_path, "all.csv", "columns.split=part", "--split", "temporal")
    assert graph.train_mask.tolist() == (part == "train").tolist()
    assert graph.edge_split.unique().tolist() == [0, 1, 2]
    assert "until" not in graph.own_columns
    alone = imported(tmp_path, "all.csv", "columns.split=part")
    torch.testing.assert_close(graph.x, alone.x)
    by_time = imported(tmp_path, "all.csv", "--split", "temporal")
    torch.testing.assert_close(graph.edge_split, by_time.edge_split)
    monkeypatch.chdir(tmp_path)
    scores = {}
    for name, stored in (("both", graph), ("accounts", alone), ("payments", by_time)):
        stored.save(tmp_path / name / "client_0000.safetensors")
        for task in ("nodes", "edges"):
            words = [
                f"graph={tmp_path / name}",
                f"task={task}",
                "strategy=local",
                "rounds=2",
                f"out={tmp_path}/{name}_{task}",
            ]
            if (name, task) not in (("accounts", "edges"), ("payments", "nodes")):
                scores[name, task] = fg.run(*words, progress=False).summary["metrics"]["best_val"]
    assert scores["both", "nodes"] == scores["accounts", "nodes"]
    assert scores["both", "edges"] == scores["payments", "edges"]
    for task in ("nodes", "edges"):
        words = ["predict", f"both_{task}", "--client", "0", "--nodes", "accounts.csv", "--edges", "later.csv"]
        assert cli.main([*words, "--out", f"{task}.csv"]) == 0
        assert len(pd.read_csv(f"{task}.csv")) == len(pd.read_csv("later.csv") if task == "edges" else accounts)


def test_a_payment_with_another_bank_that_is_booked_twice_counts_once(tmp_path):
    """It has the reference of its first booking; without a reference, equal payments are two."""
    paid, received = ("A", "a1", "B", "b1", 100, 5.0, "r1"), ("B", "b1", "A", "a2", 900, 7.0, "r2")
    rows = [paid, paid, received]
    names = ["from_bank", "source", "to_bank", "target", "time", "amount", "ref"]
    pd.DataFrame(rows, columns=names).to_csv(tmp_path / "pays.csv", index=False)
    pd.DataFrame({"id": ["a1", "a2"], "label": ["ok", "bad"]}).to_csv(tmp_path / "accounts.csv", index=False)
    for key, expected in (("time,amount:amount,ref", 1), ("time:amount,amount:amount", 2)):
        args = [
            "import",
            "--nodes",
            tmp_path / "accounts.csv",
            "--edges",
            tmp_path / "pays.csv",
            "columns.time=time",
        ]
        args += [
            "features=payments",
            "--own-party",
            "A",
            "party_columns=from_bank,to_bank",
            "--match-columns",
            key,
        ]
        args += ["--classes", "ok,bad", "--client", "0", "--num-clients", "1", "--out", tmp_path / "a.safetensors"]
        assert cli.main([str(arg) for arg in args]) == 0
        graph = ClientGraph.load(tmp_path / "a.safetensors")
        assert graph.book.size(1) == expected + 1
        place = [c.name for c in Recipe().edge_columns].index("n_in_source_14d")
        counts = np.expm1(graph.foreign_edge_attr[:, place].numpy() + 1).round(3).tolist()
        assert counts == [0, 0, expected]


def test_fedgcn_refuses_tables_with_columns_of_own_records(tmp_path, monkeypatch):
    tables(tmp_path)
    graph = imported(tmp_path, "all.csv")
    graph.save(tmp_path / "parts" / "client_0000.safetensors")
    monkeypatch.chdir(tmp_path)
    words = [f"graph={tmp_path / 'parts'}", "strategy=fedgcn", "rounds=1", "out=run"]
    with pytest.raises(FedGraphError, match="Set strategy=fedavg model=sage, or strategy=boosting"):
        fg.run(*words, progress=False)
    assert fg.run(*words, "strategy.hops=0", progress=False).summary["rounds"] == 1
