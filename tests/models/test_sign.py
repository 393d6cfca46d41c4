"""SIGN: propagated features by dense matrix powers, computed once, and batches that read only their rows."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models.sign import SIGN
from tests.conftest import client_graph

BATCHES = ["train.sampler=neighbors", "train.fanout=[]", "train.batch_size=3"]


def client_of(graph, *overrides, file=None):
    overrides = ["model=sign", "model.hidden=8", "model.dropout=0", "dtype=float64", *overrides]
    return GraphClient(compose(overrides), graph, "cpu", file)


def dense(graph, hops):
    """[X, Â X, .., Â^K X] of Â = D^{-1/2} (A + I) D^{-1/2} with in-degrees, by powers of a dense matrix."""
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    for source, target in graph.edge_index.T.tolist():
        a[target, source] += source != target
    a += np.eye(len(a))
    scale = np.diag(a.sum(1) ** -0.5)
    return np.concatenate(
        [np.linalg.matrix_power(scale @ a @ scale, k) @ graph.x.numpy().astype(float) for k in range(hops + 1)], axis=1
    )


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_inputs_and_logits_equal_dense_powers(hops):
    graph = client_graph(0)
    client = client_of(graph, f"model.hops={hops}")
    x = client.inputs.x if isinstance(client.inputs.x, torch.Tensor) else client.inputs.x.to_dense()
    expected = dense(graph, hops)
    np.testing.assert_allclose(x.numpy(), expected, rtol=0, atol=1e-12)
    first, head = client.model.layers[0], client.model.head
    hidden = np.maximum(expected @ first.weight.detach().numpy() + first.bias.detach().numpy(), 0)
    logits = hidden @ head.weight.detach().numpy() + head.bias.detach().numpy()
    np.testing.assert_allclose(client.predict().numpy(), logits, rtol=0, atol=1e-12)


def test_other_edges_are_propagated_again():
    graph = client_graph(0)
    client = client_of(graph)
    fewer = graph.with_edges(graph.edge_index[:, ::2], torch.arange(0, graph.num_edges, 2))
    inputs = client.model.with_edges(client.inputs, fewer, "cpu", torch.float64)
    x = inputs.x if isinstance(inputs.x, torch.Tensor) else inputs.x.to_dense()
    np.testing.assert_allclose(x.numpy(), dense(fewer, 2), rtol=0, atol=1e-12)


def test_a_batch_reads_the_rows_of_its_training_nodes():
    client = client_of(client_graph(0), *BATCHES)
    whole = client.predict()
    client.model.train()
    batch = next(client.batches())
    nodes = client.sampled.nodes[client.sampled.part(client.server_round, 0)]
    torch.testing.assert_close(client.model(batch.inputs), whole[torch.from_numpy(nodes)], rtol=0, atol=1e-12)
    assert batch.y.equal(client.y[torch.from_numpy(nodes)])


def test_features_are_propagated_once_per_client(tmp_path, monkeypatch):
    file = tmp_path / "client_0000.safetensors"
    graph = client_graph(0)
    graph.save(file)
    client = client_of(graph, file=file)
    monkeypatch.setattr(SIGN, "prepare", lambda *args: pytest.fail("prepared again"))
    again = client_of(graph, file=file)
    torch.testing.assert_close(again.predict(), client.predict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["model.hops=-1"], r"model\.hops must be in \[0, 32\], got -1"),
        (
            ["train.sampler=clusters"],
            r"does not support model=sign, which reads no edges: set train\.sampler=neighbors",
        ),
        (
            ["train.sampler=clusters", "model.norm=batch"],
            "does not support model=sign, which reads more than the edges",
        ),
        (["train.sampler=neighbors"], r"model=sign with model\.layers=2 reads neighbours in 0 layers"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(["model=sign", *overrides]))
