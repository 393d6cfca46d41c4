"""Every array and number that a client sends, changed in many ways: refused by name, or what an honest client could have sent.

The methods come from conf/strategy, with the variants that their YAML declares, so a new one is probed without anyone's help.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.strategies.exchange import take
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.strategies.round import Outcome
from fedgraph_flwr.wire.messages import Reply
from tests.methods.small_runs import METHODS, Go, declares, sampled
from tests.safety.mutations import mutations

VARIANTS = [(method, *overrides) for method in METHODS for overrides in [[], *declares(method).variants]]
PROTECTED = [
    ["privacy.secagg=true"],
    ["privacy.dp=client_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
]
VARIANTS += [(compose([]).strategy.name, *overrides) for overrides in PROTECTED]
LIAR, OTHER = 1, 2
"""The client with wrong replies, and another client; in a pooled graph there is only client 0."""

forms = pytest.mark.parametrize("form", sampled(VARIANTS))


@dataclass(frozen=True)
class Probe:
    """Result of one wrong reply to ``strategy.read``; ``accepted`` is the reply as read."""

    phase: str
    place: str
    kind: str
    setup: bool
    refusal: str = ""
    accepted: Reply | None = None
    honest: Reply | None = None


def probed(go: Go, method: str, *overrides: str) -> list[Probe]:
    """One run in which each reply of one client is first given in all its wrong forms."""
    trials: list[Probe] = []
    read, done = ReplyReader.read, set()

    def spy(self: ReplyReader, phase: str, message: Message, client: int | None) -> Reply:
        honest = read(self, phase, message, client)
        kind = (
            phase,
            not self.method.server_round,
            tuple(sorted(message.content)),
        )  # once before the rounds, once in them
        if honest.client == (0 if self.cfg.strategy.pooled else LIAR) and kind not in done:
            done.add(kind)
            for wrong in mutations(message.content, OTHER):
                outcome = Outcome()
                lie: Any = SimpleNamespace(content=wrong.content, metadata=message.metadata, has_error=lambda: False)
                take(lie, 7, client, lambda m, c: read(self, phase, m, c), outcome)
                assert sum(outcome.groups.values()) >= 0
                refusal = "".join(outcome.failures.values())
                accepted = outcome.replies[0] if outcome.replies else None
                trials.append(
                    Probe(phase, wrong.place, wrong.kind, not self.method.server_round, refusal, accepted, honest)
                )
        return honest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplyReader, "read", spy)
        go(method, "rounds=2", *overrides)
    return trials


@pytest.fixture(scope="module")
def probes(go: Go) -> Callable[..., list[Probe]]:
    """The probes of a variant of a method, made once."""
    made: dict[tuple[str, ...], list[Probe]] = {}

    def get(form: tuple[str, ...]) -> list[Probe]:
        if form not in made:
            made[form] = probed(go, *form)
        return made[form]

    return get


@forms
def test_a_wrong_answer_is_refused_by_name_or_could_be_an_honest_one(probes, form):
    trials = probes(form)
    places = {(probe.phase, probe.place) for probe in trials}
    assert all(sum((p.phase, p.place) == place for p in trials) >= 20 for place in places if _is_value(place[1]))
    for probe in trials:
        if probe.accepted is None:
            assert probe.refusal.startswith((f"client {LIAR} ", "client 0 ", "node ")), probe
            assert probe.refusal.isprintable(), probe
            assert len(probe.refusal) <= 1000, probe
        else:
            assert not (problem := dishonest(probe.phase, probe.honest, probe.accepted, probe.setup)), (problem, probe)
    assert sum(probe.accepted is None for probe in trials) > len(trials) / 2


def _is_value(place: str) -> bool:
    return (
        not place.startswith("[")
        and place not in ("config", "metrics", "model.extra")
        and ("/" in place or "-" in place)
    )


def dishonest(phase: str, honest: Reply, reply: Reply, setup: bool = False) -> str:
    """Why no honest client could have sent this; empty where one could. It knows the honest reply, and no schema.

    Before the first round (``setup``) an array may have as many rows as a client says it has nodes or types; sealed bytes
    are as many as they are.
    """
    if phase != "describe" and reply.client != honest.client:
        return "another's index"
    if not reply.metrics.keys() <= honest.metrics.keys() or honest.metrics.keys() - reply.metrics.keys() - {
        "train-loss"
    }:
        return "other numbers"
    for name, value in reply.metrics.items():
        values, expected = (v if isinstance(v, list) else [v] for v in (value, honest.metrics[name]))
        if isinstance(value, list) != isinstance(honest.metrics[name], list) or len(values) != len(expected):
            return f"another length of {name}"
        if any(type(v) not in (int, float) for v in values):
            return f"{name} is no number"
        kind = name.rpartition("-")[2]
        share = name.rpartition("-")[0].endswith(("val", "test")) and kind not in ("count", "loss")
        unknown = share and kind not in ("accuracy", "macro_f1", "balanced_accuracy")  # nobody to rank, or no majority
        if any(not abs(v) <= 1e18 and not (v != v and unknown) for v in values):
            return f"{name} is not finite"
        if share and any(v < 0 or v > 1 for v in values):
            return f"{name} out of range"
        if kind in ("count", "loss") and name != "train-loss" and any(v < 0 for v in values):
            return f"{name} below 0"
        if (name.startswith("num_") and not setup) and values != expected:
            return f"another {name} than sent before"
        if kind == "count" and (any(math.floor(v) != v for v in values)):
            return f"half a node in {name}"
    for group, arrays in reply.groups.items():
        for name, array in arrays.items():
            before = honest.groups[group].get(name)
            if before is None or array.dtype != before.dtype or array.ndim != before.ndim:
                return f"{group}/{name} is of another kind"
            if array.dtype.kind == "f" and not (np.abs(array) <= 1e18).all():
                return f"{group}/{name} is not finite"
            grows = setup or array.dtype == np.uint8
            if array.shape != before.shape and not (grows and array.shape[1:] == before.shape[1:]):
                return f"{group}/{name} has another shape"
    return ""


def test_the_judge_knows_a_dishonest_answer():
    honest = Reply(
        1, {"model": {"w": np.ones(3, np.float32)}}, {"num_train": 3, "val-accuracy": [0.5], "val-count": [2.0]}
    )
    assert dishonest("train", honest, honest) == ""
    for wrong in (
        Reply(2, honest.groups, honest.metrics),
        Reply(1, {"model": {"w": np.ones(3, np.int8)}}, honest.metrics),
        Reply(1, {"model": {"w": np.ones(4, np.float32)}}, honest.metrics),
        Reply(1, {"model": {"w": np.full(3, np.nan, np.float32)}}, honest.metrics),
        Reply(1, honest.groups, {**honest.metrics, "val-accuracy": [1e9]}),
        Reply(1, honest.groups, {**honest.metrics, "val-accuracy": [0.5, 0.5]}),
        Reply(1, honest.groups, {**honest.metrics, "num_train": 10**30}),
        Reply(1, honest.groups, {**honest.metrics, "val-count": [2.5]}),
        Reply(1, honest.groups, {"num_train": 3}),
    ):
        assert dishonest("train", honest, wrong)


@pytest.mark.slow
@forms
def test_whole_rounds_with_a_wrong_answer_end_well_or_with_a_sentence(probes, go, form, monkeypatch):
    """A few replies, refused and not, are really given in a run."""
    rng = np.random.default_rng(len(form[0]))
    trials = probes(form)
    chosen = [trials[i] for i in rng.choice(len(trials), 1)]
    accepted = [p for p in trials if p.accepted is not None and p.kind not in ("float", "1e9", "half")]
    chosen += [accepted[i] for i in rng.choice(len(accepted), 2, replace=False)]
    call = InlineGrid._call
    for probe in chosen:
        given = itertools.count()

        def answer(self, message, probe=probe, given=given):
            reply = call(self, message)
            asked = message.content["config"]["phase"]
            liar = message.metadata.dst_node_id == min(len(self.contexts), LIAR + 1)
            if asked == probe.phase and liar and reply.has_content():
                wrongs = (m for m in mutations(reply.content, OTHER) if (m.place, m.kind) == (probe.place, probe.kind))
                if wrong := next(wrongs, None):
                    next(given)
                    lie = Message(type(reply.content)(), reply_to=message)
                    lie.__dict__["_content"] = wrong.content
                    return lie
            return reply

        monkeypatch.setattr(InlineGrid, "_call", answer)
        with contextlib.suppress(FedGraphError):  # its sentence; any other error is a traceback
            finished = go(form[0], "rounds=2", *form[1:])
            assert all(np.isfinite(a).all() for a in finished.arrays.values()), probe
            assert probe.accepted or re.search(r"'[01] \(", str(finished.summary["failures"].keys())), probe
        assert next(given) > 0, probe
