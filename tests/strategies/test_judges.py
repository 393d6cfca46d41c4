"""Who scores a model: all clients, those who train next, or a panel; and that nobody else is touched then."""

import numpy as np
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from tests.support import honest_reply, patch_replies, same_result

WORDS = ["rounds=4", "strategy.fraction=0.34", "checkpoint_every=2"]
SIZES = tuple(range(12, 24))
"""Of twelve clients, four of which train in a round."""


def test_the_cohort_scores_what_it_is_sent(run):
    done = run(*WORDS, "evaluation.clients=cohort", sizes=SIZES)
    whole = run(*WORDS, sizes=SIZES)
    cohorts = [record["cohort"] for record in done.rounds]
    assert [record["scored_by"] for record in done.rounds][:-1] == cohorts[1:]
    assert len(done.rounds[-1]["scored_by"]) == 4  # those who would train in a fifth round
    for mine, other in zip(done.rounds, whole.rounds, strict=True):
        assert mine["cohort"] == other["cohort"]
        for key, values in mine["clients"].items():  # what each of them says when all are asked
            assert values == [other["clients"][key][client] for client in mine["scored_by"]]
        assert mine["metrics"]["test_accuracy"] == pytest.approx(np.mean(mine["clients"]["test-accuracy"]))
        assert other["scored_by"] == list(range(12))
    assert all("evaluate" not in record["phases"] for record in done.rounds[:-1])


def test_a_panel_is_the_same_in_every_round(run):
    done = run(*WORDS, "evaluation.clients=3", sizes=SIZES)
    (panel,) = {tuple(record["scored_by"]) for record in done.rounds}
    assert len(panel) == 3
    assert len(done.rounds[0]["clients"]["test-loss"]) == 3
    everyone = run(*WORDS, "evaluation.clients=99", sizes=SIZES)
    assert everyone.rounds[0]["scored_by"] == list(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["strategy=fedavg"], ["strategy=ditto"], ["strategy=fedper"]])
def test_clients_that_take_no_part_are_not_asked_and_a_resumed_run_is_the_same(run, overrides, monkeypatch):
    """Beyond who they are: they file no state, and a resumed run does not look for it."""
    overrides = [*WORDS, *overrides, "evaluation.clients=cohort"]
    whole = run(*overrides, "rounds=6", sizes=SIZES)
    seen = set()
    patch_replies(
        monkeypatch,
        lambda client, phase, groups, config: (
            (phase != "describe" or config.get("run")) and seen.add(client.graph.client),
            honest_reply(client, phase, groups, config),
        )[1],
    )
    half = run(*overrides, sizes=SIZES)
    took_part = {client for record in half.rounds for client in (*record["cohort"], *record["scored_by"])}
    assert seen == took_part < set(range(12))
    resumed = run(*overrides, "rounds=6", f"resume={half.out}", f"out={half.out}", sizes=SIZES)
    same_result(resumed, whole)


@pytest.mark.parametrize("given", ["none", "0", "-1", "1.5", ""])
def test_who_scores_is_a_word_or_a_number(given):
    with pytest.raises(
        FedGraphError, match=f"evaluation.clients must be all, cohort or an integer >= 1, got '{given}'"
    ):
        compose([f"evaluation.clients='{given}'"])


def test_what_follows_single_clients_needs_the_same_ones():
    with pytest.raises(FedGraphError, match=r"evaluation.select=own_best_val needs scores of the same clients"):
        compose(["evaluation.clients=cohort", "evaluation.select=own_best_val"])
