"""FedNova against its equations in NumPy, and the worth of a client's steps against the steps."""

import numpy as np
import pytest

from fedgraph_flwr.config import TrainConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.fednova import work
from tests.methods.regression import LR, WORDS, gradient, start, vector, weights

STEPS = [1, 5, 2]
UNEQUAL = f"train.local_steps_by_client={STEPS}"


def local(x, i, steps, rho, mu):
    """A client's trained parameters, and Σ_k a_k from the same steps with a gradient of 1, where x is 0 and η is 1/η."""
    y, v = x.copy(), np.zeros_like(x)
    unit, w = 0.0, 0.0
    for _ in range(steps):
        v = rho * v + gradient(y, i) + mu * (y - x)
        w = rho * w + 1 + mu * unit
        y, unit = y - LR * v, unit - LR * w
    return y, -unit / LR


@pytest.mark.parametrize("rule", ["uniform", "train"])
@pytest.mark.parametrize("fraction", [1, 0.67])
@pytest.mark.parametrize(("rho", "mu"), [(0, 0), (0.9, 0), (0, 0.8)])
def test_rounds_by_hand(run, rule, fraction, rho, mu):
    overrides = [
        f"train.momentum={rho}",
        f"strategy.mu={mu}",
        f"strategy.weighting={rule}",
        f"strategy.fraction={fraction}",
    ]
    finished = run(*WORDS, "strategy=fednova", "rounds=3", UNEQUAL, *overrides)
    x = start(run)
    for record in finished.rounds:
        p = weights(rule)[record["cohort"]]
        ends, a = zip(*(local(x, i, STEPS[i], rho, mu) for i in record["cohort"]), strict=True)
        taken = [STEPS[i] for i in record["cohort"]] if mu else a
        slope = sum(q * (x - y) / b for q, y, b in zip(p / p.sum(), ends, a, strict=True))
        x = x - (p @ taken) / p.sum() * slope
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_work_by_hand(steps):
    """For a gradient of 1 in every step: how far, in step sizes."""
    for rho, mu in ((0.0, 0.0), (0.5, 0.0), (0.0, 2.0)):
        theta = v = 0.0
        for _ in range(steps):
            v = rho * v + 1 + mu * theta
            theta -= 0.2 * v
        train = TrainConfig(optimizer="sgd", lr=0.2, momentum=rho)
        assert work(steps, train, mu) == pytest.approx(-theta / 0.2, rel=1e-12)
    assert work(steps, TrainConfig(optimizer="adam"), 0.0) == steps


def test_a_client_without_steps_moves_nothing(run):
    """Its p_i counts in τ_eff = (0 + 3 + 0)/3, its own way does not."""
    overrides = [*WORDS, "strategy=fednova", "rounds=1", "train.local_steps_by_client=[0,3,0]"]
    x = y = start(run)
    for _ in range(3):
        y = y - LR * gradient(y, 1)
    np.testing.assert_allclose(vector(run(*overrides).arrays), x + (y - x) / 9, atol=1e-13)
    still = run(*WORDS, "strategy=fednova", "rounds=2", "train.local_steps=0")
    np.testing.assert_allclose(vector(still.arrays), x, rtol=0, atol=1e-15)  # x is a mean of equal models, which rounds


def test_one_client_ends_where_its_training_does(run):
    alone = [*WORDS, "train.local_steps=4", "num_clients=1", "rounds=2"]
    ours, fedavg = (run(*alone, f"strategy={m}", sizes=(12,)) for m in ("fednova", "fedavg"))
    np.testing.assert_allclose(vector(ours.arrays), vector(fedavg.arrays), atol=1e-13)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy.mu=0.1", "train.optimizer=adam"], "needs train.optimizer=sgd"),
        (
            ["strategy.mu=0.1", "train.momentum=0.9"],
            "needs train.optimizer=sgd and train.momentum=0, got train.optimizer=sgd and train.momentum=0.9",
        ),
        (["strategy.mu=5"], "must be below 1, got 1.5"),
        (["strategy.mu=-1"], "strategy.prox.mu must be >= 0"),
        (["train.momentum=0.9", "train.optimizer_state=keep"], "set train.optimizer_state=reset"),
    ],
)
def test_steps_whose_worth_is_unknown_are_refused(run, overrides, message):
    with pytest.raises(FedGraphError) as refused:
        run(*WORDS, "strategy=fednova", *overrides)
    assert message in str(refused.value)


@pytest.mark.parametrize(("overrides", "expected"), [([], 1), ([UNEQUAL], 0), (["strategy.mu=0.1"], 0)])
def test_equal_steps_are_told(run, caplog, overrides, expected):
    run(*WORDS, "strategy=fednova", "rounds=1", *overrides)
    assert len([r for r in caplog.records if "is FedAvg" in r.message]) == expected


@pytest.mark.parametrize("name", ["median", "norm_bound"])
@pytest.mark.parametrize("rho", [0, 0.9])
def test_a_robust_rule_takes_updates_per_step(run, name, rho):
    """By hand: x ← x + τ_eff R(Δ_i / ‖a_i‖₁)."""
    overrides = [
        f"strategy.aggregator={name}",
        "strategy.byzantine=0",
        f"train.momentum={rho}",
        "strategy.weighting=train",
    ]
    finished = run(*WORDS, "strategy=fednova", "rounds=3", UNEQUAL, *overrides)
    x, p = start(run), weights("train")
    for _ in finished.rounds:
        ends, a = zip(*(local(x, i, STEPS[i], rho, 0) for i in range(3)), strict=True)
        steps = np.stack([(y - x) / b for y, b in zip(ends, a, strict=True)])
        lengths = np.linalg.norm(steps, axis=1)
        if name == "median":
            middle = np.sort(steps, axis=0)[1]
        else:
            bound = np.median(lengths)
            middle = np.mean([s * min(1, bound / n) for s, n in zip(steps, lengths, strict=True)], axis=0)
        x = x + (p @ np.array(a)) * middle
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)
