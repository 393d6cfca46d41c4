"""Private set intersection by X25519: which values two parties share, without a list of the others.

    H(v) ∈ curve                     SHA-256 with a counter until the number is a u-coordinate of Curve25519
    a H(v), shuffled and padded      A's masks, b H(w) are B's: commitments cross first, then the masks
    b (a H(v)), in A's order         B's reply to A, and a (b H(w)) A's to B: equal values have equal 16 bytes

A scalar is new for every run and peer, so masks of two runs or two peers have nothing in common. Who only sees masks cannot test
a guess, since that needs the scalar (decisional Diffie-Hellman). A peer can test a guess only by putting it into its own set
before it sees a mask. The commitment fixes the set, and its size is announced and bounded.

Equal values are found by equal replies, and replies prove no knowledge of a value. A peer may send back the other party's, or
commit to points s_j H(w) for a value w that both have, and reply to every mask with s_j times the one that it takes for H(w)'s.
So both parties then prove to each other that they know every shared value, by one key exchange that only works with all of them
(CPace):

    V                   hash of the shared values, each with its length, in the order of the masks of the lower client
    Y = y H'(V)         each sends its point, H' as H with another purpose; y is new in each run and for each V
    K = y Y', hash of K equal at both if both used V; a party that sees the other's hash cannot test guesses, since it cannot
                        compute K for another V than that of its own point

Only on-curve numbers are used, because a random 32-byte number is the u-coordinate of a point on the curve or on its twist. A
mask would preserve which one. That would reveal one bit of each value. X25519's scalars are multiples of 8, so a mask has no
part of small order. Points of small order, whose product is zero, are refused. The package `cryptography` exposes X25519 but no
map to the curve. This module therefore decides by a Jacobi symbol whether a number is on it. It uses nothing else of the
field's arithmetic and no secret in it except the value itself, on the party's own machine.
"""

import hashlib
import importlib.util
import secrets
from collections.abc import Iterable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from fedgraph_flwr.errors import RunFailed

P = 2**255 - 19
A = 486662
POINT, REPLY = 32, 16
"""Bytes of a mask, and of a doubly masked value: 128 bits tell values apart."""

FEWEST = 64
"""Least size of a padded set."""

MANY = 20_000
"""Least number of Jacobi symbols for which numba is loaded: they take a second in Python, as loading does."""

Bytes = NDArray[np.uint8]


def jacobi(a: int, n: int = P) -> int:
    """Return the Jacobi symbol of a number: 1 for a square modulo the prime n, -1 for no square, 0 for 0."""
    sign = 1
    a %= n
    while a:
        twos = (a & -a).bit_length() - 1
        if twos:
            a >>= twos
            if twos & 1 and n & 7 in (3, 5):
                sign = -sign
        if a & n & 3 == 3:
            sign = -sign
        a, n = n % a, a
    return sign if n == 1 else 0


def points(values: Iterable[bytes], purpose: bytes) -> list[bytes]:
    """Return the point of each value, 32 bytes: its first hash that is on the curve (two on average).

    A number u is the coordinate of a point of Curve25519 if v² = u³ + A u² + u has a solution v.
    """
    start = hashlib.sha256(purpose)
    values = list(values)
    coordinates, left = [b""] * len(values), list(range(len(values)))
    for counter in range(256):
        drawn = []
        for place in left:
            digest = start.copy()
            digest.update(values[place])
            digest.update(bytes([counter]))
            drawn.append(int.from_bytes(digest.digest(), "little") % 2**255)
        symbols = _symbols([((u + A) * u + 1) * u % P for u in drawn], len(values))
        rest = []
        for place, u, symbol in zip(left, drawn, symbols, strict=True):
            if u < P and symbol == 1:
                coordinates[place] = u.to_bytes(POINT, "little")
            else:
                rest.append(place)
        if not (left := rest):
            return coordinates
    raise AssertionError("256 hashes off the curve")  # probability 2^-256


def _symbols(numbers: Sequence[int], every: int) -> Iterable[int]:
    """Return the Jacobi symbols of numbers below P, by numba where it is installed and all of them pay for its start."""
    if every < MANY or importlib.util.find_spec("numba") is None:
        return map(jacobi, numbers)
    from fedgraph_flwr.secure import squares_numba

    rows = np.frombuffer(b"".join(u.to_bytes(32, "little") for u in numbers), "<u8").reshape(-1, 4)
    return squares_numba.symbols(rows, np.frombuffer(P.to_bytes(32, "little"), "<u8")).tolist()


def bucket(size: int) -> int:
    """Return the padded size of a set: the next power of two."""
    return max(FEWEST, 1 << max(size - 1, 0).bit_length())


class Mask:
    """One party's secret scalar for one peer and one run.

    Args:
        secret: 32 bytes; default: new ones.
    """

    def __init__(self, secret: bytes | None = None):
        self.secret = secret or secrets.token_bytes(32)
        self._scalar = X25519PrivateKey.from_private_bytes(self.secret)

    def masks(self, values: Sequence[bytes], purpose: bytes, padded: int = 0) -> tuple[Bytes, NDArray[np.int64]]:
        """Return the masks of a set, padded and shuffled, and the place of each value among them.

        Shapes: masks [padded, 32], places [n].

        Args:
            values: the set.
            purpose: as of `points`.
            padded: size of the padded set; default: `bucket`.
        """
        padded = padded or bucket(len(values))
        made = [self.times(point) for point in points(values, purpose)]
        made += [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(padded - len(values))]
        order = shuffled(padded)
        return as_rows(made, POINT)[order], np.argsort(order)[: len(values)]

    def double(self, masks: Bytes, sender: str) -> Bytes:
        """Return the first 16 bytes of each mask times the own scalar, [n, 16].

        Raises:
            RunFailed: a point has small order.
        """
        return as_rows((self.times(row.tobytes(), sender)[:REPLY] for row in masks), REPLY)

    def times(self, point: bytes, sender: str = "") -> bytes:
        """Return a point times the scalar; ``sender`` is for the error.

        Raises:
            RunFailed: the point has small order.
        """
        try:
            return self._scalar.exchange(X25519PublicKey.from_public_bytes(point))
        except ValueError as error:
            raise RunFailed(
                f"{sender} sent a point of small order, expected one of the curve's prime-order group"
            ) from error


def proof(secret: bytes, values: Sequence[bytes], purpose: bytes) -> tuple[Mask, bytes]:
    """Return the scalar and the point of a proof that a party knows all values, in their order.

    Args:
        secret: from which the scalar for these values is derived.
        values: the values.
        purpose: as of `points`.
    """
    every = hashlib.sha256(purpose)
    for value in values:
        every.update(len(value).to_bytes(8, "little") + value)
    scalar = Mask(hashlib.sha256(secret + every.digest()).digest())
    return scalar, scalar.times(points([every.digest()], purpose)[0])


def shuffled(size: int) -> NDArray[np.int64]:
    """Return a random order [size] from the operating system's generator."""
    return np.argsort(np.frombuffer(secrets.token_bytes(8 * size), np.uint64), kind="stable")


def as_rows(values: Iterable[bytes], width: int) -> Bytes:
    """Return texts of equal length as rows, uint8 [n, width]."""
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, width)


def commitment(masks: Bytes) -> Bytes:
    """Return the hash of a masked set, in any order [32]."""
    rows = np.ascontiguousarray(masks).view(">u8").reshape(len(masks), -1)
    ordered = masks[np.lexsort(rows.T[::-1])]
    return np.frombuffer(hashlib.sha256(ordered.tobytes()).digest(), np.uint8)


def shared(local: Bytes, remote: Bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the rows that two arrays share, ascending in the first.

    Raises:
        RunFailed: an array holds a row twice, which honest sets never do.
    """
    names = [np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1]))).ravel() for rows in (local, remote)]
    for values in names:
        if np.unique(values).size < values.size:
            raise RunFailed("a set of masks holds one value twice, expected distinct ones: its sender altered it")
    _, first, second = np.intersect1d(names[0], names[1], assume_unique=True, return_indices=True)
    order = np.argsort(first)
    return first[order].astype(np.int64), second[order].astype(np.int64)
