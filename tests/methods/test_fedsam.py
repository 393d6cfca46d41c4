"""FedSAM: a step against an explicit two-pass step in PyTorch, and running statistics that move once per step."""

import pytest
import torch
import torch.nn.functional as F

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from tests.conftest import client_graph

WORDS = [
    "strategy=fedsam",
    "strategy.rho=0.3",
    "train.optimizer=sgd",
    "train.lr=0.1",
    "train.weight_decay=0",
    "train.local_steps=1",
]


def client_of(*overrides):
    cfg = compose(["num_clients=3", "model.hidden=8", "model.dropout=0", "dtype=float64", *WORDS, *overrides])
    return GraphClient(cfg, client_graph(0))


def test_a_step_is_the_gradient_uphill():
    """The perturbed point is built from a flat parameter vector, its gradient by `torch.autograd.grad`."""
    client = client_of()
    model, parameters = client.model.train(), list(client.model.parameters())
    theta = torch.nn.utils.parameters_to_vector(parameters).detach()

    def gradient_at(vector):
        torch.nn.utils.vector_to_parameters(vector, parameters)
        logits = model(client.inputs)[client.train_nodes]
        gradients = torch.autograd.grad(F.cross_entropy(logits, client.batch.y), parameters)
        return torch.cat([g.flatten() for g in gradients])

    uphill = gradient_at(theta)
    expected = theta - 0.1 * gradient_at(theta + 0.3 * uphill / uphill.norm())
    torch.nn.utils.vector_to_parameters(theta, parameters)
    client.train()
    weights = torch.nn.utils.parameters_to_vector(parameters).detach()
    torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-12)
    assert (weights - (theta - 0.1 * uphill)).abs().max() > 1e-3  # FedAvg's step is another


@pytest.mark.parametrize("stack", [[], ["stack=3"]])
def test_running_statistics_move_once_per_step(run, stack):
    """After one step from the same parameters they are FedAvg's; a second pass through them would move them twice."""
    overrides = ["model.norm=batch", "rounds=1", "train.local_steps=1", *stack]
    statistics = [
        {
            name: array
            for name, array in run(*overrides, *chosen).arrays.items()
            if "running" in name or "tracked" in name
        }
        for chosen in (["strategy=fedsam", "strategy.rho=0.3"], ["strategy=fedavg"])
    ]
    assert statistics[0]
    for name, array in statistics[0].items():
        assert array.tobytes() == statistics[1][name].tobytes(), name
