"""Neighbourhoods of a graph as a model reads them: what the sampler draws from, and the inputs of a layer made of a draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.numerics.draws import Entries, Ints
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sampler import Block
from fedgraph_flwr.numerics.sparse import BlockMatrix, Rows, SparseMatrix


@dataclass
class BatchInputs:
    """Inputs of a forward pass over a sampled batch.

    Attributes:
        x: features of the batch's nodes, seeds first.
        layers: what each layer with neighbours reads, the first layer first. A layer gives outputs for fewer nodes than the one
            before, always the first ones; the last layer, for the seeds.
    """

    x: Any
    layers: tuple[Inputs, ...]


class Neighbours(Protocol):
    """Neighbours of all nodes, as CSR for a `NeighbourSampler`, and how a layer reads sampled ones."""

    @property
    def indptr(self) -> Ints: ...  # noqa: D102

    @property
    def indices(self) -> Ints: ...  # noqa: D102

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int) -> Inputs:
        """Return what a layer reads of the drawn entries.

        Args:
            nodes: the graph's ids of the batch's nodes.
            hop: the entries; rows are the layer's targets.
            sources: number of nodes that the layer reads, the first of ``nodes``.
        """


NOT_READ = torch.empty(0)
"""Features in the inputs of one layer, which reads those that it is given."""

NO_MATRIX = BlockMatrix(Rows(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0)), 0)
"""Matrix in the inputs of a layer that reads edges."""


class MatrixNeighbours:
    """Neighbours of a propagation matrix S: entries outside the diagonal are drawn and scaled by d/f, the diagonal is kept.

    So a row of S H is estimated without bias, with the normalisation of the whole graph, and exactly where d <= f.
    """

    def __init__(self, matrix: SparseMatrix):
        pointer, col, value = (part.cpu().numpy() for part in matrix.rows)
        row = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
        proper = row != col
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(row[proper], minlength=len(pointer) - 1))])
        self.indices: Ints = col[proper].astype(np.int32)
        self.values = value[proper]
        self.diagonal = np.zeros(len(pointer) - 1, value.dtype)
        self.diagonal[row[~proper]] = value[~proper]
        self.device = matrix.rows.value.device

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int) -> Inputs:
        """Return the rows of S, [R, K]."""
        values = self.values[hop.position] * hop.scale.astype(self.values.dtype)
        rows = with_diagonal(hop, values, self.diagonal[nodes[: len(hop.degree)]], self.device)
        return Inputs(NOT_READ, BlockMatrix(rows, sources))


def with_diagonal(hop: Entries, values: NDArray[Any], diagonal: NDArray[Any], device: torch.device) -> Rows:
    """Return the rows of drawn entries with their values, followed by each row's diagonal entry unless all are 0."""
    pointer, col = hop.pointer, hop.col
    if diagonal.any():
        own = np.arange(len(diagonal))
        pointer = pointer + np.arange(len(pointer))
        places = np.arange(len(values)) + hop.rows
        joined = np.empty(len(values) + len(own), values.dtype), np.empty(len(values) + len(own), np.int64)
        for made, drawn, kept in zip(joined, (values, col), (diagonal, own), strict=True):
            made[places] = drawn
            made[pointer[1:] - 1] = kept
        values, col = joined
    return Rows(*(torch.from_numpy(np.array(part)).to(device) for part in (pointer, col, values)))


class EdgeNeighbours:
    """Neighbours of a list of edges, each of which is drawn; a layer reads the drawn ones, and the loops of its targets.

    Args:
        edge_index: [2, E], row 0 source and row 1 target.
        num_nodes: N.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int):
        source, target = edge_index.cpu().numpy()
        self.order = np.argsort(target, kind="stable")
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=num_nodes))])
        self.indices: Ints = source[self.order].astype(np.int32)
        self.device = edge_index.device

    def edges(self, hop: Entries, loops: bool) -> Tensor:
        """Return the drawn edges with local ids, then one loop for each target with ``loops``: [2, e]."""
        parts = [np.stack([hop.col, hop.rows])]
        if loops:
            parts.append(np.tile(np.arange(len(hop.degree)), (2, 1)))
        return torch.from_numpy(np.concatenate(parts, axis=1)).to(self.device)

    def positions(self, hop: Entries) -> Tensor:
        """Return which of the given edges were drawn, [e]."""
        return torch.from_numpy(self.order[hop.position]).to(self.device)


def batch_inputs(x: Any, neighbours: Neighbours, block: Block) -> BatchInputs:
    """Return the inputs of a batch.

    Args:
        x: features of the block's nodes.
        neighbours: what was drawn from.
        block: the draw.
    """
    hops: Sequence[Entries] = block.hops
    made = [neighbours.layer(block.nodes, hop, block.ends[index + 1]) for index, hop in enumerate(hops)]
    return BatchInputs(x, tuple(reversed(made)))
