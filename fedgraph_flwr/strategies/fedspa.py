r"""FedSPA: subgraph feature propagation decoupling, homophily bias-driven aggregation (Tan et al., CVPR 2025).

The model separates edges by homophily (`fedgraph_flwr.models.fedspa`, Eq. 4-6). The server averages
its parameter groups θ_φ (harmonizer), θ_hom, θ_het and the rest with three sets of weights, each
smaller for clients that deviate (Section 4.2):

    δ_i = |S_i − Σ_j N_j S_j / Σ_j N_j|                                                             Eq. (8)
    γ_i = (δ_i − min δ) / (max δ − min δ);   γ_i = 0 for all where they are equal                   Eq. (9)
    w_i = exp(−γ_i) / Σ_j exp(−γ_j)                                                                 Eq. (10), (12)
    Δ_i = (1/m) Σ_k |I_i,k − I_g,k|,   I_g = Σ_j N_j I_j / Σ_j N_j                                   Eq. (11)
    θ_φ = Σ_i w_i(δ) θ_φ,i,   θ_hom = Σ_i w_i(Δ^hom) θ_hom,i,   θ_het = Σ_i w_i(Δ^het) θ_het,i

Reproduced: its paper's scores, Minesweeper in the authors' form (``model.profile=acm
model.normalization=sum``), Cora and Cornell with normalised sums, the default here. Not reproduced:
its margin over FedAvg, whose scores are above the paper's. Our
explanation: a plain sum shows a node how many neighbours of a kind it has, and a mean hides it. A
step size of 0.1 is not stable with sums (reproduction-papers.md).

All sums run over the round's cohort, by client index. The paper does not say how the rest is
averaged: ``rest=prior`` as in the authors' code, ``uniform``, or ``nodes`` (N_i). A weighting that
is switched off falls back to ``strategy.weighting``, by default uniform, which equal biases also
give.

| exchange   | down | up                                                                 |
|------------|------|--------------------------------------------------------------------|
| describe   |      | N_i, S_i, and training nodes, features, classes, index (once)      |
| train      | θ: P | θ_i: P, I_i: m = \|θ_hom\| + \|θ_het\|, loss, scores of the incoming θ |
| evaluate   | θ: P | scores (once, at the end)                                          |

With ``fisher_exchange=scalar`` the server learns I_g but no I_i: clients sum N_i I_i under masks
(`fedgraph_flwr.secure.masked`), and reply to I_g with Δ_i. This discloses less and costs more: a
round has two exchanges, shares are 8-byte integers and I_g is 8-byte floats. With two clients, each
can compute the other's diagonal from I_g; a single client refuses.

| exchange    | down                                  | up                                         |
|-------------|---------------------------------------|--------------------------------------------|
| publish_key |                                       | a public key, 32 bytes (once)              |
| train       | θ: P, cohort: indices and keys, ΣN_j  | θ_i: P, masked share: m, loss, scores      |
| deviate     | I_g: m                                | Δ_i: 2                                     |
| share_again | remaining: indices and keys, ΣN_j     | masked share: m (only after a client fell) |

A client that fails in training is left out of I_g. One that fails in ``deviate`` is left out of the
average but stays in I_g. The difference to a second sum without it would reveal its diagonal to the
server.

Differences from the authors' code, which follow the paper: the prior weights come from δ_i, not
from S_i. Weights belong to clients, not to positions in a list sampled with replacement. I_g is
weighted by nodes. Clients compute Fisher diagonals on training nodes. The ratio between the best
and the worst client is at most e, and it is always reached if biases differ: Eq. (9) stretches the
smallest difference to the full range. Leaves the client: see `fedgraph_flwr.clients.fedspa`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods import fedspa
from fedgraph_flwr.models.fedspa import FISHER, parameter_group
from fedgraph_flwr.secure.keyring import signatures
from fedgraph_flwr.secure.masked import LIMIT, PEERS, RESOLUTION, sum_shares
from fedgraph_flwr.secure.sealed import is_public_key
from fedgraph_flwr.strategies.base import GraphStrategy, GroupsFor
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField

EQUAL = 1e-12  # biases that differ by less, relative to the compared values, are equal
_BLOCK = 2**14  # parameters compared at once: they fit a core's cache


def bias_weights(biases: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
    """Compute Eq. (9)-(10): biases [n] → weights [n] that sum to 1; differences up to ``tolerance`` count as equal."""
    above = biases - biases.min()
    gap = above.max()
    weights = np.exp(-above / gap) if gap > tolerance else np.ones_like(above)
    return weights / weights.sum()


def prior_biases(areas: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute Eq. (8): S [n] and N [n] → δ [n], and their rounding error."""
    center = nodes @ areas / nodes.sum()
    return np.abs(areas - center), EQUAL * float(np.abs(center))


def posterior_biases(fishers: list[Arrays], nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute Eq. (11): the Fisher diagonals of one channel and N [n] → Δ [n], and their rounding error."""
    shares = nodes / nodes.sum()
    biases = np.zeros(len(fishers))
    size = 0.0
    count = 0
    for name in fishers[0]:
        flat = [fisher[name].ravel() for fisher in fishers]
        for start in range(0, flat[0].size, _BLOCK):
            # [n, block]
            diagonals = np.array([f[start : start + _BLOCK] for f in flat], dtype=np.float64)
            pooled = shares @ diagonals
            biases += np.abs(np.subtract(diagonals, pooled, out=diagonals), out=diagonals).sum(
                axis=1
            )
            size += float(pooled.sum())
            count += pooled.size
    return biases / count, EQUAL * size / count


class FedSPA(GraphStrategy, method=fedspa):
    """Averages parameter groups, known by name, with three sets of weights."""

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Return the two channels' fields: squares, or sums of integers modulo 2^64."""
        kind: dict[str, Any] = (
            {"dtype": "uint64"} if self.params.masked else {"dtype": self.cfg.dtype, "low": 0}
        )
        channels = {
            n: a.shape for n, a in self.arrays.items() if parameter_group(n) in ("hom", "het")
        }
        return {name: ArrayField(tuple(shape), **kind) for name, shape in channels.items()}

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse a public key with which no secret can be shared."""
        if phase == "publish_key" and not is_public_key(reply.groups["key"]["key"].tobytes()):
            raise FedGraphError(
                f"client {reply.client} replied to phase 'publish_key' with an invalid key: expected an X25519 public key"
            )

    def setup(self) -> None:
        """Request the clients' public keys, with ``scalar``.

        Raises:
            FedGraphError: the masked sum would be over one client.
        """
        if self.params.masked and self.cohort_size < 2:
            raise FedGraphError(
                f"strategy.fisher_exchange=scalar hides a client among those of its round, which are {self.cohort_size}"
                f" (num_clients={len(self.clients)}, strategy.fraction={self.cfg.strategy.fraction}): expected at least 2"
            )
        if self.params.masked:
            published = self.request_all("publish_key")
            self.keys = {reply.client: reply.groups["key"]["key"] for reply in published}
            self.signatures = signatures(published.replies, "key")

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send the clients of the masked sum, with ``scalar``."""
        return self.peers(self.cohort) if self.params.masked else {}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Average each group of parameters with its weights, over the clients that replied to the end."""
        replies, channels = self.channel_biases(reduced.replies)
        clients = [reply.client for reply in replies]
        descriptions = [self.clients[client].description for client in clients]
        nodes = np.array([float(description["num_nodes"]) for description in descriptions])
        plain = np.array(self.weights(clients))
        prior = plain
        if self.params.prior:
            prior = bias_weights(
                *prior_biases(
                    np.array(
                        [description["high_frequency_area"] for description in descriptions]
                    ),
                    nodes,
                )
            )
        rest = {"prior": prior, "uniform": np.ones_like(nodes), "nodes": nodes}[
            self.params.rest
        ]
        weights = {"phi": prior, "hom": plain, "het": plain, "rest": rest}
        weights |= {channel: bias_weights(*biases) for channel, biases in channels.items()}
        return reduced.mean(
            MODEL, {name: weights[parameter_group(name)] for name in arrays}, clients=clients
        )

    def channel_biases(
        self, replies: list[Reply]
    ) -> tuple[list[Reply], dict[str, tuple[np.ndarray, float]]]:
        """Return Δ of the two channels, as from `posterior_biases`, and their replies; no Δ if the posterior is off."""
        if not self.params.posterior:
            return replies, {}
        if self.params.masked:
            return self.request_deviations(replies)
        nodes = np.array(
            [float(self.clients[reply.client].description["num_nodes"]) for reply in replies]
        )
        return replies, {
            channel: posterior_biases(
                [_of(reply.groups[FISHER], channel) for reply in replies], nodes
            )
            for channel in ("hom", "het")
        }

    def request_deviations(
        self, replies: list[Reply]
    ) -> tuple[list[Reply], dict[str, tuple[np.ndarray, float]]]:
        """Compute I_g from masked shares of the clients that trained, then request Δ_i from each of them."""
        named = self.cohort
        shares = replies
        while len(shares) < len(named):  # masks cancel over exactly the clients that were named
            named = [reply.client for reply in shares]
            shares = self.request("share_again", self.peers(named), named).replies
        pooled = sum_shares([share.groups[FISHER] for share in shares])
        low = min(a.min() for a in pooled.values())
        high = max(a.max() for a in pooled.values())
        # Not a mean of squares; the wrong share cannot be identified.
        if low < -len(named) * RESOLUTION or high > LIMIT:
            raise RunFailed(
                f"round {self.server_round}: the masked Fisher diagonals of clients {named} sum to values from {low:g} to"
                f" {high:g}, expected 0 to {LIMIT:g}: one of them sent a wrong share"
            )
        deviating = {
            reply.client: reply.metrics
            for reply in self.request("deviate", {FISHER: pooled}, named)
        }
        kept = [reply for reply in replies if reply.client in deviating]
        biases = {}
        for channel in ("hom", "het"):
            deviations = np.array(
                [float(deviating[reply.client][f"deviation_{channel}"]) for reply in kept]
            )
            size = np.mean(
                np.concatenate([array.ravel() for array in _of(pooled, channel).values()])
            )
            biases[channel] = deviations, EQUAL * float(size) + len(named) * RESOLUTION
        return kept, biases

    def peers(self, clients: list[int]) -> dict[str, Arrays]:
        """Return a sum's clients: their indices, their public keys [n, 32], and Σ_j N_j, with signatures of the keys."""
        nodes = sum(int(self.clients[client].description["num_nodes"]) for client in clients)
        keys = np.stack([self.keys[client] for client in clients])
        return {
            PEERS: {"clients": np.array(clients), "keys": keys, "nodes": np.array([nodes])},
            **self.signatures,
        }


def _of(fisher: Arrays, channel: str) -> Arrays:
    return {name: values for name, values in fisher.items() if parameter_group(name) == channel}
