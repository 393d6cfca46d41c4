"""Parts of a graph by METIS, and the edges between the nodes of a batch."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedgraph_flwr.numerics.draws import Entries, Ints, row_pointer, within
from fedgraph_flwr.numerics.hops import pattern


def undirected(source: Ints, target: Ints, num_nodes: int, dtype: Any = np.float32) -> sp.csr_matrix:
    """Return the pattern of the undirected simple graph: symmetric, without loops; CSR [N, N] of ones with sorted columns."""
    kept = source != target
    rows, cols = np.concatenate([source[kept], target[kept]]), np.concatenate([target[kept], source[kept]])
    return pattern(rows, cols, (num_nodes, num_nodes), dtype)


def metis(pattern: Any, num_parts: int, seed: int) -> NDArray[np.int64]:
    """Return the METIS part of each node [N] (Karypis & Kumar, 1998), through pymetis; a part may be empty.

    Args:
        pattern: of `undirected`.
        num_parts: at least 1.
        seed: below 2^31.
    """
    import pymetis

    rows = pymetis.CSRAdjacency(pattern.indptr, pattern.indices)
    seed = 2**31 - 1 if seed == 1 else seed  # METIS calls srand, for which 1 and 0 are the same seed
    _, label = pymetis.part_graph(num_parts, rows, options=pymetis.Options(seed=seed))
    return np.asarray(label, np.int64)


class Subgraphs:
    """Finds the edges between some nodes, in time proportional to the degrees of these.

    Args:
        indptr: in-neighbours of node v are ``indices[indptr[v]:indptr[v + 1]]``, int64 [N + 1].
        indices: int32 or int64 [E].
    """

    def __init__(self, indptr: Ints, indices: Ints):
        self.indptr, self.indices = indptr, indices
        self._local = np.full(len(indptr) - 1, -1, np.int32)

    def between(self, nodes: NDArray[np.int64]) -> Entries:
        """Return the edges between different nodes [n]; rows and sources are their places in ``nodes``."""
        start = self.indptr[nodes].astype(np.int64)
        degree = self.indptr[nodes + 1].astype(np.int64) - start
        row = np.repeat(np.arange(len(nodes)), degree)
        position = within(degree) + start[row]
        self._local[nodes] = np.arange(len(nodes))
        col = self._local[self.indices[position]]
        self._local[nodes] = -1
        kept = col >= 0
        return Entries(row_pointer(row[kept], len(nodes)), col[kept].astype(np.int64), position[kept], degree)
