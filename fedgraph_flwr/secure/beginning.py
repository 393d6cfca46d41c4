"""The beginning of an agreed run: its seed follows from the nonces of all members, so that nobody can search for one.

    start_commit   up: a commitment to a nonce of 32 bytes, signed by the member's key for this run
    start_open     down: all commitments with their signatures     up: the nonce
    start_begin    down: all nonces

    seed = H(digest of the agreement, number of the run, client → nonce)

The last `LAST` bytes of a nonce are the number of the member's last run before: others refuse one that they have seen in a later
run, whose state folder is from a back-up.

A node draws its nonce once per run, and opens it for one list of commitments only: a server that repeats the beginning gets the
same seed, and one that changes the list is refused. Another number of a run gives another seed, and uses up all numbers before.
A coordinator that colludes with a member knows the seed before it goes on, and may discard it: at most ``runs`` times.

Batches, walks and dropout follow from a secret of each node instead (`own_seed`), which nobody else can compute.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema

COMMIT, OPEN, BEGIN = "start_commit", "start_open", "start_begin"
BEGINNING = (COMMIT, OPEN, BEGIN)
START = "start"
"""Group of arrays of these phases."""

CLIENTS, COMMITMENT, COMMITMENTS, NONCE, NONCES = "clients", "commitment", "commitments", "nonce", "nonces"
SUBJECT = f"{COMMIT} 0 0"
"""Subject of the signature of a commitment (`fedgraph_flwr.secure.keyring`)."""

BYTES, LAST = 32, 4
_FIELD = ArrayField((BYTES,), "uint8")
_BITS = 63


def schema(phase: str) -> ReplySchema:
    """Return the schema of a reply."""
    fields: dict[str, dict[str, ArrayField]] = {
        COMMIT: {COMMITMENT: _FIELD, **SIGNATURE_FIELD},
        OPEN: {NONCE: _FIELD},
    }
    return ReplySchema({START: fields[phase]} if phase in fields else {})


def commitment(run: str, client: int, nonce: bytes) -> bytes:
    """Return the commitment of a client to its nonce in a run, DIGEST/NUMBER."""
    return hashlib.sha256(f"fedgraph nonce\n{run}\n{client}\n".encode() + nonce).digest()


def seed_of(run: str, nonces: Mapping[int, bytes]) -> int:
    """Return the seed of a run, below 2^63."""
    listed: list[Any] = ["fedgraph seed", run, {str(client): nonces[client].hex() for client in sorted(nonces)}]
    return _number(hashlib.sha256(json.dumps(listed).encode()).digest())


def own_seed(run: str, secret: bytes) -> int:
    """Return the seed of a member's own draws in a run, below 2^63."""
    return _number(hmac.digest(secret, f"fedgraph own seed\n{run}".encode(), "sha256"))


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big") >> (8 * len(raw) - _BITS)
