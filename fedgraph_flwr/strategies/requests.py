"""The messages of one exchange and the groups of arrays that travel with them, and the exchange with its cost."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS
from fedgraph_flwr.strategies.exchange import Outcome, exchange
from fedgraph_flwr.strategies.round import Groups, GroupsFor
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.wire.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    MODEL,
    PROTOCOL,
    SPEAKS,
    TRAIN,
    Reply,
    pack,
    to_record,
)

_TYPES = {TRAIN: MessageType.TRAIN, EVALUATE: MessageType.EVALUATE}


def messages(
    method: Server,
    phase: str,
    clients: list[int],
    groups: GroupsFor,
    scalars: Mapping[str, Any],
    model: ArrayRecord | None = None,
) -> list[Message]:
    """Return one message of a phase per client, counted as an exchange of this round.

    Arrays that all clients receive are encoded once.

    Args:
        method: the strategy.
        phase: name of the phase.
        clients: the receivers.
        groups: groups of arrays, for all clients or by client.
        scalars: further scalars.
        model: shared parameters to send along; a client with its own shared parameters receives
            those instead.
    """
    if phase != DESCRIBE:
        method.round.involve(clients)
    earlier = method.round.begin_exchange(phase)
    record = config_record(method, phase, {**scalars, **({"exchange": earlier} if earlier else {})})
    common, by_client = _split(groups)
    weighted = method.class_weights and phase not in (DESCRIBE, EVALUATE)
    extra = pack({CLASS_WEIGHTS: method.class_weights} if weighted else {})
    extra.update(pack(method.summation.shared_groups(phase)))
    built = []
    for client in clients:
        content = RecordDict()
        if model is not None:
            content[MODEL] = to_record(method.models[client]) if client in method.models else model
        content.update(common if by_client is None else pack(by_client.get(client, {})))
        content.update(extra)
        content[CONFIG] = record
        kind = _TYPES.get(phase, MessageType.QUERY)
        built.append(
            Message(content, dst_node_id=method.clients[client].node_id, message_type=kind)
        )
    return built


def config_record(method: Server, phase: str, scalars: Mapping[str, Any]) -> ConfigRecord:
    """Return the scalars of a message."""
    version = {SPEAKS: PROTOCOL} if phase == DESCRIBE else {}
    return ConfigRecord({"phase": phase, "round": method.server_round, **version, **scalars})


def filing(method: Server) -> dict[str, Any]:
    """Return scalars that make a client store its state after replying, if a checkpoint is due; else none."""
    return (
        {"checkpoint": True, "run": method.recorder.run_name} if method.round.checkpoint_due else {}
    )


def collect(
    method: Server, phase: str, sent: Iterable[Message], timeout: float | None = None
) -> Outcome:
    """Send messages, wait for at most ``timeout`` seconds (default: ``strategy.timeout``), and record the cost."""
    nodes = {info.node_id: index for index, info in method.clients.items()}
    longest = method.cfg.strategy.timeout if timeout is None else timeout
    read = partial(method.read, phase)
    method.summation.sending(phase)
    outcome = exchange(
        method.grid, sent, nodes, read, longest, f"round {method.server_round}, {phase}"
    )
    method.summation.received(phase, outcome)
    method.recorder.exchanged(
        phase, outcome.down, outcome.groups, outcome.seconds, outcome.failures
    )
    method.round.note(outcome)
    return outcome


def enough_replies(method: Server, phase: str, sent: Iterable[Message]) -> list[Reply]:
    """Send messages, wait, and return the valid replies, in client order.

    Raises:
        RunFailed: fewer valid replies than ``strategy.min_clients``, or any failure under
            ``on_failure=fail``.
    """
    outcome = collect(method, phase, sent)
    rules = method.cfg.strategy
    valid = len(outcome.replies)
    if outcome.failures and (rules.on_failure == "fail" or valid < rules.min_clients):
        who, reason = next(iter(outcome.failures.items()))
        raise RunFailed(
            f"round {method.server_round}, {phase}: {valid} of {valid + len(outcome.failures)} clients sent a valid reply, "
            f"expected at least {rules.min_clients} (strategy.min_clients, on_failure={rules.on_failure}); "
            f"client {who}: {reason}"
        )
    return outcome.replies


def with_own(groups: GroupsFor, more: Mapping[int, Groups]) -> dict[int, Groups]:
    """Return the groups of each client in ``more``, extended by its additional ones."""
    common, by_client = _split(groups)
    return {
        client: {**(common if by_client is None else by_client.get(client, {})), **extra}
        for client, extra in more.items()
    }


def _split(groups: GroupsFor) -> tuple[RecordDict, Mapping[int, Groups] | None]:
    """Return the encoded groups for all clients, and the groups by client; None if all clients receive the same."""
    if groups and all(isinstance(key, int) for key in groups):
        return RecordDict(), groups  # type: ignore[return-value]
    return pack(groups), None  # type: ignore[arg-type]
