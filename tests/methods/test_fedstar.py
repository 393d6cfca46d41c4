"""FedStar: encodings by powers of a dense matrix, the network by loops, and what is shared and what is not."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import build
from fedgraph_flwr.models.fedstar import structure_encoding
from fedgraph_flwr.models.layers import adjacency
from fedgraph_flwr.numerics import walks
from fedgraph_flwr.numerics.walks import return_probabilities
from fedgraph_flwr.wire.messages import MODEL
from tests.conftest import client_graph
from tests.support import dense_gcn_adjacency, recorded_messages

N = 16


def dense(edge_index, n=N):
    a = np.zeros((n, n))
    for source, target in edge_index.T.tolist():
        a[target, source] += 1
    return a


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("block", [3, 256])
def test_returns_by_powers_of_the_whole_matrix(directed, block):
    edges = client_graph(0, N).edge_index
    if directed:
        edges = edges[:, ::2]
    edges = edges[:, (edges != 5).all(0)]  # node 5 is alone
    a = dense(edges)
    out = a.sum(0)
    walk = a / np.where(out > 0, out, 1)
    expected = np.stack([np.linalg.matrix_power(walk, k).diagonal() for k in range(1, 7)], axis=1)
    probabilities = return_probabilities(adjacency(edges, N), 6, block)
    np.testing.assert_allclose(probabilities, expected, atol=1e-15)
    assert not probabilities[:, 0].any()
    assert not probabilities[5].any()
    assert probabilities.min() >= 0
    assert probabilities.max() <= 1


def test_walks_that_take_long_say_so_beforehand(monkeypatch, caplog):
    edges = adjacency(client_graph(0, N).edge_index, N)
    return_probabilities(edges, 3)
    assert not caplog.text
    monkeypatch.setattr(walks, "PRODUCTS", edges.nnz * N / 60)
    return_probabilities(edges, 3)
    expected = f"walks of 3 steps from {N} nodes over {edges.nnz} edges, once; this takes about 4 minutes"
    assert f"computing random {expected}" in caplog.text


def test_the_encoding_follows_its_nodes():
    edges = torch.cat([client_graph(0, N).edge_index, torch.tensor([[3], [3]])], dim=1)  # a loop counts nowhere
    encoding = structure_encoding(edges, N, 5, 4)
    assert encoding.shape == (N, 9)
    degree = dense(edges[:, edges[0] != edges[1]]).sum(1).clip(1, 4)
    np.testing.assert_array_equal(encoding[:, 5:].argmax(1) + 1, degree)
    np.testing.assert_array_equal(encoding[:, 5:].sum(1), np.ones(N))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    moved = structure_encoding(order[edges], N, 5, 4)
    torch.testing.assert_close(moved[order], encoding)


@pytest.mark.parametrize("convolution", ["gin", "gcn", "none"])
def test_the_network_by_hand(convolution):
    graph = client_graph(0, N)
    cfg = compose(["strategy=fedstar", "model.hidden=4", "model.layers=2", f"model.convolution={convolution}"])
    torch.manual_seed(1)
    model = build(cfg.model, graph.num_features, graph.num_classes).double().eval()
    w = {name: t.detach().numpy() for name, t in model.named_parameters()}

    def linear(name, h):
        return h @ w[f"{name}.weight"] + w[f"{name}.bias"]

    a, smooth = dense(graph.edge_index), dense_gcn_adjacency(graph.edge_index, N).numpy()
    h = linear("features_in", graph.x.double().numpy())
    s = linear("structure", structure_encoding(graph.edge_index, N, 16, 16).numpy())
    for layer in range(2):
        both = np.concatenate([h, s], 1)
        if convolution != "gcn":
            read = both + a @ both if convolution == "gin" else both
            inner = np.maximum(linear(f"feature_convs.{layer}.0", read), 0)
            h = np.maximum(linear(f"feature_convs.{layer}.2", inner), 0)
        else:
            h = np.maximum(smooth @ both @ w[f"feature_convs.{layer}.weight"], 0)
        s = np.tanh(smooth @ s @ w[f"structure_convs.{layer}.weight"] + w[f"structure_convs.{layer}.bias"])
    z = np.maximum(linear("post", linear("fuse", np.concatenate([h, s], 1))), 0)
    inputs = model.prepare(graph, dtype=torch.float64)
    np.testing.assert_allclose(model(inputs).detach(), linear("head", z), rtol=1e-10)


def test_only_the_structure_channel_travels(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedstar", "rounds=2")
    names = set(finished.arrays)
    assert names == {
        *("structure.weight", "structure.bias"),
        *(f"structure_convs.{layer}.{kind}" for layer in range(2) for kind in ("weight", "bias")),
    }
    values = [set(c.array_records[MODEL]) for _, _, c in messages if MODEL in c.array_records]
    assert values
    assert all(sent == names for sent in values)


def test_a_download_reaches_the_shared_channel_and_nothing_else():
    """In OpenFGL it reaches neither, so that its FedStar is Local."""
    client = GraphClient(compose(["strategy=fedstar", "model.hidden=4"]), client_graph(0, N))
    before = {name: t.clone() for name, t in client.model.state_dict().items()}
    client.set_parameters([np.full(t.shape, 0.5, np.float32) for t in client.shared.values()])
    for name, tensor in client.model.state_dict().items():
        assert bool((tensor == 0.5).all()) == (name in client.shared)
        assert name in client.shared or torch.equal(tensor, before[name])


@pytest.mark.parametrize("word", ["model.walks=-1", "model.degrees=-2"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=word.partition("=")[0]):
        build(compose(["strategy=fedstar", word]).model, 3, 2)


def test_a_client_of_isolated_nodes_has_an_encoding():
    graph = client_graph(0, N)
    alone = ClientGraph(**{**vars(graph), "edge_index": torch.zeros(2, 0, dtype=torch.int64)})
    encoding = structure_encoding(alone.edge_index, N, 3, 2)
    torch.testing.assert_close(encoding, torch.tensor([[0, 0, 0, 1, 0]] * N, dtype=torch.float64))


def test_the_structure_that_is_told_of_is_what_the_network_reads():
    client = GraphClient(compose(["strategy=fedstar", "model.hidden=6"]), client_graph(0, N))
    with torch.no_grad():
        for conv in client.model.structure_convs:
            conv.bias.normal_()
        read = []
        client.model.fuse.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        client.model.eval()
        structure = client.model.representations(client.inputs)["structure"]
    torch.testing.assert_close(structure, read[0][:, -structure.size(1) :], rtol=0, atol=0)
