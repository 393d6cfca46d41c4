"""FGSSL client (Huang et al., IJCAI 2023, arXiv:2305.04559): the received model is the teacher of two node-wise losses.

    L = CE(f_θ(X, A)) + λ_C L_C + λ_D L_D,   s_vu = cos(z_v, z'_u) / τ
    L_C = ½ mean_v −(1/|P_v|) Σ_{p ∈ P_v} (log [e^{s_vp} / Σ_u e^{s_vu}] + log [e^{s_pv} / Σ_u e^{s_uv}])  ``denominator=shared``
    L_C = mean_v −(1/|P_v|) Σ_{p ∈ P_v} log [e^{s_vp} / (e^{s_vp} + Σ_{n: y_n ≠ y_v} e^{s_vn})]              ``denominator=own``
    L_D = mean_v Σ_{u ∈ N(v)} q_vu log(q_vu / p_vu) with ``structure=neighbours``,
          p_vu = softmax over N(v) of cos(z_v, z_u) / τ, q likewise of z'
    L_D = mean_{(v,u)} KL(softmax(|z'_v − z'_u| / τ) ‖ softmax(|z_v − z_u| / τ)), over channels       ``structure=edges``, OpenFGL

Here z are hidden features of the trained model on a strong view of the graph (80 % of edges dropped, 50 % of feature columns
zeroed). The features z' are those of the received model, frozen and without dropout, on a weak view (30 %, 30 %). Views are
drawn in every step. v, u and n are training nodes, at most 2,048 of them drawn per step. P_v are those of v's class,
including v. N(v) are v's neighbours in the whole graph. Written from memory of the paper, so without its equation numbers.

L_C with ``denominator=shared`` is the InfoNCE of the authors' code (`GCL/losses/infonce.py`, commit 1eecabc). All positives and
negatives share one denominator, and both directions are averaged. With ``denominator=own`` each positive competes with the
negatives only. That pulls a class together without bound and collapses under the default weight: on Cora (10 clients, 30
rounds) it ends at the majority class. The authors' node trainer assigns the pair of views twice. It therefore contrasts the
local weak view with the local strong one, and leaves L_D unused. OpenFGL uses only L_D (λ_C = 0, ``structure=edges``, λ_D =
0.1). The authors use a learning rate of 5 and clip gradients to 0.01. Both settings belong together; neither is a default here.

λ_C = λ_D = 0 is FedAvg.
Leaves the client: what FedAvg sends.
Cost: three more passes per step, two prepared graphs, and E H + V² products (V training nodes). It helps
where clients' models drift apart within a round: several local steps, few labels.
"""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.requirements import hidden_features
from fedgraph_flwr.config import RunConfig, choice
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.layers import proper_pattern
from fedgraph_flwr.models.stack import Stack
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix

TEMPERATURE = 0.1
"""τ (the authors' code)."""

WEAK, STRONG = (0.3, 0.3), (0.8, 0.5)
"""Shares of edges dropped and of feature columns zeroed in the teacher's and the student's view (the authors' code)."""

ANCHORS = 2048
"""(ours) Maximum number of training nodes in L_C per step."""


@dataclass
class Params:
    """Keys of FGSSL."""

    contrast: float = 1.0  # λ_C (ours), tuned on validation nodes (the authors' code: 3, OpenFGL: 0)
    # denominator of a positive in L_C: shared by all pairs, as in the authors' code | own: itself and the negatives
    denominator: str = choice("shared", ("shared", "own"))
    structure_weight: float = 0.1  # λ_D, as OpenFGL; the authors' code computes the term but does not use it
    # L_D over similarities of neighbours | edges: over channels, as OpenFGL
    structure: str = choice("neighbours", ("neighbours", "edges"))

    @property
    def teaches(self) -> bool:
        """Whether training adds terms to FedAvg's loss."""
        return bool(self.contrast or self.structure_weight)


def contrast(z: Tensor, teacher: Tensor, y: Tensor, temperature: float, denominator: str = "shared") -> Tensor:
    """Return L_C from the anchors' features [V, H], the teacher's features [V, H] and labels [V]."""
    s = F.normalize(z, dim=1) @ F.normalize(teacher, dim=1).T / temperature  # [V, V]
    same = y[:, None] == y
    if denominator == "own":
        others = s.masked_fill(same, -torch.inf).logsumexp(1, keepdim=True)  # −∞ for an anchor without negatives
        return (((torch.logaddexp(s, others) - s).masked_fill(~same, 0)).sum(1) / same.sum(1)).mean()
    log_shares = s.log_softmax(1) + s.log_softmax(0)  # [V, V]; a column's anchor is the teacher's row
    return -(log_shares.masked_fill(~same, 0).sum(1) / same.sum(1)).mean() / 2


def log_shares(z: Tensor, pairs: Pattern, temperature: float) -> Tensor:
    """Return the log-softmax of cos(z_v, z_u) / τ over each row's entries, [E]."""
    unit = F.normalize(z, dim=1)
    score = pairs.dot(unit, unit) / temperature
    score = score - pairs.row_max(score.detach())[pairs.row]
    return score - pairs.row_sum(score.exp()).log()[pairs.row]


def neighbour_divergence(z: Tensor, teacher: Tensor, pairs: Pattern, temperature: float) -> Tensor:
    """Return L_D over neighbours: features [N, H] each, and N(v) as the rows of a pattern."""
    p, q = (log_shares(rows, pairs, temperature) for rows in (z, teacher))
    return (q.exp() * (q - p)).sum() / max(int((pairs.pointer.diff() > 0).sum()), 1)


def edge_divergence(z: Tensor, teacher: Tensor, pairs: Pattern, temperature: float) -> Tensor:
    """Return L_D over the channels of each edge: features [N, H] each."""
    p, q = (((h[pairs.row] - h[pairs.col]).abs() / temperature).log_softmax(1) for h in (z, teacher))
    return F.kl_div(p, q, reduction="batchmean", log_target=True) if p.numel() else z.sum() * 0


DIVERGENCES = {"neighbours": neighbour_divergence, "edges": edge_divergence}


class FGSSLClient(GraphClient):
    """FedAvg's client with the received model as a teacher.

    Attributes:
        teacher: frozen copy of the received model, during training.
    """

    calls_base: ClassVar[frozenset[str]] = frozenset({"train"})
    makes_graphs = True

    Params: ClassVar[type] = Params
    teacher: Model

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require trainable hidden features and one node type."""
        hidden_features(cfg, model, "compares", layers=2 if method_params(cls, cfg).teaches else 1)

    @cached_property
    def pairs(self) -> Pattern:
        """N(v) as rows of a pattern."""
        return proper_pattern(self.graph.edge_index, self.graph.num_nodes).to(self.device)

    @cached_property
    def features(self) -> SparseMatrix | None:
        """Sparse features if the model reads only features and adjacency, so that views reuse them; else None.

        Only for models of this package: how others prepare features is unknown.
        """
        network, inputs = type(self.model), self.inputs
        if network.capabilities.prepares_features:  # they depend on the edges
            return None
        ours = all(made.__module__.startswith("fedgraph_flwr.") for made in (network.prepare, network.features))
        plain = ours and isinstance(self.model, Stack) and type(inputs) is Inputs
        return inputs.x if plain and isinstance(inputs.x, SparseMatrix) else None

    def train(self) -> float:
        """Copy the received model as the teacher, then train."""
        if not self.params.teaches:
            return super().train()
        self.teacher = copy.deepcopy(self.model).eval().requires_grad_(False)
        loss = super().train()
        del self.teacher
        return loss

    def loss(self) -> Tensor:
        """Return L."""
        loss, p = super().loss(), self.params
        if not p.teaches:
            return loss
        with torch.no_grad():
            taught = self.teacher.encode(self.view(*WEAK))
        z = self.model.encode(self.view(*STRONG))
        if p.contrast:
            rows, y = self.anchors()
            loss = loss + p.contrast * contrast(z[rows], taught[rows], y, TEMPERATURE, p.denominator)
        if p.structure_weight:
            loss = loss + p.structure_weight * DIVERGENCES[p.structure](z, taught, self.pairs, TEMPERATURE)
        return loss

    def anchors(self) -> tuple[Tensor, Tensor]:
        """Return the rows of the nodes in L_C, and their labels."""
        rows = torch.arange(len(self.batch.y), device=self.device) if self.batch.nodes is None else self.batch.nodes
        count = max(ANCHORS, self.least)  # a great weight of L_C would leave the gradient of so few nodes
        if rows.numel() <= count:
            return rows, self.batch.y
        chosen = torch.randperm(rows.numel())[:count].to(self.device)
        return rows[chosen], self.batch.y[chosen]

    def view(self, edges: float, columns: float) -> Any:
        """Return the model's inputs without these shares of the stored edges and of the feature columns."""
        graph = self.graph
        kept = torch.rand(graph.edge_index.size(1)) >= edges
        seen = torch.rand(graph.num_features) >= columns
        made = replace(graph, edge_index=graph.edge_index[:, kept])
        if self.features is None:
            return self.model.prepare(replace(made, x=graph.x * seen), self.device, self.dtype)
        inputs = self.model.prepare(replace(made, x=graph.x[:, :0]), self.device, self.dtype)
        return replace(inputs, x=self.features.of_columns(seen.to(self.device)), propagated=None)
