"""Neighbour sampling (Hamilton et al., NeurIPS 2017) on a graph in CSR of in-neighbours, which may be a memory-mapped file.

Hop h takes all in-neighbours of each node met so far if they are at most the fan-out f_h, else f_h of them without replacement.
Hops draw separately, so that a sum over paths that meet a node twice is unbiased. A draw is a pure function of the key of a step,
the node and the hop, so that threads, engines and the order of batches cannot change it. A model that
also reads against the edges draws out-neighbours of the same nodes, with streams of their own.

Without numba (``pip install fedgraph-flwr[fast]``) the same draws come from NumPy, with the same bits.
"""

import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics import draws
from fedgraph_flwr.numerics.draws import HOPS, Entries, Ints


class Block(NamedTuple):
    """Sampled neighbourhood of some seeds. Local ids follow the order in which nodes were met, seeds first.

    The arrays are views of a sampler's buffers, valid until its next sample; `copy` makes them last.

    Attributes:
        nodes: the graph's ids of the nodes, int64 [n].
        ends: number of nodes within 0, 1, .., L hops of the seeds.
        hops: entries of each hop, from the seeds on; the rows of hop h are the first ``ends[h]`` nodes, its sources among the
            first ``ends[h + 1]``. So the last hop is the first layer of a network.
        back: out-neighbours of the same rows, hop by hop; empty without any.
    """

    nodes: NDArray[np.int64]
    ends: tuple[int, ...]
    hops: tuple[Entries, ...]
    back: tuple[Entries, ...] = ()

    def copy(self) -> "Block":
        """Return a block that later samples do not change."""
        hops, back = (tuple(Entries(*map(np.copy, hop)) for hop in drawn) for drawn in (self.hops, self.back))
        return Block(self.nodes.copy(), self.ends, hops, back)


class Csr(NamedTuple):
    """Neighbours of each node.

    Attributes:
        indptr: those of node v are ``indices[indptr[v]:indptr[v + 1]]``, int64 [N + 1].
        indices: int32 or int64 [E]; an entry per edge, so parallel edges are drawn separately.
    """

    indptr: Ints
    indices: Ints


def has_numba() -> bool:
    """Return whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def backend_of(name: str) -> ModuleType:
    """Return the module with the draws: ``numba``, ``numpy``, or with ``auto`` the faster one that is installed.

    Raises:
        FedGraphError: numba is not installed.
    """
    if name == "numba" and not has_numba():
        raise FedGraphError("the sampler needs numba: run pip install 'fedgraph-flwr[fast]'", "package")
    if name == "numpy" or not has_numba():
        return draws
    from fedgraph_flwr.numerics import draws_numba

    return draws_numba


class NeighbourSampler:
    """Samples neighbourhoods into buffers that it reuses. Use one per thread; they may share the graph's arrays.

    Args:
        indptr: in-neighbours of node v are ``indices[indptr[v]:indptr[v + 1]]``, int64 [N + 1].
        indices: int32 or int64 [E]; an entry per edge, so parallel edges are drawn separately.
        fanout: number of neighbours per hop, from the seeds on; -1: all.
        stable: whether to take the neighbours with the lowest keyed hashes, so that a deleted edge changes only draws that held
            it. Takes time in proportion to degrees.
        backend: as of `backend_of`.
        back: out-neighbours, which are drawn in addition.
        fanout_back: number of out-neighbours per hop; empty: as of ``fanout``.

    Raises:
        FedGraphError: the arrays are not a CSR, or the fan-out is not valid.
    """

    def __init__(
        self,
        indptr: Ints,
        indices: Ints,
        fanout: Sequence[int],
        *,
        stable: bool = False,
        backend: str = "auto",
        back: Csr | None = None,
        fanout_back: Sequence[int] = (),
    ):
        self.sides = [Csr(np.asarray(indptr), np.asarray(indices)), *([back] if back else [])]
        for side in self.sides:
            if not len(side.indptr) or side.indptr[0] or side.indptr[-1] != len(side.indices):
                raise FedGraphError(
                    f"indptr must start with 0 and end with the number of edges, {len(side.indices)}; a truncated file has"
                    " fewer: write the graph's file again"
                )
        self.fanouts = [tuple(fanout), tuple(fanout_back or fanout)][: len(self.sides)]
        for numbers in self.fanouts:
            if len(numbers) >= HOPS // 2 or any(number < -1 or number == 0 for number in numbers):
                raise FedGraphError(
                    f"a fan-out has at most {HOPS // 2 - 1} numbers >= 1, or -1 for all neighbours, got {list(numbers)}"
                )
        self.stable = stable
        self.draws = backend_of(backend)
        self._local = np.full(self.num_nodes, -1, np.int32)
        self._nodes = np.empty(0, np.int64)
        self._entries = [[Entries(*np.empty((4, 0), np.int64)) for _ in fanout] for _ in self.sides]

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.sides[0].indptr) - 1

    def sample(self, seeds: Ints, key: int) -> Block:
        """Sample the neighbourhood of different seeds [B].

        Args:
            seeds: the graph's ids, each once.
            key: key of the step, below 2^64.
        """
        known, ends = len(seeds), [len(seeds)]
        drawn: list[list[Entries]] = [[] for _ in self.sides]
        self._nodes = _room(self._nodes, known)
        self._nodes[:known] = seeds
        self._local[seeds] = np.arange(known)
        try:
            for hop in range(len(self.fanouts[0])):
                targets = known
                for way, (indptr, indices) in enumerate(self.sides):
                    fanout, stream = self.fanouts[way][hop], hop + way * (HOPS // 2)
                    total = int(self.draws.count(indptr, self._nodes[:targets], fanout))
                    self._nodes = _room(self._nodes, known + total)
                    made, rows = self._memory(way, hop, targets, total), self._nodes[:targets]
                    self.draws.draw(indptr, indices, rows, made, fanout, key, stream, self.stable)
                    known = self.draws.number(indices, made, self._nodes, self._local, known)
                    drawn[way].append(made)
                ends.append(known)
        finally:
            self._local[self._nodes[:known]] = -1
        return Block(self._nodes[:known], tuple(ends), *map(tuple, drawn))

    def _memory(self, way: int, hop: int, rows: int, total: int) -> Entries:
        """Return the memory of a hop in one direction, made longer where it is short."""
        sizes, old = {"pointer": rows + 1, "col": total, "position": total, "degree": rows}, self._entries[way][hop]
        held = Entries(**{name: _room(getattr(old, name), size) for name, size in sizes.items()})
        self._entries[way][hop] = held
        return Entries(**{name: getattr(held, name)[:size] for name, size in sizes.items()})


def _room(array: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return an array with the same values that is at least so long."""
    if len(array) >= size:
        return array
    longer = np.empty(max(size, 3 * len(array) // 2), array.dtype)
    longer[: len(array)] = array
    return longer


class RowBuffer:
    """Rows of a matrix, gathered into memory that is reused: new memory for each batch takes most of the time otherwise.

    Args:
        source: [N, F], float16, bfloat16, float32 or float64; a NumPy array may be a memory-mapped file.
        dtype: type of the gathered rows.
    """

    def __init__(self, source: Tensor | NDArray[np.floating], dtype: torch.dtype = torch.float32):
        self.source, self.dtype = source, dtype
        self.stored = source.dtype if isinstance(source, Tensor) else torch.from_numpy(np.empty(0, source.dtype)).dtype
        self._grow(0)

    def take(self, rows: Ints) -> Tensor:
        """Return rows [n, F], valid until the next call."""
        if len(self._wide) < len(rows):
            self._grow(max(len(rows), 5 * len(self._wide) // 4))
        view, read = self._wide[: len(rows)], self._read[: len(rows)]
        if isinstance(self.source, Tensor):
            torch.index_select(self.source, 0, torch.from_numpy(rows), out=read)
        else:
            np.take(self.source, rows, axis=0, out=read.numpy(), mode="clip")
        return view if self._read is self._wide else view.copy_(read)

    def _grow(self, size: int) -> None:
        """Make room for so many rows."""
        width = self.source.shape[1]
        self._wide = torch.empty(size, width, dtype=self.dtype)
        self._read = self._wide if self.stored == self.dtype else torch.empty(size, width, dtype=self.stored)
