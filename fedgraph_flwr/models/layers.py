"""Adjacency matrices and the small layers that networks share.

Rows are targets and columns sources, so that ``adj @ h`` is what arrives at each node; edges count as they are stored,
in one direction, and as often as they are stored.
"""

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraph_flwr.sparse import SparseMatrix


def adjacency(edge_index: Tensor, num_nodes: int, self_loops: bool = False) -> sp.csr_matrix:
    """A [N, N]: entry (v, u) counts the edges u → v. ``self_loops``: each node gets exactly one loop.

    Shapes: edge_index [2, E], row 0 source and row 1 target.
    """
    source, target = edge_index.cpu().numpy()
    if self_loops:
        proper = source != target
        loops = np.arange(num_nodes)
        source, target = np.append(source[proper], loops), np.append(target[proper], loops)
    return sp.csr_matrix((np.ones(len(source)), (target, source)), shape=(num_nodes, num_nodes))


def _rows_scaled(matrix: sp.csr_matrix, power: float) -> sp.csr_matrix:
    """D^power A, where D holds the row sums of A; an empty row stays empty."""
    degree = np.asarray(matrix.sum(axis=1)).ravel()
    scale = np.power(degree, power, out=np.zeros_like(degree), where=degree > 0)
    return sp.csr_matrix(sp.diags(scale) @ matrix)


def gcn_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Â = D̃^{-1/2} Ã D̃^{-1/2} [N, N], Ã = A with one loop a node, D̃ its in-degrees (Kipf & Welling, 2017, Eq. 2).

    As PyG's ``GCNConv``, on directed edges too: both factors come from in-degrees; a loop that is there is kept single.
    """
    loops = adjacency(edge_index, num_nodes, self_loops=True)
    scale = sp.diags(1 / np.sqrt(np.asarray(loops.sum(axis=1)).ravel()))
    return sp.csr_matrix(scale @ loops @ scale)


def mean_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """D^{-1} A [N, N]: the mean over in-neighbours; zero for a node without any."""
    return _rows_scaled(adjacency(edge_index, num_nodes), -1)


def random_walk_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """D̃^{-1} Ã [N, N]: the mean over a node and its in-neighbours; rows sum to 1."""
    return _rows_scaled(adjacency(edge_index, num_nodes, self_loops=True), -1)


def no_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """The empty matrix [N, N], for networks that ignore edges."""
    return sp.csr_matrix((num_nodes, num_nodes))


def glorot(*shape: int) -> nn.Parameter:
    """Glorot's uniform initialisation, as PyG's layers have it."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(*shape)))


class Linear(nn.Module):
    """x W + b for features that are dense or sparse: [N, F] → [N, H]. Glorot weights [F, H], zero bias [H]."""

    def __init__(self, num_in: int, num_out: int, bias: bool = True):
        super().__init__()
        self.weight = glorot(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out)) if bias else None

    def forward(self, x: Tensor | SparseMatrix) -> Tensor:
        """[N, H]."""
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Inverted dropout: x / (1 − p) with probability 1 − p, else 0."""
    return functional.dropout(x, p, training)
