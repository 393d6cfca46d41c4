"""Shamir's secret sharing over a prime field, for many secrets and many holders at once (Shamir, CACM 1979).

    f(x) = s + a_1 x + ... + a_{t−1} x^{t−1}  mod p,   a_k uniform in GF(p);   holder x ≥ 1 is given f(x)
    s = Σ_j f(x_j) Π_{m≠j} x_m / (x_m − x_j)  mod p                        any t holders; t − 1 of them have no information

p = 2^31 − 1: products stay below 2^62 and fit NumPy's 64-bit integers, so the only Python loop runs over t, not over holders or
secrets. A seed has `LIMBS` elements of the field, 154 bits. All randomness comes from the operating system.
"""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PRIME = 2**31 - 1
LIMBS = 5  # elements of a seed


def random_elements(shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Draw uniformly from GF(p): 31 random bits, drawn again if they equal p."""
    elements = np.frombuffer(os.urandom(4 * int(np.prod(shape))), np.uint32) & np.uint32(PRIME)
    while (odd := elements == PRIME).any():
        elements[odd] = np.frombuffer(os.urandom(4 * int(odd.sum())), np.uint32) & np.uint32(PRIME)
    return elements.reshape(shape)


def split(secrets: NDArray[np.uint32], needed: int, holders: int) -> NDArray[np.uint32]:
    """Compute shares of each secret for holders 1, 2, ...: [...] → [holders, ...].

    Args:
        secrets: elements of the field.
        needed: t; fewer shares reveal nothing.
        holders: n, less than p.
    """
    coefficients = random_elements((needed - 1, *secrets.shape)).astype(np.uint64)
    places = np.arange(1, holders + 1, dtype=np.uint64).reshape(-1, *[1] * secrets.ndim)
    value = np.zeros((holders, *secrets.shape), np.uint64)
    for coefficient in (*coefficients, secrets.astype(np.uint64)):  # Horner's scheme, the constant term last
        value = (value * places + coefficient) % PRIME
    return value.astype(np.uint32)


def combine(places: Sequence[int], shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Reconstruct the secrets from shares [t, ...] of t different holders, at their ``places``: → [...]."""
    total = np.zeros(shares.shape[1:], np.uint64)
    for place, share in zip(places, shares, strict=True):
        above, below = 1, 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        total += share.astype(np.uint64) * np.uint64(above * pow(below, -1, PRIME) % PRIME) % PRIME
    return (total % PRIME).astype(np.uint32)
