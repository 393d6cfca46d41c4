"""Envelopes between clients that the server relays and cannot read.

Every client draws an X25519 key pair for the run and publishes the public half through the server; two clients derive one
key for each direction (HKDF-SHA256 over the agreed secret, bound to both public keys and both names) and seal with
ChaCha20-Poly1305 under a random nonce. Sender, receiver and step are authenticated with the content, and each envelope can
be opened once: what is altered, re-addressed or sent again in another step is refused.

Threat model: an honest-but-curious server. It follows the protocol, keeps all it relays, and learns who wrote to whom, when,
and how many bytes, but no content. A server that lies may hand out public keys of its own and read everything in between:
against that, clients sign and pin (`fedgraph_flwr.secure.keyring`). Clients are trusted with what they
receive; what a message reveals to its addressee is the method's matter, not the envelope's.
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
        private: its X25519 private key, 32 bytes; drawn anew when missing.

    Attributes:
        peers: the other clients' public keys.
    """

    def __init__(self, client: int, private: bytes | None = None):
        self.client = client
        self._key = X25519PrivateKey.from_private_bytes(private) if private else X25519PrivateKey.generate()
        self.peers: dict[int, bytes] = {}
        self._agreed: dict[
            int, bytes
        ] = {}  # secrets shared with peers: a key agreement costs as much as many envelopes
        self._opened: set[tuple[int, str]] = set()

    @property
    def private(self) -> bytes:
        """The private key; it may be stored by this client and must not travel."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def meet(self, peers: Mapping[int, bytes]) -> None:
        """Learn the public keys of the clients; the own one is passed over."""
        self.peers = {client: bytes(key) for client, key in peers.items() if client != self.client}
        self._agreed = {}

    def seal(self, receiver: int, step: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Seal named arrays for one client and one step; the envelope as bytes [B]."""
        nonce = os.urandom(NONCE)
        content = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        sealed = self._cipher(self.client, receiver).encrypt(nonce, content, _bound(self.client, receiver, step))
        return np.frombuffer(nonce + sealed, np.uint8)

    def open(self, sender: int, step: str, envelope: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Open what ``sender`` sealed for this client and step.

        Raises:
            RunFailed: the envelope was altered, is meant for another client, sender or step, or was opened before.
        """
        if (sender, step) in self._opened:
            raise RunFailed(f"client {self.client} was given a second envelope of client {sender} for step '{step}'")
        raw = envelope.tobytes()
        try:
            content = self._cipher(sender, self.client).decrypt(
                raw[:NONCE], raw[NONCE:], _bound(sender, self.client, step)
            )
            arrays = load(content)
        except (InvalidTag, ValueError, SafetensorError) as error:
            raise RunFailed(
                f"client {self.client} cannot open the envelope of client {sender} for step '{step}':"
                " it was altered, or sealed for another client, step or run"
            ) from error
        self._opened.add((sender, step))
        return arrays

    def stream(self, peer: int, step: str, count: int) -> NDArray[np.uint64]:
        """Pseudo-random numbers [count] that this client and ``peer`` draw alike and nobody else can: one draw a step."""
        names = b":".join(str(client).encode() for client in sorted((self.client, peer)))
        keys = b"".join(sorted((self.public, self._key_of(peer))))
        return key_stream(self._derive(peer, b"fedgraph stream" + keys + names + step.encode()), count)

    def _cipher(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        peer = receiver if sender == self.client else sender
        theirs = self._key_of(peer)
        keys = self.public + theirs if sender == self.client else theirs + self.public
        return ChaCha20Poly1305(self._derive(peer, b"fedgraph envelope" + keys + _bound(sender, receiver, "")))

    def _key_of(self, peer: int) -> bytes:
        if peer not in self.peers:
            raise RunFailed(f"client {self.client} has no public key of client {peer}")
        return self.peers[peer]

    def _derive(self, peer: int, info: bytes) -> bytes:
        """A key of 32 bytes for one purpose, from the secret shared with a peer."""
        if peer not in self._agreed:
            try:
                self._agreed[peer] = self._key.exchange(X25519PublicKey.from_public_bytes(self._key_of(peer)))
            except ValueError as error:
                raise RunFailed(f"client {self.client} was given a public key of client {peer} that is none") from error
        return HKDF(SHA256(), 32, salt=None, info=info).derive(self._agreed[peer])


def is_public_key(key: bytes) -> bool:
    """Whether a shared secret can be made with it: with a few points of low order none can."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def key_stream(key: bytes, count: int) -> NDArray[np.uint64]:
    """Pseudo-random numbers [count] of a key of 32 bytes that serves nothing else: ChaCha20 over zeros."""
    cipher = Cipher(ChaCha20(key, bytes(16)), None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def _bound(sender: int, receiver: int, step: str) -> bytes:
    return f"{sender}>{receiver}:{step}".encode()
