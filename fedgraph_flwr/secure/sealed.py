"""Envelopes between clients that the server relays and cannot read.

Every client draws an X25519 key pair for the run and publishes the public half through the server. Two clients derive one key
for each direction, by HKDF-SHA256 over the agreed secret, bound to both public keys and both names. They seal with
ChaCha20-Poly1305 under a random nonce. Sender, receiver and step are authenticated with the content, and each envelope can be
opened once. An envelope that was altered, re-addressed or replayed in another step is refused.

Threat model: an honest-but-curious server. It follows the protocol, stores everything it relays, and learns who wrote to whom,
when, and how many bytes, but no content. A malicious server could distribute its own public keys and read the content. Clients
prevent that by signing and pinning keys (`fedgraph_flwr.secure.keyring`). Clients are trusted with the messages addressed to
them; what a message reveals to its receiver depends on the method, not on the envelope.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedgraph_flwr.errors import RunFailed

NONCE = 12  # bytes
OVERHEAD = NONCE + 16  # bytes an envelope adds to its content: nonce and authentication tag


class Sealer:
    """One client's end of all its sealed channels.

    Args:
        client: this client's index.
        private: its X25519 private key, 32 bytes; default: a new one.

    Attributes:
        peers: the other clients' public keys.
    """

    def __init__(self, client: int, private: bytes | None = None):
        self.client = client
        self._key = X25519PrivateKey.from_private_bytes(private) if private else X25519PrivateKey.generate()
        self.peers: dict[int, bytes] = {}
        # secrets shared with peers: a key agreement costs as much as many envelopes
        self._agreed: dict[int, bytes] = {}
        self._opened: set[tuple[int, str]] = set()

    @property
    def private(self) -> bytes:
        """The private key; this client may store it, but it must never travel."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def meet(self, peers: Mapping[int, bytes]) -> None:
        """Store the public keys of the other clients; this client's own is ignored."""
        self.peers = {client: bytes(key) for client, key in peers.items() if client != self.client}
        self._agreed = {}

    def seal(self, receiver: int, step: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Seal named arrays for one client and one step, and return the envelope as bytes [B]."""
        nonce = os.urandom(NONCE)
        content = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        sealed = self._cipher(self.client, receiver).encrypt(nonce, content, _bound(self.client, receiver, step))
        return np.frombuffer(nonce + sealed, np.uint8)

    def open(self, sender: int, step: str, envelope: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Open an envelope that ``sender`` sealed for this client and step.

        Raises:
            RunFailed: it was altered, is for another client, sender or step, or was opened before.
        """
        if (sender, step) in self._opened:
            raise RunFailed(f"client {self.client} received a second envelope of client {sender} for step '{step}'")
        raw = envelope.tobytes()
        try:
            bound = _bound(sender, self.client, step)
            arrays = load(self._cipher(sender, self.client).decrypt(raw[:NONCE], raw[NONCE:], bound))
        except (InvalidTag, ValueError, SafetensorError) as error:
            raise RunFailed(
                f"client {self.client} cannot open the envelope of client {sender} for step '{step}':"
                " it was altered, or sealed for another client, step or run"
            ) from error
        self._opened.add((sender, step))
        return arrays

    def stream(self, peer: int, step: str, count: int) -> NDArray[np.uint64]:
        """Return pseudo-random numbers [count] that only this client and ``peer`` can draw; use each step once."""
        names = b":".join(str(client).encode() for client in sorted((self.client, peer)))
        keys = b"".join(sorted((self.public, self._key_of(peer))))
        return key_stream(self._derive(peer, b"fedgraph stream" + keys + names + step.encode()), count)

    def _cipher(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        peer = receiver if sender == self.client else sender
        remote = self._key_of(peer)
        keys = self.public + remote if sender == self.client else remote + self.public
        return ChaCha20Poly1305(self._derive(peer, b"fedgraph envelope" + keys + _bound(sender, receiver, "")))

    def _key_of(self, peer: int) -> bytes:
        if peer not in self.peers:
            raise RunFailed(
                f"client {self.client} received no public key of client {peer}, which it needs to encrypt for it"
            )
        return self.peers[peer]

    def _derive(self, peer: int, info: bytes) -> bytes:
        """Derive a key of 32 bytes for one purpose, from the secret shared with a peer."""
        if peer not in self._agreed:
            try:
                self._agreed[peer] = self._key.exchange(X25519PublicKey.from_public_bytes(self._key_of(peer)))
            except ValueError as error:
                raise RunFailed(
                    f"client {self.client} received an invalid public key of client {peer}: expected X25519"
                ) from error
        return derived(self._agreed[peer], info)


def is_public_key(key: bytes) -> bool:
    """Return whether a shared secret can be derived with a key; a few points of low order are invalid."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def derived(secret: bytes, info: bytes) -> bytes:
    """Derive a key of 32 bytes for one purpose from a secret, by HKDF."""
    return HKDF(SHA256(), 32, salt=None, info=info).derive(secret)


def key_stream(key: bytes, count: int) -> NDArray[np.uint64]:
    """Return pseudo-random numbers [count] from a key of 32 bytes without other uses: ChaCha20 over zeros."""
    cipher = Cipher(ChaCha20(key, bytes(16)), None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def _bound(sender: int, receiver: int, step: str) -> bytes:
    return f"{sender}>{receiver}:{step}".encode()
