"""Our optimisers against `torch.optim`, the second derivation."""

import pytest
import torch

from fedgraph_flwr.config import TrainConfig
from fedgraph_flwr.numerics.optim import make_optimizer

CASES = {
    "sgd": (TrainConfig(optimizer="sgd", lr=0.1, weight_decay=0.0), lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd-momentum": (
        TrainConfig(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (
        TrainConfig(optimizer="adam", lr=0.02, weight_decay=0.05),
        lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.05),
    ),
    "adamw": (
        TrainConfig(optimizer="adamw", lr=0.02, weight_decay=0.05),
        lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.05),
    ),
}


def _steps(model, optimizer, first, last):
    for number in range(first, last):
        x = torch.full((2, 3), 0.1 * number - 0.3, dtype=torch.float64)
        optimizer.zero_grad()
        (model(x).pow(2).sum() + (model.bias.sum() if number % 2 else 0)).backward()
        optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_same_as_torch(name):
    cfg, reference = CASES[name]
    torch.manual_seed(0)
    ours = torch.nn.Linear(3, 2, dtype=torch.float64)
    theirs = torch.nn.Linear(3, 2, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    _steps(ours, make_optimizer(ours.parameters(), cfg), 0, 7)
    _steps(theirs, reference(theirs.parameters()), 0, 7)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["sgd-momentum", "adam", "adamw"])
def test_state_goes_on_where_it_stopped(name):
    cfg, _ = CASES[name]
    torch.manual_seed(0)
    whole = torch.nn.Linear(3, 2, dtype=torch.float64)
    broken = torch.nn.Linear(3, 2, dtype=torch.float64)
    broken.load_state_dict(whole.state_dict())
    _steps(whole, make_optimizer(whole.parameters(), cfg), 0, 6)
    first = make_optimizer(broken.parameters(), cfg)
    _steps(broken, first, 0, 3)
    second = make_optimizer(broken.parameters(), cfg)
    second.load_state(first.state())
    _steps(broken, second, 3, 6)
    for a, b in zip(whole.parameters(), broken.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sgd-momentum", "adam", "adamw"])
def test_a_parameter_without_gradient_stays(name):
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer([used, unused], CASES[name][0])
    used.sum().backward()
    optimizer.step()
    assert (used != 1).all()
    assert (unused == 1).all()


def test_strides_do_not_matter():
    """A transposed parameter, and a transposed gradient that was set by hand."""
    torch.manual_seed(0)
    start, gradient = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    cfg, reference = CASES["adam"]
    results = []
    for layout, set_by_hand in (("straight", False), ("transposed", False), ("straight", True)):
        parameter = torch.nn.Parameter(start.T.contiguous().T if layout == "transposed" else start.clone())
        if set_by_hand:
            parameter.grad = gradient.T.contiguous().T
        else:
            (parameter * gradient).sum().backward()
        make_optimizer([parameter], cfg).step()
        results.append(parameter.detach())
    expected = torch.nn.Parameter(start.clone())
    expected.grad = gradient
    reference([expected]).step()
    for result in results:
        torch.testing.assert_close(result, expected.detach())
