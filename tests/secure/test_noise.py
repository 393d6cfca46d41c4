"""Variates of the cryptographic generator: their distributions, against SciPy's, and where they come from."""

import numpy as np
import pytest
from scipy import stats

from fedgraph_flwr.secure import noise
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.noise import SecureNoise, log_poisson
from tests.secure.rounds import RULES

KEY = bytes(range(32))
SIZE = 400_000


@pytest.mark.parametrize("mean", [0.02, 3.0, 9.99, 10.0, 300.0, 9_990.0, 20_000.0])
def test_counts_have_poissons_probabilities(mean):
    drawn = SecureNoise(KEY).poisson(mean, SIZE)
    counts = np.arange(drawn.max() + 2)
    expected, frequencies = stats.poisson.pmf(counts, mean) * SIZE, np.bincount(drawn, minlength=counts.size)
    often = expected > 20
    chi2 = ((frequencies - expected) ** 2 / np.maximum(expected, 1e-9))[often].sum()
    assert 1e-4 < stats.chi2.sf(chi2, often.sum() - 1) < 1 - 1e-4
    assert frequencies[~often].sum() < 20 + 3 * expected[~often].sum()


@pytest.mark.parametrize("mean", [2.0**23, 2.0**41])
def test_large_counts_are_near_normal(mean):
    """The largest mean that the noise of one client may have; skewness and steps are below what this sample shows."""
    drawn = SecureNoise(KEY).poisson(mean, SIZE)
    assert stats.kstest((drawn - mean) / np.sqrt(mean), "norm").pvalue > 1e-3
    assert (drawn % 2).mean() == pytest.approx(0.5, abs=5 / np.sqrt(SIZE)), "no rounding to even counts"


@pytest.mark.parametrize("mean", [10.0, 9_999.0, 10_001.0, 1e6])
def test_log_probabilities_are_those_of_scipy(mean):
    count = np.round(mean + np.sqrt(mean) * np.linspace(-3, 6, 40))
    np.testing.assert_allclose(log_poisson(count, mean), stats.poisson.logpmf(count, mean), atol=1e-8)


def test_each_source_has_its_own_key_and_numpy_draws_nothing(monkeypatch):
    monkeypatch.setattr("numpy.random.default_rng", None)
    first, second = (noise.source().poisson(50.0, 10_000) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / 100
    terms = [DistributedNoise(RULES).terms({"w": {"w": np.zeros(1000)}}, {"w": 0.25}, 4, 3) for _ in range(2)]
    assert (terms[0] != terms[1]).mean() > 0.99
    assert type(noise.source()) is SecureNoise
