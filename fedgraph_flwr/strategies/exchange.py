"""One exchange of a phase: what a method may ask of a run's clients, and how messages are sent and awaited."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, Refusal, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import Groups, GroupsFor, Kind, Outcome
from fedgraph_flwr.wire.messages import DECLINED, REFUSED, Reply, pack, record_bytes

SIMULATED = 128
"""Most unanswered messages in Flower's simulation, whose engine scans all of them for each node at each poll."""

NAMED = 10
"""Most clients that a warning lists."""

_GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Errors that the SuperLink sends instead of a node."""

_REASONS: dict[int, str] = {
    ErrorCode.NODE_UNAVAILABLE: "the SuperLink missed two heartbeats: the node, its machine or its connection is down",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply did not arrive completely: its connection is slow, or was cut",
}
"""What some of them mean; others have a reason of their own."""

Read = Callable[[Message, int | None], Reply]
"""Returns the reply in a message of a client (None: index not known yet); raises `FedGraphError` if it is invalid."""


class Exchange(ABC):
    """What a method may ask of the clients of a run.

    `fedgraph_flwr.strategies.live.Live` sends messages, and
    `fedgraph_flwr.strategies.replay.Replay` has what was opened before.
    """

    __slots__ = ()

    @property
    def filing(self) -> dict[str, Any]:
        """Scalars that make a client store its state after replying, if a checkpoint is due; else none."""
        return {}

    @abstractmethod
    def request(
        self, phase: str, clients: list[int], groups: GroupsFor, config: Mapping[str, Any]
    ) -> Reduced:
        """Return the valid replies of clients to a phase, reduced as the uplink declares."""

    @abstractmethod
    def messages(
        self,
        phase: str,
        clients: list[int],
        groups: GroupsFor,
        scalars: Mapping[str, Any],
        model: ArrayRecord | None = None,
    ) -> list[Message]:
        """Return one message of a phase per client, counted as an exchange of this round.

        Args:
            phase: name of the phase.
            clients: the receivers.
            groups: groups of arrays, for all clients or by client.
            scalars: further scalars.
            model: shared parameters to send along; a client with its own shared parameters
                receives those instead.
        """


def with_own(groups: GroupsFor, more: Mapping[int, Groups]) -> dict[int, Groups]:
    """Return the groups of each client in ``more``, extended by its additional ones."""
    common, by_client = split(groups)
    return {
        client: {**(common if by_client is None else by_client.get(client, {})), **extra}
        for client, extra in more.items()
    }


def split(groups: GroupsFor) -> tuple[RecordDict, Mapping[int, Groups] | None]:
    """Return the encoded groups for all clients, and the groups by client; None if all clients receive the same."""
    if groups and all(isinstance(key, int) for key in groups):
        return RecordDict(), groups  # type: ignore[return-value]
    return pack(groups), None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Overdue:
    """Request whose reply did not come in time.

    Attributes:
        who: the client, or the node, as text.
        name: name of the exchange.
        sent: time of the request, in seconds since 1970.
        timeout: longest wait, in seconds.
    """

    who: str
    name: str
    sent: float
    timeout: float

    def warning(self, created: float) -> str:
        """Return what to know about the reply, which a node made at a time by its own clock."""
        late = f"{self.name}: {self.who} was late"
        if self.sent <= created < self.sent + self.timeout - 1.0:
            return (
                f"{late}: by its clock, its reply was ready after {created - self.sent:.0f} s, but it came after"
                f" strategy.timeout={self.timeout:g} s, and was dropped: check this node's connection"
            )
        took = min(max(created, self.sent + self.timeout), time.time()) - self.sent
        return (
            f"{late}: its reply took {took:.0f} s, and was dropped because strategy.timeout={self.timeout:g}:"
            f" set strategy.timeout above {took:.0f}, or give this node less to compute"
        )


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    clients: Mapping[int, int],
    read: Read,
    timeout: float,
    name: str,
) -> Outcome:
    """Send messages and poll with a growing pause, until all have replies or ``timeout`` seconds have passed.

    Args:
        grid: joins the server with its nodes.
        messages: one message per node.
        clients: client index by node, where known.
        read: accepts or refuses a reply.
        timeout: longest wait, in seconds.
        name: name of the exchange, for the log.
    """
    sent = list(messages)
    started = time.perf_counter()
    outcome = Outcome(down=_bytes_of(sent))
    unsent = list(reversed(sent))
    simulated = type(grid).__name__ == "InMemoryGrid"  # its import would take half a second
    window = SIMULATED if simulated else len(sent)
    waiting: dict[str, int] = {}
    pause = 0.0
    while waiting or unsent:
        if due := [unsent.pop() for _ in range(min(window - len(waiting), len(unsent)))]:
            waiting.update(
                zip(grid.push_messages(due), (m.metadata.dst_node_id for m in due), strict=True)
            )
        polled = time.perf_counter()
        if limit := getattr(grid, "limit_pull", None):
            limit(timeout - (polled - started))
        arrived = list(grid.pull_messages(list(waiting)))
        took = time.perf_counter() - polled
        for message in arrived:
            if (node := waiting.pop(message.metadata.reply_to_message_id, None)) is None:
                log(
                    WARNING,
                    "%s: dropped a message of node %s to no open request",
                    name,
                    message.metadata.src_node_id,
                )
                continue
            take(message, node, clients.get(node), read, outcome)
        if not waiting:
            continue
        # a poll that started in time may have waited for one reply: poll once more
        if polled - started > timeout:
            for node in [*waiting.values(), *(m.metadata.dst_node_id for m in unsent)]:
                reason = f"no reply within {timeout:g} s (strategy.timeout)"
                outcome.fail(clients.get(node, node), reason, Kind.NO_REPLY)
            break
        if getattr(grid, "blocks", False):  # polling already waited
            continue
        pause = 0.0 if arrived else min(1.5 * pause + 0.005, 1.0)
        # With a thousand nodes a poll keeps the grid busy, so pause for four times as long as it
        # took.
        time.sleep(max(pause, min(4 * took, 1.0)))
    outcome.seconds = time.perf_counter() - started
    overdue: dict[str, Overdue] | None = getattr(grid, "overdue", None)
    if overdue is not None:  # a fleet
        name_late_replies(grid, overdue)
        for identifier, node in waiting.items():
            who = f"client {clients[node]}" if node in clients else f"node {node}"
            overdue[identifier] = Overdue(who, name, time.time() - outcome.seconds, timeout)
    outcome.replies.sort(key=lambda reply: reply.client)
    for line in failure_lines(outcome.failures, set(clients.values())):
        log(WARNING, "%s: %s", name, line)
    return outcome


def name_late_replies(grid: Grid, overdue: dict[str, Overdue]) -> None:
    """Warn of replies to earlier exchanges that have come since, and drop them."""
    if not overdue:
        return
    if limit := getattr(grid, "limit_pull", None):
        limit(1.0)  # of a reply that is still being sent
    for message in grid.pull_messages(list(overdue)):
        request = overdue.pop(message.metadata.reply_to_message_id, None)
        if request and not message.has_error():
            log(WARNING, request.warning(message.metadata.created_at))


def take(message: Message, node: int, client: int | None, read: Read, outcome: Outcome) -> None:
    """Record one reply, or the reason why it is refused."""
    who = node if client is None else client
    if message.has_error():
        code = message.error.code
        kind = (
            Kind.NO_REPLY
            if code in _GONE
            else Kind.DECLINED
            if code == DECLINED
            else Kind.ERROR
        )
        why = _REASONS.get(code) or message.error.reason or f"error {code}"
        outcome.fail(who, sanitize(why, 1000), kind)
        return
    try:
        outcome.replies.append(read(message, client))
        outcome.groups.update(
            {group: record_bytes(record) for group, record in message.content.items()}
        )
    except FedGraphError as error:
        kind = Kind.DECLINED if isinstance(error, Refusal) else Kind.INVALID
        outcome.fail(who, sanitize(error, 1000), kind)
        outcome.groups[REFUSED] += sum(
            len(array.data)
            for record in message.content.array_records.values()
            for array in record.values()
        )


def failure_lines(failures: Mapping[int, str], known: Set[int]) -> list[str]:
    """Return one line per reason, with the clients that failed for it (nodes, if not ``known``), at most `NAMED` of them."""
    groups: dict[tuple[str, str], list[int]] = {}
    for who, reason in failures.items():
        kind = "client" if who in known else "node"
        groups.setdefault((kind, reason.removeprefix(f"client {who} ")), []).append(who)
    lines = []
    for (kind, reason), clients in groups.items():
        named = ", ".join(map(str, clients[:NAMED])) + (
            f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
        )
        plural = len(clients) > 1
        lines.append(
            f"{kind}{'s' * plural} {named} failed: {reason if plural else failures[clients[0]]}"
        )
    return lines


def _bytes_of(messages: list[Message]) -> int:
    """Return the bytes of all messages; records that messages share are measured once."""
    sizes: dict[int, int] = {}
    records = [record for message in messages for record in message.content.values()]
    return sum(sizes.get(id(r)) or sizes.setdefault(id(r), record_bytes(r)) for r in records)
