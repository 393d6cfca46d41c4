"""Columns of edge tables: into a graph, a schema that parties share, runs on every model, and predictions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.schema import EDGE, NODE, Schema
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.clients import pool
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.roles import Columns

NODES = "id,label,age\n" + "".join(f"n{i},{'yes' if i % 3 else 'no'},{20 + i}\n" for i in range(12))


def payments(rows: int = 60, seed: int = 0) -> str:
    """Payments with parallel ones, a number, a category, a flag, a date and a label."""
    rng = np.random.default_rng(seed)
    lines = ["source,target,amount,form,urgent,time,bad"]
    for k in range(rows):
        a, b = rng.integers(12, size=2)
        form, flag = ("wire", "cash")[k % 2], ("yes", "no")[k % 3 == 0]
        lines.append(
            f"n{a},n{b},{10 * (k + 1)},{form},{flag},2026-01-{1 + k % 28:02d} 12:00:{k % 60:02d},{'1' if k % 5 == 0 else '0'}"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(payments())
    return tmp_path / "nodes.csv", tmp_path / "edges.csv"


ROLES = Columns(time="time", edge_label="bad", edge_features=["*"])
KEPT = ["edge_columns=*", "columns.time=time", "columns.edge_label=bad"]


def test_every_row_is_an_edge_with_its_own_data(files):
    g = from_tables(*files, ROLES)
    rows = [line.split(",") for line in files[1].read_text().splitlines()[1:]]
    assert g.edge_index.size(1) == len(rows)
    schema = Schema.from_dict(g.schema["fitted"], "test")
    columns = schema.nodes[EDGE]
    assert {name: c.kind for name, c in columns.items()} == {"amount": "number", "form": "category", "urgent": "flag"}
    assert schema.edge_classes == ("0", "1")
    amount = columns["amount"].statistics
    edges = {}
    for place, (source, target) in enumerate(g.edge_index.T.tolist()):
        value = float(g.edge_attr[place, 0]) * float(amount["spread"]) + float(amount["center"])
        edges[round(value)] = (f"n{source}", f"n{target}", place)
    for source, target, value, form, urgent, time, bad in rows:
        a, b, place = edges[int(value)]
        assert (a, b) == (source, target)
        words = g.edge_attr[place, 1:].tolist()
        assert words[columns["form"].categories.index(form)] == 1
        assert words[-1] == (urgent == "yes")
        assert int(g.edge_time[place]) == int(np.datetime64(time.replace(" ", "T")).astype("datetime64[s]").astype(int))
        assert int(g.edge_y[place]) == int(bad)
    np.testing.assert_allclose(g.edge_attr[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(g.edge_attr[:, 0].std(correction=0), 1, rtol=1e-6)


def test_undirected_rows_carry_their_data_in_both_directions(files):
    one, both = from_tables(*files, ROLES), from_tables(*files, ROLES, undirected=True)
    loops = int((one.edge_index[0] == one.edge_index[1]).sum())
    assert both.edge_index.size(1) == 2 * one.edge_index.size(1) - loops
    back = {(t, s, float(v)) for (s, t), v in zip(both.edge_index.T.tolist(), both.edge_attr[:, 0], strict=True)}
    assert {(s, t, v) for t, s, v in back} == back


def test_ignored_columns_merge_parallel_edges_as_without_columns(files, tmp_path):
    words = {f"{EDGE}.{name}": "ignored" for name in ("amount", "form", "urgent", "time", "bad")}
    g = from_tables(*files, Columns(edge_features=["*"]), treatment=Treatment(kinds=words))
    plain = tmp_path / "plain.csv"
    plain.write_text("\n".join(",".join(line.split(",")[:2]) for line in files[1].read_text().splitlines()) + "\n")
    expected = from_tables(files[0], plain, Columns())
    assert torch.equal(g.edge_index, expected.edge_index)
    assert not g.has_edge_data
    assert g.schema == expected.schema
    said: list[str] = []
    unasked = from_tables(*files, Columns(), treatment=Treatment(say=said.append))
    assert torch.equal(unasked.edge_index, expected.edge_index)
    assert unasked.schema == expected.schema
    assert f"{files[1]}: ignored: amount, form, urgent, time, bad (edge_columns=NAMES keeps them)" in said


def test_schemas_with_edge_columns_are_shared_merged_and_compared(files, tmp_path, capsys):
    """Two parties' sums give one schema; both then have the same columns, scaled alike, and another is refused."""
    (tmp_path / "other.csv").write_text(payments(80, seed=1))
    for name, edges in (("a", files[1]), ("b", tmp_path / "other.csv")):
        args = ["--nodes", str(files[0]), "--edges", str(edges), *KEPT]
        assert main(["import", *args, "--statistics", str(tmp_path / f"{name}.json")]) == 0
    schema = tmp_path / "schema.yaml"
    assert main(["schema", "merge", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(schema)]) == 0
    merged = Schema.load(schema)
    amounts = [10.0 * k for rows in (60, 80) for k in range(1, rows + 1)]
    assert merged.nodes[EDGE]["amount"].statistics["center"] == pytest.approx(np.mean(amounts))
    assert merged.nodes[EDGE]["amount"].statistics["spread"] == pytest.approx(np.std(amounts))
    assert merged.edge_classes == ("0", "1")
    assert (merged.tables.time, merged.tables.edge_label) == ("time", "bad")
    saved = Schema.from_dict(merged.to_dict(), "again")
    assert (saved.nodes, saved.edges) == (merged.nodes, (EDGE,))
    treatment = Treatment(schema=merged, where="schema.yaml")
    g = from_tables(files[0], files[1], Columns.of(merged.tables), treatment=treatment)
    assert list(g.schema["agreed"]["edges"][EDGE]) == ["amount", "form", "urgent"]
    spread = merged.nodes[EDGE]["amount"].statistics
    raw = g.edge_attr[:, 0] * float(spread["spread"]) + float(spread["center"])
    torch.testing.assert_close(raw.sort().values, torch.arange(1, 61) * 10.0)
    other = replace(merged, nodes={NODE: merged.nodes[NODE]})
    assert "the columns of edges are amount, form, urgent here and none there" in merged.difference(other)
    assert main(["schema", "show", str(schema)]) == 0
    assert f"{EDGE}    1  amount: number" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("", "row 3 has '' in column 'time'"),
        ("soon", "row 3 has 'soon' in column 'time'"),
    ],
)
def test_a_missing_time_is_an_error(files, column, message):
    lines = files[1].read_text().splitlines()
    cells = lines[3].split(",")
    cells[5] = column
    files[1].write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
    with pytest.raises(FedGraphError, match=message):
        from_tables(*files, ROLES)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gine", "gcn"])
def test_two_parties_train_on_edge_columns_and_predict(files, tmp_path, run_main, model):
    """From tables to client files, a run, and predictions for new tables with the same columns."""
    folder = tmp_path / "graphs"
    for client in range(2):
        args = ["--nodes", str(files[0]), "--edges", str(files[1]), *KEPT]
        args += [
            "--schema",
            str(tmp_path / "s.yaml"),
            "--classes",
            "no,yes",
            "--client",
            str(client),
            "--num-clients",
            "2",
        ]
        run_main("import", *args, "--out", str(folder / f"client_{client:04d}.safetensors"))
    graph = ClientGraph.load(folder / "client_0000.safetensors")
    assert graph.num_edge_features == 5
    out = tmp_path / "run"
    run_main("run", f"graph={folder}", f"model={model}", "model.hidden=8", "rounds=2", f"out={out}", "--no-report")
    pooled = pool([graph, ClientGraph.load(folder / "client_0001.safetensors")])
    assert pooled.edge_attr.size(0) == pooled.edge_index.size(1) == 120
    args = ["--nodes", str(files[0]), "--edges", str(files[1]), "--out", str(tmp_path / "p.csv")]
    run_main("predict", str(out), *args)
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 13
    run_main("export", str(out), "--out", str(tmp_path / "exported"))
    assert (tmp_path / "exported" / "model.py").is_file()


@pytest.fixture
def run_main():
    def call(*overrides: str) -> None:
        assert main(list(overrides)) == 0

    return call


def test_saved_graphs_keep_edge_features(tmp_path):
    from torch_geometric.data import Data

    data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 0], [1, 2, 1]]), y=torch.tensor([0, 1, 0]))
    data.edge_attr, data.edge_time = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5, 6, 7])
    g = Graph.from_pyg(data, 2)
    assert g.edge_attr.tolist() == [[1.0], [2.0], [3.0]]
    assert g.edge_time.tolist() == [5, 6, 7]
    data.edge_attr = torch.ones(2, 1)
    with pytest.raises(FedGraphError, match="edge_attr must have a row per edge, got 2 for 3 edges"):
        Graph.from_pyg(data, 2)
