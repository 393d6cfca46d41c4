"""FedStruct's runs: exact gradients, variants that agree, and what the server sees."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.data.graph import ClientGraph, read_tensors
from tests.methods.test_fedstruct_hops import N, clients_of, edges_of, partition_of
from tests.support import Finished

C, F = 3, 5
EXACT = ["dtype=float64", "model.dropout=0", "model.structure_width=6", "model.structure_layers=[7]"]
WORDS = [*EXACT, "model.hops=2", "model.structure_hops=3", "train.lr=0.05", "train.weight_decay=0.01"]


def world(kind: str = "undirected", partition: str = "random") -> list[ClientGraph]:
    """Client graphs of a whole graph with features and labels that do not depend on the partition."""
    edges = edges_of(kind)
    rng = np.random.default_rng(7)
    y = rng.integers(0, C, N)
    x = rng.normal(size=(N, F)).astype(np.float32) + np.eye(F, dtype=np.float32)[y]
    role = rng.permutation(N) % 3
    graphs = clients_of(edges, np.zeros(N, int) if partition == "one" else partition_of(partition, edges))
    for graph in graphs:
        ids = graph.node_id.numpy()
        graph.x, graph.y, graph.num_classes = torch.from_numpy(x[ids]), torch.from_numpy(y[ids]), C
        graph.train_mask, graph.val_mask, graph.test_mask = (torch.from_numpy(role[ids] == r) for r in range(3))
    return graphs


@pytest.fixture
def train(run, tmp_path):
    """``train("strategy=fedstruct", ...)`` on the clients of `world`."""
    count = iter(range(100))

    def go(*words: str, kind: str = "undirected", partition: str = "random") -> Finished:
        folder = tmp_path / f"world{next(count)}"
        graphs = world(kind, partition)
        for graph in graphs:
            graph.save(folder / f"client_{graph.client:04d}.safetensors")
        return run(f"graph={folder}", "strategy=fedstruct", f"num_clients={len(graphs)}", *WORDS, *words)

    return go


def parameters(finished: Finished) -> dict[str, np.ndarray]:
    """θ_f, θ_s and S after the last round, by FedStruct-B's names, wherever the variant keeps them."""
    tensors = read_tensors(finished.out / "checkpoint.safetensors")[0]
    found = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        if group == "arrays" or (group == "server" and not name.startswith("optimizer/")):
            found["s" if name == "structure/s" else name.removeprefix("structure/")] = tensor.numpy()
    if finished.cfg.strategy.name == "fedstruct_private":
        files = sorted((finished.out / "state").glob("client_*/round_*3.safetensors"))
        found["s"] = np.empty((N, read_tensors(files[0])[0]["own/own_s"].shape[1]))
        for graph, file in zip(world(), files, strict=True):
            found["s"][graph.node_id.numpy()] = read_tensors(file)[0]["own/own_s"].numpy()
    return found


@pytest.mark.parametrize(
    "words",
    [(), ("model.beta=uniform", "strategy.local_epochs=1"), ("model.beta=learned",), ("model.structure_mlp=false",)],
)
def test_a_and_b_and_the_privacy_variant_agree(train, words):
    """Invariant of Theorems 1 to 6: the same θ and S after three rounds of Adam, whoever computes what."""
    names = ("fedstruct", "fedstruct_a", "fedstruct_private")
    b, *others = (parameters(train(f"strategy={name}", "checkpoint_every=3", *words)) for name in names)
    assert {"s", "f.layers.1.weight"} <= b.keys()
    for name, found in zip(names[1:], others, strict=True):
        assert found.keys() == b.keys(), name
        for key, array in found.items():
            np.testing.assert_allclose(array, b[key], atol=1e-12, rtol=0, err_msg=f"{name} {key}")
