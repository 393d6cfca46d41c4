"""The server's part at the beginning of an agreed run (`fedgraph_flwr.secure.beginning`): it relays, and computes the seed.

The run's folder keeps commitments, signatures and nonces, from which a resumed run begins.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, RunFailed
from fedgraph_flwr.secure.beginning import (
    BEGIN,
    CLIENTS,
    COMMIT,
    COMMITMENT,
    COMMITMENTS,
    NONCE,
    NONCES,
    OPEN,
    START,
    commitment,
    seed_of,
)
from fedgraph_flwr.secure.keyring import SIGNATURE, SIGNATURES
from fedgraph_flwr.strategies.base import GraphStrategy

FILE = "beginning.json"
"""File of a run's folder: client → commitment, signature and nonce."""


def begin(server: GraphStrategy) -> None:
    """Begin an agreed run, and set its seed.

    Raises:
        RunFailed: a member does not take part, or gives itself another weight, or the file of the run that is resumed is damaged.
    """
    clients, agreed = list(server.clients), server.cfg.weights
    for client, size in (
        zip(clients, server.counting.sizes("num_train", clients), strict=True) if agreed else ()
    ):
        if not server.counting.private and size != agreed[client]:
            raise RunFailed(
                f"client {client} counts as {size:g} in means, and members agreed on {agreed[client]}: its node runs other code"
            )
    path = Path(server.cfg.out) / FILE
    began = bool(server.cfg.resume) and path.is_file()
    if began:
        try:
            parts = {
                int(client): values for client, values in json.loads(path.read_bytes()).items()
            }
            nonces = {client: bytes.fromhex(values[NONCE]) for client, values in parts.items()}
        except MALFORMED as error:
            raise RunFailed(f"{path} is not the beginning of this run: restore it") from error
    else:
        parts, nonces = _opened(server)
        text = {
            str(client): values | {NONCE: nonces[client].hex()}
            for client, values in parts.items()
        }
        write_bytes(path, json.dumps(text).encode())
    present = [client for client in nonces if client in server.clients]
    replies = server.request(BEGIN, {START: _group(nonces, NONCES)}, present)
    if not began:  # else members have the seed, and one may be down
        _all_replied(server, BEGIN, {reply.client for reply in replies}, present)
    server.cfg.seed = seed_of(server.cfg.agreement, nonces)


def _opened(server: GraphStrategy) -> tuple[dict[int, dict[str, Any]], dict[int, bytes]]:
    """Return commitments with their signatures, and nonces, by client."""
    replies = server.request(COMMIT).replies
    _all_replied(server, COMMIT, {reply.client for reply in replies}, list(server.clients))
    parts = {
        reply.client: {
            name: reply.groups[START][name].tobytes().hex() for name in (COMMITMENT, SIGNATURE)
        }
        for reply in replies
    }
    commitments = {
        client: bytes.fromhex(values[COMMITMENT]) for client, values in parts.items()
    }
    signed = {str(reply.client): reply.groups[START][SIGNATURE] for reply in replies}
    down = {START: _group(commitments, COMMITMENTS), SIGNATURES: signed}
    opened = server.request(OPEN, down, list(parts)).replies
    nonces = {reply.client: reply.groups[START][NONCE].tobytes() for reply in opened}
    _all_replied(server, OPEN, set(nonces), list(parts))
    for client, nonce in nonces.items():
        if commitment(server.cfg.agreement, client, nonce) != commitments[client]:
            raise RunFailed(
                f"the run does not begin ({OPEN}): client {client} opened another nonce than it committed to"
            )
    return parts, nonces


def _group(values: dict[int, bytes], name: str) -> dict[str, np.ndarray]:
    rows = [np.frombuffer(value, np.uint8) for value in values.values()]
    return {CLIENTS: np.array(list(values), np.int64), name: np.stack(rows)}


def _all_replied(
    server: GraphStrategy, phase: str, replied: set[int], wanted: list[int]
) -> None:
    missing = sorted(set(wanted) - replied)
    if missing:
        why = server.failed.get(missing[0], "no valid reply")
        raise RunFailed(f"the run does not begin ({phase}): client {missing[0]}: {why}")
