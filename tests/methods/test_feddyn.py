"""FedDyn against Algorithm 1 in NumPy, and its fixed point."""

import numpy as np
import pytest

from fedgraph_flwr.errors import FedGraphError
from tests.methods.regression import LR, WORDS, gradient, mean_of, start, vector, weights

STEPS = [1, 4, 2]
UNEQUAL = f"train.local_steps_by_client={STEPS}"


@pytest.mark.parametrize("rule", ["uniform", "train"])
@pytest.mark.parametrize("fraction", [1, 0.67])
def test_rounds_by_hand(run, rule, fraction):
    """The dual variables are the authors' h_i = Σ_t (θ_i − θ^{t−1}) = −g_i/α here, and the server adds their mean."""
    alpha, p = 0.5, weights(rule)
    overrides = [f"strategy.alpha={alpha}", f"strategy.weighting={rule}", f"strategy.fraction={fraction}"]
    finished = run(*WORDS, "strategy=feddyn", UNEQUAL, *overrides)
    x = start(run)
    drifts = [np.zeros_like(x) for _ in range(3)]
    for cohort in (record["cohort"] for record in finished.rounds):
        ends = []
        for i in cohort:
            y = x.copy()
            for _ in range(STEPS[i]):
                y = y - LR * (gradient(y, i) + alpha * (y - x + drifts[i]))
            drifts[i] = drifts[i] + y - x
            ends.append(y)
        x = mean_of(ends, p[cohort]) + mean_of(drifts, p)
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_it_ends_where_the_mean_gradient_is_zero(run):
    overrides = ["train.weight_decay=1", "rounds=40", "train.local_steps_by_client=[8,12,10]", "strategy.alpha=1"]
    x = vector(run(*WORDS, "strategy=feddyn", *overrides).arrays)
    assert np.abs(mean_of([gradient(x, i, decay=1) for i in range(3)], np.ones(3))).max() < 1e-6


def test_running_statistics_are_averaged_and_no_more(run):
    """Variances stay positive, although the parameters move by h/α."""
    finished = run("strategy=feddyn", "model.norm=batch", "train.local_steps=1", "rounds=12")
    variances = [a for name, a in finished.arrays.items() if name.endswith("running_var")]
    assert variances
    assert min(v.min() for v in variances) > 0


def test_alpha_is_checked(run):
    with pytest.raises(FedGraphError, match=r"strategy\.feddyn\.alpha must be >= 0, got -1"):
        run("strategy=feddyn", "strategy.alpha=-1")
