"""FedOMD (Tang et al., ICPP Workshops 2024, doi 10.1145/3677333.3678159), server side.

    M^k = Σ_i n_i M_i^k / Σ_i n_i                                                        Eq. (10)
    S_j^k = Σ_i n_i S_{i,j}^k / Σ_i n_i,  S_{i,j}^k = mean over client i's nodes of (Z_i^k − M^k)^j,  j = 2..5
    W = Σ_i λ_i W_i,  λ_i by ``strategy.weighting`` (nodes)                              Algorithm 1, lines 26-29

for the H hidden layers Z^k, each of width D, of the received model without dropout. ``one_phase`` asks each client for its
mean and its moments about that mean, and shifts them to the pooled mean by the binomial theorem; ``two_phase`` is the
paper's exchange: means, then moments about the pooled mean. Both give the same M and S, and so does a secure sum
(``privacy.secagg``) of moments about a point that all know, the former round's M: the server sees the pooled ones alone, but for
each layer's range, of which ``cmd_range=unit`` asks none.

Numbers in a message, each client, with P shared parameters (messages also name phase and round, replies the client):

    phase                      down               up
    describe (once)            0                  4: n_i (where nodes weigh), training nodes, F, C
    moments (one_phase)        P                  5 H D + 2 H + 1
    means (two_phase)          P                  H D + 2 H + 1
    moments_about (two_phase)  P + H D            4 H D + 1
    moments_sum (secure)       P + H D            5 H D + 2 H + 1
    train                      P + 5 H D + H + 2  P + 2: training nodes, loss; + 8 scores of the received model after round 1
    evaluate (at the end)      P                  8: nodes, loss, accuracy and macro-F1, for validation and test

The terms 2 H and H, each layer's range, are absent with ``cmd_range=unit``; the + 2 say whether to score the model and to
keep a checkpoint. The model goes down in every exchange, so that a client needs no memory between them. With ``cmd`` off or
beta = 0 the exchanges of moments are left out, and ``train`` is sent none.

What reproduces: its paper's own figures in most rows. What does not: its gain over FedAvg, which on the same stack without the
two terms is level or above. We think that the moment term as printed, whose gradient has one length however near the moments
are, outweighs the labels at β = 10; squared (``cmd_norm=squared``) it fades (docs/reproduction.md).

Leaves a client: W_i, n_i, and means and moments of its hidden features, which for a client of very few nodes come close to
the features themselves (one node: its mean is its feature). Never leaves it: X, A, Y, the features of single nodes.

A client that fails between two exchanges is out for the round. If that happens after ``means``, the mean is pooled again from
those left, who are asked again, since moments about any other point are not central.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.fedomd import MOMENTS, RANGE, TARGET, Params
from fedgraph_flwr.methods.moments import ORDERS, central, mean_over_nodes, pool
from fedgraph_flwr.models import Model
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.wire.messages import MODEL, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, NumberField, ReplySchema


class FedOMD(GraphStrategy):
    """FedAvg, with the pooled moments of the cohort's hidden features sent along."""

    Params: ClassVar[type] = Params

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """A secure sum is one exchange, weighted by what is known before it."""
        params = method_params(cls, cfg)
        if not (cfg.privacy.secagg and params.cmd and params.beta):
            return
        if params.exchange != "one_phase":
            raise FedGraphError(
                f"privacy.secagg=true takes all moments from one sum: set strategy.exchange=one_phase, not {params.exchange}"
            )
        if params.cmd_nodes == "all" and cfg.strategy.weighting != "nodes":
            raise FedGraphError(
                "privacy.secagg=true weighs moments by numbers of nodes, which are told before round 1 only with"
                f" strategy.weighting=nodes, not {cfg.strategy.weighting}: set that, or strategy.cmd_nodes=train"
            )

    def schema(self, phase: str, client: int | None) -> ReplySchema:
        """Statistics of H hidden layers of width D, and of how many nodes they are."""
        layers, width = self.cfg.model.layers - 1, self.cfg.model.hidden
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "moments": {"moments": (layers, 5, width)},
            "means": {"mean": (layers, width)},
            "moments_about": {"spread": (layers, 4, width)},
            "moments_sum": {"powers": (layers, 5, width)},
        }
        if phase not in shapes:
            return super().schema(phase, client)
        groups: dict[str, dict[str, ArrayField]] = {
            MOMENTS: {
                n: ArrayField(s, "float64" if n == "powers" else self.cfg.dtype) for n, s in shapes[phase].items()
            }
        }
        if self.params.cmd_range == "pooled" and phase != "moments_about":
            groups.setdefault(RANGE if phase == "moments_sum" else MOMENTS, {})["range"] = ArrayField(
                (layers, 2), self.cfg.dtype
            )
        known = self.clients[client].description if client is not None else {}
        nodes = known.get("num_nodes" if self.params.cmd_nodes == "all" else "num_train")
        low, high = (1, LARGEST) if nodes is None else (nodes, nodes)
        return ReplySchema(groups, {"count": NumberField(low, high, whole=True)})

    def verify(self, phase: str, reply: Reply) -> None:
        """Moments must be of some features: even orders are no less than 0, and none leaves what the told range allows."""
        group = reply.groups.get(MOMENTS, {}) | reply.groups.get(RANGE, {})
        for name, values in group.items():
            if problem := impossible(name, values.astype(np.float64), group.get("range")):
                raise FedGraphError(
                    f"client {reply.client} answered phase '{phase}' with {MOMENTS}/{name} of no features: {problem}"
                )

    def before_train(self, arrays: Arrays) -> dict[str, Arrays]:
        """Pool the moments of the cohort; the cohort shrinks to the clients that told theirs."""
        if not (self.params.cmd and self.params.beta):
            return {}
        exchange = {"one_phase": self._one_phase, "two_phase": self._two_phase}[self.params.exchange]
        replies, moments = (self._summed if self.secure else exchange)(arrays)
        self.drop(set(self.cohort) - {reply.client for reply in replies})
        dtype = next(iter(arrays.values())).dtype
        target = {"moments": moments.astype(dtype)}
        if self.params.cmd_range == "pooled":
            ranges = _stacked(replies, "range", RANGE if self.secure else MOMENTS)  # smallest and largest, [M, H, 2]
            span = ranges[..., 1].max(0) - ranges[..., 0].min(0)
            target["span"] = np.where(span > 0, span, 1).astype(dtype)  # a dead layer has no range
        return {TARGET: target}

    def _one_phase(self, arrays: Arrays) -> tuple[list[Reply], np.ndarray]:
        replies = self.ask("moments", {MODEL: arrays})
        return replies, pool(_stacked(replies, "moments"), _counts(replies))

    def _summed(self, arrays: Arrays) -> tuple[list[Reply], np.ndarray]:
        """As `_one_phase`, from sums of moments about the previous mean: far from it, powers would lose significant digits."""
        layers, width = self.cfg.model.layers - 1, self.cfg.model.hidden
        point = self.memory.get("mean", np.zeros((layers, width)))
        replies = self.ask_sums("moments_sum", {MODEL: arrays, "point": {"mean": point}}, self._nodes)
        pooled = central(replies[0].groups[MOMENTS]["powers"].astype(np.float64), point)
        self.memory["mean"] = pooled[:, 0]
        return replies, pooled

    def _nodes(self, clients: list[int]) -> list[float]:
        """Of how many nodes each client's moments are, as it told at first."""
        key = "num_nodes" if self.params.cmd_nodes == "all" else "num_train"
        return [float(np.sum(self.clients[client].description[key])) for client in clients]

    def _two_phase(self, arrays: Arrays) -> tuple[list[Reply], np.ndarray]:
        told = {reply.client: reply for reply in self.ask("means", {MODEL: arrays})}
        asked = list(told.values())
        while True:
            mean = mean_over_nodes(_stacked(asked, "mean"), _counts(asked))
            point = {"mean": mean.astype(asked[0].groups[MOMENTS]["mean"].dtype)}
            answers = self.ask("moments_about", {MODEL: arrays, "point": point}, [reply.client for reply in asked])
            if len(answers) == len(asked):
                spread = mean_over_nodes(_stacked(answers, "spread"), _counts(answers))
                return asked, np.concatenate([mean[:, None], spread], axis=1)
            asked = [told[reply.client] for reply in answers]


def _stacked(replies: list[Reply], key: str, group: str = MOMENTS) -> np.ndarray:
    """One array of the replies' statistics, over clients: [M, ...]."""
    return np.stack([reply.groups[group][key] for reply in replies])


def impossible(name: str, values: np.ndarray, span: np.ndarray | None) -> str:
    """Why no features of any nodes have these statistics; empty where some have.

    Args:
        name: ``mean`` [H, D], ``moments`` [H, 5, D], ``spread`` [H, 4, D] or ``range`` [H, 2].
        values: the statistics.
        span: smallest and largest feature of each layer [H, 2], where told.
    """
    if name == "range":
        return "a smallest feature above the largest" if (values[:, 0] > values[:, 1]).any() else ""
    orders = {"mean": (1,), "spread": ORDERS, "moments": (1, *ORDERS)}[name]
    parts = dict(zip(orders, values.reshape(len(values), len(orders), -1).swapaxes(0, 1), strict=True))  # [H, D] each
    if odd := [order for order in (2, 4) if order in parts and (parts[order] < 0).any()]:
        return f"a moment of order {odd[0]} below 0"
    if span is None or name == "spread":  # of which the point is not the client's own mean
        return ""
    low, high = span.astype(np.float64)[:, :1], span.astype(np.float64)[:, 1:]
    rounding = 1e-4 * np.maximum(np.abs(low), np.abs(high))
    if ((parts[1] < low - rounding) | (parts[1] > high + rounding)).any():
        return "a mean outside the range of the features"
    for order in parts.keys() - {1}:
        if (np.abs(parts[order]) > 1.01 * (high - low + rounding) ** order).any():
            return f"a moment of order {order} beyond the range of the features"
    return ""


def _counts(replies: list[Reply]) -> np.ndarray:
    return np.array([reply.metrics["count"] for reply in replies])
