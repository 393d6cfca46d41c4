"""Columns of the edge tables of a heterogeneous graph: import, files, shared schema, partition, pooling, runs, predictions."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.checks import check_graph
from fedgraph_flwr.data.hetero import HeteroGraph, load_graph
from fedgraph_flwr.data.pyg import client_graph
from fedgraph_flwr.data.schema import Schema, check_same
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import startup_notes
from fedgraph_flwr.partition.hetero import make, pool, share_schema
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.worth import clusters_of

PAYS, BUYS = ("customer", "pays", "customer"), ("customer", "buys", "product")
NODES = {
    "customer": "id,label,part,age\n"
    + "".join(f"c{i},{'ab'[i % 2]},{part},{20 + i}\n" for i, part in enumerate(["train", "val", "test"] * 3)),
    "product": "id,price\np0,1\np1,5\np2,20\n",
}
PAYMENTS = "source,target,amount,form\nc1,c0,10,wire\nc0,c1,30,cash\nc0,c1,20,wire\nc3,c2,20,cash\nc0,c1,30,cash\n"
PURCHASES = "source,target,stars,amount\nc2,p1,5,1\nc0,p2,1,2\nc1,p0,3,3\n"


@pytest.fixture
def tables(tmp_path):
    """``tables(pays=...)`` writes the tables into a folder of their own and returns the files of nodes and of edges."""

    def write(folder: str = "one", pays: str = PAYMENTS, buys: str = PURCHASES):
        (tmp_path / folder).mkdir(exist_ok=True)
        texts = NODES | {"pays": pays, "buys": buys}
        files = {name: tmp_path / folder / f"{name}.csv" for name in texts}
        for name, text in texts.items():
            files[name].write_text(text)
        return {kind: files[kind] for kind in NODES}, {PAYS: files["pays"], BUYS: files["buys"]}

    return write


def read(nodes, edges, *kept: str, **options) -> HeteroGraph:
    columns = Columns(split="part", edge_features=kept)
    return from_tables(nodes, edges, target="customer", columns=columns, treatment=Treatment(floor=1, **options))


def options(nodes, edges) -> list[str]:
    given = [("--nodes", f"{kind}={path}") for kind, path in nodes.items()]
    given += [("--edges", f"{':'.join(edge)}={path or ''}") for edge, path in edges.items()]
    return [word for pair in given for word in pair] + [
        "--target",
        "customer",
        "columns.split=part",
        "--min-count",
        "1",
    ]


def test_each_edge_table_keeps_its_own_columns(tables):
    """Parallel rows stay separate, in the order of their ends; numbers are standardised by hand, words are one-hot."""
    graph = read(*tables(), "*")
    assert graph.edges[PAYS].T.tolist() == [[0, 1], [0, 1], [0, 1], [1, 0], [3, 2]]
    amount = np.array([30, 20, 30, 10, 20.0])
    expected = np.stack([(amount - amount.mean()) / amount.std(), [1, 0, 1, 0, 1], [0, 1, 0, 1, 0], [0] * 5], axis=1)
    np.testing.assert_allclose(graph.edge_attr[PAYS], expected, atol=1e-6)  # amount, cash, wire, other
    assert graph.edges[BUYS].T.tolist() == [[0, 2], [1, 0], [2, 1]]
    stars = (np.array([1, 3, 5]) - 3) / np.std([1, 3, 5])
    np.testing.assert_allclose(graph.edge_attr[BUYS][:, 0], stars, atol=1e-6)
    agreed = Schema.from_dict(graph.schema["agreed"], "test")
    assert {kind: list(agreed.nodes[kind]) for kind in agreed.edges} == {
        "customer:buys:product": ["stars", "amount"],
        "customer:pays:customer": ["amount", "form"],
    }
    assert graph.num_features == [2, 2, 1, 1, 2, 4]


def test_a_name_or_pattern_selects_columns_of_every_table_that_has_it(tables):
    files = tables()
    assert {r[1]: rows.size(1) for r, rows in read(*files, "amount").edge_attr.items()} == {"pays": 1, "buys": 1}
    one = read(*files, "st*", "form", kinds={"customer:buys:product.stars": "ignored"})
    assert list(one.edge_attr) == [PAYS]
    assert list(one.edges[BUYS].shape) == [2, 3]
    with pytest.raises(
        FedGraphError, match=r"feature column 'amuont' is unknown \(.*pays.csv, .*buys.csv\); did you mean 'amount'"
    ):
        read(*files, "amuont")


def test_tables_without_chosen_columns_give_the_graph_of_bare_tables(tables):
    """The same tensors and schema as tables with two columns: repeated edges count once, columns are listed as ignored."""
    said: list[str] = []
    unasked = read(*tables(), say=said.append)
    bare = [
        ("\n".join(",".join(line.split(",")[:2]) for line in text.splitlines())) + "\n"
        for text in (PAYMENTS, PURCHASES)
    ]
    plain = read(*tables("bare", *bare))
    assert not unasked.edge_attr
    assert unasked.edges[PAYS].T.tolist() == [[0, 1], [1, 0], [3, 2]]
    assert unasked.schema == plain.schema
    assert unasked.num_features == plain.num_features == [2, 2, 1, 1]
    assert all(torch.equal(unasked.edges[r], plain.edges[r]) for r in (PAYS, BUYS))
    assert any("pays.csv: ignored: amount, form (edge_columns=NAMES keeps them)" in line for line in said)


def test_reverse_edges_files_and_pyg_carry_the_features(tables, tmp_path):
    graph = read(*tables(), "*")
    client = client_graph(graph, 1, 3)
    assert torch.equal(client.edge_attr["product", "rev_buys", "customer"], graph.edge_attr[BUYS])
    client.save(tmp_path / "client.safetensors")
    again = load_graph(tmp_path / "client.safetensors")
    assert list(again.edge_attr) == list(client.edge_attr)
    assert all(torch.equal(again.edge_attr[r], rows) for r, rows in client.edge_attr.items())
    back = HeteroGraph.from_pyg(client.to_pyg(), "customer", 2).without_reverse()
    assert set(back.edge_attr) == {PAYS, BUYS}
    assert torch.equal(back.edge_attr[PAYS], graph.edge_attr[PAYS])
    turned = client.to_pyg()
    turned[
        "product", "rev_buys", "customer"
    ].edge_attr += 1  # other data than those of the forward edges: no mere reverse
    assert ("product", "rev_buys", "customer") in HeteroGraph.from_pyg(turned, "customer", 2).without_reverse().edges
    turned["customer", "buys", "product"].edge_attr = torch.ones(2, 1)
    with pytest.raises(FedGraphError, match="'customer:buys:product': edge_attr must have a row per edge, got 2 for 3"):
        HeteroGraph.from_pyg(turned, "customer", 2)
    with pytest.raises(FedGraphError, match="edge_attr of 'customer:pays:customer' must be finite; edge 0 has nan"):
        check_graph(replace(graph, edge_attr={PAYS: torch.full((5, 1), torch.nan)}), "mine")


def test_an_edge_type_with_columns_is_kept_although_it_is_a_reverse(tables):
    nodes, edges = tables()
    again = edges[BUYS].with_name("by.csv")
    again.write_text("source,target,days\np1,c2,1\np2,c0,2\np0,c1,3\n")
    by = ("product", "by", "customer")
    assert by not in read(nodes, edges | {by: again}, "amount").edges
    assert read(nodes, edges | {by: again}, "days").edge_attr[by].size(1) == 1


def test_parties_merge_statistics_and_share_the_schema(tables, tmp_path, capsys):
    """Mean and deviation of an edge column are those of both tables together; a party without such edges keeps the width."""
    other = PAYMENTS.replace("10", "90")
    for name, pays in (("a", PAYMENTS), ("b", other)):
        args = options(*tables(name, pays))
        assert main(["import", *args, "edge_columns=*", "--statistics", str(tmp_path / f"{name}.json")]) == 0
    schema = tmp_path / "schema.yaml"
    assert main(["schema", "merge", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(schema)]) == 0
    merged = Schema.load(schema)
    statistics = merged.nodes["customer:pays:customer"]["amount"].statistics
    both = np.array([10, 30, 20, 20, 30, 90, 30, 20, 20, 30.0])
    assert (statistics["center"], statistics["spread"]) == pytest.approx((both.mean(), both.std()))
    nodes, edges = tables("a")
    files = []
    for client, held in enumerate((edges, edges | {BUYS: None})):
        files.append(tmp_path / f"client_{client:04d}.safetensors")
        words = ["--schema", str(schema), "--client", str(client), "--num-clients", "2", "--out", str(files[-1])]
        assert main(["import", *options(nodes, held), *words]) == 0
    assert "features of edges: 'customer:buys:product' 2, 'customer:pays:customer' 4" in capsys.readouterr().out
    one, two = (load_graph(file) for file in files)
    assert one.num_features == two.num_features
    assert two.edge_attr[BUYS].shape == (0, 2)
    np.testing.assert_allclose(one.edge_attr[PAYS][3, 0], (10 - both.mean()) / both.std(), rtol=1e-5)
    check_same([("one", one.schema), ("two", two.schema)])
    whole = read(nodes, edges, "*").schema
    for kept, message in (
        (("stars", "form"), "of 'customer:buys:product', column 'amount' is there and not here"),
        (("form",), "the columns of edges 'customer:buys:product' are none here and stars, amount there"),
    ):
        with pytest.raises(FedGraphError, match=message):
            check_same([("whole", whole), ("other", read(nodes, edges, *kept).schema)])


def test_wrong_input_is_one_error(tables, tmp_path, capsys):
    nodes, edges = tables()
    words = [
        *options(nodes, edges),
        "edge_columns=*",
        "--schema",
        str(tmp_path / "s.yaml"),
        "--out",
        str(tmp_path / "x"),
    ]
    assert main(["import", *words]) == 0
    tables(pays=PAYMENTS.replace("30", "much"))
    capsys.readouterr()
    assert main(["import", *words]) == 2
    assert "pays.csv: features must be finite numbers; column 'amount' has 'much' in row 2" in capsys.readouterr().err
    tables(pays=PAYMENTS.replace("amount", "sum"))
    assert main(["import", *words]) == 2
    assert "pays.csv has no column 'amount' (number)" in capsys.readouterr().err
    for option, message in (
        (["columns.time=form"], "columns.time needs nodes and edges of one type"),
        (["kinds.edges.amount=number"], "column 'node:edge:node.amount' is unknown"),
    ):
        assert main(["import", *words, *option]) == 2
        assert message in capsys.readouterr().err


def many(edges: int = 120) -> HeteroGraph:
    """Customers who pay each other, with parallel payments; a payment's feature is its number."""
    rng = np.random.default_rng(0)
    ends = torch.from_numpy(rng.integers(12, size=(2, edges)))
    fold = torch.arange(12) % 3
    return HeteroGraph(
        counts={"customer": 12},
        edges={PAYS: ends},
        target="customer",
        y=torch.arange(12) % 2,
        train_mask=fold == 0,
        val_mask=fold == 1,
        test_mask=fold == 2,
        num_classes=2,
        name="many",
        edge_attr={PAYS: torch.arange(float(edges)).view(-1, 1)},
    )


def test_partitions_keep_each_edge_with_its_features():
    """Every client's edge has the number by which the whole graph knows it; Central holds all of them, with their reverse."""
    whole = many()
    base = ["dataset=aifb", "partition=random-edges", "split.kind=public", "num_clients=4"]
    for cfg in (compose(base), compose([*base, "strategy=central"])):
        parts = make(whole, cfg)
        for part in parts:
            for edge, turned in ((PAYS, False), (("customer", "rev_pays", "customer"), True)):
                ends = part.node_id["customer"][part.edges[edge]]
                expected = whole.edges[PAYS][:, part.edge_attr[edge][:, 0].long()]
                assert torch.equal(ends.flip(0) if turned else ends, expected)
    assert parts[0].num_edges == 2 * 120


def test_pooling_counts_an_edge_once_and_parallel_edges_as_often_as_a_client_holds_them():
    whole = many()
    clients = [
        replace(
            client_graph(whole, client, 2),
            edges={PAYS: whole.edges[PAYS][:, rows]},
            edge_attr={PAYS: whole.edge_attr[PAYS][rows]},
        )
        for client, rows in enumerate(([0, 1, 1, 2], [1, 2, 2, 2, 3]))
    ]
    pooled_graph = pool(clients)
    assert sorted(pooled_graph.edge_attr[PAYS][:, 0].tolist()) == [0, 1, 1, 2, 2, 2, 3]
    assert torch.equal(pooled_graph.edges[PAYS], whole.edges[PAYS][:, pooled_graph.edge_attr[PAYS][:, 0].long()])
    bare = replace(clients[1], edge_attr={})
    with pytest.raises(FedGraphError, match=r"different numbers of features of nodes and edges.*cannot be pooled"):
        pool([clients[0], bare])
    assert share_schema([clients[0], replace(bare, edges={})])[1].edge_attr[PAYS].shape == (0, 1)


def informative(seed: int) -> HeteroGraph:
    """Customers whose class is the sign of the mean amount of the payments that they receive; ends say nothing."""
    rng = np.random.default_rng(seed)
    target = np.repeat(np.arange(60), 4)
    amount = np.where(target % 2, 1.0, -1.0) + rng.normal(size=240)
    graph = replace(many(), counts={"customer": 60}, y=torch.arange(60) % 2)
    masks = {f"{part}_mask": torch.arange(60) // 2 % 3 == i for i, part in enumerate(("train", "val", "test"))}
    ends = torch.from_numpy(np.stack([rng.integers(60, size=240), target]))
    return replace(graph, edges={PAYS: ends}, edge_attr={PAYS: torch.from_numpy(amount).float().view(-1, 1)}, **masks)


SHARED = {"model.bases": 0, "model.type_embedding": "decoupled", "model.hidden": 8, "model.layers": 2, "train.lr": 0.05}


def test_a_run_on_imported_types_says_before_training_that_its_model_predicts_no_new_nodes(tmp_path):
    notes = startup_notes(compose([f"graph={tmp_path}", "model=rgcn"]))
    assert [note.partition(" ")[0] for note in notes] == ["model.type_embedding=entity"]
    assert "set model.type_embedding=decoupled" in notes[0]
    assert not startup_notes(compose([f"graph={tmp_path}", "model=rgcn", "model.type_embedding=decoupled"]))
    assert not startup_notes(compose(["dataset=aifb", "model=rgcn"]))  # no table has new nodes


def test_items_of_a_typed_graph_are_clusters_of_their_own():
    """No components are counted over types."""
    task, rows = SimpleNamespace(ITEMS="nodes", graph=informative(0)), np.arange(5)
    by, cluster = clusters_of("auto", task, rows)
    assert (by, cluster.tolist()) == ("item", [0, 1, 2, 3, 4])
    with pytest.raises(FedGraphError, match="needs items that are nodes of a graph with one type"):
        clusters_of("component", task, rows)


def test_trees_name_the_types_that_they_do_not_read():
    graphs = [informative(seed).to_pyg() for seed in range(2)]
    with pytest.raises(
        FedGraphError, match="strategy=boosting needs nodes and edges of one type, got a graph of several"
    ):
        fg.run(graphs=graphs, model="gcn", strategy="boosting", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["rgcn", "simple_hgn"])
def test_models_learn_from_edge_features_and_predict_new_graphs(model):
    """Only amounts tell the classes: the shared model finds them, on new customers too, and guesses without amounts."""
    keys = SHARED | {"model": model, "rounds": 20, "split.kind": "public", "progress": False}
    run = fg.run(graphs=[informative(seed).to_pyg() for seed in range(2)], **keys)
    new = informative(7)
    predictions = run.predict(new.to_pyg())
    right = (torch.from_numpy(predictions.codes) == new.y).double().mean()
    assert float(right) > 0.85
    hidden = replace(new, edge_attr={PAYS: torch.zeros(240, 1)}).to_pyg()
    assert 0.3 < float((torch.from_numpy(run.predict(hidden).codes) == new.y).double().mean()) < 0.7
    del hidden["customer", "pays", "customer"].edge_attr
    with pytest.raises(
        FedGraphError, match="reads 1 features of each edge 'customer:pays:customer', but this graph has 0"
    ):
        run.predict(hidden)


@pytest.mark.slow
def test_tables_become_a_run_and_predictions_of_new_tables(tables, tmp_path, capsys):
    """CSV files of two parties and a run of both client files; tables give the predictions of the file made from them."""
    folder, schema = tmp_path / "graphs", tmp_path / "s.yaml"
    for client in range(2):
        args = [*options(*tables()), "--schema", str(schema), "edge_columns=*", "--classes", "a,b"]
        args += ["--client", str(client), "--num-clients", "2"]
        assert main(["import", *args, "--out", str(folder / f"client_{client:04d}.safetensors")]) == 0
    out = tmp_path / "run"
    keys = ["model=simple_hgn", "model.hidden=8", "model.type_embedding=decoupled", "rounds=2", f"out={out}"]
    assert main(["run", f"graph={folder}", *keys, "--no-report", "--quiet"]) == 0

    def predicted(*given: str) -> str:
        assert main(["predict", str(out), "--client", "1", *given, "--out", str(tmp_path / "p.csv")]) == 0
        return (tmp_path / "p.csv").read_text()

    nodes, edges = tables()
    bare = nodes["customer"].with_name("unlabelled.csv")
    bare.write_text("id,age\n" + "".join(f"c{i},{20 + i}\n" for i in range(9)))
    given = options(nodes | {"customer": bare}, edges)[:-3]
    assert predicted(*given) == predicted()
    assert predicted(*options(nodes | {"customer": bare}, {PAYS: edges[PAYS]})[:-3]) != predicted()  # no purchases
    of_run = str(out), "--client", "1"
    assert main(["alerts", *of_run, "--cost", "5,1", *given]) == 0
    assert re.search(r"\d alerts of 9 items:\n", capsys.readouterr().out)
    assert main(["drift", *of_run, *given]) == 2
    assert "drift compares graphs with one type of nodes" in capsys.readouterr().err
    for changed, message in (
        (PAYMENTS.replace("amount", "sum"), "pays.csv has no column 'amount' (number)"),
        (PAYMENTS.replace("30", "much"), "column 'amount' has 'much' in row 2"),
    ):
        tables(pays=changed)
        assert main(["predict", str(out), "--client", "1", *given]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", str(out), "--client", "1", *given, "--edges", f"customer:owns:product={bare}"]) == 2
    assert "edge type 'customer:owns:product' is unknown (--edges)" in capsys.readouterr().err
    assert main(["predict", str(out), "--client", "1", *given, "--graph", str(bare)]) == 2
    assert "pass --nodes and --edges, or --graph" in capsys.readouterr().err
    with pytest.raises(FedGraphError, match="heterogeneous graphs, which cannot be exported yet"):
        fg.load_run(out).export(tmp_path / "exported")
