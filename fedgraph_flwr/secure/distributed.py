"""Noise that clients add to their terms of a secure sum (``privacy.dp=distributed``).

With m members, of whom at least t reply, C_g the norm of each of G groups, z the multiplier and b the bits after the point,
client i adds up integers

    k_i = round(2^b p_i Δ̄_i) + Sk((z C_g √G 2^b / m)² / t),   p_i ≤ 1/m,   ‖round(2^b p_i Δ̄_i)‖₂ ≤ C_g 2^b / m

where Δ̄_i is its clipped update and Sk(v) the Skellam distribution of variance v. A Skellam variate is the difference of two
Poisson variates of mean v / 2 each. Sums of them are Skellam again. The terms of t survivors therefore hold the noise that
`accounting` books, and more survivors hold more. The server sees no single term. If c clients collude with the server, they can
subtract their own noise: (t − c) / t of the variance stays. With adaptive norms, values are in units of C_g, z is z_Δ, and bits
have their own variance (`fedgraph_flwr.secure.adaptive`). A cryptographic generator draws it (`fedgraph_flwr.secure.noise`).

If the unit is a row or a payment, Δ̄_i is a sum of clipped gradients of rows, which is not clipped again
(`fedgraph_flwr.secure.rows`). Its noise is sized for t - 1 members, so that no member can subtract what ε needs.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config.schema import PrivacyConfig
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure import noise, rows
from fedgraph_flwr.secure.adaptive import count_noise, value_multiplier
from fedgraph_flwr.secure.lattice import LARGEST_VARIANCE, rounded, skellam
from fedgraph_flwr.secure.noise import Noise
from fedgraph_flwr.wire.messages import CLIPPED, Arrays, flat


class DistributedNoise:
    """Noise that one client adds to its terms.

    Args:
        rules: the run's privacy.
        generator: draws the noise; default: a new `noise.source` for each sum.
        cohort: n, the clients that a round samples.
    """

    def __init__(self, rules: PrivacyConfig, generator: Noise | None = None, cohort: int = 1):
        self.rules, self.generator, self.cohort = rules, generator, cohort

    def terms(
        self, values: Mapping[str, Arrays], ratios: Mapping[str, float], members: int, needed: int
    ) -> NDArray[np.int64]:
        """k_i of all groups in turn, [P].

        Args:
            values: clipped updates by group.
            ratios: p_i by group.
            members: m.
            needed: t.

        Raises:
            RunFailed: a ratio exceeds 1/m, or the variance exceeds what can be drawn.
        """
        generator = self.generator or noise.source()
        groups = len(values.keys() - {CLIPPED})
        scale, terms = 2.0**self.rules.secagg_bits, []
        for group, arrays in values.items():
            update, ratio = flat(arrays), ratios[group]
            if ratio * members > 1 + 1e-9:
                raise RunFailed(
                    f"the server gave this client a share of {ratio:g} of '{group}', expected at most 1/{members}:"
                    " privacy.dp=distributed weighs clients alike"
                )
            if group == CLIPPED:
                bound = math.sqrt(groups) / 2 * scale / members
                variance = (count_noise(self.rules, groups, self.cohort) * scale / members) ** 2 / needed
            else:
                bound = (1.0 if self.rules.adaptive else self.rules.norm(group)) * scale / members
                variance = (value_multiplier(self.rules, groups, self.cohort) * bound) ** 2 * groups / needed
            if self.rules.unit != "client":
                variance = rows.variance(bound, self.rules, update.size) / (needed - 1)
            if variance > LARGEST_VARIANCE:
                raise RunFailed(
                    f"the noise of one client of '{group}' has a variance of {variance:g}, expected at most"
                    f" {LARGEST_VARIANCE:g}: lower privacy.secagg_bits={self.rules.secagg_bits}"
                )
            scaled = update * (ratio * scale)
            whole = rounded(scaled, bound) if self.rules.unit == "client" else np.rint(scaled).astype(np.int64)
            terms.append(whole + skellam(variance, update.size, generator))
        return np.concatenate(terms)
