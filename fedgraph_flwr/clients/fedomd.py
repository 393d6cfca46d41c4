"""FedOMD client (Tang et al., ICPP Workshops 2024, doi 10.1145/3677333.3678159).

    L_i = CE(training nodes) + α L_ortho + β d_CMD                                                     Eq. (12)
    d_CMD = Σ_k ( ‖M_i^k − M^k‖₂ / (b−a) + Σ_{j=2}^{5} ‖C_{i,j}^k − S_j^k‖₂ / (b−a)^j )                Eq. (11)

M_i, C_{i,j}: mean and central moments of the client's own hidden features in the training pass, with gradient; M, S: the
pooled ones as received, constant through the round's local steps. Line 19 of Algorithm 1 sums over clients too, which no
client can; Eq. (11) has the training nodes, Algorithm 1 all nodes (the default).
The statistics that leave come from the received model without dropout, so that pooling them is exact. Dropout (not in the
paper) is therefore off by default: it widens the client's own distribution beyond the pooled one, and the norms of Eq. (11),
whose gradient does not fade near 0, then shrink the features round by round until every ReLU is dead.
``model.ortho=false`` drops O(W) and L_ortho together, whatever ``model.ortho_on`` says: Table 6 ablates the two as one part,
and what is left must be the plain GCN. ``model.ortho_on=raw`` lets L_ortho judge W instead of O(W) where O(W) is in use.
Leaves the client: see `fedgraph_flwr.strategies.fedomd`.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase, to_numpy
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedomd
from fedgraph_flwr.methods.fedomd import MOMENTS, RANGE, TARGET, Params
from fedgraph_flwr.methods.moments import central_moments, central_moments_of, discrepancy, moments_about, powers_about
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.fedomd import OrthoGCN, Pass, orthogonality
from fedgraph_flwr.secure.secagg import DEAL, PUBLISH, UNMASK
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, MODEL, Arrays


class Taken(NamedTuple):
    """A pass of the received model, and which versions of the network's tensors it was of.

    Attributes:
        versions: torch's counters of changes, one a tensor.
        out: the pass, with its graph where a step can go on from it.
        moments: of its features, [H, 5, D].
    """

    versions: list[int]
    out: Pass
    moments: Tensor


class FedOMDClient(GraphClient):
    """FedAvg's client with the orthogonality and moment terms in its objective."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(fedomd.uplink)
    repeats: ClassVar[Mapping[str, int]] = {
        "moments_about": 64,  # about another point for each client lost
        **dict.fromkeys((PUBLISH, DEAL, UNMASK), 2),  # of secure sums of moments, and of models
    }
    secrets: ClassVar[tuple[str, ...]] = ("statistics",)
    model: OrthoGCN
    stacks: ClassVar[tuple[str, ...] | None] = ("target",)
    target: dict[str, Tensor] | None = None  # what `receive` took with the last model; None or empty: no moment term
    taken: Taken | None = None  # for the statistics that left last

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """The network must be the orthogonal GCN."""
        if not isinstance(model, OrthoGCN):
            raise FedGraphError(f"strategy={cfg.strategy.name} needs model=fedomd, got {cfg.model.name}")

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the pooled moments [H, 5, D] and, with ``cmd_range=pooled``, the widths b − a [H]."""
        self.target = {name: torch.from_numpy(a).to(self.device) for name, a in groups.get(TARGET, {}).items()}

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """As the base; the model whose statistics have just left is not written again, so that its pass stands."""
        came = (torch.from_numpy(np.asarray(array)).to(self.device) for array in parameters)
        if not (self._still() and all(map(torch.equal, self.shared.values(), came))):
            super().set_parameters(parameters)

    def loss(self) -> Tensor:
        """Eq. (12)."""
        out, moments = self._step_pass()
        loss = self.task_loss(out.logits)
        if self.params.alpha and out.weights:
            loss = loss + self.params.alpha * orthogonality(out.weights)
        if self.target:
            target = self.target["moments"]
            span = self.target.get("span", target.new_ones(len(target)))
            own = self._moments(out.hidden) if moments is None else moments
            loss = loss + self.params.beta * discrepancy(own, target, span, self.params.cmd_norm)
        return loss

    def predict(self) -> Tensor:
        """Logits [N, C]; those of the round's statistics where the model is still that one."""
        taken = self._still()
        return taken.out.logits.detach() if taken else super().predict()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self.tensors.values()]

    def _still(self) -> Taken | None:
        """The pass of the round's statistics, while the model is as it was."""
        return self.taken if self.taken and self.taken.versions == self._versions() else None

    @property
    def _first_step_taken(self) -> bool:
        """Whether the pass of the statistics is that of the first step, too: without dropout, and by each client alone."""
        return not self.model.dropout and not self.cfg.at_once

    def _step_pass(self) -> tuple[Pass, Tensor | None]:
        """A step's pass, and its moments where they are at hand. A graph serves once."""
        taken = self._still() if self._first_step_taken and self.batch.inputs is self.inputs else None
        self.taken = None
        return (taken.out, taken.moments) if taken else (self.model.propagate(self.batch.inputs), None)

    def describe(self) -> dict[str, Any]:
        """Also the number of nodes, where moments weigh by it."""
        told = super().describe()
        wanted = self.declared[DESCRIBE].get(METRICS)
        return {**told, "num_nodes": self.graph.num_nodes} if wanted and "num_nodes" not in told else told

    @phase
    def means(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """First of ``two_phase``: own mean [H, D] (Algorithm 1, lines 3 and 8)."""
        z, moments = self._features_of(groups[MODEL])
        return self._statistics(z, mean=moments[:, 0])

    @phase
    def moments_about(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Second of ``two_phase``: moments about the pooled mean, [H, 4, D] (lines 12-15)."""
        z, _ = self._features_of(groups[MODEL])
        mean = torch.from_numpy(groups["point"]["mean"]).to(z)
        return {MOMENTS: {"spread": to_numpy(moments_about(z, mean))}}, {}

    @phase
    def moments_sum(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """The only statistics exchange of ``one_phase``: moments about a point that all are sent, [H, 5, D]."""
        z, _ = self._features_of(groups[MODEL])
        return self._statistics(z, powers=powers_about(z, torch.from_numpy(groups["point"]["mean"]).to(z.device)))

    def _features(self, hidden: list[Tensor]) -> Tensor:
        """The features whose moments count: [N', H, D]."""
        z = torch.stack(hidden, dim=1)
        if self.params.cmd_nodes == "train":
            z = z[self.batch.nodes]
        return torch.sigmoid(z) if self.params.cmd_act == "sigmoid" else z

    def _moments(self, hidden: list[Tensor]) -> Tensor:
        """Those of the features, [H, 5, D]; of rows that are nodes, where others stand below them."""
        if self.real is None:
            return central_moments(self._features(hidden))
        return central_moments_of(
            self._features(hidden), self.real if self.params.cmd_nodes == "all" else self.batch.y >= 0
        )

    def _features_of(self, model: Arrays) -> tuple[Tensor, Tensor]:
        """The features [N', H, D] of the received model without dropout, and their moments [H, 5, D].

        The pass also gives the logits that `predict` scores and, where nothing is dropped, the first step its own.

        Raises:
            FedGraphError: they are of too few nodes, or statistics of another model left in this round: of models that a server
                makes up, a few tell the features themselves.
        """
        self._once_a_round(model)
        self.set_parameters([model[name] for name in self.shared])
        self.model.eval()
        if not (taken := self._still()):
            with torch.set_grad_enabled(self._first_step_taken):
                out = self.model.propagate(self.inputs)
                taken = self.taken = Taken(self._versions(), out, central_moments(self._features(out.hidden)))
        z, least = self._features(taken.out.hidden).detach(), self.least
        if len(z) < least:
            raise FedGraphError(
                f"client {self.graph.client} has {len(z)} nodes to tell moments of, at least {least} are needed"
                " (strategy.min_nodes, and min_nodes of its node's policy)"
            )
        return z, taken.moments.detach()

    def _once_a_round(self, model: Arrays) -> None:
        digest = hashlib.blake2b(b"".join(model[name].tobytes() for name in self.shared), digest_size=7).digest()
        asked = torch.tensor([self.server_round, int.from_bytes(digest, "little")])
        last = self.memory.get("statistics", torch.tensor([-1, 0])).cpu()
        if last[0] == asked[0] and last[1] != asked[1]:
            raise FedGraphError(
                f"client {self.graph.client} is asked for statistics of a second model in round {self.server_round}"
            )
        self.memory["statistics"] = asked

    def _statistics(self, z: Tensor, **statistics: Tensor) -> ReplyContent:
        """A reply with statistics of features z [N', H, D] and, with ``cmd_range=pooled``, their range in a group of its own."""
        groups = {MOMENTS: {name: to_numpy(value) for name, value in statistics.items()}}
        if self.params.cmd_range == "pooled":
            groups[RANGE] = {"range": to_numpy(torch.stack([z.amin((0, 2)), z.amax((0, 2))], dim=1))}  # [H, 2]
        return groups, {}
