"""FedOMD (Tang et al., ICPP Workshops 2024, doi 10.1145/3677333.3678159), server side.

    M^k = Σ_i n_i M_i^k / Σ_i n_i                                                        Eq. (10)
    S_j^k = Σ_i n_i S_{i,j}^k / Σ_i n_i,  S_{i,j}^k = mean over client i's nodes of (Z_i^k − M^k)^j,  j = 2..5
    W = Σ_i λ_i W_i,  λ_i by ``strategy.weighting`` (nodes)                              Algorithm 1, lines 26-29

for the H hidden layers Z^k, each of width D, of the received model without dropout. With
``one_phase``, the server requests means of powers about a point that all clients know, the previous
round's M. It derives the moments by the binomial theorem. The paper's exchange is ``two_phase``:
means, then moments about the pooled mean. Both give the same M and S. Under secure sums, the server
sees only the pooled ones and each layer's range, which ``cmd_range=unit`` does not request.

Numbers in a message, per client, with P shared parameters (messages also contain phase and round,
replies the client):

    phase                      down               up
    describe (once)            1: version         5: n_i (if nodes weigh), training nodes, F, C, version
    moments_sum (one_phase)    P + H D            5 H D + 2 H                                  powers and point in float64
    means (two_phase)          P                  H D + 2 H
    moments_about (two_phase)  P + H D            4 H D
    train                      P + 5 H D + H + 2  P + 2: training nodes, loss; + 8 scores of the received model after round 1
    evaluate (at the end)      P                  8: nodes, loss, accuracy and macro-F1, for validation and test

The terms 2 H and H, each layer's range, are absent with ``cmd_range=unit``; the + 2 are the flags
for scoring the model and for a checkpoint. The model goes down in every exchange, so that a client
needs no memory between them. With ``cmd`` off or beta = 0 the exchanges of moments are left out,
and ``train`` contains none.

Reproduced: its paper's own scores in most rows. Not reproduced: its gain over FedAvg, which has
level or higher scores with the same model without the two terms. Our explanation: the gradient of
the moment term as printed has the same length however close the moments are. At β = 10 it outweighs
the labels. Squared (``cmd_norm=squared``), it vanishes (reproduction-papers.md).

Leaves a client: W_i, n_i, and means and moments of its hidden features. For a client of very few
nodes, these come close to the features themselves (the mean of one node is its feature). Never
leaves it: X, A, Y, the features of single nodes.

A client that fails between two exchanges is dropped from the round. If that happens after
``means``, the remaining clients receive ``moments_sum`` about the pooled mean. Moments about any
point but their own mean are not central.
"""

from typing import Any

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedomd
from fedgraph_flwr.methods.fedomd import MOMENTS, RANGE, TARGET
from fedgraph_flwr.methods.moments import ORDERS, central
from fedgraph_flwr.models import Model
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays, Reply


class FedOMD(GraphStrategy, method=fedomd):
    """FedAvg that also sends the pooled moments of the cohort's hidden features."""

    point: np.ndarray | float = 0.0  # point of the powers in `moments_sum`

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse two exchanges under protected sums."""
        params, key = method_params(cls, cfg), protection_of(cfg).key
        if key and params.cmd and params.beta and params.exchange != "one_phase":
            raise FedGraphError(
                f"{key} protects all moments in one sum: set strategy.exchange=one_phase, not {params.exchange}"
            )

    def facts(self, phase: str) -> Any:
        """Return the point about which moments are taken."""
        return self.point

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse impossible moments: even orders are at least 0, and all are within the sent range."""
        group = reply.groups.get(MOMENTS, {}) | reply.groups.get(RANGE, {})
        for name, values in group.items():
            if problem := impossible(
                name, values.astype(np.float64), group.get("range"), facts
            ):
                raise FedGraphError(
                    f"client {reply.client} replied to phase '{phase}' with impossible {MOMENTS}/{name}: {problem}"
                )

    def before_train(self, arrays: Arrays) -> dict[str, Arrays]:
        """Pool the moments of the cohort; the cohort shrinks to the clients that sent theirs."""
        if not (self.params.cmd and self.params.beta):
            return {}
        exchange = {"one_phase": self._one_phase, "two_phase": self._two_phase}[
            self.params.exchange
        ]
        replies, moments = exchange(arrays)
        self.drop(set(self.cohort) - set(replies.clients))
        dtype = next(iter(arrays.values())).dtype
        target = {"moments": moments.astype(dtype)}
        if self.params.cmd_range == "pooled":
            # smallest and largest, [M, H, 2]
            ranges = np.stack([group["range"] for group in replies.each(RANGE)])
            span = ranges[..., 1].max(0) - ranges[..., 0].min(0)
            target["span"] = np.where(span > 0, span, 1).astype(
                dtype
            )  # a dead layer has no range
        return {TARGET: target}

    def _one_phase(self, arrays: Arrays) -> tuple[Reduced, np.ndarray]:
        """Use means of powers about the previous mean: far from it, powers would lose significant digits."""
        layers = self.cfg.model.layers - 1
        width = self.cfg.model.hidden
        point = self.memory.get("mean", np.zeros((layers, width)))
        self.point = point
        replies = self.request("moments_sum", {MODEL: arrays, "point": {"mean": point}})
        pooled = central(replies[MOMENTS]["powers"], point)
        self.memory["mean"] = pooled[:, 0]
        return replies, pooled

    def _two_phase(self, arrays: Arrays) -> tuple[Reduced, np.ndarray]:
        """Use means, then moments about the pooled mean; if a client fails in between, powers about it from the others."""
        first = self.request("means", {MODEL: arrays})
        point = first[MOMENTS]["mean"]
        sent = {MODEL: arrays, "point": {"mean": point}}
        about = self.request("moments_about", sent, first.clients)
        if about.clients == first.clients:
            return first, np.concatenate(
                [point[:, None], about[MOMENTS]["spread"]], axis=1
            ).astype(np.float64)
        self.point = point
        left = self.request("moments_sum", sent, about.clients)
        return left, central(left[MOMENTS]["powers"], point.astype(np.float64))


def impossible(
    name: str, values: np.ndarray, span: np.ndarray | None, point: np.ndarray | float = 0.0
) -> str:
    """Return why no features can have these statistics; empty if some can.

    Args:
        name: ``mean`` [H, D], ``moments`` [H, 5, D], ``spread`` [H, 4, D], ``powers`` [H, 5, D] or
            ``range`` [H, 2].
        values: the statistics.
        span: smallest and largest feature of each layer [H, 2], if sent.
        point: point of ``powers``, [H, D].
    """
    if name == "range":
        return (
            "a smallest feature above the largest"
            if (values[:, 0] > values[:, 1]).any()
            else ""
        )
    orders = {"mean": (1,), "spread": ORDERS, "powers": (1, *ORDERS)}[name]
    # [H, D] each
    parts = dict(
        zip(orders, values.reshape(len(values), len(orders), -1).swapaxes(0, 1), strict=True)
    )
    if odd := [order for order in (2, 4) if order in parts and (parts[order] < 0).any()]:
        return f"a moment of order {odd[0]} below 0"
    if span is None or name == "spread":  # its point is not the client's own mean
        return ""
    if name == "powers":
        parts = dict(
            zip(
                orders,
                central(values, np.broadcast_to(point, parts[1].shape)).swapaxes(0, 1),
                strict=True,
            )
        )
    low = span.astype(np.float64)[:, :1]
    high = span.astype(np.float64)[:, 1:]
    largest = np.maximum(np.abs(low), np.abs(high))
    rounding = 1e-4 * largest
    # powers about a point round by its size, also if all features are 0
    far = largest + np.abs(point)
    if (
        (parts[1] < low - rounding - 1e-12 * far) | (parts[1] > high + rounding + 1e-12 * far)
    ).any():
        return "a mean outside the range of the features"
    for order in parts.keys() - {1}:
        if (
            np.abs(parts[order]) > 1.01 * (high - low + rounding) ** order + 1e-12 * far**order
        ).any():
            return f"a moment of order {order} beyond the range of the features"
    return ""
