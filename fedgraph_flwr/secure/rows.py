"""Sums of clipped gradients of single rows, with noise that each party adds (``privacy.unit=row`` or ``payment``).

A party draws a batch B, in which each of its n rows takes part with probability q, and releases integers

    round(2^b Σ_{j∈B} g_j min(1, C / ‖g_j‖₂)) + Sk((z Δ)²),     Δ = S C 2^b (1 + `ROUNDING`) + √P

S is the number of norms C by which one unit changes the sum: 1 for a row. A payment is a row, and at most R rows at each of its
two ends read it, each of which changes from one clipped gradient to another: S = 4R + 1. A second bank that books it has no such
row, but 2R more that read it: S = 8R + 1 in a joint sum. Rounding P values moves a sum by √P / 2 at most, in each of two worlds.

The draws, like the noise, come from the operating system and not from the run's seed, so that a resumed run draws others. A batch
may be empty. The receiver divides by the public q n (`fedgraph_flwr.strategies.fedgrad`), never by the size of a batch.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config.schema import PrivacyConfig
from fedgraph_flwr.secure import lattice
from fedgraph_flwr.secure.noise import Noise, SecureNoise

ROUNDING = 1e-5
"""Bound on the error of a sum in float64, over C: n rows in blocks of 2^10 err by n 2^10 2^-53 at most, 1e-7 for n = 10^6."""


def drawn(rows: int, rate: float) -> NDArray[np.int64]:
    """Return the places of a Poisson sample of n rows; all without sampling."""
    return np.arange(rows) if rate == 1 else np.flatnonzero(SecureNoise().uniform(rows) < rate)


def variance(bound: float, rules: PrivacyConfig, size: int) -> float:
    """Return (z Δ)², the variance of the noise on each of P integers.

    Args:
        bound: 2^b C, the norm in units of the lattice.
        rules: the run's privacy.
        size: P.
    """
    reach = rules.reach * bound * (1 + ROUNDING) + math.sqrt(size)
    return (rules.noise_multiplier * reach) ** 2


def released(total: NDArray[np.float64], bound: float, rules: PrivacyConfig, generator: Noise) -> NDArray[np.float64]:
    """Return a sum with all of its noise, multiples of 2^-b [P].

    Args:
        total: the sum [P].
        bound: C.
        rules: the run's privacy.
        generator: draws the noise.
    """
    scale = lattice.unit(rules.noise_multiplier * rules.reach * bound)
    noise = lattice.skellam(variance(bound * scale, rules, total.size), total.size, generator)
    return np.asarray((np.rint(total * scale) + noise) / scale)
