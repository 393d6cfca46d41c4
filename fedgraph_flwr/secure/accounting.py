"""The cost of releases with Skellam noise in (ε, δ)-differential privacy, for one client's contribution replaced by zero.

The noise is Skellam on integers (`fedgraph_flwr.secure.lattice`). A release of G groups of integer sensitivity Δ_g ≥ Δ and
variances z² G Δ_g² has, for integers α > 1 and as ‖k‖₁ ≤ ‖k‖₂² of integers k, a Rényi divergence of at most

    α / (2 z²) + min((2α + 5) / (4 z⁴ Δ²), 3 / (2 z²))                      Agarwal et al., NeurIPS 2021, Corollary 3.6

The bound adds up over releases; ε follows by Canonne et al., NeurIPS 2020, Proposition 12. Central noise has Δ_g ≥ 2^19 / z_g,
where z_g is the group's own multiplier, and Σ_g 1 / z_g² = 1 / z², so the second term is that of Δ = 2^19 / z. Distributed noise
has Δ = 2^b C / n; with adaptive norms Δ = 2^b / (2 n), the sensitivity of a bit, as values are in units of their norm.

A release may read a Poisson sample: each row takes part with probability q (``privacy.unit=row``). For noise that is symmetric
about 0 and independent of the data, and divergences D_k of the release of all rows, for integers α > 1

    (α - 1) D_α^q ≤ log Σ_{k=0}^α C(α, k) (1 - q)^{α-k} q^k exp((k - 1) D_k)            Mironov, Talwar & Zhang 2019, Section 3.3

in both directions (their Theorem 5: noise and its shift by a row's gradient exchange places under a reflection, also on
integers). Their proof for sums over other rows is quasi-convexity, which needs no Gaussian. Above `LARGEST_ORDER` the bound is
D_α, which a sample does not exceed.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fedgraph_flwr.config.schema import PrivacyConfig
from fedgraph_flwr.secure.lattice import FINENESS

RELATION = "one client's contribution replaced by zero"
"""The relation between data sets whose outputs ε compares, where the unit is a client."""

UNITS = {
    "row": (
        "One training row more or less (columns and label), all other rows fixed, including columns that count it."
        " That its node or payment exists is not protected. A person with m rows: a group of m."
    ),
    "payment": (
        "One payment more or less in one bank's records; in those of two: (8R + 1) C in a joint sum, or the banks' ε add up."
    ),
}
"""The relation for other units. R is ``privacy.look_back``, C ``privacy.clipping_norm``."""

ORDERS = np.unique(np.round(np.geomspace(2, 1e6, 2000)))
"""Integer orders of the Rényi divergence: every one up to about 150, then 0.7 % apart."""

LARGEST_ORDER = 512
"""Largest order with a bound for samples; ε of 0.1 and more follows from smaller ones."""


def skellam_epsilon(
    delta: float, noise_multiplier: float, releases: int, sensitivity: float, sampling_rate: float = 1.0
) -> float:
    """Return a bound on ε of releases of Skellam noise; 0 before the first one.

    Args:
        delta: δ.
        noise_multiplier: z.
        releases: number of releases.
        sensitivity: Δ, the least L2 sensitivity of a group in integers.
        sampling_rate: q, the probability with which a release reads a row.
    """
    return epsilon_of(divergence(noise_multiplier, releases, sensitivity, sampling_rate), delta) if releases else 0.0


def divergence(
    noise_multiplier: float, releases: int, sensitivity: float, sampling_rate: float = 1.0
) -> NDArray[np.float64]:
    """Return a bound on the Rényi divergence of releases, for each of `ORDERS`; the arguments are those of `skellam_epsilon`."""
    return releases * _divergence(noise_multiplier, sensitivity, sampling_rate)


@lru_cache(maxsize=64)
def _divergence(z: float, sensitivity: float, q: float) -> NDArray[np.float64]:
    """Return the bound for one release."""

    def whole(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        rough = np.minimum((2 * orders + 5) / (4 * z**4 * sensitivity**2), 3 / (2 * z**2))
        return np.asarray(orders / (2 * z**2) + rough)

    bounds = whole(ORDERS)
    if q < 1:
        few = ORDERS <= LARGEST_ORDER
        gammaln, logsumexp = scipy.special.gammaln, scipy.special.logsumexp  # loaded on its first use
        k, alpha = np.arange(LARGEST_ORDER + 1.0), ORDERS[few, None]
        left = np.maximum(alpha - k, 0)
        terms = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(left + 1) + left * math.log1p(-q) + k * math.log(q)
        terms = np.where(k <= alpha, terms + np.where(k > 1, (k - 1) * whole(k), 0), -np.inf)
        bounds[few] = np.minimum(bounds[few], np.maximum(logsumexp(terms, axis=1), 0) / (ORDERS[few] - 1))
    return bounds


def epsilon_of(divergences: NDArray[np.float64], delta: float) -> float:
    """Return ε at δ from Rényi divergences for each of `ORDERS`."""
    bounds = divergences + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def cost(rules: PrivacyConfig, clients: int, releases: int) -> float:
    """Return ε of a run's releases, at its δ.

    Args:
        rules: the run's privacy configuration.
        clients: number of clients of the run, the most members of a sum.
        releases: number of releases.
    """
    least = least_sensitivity(rules, clients)
    return skellam_epsilon(rules.delta, rules.noise_multiplier, releases, least, rules.sampling_rate)


def least_sensitivity(rules: PrivacyConfig, clients: int) -> float:
    """Return the least L2 sensitivity of a group in integers; arguments as for `cost`."""
    if rules.side != "distributed":
        return FINENESS / rules.noise_multiplier
    least = min([rules.clipping_norm, *rules.clipping_norms.values()]) if not rules.adaptive else 0.5
    return float(rules.reach * least * 2.0**rules.secagg_bits / clients)


def relation(rules: PrivacyConfig) -> str:
    """Return the relation between data sets that a run's ε compares."""
    return UNITS.get(rules.unit, RELATION)


def spent_text(spent: dict[str, Any], scores: str) -> str:
    """Return a message for the user: the privacy spent, what it covers, and what it does not.

    Args:
        spent: ``privacy`` of a summary.
        scores: ``privacy.scores`` of the run.
    """
    if spent["epsilon"] is None and spent.get("unbounded"):
        return f"privacy: no ε covers this model, since {spent['unbounded']}; ε ≤ {spent['own_epsilon']:.3g} in this run alone"
    if spent["epsilon"] is None:
        return "privacy: updates were clipped, but without noise ε is infinite"
    budget = f" (budget {spent['budget']:g})" if spent.get("budget") else ""
    uncovered = "; not covered: scores, training losses and numbers of scored nodes" if scores == "exact" else ""
    what = "the model and of scores" if scores == "noised" else "the model"
    what += " and those of earlier runs on these data" if spent.get("earlier") else ""
    unit = str(spent.get("relation", RELATION))
    of = f". What ε protects: {unit.rstrip('.')}" if unit.endswith(".") else f", for {unit}"
    return (
        f"privacy: ε ≤ {spent['epsilon']:.3g}{budget} at δ = {spent['delta']:g} after {spent['releases']} releases of"
        f" {what}{of}{uncovered}"
    )
