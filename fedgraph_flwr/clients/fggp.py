"""FGGP client (Wan, Huang & Ye, AAAI 2024): aligns the prototypes of two views and predicts by them.

    pairs     own edges and the k most similar nodes of each by the received model's features, every f rounds; Ā their adjacency
    s_uv = h_u·h_v,   h = ReLU(Ā Ā X W_1 W_2) the augmentor;   π_e = (s_e / max s + 1) / 2
    second view: e is drawn from a relaxed Bernoulli of π_e (temperature 1, straight through), with loops, D^{-1/2} A D^{-1/2};
        the head reads Ā
    P^c, Q^c = confidence-weighted mean features of class c in the first and the second view: training nodes with their labels and
        weight 1, all others with the first view's prediction and its probability
    L = CE_1 + CE_2 + mean_c −log [e^{cos(Q^c, P^c)/τ} / (Σ_{c'} e^{cos(Q^c, P^{c'})/τ} + Σ_{c' ≠ c} e^{cos(Q^c, Q^{c'})/τ})]
        + (BCE(s, 1) over pairs + BCE(s, 0) over others) / 2
    Y_v = softmax over classes of log Σ_{b ∈ B, nearest votes} 1[c_b = c] e^{cos(f(v), b)/τ'}             ``inference=prototypes``

B is the server's bank; before there is one, and with ``inference=classifier``, the head predicts. Written from memory of the
paper, so without its equation numbers, and checked against the authors' code (GuanchengWan/FGGP fedced9, folder Code):

- Model: three graph convolutions, of which the last is the head (backbone/gnn/pmlp.py, lines 22 and 34-36; ``--depth`` of
  main_graph.py is not read), so f(v) comes after two. ``model=gcn3`` is the default. With two layers a prototype sees one hop.
- The third term of L is utils/util.py, lines 86-110: all similarities are cosines, and the second view's other classes are
  negatives too (``negatives=both``; ``other``: without them).
- Labels and confidences of both views are the first view's (models/fggp.py, lines 264-271).
- The bank is a queue of 10 rows per class, 20 on Twitch (models/fggp.py, lines 78-80, and backbone/knn.py, lines 73-81):
  ``queue``. It starts from random rows of class 0; here it starts empty.
- The head is not averaged: every client starts each round from its initial values (main_graph.py, lines 139-140, and
  models/fggp.py, lines 157-176): ``head=initial``, which needs ``inference=prototypes``.
- Different here: the second view is drawn over pairs only, and the BCE of the N² others is taken over as many drawn pairs, so no
  matrix is N x N; the augmentor stays at the client, while the authors average it; validation nodes are not tested on.

OpenFGL predicts with the head. Without the last three terms and with the head it is FedAvg.
Leaves the client: what FedAvg sends, and P^c [D] of each class that it has or predicts with ``min_nodes`` in sum of weights.
Cost: a second pass through the model, one through the augmentor, N² F / f products to find similar nodes, in blocks of rows.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.clients.part import assign
from fedgraph_flwr.clients.requirements import hidden_features, one_adjacency
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods import fggp
from fedgraph_flwr.methods.fggp import BANK, TOLD, Params
from fedgraph_flwr.methods.prototypes import WIDTH
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.layers import Linear
from fedgraph_flwr.models.structure_learner import top_k
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Pattern, ValuedMatrix
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree

PAIRS, SINCE, AUGMENTOR = "pairs", "since", "augmentor"


def alignment(q: Tensor, p: Tensor, temperature: float, negatives: str = "both") -> Tensor:
    """Compute the alignment loss of prototypes Q and P of the same classes, [c, D] each.

    Args:
        q: of the second view.
        p: of the first view.
        temperature: τ.
        negatives: of Q^c, ``both``: the other classes' P and Q, or ``other``: their P.
    """
    if not len(q):
        return q.sum() * 0
    q, p = F.normalize(q, dim=1), F.normalize(p, dim=1)
    score = q @ p.T
    if negatives == "both":
        own = torch.eye(len(q), dtype=torch.bool, device=q.device)
        score = torch.cat([score, (q @ q.T).masked_fill(own, -torch.inf)], 1)
    return -(score / temperature).log_softmax(1).diagonal().mean()


class Augmentor(nn.Module):
    """ReLU(Ā Ā X W_1 W_2), [N, F] → [N, H].

    Args:
        num_features: F.
        hidden: H.
    """

    def __init__(self, num_features: int, hidden: int):
        super().__init__()
        self.first, self.second = Linear(num_features, hidden, bias=False), Linear(hidden, hidden, bias=False)

    def forward(self, inputs: Inputs) -> Tensor:
        """[N, H]."""
        return torch.relu(inputs.adj @ self.second(inputs.adj @ self.first(inputs.x)))


class FGGPClient(GraphClient):
    """FedAvg's client with a second view; its pairs and the bank stand in `memory`.

    Attributes:
        augmentor: makes the second view.
    """

    Params: ClassVar[type] = Params
    uplink = staticmethod(fggp.uplink)
    predicts_with: ClassVar[tuple[str, ...]] = (BANK,)
    _pairs: tuple[Tensor, Tensor, Any, "Pairs"] | None = None

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Hidden features, of nodes of one type, and a network that propagates by one matrix."""
        hidden_features(cfg, model, "compares")

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        one_adjacency(self.cfg, self.inputs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.cfg.seed, AUGMENTOR))
            made = Augmentor(self.graph.num_features, self.cfg.model.hidden)
        self.augmentor = made.to(self.device, self.dtype)

    def describe(self) -> dict[str, Any]:
        """Also D."""
        return super().describe() | {WIDTH: self.features().size(1)}

    def parameters(self) -> list[nn.Parameter]:
        """The network's, and the augmentor's."""
        return [*super().parameters(), *self.augmentor.parameters()]

    def receive(self, groups: dict[str, Arrays]) -> None:
        """The bank, if there is one."""
        if told := groups.get(BANK):
            self.memory[BANK] = {name: torch.from_numpy(array).to(self.device) for name, array in told.items()}

    @torch.no_grad()
    def features(self) -> Tensor:
        """F of every node, without dropout, [N, D]."""
        self.model.eval()
        return self.model.encode(self.inputs)

    # --- the second view ----------------------------------------------------------------------------------------------

    @cached_property
    def links(self) -> Tensor:
        """Own edges as keys u N + v, u < v, ascending [E]."""
        ends = self.graph.edge_index.sort(dim=0).values
        ends = ends[:, ends[0] < ends[1]]
        return (ends[0] * self.graph.num_nodes + ends[1]).unique().to(self.device)

    def search(self) -> None:
        """Own edges and near nodes, as keys; where the last search is f rounds ago."""
        if PAIRS in self.memory and self.server_round - int(self.memory[SINCE]) < self.params.refresh:
            return
        n = self.graph.num_nodes
        unit = F.normalize(self.features(), dim=1)
        near = top_k(unit, unit, self.params.near)
        low, high = torch.minimum(near.row, near.col), torch.maximum(near.row, near.col)
        self.memory[PAIRS] = torch.cat([self.links, low * n + high]).unique()
        self.memory[SINCE] = torch.tensor(self.server_round)

    @property
    def pairs(self) -> tuple[Tensor, Tensor, Any, "Pairs"]:
        """Keys [E], ends [2, E], inputs with Ā and the matrix's pattern for the current pairs; rebuilt when they change."""
        keys = self.memory[PAIRS]
        if self._pairs is None or self._pairs[0] is not keys:
            ends = torch.stack([keys // self.graph.num_nodes, keys % self.graph.num_nodes])
            pattern = Pairs(ends, self.graph.num_nodes)
            smooth = pattern.weighted(torch.ones(keys.numel(), dtype=self.dtype, device=keys.device))
            self._pairs = keys, ends, replace(self.inputs, adj=smooth, propagated=None), pattern
        return self._pairs

    def second_view(self) -> tuple[Inputs, Inputs, Tensor]:
        """Draw the second view's edges: the inputs with them, those with Ā, and the augmentor's loss."""
        n, (keys, ends, smooth, pattern) = self.graph.num_nodes, self.pairs
        h = self.augmentor(smooth)
        score = (h[ends[0]] * h[ends[1]]).sum(1)
        top = h.square().sum(1).max()  # max over all pairs of nodes, by Cauchy and Schwarz
        weight = straight_through((score / (top + 1e-6) + 1) / 2)
        other = torch.randint(n, (2, keys.numel()), device=keys.device)
        low, high = other.sort(dim=0).values
        other = other[:, (low != high) & ~torch.isin(low * n + high, keys)]
        apart = (h[other[0]] * h[other[1]]).sum(1)
        loss = (F.softplus(-score).sum() / max(score.numel(), 1) + F.softplus(apart).sum() / max(apart.numel(), 1)) / 2
        return replace(smooth, adj=pattern.weighted(weight)), smooth, loss

    # --- training -----------------------------------------------------------------------------------------------------

    def train(self) -> float:
        """Look for near nodes, then train."""
        if self.params.augments:
            self.search()
        return super().train()

    def loss(self) -> Tensor:
        """L."""
        p = self.params
        if not p.augments:
            return super().loss()
        inputs = self.batch.inputs
        first = self.model.encode(inputs)
        logits = self.model.classify(first, inputs)
        view, smooth, made = self.second_view()
        second = self.model.encode(view)
        others = self.model.classify(second, smooth)
        loss = self.task_loss(logits) + p.view_weight * self.task_loss(others) + p.structure_weight * made
        if p.prototype_weight:
            one, known = self.prototypes(first, logits)
            two, _ = self.prototypes(second, logits)
            aligned = alignment(two[known > 0], one[known > 0], p.temperature, p.negatives)
            loss = loss + p.prototype_weight * aligned
        return loss

    def prototypes(self, h: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Compute confidence-weighted class means [C, D] of features [N, D], and the sums of weights [C]."""
        sure, label = logits.softmax(1).max(1)
        sure, label = sure.index_fill(0, self.train_nodes, 1), label.clone()
        label[self.train_nodes] = self.y[self.train_nodes]
        member = F.one_hot(label, self.graph.num_classes).to(h) * sure[:, None]  # [N, C]
        total = member.sum(0)
        return member.T @ h / total.clamp(min=torch.finfo(h.dtype).tiny)[:, None], total

    @torch.no_grad()
    def send(self) -> ReplyContent:
        """P^c."""
        h = self.features()
        mean, total = self.prototypes(h, self.model.classify(h, self.inputs))
        known = total >= self.least
        return {TOLD: {"mean": to_numpy(torch.where(known[:, None], mean, 0)), "known": to_numpy(known)}}, {}

    def predict(self) -> Tensor:
        """Logits [N, C]: the votes of prototypes, or the head's."""
        if self.params.inference == "classifier" or BANK not in self.memory:
            return super().predict()
        mean, label = (self.memory[BANK][name] for name in ("mean", "label"))
        likeness = F.normalize(self.features(), dim=1) @ F.normalize(mean, dim=1).T / self.params.vote_temperature
        near, at = likeness.topk(min(self.params.votes, len(label)), dim=1)  # [N, votes]
        weight = (near - near[:, :1]).exp()
        votes = weight.new_zeros(len(weight), self.graph.num_classes).scatter_add(1, label[at], weight)
        return (votes + torch.finfo(weight.dtype).eps).log()

    def save(self) -> Tree:
        """`memory`, and the augmentor."""
        return {**self.memory, AUGMENTOR: {n: t.detach() for n, t in self.augmentor.state_dict().items()}}

    def load(self, tree: Tree) -> None:
        """Take them up."""
        super().load({name: branch for name, branch in tree.items() if name != AUGMENTOR})
        assign(self.augmentor.state_dict(), tree.get(AUGMENTOR, {}))


def straight_through(share: Tensor) -> Tensor:
    """Draws [E] of 0 and 1 with these chances; their gradient is that of the relaxed Bernoulli at temperature 1."""
    eps = torch.finfo(share.dtype).eps
    chance, noise = share.clamp(eps, 1 - eps), torch.rand_like(share).clamp(eps, 1 - eps)
    soft = torch.sigmoid(chance.logit() + noise.logit())
    return (soft > 0.5).to(share) + soft - soft.detach()


class Pairs:
    """Where D^{-1/2} (W + I) D^{-1/2} of pairs has entries, whatever they weigh.

    Args:
        ends: of each pair, [2, E].
        num_nodes: N.
    """

    def __init__(self, ends: Tensor, num_nodes: int):
        loops = torch.arange(num_nodes, device=ends.device)
        row, col = torch.cat([ends[0], ends[1], loops]), torch.cat([ends[1], ends[0], loops])
        self.order = row.argsort(stable=True)
        self.pattern = Pattern(row[self.order], col[self.order], num_nodes)

    def weighted(self, weight: Tensor) -> ValuedMatrix:
        """The matrix under weights [E], both ways, with gradient through these."""
        pattern, loops = self.pattern, weight.new_ones(self.order.numel() - 2 * weight.numel())
        value = torch.cat([weight, weight, loops])[self.order]
        degree = pattern.row_sum(value).rsqrt()
        return ValuedMatrix(pattern, value * degree[pattern.row] * degree[pattern.col])
