"""Adjacency matrices and small layers that models share.

Rows are targets and columns sources, so ``adj @ h`` sums the messages that arrive at each node. Edges count as they are stored:
in one direction, and with their multiplicity.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph_flwr.numerics.blocks import Scaling
from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix, row_sums
from fedgraph_flwr.numerics.streams import bits


def adjacency(edge_index: Tensor, num_nodes: int, self_loops: bool = False) -> sp.csr_matrix:
    """Build A [N, N]: entry (v, u) counts the edges u → v. ``self_loops``: each node has exactly one loop.

    Shapes: edge_index [2, E], row 0 source and row 1 target.
    """
    source, target = edge_index.cpu().numpy()
    if self_loops:
        proper = source != target
        loops = np.arange(num_nodes)
        source, target = np.append(source[proper], loops), np.append(target[proper], loops)
    return sp.csr_matrix((np.ones(len(source)), (target, source)), shape=(num_nodes, num_nodes))


def proper_edges(edge_index: Tensor) -> Tensor:
    """Return the edges [2, E] without loops."""
    return edge_index[:, edge_index[0] != edge_index[1]]


def proper_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Build A [N, N] without loops."""
    return adjacency(proper_edges(edge_index), num_nodes)


def proper_pattern(edge_index: Tensor, num_nodes: int) -> Pattern:
    """Return where A has entries besides loops: row v has the u ≠ v with an edge u → v."""
    row, col = (torch.from_numpy(index.astype(np.int64)) for index in proper_adjacency(edge_index, num_nodes).nonzero())
    return Pattern(row, col, num_nodes)


def _rows_scaled(matrix: sp.csr_matrix, power: float) -> sp.csr_matrix:
    """Compute D^power A, where D holds the row sums of A; an empty row stays empty."""
    degree = row_sums(matrix)
    scale = np.power(degree, power, out=np.zeros_like(degree), where=degree > 0)
    return sp.csr_matrix(sp.diags(scale) @ matrix)


def gcn_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Compute Â = D̃^{-1/2} Ã D̃^{-1/2} [N, N], Ã = A with one loop per node, D̃ its in-degrees (Kipf & Welling, 2017, Eq. 2).

    Like PyG's ``GCNConv``, also on directed edges: both factors are in-degrees, and an existing loop is not doubled.
    """
    loops = adjacency(edge_index, num_nodes, self_loops=True)
    scale = 1 / np.sqrt(row_sums(loops))
    loops.data *= np.repeat(scale, np.diff(loops.indptr))
    loops.data *= scale[loops.indices]
    return loops


def mean_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Compute D^{-1} A [N, N]: the mean over in-neighbours; zero for a node without any."""
    return _rows_scaled(adjacency(edge_index, num_nodes), -1)


def random_walk_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Compute D̃^{-1} Ã [N, N]: the mean over a node and its in-neighbours; rows sum to 1."""
    return _rows_scaled(adjacency(edge_index, num_nodes, self_loops=True), -1)


def no_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Return the empty matrix [N, N], for models that ignore edges."""
    return sp.csr_matrix((num_nodes, num_nodes))


SCALINGS: dict[Any, Scaling] = {
    gcn_adjacency: Scaling(True, -0.5, -0.5),
    mean_adjacency: Scaling(False, -1, 0),
    random_walk_adjacency: Scaling(True, -1, 0),
}
"""The matrices above by their factors, from which `ScaledNeighbours` makes rows."""


def glorot(*shape: int) -> nn.Parameter:
    """Initialise a parameter by Glorot's uniform distribution, as in PyG's layers."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(*shape)))


def products(z: Tensor | SparseMatrix, weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """Compute Z W for each W [F, H_w], [N, H_w]; dense features are read once for all of them."""
    if isinstance(z, SparseMatrix):
        return [z @ weight for weight in weights]
    return (z @ torch.cat(list(weights), dim=1)).split([weight.size(1) for weight in weights], dim=1)


def aggregated(adj: SparseMatrix, h: Tensor | SparseMatrix, weight: Tensor) -> Tensor:
    """Compute S H W: S (H W), or (S H) W for a sampled S, which has far fewer rows than columns."""
    if adj.shape[0] < adj.shape[1] and isinstance(h, Tensor):
        return (adj @ h) @ weight
    return adj @ (h @ weight)


class Linear(nn.Module):
    """x W + b for dense or sparse features: [N, F] → [N, H]. Glorot weights [F, H], zero bias [H]."""

    def __init__(self, num_in: int, num_out: int, bias: bool = True):
        super().__init__()
        self.weight = glorot(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out)) if bias else None

    def forward(self, x: Tensor | SparseMatrix) -> Tensor:
        """Return [N, H]."""
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Apply inverted dropout: each entry is kept with probability q and divided by q, else 0; q is 1 − p rounded to 1/65536.

    The mask compares 16 random bits per entry, which takes a quarter of the time of torch's Bernoulli draws. It also uses
    torch's global generator, and float32 and float64 draw the same mask.
    """
    return x * mask(x, p) if training and p else x


def mask(x: Tensor, p: float) -> Tensor:
    """Return the factor of `dropout`: 1/q for a kept entry, else 0, in the shape of x."""
    kept = _kept(p)
    drawn, limit = bits(x), kept - 32768
    if torch._C._are_functorch_transforms_active():  # torch.vmap has no rule for ``out``
        chosen = (drawn < limit).to(x.dtype)
    else:  # a third less time: no mask of bools in between
        chosen = torch.lt(drawn, limit, out=torch.empty_like(x))
    return chosen.mul_(65536 / kept)


def _kept(p: float) -> int:
    """Return q, in units of 1/65536."""
    return max(round((1 - p) * 65536), 1)


def dropped_relu_(x: Tensor, p: float, training: bool) -> Tensor:
    """Compute ``dropout(relu(x))`` in place."""
    return x.relu_().mul_(mask(x, p)) if training and p else x.relu_()


def dropped_relu_grad_(grad: Tensor, result: Tensor, p: float, training: bool) -> Tensor:
    """Compute the gradient with respect to x, given ``grad`` with respect to ``result`` = `dropped_relu_` of x, in place.

    It is ``grad`` / q where the result is above 0, else 0.
    """
    if training and p:
        grad.mul_(65536 / _kept(p))
    return torch.ops.aten.threshold_backward.grad_input(grad, result, 0, grad_input=grad)


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x."""
        return dropout(x, self.p, self.training)


def propagate(matrix: SparseMatrix, weights: NDArray[np.floating], h: Tensor) -> Tensor:
    """Compute Σ_l weights[j, l] M^l H without forming a power: M [N, N], H [N, C] → [J, N, C].

    ``weights`` [J, L] are those of M^1..M^L, one row for each of J combinations.
    """
    totals = [torch.zeros_like(h)] * len(weights)
    for column in weights.T.tolist():
        h = matrix @ h
        totals = [total + w * h if w else total for total, w in zip(totals, column, strict=True)]
    return torch.stack(totals)
