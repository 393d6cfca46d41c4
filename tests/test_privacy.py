"""Differential privacy by config: its limits, the bound on an update, the noise, and the accountant's ε."""

import math

import numpy as np
import pytest

from fedgraph_flwr.errors import FedGraphError
from tests.support import recorded_messages

UNIFORM = "strategy.weighting=uniform"


@pytest.mark.parametrize("dp", ["server_fixed", "client_fixed"])
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_no_noise_and_a_huge_norm_give_the_plain_method(run, dp, strategy):
    plain = run(f"strategy={strategy}", UNIFORM)
    found = run(f"strategy={strategy}", UNIFORM, f"privacy.dp={dp}", "privacy.clipping_norm=1e6")
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(found.arrays[name], array, atol=1e-6, err_msg=name)
    assert found.summary["exchanges_per_round"] == 1
    assert found.summary["privacy"] == {"epsilon": None, "delta": 1e-5, "releases": 3}


def _step(messages, finished):
    """θ^{t+1} − θ^t of a one-round run and each client's reply minus θ^t, all flat."""
    from fedgraph_flwr.messages import from_record

    def flat(content):
        return _flat(from_record(content["model"]))

    sent = next(flat(c) for d, _, c in messages if d == "down" and c["config"]["phase"] == "train")
    replies = [flat(c) - sent for d, _, c in messages if d == "up" and "model" in c]
    return _flat(finished.arrays) - sent, replies


def _flat(arrays):
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)]).astype(np.float64)


@pytest.mark.parametrize("dp", ["server_fixed", "client_fixed"])
def test_updates_are_scaled_to_the_norm(run, monkeypatch, dp):
    with recorded_messages(monkeypatch) as messages:
        plain = run(UNIFORM, "rounds=1")
    _, updates = _step(messages, plain)
    norm = float(np.sort([np.linalg.norm(u) for u in updates])[1])  # binds one client, touches one, spares one
    expected = np.mean([u * min(1, norm / np.linalg.norm(u)) for u in updates], axis=0)
    assert np.linalg.norm(expected - np.mean(updates, axis=0)) > 1e-4
    with recorded_messages(monkeypatch) as messages:
        clipped = run(UNIFORM, "rounds=1", f"privacy.dp={dp}", f"privacy.clipping_norm={norm}")
    step, replies = _step(messages, clipped)
    np.testing.assert_allclose(step, expected, atol=1e-6)
    assert max(np.linalg.norm(u) for u in replies) <= norm * (
        1 + 1e-5
    )  # the server's clipping changes replies in place


def test_the_noise_is_as_wide_as_said_and_new_in_every_run(run, monkeypatch):
    words = [UNIFORM, "rounds=1", "privacy.dp=server_fixed", "model.hidden=256"]
    still = run(*words)
    noisy = [run(*words, "privacy.noise_multiplier=2") for _ in range(2)]
    noise = [_flat(n.arrays) - _flat(still.arrays) for n in noisy]
    size = noise[0].size
    for one in noise:  # z C / n, to five standard errors
        assert abs(one.std() / (2 * 1.0 / 3) - 1) < 5 / math.sqrt(2 * size)
    assert abs(np.corrcoef(*noise)[0, 1]) < 5 / math.sqrt(size)


def _epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Min over α of T α / (2 z²) + log((α − 1) / α) − (log δ + log α) / (α − 1), on a grid of its own.

    Mironov 2017, Proposition 7 and Corollary 3; Canonne, Kamath & Steinke 2020, Proposition 12.
    """
    α = np.linspace(1.01, 200, 400_000)
    rdp = releases * α / (2 * noise_multiplier**2)
    return float(np.min(rdp + np.log1p(-1 / α) - (math.log(delta) + np.log(α)) / (α - 1)))


def test_epsilon_grows_and_is_that_of_composed_gaussians(run):
    words = [UNIFORM, "privacy.dp=client_fixed", "privacy.noise_multiplier=4", "privacy.delta=1e-4", "rounds=4"]
    finished = run(*words)
    spent = [r["privacy"]["epsilon"] for r in finished.rounds]
    assert spent == pytest.approx([_epsilon(4, t, 1e-4) for t in (1, 2, 3, 4)], rel=2e-3)
    assert spent == sorted(spent)
    assert finished.summary["privacy"] == {"epsilon": spent[-1], "delta": 1e-4, "releases": 4}


NOISY = [UNIFORM, "privacy.dp=server_fixed", "privacy.noise_multiplier=4"]


def test_no_resumption_under_counts_what_was_released(run, monkeypatch, tmp_path):
    """Two attempts die before their next checkpoint, one of them with another interval; the third ends."""
    from fedgraph_flwr.strategies.privacy import Accounted

    released = 0
    aggregate = Accounted.aggregate_train

    def counted(self, *args):
        nonlocal released
        released += 1
        return aggregate(self, *args)

    monkeypatch.setattr(Accounted, "aggregate_train", counted)

    def attempt(dies_after, *words):
        nonlocal released
        bound = released + dies_after if dies_after else math.inf

        def dies(self, *args):
            answer = counted(self, *args)
            if released >= bound:
                raise KeyboardInterrupt
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(Accounted, "aggregate_train", dies)
            return run(*NOISY, "rounds=8", f"out={tmp_path / 'run'}", *words)

    again = f"resume={tmp_path / 'run'}"
    with pytest.raises(KeyboardInterrupt):
        attempt(4, "checkpoint_every=3")  # after round 4: the checkpoint is that of round 3
    with pytest.raises(KeyboardInterrupt):
        attempt(4, "checkpoint_every=20", again)  # after round 7, with no checkpoint before the end
    finished = attempt(0, "checkpoint_every=0", again)
    told = finished.summary["privacy"]["releases"]
    assert released == 4 + 4 + 5
    assert told >= released
    assert told == 3 + 3 + 5 + 5  # round 3, what could follow it in the first and second attempt, and the third's
    assert [r["privacy"]["releases"] for r in finished.rounds][2:] == [3, 12, 13, 14, 15, 16]


def test_a_run_that_ended_and_is_made_longer_books_each_round_once(run):
    whole = run(*NOISY, "rounds=4", "checkpoint_every=2")
    longer = run(*NOISY, "rounds=6", "checkpoint_every=2", f"resume={whole.out}", f"out={whole.out}")
    assert longer.summary["privacy"]["releases"] == 6


@pytest.mark.parametrize("before", [[UNIFORM], [*NOISY[:2], "privacy.noise_multiplier=1"]])
def test_a_run_is_not_resumed_with_other_noise(run, before):
    whole = run(*before, "rounds=2", "checkpoint_every=2")
    with pytest.raises(FedGraphError, match=r"privacy\.noise_multiplier=4\.0 \(it has"):
        run(*NOISY, "rounds=4", f"resume={whole.out}", f"out={whole.out}")


def test_a_run_is_not_resumed_where_its_releases_are_not_booked(run):
    whole = run(*NOISY, "rounds=2", "checkpoint_every=2")
    with pytest.raises(FedGraphError, match="in its own folder"):
        run(*NOISY, "rounds=4", f"resume={whole.out}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["strategy=fedomd"], "fedomd exchanges or averages more"),
        (["strategy=local"], "local shares nothing"),
        (["strategy=fedavg"], "strategy.weighting=uniform"),
        ([UNIFORM, "privacy.delta=0"], "privacy.delta must lie"),
        ([UNIFORM, "privacy.clipping_norm=0"], "privacy.clipping_norm must be > 0"),
    ],
)
def test_what_cannot_be_covered_is_refused(run, words, told):
    with pytest.raises(FedGraphError, match=told):
        run(*words, "privacy.dp=server_fixed", "privacy.noise_multiplier=1")
