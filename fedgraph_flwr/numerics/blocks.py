"""Neighbourhoods of a graph as a model reads them: what the sampler draws from, and the inputs of a layer made of a draw."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.numerics.draws import Entries, Ints, row_pointer
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sampler import Block, Csr, RowBuffer
from fedgraph_flwr.numerics.sparse import BlockMatrix, CsrRows, Device, SparseMatrix


@dataclass
class BatchInputs:
    """Inputs of a forward pass over a sampled batch.

    Attributes:
        x: features of the batch's nodes, seeds first.
        layers: what each layer with neighbours reads, the first layer first. A layer gives outputs for fewer nodes than the one
            before, always the first ones; the last layer, for the seeds.
        item_index: as of `Inputs`, among the seeds.
        item_attr: as of `Inputs`.
    """

    x: Any
    layers: tuple[Inputs, ...]
    item_index: Tensor | None = None
    item_attr: Tensor | None = None


@dataclass
class GraphInputs:
    """A whole graph that batches are sampled from, and that a pass reads in blocks; nothing is prepared for its edges.

    Attributes:
        x: features [N, F]; may be a mapped file, of any floating-point type.
        neighbours: neighbours of all nodes.
        device: device of the computation.
        dtype: type of the computation.
        item_index: as of `Inputs`.
        item_attr: as of `Inputs`.
    """

    x: Tensor | SparseMatrix
    neighbours: "Neighbours"
    device: torch.device
    dtype: torch.dtype
    item_index: Tensor | None = None
    item_attr: Tensor | None = None

    def to(self, device: Device) -> "GraphInputs":
        """Return the same: features stay where they are, and batches of them are moved."""
        return self


class FeatureRows:
    """Rows of features: gathered into reused buffers if they are dense, or as a sparse matrix of the rows.

    Args:
        x: [N, F].
        device: where rows are used.
        dtype: type of dense rows.
        buffers: number of buffers, which calls fill in turn.
    """

    def __init__(self, x: Tensor | SparseMatrix, device: torch.device, dtype: torch.dtype, buffers: int = 1):
        self.device, self.dense, self.sparse = device, [], None
        if isinstance(x, SparseMatrix):
            pointer, col, value = (part.cpu().numpy() for part in x.rows)
            self.sparse = sp.csr_matrix((value, col, pointer), x.shape)
        else:
            source = x.cpu()
            self.dense = [RowBuffer(source, dtype) for _ in range(buffers)]

    def take(self, nodes: NDArray[np.int64]) -> Tensor | SparseMatrix:
        """Return rows [n, F], valid until the next ``buffers`` calls."""
        if self.dense:
            self.dense.append(self.dense.pop(0))
            return self.dense[-1].take(nodes).to(self.device)
        assert self.sparse is not None
        return BlockMatrix.of(self.sparse[nodes]).to(self.device)


class Neighbours(Protocol):
    """Neighbours of all nodes, as CSR for a `NeighbourSampler`, and how a layer reads sampled ones."""

    @property
    def indptr(self) -> Ints: ...  # noqa: D102

    @property
    def indices(self) -> Ints: ...  # noqa: D102

    @property
    def back(self) -> Csr | None:
        """Out-neighbours, if layers read them too."""

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int, back: Entries | None = None) -> Inputs:
        """Return what a layer reads of the drawn entries.

        Args:
            nodes: the graph's ids of the batch's nodes.
            hop: the entries; rows are the layer's targets.
            sources: number of nodes that the layer reads, the first of ``nodes``.
            back: drawn out-neighbours of the same rows.
        """


NOT_READ = torch.empty(0)
"""Features in the inputs of one layer, which reads those that it is given."""

NO_MATRIX = BlockMatrix(
    CsrRows(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0)), 0
)
"""Matrix in the inputs of a layer that reads edges."""


class Scaling(NamedTuple):
    """A propagation matrix by its factors: entry (v, u) is ``d_v^target d_u^source`` for each edge u → v, d the in-degrees.

    Attributes:
        loops: whether each node has exactly one loop, which counts in its degree; else only stored loops count.
        target: power of d_v.
        source: power of d_u.
    """

    loops: bool
    target: float
    source: float


class ScaledNeighbours:
    """Neighbours of a `Scaling`: edges from other nodes are drawn and scaled by d/f, loops are kept.

    So a row of S H is estimated without bias, with the normalisation of the whole graph, and exactly where d <= f. Values are
    computed for the drawn edges only. Parallel edges are drawn separately.

    Args:
        indptr: int64 [N + 1].
        indices: sources of the edges into each node, [E]; may be a mapped file, which is not copied unless it has loops.
        scaling: scaling of the edges.
        device: where layers are computed.
        dtype: type of the values.
    """

    back: Csr | None = None

    def __init__(self, indptr: Ints, indices: Ints, scaling: Scaling, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = device, np.float64 if dtype == torch.float64 else np.float32
        self.indptr, self.indices, loops = without_loops(indptr, indices)
        count = np.ones_like(loops) if scaling.loops else loops
        degree = (np.diff(self.indptr) + count).astype(np.float64)
        self.left = _power(degree, scaling.target)
        self.right = _power(degree, scaling.source) if scaling.source else None
        diagonal = self.left * count if self.right is None else self.left * self.right * count
        self.diagonal = diagonal.astype(self.dtype)

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int, back: Entries | None = None) -> Inputs:
        """Return the rows of S, [R, K]."""
        targets = nodes[: len(hop.degree)]
        values = np.repeat(self.left[targets], np.diff(hop.pointer))
        if self.right is not None:
            values *= self.right[nodes[hop.col]]
        values = values.astype(self.dtype) * hop.scale.astype(self.dtype)
        rows = with_diagonal(hop, values, self.diagonal[targets], self.device)
        return Inputs(NOT_READ, BlockMatrix(rows, sources))


def _power(degree: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Return degrees to the power -1 or -1/2, 0 for nodes without neighbours."""
    root = degree if power == -1 else np.sqrt(degree)
    return np.divide(1, root, out=np.zeros_like(degree), where=degree > 0)


def without_loops(indptr: Ints, indices: Ints) -> tuple[Ints, Ints, NDArray[np.int64]]:
    """Return edges without loops, not copied if there are none, and the number of loops of each node [N]."""
    loops = np.zeros(len(indptr) - 1, np.int64)
    for first, last in row_blocks(indptr, LOOPS_AT_ONCE):
        part = slice(int(indptr[first]), int(indptr[last]))
        row = np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
        loops += 0 if not (nodes := row[row == indices[part]]).size else np.bincount(nodes, minlength=len(loops))
    if not loops.any():
        return indptr, indices, loops
    row = np.repeat(np.arange(len(loops)), np.diff(indptr))
    return indptr - np.concatenate([[0], np.cumsum(loops)]), indices[row != indices], loops


LOOPS_AT_ONCE = 1 << 22
"""Edges that are searched for loops at once."""


def row_blocks(indptr: Ints, size: int) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 rows of blocks with about ``size`` rows and entries; a row with more is a separate block."""
    last = len(indptr) - 1
    cost = indptr[:last] + np.arange(last)
    ends = np.unique(np.searchsorted(cost, np.arange(size, int(indptr[-1]) + last, size)))
    bounds = [0, *ends[(ends > 0) & (ends < last)].tolist(), last]
    yield from pairwise(bounds) if last else ()


class MatrixNeighbours:
    """Neighbours of a propagation matrix S of any kind, as of `ScaledNeighbours`."""

    back: Csr | None = None

    def __init__(self, matrix: SparseMatrix):
        pointer, col, value = (part.cpu().numpy() for part in matrix.rows)
        row = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
        proper = row != col
        self.indptr = row_pointer(row[proper], len(pointer) - 1)
        self.indices: Ints = col[proper].astype(np.int32)
        self.values = value[proper]
        self.diagonal = np.zeros(len(pointer) - 1, value.dtype)
        self.diagonal[row[~proper]] = value[~proper]
        self.device = matrix.rows.value.device

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int, back: Entries | None = None) -> Inputs:
        """Return the rows of S, [R, K]."""
        values = self.values[hop.position] * hop.scale.astype(self.values.dtype)
        rows = with_diagonal(hop, values, self.diagonal[nodes[: len(hop.degree)]], self.device)
        return Inputs(NOT_READ, BlockMatrix(rows, sources))


def with_diagonal(hop: Entries, values: NDArray[Any], diagonal: NDArray[Any], device: torch.device) -> CsrRows:
    """Return the rows of drawn entries with their values, followed by each row's diagonal entry unless all are 0."""
    pointer, col = hop.pointer, hop.col
    if diagonal.any():
        rows = np.arange(len(diagonal))
        pointer = pointer + np.arange(len(pointer))
        places = np.arange(len(values)) + hop.rows
        joined = np.empty(len(values) + len(rows), values.dtype), np.empty(len(values) + len(rows), np.int64)
        for made, drawn, kept in zip(joined, (values, col), (diagonal, rows), strict=True):
            made[places] = drawn
            made[pointer[1:] - 1] = kept
        values, col = joined
    return CsrRows(*(torch.from_numpy(np.array(part)).to(device) for part in (pointer, col, values)))


class EdgeNeighbours:
    """Neighbours of edges, each of which is drawn; a layer reads the drawn ones, and the loops of its targets.

    Args:
        indptr: int64 [N + 1].
        indices: sources of the edges into each node, [E].
        device: where layers are computed.
        order: place of each edge in the graph's list of edges [E], of edges with features.
    """

    back: Csr | None = None

    def __init__(self, indptr: Ints, indices: Ints, device: torch.device, order: NDArray[np.int64] | None = None):
        self.indptr, self.indices, self.device, self.order = indptr, indices, device, order

    def edges(self, hop: Entries, loops: bool) -> Tensor:
        """Return the drawn edges with local ids, then one loop for each target with ``loops``: [2, e]."""
        parts = [np.stack([hop.col, hop.rows])]
        if loops:
            parts.append(np.tile(np.arange(len(hop.degree)), (2, 1)))
        return torch.from_numpy(np.concatenate(parts, axis=1)).to(self.device)

    def positions(self, hop: Entries) -> Tensor:
        """Return which of the graph's edges were drawn, [e]."""
        assert self.order is not None
        return torch.from_numpy(self.order[hop.position]).to(self.device)


def batch_inputs(x: Any, neighbours: Neighbours, block: Block) -> BatchInputs:
    """Return the inputs of a batch.

    Args:
        x: features of the block's nodes.
        neighbours: what was drawn from.
        block: the draw.
    """
    made = [
        neighbours.layer(block.nodes, hop, block.ends[index + 1], *block.back[index : index + 1])
        for index, hop in enumerate(block.hops)
    ]
    return BatchInputs(x, tuple(reversed(made)))
