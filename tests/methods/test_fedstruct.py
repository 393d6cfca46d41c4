"""FedStruct's runs: exact gradients, variants that agree, and what the server sees."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.data.graph import ClientGraph
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


@pytest.mark.parametrize("beta", ["last", "uniform", "learned"])
def test_a_is_b(train, beta):
    a, b = (train(f"strategy={name}", f"model.beta={beta}") for name in ("fedstruct_a", "fedstruct"))
    for name, array in a.arrays.items():
        np.testing.assert_allclose(array, b.arrays[name], atol=1e-12, err_msg=name)
