"""Whose public keys those are that a server relays: signatures, pinned keys, and a fingerprint to compare by telephone.

Clients draw keys for a run or a round (`fedgraph_flwr.secure.sealed`, `secagg`) and learn each other's through the server, which
could hand out its own and read what is sealed. A party says in its ``--node-config``

    key=FILE       its own long-lived key, EC P-384 in OpenSSH's format: the SuperNode's own will do
    peers=FOLDER   the others' public keys, which it was given by another channel: ``node_3.pub`` is client 3's

With ``key`` a client signs (ECDSA, SHA-384) what it publishes, together with the run, the exchange and its index. With ``peers``
it takes nobody's key that is not signed by the one pinned for that client. Without either it takes what comes, and its log
tells a fingerprint: parties whose fingerprints of an exchange are equal were told the same keys, each other's own among them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
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
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, Hash
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField

SIGNATURE = "signature"
"""Beside a published key: r and s, 96 bytes."""

SIGNATURES = "signatures"
"""Group: those of all clients that sign, by client, beside the keys that a server relays."""

SIGNATURE_FIELD = {SIGNATURE: ArrayField((96,), "uint8", optional=True)}

_HALF = 48  # bytes of r, and of s
_DIGITS, _GROUP = 40, 5  # of a fingerprint: 132 bits; to find two lists of keys that share one takes 2^66 hashes


class Keyring:
    """What a client knows of keys that outlive a run, and what it says of those that do not.

    Args:
        client: its index.
        run: Flower's id of the run: no signature counts in another.
        own: its long-lived key; None signs nothing.
        pins: the others' by client; None takes every key.
        tell: is given each fingerprint, with the exchange and the clients it is of.
    """

    def __init__(
        self,
        client: int,
        run: int = 0,
        own: EllipticCurvePrivateKey | None = None,
        pins: Mapping[int, EllipticCurvePublicKey] | None = None,
        tell: Callable[[str, str, list[int]], None] | None = None,
    ):
        self.client, self.run, self.own, self.pins, self.tell = client, run, own, pins, tell

    def sign(self, exchange: str, key: bytes) -> Arrays:
        """What goes beside a key that is published: a signature, or nothing."""
        if self.own is None:
            return {}
        r, s = decode_dss_signature(self.own.sign(self._statement(exchange, self.client, key), ECDSA(SHA384())))
        return {SIGNATURE: np.frombuffer(r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big"), np.uint8)}

    def check(self, exchange: str, own: bytes, keys: Mapping[int, bytes], signatures: Mapping[str, Any]) -> None:
        """Refuse relayed keys that are not their owners', as far as this client can tell, and tell their fingerprint.

        Args:
            exchange: in which they were published.
            own: what this client published.
            keys: what the server says was published, by client.
            signatures: of them, by client.

        Raises:
            RunFailed: another key stands for this client's own, or one is not signed by its client's pinned key.
        """
        if keys.get(self.client) != own:
            raise RunFailed(f"client {self.client} was sent a list of keys in which its own is not as it published it")
        if self.tell:
            self.tell(exchange, fingerprint(self.run, exchange, keys), sorted(keys))
        if self.pins is not None:
            for peer in sorted(set(keys) - {self.client}):
                self._check(exchange, peer, keys[peer], signatures.get(str(peer)))

    def _check(self, exchange: str, peer: int, key: bytes, signature: NDArray[np.uint8] | None) -> None:
        told = f"client {self.client} was sent a public key of client {peer} ({exchange})"
        pinned = (self.pins or {}).get(peer)
        if pinned is None:
            raise RunFailed(f"{told}, for which peers= of its --node-config has none: expected a file node_{peer}.pub")
        if signature is None:
            raise RunFailed(f"{told} that is not signed: expected key= in that party's --node-config")
        raw = signature.tobytes()
        dss = encode_dss_signature(int.from_bytes(raw[:_HALF], "big"), int.from_bytes(raw[_HALF:], "big"))
        try:
            pinned.verify(dss, self._statement(exchange, peer, key), ECDSA(SHA384()))
        except InvalidSignature as error:
            raise RunFailed(
                f"{told} that is not signed for this run by the key pinned for it: the server, or whoever answers as "
                f"client {peer}, made it"
            ) from error

    def _statement(self, exchange: str, client: int, key: bytes) -> bytes:
        return f"fedgraph key\n{self.run}\n{exchange}\n{client}\n".encode() + key


def fingerprint(run: int, exchange: str, keys: Mapping[int, bytes]) -> str:
    """Eight groups of five digits over the keys of all clients."""
    digest = Hash(SHA256())
    digest.update(json.dumps(["fedgraph keys", run, exchange, {c: keys[c].hex() for c in sorted(keys)}]).encode())
    digits = str(int.from_bytes(digest.finalize(), "big") % 10**_DIGITS).zfill(_DIGITS)
    return " ".join(digits[i : i + _GROUP] for i in range(0, _DIGITS, _GROUP))


def signatures(replies: Iterable[Reply], group: str) -> dict[str, Arrays]:
    """The group that relays the signatures in a group of the answers; nothing where nobody signs."""
    found = {str(r.client): r.groups[group][SIGNATURE] for r in replies if SIGNATURE in r.groups[group]}
    return {SIGNATURES: found} if found else {}


def read_key(path: str) -> EllipticCurvePrivateKey:
    """A party's own key.

    Raises:
        FedGraphError: there is no such file, or it holds no EC P-384 key in OpenSSH's format.
    """
    key = _load(Path(path).expanduser(), load_ssh_private_key, f"key={path} of --node-config", None)
    if not (isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP384R1)):
        raise FedGraphError(f"key={path} of --node-config holds no private EC P-384 key")
    return key


def read_pins(path: str) -> dict[int, EllipticCurvePublicKey]:
    """The public keys in a folder, by the number that ends a file's name.

    Raises:
        FedGraphError: there is none, two are one client's, or one is no EC P-384 key in OpenSSH's format.
    """
    pins: dict[int, EllipticCurvePublicKey] = {}
    for file in sorted(Path(path).expanduser().glob("*.pub")):
        if not (found := re.search(r"(\d+)$", file.stem)):
            continue
        key = _load(file, load_ssh_public_key, f"{file.name} in peers={path} of --node-config")
        if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
            raise FedGraphError(f"{file.name} in peers={path} of --node-config holds no public EC P-384 key")
        if pins.setdefault(int(found[1]), key) is not key:
            raise FedGraphError(f"peers={path} of --node-config has two keys of client {int(found[1])}")
    if not pins:
        raise FedGraphError(f"peers={path} of --node-config has no public key: expected files like node_0.pub")
    return pins


def _load(path: Path, read: Callable[..., Any], what: str, *more: Any) -> Any:
    try:
        return read(path.read_bytes(), *more)
    except OSError as error:
        raise FedGraphError(f"{what} cannot be read: {error.strerror}") from error
    except Exception as error:  # of the parser: ValueError, UnsupportedAlgorithm, TypeError for a passphrase
        raise FedGraphError(f"{what} holds no EC P-384 key in OpenSSH's format without a passphrase") from error
