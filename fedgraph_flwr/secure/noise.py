"""Random variates for differential privacy, drawn from a cryptographic generator.

`SecureNoise` expands a key of the operating system (`secrets`) with ChaCha20. Whoever sees some variates cannot compute others,
which no test of NumPy's PCG64 rules out. Poisson variates follow from 53-bit uniform ones: below a mean of 10 by the inverse of
the distribution function, else by PTRS, transformed rejection (Hörmann, Insurance: Mathematics and Economics 1993), NumPy's
algorithm. They are integers; floats with Gaussian noise would reveal their sum (`fedgraph_flwr.secure.lattice`).
"""

import secrets
from typing import Protocol

import numpy as np
import scipy  # loads `scipy.special` on its first use
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

SMALL_MEAN = 10.0
"""Poisson variates of smaller means come from the inverse of the distribution function."""

STIRLING = 1e4
"""From this mean on, log k! is Stirling's series, whose difference from k log λ - λ does not cancel."""


class Noise(Protocol):
    """A source of noise; NumPy's generators are some, for tests."""

    def poisson(self, lam: float, size: int) -> NDArray[np.int64]:
        """Poisson variates, [size]."""
        ...


class SecureNoise:
    """Independent variates from a ChaCha20 stream.

    Args:
        key: key of the stream, 32 bytes; default: a new one from the operating system.
    """

    def __init__(self, key: bytes | None = None):
        self._stream = Cipher(ChaCha20(key or secrets.token_bytes(32), bytes(16)), None).encryptor()

    def uniform(self, size: int) -> NDArray[np.float64]:
        """Uniform variates in (0, 1), [size]: odd multiples of 2^-54."""
        drawn = np.frombuffer(self._stream.update(bytes(8 * size)), np.uint64)
        return np.asarray(((drawn >> 11) + 0.5) * 2.0**-53, np.float64)

    def poisson(self, lam: float, size: int) -> NDArray[np.int64]:
        """Poisson variates of mean ``lam``, [size]."""
        if lam < SMALL_MEAN:
            steps = scipy.special.pdtr(np.arange(100), lam)
            return np.searchsorted(steps, self.uniform(size)).astype(np.int64)
        variates, left = np.empty(size, np.int64), np.arange(size)
        while left.size:
            values, kept = self._proposed(lam, left.size)
            variates[left[kept]], left = values[kept], left[~kept]
        return variates

    def _proposed(self, lam: float, size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Candidates of the transformed rejection, and which of them are accepted."""
        b = 0.931 + 2.53 * np.sqrt(lam)
        a = -0.059 + 0.02483 * b
        u, v = self.uniform(size) - 0.5, self.uniform(size)
        us = 0.5 - np.abs(u)
        values = np.floor((2 * a / us + b) * u + lam + 0.43)
        kept = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        check = np.flatnonzero(~kept & (values >= 0) & ((us >= 0.013) | (v <= us)))
        height = np.log(v[check]) + np.log(1.1239 + 1.1328 / (b - 3.4)) - np.log(a / us[check] ** 2 + b)
        kept[check] = height <= log_poisson(values[check], lam)
        return values.astype(np.int64), kept


def log_poisson(count: NDArray[np.float64], lam: float) -> NDArray[np.float64]:
    """Logarithm of the probability of counts, for a mean of at least `SMALL_MEAN`."""
    if lam < STIRLING:
        return np.asarray(count * np.log(lam) - lam - scipy.special.gammaln(count + 1))
    count = np.maximum(count, 1)  # of such a mean, less than one has no chance that a float64 holds
    offset = (count - lam) / lam
    body = lam * ((1 + offset) * np.log1p(offset) - offset)
    return np.asarray(-body - 0.5 * np.log(2 * np.pi * count) - 1 / (12 * count) + 1 / (360 * count**3))


def source() -> Noise:
    """The noise of one release; tests replace this function."""
    return SecureNoise()
