r"""The structure learner of FedHERO (arXiv 2504.21206, Section 3.1): from (X, A) to a sparse latent graph Ã.

    Z    = ReLU(P(A) X W_s + b_s)                                        one-layer GNN
    ã_uv = (1/N_H) Σ_h cos(w¹_h ⊙ z_u, w²_h ⊙ z_v)                       (3)
    Ã_uv = ã_uv if v is among the k largest of row u, v ≠ u; else 0      (4)

Row u is the node that aggregates. Every metric that searches all pairs is one product ã = Q Tᵀ of factors [N, D]. The search runs
over row blocks without gradient, and only the kept pairs are scored again with gradient. Nothing is N x N.
Equation (4) as printed is 0/1 and has no gradient; ``edge_weight`` selects its replacement.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.layers import glorot
from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix

MetricName = Literal["multi_head", "cos", "att", "gat", "glcn", "gaug"]
EdgeWeight = Literal["value", "ste", "binary"]
Latent = Literal["top_k", "bernoulli"]
BLOCK = 512  # rows of ã held at once
TINY = 1e-12
TIE = 1e-6
"""Tolerance of ties with a row's k-th largest score, relative to that score if it is above 1. Devices add in different orders,
which changes single-precision scores in [-1, 1] by 1e-7."""


class LatentGraph:
    """Ã with its row normalisation.

    Attributes:
        pattern: the E' kept pairs; row u aggregates from column v.
        weight: Ã_uv >= 0, shape [E'].
        penalty: the metric's loss term, a scalar (GAug's reconstruction, otherwise 0).
    """

    def __init__(self, pattern: Pattern, weight: Tensor, penalty: Tensor):
        self.pattern, self.weight, self.penalty = pattern, weight, penalty
        self.scale = 1 / (pattern.row_sum(weight) + 1).unsqueeze(1)  # (D̃ + I)⁻¹, [N, 1]

    def propagate(self, dense: Tensor) -> Tensor:
        """Compute (D̃ + I)⁻¹ (Ã + I) dense: [N, H] → [N, H]; normalised by rows only, because a kNN graph is directed."""
        return self.scale * (self.pattern.product(self.weight, dense) + dense)


class StructureLearner(nn.Module):
    """g_L: the GNN and the metric of this module.

    Args:
        num_features: F.
        hidden: d_s, width of Z.
        heads: N_H.
        k: neighbours kept per node.
        metric: a key of `METRICS`; ``multi_head`` is equation (3), the others are those of Table 4.
        edge_weight: weight of an edge: its score (``value``), 1 with the score's gradient (``ste``), or 1 without gradient
            (``binary``, equation 4 as printed).
        symmetrize: replace Ã by (Ã + Ãᵀ) / 2.
        latent: at inference ``top_k``, or ``bernoulli``: each candidate edge is drawn with probability clip(ã, 0, 1)
            (appendix C.2). Training always keeps the top k.
        candidates: the Bernoulli draw considers the ``candidates`` * k best pairs of each row; all pairs would keep O(N²)
            edges.

    Raises:
        FedGraphError: an option is outside its range.
    """

    def __init__(
        self,
        num_features: int,
        hidden: int,
        *,
        heads: int = 4,
        k: int = 20,
        metric: MetricName = "multi_head",
        edge_weight: EdgeWeight = "value",
        symmetrize: bool = False,
        latent: Latent = "top_k",
        candidates: int = 5,
    ):
        super().__init__()
        if latent == "bernoulli" and metric not in ("multi_head", "cos"):
            raise FedGraphError(
                f"model.latent=bernoulli needs scores in [-1, 1]: set model.metric to multi_head or cos, got '{metric}'"
            )
        self.k, self.edge_weight, self.symmetrize = k, edge_weight, symmetrize
        self.latent, self.candidates = latent, candidates
        self.weight = glorot(num_features, hidden)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.metric = METRICS[metric](hidden, heads)

    def forward(self, x: Tensor | SparseMatrix, propagation: SparseMatrix, edges: Pattern) -> LatentGraph:
        """Compute the latent graph of x [N, F] over the original graph.

        Args:
            x: features, dense or sparse.
            propagation: P(A), [N, N].
            edges: A itself (row: target, column: source), without self-loops.
        """
        z = self.embed(x, propagation)
        draw = self.latent == "bernoulli" and not self.training
        pattern, score = self.metric.search(z, self.k * self.candidates if draw else self.k, edges)
        if draw:
            drawn = torch.bernoulli(score.clamp(0, 1)).bool()
            pattern = Pattern(pattern.row[drawn], pattern.col[drawn], pattern.num_nodes)
            weight = score.new_ones(pattern.row.numel())
        else:
            weight = self.metric.weigh(score, pattern, edges, self.edge_weight)
        if self.symmetrize:
            pattern, weight = symmetric(pattern, weight)
        return LatentGraph(pattern, weight, self.metric.penalty(z, edges))

    def embed(self, x: Tensor | SparseMatrix, propagation: SparseMatrix) -> Tensor:
        """Compute Z [N, d_s], the one-layer GNN."""
        return torch.relu(propagation @ (x @ self.weight) + self.bias)


class Metric(nn.Module):
    """ã_uv = <Q_u, T_v>, searched over all pairs.

    Subclasses define the factors; those that score only the graph's own edges override `search`.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self._searched: tuple[int, list[Tensor]] = (0, [])
        self._found: Pattern

    def factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q and T, both [N, D], with ã = Q Tᵀ."""
        raise NotImplementedError

    def search(self, z: Tensor, k: int, edges: Pattern) -> tuple[Pattern, Tensor]:
        """Return the k best pairs of each row, selected without gradient, and their scores ã [E'] with gradient."""
        left, right = self.factors(z)
        pattern = self.nearest(z, left, right, k)
        return pattern, pattern.dot(left, right)

    def nearest(self, z: Tensor, left: Tensor, right: Tensor, k: int) -> Pattern:
        """Return `top_k`, cached for equal z and parameters: a client trains the parameters that it has just scored."""
        given = [t.detach() for t in (z, *self.parameters())]
        before_k, before = self._searched
        if k != before_k or not all(map(torch.equal, given, before)):
            self._searched, self._found = (k, [t.clone() for t in given]), top_k(left, right, k)
        return self._found

    def value(self, score: Tensor, pattern: Pattern) -> Tensor:
        """Convert scores to non-negative edge weights; relu for scores in [-1, 1]."""
        return torch.relu(score)

    def weigh(self, score: Tensor, pattern: Pattern, edges: Pattern, mode: str) -> Tensor:
        """Return edge weights under an ``edge_weight`` mode."""
        if mode == "value":
            return self.value(score, pattern)
        return torch.ones_like(score) + (score - score.detach() if mode == "ste" else 0)

    def penalty(self, z: Tensor, edges: Pattern) -> Tensor:
        """Return the metric's loss term."""
        return z.new_zeros(())


class MultiHead(Metric):
    """Equation (3): weighted cosine with two weight vectors per head, [N_H, d_s] each; not symmetric."""

    def __init__(self, hidden: int, heads: int):
        super().__init__(hidden, heads)
        self.left = glorot(heads, hidden)
        self.right = glorot(heads, hidden)

    def factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenate all heads, so that one product sums over heads: [N, N_H d_s] each."""
        left, right = (_Unit.apply(z.unsqueeze(1) * w).flatten(1) for w in (self.left, self.right))
        return left / self.left.size(0), right


class Cosine(Metric):
    """cos(z_u, z_v), without parameters; the gradient reaches Z."""

    def factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit rows, twice."""
        unit = _Unit.apply(z)
        return unit, unit


class _Softmax(Metric):
    """Unbounded scores, turned into weights by a softmax over each row's kept entries."""

    def value(self, score: Tensor, pattern: Pattern) -> Tensor:
        grown = torch.exp(score - pattern.row_max(score.detach())[pattern.row])
        return grown / pattern.row_sum(grown)[pattern.row]


class Attention(_Softmax):
    """(1/N_H) Σ_h relu(W_h z_u) · relu(W_h z_v), then a softmax over the k kept."""

    def __init__(self, hidden: int, heads: int):
        super().__init__(hidden, heads)
        self.heads = heads
        self.weight = glorot(hidden, heads * hidden)

    def factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenate all heads."""
        projected = torch.relu(z @ self.weight)
        return projected / self.heads, projected


class _OverEdges(_Softmax):
    """Scores of only the original graph's edges; a node keeps at most k of its in-edges.

    Self-loops are left out, because P̃ adds its own.
    """

    def search(self, z: Tensor, k: int, edges: Pattern) -> tuple[Pattern, Tensor]:
        score = self.score(z, edges)
        kept = _best(score.detach(), edges, k)
        return Pattern(edges.row[kept], edges.col[kept], edges.num_nodes), score[kept]

    def score(self, z: Tensor, edges: Pattern) -> Tensor:
        """Score every edge, [E]."""
        raise NotImplementedError


class EdgeAttention(_OverEdges):
    """GAT (Veličković et al. 2018): (1/N_H) Σ_h leakyrelu(a¹_h · z_u + a²_h · z_v), softmax over the kept edges."""

    def __init__(self, hidden: int, heads: int):
        super().__init__(hidden, heads)
        self.target = glorot(hidden, heads)
        self.source = glorot(hidden, heads)

    def score(self, z: Tensor, edges: Pattern) -> Tensor:
        """Average over heads, [E]."""
        target, source = z @ self.target, z @ self.source  # [N, N_H]
        return functional.leaky_relu(target[edges.row] + source[edges.col], 0.2).mean(1)


class Glcn(_OverEdges):
    """GLCN (Jiang et al. 2019): softmax of relu(aᵀ|z_u − z_v|) over the kept edges; its loss term is equation (7)."""

    def __init__(self, hidden: int, heads: int):
        super().__init__(hidden, heads)
        self.weight = glorot(hidden, 1)

    def score(self, z: Tensor, edges: Pattern) -> Tensor:
        """Compute scores before the softmax, [E]."""
        return torch.relu((z[edges.row] - z[edges.col]).abs() @ self.weight).squeeze(1)


class Gaug(Metric):
    """GAug-O (Zhao et al. 2021): edges drawn from η M + (1 − η) A, M = sigmoid(Z Zᵀ), trained to reconstruct A.

    Candidates are the k best of each row and the graph's own edges. Training draws relaxed Bernoulli variables and rounds
    them, with a straight-through gradient. Inference keeps edges of probability above 1/2, which is A itself, the original graph
    in the name GAug-O. M is trained by cross entropy on the edges and as many random pairs. η = 1/2, temperature 1, and
    weight 1 of that loss.
    """

    def factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of M."""
        return z, z

    def search(self, z: Tensor, k: int, edges: Pattern) -> tuple[Pattern, Tensor]:
        """Return the k best pairs of each row and the graph's own edges."""
        pattern = _union(self.nearest(z, z, z, k), edges)
        return pattern, pattern.dot(z, z)

    def weigh(self, score: Tensor, pattern: Pattern, edges: Pattern, mode: str) -> Tensor:
        """Return weights of 0 or 1, by the draw."""
        probability = 0.5 * torch.sigmoid(score) + 0.5 * _contains(edges, pattern).to(score.dtype)
        if self.training:
            probability = probability.clamp(1e-6, 1 - 1e-6)
            noise = torch.rand_like(score).clamp(1e-6, 1 - 1e-6)
            probability = torch.sigmoid(torch.logit(probability) + torch.logit(noise))
        kept = (probability > 0.5).to(score.dtype)
        return kept if mode == "binary" else kept + (probability - probability.detach())

    def penalty(self, z: Tensor, edges: Pattern) -> Tensor:
        """Compute the cross entropy of M on edges and random pairs."""
        if not self.training or not edges.row.numel():
            return z.new_zeros(())
        negative = torch.randint(edges.num_nodes, (2, edges.row.numel())).to(z.device)  # the same on every device
        row, col = torch.cat([torch.stack([edges.row, edges.col]), negative], 1)
        row, order = torch.sort(row)
        col = col[order]
        real = (order < edges.row.numel()).to(z.dtype)
        logit = Pattern(row, col, edges.num_nodes).dot(z, z)
        return functional.binary_cross_entropy_with_logits(logit, real)


METRICS: dict[str, type] = {
    "multi_head": MultiHead,
    "cos": Cosine,
    "att": Attention,
    "gat": EdgeAttention,
    "glcn": Glcn,
    "gaug": Gaug,
}


@torch.no_grad()
def top_k(left: Tensor, right: Tensor, k: int, block: int = BLOCK) -> Pattern:
    """Select the min(k, N − 1) largest entries of each row of left @ rightᵀ without its diagonal; columns ascending.

    Among entries that tie with the k-th largest (`TIE`) the lowest columns are kept, so that no device's order of sorting or
    adding decides. Equal nodes tie: on Chameleon, where pages without features receive no messages, up to a quarter of a
    client's rows do. Works on ``block`` rows at once, so it holds block x N scores. Shapes: left and right [N, D].
    """
    num_nodes = left.size(0)
    k = min(k, num_nodes - 1)
    row = torch.arange(num_nodes, device=left.device).repeat_interleave(k)
    places = [row[:0]]
    for start in range(0, num_nodes if k else 0, block):
        scores = (left[start : start + block] @ right.T).nan_to_num_(0, 1e30, -1e30)  # [block, N]
        scores.diagonal(start).fill_(-torch.inf)
        least, following = _bounds(scores, k)
        margin = TIE * least.abs().clamp(min=1)
        open_rows = (least - following <= margin).nonzero().view(-1)
        kept = scores >= least[:, None]
        kept[open_rows] = _lowest(scores[open_rows], least[open_rows, None], margin[open_rows, None], k)
        places.append(_places(kept) + start * num_nodes)
    return Pattern(row, torch.cat(places) - row * num_nodes, num_nodes)


def _bounds(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k-th largest score of each row and the next one, [R] each: scores [R, N], k < N.

    On a CPU by NumPy, whose vector instructions take an eighth of the time of torch's ``topk``.
    """
    if scores.is_cuda:
        best = scores.topk(k + 1).values
        return best[:, k - 1], best[:, k]
    first = scores.size(1) - k - 1
    best = torch.from_numpy(np.partition(scores.numpy(), first)[:, first:])
    return best[:, 1:].amin(1), best[:, 0]


def _lowest(scores: Tensor, least: Tensor, margin: Tensor, k: int) -> Tensor:
    """Mark the scores [R, N] above their row's k-th, and the first that tie with it, k per row: bool [R, N]."""
    above = scores > least + margin
    tied = (scores >= least - margin) & ~above  # contains all others of the k best, however the bounds round
    room = k - above.sum(1, keepdim=True)
    return above | (tied & (tied.cumsum(1) <= room))


def _places(kept: Tensor) -> Tensor:
    """Return the flat indices where a mask is set, ascending; on a CPU by NumPy, in a sixth of torch's time."""
    return kept.view(-1).nonzero().view(-1) if kept.is_cuda else torch.from_numpy(np.flatnonzero(kept.numpy()))


def symmetric(pattern: Pattern, weight: Tensor) -> tuple[Pattern, Tensor]:
    """Return (Ã + Ãᵀ) / 2 as a pattern without duplicates, and its weights."""
    n = pattern.num_nodes
    key = torch.cat([pattern.row * n + pattern.col, pattern.col * n + pattern.row])
    unique, place = key.unique(return_inverse=True)
    merged = weight.new_zeros(unique.numel()).index_add(0, place, weight.repeat(2) / 2)
    return Pattern(unique // n, unique % n, n), merged


def smoothness(latent: LatentGraph, distance: Tensor, *, lam: float, mu: float, reduction: str = "n2") -> Tensor:
    """Compute λ Σ_uv Ã_uv ‖x_u − x_v‖² + μ ‖Ã‖²_F, equation (7), over the kept pairs; a scalar with gradient through Ã.

    Args:
        latent: Ã.
        distance: ‖x_u − x_v‖² of its pairs, [E'].
        lam: λ.
        mu: μ.
        reduction: ``sum``, as printed, where the term exceeds the cross entropy by four orders of magnitude; ``n2``
            divides it by N²; ``edges`` by the number of kept pairs.
    """
    total = lam * (latent.weight * distance).sum() + mu * latent.weight.square().sum()
    return total / REDUCTIONS[reduction](latent.pattern)


REDUCTIONS = {
    "n2": lambda pattern: pattern.num_nodes**2,
    "sum": lambda pattern: 1,
    "edges": lambda pattern: max(pattern.row.numel(), 1),
}


class _Unit(torch.autograd.Function):
    """x / max(‖x‖, `TINY`) along the last dimension: torch's ``normalize``, bit for bit, with half the memory traffic.

    With y = x / n:  ∂L/∂x = g / n − y Σ (g ⊙ y / n), the second term 0 where n is `TINY`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        unit = x / norm.clamp_min(TINY)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        unit, norm = ctx.saved_tensors
        least = norm.clamp_min(TINY)
        along = (unit / least).mul_(grads[0]).sum(-1, keepdim=True).masked_fill_(norm < TINY, 0)
        return (grads[0] / least).sub_(unit * along)


def _best(score: Tensor, pattern: Pattern, k: int) -> Tensor:
    """Return positions of the k best-scored entries of each row of a pattern, row by row."""
    order = torch.argsort(score, descending=True, stable=True)
    order = order[torch.argsort(pattern.row[order], stable=True)]
    rank = torch.arange(order.numel(), device=order.device) - pattern.pointer[pattern.row]
    return order[rank < k]


def _union(one: Pattern, other: Pattern) -> Pattern:
    n = one.num_nodes
    key = torch.cat([one.row * n + one.col, other.row * n + other.col]).unique()
    return Pattern(key // n, key % n, n)


def _contains(whole: Pattern, part: Pattern) -> Tensor:
    """Return whether each entry of ``part`` is in ``whole``, bool [E]."""
    n = whole.num_nodes
    return torch.isin(part.row * n + part.col, whole.row * n + whole.col)
