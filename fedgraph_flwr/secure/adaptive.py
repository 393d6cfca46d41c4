"""Clipping norms that follow a quantile of the norms of clients' updates (Andrew et al., NeurIPS 2021, Algorithm 1).

For each of the G groups of an exchange, client i has a bit b_i = 1{‖Δ_i‖₂ ≤ C} − 1/2. With n clients in a round,

    b̃ = 1/2 + (Σ_i b_i + N(0, σ_b²)) / n,     C ← C exp(−η (b̃ − γ))

where C starts at ``privacy.clipping_norm``, γ is ``privacy.clipping_quantile`` and η ``privacy.clipping_rate``. The G bits of a
client have an L2 norm of √G / 2. Values with noise z_Δ C √G and bits with noise σ_b are together one release with multiplier z if

    z⁻² = z_Δ⁻² + G / (2 σ_b)²     so that     z_Δ = (z⁻² − G (2 σ_b)⁻²)^(−1/2)

(the paper's equation for G = 1). The server knows the bits under ``server_adaptive``, where it clips. Otherwise clients send them
as group `CLIPPED` of their uplink, and receive the norms as group `CLIPPING`. Under ``distributed_adaptive`` values are sent in
units of C, so that their sensitivity in integers does not change with C. A server can then send any C: it changes what a client
contributes, not the noise relative to it.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fedgraph_flwr.config.schema import PrivacyConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import Arrays

NORM_RANGE = 1e6
"""A norm stays within this factor of its first value, whatever the noise."""

PAPER_SHARE = 20
"""The paper's σ_b is n / 20."""


def count_noise(rules: PrivacyConfig, groups: int, cohort: int) -> float:
    """σ_b: ``privacy.clipping_count_noise``; for 0 the larger of n / 20 and z √G, with which z_Δ ≤ 1.155 z.

    Args:
        rules: the run's privacy.
        groups: G.
        cohort: n.
    """
    if not rules.noise_multiplier:
        return 0.0
    return rules.clipping_count_noise or max(cohort / PAPER_SHARE, rules.noise_multiplier * math.sqrt(groups))


def value_multiplier(rules: PrivacyConfig, groups: int, cohort: int) -> float:
    """z_Δ; z itself where norms are fixed.

    Args:
        rules: the run's privacy.
        groups: G.
        cohort: n.

    Raises:
        FedGraphError: the bits cost more than z allows.
    """
    z = rules.noise_multiplier
    if not rules.adaptive or not z:
        return z
    left = z**-2 - groups / (2 * count_noise(rules, groups, cohort)) ** 2
    if left <= 0:
        raise FedGraphError(
            f"privacy.clipping_count_noise={rules.clipping_count_noise:g} leaves no noise multiplier for {groups} groups at"
            f" privacy.noise_multiplier={z:g}: expected more than {z * math.sqrt(groups) / 2:g}, or 0 to choose it"
        )
    return float(left**-0.5)


def adapted(norm: float, first: float, total: float, clients: int, rules: PrivacyConfig) -> float:
    """The next C of a group.

    Args:
        norm: C.
        first: ``privacy.clipping_norm`` of the group.
        total: Σ b_i with noise.
        clients: n.
        rules: the run's privacy.
    """
    share = 0.5 + total / clients
    step = math.exp(min(max(-rules.clipping_rate * (share - rules.clipping_quantile), -50.0), 50.0))
    return min(max(norm * step, first / NORM_RANGE), first * NORM_RANGE)


def bit(norm: float, bound: float) -> float:
    """b_i of an update's norm: 1/2 within the bound, else -1/2."""
    return 0.5 if norm <= bound else -0.5


def received_norms(arrays: Arrays, groups: Iterable[str], rules: PrivacyConfig) -> Mapping[str, float]:
    """C of each group, as a client received them.

    Raises:
        FedGraphError: one is missing, or outside of the range of `NORM_RANGE`.
    """
    norms = {}
    for group in groups:
        value = arrays.get(group, np.empty(0))
        norm = float(value.reshape(-1)[0]) if value.size == 1 and value.dtype == np.float64 else 0.0
        first = rules.norm(group)
        if not first / NORM_RANGE <= norm <= first * NORM_RANGE:
            raise FedGraphError(
                f"the server sent no clipping norm > 0 for group '{group}' within a factor of {NORM_RANGE:g} of the first,"
                f" {first:g}, which privacy.dp needs"
            )
        norms[group] = norm
    return norms
