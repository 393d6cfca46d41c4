r"""FedSPA: subgraph feature propagation decoupling, homophily bias-driven aggregation (Tan et al., CVPR 2025).

The network decouples edges by homophily (`fedgraph_flwr.models.fedspa`, Eq. 4-6). The server averages its parameter groups
θ_φ (harmonizer), θ_hom, θ_het and the rest with three weightings at once, each small for clients that deviate (Section 4.2):

    δ_i = |S_i − Σ_j N_j S_j / Σ_j N_j|                                                             Eq. (8)
    γ_i = (δ_i − min δ) / (max δ − min δ);   γ_i = 0 for all where they are equal                   Eq. (9)
    w_i = exp(−γ_i) / Σ_j exp(−γ_j)                                                                 Eq. (10), (12)
    Δ_i = (1/m) Σ_k |I_i,k − I_g,k|,   I_g = Σ_j N_j I_j / Σ_j N_j                                   Eq. (11)
    θ_φ = Σ_i w_i(δ) θ_φ,i,   θ_hom = Σ_i w_i(Δ^hom) θ_hom,i,   θ_het = Σ_i w_i(Δ^het) θ_het,i

All sums run over the round's cohort; weights are found by client index. The paper does not say how the rest is averaged:
``rest=prior`` as in the authors' code, ``uniform``, or ``nodes`` (N_i). A weighting that is switched off falls back to
``strategy.weighting``, by default uniform, which is what equal biases give.

| exchange   | down | up, floats                                                      |
|------------|------|-----------------------------------------------------------------|
| describe   |      | N_i, S_i, and training nodes, features, classes, index          |
| train      | θ: P | θ_i: P, I_i: \|θ_hom\| + \|θ_het\|, loss, scores of the incoming θ  |
| evaluate   | θ: P | scores (once, at the end)                                       |

Deviations from the authors' code, which follow the paper: the prior weights come from δ_i, not from S_i; weights belong to
clients, not to positions in a list sampled with replacement; I_g is weighted by nodes; the Fisher diagonals are computed by
the clients on training nodes. Only a ratio of e between the best and the worst client is possible, and it is always reached
when biases differ: Eq. (9) stretches the smallest difference to the full range.
Leaves the client: see `clients.fedspa`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import Message

from fedgraph_flwr.config import one_of
from fedgraph_flwr.messages import TRAIN, Arrays, Reply, check_arrays, weighted_mean
from fedgraph_flwr.models.fedspa import FISHER, parameter_group
from strategies.base import GraphStrategy

EQUAL = 1e-12  # biases that differ by less, relative to what is compared, are equal
_BLOCK = 2**14  # parameters compared at once: what stays in a core's cache


@dataclass
class Params:
    """Keys of FedSPA that the server reads."""

    prior: bool = True  # θ_φ by Eq. (8)-(10)
    posterior: bool = True  # θ_hom, θ_het by Eq. (11)-(12)
    rest: str = "prior"

    def __post_init__(self) -> None:
        one_of(self.rest, ("prior", "uniform", "nodes"), "strategy.rest")


def bias_weights(biases: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Eq. (9)-(10): biases [n] → weights [n] that sum to 1.

    Args:
        biases: δ or Δ.
        scale: size of the quantity whose deviations they are, which says what rounding is.
    """
    above = biases - biases.min()
    gap = above.max()
    weights = np.exp(-above / gap) if gap > EQUAL * scale else np.ones_like(above)
    return weights / weights.sum()


def prior_biases(areas: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """Eq. (8): S [n] and N [n] → δ [n], and the size of S."""
    center = nodes @ areas / nodes.sum()
    return np.abs(areas - center), float(np.abs(center))


def posterior_biases(fishers: list[Arrays], nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """Eq. (11): the Fisher diagonals of one channel and N [n] → Δ [n], and the mean of I_g."""
    shares = nodes / nodes.sum()
    biases, size, count = np.zeros(len(fishers)), 0.0, 0
    for name in fishers[0]:
        flat = [fisher[name].ravel() for fisher in fishers]
        for start in range(0, flat[0].size, _BLOCK):
            diagonals = np.array([f[start : start + _BLOCK] for f in flat], dtype=np.float64)  # [n, block]
            pooled = shares @ diagonals
            biases += np.abs(np.subtract(diagonals, pooled, out=diagonals), out=diagonals).sum(axis=1)
            size += float(pooled.sum())
            count += pooled.size
    return biases / count, size / count


class FedSPA(GraphStrategy):
    """Three weightings at once, over parameter groups known by name."""

    Params: ClassVar[type] = Params

    def aggregate(self, arrays: Arrays, replies: list[Reply]) -> Arrays:
        """Each group of parameters by its own weights."""
        weights = self.group_weights(replies)
        mean: Arrays = {}
        for group, group_weights in weights.items():
            names = [name for name in arrays if parameter_group(name) == group]
            mean |= weighted_mean([{name: reply.arrays[name] for name in names} for reply in replies], group_weights)
        return {name: mean[name] for name in arrays}

    def group_weights(self, replies: list[Reply]) -> dict[str, np.ndarray]:
        """The weights [n] of each parameter group, in the order of the replies."""
        told = [self.clients[reply.client].told for reply in replies]
        nodes = np.array([float(t["num_nodes"]) for t in told])
        plain = np.array(self.weights(replies))
        prior = plain
        if self.params.prior:
            prior = bias_weights(*prior_biases(np.array([t["high_frequency_area"] for t in told]), nodes))
        rest = {"prior": prior, "uniform": np.ones_like(nodes), "nodes": nodes}[self.params.rest]
        weights = {"phi": prior, "hom": plain, "het": plain, "rest": rest}
        if self.params.posterior:
            for channel in {parameter_group(name) for name in self._fisher_shapes}:
                names = [name for name in self._fisher_shapes if parameter_group(name) == channel]
                fishers = [{name: reply.groups[FISHER][name] for name in names} for reply in replies]
                weights[channel] = bias_weights(*posterior_biases(fishers, nodes))
        return weights

    @property
    def _fisher_shapes(self) -> dict[str, Any]:
        """Names and shapes of the two channels' parameters."""
        return {name: s for name, s in self._expected.items() if parameter_group(name) in ("hom", "het")}

    def _checked(self, phase: str, message: Message, sender: str) -> Reply:
        """Also check the Fisher diagonals."""
        reply = super()._checked(phase, message, sender)
        if phase == TRAIN and self.params.posterior:
            check_arrays(reply.groups.get(FISHER, {}), self._fisher_shapes, sender)
        return reply
