"""Tables of many graphs: imported, trained on, and new graphs predicted."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import unpack_words
from fedgraph_flwr.data.many_graphs import one_per_graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.roles import Columns

GRAPHS = "molecule,label,part,weight\nm2,toxic,train,2.5\nm1,safe,test,1\nm3,,val,\n"
ATOMS = "molecule,id,size\nm1,1,0.5\nm2,1,1.5\nm1,2,2.5\nm3,1,3.5\nm2,2,4.5\n"
BONDS = "molecule,source,target,order\nm1,1,2,1\nm2,2,1,2\n"
COLUMNS = Columns(graph="molecule", split="part")


@pytest.fixture
def tables(tmp_path: Path) -> list[Path]:
    """Files of nodes, edges and graphs."""
    paths = [tmp_path / name for name in ("atoms.csv", "bonds.csv", "molecules.csv")]
    for path, text in zip(paths, (ATOMS, BONDS, GRAPHS), strict=True):
        path.write_text(text)
    return paths


def test_nodes_stand_side_by_side_with_the_answers_of_their_graph(tables):
    graph = from_tables(*tables[:2], COLUMNS, undirected=True, graphs=tables[2])
    assert graph.graph_id.tolist() == [0, 0, 1, 1, 2]  # in the order of the table of graphs
    assert unpack_words(graph.ids).tolist() == ["m2", "m2", "m1", "m1", "m3"]
    assert graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    items = one_per_graph(graph)
    assert items.y.tolist() == [1, 0, -1]
    assert [mask.tolist() for mask in (items.train_mask, items.val_mask, items.test_mask)] == [
        [True, False, False],
        [False, False, False],  # m3 has no label
        [False, True, False],
    ]
    sizes = np.array([1.5, 4.5, 0.5, 2.5, 3.5])  # `weight` is no feature but a column of graphs
    column = graph.x[:, 0].numpy()
    assert np.corrcoef(column, sizes)[0, 1] == pytest.approx(1)


def test_numbers_of_graphs_are_targets(tables):
    tables[2].write_text(GRAPHS.replace("label,", "").replace("toxic,", "").replace("safe,", "").replace("m3,,", "m3,"))
    columns = Columns(graph="molecule", split="part", predict="weight", label="")
    targets = one_per_graph(from_tables(*tables[:2], columns, graphs=tables[2])).targets
    assert targets[:2].tolist() == [[2.5], [1]]
    assert targets[2].isnan()


@pytest.mark.parametrize(
    ("place", "text", "reason"),
    [
        (2, GRAPHS + "m9,safe,train,1\n", r"molecules\.csv lists graph 'm9', of which .*atoms\.csv has no node"),
        (2, GRAPHS.replace("m1", "m2"), r"molecules\.csv lists graph 'm2' twice"),
        (
            2,
            GRAPHS.replace("m3,,val,\n", ""),
            r"atoms\.csv has nodes of graph 'm3', which .*molecules\.csv does not list",
        ),
        (2, GRAPHS.replace("molecule", "name"), r"graph column 'molecule' is unknown \(.*molecules\.csv\)"),
        (2, GRAPHS.replace("weight", "size"), "column 'size' is in both"),
        (0, ATOMS.replace("m3", ""), r"atoms\.csv: row 4 has '' in column 'molecule', expected the graph"),
        (1, BONDS.replace("m2,2,1", "m2,2,9"), r"bonds\.csv.*m2/9"),
        (1, "source,target\n1,2\n", "id '1' .*twice|repeated"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tables, place, text, reason):
    tables[place].write_text(text)
    with pytest.raises(FedGraphError, match=reason):
        from_tables(*tables[:2], COLUMNS, graphs=tables[2])


def test_edges_between_graphs_are_refused(tables):
    tables[0].write_text(
        ATOMS.replace("m1,2", "m1,b").replace("m2,1", "m2,c").replace("m2,2", "m2,d").replace("m3,1", "m3,e")
    )
    tables[1].write_text("source,target\n1,b\nb,c\n")
    with pytest.raises(FedGraphError, match=r"bonds\.csv: graph_id: edge 1 joins two graphs"):
        from_tables(*tables[:2], COLUMNS, graphs=tables[2])


@pytest.mark.slow
def test_from_tables_to_predicted_new_graphs(tmp_path, monkeypatch, capsys):
    """Paths of three nodes against pairs, of equal features."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))

    def write(names: list[str]) -> None:
        sizes = [3 if k % 2 else 2 for k in range(len(names))]
        rows = [
            (name, n, (n * k) % 5) for k, (name, size) in enumerate(zip(names, sizes, strict=True)) for n in range(size)
        ]
        pd.DataFrame(rows, columns=["g", "id", "f"]).to_csv("nodes.csv", index=False)
        pairs = [(name, n - 1, n) for name, size in zip(names, sizes, strict=True) for n in range(1, size)]
        pd.DataFrame(pairs, columns=["g", "source", "target"]).to_csv("edges.csv", index=False)
        pd.DataFrame({"g": names, "label": ["path" if size == 3 else "pair" for size in sizes]}).to_csv(
            "graphs.csv", index=False
        )

    monkeypatch.chdir(tmp_path)
    write([f"g{k}" for k in range(40)])
    overrides = ["--nodes", "nodes.csv", "--edges", "edges.csv", "columns.graph=g", "--undirected"]
    assert main(["import", *overrides, "--graph-table", "graphs.csv", "--name", "shapes"]) == 0
    assert "40 graphs" in capsys.readouterr().out
    overrides = [
        "task=graphs",
        "dataset=shapes",
        "partition=random",
        "num_clients=2",
        "rounds=15",
        "model.hidden=8",
        "model.dropout=0",
    ]
    assert main(["run", *overrides, "out=run"]) == 0
    write([f"new{k}" for k in range(6)])
    assert main(["predict", "run", "--nodes", "nodes.csv", "--edges", "edges.csv", "--out", "found.csv"]) == 0
    predictions = pd.read_csv("found.csv")
    assert predictions["id"].tolist() == [f"new{k}" for k in range(6)]
    assert predictions["class"].tolist() == ["pair", "path"] * 3
    assert "on 6 graphs" in capsys.readouterr().out
