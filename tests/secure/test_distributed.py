"""Noise that clients add before a secure sum: its distribution, its ε, and runs with it."""

import math

import numpy as np
import pytest
from scipy.stats import skellam as exact_skellam

from benchmarks.dp_audit import epsilon_at
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import PrivacyConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.secure import distributed, noise
from fedgraph_flwr.secure.accounting import cost, skellam_epsilon
from fedgraph_flwr.secure.distributed import DistributedNoise, rounded, skellam
from fedgraph_flwr.secure.lattice import LARGEST_VARIANCE
from tests.secure.rounds import RULES

WORDS = ["strategy.weighting=uniform", "privacy.dp=distributed", "privacy.secagg=true", "privacy.secagg_bits=20"]
NOISY = [*WORDS, "privacy.noise_multiplier=4", "privacy.clipping_norm=0.05"]


def exact_epsilon(delta: float, variance: float, shift: int, releases: int) -> float:
    """ε of releases of one integer with Skellam noise: the loss's distribution, convolved with itself on a grid, rounded up."""
    half, step = math.ceil(14 * math.sqrt(variance)) + 20, 1e-4
    grid = np.arange(-half, half + 1)
    log_p = exact_skellam.logpmf(grid, variance / 2, variance / 2)
    log_q = exact_skellam.logpmf(grid - shift, variance / 2, variance / 2)
    known = np.isfinite(log_p) & np.isfinite(log_q)
    loss, weight = np.round((log_p - log_q)[known] / step).astype(int), np.exp(log_p[known])
    low = loss.min()
    once = np.bincount(loss - low, weight)
    size = releases * (once.size - 1) + 1
    whole = np.fft.irfft(np.fft.rfft(once, 2 * size) ** releases, 2 * size)[:size].clip(0)
    losses = (np.arange(size) + releases * low) * step

    def delta_at(epsilon: float) -> float:
        over = losses > epsilon
        return float((whole[over] * -np.expm1(epsilon - losses[over])).sum())

    left, right = 0.0, 60.0
    for _ in range(60):
        middle = (left + right) / 2
        left, right = (middle, right) if delta_at(middle) > delta else (left, middle)
    return right


@pytest.mark.parametrize(
    ("shift", "noise", "releases"),
    [(1, 2.0, 1), (1, 4.0, 10), (3, 2.0, 5), (10, 1.5, 3), pytest.param(20, 4.0, 40, marks=pytest.mark.slow)],
)
def test_epsilon_bounds_that_of_the_exact_distribution(shift, noise, releases):
    """Closely where the noise is wide: a bound by Rényi divergences exceeds the exact ε by about 10 %, as with Gaussian noise."""
    exact = exact_epsilon(1e-5, (noise * shift) ** 2, shift, releases)
    bound = skellam_epsilon(1e-5, noise, releases, shift)
    assert exact < bound < (1.3 if shift >= 10 else 1.8) * exact + 0.2


def test_epsilon_of_the_usual_run_is_near_that_of_gaussian_noise():
    rules = PrivacyConfig("distributed", noise_multiplier=4, secagg=True, secagg_bits=20)
    assert cost(rules, 100, 100) == pytest.approx(14.177, abs=1e-3)  # with real orders it would be 14.13
    assert epsilon_at(1e-5, 4, 100) == pytest.approx(13.207, abs=1e-3)
    assert cost(rules, 100, 0) == 0
    coarse = PrivacyConfig("distributed", noise_multiplier=4, secagg=True, secagg_bits=8)
    assert cost(coarse, 200, 100) > cost(rules, 100, 100) + 0.1, "with Δ near 1 rounding costs"


@pytest.mark.parametrize("variance", [0.5, 30.0, 2.0**24, LARGEST_VARIANCE])
def test_the_noise_has_the_variance_that_is_asked_for(variance):
    drawn = skellam(variance, 200_000, np.random.default_rng(0)).astype(float)
    assert abs(drawn.mean()) < 5 * math.sqrt(variance / drawn.size)
    assert drawn.var() == pytest.approx(variance, rel=5 * math.sqrt((2 + 1 / variance) / drawn.size))


@pytest.mark.parametrize("groups", [1, 3])
def test_the_terms_of_t_clients_hold_the_noise_that_is_booked(groups):
    """As wide in the integers as z C √G 2^b / m, which the accountant assumes, whatever the client's share."""
    members, needed, size = 7, 5, 40_000
    values = {f"g{i}": {"w": np.zeros(size)} for i in range(groups)}
    ratios = dict.fromkeys(values, 0.5 / members)
    noise = DistributedNoise(RULES, np.random.default_rng(1))
    total = sum(noise.terms(values, ratios, members, needed) for _ in range(needed))
    expected = 2.0 * 0.5 * math.sqrt(groups) * 2**16 / members
    assert total.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * total.size))


def test_a_rounded_update_is_no_longer_than_the_norm():
    rng = np.random.default_rng(0)
    for bound, size in ((0.4, 10), (1.0, 1000), (30.0, 5000), (9000.5, 100)):
        vector = rounded(rng.normal(size=size) * bound, bound)
        assert vector.dtype == np.int64
        assert np.linalg.norm(vector) <= bound
    np.testing.assert_array_equal(rounded(np.array([3.4, -4.6]), 100.0), [3, -5])


def test_a_server_that_weighs_a_client_more_is_refused():
    with pytest.raises(RunFailed, match=r"a share of 0.5 of 'w', expected at most 1/4"):
        DistributedNoise(RULES).terms({"w": {"w": np.zeros(2)}}, {"w": 0.5}, 4, 3)
    with pytest.raises(RunFailed, match=r"lower privacy.secagg_bits=16"):
        DistributedNoise(PrivacyConfig("distributed", 1e4, secagg=True, secagg_bits=16)).terms(
            {"w": {"w": np.zeros(2)}}, {"w": 0.25}, 4, 3
        )


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(distributed, "skellam", lambda variance, count, generator: np.zeros(count, np.int64))


@pytest.mark.parametrize("form", ["fedavg", "fednova train.local_steps_by_client=[1,2,4]", "scaffold", "fedproto"])
def test_without_its_noise_a_run_is_that_of_clients_that_clip(run, silent, monkeypatch, form):
    overrides = [f"strategy={form.split()[0]}", *form.split()[1:], "rounds=2", "dtype=float64", "model.dropout=0"]
    noisy_run = run(*overrides, *NOISY)
    monkeypatch.setattr(
        noise, "source", type("Silent", (), {"poisson": lambda self, lam, size: np.zeros(size, np.int64)})
    )
    plain = [NOISY[0], "privacy.dp=client_fixed", *NOISY[4:]]
    expected = run(*overrides, *plain)
    assert noisy_run.summary["failures"] == {}
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(noisy_run.arrays[name], array, atol=1e-4, err_msg=name)


FOUR = (12, 16, 20, 14)


def test_a_run_has_as_much_noise_as_said(run, monkeypatch):
    """Three of three must reply, so the noise is as wide as booked, and new in each run."""
    overrides = [*NOISY[:-1], "privacy.clipping_norm=1", "rounds=1", "model.hidden=128"]
    noisy = [run(*overrides) for _ in range(2)]
    flat = [np.concatenate([a.ravel() for a in one.arrays.values()]).astype(float) for one in noisy]
    spread = (flat[0] - flat[1]).std() / math.sqrt(2)
    assert spread == pytest.approx(4 / 3, rel=5 / math.sqrt(2 * flat[0].size))


def test_a_client_that_falls_leaves_enough_noise_and_the_same_divisor(run, silent, monkeypatch):
    train = GraphClient.train

    def fails(self):
        if self.graph.client == 1:
            raise ValueError("gone")
        return train(self)

    monkeypatch.setattr(GraphClient, "train", fails)
    overrides = ["rounds=1", "dtype=float64", "model.dropout=0"]
    noisy_run = run(*overrides, *NOISY, sizes=FOUR)
    assert noisy_run.summary["failures"]
    monkeypatch.setattr(
        noise, "source", type("Silent", (), {"poisson": lambda self, lam, size: np.zeros(size, np.int64)})
    )
    expected = run(*overrides, NOISY[0], "privacy.dp=client_fixed", *NOISY[4:], sizes=FOUR)
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(noisy_run.arrays[name], array, atol=1e-4, err_msg=name)


def test_a_round_with_fewer_survivors_than_the_noise_is_made_for_ends_the_run(run, monkeypatch):
    """Three of four must reply; one term alone would hold a third of the noise that is booked."""

    def fails(self):
        if self.graph.client:
            raise ValueError("gone")
        return 0.0

    monkeypatch.setattr(GraphClient, "train", fails)
    with pytest.raises(RunFailed, match=r"1 of 4 clients sent a valid reply, expected at least 3 for a secure sum"):
        run("rounds=1", *NOISY, sizes=FOUR)


def test_the_record_says_who_adds_the_noise_and_the_budget_ends_the_run(run):
    rules = PrivacyConfig("distributed", 4, clipping_norm=0.05, secagg=True, secagg_bits=20)
    budget = cost(rules, 3, 3) * 1.001
    overrides = [*NOISY, f"privacy.epsilon_budget={budget}", "rounds=9", "checkpoint_every=2"]
    done = run(*overrides)
    assert [r["round"] for r in done.rounds] == [1, 2, 3]
    assert done.summary["privacy"]["epsilon"] == cost(rules, 3, 3)
    assert done.summary["privacy"]["noise"] == "distributed"
    again = run(*overrides, f"resume={done.out}", f"out={done.out}")
    assert again.summary["privacy"]["releases"] == 3, "round 2's checkpoint booked ahead what the budget left"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [*NOISY, "privacy.secagg=false"],
            "each client adds only a share of the noise, but privacy.secagg=false: set privacy.secagg=true",
        ),
        ([*NOISY, "privacy.secagg_bits=24"], "privacy.secagg_bits must be at most 20 with privacy.dp=distributed"),
        (
            [*NOISY, "privacy.scores=noised"],
            "privacy.scores=noised shows it each client's scores: set privacy.scores=none or exact",
        ),
        (
            WORDS,
            "privacy.dp=distributed with privacy.noise_multiplier=0 protects no more than strategy.aggregator=norm_bound",
        ),
        ([*NOISY, "strategy.aggregator=median", "strategy.byzantine=0"], "set strategy.aggregator=mean"),
        ([*NOISY, "strategy=fedtgp"], "privacy.dp=distributed covers means and sums"),
    ],
)
def test_what_the_noise_would_not_cover_is_refused(run, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        run(*overrides)
