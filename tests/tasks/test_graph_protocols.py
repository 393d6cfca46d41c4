"""The protocols of GCFL and FedStar: their network by PyG's layers, what travels, epochs, and the settings of each data set."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric.datasets import TUDataset
from torch_geometric.nn import GINConv, global_add_pool

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.tasks.graphs import OfGraphs
from fedgraph_flwr.testing import assert_same_arrays

SMALL = ["protocol=gcfl", "dataset=cycles", "partition=planted", "dataset.graphs=20", "num_clients=2", "model.hidden=8"]


def linear(weights: dict[str, Any], name: str) -> nn.Linear:
    made = nn.Linear(*weights[f"{name}.weight"].shape, dtype=torch.float64)
    made.weight.data, made.bias.data = weights[f"{name}.weight"].T, weights[f"{name}.bias"]
    return made


def test_gin_is_pygs_layers_in_gcfls_order():
    """Linear, convolutions with ReLU, a sum over each graph's nodes, and two linear layers (GCFL's ``models.py``)."""
    client = GraphClient(compose([*SMALL, "dtype=float64"]), load_client(compose(SMALL), 0))
    client.model.eval()
    w = {name: tensor.detach() for name, tensor in client.model.state_dict().items()}
    every = client.later[0][1]
    h, edges = linear(w, "embed")(client.graph.x.double()), client.graph.edge_index
    for layer in range(3):
        inner = nn.Sequential(*(linear(w, f"layers.{layer}.mlp.{part}") for part in (0, 2)))
        inner.insert(1, nn.ReLU())
        h = GINConv(inner)(h, edges).relu()
    expected = linear(w, "head")(linear(w, "post")(global_add_pool(h, every.item_index)).relu())
    torch.testing.assert_close(client.model(every), expected, atol=1e-12, rtol=0)
    assert set(client.shared) == {name for name in w if name.startswith("layers.")}


def test_the_protocol_is_gcfls():
    cfg = compose(["protocol=gcfl", "strategy=gcfl", "strategy.plus=true"])
    check_method(cfg)
    assert (cfg.dataset.name, cfg.partition.name, cfg.partition.params["size"]) == ("PROTEINS", "chunks", 50)
    assert (cfg.rounds, cfg.num_clients, cfg.train.lr, cfg.train.local_epochs, cfg.task.batch_size) == (
        200,
        10,
        1e-3,
        1,
        128,
    )
    rules = cfg.strategy.params
    assert (rules["eps1"], rules["eps2"], rules["length"], rules["series"]) == (0.03, 0.06, 10, "gradient")
    other = compose(["protocol=gcfl", "strategy=gcfl", "dataset=tu", "dataset.name=NCI1", "strategy.eps1=1"])
    assert (other.num_clients, other.strategy.params["eps1"], other.strategy.params["eps2"]) == (30, 1, 0.08)
    assert "eps1" not in compose(["protocol=gcfl", "dataset=tu", "dataset.name=NCI1"]).strategy.params


@pytest.mark.parametrize(("size", "steps"), [(0, 2), (7, 6), (16, 2)])
def test_an_epoch_reads_each_training_graph_once(size, steps):
    client = GraphClient(
        cfg := compose([*SMALL, f"task.batch_size={size}", "train.local_epochs=2"]), load_client(cfg, 0)
    )
    assert client.num_train == 16
    assert client.local_steps == steps
    client.server_round = 3
    batches = list(client.batches())
    assert sum(len(batch.y) for batch in batches) == 2 * 16
    first = batches[: steps // 2]
    assert len({id(batch.inputs) for batch in first}) == len(first)  # no batch twice in a pass
    assert isinstance(client.task, OfGraphs)


def test_epochs_need_a_task_that_counts_them():
    with pytest.raises(FedGraphError, match=r"no effect with train\.sampler=none and task=nodes"):
        check_method(compose(["train.local_epochs=1"]))
    with pytest.raises(FedGraphError, match=r"FedNova weights clients by steps that the configuration sets"):
        check_method(compose(["strategy=fednova", "task=graphs", "dataset=cycles", "train.local_epochs=1"]))


def test_clusters_part_and_only_convolutions_travel(tmp_path: Path):
    given = dict(word.split("=") for word in SMALL) | {"num_clients": 3, "dataset.graphs": 20, "model.hidden": 8}
    splits = {"strategy": "gcfl", "strategy.warmup": 0, "strategy.eps1": 1e9, "strategy.eps2": 0}
    run = fg.run(**given | splits, rounds=2, progress=False, out=tmp_path / "run")
    assert run.summary["strategy"] == "gcfl"
    models = read_tensors(tmp_path / "run/models_final.safetensors")[0]
    assert {name.split("/")[1].split(".")[0] for name in models} == {"layers"}


def write(root: Path, name: str, labels: int, classes: int) -> None:
    """Paths of three nodes and single edges, with these numbers of node labels and classes, in TU Dortmund's format."""
    sizes = [2 + number % 2 for number in range(18)]
    starts = [sum(sizes[:number]) for number in range(18)]
    pairs = [(start + i, start + i + 1) for start, size in zip(starts, sizes, strict=True) for i in range(1, size)]
    folder = root / "TUDataset" / name / "raw"
    folder.mkdir(parents=True)
    texts = {
        "A": "".join(f"{u}, {v}\n{v}, {u}\n" for u, v in pairs),
        "graph_indicator": "".join(f"{number + 1}\n" * size for number, size in enumerate(sizes)),
        "graph_labels": "".join(f"{number % classes}\n" for number in range(18)),
        "node_labels": "".join(f"{node % labels}\n" for node in range(sum(sizes))),
    }
    for part, text in texts.items():
        (folder / f"{name}_{part}.txt").write_text(text)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run whose clients hold one data set each: four features and two classes, five features and three."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    write(tmp_path, "ONE", 4, 2)
    write(tmp_path, "TWO", 5, 3)
    keys = {"dataset": "tu", "dataset.name": "ONE+TWO", "partition": "given", "rounds": 2, "model.hidden": 8}
    return keys | {"protocol": "fedstar", "split.train": 0.5, "split.val": 0.25, "split.test": 0.25, "progress": False}


@pytest.mark.parametrize("strategy", ["fedstar", "fedavg"])
def test_each_dataset_is_a_client_with_its_own_features_and_classes(strategy, two, tmp_path):
    fg.run(**two, strategy=strategy, out=tmp_path / "run")
    cfg = compose([f"{key}={value}" for key, value in (two | {"strategy": strategy}).items() if key != "progress"])
    clients = [load_client(cfg, index) for index in range(2)]
    assert [(party.num_features, party.num_classes, party.name) for party in clients] == [(4, 2, "ONE"), (5, 3, "TWO")]
    shared = read_tensors(tmp_path / "run/model_final.safetensors")[0]
    assert {name.split(".")[0] for name in shared} == (
        {"structure", "structure_convs"} if strategy == "fedstar" else {"layers"}
    )
    for index, classes in enumerate((2, 3)):
        out = tmp_path / f"{index}.csv"
        assert main(["predict", str(tmp_path / "run"), "--client", str(index), "--out", str(out)]) == 0
        table = pd.read_csv(out)
        assert len(table) == 18
        assert [name for name in table if name.startswith("p_")] == [f"p_{number}" for number in range(classes)]


@pytest.mark.slow
@pytest.mark.xdist_group("one ray")
@pytest.mark.usefixtures("one_ray")
def test_ray_gives_the_bits_of_the_inline_engine(two, tmp_path):
    """Clients with other features and classes in Ray actors: the shared and the private parameters of one process."""
    runs = [fg.run(**two, engine=engine, out=tmp_path / engine) for engine in ("inline", "ray")]
    shared = [read_tensors(tmp_path / engine / "model_final.safetensors")[0] for engine in ("inline", "ray")]
    assert_same_arrays(*shared)
    for client in range(2):  # by its private input layer and head
        assert torch.equal(*(run.predict(client=client).logits for run in runs))


MOLECULES: dict[str, dict[str, list[Any]]] = {
    # two rings with a tail and two chains: classes -1 and 1, kinds of atoms and of bonds, as in MUTAG
    "MUTAG": {
        "A": [(1, 2), (2, 3), (3, 1), (3, 4), (5, 6), (6, 7), (8, 9), (9, 10), (10, 8), (10, 11), (12, 13), (13, 14)],
        "graph_indicator": [1] * 4 + [2] * 3 + [3] * 4 + [4] * 3,
        "graph_labels": [1, -1, 1, -1],
        "node_labels": [0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 2, 1, 0, 0],
    },
    # as in BZR: coordinates besides the kinds of atoms, whose numbers from 1 to 35 have gaps
    "BZR": {
        "A": [(1, 2), (2, 3), (4, 5), (5, 6), (6, 4), (7, 8), (9, 10), (10, 11)],
        "graph_indicator": [1] * 3 + [2] * 3 + [3] * 2 + [4] * 3,
        "graph_labels": [-1, 1, -1, 1],
        "node_labels": [1, 6, 1, 6, 8, 6, 1, 6, 35, 6, 1],
        "node_attributes": [(n / 4, -n, 0.5) for n in range(11)],
    },
}
"""Single directions of the edges, and the other files, of four molecules each."""


def test_published_files_train_under_fedstars_protocol(tmp_path, monkeypatch):
    """Files in TU Dortmund's format, with bonds and attributes: features are the kinds of atoms, as PyG reads them."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    for name, tables in MOLECULES.items():
        (folder := tmp_path / "TUDataset" / name / "raw").mkdir(parents=True)
        both = [end for u, v in tables["A"] for end in ((u, v), (v, u))]
        texts = tables | {"A": both, "edge_labels": [place // 2 % 2 for place in range(len(both))]}
        for part, rows in texts.items():
            lines = (", ".join(map(str, row)) if isinstance(row, tuple) else str(row) for row in rows)
            (folder / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")
    keys = {"protocol": "fedstar", "dataset": "tu-chem", "dataset.name": "MUTAG+BZR", "num_clients": 2, "rounds": 2}
    keys |= {"model.hidden": 8, "split.train": 0.5, "split.val": 0.25, "split.test": 0.25, "split.stratify": False}
    run = fg.run(**keys, progress=False, out=tmp_path / "run")
    assert run.summary["strategy"] == "fedstar"
    for client, (name, atoms) in enumerate((("MUTAG", 3), ("BZR", 35))):
        party, plain = load_client(run.config, client), TUDataset(str(tmp_path / "TUDataset"), name)
        assert torch.equal(party.x, torch.cat([graph.x for graph in plain]))
        assert (party.num_features, party.num_classes) == (atoms, 2)
        assert party.edge_index.size(1) == 2 * len(MOLECULES[name]["A"])
        assert [int(party.y[party.graph_id == graph][0]) for graph in range(4)] == [int(graph.y) for graph in plain]
    shared = read_tensors(tmp_path / "run/model_final.safetensors")[0]
    assert {name.split(".")[0] for name in shared} == {"structure", "structure_convs"}


def test_parameters_whose_shape_differs_are_not_shared(two):
    with pytest.raises(FedGraphError, match="client 1 has num_features=5, client 0 has num_features=4"):
        fg.run(**two, strategy="fedavg", **{"strategy.private": ["head"]})
    with pytest.raises(FedGraphError, match=r"cannot be pooled \(strategy=central\)"):
        fg.run(**two, strategy="central")
    with pytest.raises(
        FedGraphError, match=r"dataset\.name=ONE\+TWO names several datasets, one per client: set partition=given"
    ):
        fg.run(**two | {"partition": "random"})
    with pytest.raises(FedGraphError, match=r"dataset\.name=ONE\+ONE lists a dataset twice"):
        fg.run(**two | {"dataset.name": "ONE+ONE"})


def test_the_groups_are_fedstars():
    cfg = compose(["protocol=fedstar", "dataset=tu-biochem"])
    check_method(cfg)
    assert cfg.dataset.name.split("+")[7:] == ["ENZYMES", "DD", "PROTEINS"]
    assert (cfg.partition.name, cfg.evaluation.select, cfg.model.layers, cfg.model.name) == (
        "given",
        "last",
        3,
        "fedstar",
    )
    assert (cfg.model.params["walks"], cfg.model.params["degrees"]) == (16, 16)
    rules = compose(["protocol=gcfl", "strategy=gcfl", "dataset=tu-chem"])
    assert (rules.partition.name, rules.strategy.params["eps2"]) == ("given", 0.28)
