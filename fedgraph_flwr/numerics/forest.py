"""Decision trees as plain arrays: checks, evaluation, sums of weighted forests, gain of each column.

The nodes of all trees lie one after the other. A node is a split, or a leaf with feature -1:

    start, output        int32 [T]     first node of each tree, and the raw score that its leaves add to
    feature              int32 [S]     column of a split, -1 at a leaf
    threshold            float64 [S]   x ≤ threshold goes left
    left, right          int32 [S]     children, counted from the tree's first node; 0 at a leaf
    value                float64 [S]   score of a leaf, gain of a split
    default_left         bool [S]      way of a missing value (NaN)

Raw scores are F_k(x) = Σ over trees of output k of the leaf that x reaches. Trees come from other parties, so `check_forest`
refuses all but finite trees whose children lie behind their parents: `raw_scores` then ends after as many steps as a tree is
deep.

Letters: T trees, S nodes of all trees, V rows, F columns, K outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check, up_to

LARGEST = 1e18
"""Largest magnitude of a threshold or a value; columns are clipped to it, so that a split of missing values only fits."""

LEAF = 1e9
"""Largest magnitude of a leaf's score."""

_BLOCK, _ROWS = 2**18, 2**15  # most rows times trees, and rows, that are evaluated at once

Floats = NDArray[np.float64]


def forest_fields(outputs: int, columns: int, trees: int, nodes: int) -> dict[str, ArrayField]:
    """Return the reply schema of a forest of at most ``trees`` trees with at most ``nodes`` nodes each."""
    most = trees * nodes
    return {
        "start": ArrayField((up_to(trees),), "int32", 0, max(most - 1, 0)),
        "output": ArrayField((up_to(trees),), "int32", 0, outputs - 1),
        "feature": ArrayField((up_to(most),), "int32", -1, columns - 1),
        "threshold": ArrayField((up_to(most),), "float64", -LARGEST, LARGEST),
        "left": ArrayField((up_to(most),), "int32", 0, nodes - 1),
        "right": ArrayField((up_to(most),), "int32", 0, nodes - 1),
        "value": ArrayField((up_to(most),), "float64", -LARGEST, LARGEST),
        "default_left": ArrayField((up_to(most),), "bool"),
    }


def empty_forest() -> Arrays:
    """Return a forest without trees, whose raw scores are 0."""
    return {name: np.zeros(0, np.dtype(field.dtype)) for name, field in forest_fields(1, 1, 0, 0).items()}


def constants(scores: Floats) -> Arrays:
    """Return a forest of one leaf per output, whose raw scores are ``scores`` [K]."""
    count = len(scores)
    forest = {key: np.zeros(count, array.dtype) for key, array in empty_forest().items()}
    places = np.arange(count, dtype=np.int32)
    return forest | {
        "start": places,
        "output": places.copy(),
        "feature": np.full(count, -1, np.int32),
        "value": np.array(scores, np.float64),
    }


def joined(forests: Sequence[Arrays], weights: Sequence[float] | None = None) -> Arrays:
    """Return one forest with the trees of all; its raw scores are Σ w F of those of each. Gains are weighted alike."""
    if not forests:
        return empty_forest()
    sizes = np.cumsum([0, *(len(forest["feature"]) for forest in forests)])
    union = {name: np.concatenate([forest[name] for forest in forests]) for name in forests[0]}
    starts = [forest["start"] + size for forest, size in zip(forests, sizes[:-1], strict=True)]
    union["start"] = np.concatenate(starts).astype(np.int32)
    if weights is not None:
        pairs = zip(forests, weights, strict=True)
        union["value"] = np.concatenate([forest["value"] * weight for forest, weight in pairs])
    return union


def first_trees(forest: Mapping[str, NDArray], count: int) -> Arrays:
    """Return the forest of the first ``count`` trees."""
    size = int(forest["start"][count]) if count < len(forest["start"]) else len(forest["feature"])
    return {name: array[:count] if name in ("start", "output") else array[:size] for name, array in forest.items()}


def check_forest(forest: Mapping[str, NDArray], outputs: int, columns: int, trees: int, nodes: int, who: str) -> None:
    """Refuse a forest that cannot be evaluated, or not in bounded time.

    Args:
        forest: arrays of the schema of `forest_fields`, whose sizes and ranges may be wrong.
        outputs: K.
        columns: F.
        trees: most trees.
        nodes: most nodes per tree.
        who: start of the error message, such as ``client 3 replied to phase 'train'``.

    Raises:
        FedGraphError: names the array, its value, and what is accepted.
    """
    check(forest, forest_fields(outputs, columns, trees, nodes), who)
    if problem := _problem(forest, nodes) or _odd_value(forest["value"], forest["feature"] >= 0):
        raise FedGraphError(f"{who} with {problem}")


def _odd_value(value: NDArray, split: NDArray) -> str:
    """Return which score of a leaf or gain of a split is out of range; empty if none is."""
    most, least = np.abs(value[~split]).max(initial=0), value[split].min(initial=0)
    if most > LEAF:
        return f"a leaf of {most:g}, expected at most {LEAF:g}"
    return f"a split of gain {least:g}, expected at least 0" if least < 0 else ""


def _problem(forest: Mapping[str, NDArray], nodes: int) -> str:
    """Return why a forest of valid arrays cannot be evaluated; empty if it can.

    Its trees must not overlap, and each node but the roots must have one parent, before it.
    """
    start, feature, left, right = (forest[name].astype(np.int64) for name in ("start", "feature", "left", "right"))
    size, lengths = len(feature), {name: len(array) for name, array in forest.items()}
    if lengths != {name: len(start) if name in ("start", "output") else size for name in forest}:
        return f"arrays whose lengths do not fit together: {lengths}"
    ends = np.append(start[1:], size)
    if (len(start) and start[0]) or (not len(start) and size) or (ends <= start).any() or (ends - start > nodes).any():
        return f"trees that do not lie one after the other, with 1 to {nodes} nodes each"
    tree = np.repeat(np.arange(len(start)), ends - start)
    place, count = np.arange(size) - start[tree], (ends - start)[tree]
    split = feature >= 0
    low, high = np.minimum(left, right)[split], np.maximum(left, right)[split]
    if (low <= place[split]).any() or (high >= count[split]).any() or (low == high).any():
        return "a tree whose children do not lie behind their parent in the same tree"
    if left[~split].any() or right[~split].any():
        return "a leaf that has children: expected left and right to be 0"
    parents = np.bincount(np.concatenate([(start[tree] + child)[split] for child in (left, right)]), minlength=size)
    return "a tree in which a node has no parent, or two" if (parents != (place > 0)).any() else ""


def leaves(forest: Mapping[str, NDArray], x: Floats) -> NDArray[np.int64]:
    """Return the node that each row reaches in each tree, among the nodes of all trees [T, V]."""
    start, feature = forest["start"].astype(np.int64), forest["feature"]
    at = np.repeat(start[:, None], len(x), axis=1)
    tree, row = (feature[at] >= 0).nonzero()
    while tree.size:
        node = at[tree, row]
        value = x[row, feature[node]]
        left = np.where(np.isnan(value), forest["default_left"][node], value <= forest["threshold"][node])
        node = start[tree] + np.where(left, forest["left"][node], forest["right"][node])
        at[tree, row] = node
        inner = feature[node] >= 0
        tree, row = tree[inner], row[inner]
    return at


def raw_scores(forest: Mapping[str, NDArray], x: Any, outputs: int) -> Floats:
    """Return the raw scores of rows: columns [V, F] → [V, K], added in the order of the trees.

    Args:
        forest: arrays that `check_forest` accepts.
        x: columns, NaN where missing, also as `gathered.Gathered`.
        outputs: K.
    """
    scores = np.zeros((len(x), outputs))
    if not len(forest["start"]):
        return scores
    of = [forest["output"] == output for output in range(outputs)]
    size = min(max(_BLOCK // len(forest["start"]), 1), _ROWS)
    for first in range(0, len(x), size):
        reached = forest["value"][leaves(forest, x[first : first + size])]
        for output, trees in enumerate(of):
            scores[first : first + size, output] = np.add.reduce(reached[trees], axis=0)
    return scores


def gains(forest: Mapping[str, NDArray], columns: int) -> Floats:
    """Return the gain of each column, summed over the splits that read it [F]."""
    split = forest["feature"] >= 0
    return np.bincount(forest["feature"][split], forest["value"][split], columns).astype(np.float64)
