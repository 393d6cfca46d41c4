"""A member's replies at the beginning of an agreed run (`fedgraph_flwr.secure.beginning`), and its record of them.

The record is in the state folder, in the file that counts runs, and is written under its lock before a reply leaves.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.errors import MALFORMED, FedGraphError, Refusal
from fedgraph_flwr.fleet.agreements import ALLOWED, Agreement, Refused, changing
from fedgraph_flwr.secure.beginning import (
    BEGIN,
    BYTES,
    CLIENTS,
    COMMIT,
    COMMITMENT,
    COMMITMENTS,
    LAST,
    NONCE,
    NONCES,
    START,
    SUBJECT,
    commitment,
    own_seed,
    seed_of,
)
from fedgraph_flwr.secure.keyring import SIGNATURES, Keyring, read_key
from fedgraph_flwr.secure.secagg import threshold
from fedgraph_flwr.wire.messages import Arrays


class Beginning:
    """What a node knows of the beginning of a run.

    Args:
        agreement: the run's agreement.
        run: DIGEST/NUMBER.
        state: the node's state folder.
        key: file of the node's key.
    """

    def __init__(self, agreement: Agreement, run: str, state: Path, key: str):
        self.agreement, self.run, self.state = agreement, run, state
        private_key = read_key(key)
        known = [
            client for client, pin in agreement.pins.items() if pin == private_key.public_key()
        ]
        if not known:
            raise FedGraphError(
                "key= of --node-config is no member's key of the agreement: start the node with --key of it"
            )
        self.client = known[0]
        self.keyring = Keyring(self.client, run, private_key, agreement.pins)

    @cached_property
    def seeds(self) -> tuple[int, int] | None:
        """The run's seed and that of the member's own draws; None: the run has not begun here."""
        with self._record() as (_, start, secret):
            seed = start.get("seed")
        return None if seed is None else (int(seed), own_seed(self.run, secret))

    def reply(self, phase: str, groups: dict[str, Arrays]) -> dict[str, Arrays]:
        """Reply to a phase of the beginning; a repeated request gets the same reply.

        Raises:
            FedGraphError: the list lacks a member or is not the first one, or a signature or a nonce is wrong.
        """
        with self._record() as (record, start, _):
            if "nonce" not in start and int(self._number) <= int(record.get("known", 0)):
                raise Refusal(
                    f"run {self._number} is used up: this node's owner confirmed it, from a back-up without its beginning"
                )
            nonce = bytes.fromhex(start.setdefault("nonce", self._drawn(record)))
            own_commitment = commitment(self.run, self.client, nonce)
            if phase == COMMIT:
                record["last"] = max(record["last"], int(self._number))
                return {
                    START: {
                        COMMITMENT: _array(own_commitment),
                        **self.keyring.sign(SUBJECT, own_commitment),
                    }
                }
            if phase == BEGIN:
                start["seed"] = self._seed(groups[START], start, record)
                return {}
            given = self._by_client(groups[START], COMMITMENTS)
            self._check_list(list(given))
            self.keyring.check(SUBJECT, own_commitment, given, groups.get(SIGNATURES, {}))
            listed = {str(client): value.hex() for client, value in given.items()}
            if start.setdefault("commitments", listed) != listed:
                raise Refusal(
                    f"run {self._number} has begun with other commitments: a node opens its nonce for one list only"
                )
            return {START: {NONCE: _array(nonce)}}

    def keep_tables(self, digest: str) -> None:
        """Keep the digest of the node's graph, whose change two sums with the same draws would show.

        Raises:
            Refusal: the run began with another graph.
        """
        with self._record() as (_, start, _):
            if start.setdefault("tables", digest) != digest:
                raise Refusal(
                    f"run {self._number} began here with other tables: two sums of one run would show what changed;"
                    " start the next run"
                )

    def _drawn(self, record: dict[str, Any]) -> str:
        """Return a new nonce, whose end is the member's last run before."""
        began = [int(number) for number, start in record["starts"].items() if "nonce" in start]
        last = max(
            [
                int(record.get("known", 0)),
                *(number for number in began if number < int(self._number)),
            ]
        )
        return secrets.token_hex(BYTES - LAST) + last.to_bytes(LAST, "big").hex()

    def _seed(self, group: Arrays, start: dict[str, Any], record: dict[str, Any]) -> int:
        """Return the seed that follows from nonces, after checking them."""
        nonces = self._by_client(group, NONCES)
        right = {
            str(client): commitment(self.run, client, nonce).hex()
            for client, nonce in nonces.items()
        }
        if right != (committed := start.get("commitments", {})):
            wrong = sorted(
                client
                for client in right.keys() | committed.keys()
                if right.get(client) != committed.get(client)
            )
            raise Refusal(
                f"run {self._number} begins with nonces that are not those which members committed to:"
                f" of clients {', '.join(wrong)}"
            )
        for number, earlier in record["starts"].items():
            for client in earlier.get("commitments", {}) if int(number) < int(self._number) else ():
                nonce = nonces.get(int(client))
                if nonce and int.from_bytes(nonce[-LAST:], "big") < int(number):
                    raise Refusal(
                        f"the state folder of {self.agreement.members[int(client)]} is older than run {number}, which this node"
                        f" began with it: its owner restores the newer one, or confirms (agree confirm --last {number})"
                    )
        return seed_of(self.run, nonces)

    def _check_list(self, clients: list[int]) -> None:
        """Refuse a list that lacks a member who must not be absent, or its own."""
        members = self.agreement.members
        least = (
            threshold(0.0, len(members))
            if self.agreement.values["absent"] == ALLOWED
            else len(members)
        )
        missing = [name for client, name in members.items() if client not in clients]
        if self.client not in clients or len(clients) < least or not set(clients) <= members.keys():
            raise Refusal(
                f"run {self._number} would begin with {len(clients)} of {len(members)} members, without"
                f" {', '.join(missing) or 'nobody'}: at least {least} are needed (absent: {self.agreement.values['absent']})"
            )

    def _by_client(self, group: Arrays, name: str) -> dict[int, bytes]:
        clients, values = group[CLIENTS], group[name]
        if (
            values.dtype != np.uint8
            or values.shape != (clients.size, BYTES)
            or len(set(clients.tolist())) < clients.size
        ):
            raise Refusal(
                f"the server sent {name} of another form: expected {BYTES} bytes for each client"
            )
        return {int(client): value.tobytes() for client, value in zip(clients, values, strict=True)}

    @property
    def _number(self) -> str:
        return self.run.partition("/")[2]

    @contextmanager
    def _record(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], bytes]]:
        """Yield the agreement's record, the run's start, and the node's secret."""
        try:
            with changing(self.state) as records:
                try:
                    record = records[self.run.partition("/")[0]]
                    start = record.setdefault("starts", {}).setdefault(self._number, {})
                    secret = bytes.fromhex(record.setdefault("secret", secrets.token_hex(BYTES)))
                except MALFORMED as error:
                    raise FedGraphError(
                        "this node's record of agreed runs is damaged: restore agreements.json"
                    ) from error
                yield record, start, secret
        except Refused as error:
            raise FedGraphError(str(error)) from error


def _array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8).copy()
