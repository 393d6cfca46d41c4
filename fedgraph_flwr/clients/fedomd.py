"""FedOMD client (Tang et al., ICPP Workshops 2024, doi 10.1145/3677333.3678159).

    L_i = CE(training nodes) + α L_ortho + β d_CMD                                                     Eq. (12)
    d_CMD = Σ_k ( ‖M_i^k − M^k‖₂ / (b−a) + Σ_{j=2}^{5} ‖C_{i,j}^k − S_j^k‖₂ / (b−a)^j )                Eq. (11)

M_i, C_{i,j}: mean and central moments of the client's own hidden features in the training pass, with gradient; M, S: the pooled
moments as received, constant through the round's local steps. Line 19 of Algorithm 1 also sums over clients, which no client
can do. Eq. (11) uses the training nodes, Algorithm 1 all nodes (the default).
The received model gives the statistics that leave, without dropout, so that pooling them is exact. Dropout (not in the paper)
is therefore off by default: it widens the client's own distribution beyond the pooled one. The norms of Eq. (11), whose
gradient does not vanish near 0, then shrink the features round by round until every ReLU is dead.
``model.ortho=false`` drops O(W) and L_ortho together, whatever ``model.ortho_on`` is: Table 6 ablates the two as one part, and
the rest must be the plain GCN. ``model.ortho_on=raw`` computes L_ortho from W instead of O(W).
Leaves the client: see `fedgraph_flwr.strategies.fedomd`.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.requirements import network, unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError, Refusal
from fedgraph_flwr.methods import fedomd
from fedgraph_flwr.methods.fedomd import MOMENTS, RANGE, TARGET
from fedgraph_flwr.methods.moments import (
    ORDERS,
    central_moments,
    central_moments_of,
    discrepancy,
    moments_about,
    powers_about,
)
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.fedomd import OrthoGCN, Pass, orthogonality
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, MODEL, Arrays
from fedgraph_flwr.wire.reply_schema import check_shapes


class CachedForward(NamedTuple):
    """A forward pass of the received model, and the versions of the model's tensors in it.

    Attributes:
        versions: torch's change counters, one per tensor.
        out: the pass, with its graph if a step can use it.
        moments: moments of its features, [H, 5, D].
    """

    versions: list[int]
    out: Pass
    moments: Tensor


class FedOMDClient(GraphClient, method=fedomd, requires=(network(OrthoGCN, "fedomd"),)):
    """FedAvg's client with the orthogonality and moment terms in its objective."""

    samples: ClassVar[str] = "whole"
    repeats: ClassVar[Mapping[str, int]] = {"moments_about": 64}  # about another point for each lost client
    secrets: ClassVar[tuple[str, ...]] = ("statistics", "width")
    model: OrthoGCN
    stacks: ClassVar[tuple[str, ...] | None] = ("target",)
    target: dict[str, Tensor] | None = None  # from `receive` with the last model; None or empty: no moment term
    cached: CachedForward | None = None  # forward pass of the statistics sent last

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require, of a sampled step, moments of the nodes that it computes."""
        super().check(cfg, model)
        params = method_params(cls, cfg)
        if params.cmd and params.beta and params.cmd_nodes == "all" and cfg.train.sampler != "none":
            got, remedy = f"train.sampler={cfg.train.sampler}", "set strategy.cmd_nodes=train or train.sampler=none"
            raise unfit(cfg, "all nodes in a step for strategy.cmd_nodes=all", got, remedy)

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the pooled moments [H, 5, D] and, with ``cmd_range=pooled``, the widths b − a [H]."""
        if TARGET in groups:
            layers, width = self._shape
            shapes = {"moments": (layers, 5, width), **({"span": (layers,)} if "span" in groups[TARGET] else {})}
            check_shapes(groups[TARGET], shapes, "the server sent pooled moments")
            if (groups[TARGET].get("span", np.ones(1)) <= 0).any():
                raise FedGraphError("the server sent pooled moments with a span of features that is not above 0")
            if "span" in groups[TARGET] and not self.policy.trusting:
                self._check_span(groups[TARGET]["span"])
        self.target = {name: torch.from_numpy(a).to(self.device) for name, a in groups.get(TARGET, {}).items()}

    def _check_span(self, span: np.ndarray) -> None:
        """Refuse a pooled span below the client's own: its powers divide the moments, and one step could go anywhere.

        Raises:
            Refusal: names both.
        """
        asked = int(self.memory.get("statistics", torch.tensor([-1, 0]))[0])
        if asked != self.server_round:
            raise Refusal("the server sent a span of features without a request for this client's in the same round")
        width = to_numpy(self.memory["width"])
        if (span < width * (1 - 1e-3)).any():
            raise Refusal(
                f"the server sent a pooled span of features {span.min():g}, expected at least this client's own"
                f" {width[span.argmin()]:g}"
            )

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """Overwrite the shared tensors, unless the values are equal, so that the cached pass of the statistics stays valid."""
        received = (torch.from_numpy(np.asarray(array)).to(self.device) for array in parameters)
        if not (self._valid_cache() and all(map(torch.equal, self.shared.values(), received))):
            super().set_parameters(parameters)

    def loss(self) -> Tensor:
        """Compute Eq. (12)."""
        out, moments = self._step_pass()
        loss = self.task_loss(out.logits)
        if self.params.alpha and out.weights:
            loss = loss + self.params.alpha * orthogonality(out.weights)
        if self.target:
            target = self.target["moments"]
            span = self.target.get("span", target.new_ones(len(target)))
            statistics = self._moments(out.hidden) if moments is None else moments
            loss = loss + self.params.beta * discrepancy(statistics, target, span, self.params.cmd_norm)
        return loss

    def predict(self) -> Tensor:
        """Compute logits [N, C], or return those of the round's statistics if the model has not changed."""
        cached = self._valid_cache()
        return cached.out.logits.detach() if cached else super().predict()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self.model.tensors.values()]

    def _valid_cache(self) -> CachedForward | None:
        """Return the pass of the round's statistics, if the model has not changed since."""
        return self.cached if self.cached and self.cached.versions == self._versions() else None

    @property
    def _reuses_pass(self) -> bool:
        """Whether the first step can use the statistics' pass: without dropout and batches, and if clients are not stacked."""
        return not self.model.dropout and not self.cfg.at_once and self.sampled is None

    def _step_pass(self) -> tuple[Pass, Tensor | None]:
        """Return a step's pass, and its moments if they are cached. A graph can be used once."""
        cached = self._valid_cache() if self._reuses_pass and self.batch.inputs is self.inputs else None
        self.cached = None
        return (cached.out, cached.moments) if cached else (self.model.propagate(self.batch.inputs), None)

    def describe(self) -> dict[str, Any]:
        """Add the number of nodes to the description, if it weights moments."""
        description = super().describe()
        declared = self.uplink_of[DESCRIBE].get(METRICS)
        if declared and "num_nodes" not in description:
            return {**description, "num_nodes": self.graph.num_nodes}
        return description

    @phase
    def means(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply in the first exchange of ``two_phase``: own mean [H, D] (Algorithm 1, lines 3 and 8)."""
        z, moments = self._features_of(groups[MODEL])
        return self._statistics(z, moments, mean=moments[:, 0])

    @phase
    def moments_about(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply in the second exchange of ``two_phase``: moments about the pooled mean, [H, 4, D] (lines 12-15)."""
        z, _ = self._features_of(groups[MODEL])
        mean = torch.from_numpy(self._point(groups)).to(z)
        return {MOMENTS: {"spread": to_numpy(moments_about(z, mean))}}, {}

    @phase
    def moments_sum(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply in the only statistics exchange of ``one_phase``: moments about a common point, [H, 5, D]."""
        z, moments = self._features_of(groups[MODEL])
        powers = powers_about(z, torch.from_numpy(self._point(groups)).to(z.device))
        return self._statistics(z, moments, powers=powers)

    @property
    def _shape(self) -> tuple[int, int]:
        """Number H of hidden layers, and their width D."""
        return self.cfg.model.layers - 1, self.cfg.model.hidden

    def _point(self, groups: dict[str, Arrays]) -> np.ndarray:
        """Return the point about which moments are requested, [H, D]."""
        check_shapes(groups["point"], {"mean": self._shape}, "the server sent a point of moments")
        return groups["point"]["mean"]

    def _features(self, hidden: list[Tensor]) -> Tensor:
        """Select the features for moments: [N', H, D]; of a batch, those of its training nodes."""
        if self.batch.nodes is None:
            hidden = [features[: len(self.batch.y)] for features in hidden]
        z = torch.stack(hidden, dim=1)
        if self.params.cmd_nodes == "train" and self.batch.nodes is not None:
            z = z[self.batch.nodes]
        return torch.sigmoid(z) if self.params.cmd_act == "sigmoid" else z

    def _moments(self, hidden: list[Tensor]) -> Tensor:
        """Compute moments of the features, [H, 5, D]; for stacked clients, only of rows that are nodes."""
        if self.real is None:
            return central_moments(self._features(hidden))
        return central_moments_of(
            self._features(hidden), self.real if self.params.cmd_nodes == "all" else self.batch.y >= 0
        )

    def _features_of(self, model: Arrays) -> tuple[Tensor, Tensor]:
        """Compute features [N', H, D] of the received model without dropout, and their moments [H, 5, D].

        The pass also gives the logits that `predict` scores and, without dropout, the pass of the first step.

        Raises:
            FedGraphError: there are too few nodes, or statistics of another model left in this round. Statistics of a few
                models that a malicious server makes up would reveal the features.
        """
        self._check_once(model)
        self.set_parameters([model[name] for name in self.shared])
        self.model.eval()
        if not (cached := self._valid_cache()):
            with torch.set_grad_enabled(self._reuses_pass):
                out = self.model.propagate(self.inputs)
                cached = self.cached = CachedForward(self._versions(), out, central_moments(self._features(out.hidden)))
        z, least = self._features(cached.out.hidden).detach(), self.least
        if len(z) < least:
            raise FedGraphError(
                f"client {self.graph.client} has {len(z)} nodes for its moments, expected at least {least}"
                " (the larger of strategy.min_nodes and min_nodes of its node's policy): lower one of them or num_clients"
            )
        return z, cached.moments.detach()

    def _check_once(self, model: Arrays) -> None:
        digest = hashlib.blake2b(b"".join(model[name].tobytes() for name in self.shared), digest_size=7).digest()
        current = torch.tensor([self.server_round, int.from_bytes(digest, "little")])
        last = self.memory.get("statistics", torch.tensor([-1, 0])).cpu()
        if last[0] == current[0] and last[1] != current[1]:
            raise FedGraphError(
                f"client {self.graph.client}: the server requests statistics of a second model in round {self.server_round}"
            )
        self.memory["statistics"] = current

    def _statistics(self, z: Tensor, moments: Tensor, **statistics: Tensor) -> ReplyContent:
        """Reply with statistics of features z [N', H, D] and, with ``cmd_range=pooled``, their range in a separate group."""
        groups = {MOMENTS: {name: to_numpy(value) for name, value in statistics.items()}}
        if self.params.cmd_range == "pooled":
            ends = range_of(z, moments, max(self.least, 1))
            if not self.policy.trusting:
                self.memory["width"] = ends[:, 1] - ends[:, 0]
            groups[RANGE] = {"range": to_numpy(ends)}
        return groups, {}


def range_of(z: Tensor, moments: Tensor, least: int) -> Tensor:
    """Return each layer's range of features that at least ``least`` nodes reach at either end, [H, 2].

    The largest feature of all is one node's. For more than one node, the range is widened to hold the mean, and to be as wide as
    the moments require, which are statistics of all nodes.

    Args:
        z: features [N', H, D].
        moments: their mean and central moments [H, 5, D].
        least: number of nodes.
    """
    low = z.amin(2).topk(least, dim=0, largest=False).values[-1]
    high = z.amax(2).topk(least, dim=0).values[-1]
    if least > 1:
        low, high = torch.minimum(low, moments[:, 0].amin(1)), torch.maximum(high, moments[:, 0].amax(1))
        roots = [moments[:, order - 1].abs().amax(1) ** (1 / order) for order in ORDERS]
        high = torch.maximum(high, low + torch.stack(roots).amax(0))
    return torch.stack([low, high], dim=1)
