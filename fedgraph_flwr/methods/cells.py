"""Dyadic cells: the groups in which a client counts values, so that sums over bins tell of no few of its items.

A cell of all numbers of 32 bits, in their order, has two halves. A client splits a cell only where each half holds none or at
least ``floor`` of its items, of both of two sibling nodes of a tree, and only where it was split in the parent of these nodes.
If one half has fewer of both, they join the nearest cell of the other. All items of a cell that is not split count in the bin of
the cell's middle.

So a bin never says more than that a cell, which does not depend on the bins, has so many items: other edges in another run show
the same cells. Sums of a parent differ from those of its children by whole cells of the parent. (The bin of a group's middle item
would show that item.) Missing values are a cell of their own, or join the last values, if they or the values are too few.

Letters: V items, F columns, T cells, P pairs of siblings, S siblings (2, or 1 for roots).
"""

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.boosting import WIDEST, Edges, float_keys, key_values
from fedgraph_flwr.numerics.forest import LARGEST, Floats
from fedgraph_flwr.wire.messages import Arrays

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
States = NDArray[np.int8]

WHOLE, SPLIT, LEFT_JOINS, RIGHT_JOINS = range(4)
"""What becomes of a cell: its items count in its middle, its halves count, or one half has few items, which join the other."""

_ZERO = 1 << 32
"""Added to keys, which are then positive."""

_COLUMN = 34
"""Bits of a key; those above have its column."""

_AT_ONCE = 1 << 24
"""Values that are counted at once."""


class Cells:
    """The cells of a client's values that edges of bins can tell apart: for each column a binary tree.

    Args:
        x: values [V, F], NaN where missing.
        edges: edges of the bins.
        floor: fewest items of a cell that is not empty.

    Attributes:
        leaf: smallest cell of each value [V, F]; T + f for a missing one of column f.
        bin: bin of the middle of each cell [T].
        size: T + F.
    """

    def __init__(self, x: Floats, edges: Edges, floor: int):
        self.floor, self.missing = floor, max(map(len, edges), default=0) + 1
        known, columns = ~np.isnan(x), np.arange(x.shape[1])
        values = np.where(known, x, 0).clip(-LARGEST, LARGEST).astype(np.float32)
        keys = (float_keys(values) + _ZERO + (columns << _COLUMN))[known]
        self._keys, inverse = np.unique(keys, return_inverse=True)
        bounds = np.searchsorted(self._keys, np.arange(x.shape[1] + 1) << _COLUMN)
        smallest = self._grow(edges, bounds)
        self.leaf = np.tile(len(self.bin) + columns, (len(x), 1))
        self.leaf[known] = smallest[inverse]
        self.size = len(self.bin) + x.shape[1]
        self.held = np.flatnonzero(np.diff(bounds))
        self.last = smallest[bounds[self.held + 1] - 1]

    def _grow(self, edges: Edges, bounds: Ints) -> Ints:
        """Split the cells of all columns, level by level, down to those within one bin; return the smallest of each key."""
        first, end = (side[np.diff(bounds) > 0] for side in (bounds[:-1], bounds[1:]))
        self.bin, self.levels = np.zeros(0, np.int64), list[tuple[Ints, Ints]]()
        smallest = np.zeros(len(self._keys), np.int64)
        while first.size:
            low, high = self._keys[first], self._keys[end - 1]
            bits = np.frexp((low ^ high).astype(np.float64))[1].astype(np.int64)  # of the smallest cell with all keys
            half = np.maximum(bits - 1, 0)
            least, middle = (low >> bits) << bits, (high >> half) << half
            of_least, of_middle, of_most = (
                self._bins(edges, key) for key in (least, middle, least + (np.int64(1) << bits) - 1)
            )
            number = len(self.bin) + np.arange(len(first))
            self.bin = np.concatenate([self.bin, of_middle])
            inner = (bits > 0) & (of_least < of_most)
            for cell in np.flatnonzero(~inner):
                smallest[first[cell] : end[cell]] = number[cell]
            left = len(self.bin) + 2 * np.arange(int(inner.sum()))
            if inner.any():
                self.levels.append((number[inner], left))
            cut = np.searchsorted(self._keys, middle[inner])
            first, end = (np.stack(pair, axis=1).reshape(-1) for pair in ((first[inner], cut), (cut, end[inner])))
        return smallest

    def _bins(self, edges: Edges, keys: Ints) -> Ints:
        """Return the bin of each key, which are in the order of their columns."""
        column = keys >> _COLUMN
        values = key_values(((keys & ((1 << _COLUMN) - 1)) - _ZERO).clip(-WIDEST, WIDEST))
        bins = np.zeros(len(keys), np.int64)
        names, starts = np.unique(column, return_index=True)
        for name, start, stop in zip(names.tolist(), starts, [*starts[1:], len(keys)], strict=True):
            bins[start:stop] = np.searchsorted(edges[name], values[start:stop], side="left")
        return bins

    def counts(self, at: Ints, nodes: int) -> Ints:
        """Return the number of items in each cell and of missing values [nodes, T + F], by the node of each item, -1: none."""
        rows, totals = np.flatnonzero(at >= 0), np.zeros(nodes * self.size, np.int64)
        step = max(1, _AT_ONCE // max(self.leaf.shape[1], 1))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            totals += np.bincount((at[some, None] * self.size + self.leaf[some]).ravel(), minlength=totals.size)
        return self._summed(totals.reshape(nodes, -1))

    def _summed(self, counts: Ints) -> Ints:
        for inner, left in reversed(self.levels):
            counts[..., inner] += counts[..., left] + counts[..., left + 1]
        return counts

    def split(self, counts: Ints, before: States | None = None) -> States:
        """Return what becomes of each cell [P, T + F]; at T + f whether missing values of column f are apart (`SPLIT`).

        Args:
            counts: items of sibling nodes [P, S, T + F].
            before: the states in their parents [P, T + F]; None for roots.
        """
        cells, roots = len(self.bin), np.arange(len(self.held))
        before = np.full((len(counts), self.size), SPLIT, np.int8) if before is None else before
        states, values = np.full((len(counts), self.size), WHOLE, np.int8), np.zeros_like(counts[..., cells:])
        values[..., self.held] = counts[..., roots]
        apart = (self._enough(counts[..., cells:]) & self._enough(values)).all(axis=1) & (before[:, cells:] == SPLIT)
        states[:, cells:][apart] = SPLIT
        low, high = (
            np.zeros_like(counts[..., :cells]),
            np.zeros_like(counts[..., :cells]),
        )  # items that joined at an end
        high[..., roots] = np.where(apart[:, None, self.held], 0, counts[..., cells + self.held])
        active = np.zeros((len(counts), cells), bool)
        active[:, roots] = True
        for inner, left in self.levels:
            right, was = left + 1, before[:, inner]
            first, second = counts[..., left], counts[..., right]
            held = [self._enough(side).all(axis=1) for side in (first, second)]
            joined = [self._enough(side).all(axis=1) for side in (first + low[..., inner], second + high[..., inner])]
            few = [(side < self.floor).all(axis=1) for side in (first, second)]
            state = np.where(few[0] & held[1] & np.isin(was, (SPLIT, LEFT_JOINS)), LEFT_JOINS, WHOLE)
            state = np.where(few[1] & held[0] & np.isin(was, (SPLIT, RIGHT_JOINS)), RIGHT_JOINS, state)
            state = np.where(held[0] & held[1] & joined[0] & joined[1] & (was == SPLIT), SPLIT, state)
            states[:, inner] = state = np.where(active[:, inner], state, WHOLE)
            active[:, left] = np.isin(state, (SPLIT, RIGHT_JOINS))
            active[:, right] = np.isin(state, (SPLIT, LEFT_JOINS))
            low[..., left], high[..., right] = low[..., inner], high[..., inner]
            high[..., left] = np.where((state == RIGHT_JOINS)[:, None], second + high[..., inner], 0)
            low[..., right] = np.where((state == LEFT_JOINS)[:, None], first + low[..., inner], 0)
        return states

    def _enough(self, counts: Ints) -> Flags:
        return (counts == 0) | (counts >= self.floor)

    def value_counts(self) -> Floats:
        """Return the number of values in each bin [F, B + 1], where all items are in one node; 0 for columns with few values."""
        counts = self.counts(np.zeros(len(self.leaf), np.int64), 1)[None]
        counts[..., len(self.bin) :] = 0
        places, totals = self.places(self.split(counts))[0], np.zeros((self.leaf.shape[1], self.missing + 1))
        for root, column in enumerate(self.held.tolist()):
            leaves = self.leaf[self.leaf[:, column] < len(self.bin), column]
            if counts[0, 0, root] >= self.floor:
                totals[column] = np.bincount(places[leaves], minlength=self.missing + 1)
        return totals

    def places(self, states: States) -> Ints:
        """Return the bin in which the items of each smallest cell, and missing values, count [P, T + F]."""
        cells, roots = len(self.bin), np.arange(len(self.held))
        apart = states[:, cells + self.held] == SPLIT
        bins = np.full(states.shape, self.missing)
        bins[:, :cells] = self.bin
        alone = apart | (states[:, roots] != WHOLE)  # else nothing is known of the column
        bins[:, roots] = np.where(alone, bins[:, roots], self.missing)
        low, high = bins.copy(), bins.copy()  # bins of the first and last cells within each
        for inner, left in reversed(self.levels):
            right, state = left + 1, states[:, inner]
            whole = state == WHOLE
            low[:, inner] = np.where(whole, low[:, inner], np.where(state == LEFT_JOINS, low[:, right], low[:, left]))
            high[:, inner] = np.where(
                whole, high[:, inner], np.where(state == RIGHT_JOINS, high[:, left], high[:, right])
            )
        within = np.full((len(states), cells), -1)  # the bin of the cell that a cell joined
        for inner, left in self.levels:
            right, state = left + 1, states[:, inner]
            of = np.where(within[:, inner] >= 0, within[:, inner], np.where(state == WHOLE, bins[:, inner], -1))
            within[:, left] = np.where((of < 0) & (state == LEFT_JOINS), low[:, right], of)
            within[:, right] = np.where((of < 0) & (state == RIGHT_JOINS), high[:, left], of)
        bins[:, :cells] = np.where(within >= 0, within, bins[:, :cells])
        bins[:, cells + self.held] = np.where(apart, self.missing, high[:, roots])
        return bins


class Branches:
    """A client's items in one tree that grows.

    Args:
        cells: the cells of its values.
        known: which items have a known target [V].

    Attributes:
        at: the node that each item reached [V].
    """

    def __init__(self, cells: Cells, known: Flags):
        self.cells, self.known, self.at = cells, known, np.zeros(len(known), np.int64)
        self._split: dict[int, States] = {}
        split = cells.split(self._counts(self.at, 1))
        self._split[0], self._places = split[0], {0: cells.places(split)[0]}
        self._done: set[int] = set()

    def extend(self, forest: Arrays, tree: int, edges: Edges) -> None:
        """Follow the splits of a tree, by the bins in which items count.

        Raises:
            FedGraphError: a threshold is no edge of a bin.
        """
        start, stop = forest["start"][tree], [*forest["start"], len(forest["feature"])][tree + 1]
        arrays = {name: forest[name][start:stop] for name in ("feature", "threshold", "left", "right", "default_left")}
        while nodes := [n for n in self._split if arrays["feature"][n] >= 0 and n not in self._done]:
            children = np.full(len(self.at), -1)
            for place, node in enumerate(nodes):
                feature, threshold = int(arrays["feature"][node]), arrays["threshold"][node]
                cut = int(np.searchsorted(edges[feature], threshold, side="left"))
                if cut == len(edges[feature]) or edges[feature][cut] != threshold:
                    raise FedGraphError(
                        f"the server sent growing trees with threshold {threshold:g}, which is no edge of a bin"
                    )
                rows = np.flatnonzero(self.at == node)
                bins = self._places[node][self.cells.leaf[rows, feature]]
                left = np.where(bins == self.cells.missing, arrays["default_left"][node], bins <= cut)
                self.at[rows] = np.where(left, arrays["left"][node], arrays["right"][node])
                children[rows] = 2 * place + ~left
            before = np.stack([self._split[node] for node in nodes])
            split = self.cells.split(self._counts(children, len(nodes)), before)
            for node, cells, bins in zip(nodes, split, self.cells.places(split), strict=True):
                for child in (int(arrays["left"][node]), int(arrays["right"][node])):
                    self._split[child], self._places[child] = cells, bins
                self._done.add(node)

    def _counts(self, at: Ints, pairs: int) -> Ints:
        """Return the items of siblings [P, S, T + F]; if some targets are unknown, also those with known ones, apart."""
        counted = [at] if self.known.all() else [at, np.where(self.known, at, -1)]
        siblings = 2 if self._split else 1
        totals = [self.cells.counts(part, siblings * pairs).reshape(pairs, siblings, -1) for part in counted]
        return np.concatenate(totals, axis=1)

    def bins(self, nodes: NDArray[np.int32]) -> Ints:
        """Return the bin in which each item of some nodes counts, by column [V, F]; any for other items."""
        bins = np.zeros(self.cells.leaf.shape, np.int64)
        for node in nodes.tolist():
            rows = np.flatnonzero(self.at == node)
            bins[rows] = self._places[node][self.cells.leaf[rows]]
        return bins
