"""Helpers that tests import by name."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from fedgraph_flwr.clients import replies
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.report import writing
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.testing import Finished, assert_same_arrays, call_fresh, same_result
from fedgraph_flwr.wire.messages import Reply

__all__ = [
    "PATIENCE",
    "Finished",
    "assert_same_arrays",
    "bomb",
    "call_fresh",
    "dense_gcn_adjacency",
    "honest_reply",
    "patch_replies",
    "recorded_messages",
    "reduced",
    "same_result",
    "wait_for",
    "wait_for_end",
    "write_report",
]


def reduced(server: Any, phase: str, replies: list[Reply]) -> Reduced:
    """What a run without protection hands a server of these replies."""
    unused: Any = SimpleNamespace(folder=None)
    return Live(server, unused, unused).reduce(phase, replies)


write_report = partial(writing.write_report, load=load_predictor)

PATIENCE = 600.0
"""Seconds that a test waits for a state before it fails; no test depends on how busy the machine is."""


def bomb() -> str:
    """A YAML text of thirty lists, each of twice the one before."""
    return "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 31))


def wait_for(true: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Ask until it is true.

    Raises:
        TimeoutError: it was not in time.
    """
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(0.05)


def wait_for_end(processes: list[psutil.Process]) -> None:
    """Wait until none of these runs.

    Raises:
        AssertionError: some did not end.
    """
    assert processes
    assert psutil.wait_procs(processes, timeout=PATIENCE)[1] == []


@contextmanager
def recorded_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, Any]]]:
    """Every message of the in-process runs within: (``"down"`` or ``"up"``, node id, content)."""
    from fedgraph_flwr.engine.inline import InlineGrid

    seen: list[tuple[str, int, Any]] = []
    call = InlineGrid._call

    def spy(self: InlineGrid, message: Any) -> Any:
        node = message.metadata.dst_node_id
        seen.append(("down", node, message.content))
        reply = call(self, message)
        if reply.has_content():
            seen.append(("up", node, reply.content))
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(InlineGrid, "_call", spy)
        yield seen


def last_given(args: Sequence[Any]) -> list[str]:
    """Return options, each with one value, and ``KEY=VALUE`` as texts: of those that come twice the last, unless it is empty."""
    words, last = [str(arg) for arg in args], dict[str, int]()
    names = {place: word for place, word in enumerate(words) if word.startswith("--")}
    keys = {place: word.partition("=")[0] for place, word in enumerate(words) if "=" in word and place - 1 not in names}
    for place, name in (names | keys).items():
        last[name] = max(place, last.get(name, 0))
    twice = {place for place, name in names.items() if last[name] != place}
    values = {place + 1 for place in twice} | {
        place for place, key in keys.items() if last[key] != place or words[place] == f"{key}="
    }
    return [word for place, word in enumerate(words) if place not in twice | values]


Reply = Callable[[Any, str, dict[str, Any], dict[str, Any]], Any]
"""Replies of a client to a phase, with groups of arrays and scalars."""


def honest_reply(client: Any, phase: str, groups: dict[str, Any], config: dict[str, Any]) -> Any:
    """The groups and numbers of a client's reply, as its session makes them."""
    request = replies.taken(client, phase, groups, config)
    summed = replies.summed_groups(client, phase, config)
    return replies.protected(client, phase, replies.plain_reply(client, phase, groups, config), request, summed)


def patch_replies(monkeypatch: pytest.MonkeyPatch, reply: Reply) -> None:
    """Let this function reply to every message in this process."""
    monkeypatch.setattr(node_clients, "taken", lambda *_: None)
    monkeypatch.setattr(node_clients, "plain_reply", reply)
    monkeypatch.setattr(node_clients, "protected", lambda client, phase, content, *_: content)


def dense_gcn_adjacency(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """D^{-1/2} (A + I) D^{-1/2} the slow way, float64 [N, N], row target; self-loops in the data count once."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for source, target in edge_index.T.tolist():
        if source != target:
            a[target, source] += 1
    a += torch.eye(num_nodes, dtype=torch.float64)
    degree = a.sum(1)
    return a / (degree[:, None] * degree[None, :]).sqrt()
