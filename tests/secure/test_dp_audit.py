"""`benchmarks/dp_audit.py`: the project's mechanisms pass, one with noise that is too narrow is caught."""

import numpy as np
import pytest

from benchmarks.dp_audit import DELTA, MECHANISMS, PLANTED, audited, claimed, scores, upper

SURE = 1 - 1e-4  # a correct mechanism fails once in more than ten thousand runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_correct_mechanism_passes_and_half_of_its_noise_is_caught(kind):
    found = audited(*scores(MECHANISMS[kind], 2000), DELTA, SURE)
    assert 0.5 * claimed(kind) < found["gdp"] <= claimed(kind), "tight enough to see an error, and no alarm"
    assert found["threshold"] <= claimed(kind)
    assert audited(*scores(MECHANISMS[kind], 2000, PLANTED), DELTA, SURE)["gdp"] > claimed(kind)


def test_the_audit_of_known_gaussians_is_below_the_truth():
    rng = np.random.default_rng(0)
    found = audited(rng.normal(1.5, 1, 40_000), rng.normal(0, 1, 40_000), DELTA)
    assert 1.4 < found["mu"] <= 1.5
    assert found["threshold"] < found["gdp"]


def test_the_interval_is_that_of_clopper_and_pearson():
    assert upper(0, 100, 0.975) == pytest.approx(1 - 0.025 ** (1 / 100))
    assert upper(100, 100, 0.975) == 1
