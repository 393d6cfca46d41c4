"""Messages packed into one object: the same content on both sides, whatever the bytes."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st

from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import packing
from fedgraph_flwr.fleet.flower_patches import SHORTEST
from fedgraph_flwr.fleet.packing import PACKED, PackingGrid, packed, reply_packed, unpacked
from fedgraph_flwr.wire.messages import from_record, payload_bytes, to_record


def _content(values: int = 6) -> RecordDict:
    arrays = {
        "w": np.arange(values, dtype=np.float32).reshape(2, -1),
        "n": np.array(3),
        "empty": np.zeros((0, 4), np.int64),
    }
    records = {"model": to_record(arrays), "config": ConfigRecord({"phase": "train", "round": 3, "b": b"\0x"})}
    return RecordDict({**records, "metrics": MetricRecord({"loss": 0.1, "counts": [1, 2]})})


def test_a_content_comes_out_as_it_went_in_and_as_three_objects():
    content = _content()
    small = packed(content)
    restored_content = unpacked(small)
    assert list(restored_content) == list(content)
    assert restored_content["config"] == content["config"]
    assert restored_content["metrics"] == content["metrics"]
    for name, array in from_record(content["model"]).items():
        np.testing.assert_array_equal(from_record(restored_content["model"])[name], array)
        assert from_record(restored_content["model"])[name].dtype == array.dtype
    assert payload_bytes(restored_content) == payload_bytes(content)
    with run_identity(1):
        message, other = Message(small, 1, "train"), Message(content, 1, "train")
    assert len(get_all_nested_objects(message)) == 3
    assert len(get_all_nested_objects(other)) == 11


def test_a_large_one_travels_as_it_is(monkeypatch):
    monkeypatch.setattr(packing, "MAX_BYTES", 20)
    content = _content()
    large = packed(content)
    assert list(large) == [*content, PACKED]
    assert list(unpacked(large)) == list(content)


@given(st.binary(max_size=60))
def test_foreign_bytes_are_a_content_or_a_sentence(data):
    content = RecordDict({PACKED: ConfigRecord({"content": data})})
    with contextlib.suppress(FedGraphError):
        assert isinstance(unpacked(content), RecordDict)


@pytest.mark.parametrize("value", [3, "text", [1.0], [b"x"]])
def test_what_is_no_bytes_is_a_sentence(value):
    with pytest.raises(FedGraphError, match="cannot read a packed message"):
        unpacked(RecordDict({PACKED: ConfigRecord({"content": value})}))


def test_a_client_answers_packed_what_came_packed(run):
    with run_identity(1):
        question = Message(packed(_content()), 5, "train")
        reply = reply_packed(lambda message, context: Message(message.content, reply_to=message), question, None)
    assert list(reply.content) == [PACKED]
    assert list(unpacked(reply.content)) == list(_content())


class Echo:
    """A grid whose nodes send back what they are sent; node 2 sends garbage."""

    def push_messages(self, messages):
        self.sent = messages
        return ["a", "b"]

    def pull_messages(self, message_ids):
        replies = [Message(message.content, reply_to=message) for message in self.sent]
        replies[1].content = RecordDict({PACKED: ConfigRecord({"content": b"\xff\xff"})})
        return replies


def test_a_node_that_sends_garbage_is_left_to_the_schema():
    with run_identity(1):
        messages = [Message(_content(), node, "train") for node in (1, 2)]
        for message in messages:
            message.metadata.__dict__["_message_id"] = "x"
        grid = PackingGrid(Echo())
        assert grid.push_messages(messages) == ["a", "b"]
        assert all(list(message.content) == [PACKED] for message in messages)
        good, bad = grid.pull_messages(["a", "b"])
    assert list(good.content) == list(_content())
    assert list(bad.content) == [PACKED]


def test_the_server_looks_when_the_last_exchange_of_that_phase_says(run, monkeypatch):
    """By a clock that only its sleeps move: the first exchange is looked for often, the second when 0.8 of that time is over."""
    now, looks = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(packing, "time", clock)

    class Slow(Echo):
        """Answers 2 s after it was asked."""

        def push_messages(self, messages):
            self.asked = now[0]
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            looks.append(now[0] - self.asked)
            return super().pull_messages(message_ids) if looks[-1] > 2 else []

    grid = PackingGrid(Slow())
    counts = []
    for phase in ("train", "train", "query.other"):
        with run_identity(1):
            messages = [Message(_content(), node, phase) for node in (1, 2)]
            for message in messages:
                message.metadata.__dict__["_message_id"] = "x"
            looks.clear()
            grid.push_messages(messages)
            while not grid.pull_messages(["a", "b"]):
                pass
        counts.append(len(looks))
        assert 2 < looks[-1] < 2.3
    assert looks[0] == pytest.approx(SHORTEST)
    first, again, other = counts
    assert again < first / 4
    assert other == first
