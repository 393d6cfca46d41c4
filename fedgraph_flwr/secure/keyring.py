"""Authenticity of public keys that a server relays: signatures, pinned keys, and a fingerprint to compare by telephone.

Clients draw keys for a run or a round (`fedgraph_flwr.secure.sealed`, `secagg`) and receive each other's through the server. A
malicious server could distribute its own keys and read sealed content. A party sets in its ``--node-config``

    key=FILE       its long-lived key, EC P-384 in OpenSSH's format; the SuperNode's key can be used
    peers=FOLDER   the others' public keys, received by another channel: ``node_3.pub`` is client 3's

With ``key`` a client signs (ECDSA, SHA-384) the keys it publishes, together with the run, the exchange and its index. With
``peers`` it refuses every key that is not signed by the one pinned for that client. Without either it accepts all keys, and logs
a fingerprint: parties with equal fingerprints of an exchange received the same keys, including each other's.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField

SIGNATURE = "signature"
"""Signature of a published key: r and s, 96 bytes."""

SIGNATURES = "signatures"
"""Group: signatures of all clients that sign, by client; travels with the keys that a server relays."""

SIGNATURE_FIELD = {SIGNATURE: ArrayField((96,), "uint8", optional=True)}

_HALF = 48  # bytes of r, and of s
_DIGITS, _GROUP = 40, 5
"""A fingerprint has 132 bits; two lists of keys with the same fingerprint take 2^66 hashes to find."""


class Keyring:
    """A client's long-lived key and the pinned keys of others, with which it signs and verifies short-lived ones.

    Args:
        client: index of the client.
        run: DIGEST/NUMBER of an agreed run, else Flower's run id; signatures of other runs are invalid.
        key: its long-lived key; None: no signatures.
        pins: the others' keys by client; None: all keys are accepted.
        report: receives each fingerprint, with its exchange and clients.
        names: of the other members of an agreement, by client: its name, a slash, and the member's.
    """

    def __init__(
        self,
        client: int,
        run: int | str = 0,
        key: EllipticCurvePrivateKey | None = None,
        pins: Mapping[int, EllipticCurvePublicKey] | None = None,
        report: Callable[[str, str, list[int]], None] | None = None,
        names: Mapping[int, str] | None = None,
    ):
        self.client, self.run, self.private_key, self.pins, self.report = client, run, key, pins, report
        self.names = names or {}

    def key_of(self, client: int) -> EllipticCurvePublicKey | None:
        """Return the long-lived public key of a client, as far as this one knows it."""
        return (
            self.private_key.public_key()
            if client == self.client and self.private_key
            else (self.pins or {}).get(client)
        )

    def sign(self, exchange: str, key: bytes) -> Arrays:
        """Return the signature that travels with a published key, if this client signs."""
        if self.private_key is None:
            return {}
        r, s = decode_dss_signature(self.private_key.sign(self._statement(exchange, self.client, key), ECDSA(SHA384())))
        return {SIGNATURE: np.frombuffer(r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big"), np.uint8)}

    def check(self, exchange: str, own_key: bytes, keys: Mapping[int, bytes], signatures: Mapping[str, Any]) -> None:
        """Refuse relayed keys that are provably not their owners', and report their fingerprint.

        Args:
            exchange: the exchange in which they were published.
            own_key: the key that this client published.
            keys: the published keys by client, according to the server.
            signatures: their signatures, by client.

        Raises:
            RunFailed: this client's own key was replaced, or a key is not signed by its client's pinned key.
        """
        if keys.get(self.client) != own_key:
            raise RunFailed(
                f"client {self.client} received a list of keys in which its own differs: the server replaced it; start a new run"
            )
        if self.report:
            self.report(exchange, fingerprint(self.run, exchange, keys), sorted(keys))
        for peer in sorted(set(keys) - {self.client}) if self.pins is not None else ():
            if problem := self.unproven(exchange, peer, keys[peer], signatures.get(str(peer))):
                raise RunFailed(f"client {self.client} received a public key of client {peer} ({exchange}) {problem}")

    def unproven(self, exchange: str, peer: int, key: bytes, signature: NDArray[np.uint8] | None) -> str:
        """Return why a relayed key is not provably its owner's, as the end of an error; empty if it is."""
        if (pinned := self.key_of(peer)) is None:
            return f"that peers= of its --node-config does not pin: expected a file node_{peer}.pub"
        if signature is None:
            return "that is not signed: start that party's node with key= in its --node-config"
        raw = signature.tobytes()
        dss = encode_dss_signature(int.from_bytes(raw[:_HALF], "big"), int.from_bytes(raw[_HALF:], "big"))
        try:
            pinned.verify(dss, self._statement(exchange, peer, key), ECDSA(SHA384()))
        except InvalidSignature:
            return (
                "without a valid signature of the pinned key for this run: the server, or whoever replies as client"
                f" {peer}, replaced it"
            )
        return ""

    def _statement(self, exchange: str, client: int, key: bytes) -> bytes:
        return f"fedgraph key\n{self.run}\n{exchange}\n{client}\n".encode() + key


def fingerprint(run: int | str, exchange: str, keys: Mapping[int, bytes]) -> str:
    """Return eight groups of five digits over the keys of all clients."""
    listed = json.dumps(["fedgraph keys", run, exchange, {c: keys[c].hex() for c in sorted(keys)}])
    digits = str(int.from_bytes(sha256(listed.encode()).digest(), "big") % 10**_DIGITS).zfill(_DIGITS)
    return " ".join(digits[i : i + _GROUP] for i in range(0, _DIGITS, _GROUP))


def signatures(replies: Iterable[Reply], group: str) -> dict[str, Arrays]:
    """Return the group that relays the clients' signatures; empty if no client signs."""
    arrays = {str(r.client): r.groups[group][SIGNATURE] for r in replies if SIGNATURE in r.groups[group]}
    return {SIGNATURES: arrays} if arrays else {}


def read_key(path: str) -> EllipticCurvePrivateKey:
    """Read a party's own key.

    Raises:
        FedGraphError: the file does not exist, or contains no EC P-384 key in OpenSSH's format.
    """
    where = f"key={path} of --node-config"
    key: EllipticCurvePrivateKey = _load(Path(path).expanduser(), EllipticCurvePrivateKey, where)
    return key


def read_pins(path: str) -> dict[int, EllipticCurvePublicKey]:
    """Read the public keys in a folder, by the number at the end of a file's name.

    Raises:
        FedGraphError: there is none, one client has two, or one is not an EC P-384 key in OpenSSH's format.
    """
    pins: dict[int, EllipticCurvePublicKey] = {}
    for file in sorted(Path(path).expanduser().glob("*.pub")):
        if not (match := re.search(r"(\d+)$", file.stem)):
            continue
        key = _load(file, EllipticCurvePublicKey, f"{file.name} in peers={path} of --node-config")
        if pins.setdefault(int(match[1]), key) is not key:
            raise FedGraphError(f"peers={path} of --node-config has two keys of client {int(match[1])}: remove one")
    if not pins:
        raise FedGraphError(f"peers={path} of --node-config has no public key: expected files like node_0.pub")
    return pins


def _load(path: Path, kind: type[EllipticCurvePrivateKey | EllipticCurvePublicKey], what: str) -> Any:
    key: Any = None
    private = kind is EllipticCurvePrivateKey
    try:
        raw = path.read_bytes()
        with contextlib.suppress(
            Exception
        ):  # of the parser: ValueError, UnsupportedAlgorithm, TypeError for a passphrase
            key = load_ssh_private_key(raw, None) if private else load_ssh_public_key(raw)
    except OSError as error:
        raise FedGraphError(f"{what} cannot be read: {error.strerror}") from error
    if not (isinstance(key, kind) and isinstance(key.curve, SECP384R1)):
        which = "private" if private else "public"
        raise FedGraphError(f"{what} is not a {which} EC P-384 key in OpenSSH's format without a passphrase")
    return key
