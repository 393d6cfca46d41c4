"""The task's loss against NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from fedgraph_flwr.config import TrainConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.losses import class_weights, task_loss


def drawn(classes=3, n=40):
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (n,), generator=generator)
    y[: n // 2] = 0  # out of balance
    return torch.randn(n, classes, generator=generator, dtype=torch.float64) * 2, y


def chances(logits):
    e = np.exp(logits.numpy() - logits.numpy().max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_class_weights_are_scikit_learns():
    _, y = drawn()
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=y.numpy())
    np.testing.assert_allclose(class_weights(y, 3), theirs, rtol=1e-6)
    np.testing.assert_allclose(class_weights(y, 5)[:3], theirs, rtol=1e-6)  # classes that do not occur change nothing
    assert class_weights(y, 5)[3:].tolist() == [0, 0]


def test_losses_are_numpys():
    logits, y = drawn()
    p = chances(logits)[np.arange(40), y]
    assert float(task_loss(logits, y, TrainConfig())) == pytest.approx(log_loss(y, chances(logits)))
    weights = compute_sample_weight("balanced", y.numpy())
    theirs = log_loss(y, chances(logits), sample_weight=weights)
    assert float(task_loss(logits, y, TrainConfig(loss="weighted"))) == pytest.approx(theirs, rel=1e-6)
    for gamma in (0.5, 2.0):
        focal = TrainConfig(loss="focal", focal_gamma=gamma)
        assert float(task_loss(logits, y, focal)) == pytest.approx(float(np.mean(-((1 - p) ** gamma) * np.log(p))))


def test_given_weights_are_used():
    logits, y = drawn(2)
    weights = torch.tensor([1.0, 10.0])
    value = task_loss(logits, y, TrainConfig(loss="weighted"), weights)
    assert float(value) == pytest.approx(log_loss(y, chances(logits), sample_weight=np.where(y == 1, 10, 1)), rel=1e-6)


def test_limits_are_cross_entropy():
    logits, y = drawn()
    plain = task_loss(logits, y, TrainConfig())
    torch.testing.assert_close(task_loss(logits, y, TrainConfig(loss="focal", focal_gamma=0)), plain)
    even = torch.arange(39) % 3
    torch.testing.assert_close(
        task_loss(logits[:39], even, TrainConfig(loss="weighted")), task_loss(logits[:39], even, TrainConfig())
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_gradient_is_finite_and_right(gamma):
    cfg = TrainConfig(loss="focal", focal_gamma=gamma)
    sure = torch.tensor([[80.0, -80.0], [-80.0, 80.0]], requires_grad=True)  # p rounds to 1, and to 0
    task_loss(sure, torch.tensor([0, 0]), cfg).backward()
    assert bool(torch.isfinite(sure.grad).all())
    logits, y = drawn()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: task_loss(z, y, cfg), logits)


def test_wrong_words_are_one_sentence():
    with pytest.raises(FedGraphError, match=r"train\.loss 'focl' is unknown; did you mean 'focal'"):
        TrainConfig(loss="focl")
    with pytest.raises(FedGraphError, match=r"train\.focal_gamma must be in \[0, 10\], got -1"):
        TrainConfig(focal_gamma=-1)
