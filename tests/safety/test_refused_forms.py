"""Requests that no honest server sends, and replies that no server can use."""

import contextlib
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import MODEL, groups_of, is_finite, to_record
from tests.methods.small_runs import METHODS, sampled
from tests.nodes import model_of
from tests.support import assert_same_arrays

STATELESS = ["train.optimizer=sgd", "train.optimizer_state=reset"]


def test_training_belongs_to_rounds(node):
    """Four rounds gave five replies: one of round 0."""
    asked = node()
    model = {MODEL: model_of(asked)}
    assert "training in round 0, the set-up" in asked.request("train", 0, model)
    assert not isinstance(asked.request("train", 1, model), str)


def test_training_needs_a_model(node):
    asked = node()
    assert "'train' without group 'model'" in asked.request("train", 1)
    assert not isinstance(asked.request("train", 2, {MODEL: model_of(asked)}), str)


@pytest.mark.parametrize("kind", ["int8", "int64", "bool", "float64"])
@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_parameters_have_the_type_of_the_model(node, kind, phase):
    asked = node()
    model = {name: array.astype(kind) for name, array in model_of(asked).items()}
    assert f" of type {kind}, expected float32" in asked.request(phase, 1, {MODEL: model})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"exchange": -1}, "exchange=-1, expected no negative number"),
        ({"keep": True, "best": -1}, "best=-1, expected no negative number"),
        ({"run": "../x"}, "the server's name of a run, '../x' is not a name"),
        ({"run": "../x", "resume": 1}, "the server's name of a run, '../x' is not a name"),
    ],
)
@pytest.mark.parametrize("state", [True, False])
def test_numbers_and_names_of_a_message_are_checked_in_every_phase(node, values, text, state):
    assert text in node(state=state).request("describe", **values)


@pytest.mark.parametrize("method", sampled(METHODS))
def test_no_reply_has_values_that_are_not_finite(go, method, monkeypatch):
    """A finite parameter of 1e38 overflows in the first product."""
    call, sent = InlineGrid._call, []

    def huge(self: InlineGrid, message: Message) -> Message:
        phase = message.content["config"]["phase"]
        if MODEL in message.content and phase == "train":
            arrays = groups_of(message.content)[MODEL]
            vast = {n: np.full_like(a, 1e38) if a.dtype == np.float32 else a for n, a in arrays.items()}
            message.content[MODEL] = to_record(vast)
        reply = call(self, message)
        if reply.has_content():
            sent.append((phase, groups_of(reply.content)))
        return reply

    monkeypatch.setattr(InlineGrid, "_call", huge)
    with contextlib.suppress(FedGraphError):  # no client is left
        go(method, "rounds=1")
    for phase, groups in sent:
        for group, arrays in groups.items():
            assert all(map(is_finite, arrays.values())), (phase, group)


def test_a_reply_that_overflows_names_what_to_set(node):
    asked = node(policy={"check_start": False})
    vast = {name: np.full_like(array, 1e38) for name, array in model_of(asked).items()}
    refusal = asked.request("train", 1, {MODEL: vast})
    assert "values that are not finite: if it diverged, lower train.lr" in refusal


# --- the record of requests -----------------------------------------------------------------------


@pytest.mark.parametrize("older", ["context", "folder"])
def test_the_later_record_of_requests_counts(node, older):
    """A process that was killed before its reply leaves an older context, a restored folder an older file."""
    asked = node(*STATELESS, state=True)
    model = {MODEL: model_of(asked)}
    assert not isinstance(asked.request("describe"), str)
    (path,) = Path(asked.context.node_config["state"]).glob("*/client_0000/asked.json")
    before = path.read_bytes(), RecordDict(dict(asked.context.state))
    assert not isinstance(asked.request("train", 1, model), str)
    if older == "context":
        asked.context.state = before[1]
    else:
        path.write_bytes(before[0])
    refusal = asked.request("train", 1, model, exchange=0)
    assert "phase 'train' of round 1 2 times, expected at most 1" in refusal


def test_two_messages_of_one_run_train_one_after_the_other(node, tmp_path, monkeypatch):
    """Both processes start with the same context: the second waits for the first, and refuses a repetition."""
    asked = node(*STATELESS, state=True)
    model = {MODEL: model_of(asked)}
    assert not isinstance(asked.request("describe"), str)
    train, both = GraphClient.train, multiprocessing.get_context("fork")
    started, go_on, told = both.Event(), both.Event(), both.Queue()

    def slow(self: GraphClient) -> float:
        started.set()
        assert go_on.wait(60)
        return train(self)

    def ask() -> None:
        reply: Any = asked.request("train", 1, model, exchange=0)
        told.put(reply if isinstance(reply, str) else "")

    monkeypatch.setattr(GraphClient, "train", slow)
    processes = [both.Process(target=ask) for _ in range(2)]
    for process in processes:
        process.start()
    assert started.wait(60)
    go_on.set()
    replies = sorted(told.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert replies[0] == ""
    assert "phase 'train' of round 1 2 times, expected at most 1" in replies[1]


def test_a_message_that_waited_continues_with_the_state_of_the_one_before(node, tmp_path):
    """Its context is older than the folder."""

    def third(name: str, *, waited: bool) -> dict[str, Any]:
        asked = node("train.optimizer=adam", "strategy.personalization=head")
        asked.context.node_config["state"] = str(tmp_path / name)
        model = {MODEL: model_of(asked)}
        asked.request("train", 1, model)
        before = RecordDict(dict(asked.context.state))
        asked.request("train", 2, model)
        if waited:
            asked.context.state = before
        return groups_of(asked.request("train", 3, model))[MODEL]

    assert_same_arrays(third("late", waited=True), third("usual", waited=False))


# --- statistics of a method ------------------------------------------------------------------------


def test_a_pooled_span_is_at_least_ones_own(node):
    """FedOMD divides by its powers: a tiny one takes the seed's parameters anywhere in one step."""
    asked = node("strategy=fedomd")
    model, point = {MODEL: model_of(asked)}, {"point": {"mean": np.zeros((3, 8), np.float32)}}
    target: dict[str, Any] = {"moments": np.zeros((3, 5, 8), np.float32), "span": np.full(3, 100, np.float32)}
    unasked = asked.request("train", 1, {**model, "target": target})
    assert "without a request for this client's in the same round" in unasked
    sent = groups_of(asked.request("moments_sum", 2, {**model, **point}))
    width = np.diff(sent["range"]["range"])[:, 0]
    tiny = {**target, "span": width * np.float32([1, 1e-3, 1])}
    assert "expected at least this client's own" in asked.request("train", 2, {**model, "target": tiny})
    asked.request("moments_sum", 3, {**model, **point})
    honest = {**target, "span": width}
    assert not isinstance(asked.request("train", 3, {**model, "target": honest}), str)
