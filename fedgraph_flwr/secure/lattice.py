"""Noisy sums of integers: values are rounded to a lattice, and the noise is Skellam on it.

Floats are not reals. With Gaussian noise in floats, some sums cannot give some values, so a released value excludes worlds: at
ε = 0.34 an audit measured more than 5 (Mironov, CCS 2012; `benchmarks/dp_audit.py`). Sums here are of integers

    Σ_i round(2^b w_i Δ̄_i) + Sk((2^b σ)²),     2^b σ in [2^19, 2^20),     ‖round(2^b w_i Δ̄_i)‖₂ ≤ 2^b C

where b follows from σ, so from the configuration. Every integer within many standard deviations is a possible result of every
sum. Everything after is computed from the noisy integers, whatever the dtype.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.secure import noise
from fedgraph_flwr.secure.clipping import clipped
from fedgraph_flwr.secure.noise import Noise

BITS = 20
"""Bits of the noise's standard deviation in integers."""

LARGEST_VARIANCE = 2.0**42
"""Largest variance that is drawn: tests compare the distribution up to it. Far above, variates have no low bits, or overflow."""

FINENESS = 2.0 ** (BITS - 1)
"""Least standard deviation of the noise in integers. The sensitivity is this over the noise multiplier, or more."""


def unit(deviation: float) -> float:
    """Return 2^b for a standard deviation of the noise."""
    return math.ldexp(1.0, BITS - math.frexp(deviation)[1])


def noisy_sum(terms: Iterable[NDArray[np.float64]], bound: float, deviation: float, size: int) -> NDArray[np.float64]:
    """Return a sum with noise [P], multiples of 2^-b.

    Args:
        terms: one vector per client, [P]; none is longer than ``bound``.
        bound: C, the largest L2 norm of a term.
        deviation: σ, standard deviation of the noise on each value of the sum.
        size: P.
    """
    scale, total = unit(deviation), np.zeros(size, np.int64)
    for term in terms:
        total += rounded(term * scale, bound * scale)
    return np.asarray((total + skellam((deviation * scale) ** 2, size, noise.source())) / scale)


def rounded(values: NDArray[np.float64], bound: float) -> NDArray[np.int64]:
    """The nearest integers of values that are shrunk until those have an L2 norm of at most ``bound``."""
    values = clipped(values, bound)
    integers = np.rint(values)
    while (norm := float(np.linalg.norm(integers))) > bound:
        values = values * min(bound / norm, 1 - 1e-6)
        integers = np.rint(values)
    return integers.astype(np.int64)


def skellam(variance: float, count: int, generator: Noise) -> NDArray[np.int64]:
    """Independent Skellam variates of mean 0, [count].

    Raises:
        FedGraphError: the variance is too large.
    """
    if not variance <= LARGEST_VARIANCE:
        raise FedGraphError(
            f"noise of variance {variance:g} cannot be drawn, expected at most {LARGEST_VARIANCE:g}: lower"
            " privacy.noise_multiplier"
        )
    first, second = generator.poisson(variance / 2, count), generator.poisson(variance / 2, count)
    return np.asarray(first - second, np.int64)
