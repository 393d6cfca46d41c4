"""Draws of clients: each depends on the client alone, all clients are drawn alike, and old checkpoints keep their rule."""

import numpy as np
import pytest
from scipy.stats import chisquare

from fedgraph_flwr.config import compose
from fedgraph_flwr.methods import cohorts
from fedgraph_flwr.methods.cohorts import CHOICE, draw, splitmix64
from tests.support import same_result


def test_the_hash_is_the_published_one():
    """The first outputs of the reference generator for the seed 1234567 (its state grows by the golden gamma)."""
    golden, state = 0x9E3779B97F4A7C15, 1234567
    states = np.array([(state + k * golden) % 2**64 for k in range(3)], np.uint64)
    assert splitmix64(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("left_out", [0, 7, 19])
def test_leaving_a_client_out_changes_no_draw_of_another(left_out):
    everyone = range(20)
    others = [client for client in everyone if client != left_out]
    for number in range(200):
        whole, less = (draw(clients, 5, 3, "cohort", number) for clients in (everyone, others))
        assert len(whole) == len(less) == 5
        if left_out not in whole:
            assert less == whole
        else:
            assert set(whole) - {left_out} < set(less)


def test_min_clients_fixes_the_size_so_that_a_client_can_be_left_out():
    """A share of the clients is another number if one is left out; `min_clients` beside a small share is not."""
    share, fixed = (compose([f"strategy.fraction={f}", "strategy.min_clients=5"]).strategy for f in (0.6, 0.01))
    assert [share.cohort_size(n) for n in (9, 10)] == [5, 6]
    assert [fixed.cohort_size(n) for n in (9, 10, 200)] == [5, 5, 5]


def test_every_client_is_drawn_as_often():
    counts = np.zeros(20)
    for number in range(4000):
        counts[draw(range(20), 5, 0, "cohort", number)] += 1
    assert chisquare(counts).pvalue > 1e-3


def test_a_draw_follows_from_seed_and_stream_and_not_from_the_order():
    first = draw([4, 9, 2, 7, 1], 2, 0, "cohort", 1)
    assert first == draw([1, 2, 4, 7, 9], 2, 0, "cohort", 1) == sorted(first)
    draws = {
        tuple(draw(range(9), 4, *key)) for key in [(0, "cohort", 1), (1, "cohort", 1), (0, "cohort", 2), (0, "judges")]
    }
    assert len(draws) == 4
    assert draw([3, 1], 5, 0, "cohort") == [1, 3]


def test_a_run_that_began_with_the_former_rule_keeps_it(run, monkeypatch):
    """Checkpoints of the release before record no rule; a new run does not draw as they do."""
    overrides = ["strategy.fraction=0.34", "checkpoint_every=2"]
    with monkeypatch.context() as former:
        former.setattr(cohorts, "LOWEST_HASHES", CHOICE)
        whole, half = run(*overrides, "rounds=6"), run(*overrides, "rounds=2")
    resumed = run(*overrides, "rounds=6", f"resume={half.out}", f"out={half.out}")
    same_result(resumed, whole)
    again = run(*overrides, "rounds=8", f"resume={half.out}", f"out={half.out}")
    assert [r["cohort"] for r in again.rounds[:6]] == [r["cohort"] for r in whole.rounds]
    assert [r["cohort"] for r in again.rounds[6:]] == [draw(range(3), 1, 0, "cohort", r, rule=CHOICE) for r in (7, 8)]
    assert [r["cohort"] for r in run(*overrides, "rounds=6").rounds] != [r["cohort"] for r in whole.rounds]
