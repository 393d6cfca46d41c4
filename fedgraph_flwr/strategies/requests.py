"""The messages of one exchange, and the groups of arrays that travel with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedgraph_flwr.methods.labels import CLASS_WEIGHTS
from fedgraph_flwr.wire.messages import CLIPPING, CONFIG, DESCRIBE, EVALUATE, MODEL, TRAIN, pack, to_record

if TYPE_CHECKING:
    from fedgraph_flwr.strategies.base import GraphStrategy

Groups = Mapping[str, Any]
"""Groups that travel: name → named arrays, or a record of them."""

GroupsFor = Groups | Mapping[int, Groups]
"""The same groups for all clients, or groups by client index."""

_TYPES = {TRAIN: MessageType.TRAIN, EVALUATE: MessageType.EVALUATE}


def requests(
    method: GraphStrategy,
    phase: str,
    clients: list[int],
    groups: GroupsFor,
    record: ConfigRecord,
    model: ArrayRecord | None = None,
) -> list[Message]:
    """Return one message of a phase per client; arrays that all clients receive are encoded once.

    Args:
        method: the strategy.
        phase: name of the phase.
        clients: the receivers.
        groups: groups of arrays, for all clients or by client.
        record: the scalars.
        model: shared parameters to send along; a client with its own shared parameters receives those instead.
    """
    common, own = _split(groups)
    if method.class_weights and phase not in (DESCRIBE, EVALUATE):
        extra = pack({CLASS_WEIGHTS: method.class_weights})
    else:
        extra = RecordDict()
    if method.privacy and (norms := method.privacy.norms_for(method.uplink_of.get(phase, {}))):
        extra[CLIPPING] = to_record(norms)
    messages = []
    for client in clients:
        content = RecordDict()
        if model is not None:
            content[MODEL] = to_record(method.models[client]) if client in method.models else model
        content.update(common if own is None else pack(own.get(client, {})))
        content.update(extra)
        content[CONFIG] = record
        kind = _TYPES.get(phase, MessageType.QUERY)
        messages.append(Message(content, dst_node_id=method.clients[client].node_id, message_type=kind))
    return messages


def with_own(groups: GroupsFor, more: Mapping[int, Groups]) -> dict[int, Groups]:
    """Return the groups of each client in ``more``, extended by its additional ones."""
    common, own = _split(groups)
    return {client: {**(common if own is None else own.get(client, {})), **extra} for client, extra in more.items()}


def _split(groups: GroupsFor) -> tuple[RecordDict, Mapping[int, Groups] | None]:
    """Return the encoded groups for all clients, and the groups by client; None if all clients receive the same."""
    if groups and all(isinstance(key, int) for key in groups):
        return RecordDict(), groups  # type: ignore[return-value]
    return pack(groups), None  # type: ignore[arg-type]
