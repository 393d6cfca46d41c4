"""What releases of Gaussian noise cost in (ε, δ)-differential privacy, exactly.

T releases, each of a sum of L2 sensitivity C with noise N(0, (z C)² I), are together as private as one with noise z / √T, also
when each depends on those before it (Dong, Roth & Su, JRSS B 2022, Corollary 3.3). With μ = √T / z

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)                                Balle & Wang, ICML 2018, Theorem 8

and no less: what is told is no bound that a better accountant could lower.
"""

import math
from typing import Any

from scipy.special import log_ndtr

STEPS = 100  # of the bisection, more than a float64 has bits


def delta_at(epsilon: float, mu: float) -> float:
    """δ(ε) of the equation above."""
    return math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def epsilon_at(delta: float, noise_multiplier: float, releases: int) -> float:
    """The least ε with δ(ε) ≤ ``delta``, rounded up; 0 before the first release."""
    if not releases:
        return 0.0
    mu = math.sqrt(releases) / noise_multiplier
    low, high = 0.0, 1.0
    while delta_at(high, mu) > delta:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle, mu) > delta else (low, middle)
    return high


def told(spent: dict[str, Any], scores: str) -> str:
    """One sentence for the user: what was spent, what it covers, and what it does not.

    Args:
        spent: of a summary, under ``privacy``.
        scores: ``privacy.scores`` of the run.
    """
    if spent["epsilon"] is None:
        return "privacy: updates were clipped and no noise was added, which gives no ε"
    budget = f" (budget {spent['budget']:g})" if spent.get("budget") else ""
    beside = "; not covered: scores, training losses and numbers of scored nodes" if scores == "told" else ""
    what = "the model and of scores" if scores == "noised" else "the model"
    return (
        f"privacy: ε = {spent['epsilon']:.3g}{budget} at δ = {spent['delta']:g} after {spent['releases']} releases of {what},"
        f" for one client more or less{beside}"
    )
