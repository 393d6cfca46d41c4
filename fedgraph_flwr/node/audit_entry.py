"""The line of a node's audit log about a request and its reply."""

import os
from typing import Any

from flwr.app import ConfigRecord, Message

from fedgraph_flwr.errors import sanitize
from fedgraph_flwr.fleet.flower_patches import SIGNERS
from fedgraph_flwr.wire.messages import CONFIG, STARTED_BY, record_bytes


def refused(message: Message, run_id: int, reply: Message, noise: dict[str, Any]) -> dict[str, Any]:
    """Return the line about a refused request, which lists what was booked before."""
    reason = str(reply.error.reason)
    refusal = {"refused": sanitize(reason, 300), "sent": {"error": len(reason)}}
    return _received(message, run_id) | refusal | {"noise": noise}


def began(message: Message, run_id: int, reply: Message) -> dict[str, Any]:
    """Return the line about a request at the beginning of an agreed run."""
    sent = {group: record_bytes(record) for group, record in reply.content.items()}
    return _received(message, run_id) | {"refused": "", "sent": sent}


def answered(
    message: Message, run_id: int, reply: Message, noise: dict[str, Any], strategy: str
) -> dict[str, Any]:
    """Return the line about a request that got its reply, with the releases that were booked."""
    sent = {group: record_bytes(record) for group, record in reply.content.items()}
    outcome = {"strategy": strategy, "noise": noise, "refused": "", "sent": sent}
    return _received(message, run_id) | outcome


def _received(message: Message, run_id: int) -> dict[str, Any]:
    """Return what a message's sender asked for, which may be anything."""
    record = message.content.get(CONFIG)
    scalars = record if isinstance(record, ConfigRecord) else {}
    entry: dict[str, Any] = {"run": str(run_id), "strategy": ""}
    entry["phase"] = sanitize(scalars.get("phase", ""), 60)
    for key in ("round", "exchange"):
        entry[key] = scalars[key] if type(scalars.get(key)) is int else 0
    entry["noise"] = {}
    if who := scalars.get(STARTED_BY):
        entry["operator"] = sanitize(who, 200)
    if signers := os.environ.get(SIGNERS):
        entry["approved"] = sanitize(signers, 300)
    arrays = message.content.array_records.values()
    entry["received"] = sum(len(array.data) for record in arrays for array in record.values())
    return entry
