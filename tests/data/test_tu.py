"""TU Dortmund's datasets: hand-written files in their format become the graphs that PyG's own class reads."""

from pathlib import Path

import pytest
import torch
from torch_geometric.datasets import TUDataset

import fedgraph_flwr as fg
from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.many_graphs import index_of, one_per_graph, selected, side_by_side
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.clients import assign

FILES = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n5, 6\n6, 5\n7, 8\n8, 7\n8, 8\n",
    "graph_indicator": "1\n1\n1\n2\n2\n2\n3\n3\n",
    "graph_labels": "-1\n1\n-1\n",
    "node_labels": "3\n3\n5\n5\n3\n3\n5\n5\n",
    "node_attributes": "".join(f"{n / 8}, {n}\n" for n in range(8)),
    "edge_labels": "0\n0\n1\n1\n0\n0\n2\n2\n1\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    return tmp_path


def write(root: Path, name: str, *left_out: str, **more: str) -> None:
    folder = root / "TUDataset" / name / "raw"
    folder.mkdir(parents=True)
    for part, text in {**FILES, **more}.items():
        if part not in left_out:
            (folder / f"{name}_{part}.txt").write_text(text)


def dataset(name: str, *overrides: str) -> DatasetConfig:
    return compose(["task=graphs", "dataset=tu", f"dataset.name={name}", *overrides]).dataset


def read(name: str, *overrides: str) -> Graph:
    graph = load(dataset(name, *overrides))
    assert isinstance(graph, Graph)
    return graph


def test_graphs_are_those_of_pyg(root, tmp_path):
    write(root, "TINY")
    graph = read("TINY")
    plain = TUDataset(str(tmp_path / "TUDataset"), "TINY", use_node_attr=True)
    assert len(plain) == len(one_per_graph(graph).y) == 3
    for place, counterpart in enumerate(plain):
        one = selected(graph, torch.tensor([place]))
        assert torch.equal(one.x, counterpart.x)
        assert torch.equal(one.edge_index, counterpart.edge_index)
        assert torch.equal(one.edge_attr, counterpart.edge_attr)
        assert one.y.unique().tolist() == counterpart.y.tolist()
    assert read("TINY", "dataset.attributes=false").num_features == 3  # labels 3, 4 and 5
    assert graph.num_classes == 2


def test_graphs_without_features_get_their_degrees(root):
    write(root, "BARE", "node_labels", "node_attributes", "edge_labels")
    graph = read("BARE")
    degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
    assert graph.x.argmax(1).tolist() == degree.tolist() == [1, 2, 1, 0, 1, 1, 1, 1]
    assert read("BARE", "dataset.degrees=1").x.shape == (8, 2)
    assert not graph.edge_attr.numel()


def test_numbers_of_graphs_are_targets(root):
    write(root, "NUMBERS", "graph_labels", graph_attributes="1.5, 2\n-3, 4\n0.25, nan\n")
    targets = one_per_graph(read("NUMBERS")).targets
    assert targets[:2].tolist() == [[1.5, 2], [-3, 4]]
    assert targets[2, 0] == 0.25
    assert targets[2, 1].isnan()


def test_nodes_out_of_order_are_refused(root):
    write(root, "MIXED", graph_indicator="1\n2\n1\n2\n2\n2\n3\n3\n")
    with pytest.raises(FedGraphError, match="line 3: graph 1 after graph 2, expected graph numbers in ascending order"):
        read("MIXED")


@pytest.mark.slow
def test_a_run_classifies_many_small_graphs(root, tmp_path):
    """Paths of three nodes and pairs, with and without an isolated node."""
    sizes = [3, 2] * 20
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    pairs = [(start + i, start + i + 1) for start, size in zip(starts, sizes, strict=True) for i in range(1, size)]
    folder = root / "TUDataset" / "PATHS" / "raw"
    folder.mkdir(parents=True)
    texts = {
        "A": "".join(f"{u}, {v}\n{v}, {u}\n" for u, v in pairs),
        "graph_indicator": "".join(f"{k + 1}\n" * size for k, size in enumerate(sizes)),
        "graph_labels": "".join(f"{size}\n" for size in sizes),
    }
    for part, text in texts.items():
        (folder / f"PATHS_{part}.txt").write_text(text)
    keys = {"task": "graphs", "dataset": "tu", "dataset.name": "PATHS", "num_clients": 2, "rounds": 30}
    run = fg.run(**keys, **{"model.hidden": 16, "model.dropout": 0}, progress=False, out=tmp_path / "run")
    assert run.summary["metrics"]["best_val"]["test_accuracy"] == 1
    assert index_of(read("PATHS")).max() == 39


def test_chunks_are_consecutive_graphs_and_the_rest_is_drawn():
    graph = side_by_side(
        torch.ones(44, 1),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.tensor([1, 3] * 11),
        y=torch.arange(22) // 11,
        num_classes=2,
    )
    cfg = compose(["partition=chunks", "partition.size=4"]).partition
    parts = assign(graph, cfg, 3, 0)
    items = [graph.graph_id[part].unique() for part in parts]
    for client, members in enumerate(items):
        assert set(range(4 * client, 4 * client + 4)) <= set(members.tolist())
    assert sorted(torch.cat(items).tolist()) == list(range(22))
    assert sum(len(part) for part in parts) == 44  # graphs stay whole
    assert [len(part) for part in assign(graph, compose(["partition=chunks"]).partition, 2, 0)] == [21, 23]
    with pytest.raises(FedGraphError, match=r"partition\.size=0 must be a positive integer"):
        assign(graph, compose(["partition=chunks", "partition.size=0"]).partition, 2, 0)
