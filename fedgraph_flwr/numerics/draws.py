"""Draws of neighbours in NumPy: the reference of `draws_numba`, with the same bits.

A stream of (key, node, hop) is splitmix64 from s = mix(key ⊕ mix(64 node + hop)); its i-th word is mix(s + (i + 1) G). So a draw
depends on nothing but the key, the node and the hop. An index below m is the upper half of a word times m, shifted right by 32
bits, so that its probabilities differ from 1/m by at most m / 2^32.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]

GOLDEN = 0x9E3779B97F4A7C15
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
HOPS = 64
"""Upper bound of the hops, which have separate streams."""


class Entries(NamedTuple):
    """Sampled in-neighbours of some rows.

    Attributes:
        pointer: row r has the entries ``pointer[r]:pointer[r + 1]``, int64 [R + 1].
        col: local ids of the sources, int64 [e].
        position: places of the entries in the graph's ``indices``, and so of edge features, int64 [e].
        degree: number of all in-neighbours of each row, int64 [R].
    """

    pointer: NDArray[np.int64]
    col: NDArray[np.int64]
    position: NDArray[np.int64]
    degree: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Local id of the target of each entry, int64 [e]."""
        return np.repeat(np.arange(len(self.degree)), np.diff(self.pointer))

    @property
    def scale(self) -> NDArray[np.float64]:
        """Number of all in-neighbours over the number taken, for each entry [e]: the factor that keeps a sum unbiased."""
        taken = np.diff(self.pointer)
        return np.repeat(self.degree / np.maximum(taken, 1), taken)


def row_pointer(row: Ints, rows: int) -> NDArray[np.int64]:
    """Return where the entries of each row begin and end if they are sorted by ``row`` [E], [rows + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])


def within(count: Ints) -> NDArray[np.int64]:
    """Return the place of each item among those of its row, from 0; rows have ``count`` [R] items, one after the other."""
    return np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)


def occurrences(columns: NDArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many earlier columns equal each column, and how many do in all: [K, V] → [V], [V]."""
    order = np.lexsort(columns[::-1])
    new = np.ones(order.size, dtype=bool)
    new[1:] = (np.diff(columns[:, order], axis=1) != 0).any(0)
    size = np.diff(np.append(np.flatnonzero(new), order.size))
    earlier, equal = np.empty((2, order.size), np.int64)
    earlier[order], equal[order] = within(size), np.repeat(size, size)
    return earlier, equal


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FACTORS[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(FACTORS[1])
    return z ^ (z >> np.uint64(31))


def streams(key: int, nodes: Ints, hop: int) -> NDArray[np.uint64]:
    """Return the start of each node's stream."""
    return mix(np.uint64(key) ^ mix(nodes.astype(np.uint64) * np.uint64(HOPS) + np.uint64(hop)))


def count(indptr: Ints, nodes: Ints, fanout: int) -> int:
    """Return the number of entries of a hop from these nodes; a negative fan-out takes all neighbours."""
    degree = indptr[nodes + 1] - indptr[nodes]
    return int((np.minimum(degree, fanout) if fanout >= 0 else degree).sum())


def draw(
    indptr: Ints, indices: Ints, nodes: Ints, made: Entries, fanout: int, key: int, hop: int, stable: bool
) -> None:
    """Write the pointers, degrees and positions of a hop from these nodes."""
    start = indptr[nodes].astype(np.int64)
    degree = indptr[nodes + 1].astype(np.int64) - start
    drawn = degree > fanout if fanout >= 0 else np.zeros(len(nodes), bool)
    taken = np.where(drawn, fanout, degree)
    made.degree[:] = degree
    made.pointer[0] = 0
    np.cumsum(taken, out=made.pointer[1:])
    places = np.arange(len(made.position)) + np.repeat(start - made.pointer[:-1], taken)
    if drawn.any():
        states = streams(key, nodes[drawn], hop)
        chosen = (
            _lowest(indices, start[drawn], degree[drawn], states, fanout)
            if stable
            else start[drawn, None] + _floyd(degree[drawn], states, fanout)
        )
        places[np.repeat(drawn, taken)] = chosen.ravel()
    made.position[:] = places


def _floyd(degree: Ints, states: NDArray[np.uint64], fanout: int) -> NDArray[np.int64]:
    """Draw ``fanout`` different numbers below each degree by Floyd's algorithm, [R, f]."""
    chosen = np.empty((len(degree), fanout), np.int64)
    for index in range(fanout):
        last = degree - fanout + index
        words = mix(states + np.uint64((index + 1) * GOLDEN % 2**64))
        picks = ((words >> np.uint64(32)) * (last + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
        met = (chosen[:, :index] == picks[:, None]).any(axis=1)
        chosen[:, index] = np.where(met, last, picks)
    return chosen


def _lowest(indices: Ints, start: Ints, degree: Ints, states: NDArray[np.uint64], fanout: int) -> NDArray[np.int64]:
    """Return the positions of the ``fanout`` neighbours with the lowest keyed hashes, [R, f]."""
    row = np.repeat(np.arange(len(degree)), degree)
    before = np.cumsum(degree) - degree
    position = np.arange(len(row)) - before[row] + start[row]
    hashes = mix(states[row] ^ mix(indices[position].astype(np.uint64)))
    order = np.lexsort((position, hashes, row))
    return position[order[before[:, None] + np.arange(fanout)]]


def number(indices: Ints, made: Entries, nodes: Ints, local: Ints, known: int) -> int:
    """Write the local ids of a hop's sources, new ones from ``known`` on into ``nodes`` too; returns the number of nodes."""
    source = indices[made.position]
    new = source[local[source] < 0]
    additions, first = np.unique(new, return_index=True)
    additions = additions[np.argsort(first)]
    nodes[known : known + len(additions)] = additions
    local[additions] = np.arange(known, known + len(additions))
    made.col[:] = local[source]
    return known + len(additions)
