"""FedDC against its objective in NumPy."""

import numpy as np
import pytest

from fedgraph_flwr.errors import FedGraphError
from tests.methods.regression import LR, WORDS, gradient, mean_of, start, vector, weights

STEPS = [1, 4, 2]
UNEQUAL = f"train.local_steps_by_client={STEPS}"


@pytest.mark.parametrize("rule", ["uniform", "train"])
@pytest.mark.parametrize("fraction", [1, 0.67])
@pytest.mark.parametrize("option", ["I", "II"])
def test_rounds_by_hand(run, rule, fraction, option):
    """Step by step on F_i + (α/2) ‖h_i + θ − w‖² + ⟨θ, c − c_i⟩."""
    alpha, p = 0.5, weights(rule)
    overrides = [f"strategy.alpha={alpha}", f"strategy.weighting={rule}", f"strategy.fraction={fraction}"]
    finished = run(*WORDS, "strategy=feddc", UNEQUAL, f"strategy.option={option}", *overrides)
    w = start(run)
    h, g = ([np.zeros_like(w) for _ in range(3)] for _ in range(2))
    for cohort in (record["cohort"] for record in finished.rounds):
        c, ends, latest = mean_of(g, p), [], list(g)
        for i in cohort:
            y = w.copy()
            for _ in range(STEPS[i]):
                y = y - LR * (gradient(y, i) + alpha * (h[i] + y - w) + c - g[i])
            latest[i] = gradient(w, i) if option == "I" else g[i] - c + (w - y) / (STEPS[i] * LR)
            h[i] = h[i] + y - w
            ends.append(y)
        w, g = mean_of(ends, p[cohort]) + mean_of(h, p), latest
    np.testing.assert_allclose(vector(finished.arrays), w, rtol=0, atol=1e-12)


def test_keys_are_checked(run):
    with pytest.raises(FedGraphError, match=r"strategy\.feddc\.alpha must be >= 0, got -1"):
        run("strategy=feddc", "strategy.alpha=-1")
    with pytest.raises(FedGraphError, match=r"or strategy\.feddc\.option=I"):
        run("strategy=feddc", "strategy.option=II", "train.optimizer=adam")
