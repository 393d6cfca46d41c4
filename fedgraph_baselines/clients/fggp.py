"""FGGP client (Wan, Huang & Ye, AAAI 2024): aligns the prototypes of two views and predicts by them.

    pairs     own edges, and each node's k most similar nodes by the received model's features, every f rounds; Ā: their adjacency
    s_uv = h_u·h_v,   h = ReLU(Ā Ā X W_1 W_2) the augmentor;   π_e = (s_e / max s + 1) / 2
    second view: e is drawn from a relaxed Bernoulli of π_e (temperature 1, straight-through), with loops, D^{-1/2} A D^{-1/2};
        the head uses Ā
    P^c, Q^c = confidence-weighted mean features of class c in the first and the second view: training nodes with their labels and
        weight 1, other nodes with the first view's prediction and its probability
    L = CE_1 + CE_2 + mean_c −log [e^{cos(Q^c, P^c)/τ} / (Σ_{c'} e^{cos(Q^c, P^{c'})/τ} + Σ_{c' ≠ c} e^{cos(Q^c, Q^{c'})/τ})]
        + (BCE(s, 1) over pairs + BCE(s, 0) over others) / 2
    Y_v = softmax over classes of log Σ_{b ∈ B, nearest votes} 1[c_b = c] e^{cos(f(v), b)/τ'}             ``inference=prototypes``

B is the server's bank. The head predicts before the first bank arrives, and with ``inference=classifier``. Written from memory of
the paper, so without its equation numbers, and checked against the authors' code (GuanchengWan/FGGP fedced9, folder Code):

- Model: three graph convolutions, of which the last is the head (backbone/gnn/pmlp.py, lines 22 and 34-36; ``--depth`` of
  main_graph.py is unused), so f(v) is the output of the second. ``model=gcn3`` is the default. With two layers a prototype
  covers one hop. The authors also standardise hidden features over a client's nodes, the last ones for the head only (lines 30,
  56 and 74): ``model.norm=standardize`` does so in both layers, for prototypes too.
- The third term of L is utils/util.py, lines 86-110: all similarities are cosines, and the second view's other classes are
  negatives too (``negatives=both``; ``other``: without them).
- Labels and confidences of both views are the first view's (models/fggp.py, lines 264-271).
- The bank is a queue of 10 rows per class, 20 on Twitch (models/fggp.py, lines 78-80, and backbone/knn.py, lines 73-81):
  ``queue``. It starts from random rows of class 0; here it starts empty.
- The head is not averaged: every client starts each round from its initial values (main_graph.py, lines 139-140, and
  models/fggp.py, lines 157-176): ``head=initial``, which needs ``inference=prototypes``.
- Different here: the second view is drawn over pairs only, and the BCE over the N² other pairs is estimated on as many drawn
  pairs, so no matrix is N x N. The authors' BCE also takes (v, v) as a positive pair, and a similar node only in the direction
  in which it is among the k nearest (models/fggp.py, lines 205-207); here pairs join two nodes, both ways. The augmentor stays
  at the client; the authors average it. They send prototypes of a pass with dropout, and test on validation nodes too; here
  neither.

OpenFGL predicts with the head. With the head and without the last three terms the method equals FedAvg.
Leaves the client: what FedAvg sends, and P^c [D] of each class whose weights sum to at least ``min_nodes``.
Cost: a second pass through the model, one through the augmentor, N² F / f products to find similar nodes, in blocks of rows.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_baselines.clients.embeddings import EmbeddingClient
from fedgraph_baselines.methods import fggp
from fedgraph_baselines.methods.fggp import BANK, PROTOTYPES
from fedgraph_flwr.clients.base import ReplyContent, to_numpy
from fedgraph_flwr.clients.requirements import hidden_features, one_adjacency
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.layers import Linear
from fedgraph_flwr.models.structure_learner import top_k
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Pattern, ValuedMatrix
from fedgraph_flwr.numerics.streams import seeded
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, check

PAIRS, SINCE, AUGMENTOR = "pairs", "since", "augmentor"

TEMPERATURE, VOTE_TEMPERATURE = 0.5, 0.1
"""τ of the alignment and τ' of the vote (the authors' code)."""


def alignment(q: Tensor, p: Tensor, temperature: float, negatives: str = "both") -> Tensor:
    """Compute the alignment loss of prototypes Q and P of the same classes, [c, D] each.

    Args:
        q: prototypes of the second view.
        p: prototypes of the first view.
        temperature: τ.
        negatives: negatives of Q^c: P and Q of the other classes (``both``), or only their P (``other``).
    """
    if not len(q):
        return q.sum() * 0
    q, p = F.normalize(q, dim=1), F.normalize(p, dim=1)
    score = q @ p.T
    if negatives == "both":
        diagonal = torch.eye(len(q), dtype=torch.bool, device=q.device)
        score = torch.cat([score, (q @ q.T).masked_fill(diagonal, -torch.inf)], 1)
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
        """Return h [N, H]."""
        return torch.relu(inputs.adj @ self.second(inputs.adj @ self.first(inputs.x)))


class FGGPClient(EmbeddingClient, method=fggp, requires=(hidden_features,)):
    """FedAvg's client with a second view; `memory` contains its pairs and the bank.

    Attributes:
        augmentor: network that scores the edges of the second view.
    """

    calls_base: ClassVar[frozenset[str]] = frozenset({"train"})
    predicts_with: ClassVar[tuple[str, ...]] = (BANK,)
    _pairs: tuple[Tensor, Tensor, Any, "Pairs"] | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        one_adjacency(self.cfg, self.inputs)
        with seeded(derive_seed(self.cfg.seed, AUGMENTOR)):
            made = Augmentor(self.graph.num_features, self.cfg.model.hidden)
        self.augmentor = made.to(self.device, self.dtype)

    def extra_parameters(self) -> dict[str, nn.Parameter]:
        """Return the augmentor's parameters."""
        return {f"{AUGMENTOR}/{name}": parameter for name, parameter in self.augmentor.named_parameters()}

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Store the bank, if the server sent one.

        Raises:
            FedGraphError: it is no bank of this run's classes.
        """
        if arrays := groups.get(BANK):
            rows, label = range(1, LARGEST), arrays["label"]
            mean = ArrayField((rows, self.width), self.cfg.dtype)
            fields = {"mean": mean, "label": ArrayField((rows,), "int64", 0, self.graph.num_classes - 1)}
            check(arrays, fields, "the server sent a bank")
            if len(arrays["mean"]) != len(label):
                raise FedGraphError(f"the server sent a bank of {len(arrays['mean'])} rows with {len(label)} labels")
            self.memory[BANK] = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    # --- the second view ----------------------------------------------------------------------------------------------

    @cached_property
    def links(self) -> Tensor:
        """The graph's own edges as keys u N + v, u < v, ascending [E]."""
        ends = self.graph.edge_index.sort(dim=0).values
        ends = ends[:, ends[0] < ends[1]]
        return (ends[0] * self.graph.num_nodes + ends[1]).unique().to(self.device)

    def search(self) -> None:
        """Search similar nodes, and store pairs as keys, if the last search was f or more rounds ago."""
        if PAIRS in self.memory and self.server_round - int(self.memory[SINCE]) < self.params.refresh:
            return
        n = self.graph.num_nodes
        unit = F.normalize(self.embeddings(), dim=1)
        near = top_k(unit, unit, self.params.near)
        low, high = torch.minimum(near.row, near.col), torch.maximum(near.row, near.col)
        self.memory[PAIRS] = torch.cat([self.links, low * n + high]).unique()
        self.memory[SINCE] = torch.tensor(self.server_round)

    @property
    def pairs(self) -> tuple[Tensor, Tensor, Any, "Pairs"]:
        """Keys [E], ends [2, E], inputs with Ā, and the matrix's pattern for the current pairs; rebuilt when they change."""
        keys = self.memory[PAIRS]
        if self._pairs is None or self._pairs[0] is not keys:
            ends = torch.stack([keys // self.graph.num_nodes, keys % self.graph.num_nodes])
            pattern = Pairs(ends, self.graph.num_nodes)
            smooth = pattern.weighted(torch.ones(keys.numel(), dtype=self.dtype, device=keys.device))
            self._pairs = keys, ends, replace(self.inputs, adj=smooth, propagated=None), pattern
        return self._pairs

    def second_view(self) -> tuple[Inputs, Inputs, Tensor]:
        """Draw the second view's edges; return the inputs with them, the inputs with Ā, and the augmentor's loss."""
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
        """Search similar nodes, then train."""
        if self.params.augments:
            self.search()
        return super().train()

    def loss(self) -> Tensor:
        """Return L."""
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
            aligned = alignment(two[known > 0], one[known > 0], TEMPERATURE, p.negatives)
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
        """Return P^c and which classes are known."""
        h = self.embeddings()
        mean, total = self.prototypes(h, self.model.classify(h, self.inputs))
        known = total >= self.least
        return {PROTOTYPES: {"mean": to_numpy(torch.where(known[:, None], mean, 0)), "known": to_numpy(known)}}, {}

    def predict(self) -> Tensor:
        """Return logits [N, C] from the votes of prototypes, or from the head."""
        if self.params.inference == "classifier" or BANK not in self.memory:
            return super().predict()
        mean, label = (self.memory[BANK][name] for name in ("mean", "label"))
        likeness = F.normalize(self.embeddings(), dim=1) @ F.normalize(mean, dim=1).T / VOTE_TEMPERATURE
        near, at = likeness.topk(min(self.params.votes, len(label)), dim=1)  # [N, votes]
        weight = (near - near[:, :1]).exp()
        votes = weight.new_zeros(len(weight), self.graph.num_classes).scatter_add(1, label[at], weight)
        return (votes + torch.finfo(weight.dtype).eps).log()


def straight_through(share: Tensor) -> Tensor:
    """Draw 0 or 1 with these probabilities [E]; the gradient is that of the relaxed Bernoulli at temperature 1."""
    eps = torch.finfo(share.dtype).eps
    chance, noise = share.clamp(eps, 1 - eps), torch.rand_like(share).clamp(eps, 1 - eps)
    soft = torch.sigmoid(chance.logit() + noise.logit())
    return (soft > 0.5).to(share) + soft - soft.detach()


class Pairs:
    """Sparsity pattern of D^{-1/2} (W + I) D^{-1/2} for weighted pairs.

    Args:
        ends: ends of each pair, [2, E].
        num_nodes: N.
    """

    def __init__(self, ends: Tensor, num_nodes: int):
        loops = torch.arange(num_nodes, device=ends.device)
        row, col = torch.cat([ends[0], ends[1], loops]), torch.cat([ends[1], ends[0], loops])
        self.order = row.argsort(stable=True)
        self.pattern = Pattern(row[self.order], col[self.order], num_nodes)

    def weighted(self, weight: Tensor) -> ValuedMatrix:
        """Return the matrix for weights [E], symmetric and differentiable in the weights."""
        pattern, loops = self.pattern, weight.new_ones(self.order.numel() - 2 * weight.numel())
        value = torch.cat([weight, weight, loops])[self.order]
        degree = pattern.row_sum(value).rsqrt()
        return ValuedMatrix(pattern, value * degree[pattern.row] * degree[pattern.col])
