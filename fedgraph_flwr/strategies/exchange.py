"""One exchange: send messages, collect replies, validate them by their schema, and sort them by client."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.wire.messages import REFUSED, Reply, record_bytes

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

Read = Callable[[Message, int | None], Reply]
"""Returns the reply in a message of a client (None: index not known yet); raises `FedGraphError` if it is invalid."""


@dataclass
class Outcome:
    """Result of one exchange.

    Attributes:
        replies: the valid replies, in client order.
        failures: for each other client (or node, if its client index is not known yet), why it has
            none.
        silent: failed clients whose node did not respond at all, and may be gone.
        down: bytes sent.
        groups: bytes received, by group of the uplink.
        seconds: time from the first message to the last reply.
    """

    replies: list[Reply] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    down: int = 0
    groups: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


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
                outcome.failures[clients.get(node, node)] = f"no reply within {timeout:g} s"
                outcome.silent.add(clients.get(node, node))
            break
        if getattr(grid, "blocks", False):  # polling already waited
            continue
        pause = 0.0 if arrived else min(1.5 * pause + 0.005, 1.0)
        # With a thousand nodes a poll keeps the grid busy, so pause for four times as long as it
        # took.
        time.sleep(max(pause, min(4 * took, 1.0)))
    outcome.seconds = time.perf_counter() - started
    outcome.replies.sort(key=lambda reply: reply.client)
    for line in failure_lines(outcome.failures, set(clients.values())):
        log(WARNING, "%s: %s", name, line)
    return outcome


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


def take(message: Message, node: int, client: int | None, read: Read, outcome: Outcome) -> None:
    """Record one reply, or the reason why it is refused."""
    who = node if client is None else client
    if message.has_error():
        outcome.failures[who] = sanitize(
            message.error.reason or f"error {message.error.code}", 1000
        )
        if message.error.code in _GONE:
            outcome.silent.add(who)
        return
    try:
        outcome.replies.append(read(message, client))
        outcome.groups.update(
            {group: record_bytes(record) for group, record in message.content.items()}
        )
    except FedGraphError as error:
        outcome.failures[who] = sanitize(error, 1000)
        outcome.groups[REFUSED] += sum(
            len(array.data)
            for record in message.content.array_records.values()
            for array in record.values()
        )
