"""The server's half of every method makes its rounds again from opened sums: the same bits, without grid and recorder."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fedgraph_flwr.methods import boosting
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.loop import Loop
from fedgraph_flwr.strategies.replay import MissingRequest, Opened, prepared, replayed_round
from fedgraph_flwr.wire.messages import TRAIN
from fedgraph_flwr.wire.trees import flatten
from tests.methods.small_runs import METHODS, sampled


@dataclass
class Made:
    """A round of a run: its cohort, what was opened, and the state after it."""

    cohort: list[int]
    opened: list[Opened] = field(default_factory=list)
    after: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Watched:
    """A run: its server, and its rounds by number; 0 is the set-up."""

    server: Any = None
    rounds: dict[int, Made] = field(default_factory=lambda: {0: Made([])})


def state_of(strategy: Any) -> dict[str, np.ndarray]:
    """All that a strategy keeps between rounds, by path."""
    tree = {
        "arrays": strategy.arrays,
        "method": strategy.save(),
        "models": {str(k): v for k, v in strategy.models.items()},
    }
    return {name: tensor.numpy().copy() for name, tensor in flatten(tree).items()}


@contextmanager
def watched() -> Iterator[Watched]:
    """What the run within opens."""
    run = Watched()
    reduce, adopt = Live.reduce, Loop.run_round

    def opening(self, phase, replies):
        result = reduce(self, phase, replies)
        shown = [replace(reply, message=None) for reply in result.replies]
        kept = deepcopy(replace(result, replies=shown, rule=None))
        run.server = self.strategy
        made = run.rounds.setdefault(self.strategy.server_round, Made(list(self.strategy.round.drawn)))
        scoring = bool(made.after)  # of the last model, after its round
        if phase in self.strategy.uplink_of and not scoring:
            made.opened.append(Opened(phase, kept, tuple(self.strategy.cohort)))
        return result

    def noting(self, server_round):
        done = adopt(self, server_round)
        made = run.rounds.setdefault(server_round, Made(list(self.server.round.drawn)))
        made.after = state_of(self.server)
        run.server = self.server
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Live, "reduce", opening)
        patch.setattr(Loop, "run_round", noting)
        yield run


def assert_same_state(strategy, made):
    state = state_of(strategy)
    assert state.keys() == made.after.keys()
    for name, array in made.after.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


@pytest.mark.parametrize("method", sampled(METHODS))
def test_a_method_makes_its_rounds_again_from_opened_sums(go, method):
    with watched() as run:
        cfg = go(method, "rounds=2").cfg
    strategy = prepared(cfg, run.server.clients, run.rounds.pop(0).opened)
    strategy.set_up()
    assert run.rounds.keys() == {1, 2}
    for number, made in run.rounds.items():
        for count, entry in enumerate(made.opened):
            with pytest.raises(MissingRequest) as missing:
                replayed_round(strategy, number, made.cohort, made.opened[:count])
            assert missing.value.phase == entry.phase
        replayed_round(strategy, number, made.cohort, made.opened)
        assert_same_state(strategy, made)


def test_a_replay_splits_the_nodes_of_each_level_once(go, monkeypatch):
    """A node of a verified run replays a round after each of its sums."""
    with watched() as run:
        cfg = go(
            "boosting", "strategy.mode=histogram", "privacy.secagg=true", "strategy.min_data_in_leaf=2", "rounds=2"
        ).cfg
    strategy, split, levels = prepared(cfg, run.server.clients, run.rounds.pop(0).opened), boosting.best_splits, []
    strategy.set_up()

    def counted(*given):
        levels.append(len(given[0]))
        return split(*given)

    monkeypatch.setattr(boosting, "best_splits", counted)
    for number, made in run.rounds.items():
        levels.clear()
        for count in range(len(made.opened)):
            with pytest.raises(MissingRequest):
                replayed_round(strategy, number, made.cohort, made.opened[:count])
        assert len(levels) == len(made.opened) - 1 > 1
        with pytest.raises(MissingRequest):
            replayed_round(strategy, number, made.cohort, deepcopy(made.opened[:-1]))
        assert len(levels) == 2 * (len(made.opened) - 1), "other arrays may have other values"
        replayed_round(strategy, number, made.cohort, made.opened)
        assert_same_state(strategy, made)


PROTECTED = {
    "secagg": ["privacy.secagg=true"],
    "dp": ["privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
    "sampled": ["strategy.fraction=0.67"],
    "median": ["strategy.aggregator=median", "strategy.byzantine=0"],
}


@pytest.mark.parametrize("words", PROTECTED.values(), ids=PROTECTED)
@pytest.mark.parametrize("method", ["fednova", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_protections_leave_a_round_that_can_be_made_again(go, method, words):
    with watched() as run:
        cfg = go(method, "rounds=2", *words).cfg
    strategy = prepared(cfg, run.server.clients, run.rounds.pop(0).opened)
    strategy.set_up()
    for number, made in run.rounds.items():
        assert [entry.phase for entry in made.opened] == [TRAIN]
        replayed_round(strategy, number, made.cohort, made.opened)
        assert_same_state(strategy, made)
