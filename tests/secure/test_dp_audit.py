"""`benchmarks/dp_audit.py`: the project's mechanisms pass, one with noise that is too narrow is caught."""

import numpy as np
import pytest
from scipy.special import ndtri

from benchmarks import dp_audit
from benchmarks.dp_audit import DELTA, MECHANISMS, PLANTED, audited, claimed, sampled, scores, upper
from fedgraph_flwr.methods import cohorts
from fedgraph_flwr.methods.cohorts import draw
from fedgraph_flwr.secure import noise

SURE = 1 - 1e-4  # of other draws, fewer than one in ten thousand would fail a correct mechanism


@pytest.fixture(autouse=True)
def _the_same_noise_each_time(monkeypatch):
    drawn = noise.SecureNoise(bytes(range(32)))
    monkeypatch.setattr(noise, "source", lambda: drawn)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_correct_mechanism_passes_and_a_forgotten_factor_is_caught(kind):
    bounds = audited(*scores(MECHANISMS[kind], 2000), DELTA, SURE)
    assert 0.5 * claimed(kind) < bounds["gdp"] <= claimed(kind), "tight enough to see an error, and no alarm"
    assert bounds["threshold"] <= claimed(kind)
    assert audited(*scores(MECHANISMS[kind], 800, PLANTED.get(kind, 0.5)), DELTA, SURE)["gdp"] > claimed(kind)


@pytest.mark.parametrize("kind", ["float64", "scores"])
def test_noise_in_floats_is_caught(kind, monkeypatch):
    """Gaussian noise in floats, as it was: the least bits tell the worlds apart."""

    def floats(terms, bound, deviation, size):
        source = noise.source()
        assert isinstance(source, noise.SecureNoise)
        return np.sum(list(terms), axis=0) + deviation * ndtri(source.uniform(size))

    monkeypatch.setattr(dp_audit, "NOISE", 10.0)
    assert claimed(kind) < 0.5
    assert audited(*scores(MECHANISMS[kind], 600), DELTA, SURE)["threshold"] < claimed(kind)
    monkeypatch.setattr("fedgraph_flwr.strategies.privacy.noisy_sum", floats)
    assert audited(*scores(MECHANISMS[kind], 600), DELTA, SURE)["threshold"] > 2


def test_a_cohort_without_a_canary_has_nobody_in_its_place(monkeypatch):
    """The next client was drawn instead, so the sum changed by twice the norm."""
    assert audited(*scores(sampled, 1500), DELTA, SURE)["gdp"] <= claimed("sampled")
    monkeypatch.setattr(cohorts, "draw", lambda *args, places=None: draw(*args))
    assert audited(*scores(sampled, 1500), DELTA, SURE)["gdp"] > claimed("sampled")


def test_the_audit_of_known_gaussians_is_below_the_truth():
    rng = np.random.default_rng(0)
    bounds = audited(rng.normal(1.5, 1, 40_000), rng.normal(0, 1, 40_000), DELTA)
    assert 1.4 < bounds["mu"] <= 1.5
    assert bounds["threshold"] < bounds["gdp"]


def test_the_interval_is_that_of_clopper_and_pearson():
    assert upper(0, 100, 0.975) == pytest.approx(1 - 0.025 ** (1 / 100))
    assert upper(100, 100, 0.975) == 1
