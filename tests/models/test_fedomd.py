"""The orthogonal GCN by itself; its federated side is tested in tests/methods."""

import torch

from fedgraph_flwr.config import ModelConfig
from fedgraph_flwr.models import build
from fedgraph_flwr.models.fedomd import orthogonal
from tests.conftest import client_graph


def test_hidden_features_are_taken_before_dropout():
    """Z^1, before which nothing is dropped, is the same with dropout and without."""
    torch.manual_seed(0)
    model = build(ModelConfig("fedomd", hidden=8, layers=4, dropout=0.5), 5, 3)
    inputs = model.prepare(client_graph(0))
    trained, scored = model.train().propagate(inputs), model.eval().propagate(inputs)
    assert torch.equal(trained.hidden[0], scored.hidden[0])
    assert not torch.allclose(trained.hidden[1], scored.hidden[1])


def test_centring_takes_the_mean_of_each_row():
    """Rows of mean zero are orthogonal to 1, and O = S^{-1/2} W_c / √c keeps that: O 1 = 0."""
    torch.manual_seed(0)
    w = torch.rand(16, 16, dtype=torch.float64) - 0.5
    o = orthogonal(w, steps=60, center=True)
    assert (o @ torch.ones(16, dtype=torch.float64)).norm() < 1e-6
    assert (o.T @ torch.ones(16, dtype=torch.float64)).norm() > 0.1
