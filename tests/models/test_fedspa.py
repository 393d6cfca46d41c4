"""FedSPA's network by itself; its formulas and its federated side are tested in tests/methods."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import ModelConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.models import build
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.fedspa import PROFILES, _glorot_blocks, typed_operators
from tests.conftest import client_graph


def network(profile: str, **params: object) -> Model:
    torch.manual_seed(0)
    return build(ModelConfig("fedspa", hidden=6, params={"profile": profile, **params}), 5, 3).double()


def directed() -> tuple[ClientGraph, np.ndarray]:
    """Edges from lower to higher nodes only, and A [N, N], target by source."""
    graph = client_graph(0)
    graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    a[graph.edge_index[1], graph.edge_index[0]] = 1
    return graph, a


def test_operators_count_arriving_edges_at_the_target_and_leaving_ones_at_the_source():
    graph, a = directed()
    incoming, outgoing = np.maximum(a.sum(1), 1), np.maximum(a.sum(0), 1)
    assert (incoming != outgoing).any()
    expected = {"sym": a / np.sqrt(np.outer(incoming, outgoing)), "mean": a / incoming[:, None], "sum": a}
    for normalization, matrix in expected.items():
        typed = sum(c.toarray() for c in typed_operators(graph, normalization))
        np.testing.assert_allclose(typed, matrix, atol=1e-15)


@pytest.mark.parametrize("profile", PROFILES)
def test_dropout_acts_in_training_only(profile):
    model = network(profile)
    inputs = model.prepare(client_graph(0), dtype=torch.float64)
    torch.manual_seed(1)
    assert not torch.equal(model.train()(inputs), model(inputs))
    assert torch.equal(model.eval()(inputs), model(inputs))


@pytest.mark.parametrize("num_classes", [3, 6])  # 6 are wider than X, which is then propagated once
def test_the_mean_over_arriving_edges_by_hand(num_classes):
    """One layer of Eq. (5)-(6) with c_vu = 1/d_v, edge by edge."""
    graph, a = directed()
    torch.manual_seed(0)
    cfg = ModelConfig("fedspa", layers=1, params={"normalization": "mean"})
    model = build(cfg, 5, num_classes).double()
    inputs = model.prepare(graph, dtype=torch.float64)
    assert (inputs.propagated is not None) == (num_classes == 6)
    assert not (inputs.adj @ graph.x.double()).any(), "P, which this profile does not read"
    x, layer = graph.x.double(), model.head
    alpha = torch.sigmoid(x @ layer.theta_phi_weight + layer.theta_phi_bias)
    expected = x @ layer.theta_self + layer.bias
    for u, v in graph.edge_index.T.tolist():
        share = alpha[v]
        if graph.train_mask[u] and graph.train_mask[v]:
            share = float(graph.y[u] == graph.y[v])
        incoming = share * (x[u] @ layer.theta_hom) + (1 - share) * (x[u] @ layer.theta_het)
        expected = expected.index_add(0, torch.tensor([v]), incoming.unsqueeze(0) / a[v].sum())
    torch.testing.assert_close(model(inputs), expected)


@pytest.mark.parametrize(("num_in", "num_out", "count"), [(40, 30, 3), (30, 1, 2)])
def test_blocks_are_initialised_each_on_its_own(num_in, num_out, count):
    """Glorot's bound is that of one block, √(6 / (F + H)), not of the joint matrix."""
    torch.manual_seed(0)
    largest = float(_glorot_blocks(num_in, num_out, count).detach().abs().max())
    assert (6 / (num_in + count * num_out)) ** 0.5 < largest <= (6 / (num_in + num_out)) ** 0.5
