"""FGGP client (Wan, Huang & Ye, AAAI 2024): aligns the prototypes of two views and predicts by them.

    pairs     own edges and the k most alike nodes of each by the received model's features, every f rounds
    s_e = h_u·h_v,   h = GCN(X, A) the augmentor;   π_e = (s_e / max s + 1[e is an edge]) / 2
    second view: e is drawn from a relaxed Bernoulli of π_e (temperature 1, straight through), with loops, D^{-1/2} A D^{-1/2}
    P^c, Q^c = confidence-weighted mean features of class c in the first and the second view: training nodes with their labels and
        weight 1, all others with what is predicted and its probability
    L = CE_1 + CE_2 + mean_c −log [e^{cos(Q^c, P^c)/τ} / Σ_{c'} e^{cos(Q^c, P^{c'})/τ}] + (BCE(s, 1) over pairs + BCE(s, 0) over
    others) / 2
    Y_v = softmax over classes of log Σ_{b ∈ B, nearest votes} 1[c_b = c] e^{cos(f(v), b)/τ'}             ``inference=prototypes``

B is the server's bank; before there is one, and with ``inference=classifier``, the head predicts. From memory of the paper, so
without its numbers of equations, and by the authors' program. That one takes plain products for prototypes of other classes
(``likeness=mixed``), tests on validation and test nodes together, and starts its bank from random vectors; OpenFGL predicts by
the head.
Ours: the augmentor looks at pairs alone, and BCE over the N² others is taken over as many drawn pairs, so no matrix is N x N.
The augmentor stays at the client. Without the last three terms and with the head it is FedAvg.
Leaves the client: what FedAvg sends, and P^c [D] of each class that it has or predicts with ``min_nodes`` in sum of weights.
Cost: a second pass through the network, one through the augmentor, N² F / f products to find near nodes, in blocks of rows.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.clients.personal import assign
from fedgraph_flwr.clients.requirements import hidden_features, one_adjacency
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods import fggp
from fedgraph_flwr.methods.fggp import BANK, TOLD, Params
from fedgraph_flwr.methods.prototypes import WIDTH
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.models.structure_learner import top_k
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Pattern, ValuedMatrix
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree

PAIRS, SINCE, AUGMENTOR = "pairs", "since", "augmentor"


def alignment(q: Tensor, p: Tensor, temperature: float, mixed: bool) -> Tensor:
    """The loss of prototypes Q and P of the same classes, [c, D] each; ``mixed``: other classes by plain products."""
    cosine = F.normalize(q, dim=1) @ F.normalize(p, dim=1).T
    own = torch.eye(len(q), dtype=torch.bool, device=q.device)
    score = torch.where(own, cosine, q @ p.T) if mixed else cosine
    return -(score / temperature).log_softmax(1).diagonal().mean() if len(q) else q.sum() * 0


class FGGPClient(GraphClient):
    """FedAvg's client with a second view; its pairs and the bank stand in `memory`.

    Attributes:
        augmentor: makes the second view.
    """

    Params: ClassVar[type] = Params
    uplink = staticmethod(fggp.uplink)
    predicts_with: ClassVar[tuple[str, ...]] = (BANK,)
    _pairs: tuple[Tensor, Tensor, Tensor, "Pairs"] | None = None

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Hidden features, of nodes of one type, and a network that propagates by one matrix."""
        hidden_features(cfg, model, "compares")

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        one_adjacency(self.cfg, self.inputs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.cfg.seed, AUGMENTOR))
            width = self.cfg.model.hidden
            made = GCN(self.graph.num_features, width, hidden=width, layers=2, dropout=self.cfg.model.dropout)
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

    @cached_property
    def smooth(self) -> Inputs:
        """What the augmentor needs of the graph."""
        return self.augmentor.prepare(self.graph, self.device, self.dtype)

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
    def pairs(self) -> tuple[Tensor, Tensor, Tensor, "Pairs"]:
        """Keys [E], ends [2, E] and matrix of the current pairs, and which are own edges, bool [E]; rebuilt when they change."""
        keys = self.memory[PAIRS]
        if self._pairs is None or self._pairs[0] is not keys:
            ends = torch.stack([keys // self.graph.num_nodes, keys % self.graph.num_nodes])
            self._pairs = keys, ends, torch.isin(keys, self.links), Pairs(ends, self.graph.num_nodes)
        return self._pairs

    def second_view(self) -> tuple[Inputs, Tensor]:
        """The inputs with edges as drawn, and the augmentor's loss."""
        n, keys, ends, own, both = self.graph.num_nodes, *self.pairs
        h = self.augmentor(self.smooth)
        score = (h[ends[0]] * h[ends[1]]).sum(1)
        with torch.no_grad():
            top = score.max().clamp(min=torch.finfo(score.dtype).tiny) if keys.numel() else score.sum()
        share = (score / top + own.to(score)) / 2
        weight = straight_through(share)
        other = torch.randint(n, (2, keys.numel()), device=keys.device)
        low, high = other.sort(dim=0).values
        other = other[:, (low != high) & ~torch.isin(low * n + high, keys)]
        apart = (h[other[0]] * h[other[1]]).sum(1)
        loss = (F.softplus(-score).sum() / max(score.numel(), 1) + F.softplus(apart).sum() / max(apart.numel(), 1)) / 2
        return replace(self.inputs, adj=both.weighted(weight), propagated=None), loss

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
        view, made = self.second_view()
        second = self.model.encode(view)
        others = self.model.classify(second, view)
        loss = self.task_loss(logits) + p.view_weight * self.task_loss(others) + p.structure_weight * made
        if p.prototype_weight:
            (one, known), (two, also) = self.prototypes(first, logits), self.prototypes(second, others)
            both = (known > 0) & (also > 0)
            aligned = alignment(two[both], one[both], p.temperature, p.likeness == "mixed")
            loss = loss + p.prototype_weight * aligned
        return loss

    def prototypes(self, h: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Confidence-weighted class means [C, D] of features [N, D] and the sums of weights [C], which carry no gradient."""
        sure, label = logits.detach().softmax(1).max(1)
        sure[self.train_nodes], label[self.train_nodes] = 1, self.y[self.train_nodes]
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
