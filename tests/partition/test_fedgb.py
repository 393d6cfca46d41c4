"""FedGB's files, hand-written in its schema 1.0, become client graphs that runs read."""

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.many_graphs import one_per_graph, selected
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import store
from fedgraph_flwr.partition.clients import pool
from fedgraph_flwr.partition.fedgb import read

NODES, GRAPHS = 12, 10


def theirs() -> Any:
    """A class under the name that FedGB's pickles have."""
    return type("FGLGraphDataset", (), {"__module__": "fedgb.data.fgl_graph_dataset"})


@pytest.fixture(autouse=True)
def fedgb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that pickling can find; reading must not need it."""
    module = types.ModuleType("fedgb.data.fgl_graph_dataset")
    module.FGLGraphDataset = theirs()  # type: ignore[attr-defined]
    for name in ("fedgb", "fedgb.data", module.__name__):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.FGLGraphDataset


def write(root: Path, of: str, what: str, clients: list[Any], sizes: list[int], **changed: Any) -> Path:
    """Write a variant of three clients; a tenth of the items is in no mask."""
    place = root / "distrib" / "natural"
    (place / what / "default_split").mkdir(parents=True)
    for index, (data, size) in enumerate(zip(clients, sizes, strict=True)):
        torch.save(data, place / f"data_{index}.pt")
        item = torch.arange(size)
        for split, mask in zip(("train", "val", "test"), (item % 3 == 0, item % 3 == 1, item % 6 == 5), strict=True):
            torch.save(mask, place / what / "default_split" / f"{split}_{index}.pt")
            (place / what / "default_split" / f"glb_{split}_{index}.pkl").write_bytes(pickle.dumps(print))
    values = {
        "name": "TINY",
        "schema_version": "1.0",
        "level": of,
        "task": what,
        "num_clients": 3,
        **changed,
    }
    (root / "fedgb_manifest.json").write_text(json.dumps(values))
    return root


def nodes(root: Path, **manifest: Any) -> Path:
    """Three clients; clients 0 and 1 share the node with global id 11."""
    clients = []
    for index in range(3):
        gen = torch.Generator().manual_seed(index)
        ids = torch.arange(NODES) + (11 if index == 1 else 100 * index)
        mapped: Any = ids if index == 0 else {i: int(g) for i, g in enumerate(ids)}
        if index == 2:
            mapped = {int(g): i for i, g in enumerate(ids)}  # global to local
        clients.append(
            Data(
                x=torch.randn(NODES, 5, generator=gen).double(),
                edge_index=torch.tensor([[0, 1, 2, 3, 4], [1, 0, 2, 4, 5]]).int(),
                y=(torch.arange(NODES) % 3).view(-1, 1).int(),
                global_map=mapped,
                num_global_classes=4,
            )
        )
    return write(root, "homo_subgraph", "node_cls", clients, [NODES] * 3, **manifest)


def typed(root: Path) -> Path:
    """Types a, b, c with six nodes each; edges of relation number 1 join two pairs of types."""
    clients = []
    for index in range(3):
        kind = torch.arange(18) % 3
        source, target = torch.arange(0, 17), torch.arange(1, 18)
        clients.append(
            Data(
                x=torch.arange(18.0)[:, None] + torch.tensor([[0.0, 100 * index]]),
                edge_index=torch.stack([source, target]),
                edge_type=torch.where(kind[source] == 0, 0, 1),
                node_type=kind,
                y=torch.where(kind == 0, torch.arange(18) // 3 % 2, -1),
                global_map=torch.arange(18) + 18 * index,
                target_node_type="a",
                hetero_node_types=["a", "b", "c"],
                hetero_edge_types=["to", "next"],
            )
        )
    return write(root, "hetero_subgraph", "node_cls", clients, [18] * 3)


def graphs(root: Path, kind: Any, task: str) -> Path:
    """Ten paths of four to nine nodes per client; client 2 of a regression has no numbers."""
    clients = []
    for index in range(3):
        held = kind()
        held.graphs, held.num_targets, held.client_name = [], 3, f"lab {index}"
        held.num_global_classes = 2
        for number in range(GRAPHS):
            n = 4 + (number + index) % 6
            pair = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
            data = Data(x=torch.full((n, 2), float(number)), edge_index=torch.cat([pair, pair.flip(0)], 1))
            data.edge_attr = torch.arange(2.0 * (n - 1))[:, None] * torch.ones(1, 2)
            data.y = torch.tensor(number % 2) if task == "graph_cls" else torch.tensor([[float(n), number, -1.0]])
            if task == "graph_reg":
                data.y_mask = torch.tensor([[index != 2, index != 2 and number % 2 == 0, False]])
            held.graphs.append(data)
        clients.append(held)
    return write(root, "graph", task, clients, [GRAPHS] * 3)


def test_nodes_keep_their_global_ids(tmp_path):
    clients, task = read(nodes(tmp_path))
    assert task == "nodes"
    assert [client.node_id.tolist()[:2] for client in clients] == [[0, 1], [11, 12], [200, 201]]
    first = clients[0]
    assert (first.num_classes, first.num_clients, first.name) == (4, 3, "TINY")
    assert first.edge_index.tolist() == [[0, 1, 3, 4, 4, 5], [1, 0, 4, 3, 5, 4]]  # both directions, no loop
    assert first.x.dtype == torch.float32
    assert first.y.tolist() == [0, 1, 2] * 4
    assert [int(mask.sum()) for mask in (first.train_mask, first.val_mask, first.test_mask)] == [4, 4, 2]
    assert pool(clients).num_nodes == 3 * NODES - 1  # the shared node counts once


def test_typed_nodes_are_those_of_the_numbers(tmp_path):
    clients, _ = read(typed(tmp_path))
    second = clients[1]
    assert dict(second.counts) == {"a": 6, "b": 6, "c": 6}
    assert second.target == "a"
    assert second.node_id["b"].tolist() == [19, 22, 25, 28, 31, 34]
    assert second.x["c"][0].tolist() == [2, 102]
    assert second.edges["a", "to", "b"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert second.edges["c", "next", "a"].tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert second.edges["b", "rev_to", "a"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert second.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert second.train_mask.tolist() == [True] * 6  # nodes 0, 3, 6, ... are of type a


def test_typed_files_of_pyg_are_read_too(tmp_path):
    clients = []
    for _ in range(3):
        data = HeteroData()
        data["b"].x, data["a"].x = torch.ones(4, 2), torch.ones(6, 3)
        data["a"].y = torch.arange(6) % 2
        data["b", "to", "a"].edge_index = torch.tensor([[0, 3], [1, 5]])
        clients.append(data)
    found, _ = read(write(tmp_path, "hetero_subgraph", "node_cls", clients, [10] * 3))
    # types are listed as in the file, b then a, so a's masks are entries 4 to 9
    assert found[0].train_mask.tolist() == [(4 + node) % 3 == 0 for node in range(6)]
    assert found[2].node_id["a"].tolist() == list(range(12, 18))  # no node of another client


@pytest.mark.parametrize("task", ["graph_cls", "graph_reg"])
def test_graphs_keep_their_answers(tmp_path, fedgb, task):
    clients, ours = read(graphs(tmp_path, fedgb, task))
    assert ours == ("graphs" if task == "graph_cls" else "graphs-regression")
    one = selected(clients[1], torch.tensor([2]))
    assert one.x.tolist() == [[2, 2]] * 7
    assert one.edge_attr[:, 0].tolist() == list(range(12))
    assert one.edge_index[:, :2].tolist() == [[0, 1], [1, 2]]
    items = one_per_graph(clients[1])
    if task == "graph_cls":
        assert items.y.tolist() == [0, 1] * 5
        assert int(items.train_mask.sum()) == 4
        return
    assert items.targets[:3].nan_to_num(-9).tolist() == [[5, 0, -9], [6, -9, -9], [7, 2, -9]]
    assert not one_per_graph(clients[2]).train_mask.any()
    train = torch.cat([one_per_graph(client).targets[one_per_graph(client).train_mask] for client in clients[:2]])
    assert clients[2].target_stats[0, 0] == pytest.approx(float(train[:, 0].mean()))


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("nodes", {}),
        pytest.param("graph_reg", {}, marks=pytest.mark.slow),
        pytest.param("graph_cls", {"strategy": "gcfl"}, marks=pytest.mark.slow),
        pytest.param("typed", {"model": "rgcn"}, marks=pytest.mark.slow),
    ],
)
def test_a_federation_runs(tmp_path, fedgb, kind, keys, capsys):
    root, out = tmp_path / "raw", tmp_path / "parts"
    made = {"nodes": nodes, "typed": typed}.get(kind) or (lambda root: graphs(root, fedgb, kind))
    root.mkdir()
    assert main(["partition", "--fedgb", str(made(root)), "--out", str(out)]) == 0
    task = capsys.readouterr().out.strip().rpartition("task=")[2]
    assert len(store.files(out)) == 3
    run = fg.run(graph=str(out), task=task, rounds=1, progress=False, out=tmp_path / "run", **keys)
    assert run.summary["dataset"] == "TINY"
    assert run.summary["metrics"]


class Strange:
    """A class that no file may name."""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: nodes(root, schema_version="2"), "has schema_version 2: write it again with FedGB 1.0"),
        (
            lambda root: nodes(root, level="graphs"),
            "has level/task graphs/node_cls, expected one of: homo_subgraph/node",
        ),
        (lambda root: nodes(root, num_clients=True), "has num_clients True, expected a positive integer"),
        (lambda root: nodes(root, num_clients=4), r"no such file: .*train_3\.pt"),
        (lambda root: nodes(root, processed_partition="../x"), "processed_partition must name a folder"),
        (lambda root: (nodes(root) / "distrib" / "other").mkdir(), "has 2 folders, expected one"),
        (
            lambda root: torch.save(Strange(), nodes(root) / "distrib/natural/data_1.pt"),
            r"data_1\.pt does not hold a plain .*it names",
        ),
        (
            lambda root: torch.save([], nodes(root) / "distrib/natural/data_1.pt"),
            r"data_1\.pt holds a list, expected a PyG Data",
        ),
        (
            lambda root: torch.save(torch.ones(3), nodes(root) / "distrib/natural/node_cls/default_split/val_0.pt"),
            r"val_0\.pt must hold a tensor of one bool",
        ),
        (
            lambda root: torch.save(torch.ones(3) > 0, nodes(root) / "distrib/natural/node_cls/default_split/val_0.pt"),
            r"data_0\.pt has 12 nodes or graphs, and its masks have 12/3/12 entries",
        ),
    ],
)
def test_another_folder_is_refused(tmp_path, change, reason):
    change(tmp_path)
    with pytest.raises(FedGraphError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"y": torch.tensor(1)}, r"data_1\.pt\[3\] has y a class, and .* 3 numbers"),
        ({"y_mask": torch.ones(1, 2) > 0}, r"data_1\.pt\[3\] must have .* a bool for each"),
        ({"edge_attr": None}, r"data_1\.pt\[3\] has columns of edge_attr None, and .* 2"),
        ({"edge_index": torch.tensor([[0], [99]])}, r"data_1\.pt\[3\] must have .* edges of its n nodes"),
    ],
)
def test_graphs_that_differ_are_refused(tmp_path, fedgb, change, reason):
    path = graphs(tmp_path, fedgb, "graph_reg") / "distrib/natural/data_1.pt"
    held = torch.load(path, weights_only=False)
    for key, value in change.items():
        held.graphs[3][key] = value
    torch.save(held, path)
    with pytest.raises(FedGraphError, match=reason):
        read(tmp_path)
