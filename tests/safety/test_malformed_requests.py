"""Every array and number that a server sends, changed in many ways: a node refuses it in one line, or replies to it.

The methods come from conf/strategy. Requests of a small run are sent to its first client in changed forms, each to a copy of the
client's state as it was before the honest request.
"""

import copy
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node.node import Simulated
from fedgraph_flwr.secure.policy import simulated
from fedgraph_flwr.wire.messages import MODEL
from tests.methods.small_runs import METHODS, Go, declares, sampled
from tests.nodes import nodes_with
from tests.safety.mutations import decoded, encoded, record_of

PART = 48
"""One of so many changes is tried, chosen by its name; not of those in `ALWAYS`."""

ALWAYS = ("nan", "missing")
NOT_FINITE = ("nan", "all nan", "inf", "minus inf")
RESERVED = ("phase", "round", "exchange", "protocol", "run", "resume", "best", "keep", "checkpoint", "evaluate")
"""Scalars of every request, which have tests of their own."""


@dataclass(frozen=True)
class Case:
    """A changed request and what came of it.

    Attributes:
        phase: of the request.
        place: the array or number that was changed.
        kind: what was done to it.
        refusal: the node's error message; empty: it replied.
        traceback: an exception that no check foresaw.
    """

    phase: str
    place: str
    kind: str
    refusal: str
    traceback: str


def changes(content: RecordDict) -> Iterator[tuple[str, str, RecordDict]]:
    """Yield place, kind and content of the changed forms of a request."""
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            yield key, "missing", RecordDict({k: r for k, r in content.items() if k != key})
            yield key, "empty", RecordDict({**content, key: ArrayRecord()})
            for name in record:
                yield f"{key}/{name}", "missing", _with(content, key, name, None)
                renamed = _with(content, key, name, None)
                yield f"{key}/{name}", "renamed", _with(renamed, key, f"{name}\n[/b]", record[name])
                for kind, array in arrays(decoded(record[name])):
                    yield f"{key}/{name}", kind, _with(content, key, name, array)
        elif isinstance(record, ConfigRecord):
            for name in record:
                if name in RESERVED:
                    continue
                rest = {k: v for k, v in record.items() if k != name}
                yield name, "missing", RecordDict({**content, key: ConfigRecord(rest)})
                for kind, value in {
                    "nan": np.nan,
                    "inf": np.inf,
                    "-7": -7,
                    "2^62": 2**62,
                    "text": "x",
                    "list": [1],
                }.items():
                    yield name, kind, RecordDict({**content, key: ConfigRecord({**rest, name: value})})


def _with(content: RecordDict, key: str, name: str, array: Array | None) -> RecordDict:
    """The content with another array, or without it."""
    record = {k: a for k, a in content[key].items() if k != name}
    return RecordDict({**content, key: record_of({**record, name: array} if array else record)})


def arrays(values: np.ndarray) -> Iterator[tuple[str, Array]]:
    """Yield other forms of an array."""
    yield "scalar", encoded(np.zeros((), values.dtype))
    yield "extra axis", encoded(values[None])
    yield "flat", encoded(np.concatenate([values.ravel(), values.ravel()[:1]]))
    yield "empty", encoded(values[:0] if values.ndim else np.zeros(0, values.dtype))
    for dtype in ("int8", "int64", "float16", "float64", "bool", "complex64"):
        if values.dtype != dtype:
            with np.errstate(all="ignore"):
                yield dtype, encoded(values.astype(dtype))
    if values.ndim and len(values):
        yield "a row less", encoded(values[:-1])
        yield "a row more", encoded(np.concatenate([values, values[-1:]]))
    special: dict[str, Any] = {}
    if values.dtype.kind == "f":
        special = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf, "huge": 1e30, "minus": -7.5}
    elif values.dtype.kind in "iu":
        top = np.iinfo(values.dtype)
        special = {"largest": top.max, "least": top.min, "next": 1}
    for kind, value in special.items() if values.size else ():
        changed = values.copy()
        changed.flat[-1] = value
        yield kind, encoded(changed)
        yield f"all {kind}", encoded(np.full_like(values, value))


def cases(go: Go, method: str, part: int = PART) -> list[Case]:
    """One run in which each request to the first client is first sent in its changed forms.

    All methods read a model alike, so with ``part`` above 1 it is changed for the default method only.
    """
    outcomes: list[Case] = []
    failures: list[str] = []
    call, done = InlineGrid._call, set()

    class Recording(Simulated):
        def failure(self, error: Exception) -> str:
            failures.append(super().failure(error))
            return failures[-1]

    def spy(self: InlineGrid, message: Message) -> Message:
        phase: Any = message.content["config"]["phase"]
        node = message.metadata.dst_node_id
        parts: list[tuple[str, Any]] = list(message.content.items())
        form = phase, tuple(sorted((key, *sorted(record)) for key, record in parts))
        context = self.contexts[node]
        context.node_config.pop("live", None)  # its state is in its context
        if node == 1 and form not in done:
            done.add(form)
            state = context.state
            for place, kind, content in changes(message.content):
                if part > 1 and place.startswith(MODEL) and method != compose([]).strategy.name:
                    continue
                drawn = zlib.crc32(f"{method} {form[0]} {place} {kind}".encode()) % part == 0
                if not drawn and kind not in ALWAYS:
                    continue
                context.state = recorddict_from_proto(recorddict_to_proto(state))
                node_clients.forget(self.run_id)
                failures.clear()
                changed = copy.copy(message)
                changed.__dict__["_content"] = content
                reply = call(self, changed)
                reason = reply.error.reason if reply.has_error() else ""
                outcomes.append(Case(form[0], place, kind, reason, "".join(failures)))
            context.state = state
            node_clients.forget(self.run_id)
        return call(self, message)

    with pytest.MonkeyPatch.context() as patch:
        nodes_with(patch, simulated, Recording)
        patch.setattr(InlineGrid, "_call", spy)
        go(method, "rounds=2", "train.local_steps=1")
    return outcomes


@pytest.mark.parametrize("method", sampled(METHODS))
def test_a_malformed_request_is_one_error_message(go, method):
    for case in (outcomes := cases(go, method)):
        assert not case.traceback, case
        assert len(case.refusal.splitlines()) <= 1, case
        assert case.refusal or not case.kind.endswith(NOT_FINITE), case
    assert outcomes or not declares(method).purpose.startswith(("cut_edges", "graph"))
