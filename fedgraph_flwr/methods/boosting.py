"""Gradient boosting of a federation: keys, uplink, objectives, agreed bins, and the choice of splits from histograms.

    F_k(x) = b_k + Σ_trees,   g = ∂ℓ/∂F_k,   h = ∂²ℓ/∂F_k²,   leaf = −η G / (H + λ)
    gain = G_L² / (H_L + λ) + G_R² / (H_R + λ) − G² / (H + λ)

(Friedman 2001; Chen & Guestrin, KDD 2016). b is the base rate over all clients: log-odds or log-shares of classes, means of
targets. G and H are sums of g and h over the items of a node. With ``init`` the forest of that run replaces b.

``bagging``      each party fits all of its trees, and the model is the mean of the parties' raw scores
``histogram``    the server grows one model from sums of the clients' histograms of g, h and counts, one exchange per level

In ``histogram`` both a node of a tree and a bin depend on sums only. So the trees are those of a fit on the pooled rows in
float64, up to the rounding of sums. Bins are cells with about equal counts: counts over 1,024 cells of all numbers of 32 bits,
then over as many cells where the columns have values.

Letters: V items, F columns, K outputs (1 for two classes), B bins, Q nodes of a level.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Exchanges, Individual, Once, Sum, Uplink
from fedgraph_flwr.numerics.forest import LARGEST, Floats
from fedgraph_flwr.wire.messages import METRICS, TRAIN, Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, NumberField, check, up_to

BASE, BINS, COUNTS, GROW, HISTOGRAM = "base", "bins", "counts", "grow", "histogram"
START = "start"
FOREST, NODES = "forest", "nodes"

UNIT = 1024
"""Sums travel in units of 1,024 items, an exact factor, so that 33 million items fit the fixed point of secure sums."""

CELLS = 1024
"""Cells per column from whose counts bins are chosen."""

MAX_DEPTH = 12

MAX_LEAVES = 1024

MAX_NODES = 2 * max(MAX_LEAVES, 2**MAX_DEPTH) - 1
"""Most nodes of a tree that these keys allow."""

MIN_GAIN, MIN_HESSIAN = 1e-6, 1e-3
"""Smallest gain of a split, and smallest sum of h of a child (LightGBM's default)."""

SAME = 1e-6
"""Relative difference of gains below which the first column and bin wins: sums differ by rounding, of secure ones by 1e-9."""


@dataclass
class BoostingParams:
    """Keys of gradient boosting."""

    # bagging: each party's trees, one exchange | histogram: one pooled model from sums, one exchange per level of a tree
    mode: str = choice("bagging", ("bagging", "histogram"))
    # what trees read: columns of nodes, or of edges and of both ends | outputs of a finished run's model | both
    inputs: str = choice("columns", ("columns", "embeddings", "both"))
    # tasks of nodes: trees also read mean columns of the nodes with an edge to the item, and of those that it has an edge to
    neighbours: bool = False
    # tasks of nodes: trees also read the largest value of each column of the edges that leave the item, and that reach it
    edge_columns: bool = False
    run: str = ""  # inputs=embeddings or both: run folder of that model, in a simulation
    trees: int = number(200, low=1, high=10_000)  # maximum number of boosting iterations, each with one tree per output
    # bagging: iterations per round; 0: all in one round
    per_round: int = number(0, high=10_000)
    learning_rate: float = number(0.1, without_low=True, high=1)  # η
    leaves: int = number(31, low=2, high=MAX_LEAVES)  # bagging: maximum number of leaves per tree
    depth: int = number(6, low=1, high=MAX_DEPTH)  # maximum depth of a tree
    l2: float = 1.0  # λ
    min_data_in_leaf: int = number(20, low=1)  # fewest training items in a leaf
    bins: int = number(255, low=2, high=1023)  # maximum number of bins per column
    # bagging: a party stops after this many iterations without a lower validation loss; 0: never (histogram: evaluation.patience)
    patience: int = 20

    @property
    def blocks(self) -> list[str]:
        """Names of the groups of columns that trees read, in their order."""
        names = ["columns"] if self.inputs != "embeddings" else []
        names += ["neighbours"] if self.neighbours else []
        names += ["edge_columns"] if self.edge_columns else []
        return [*names, *(["outputs"] if self.inputs != "columns" else [])]

    @property
    def of_class(self) -> int:
        """Fewest training items of a class with which a party's trees add more than noise (bagging)."""
        return min(5, self.min_data_in_leaf)

    @property
    def nodes(self) -> int:
        """Most nodes of a tree."""
        return 2 * (self.leaves if self.mode == "bagging" else 2**self.depth) - 1


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the base rate, and each party's trees or sums of histograms; nothing leaves a client that shares nothing."""
    if not cfg.strategy.shared:
        return {}
    base = {"total": ArrayField(("C",), "float64"), "count": ArrayField(("C",), "float64")}
    phases: dict[str, Any] = {} if cfg.init else {BASE: Once({BASE: Sum(base, bounded=True)})}
    if params.mode == "bagging":
        why = "each party's trees; mode=histogram needs only sums"
        flag = NumberField(0, 1, whole=True)
        numbers = Individual({"sits_out": flag, "ended": flag}, why="whether a party has trees to add")
        return {**phases, TRAIN: {FOREST: Individual(why=why), METRICS: numbers}}
    sums = {HISTOGRAM: Sum(bounded=True)}
    return {
        **phases,
        BINS: Once({COUNTS: Sum(bounded=True)}, times=2),
        TRAIN: sums,
        GROW: Exchanges(sums, times=params.depth - 1),
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the base rate or where training starts, and the agreed bins; in `histogram`, the growing trees."""
    if not cfg.strategy.shared:
        return {}
    start = Input("a number of trees", {"trees": ArrayField((1,), "int32", 0)})
    base = Input("a base rate", {"score": ArrayField(("outputs",), "float64")})
    groups = {START: start} if cfg.init else {BASE: base}
    if params.mode == "bagging":
        return {TRAIN: groups}
    grow = {
        FOREST: Input("trees that grow"),
        NODES: Input("the nodes whose histograms are requested", {"tree": None, "node": None}),
    }
    return {
        BINS: {BINS: Input("edges of bins to count")},
        TRAIN: {**groups, BINS: Input("edges of bins")},
        GROW: grow,
    }


# --- objectives -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Objective:
    """Loss of raw scores F [V, K] against targets [V, K], NaN where unknown.

    Attributes:
        kind: ``logistic``, of K columns of 0 and 1; ``softmax``, of K classes; ``square``, of K numbers.
        width: W, outputs of the task: 2 for one logistic output of two classes.
        binary: whether the one output is the log-odds of the second of two classes.
    """

    kind: str
    width: int
    binary: bool = False

    @property
    def outputs(self) -> int:
        """K."""
        return 1 if self.binary else self.width

    def targets(self, y: NDArray) -> Floats:
        """Return targets [V, K] of classes [V], or of targets [V, K] as they are."""
        if y.ndim == 2:
            return y.astype(np.float64)
        return (y[:, None] == ([1] if self.binary else np.arange(self.width))).astype(np.float64)

    def base(self, total: Floats, count: Floats) -> Floats:
        """Return b [K] from Σ targets and numbers of items [W], weighted; of two classes, of both."""
        mean = np.divide(total, count, out=np.zeros(self.width), where=count > 0)
        if self.kind == "square":
            return mean
        share = np.clip(mean, 1e-6, 1 - 1e-6)
        if self.kind == "softmax":
            return np.log(share)
        logit = np.log(share / (1 - share))
        return logit[1:] if self.binary else logit

    def gradients(self, raw: Floats, targets: Floats) -> tuple[Floats, Floats]:
        """Return g and h [V, K]; 0 where a target is unknown. The softmax has LightGBM's factor K / (K − 1) in h."""
        known = ~np.isnan(targets)
        if self.kind == "square":
            g, h = raw - targets, np.ones_like(raw)
        elif self.kind == "logistic":
            p = 0.5 * (1 + np.tanh(raw / 2))
            g, h = p - targets, p * (1 - p)
        else:
            p = np.exp(raw - raw.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            g, h = p - targets, p * (1 - p) * (self.width / (self.width - 1))
        return np.where(known, g, 0.0), np.where(known, h, 0.0)


# --- bins -------------------------------------------------------------------------------------------------------------

Edges = list[Floats]
"""Ascending upper bounds of the bins of each column, without that of the last bin; bin j holds values in (e_{j−1}, e_j]."""


def packed_edges(edges: Edges) -> Arrays:
    """Return edges as arrays of a message."""
    return {
        "edge": np.concatenate([np.zeros(0), *edges]),
        "size": np.array([len(bounds) for bounds in edges], np.int32),
    }


def unpacked_edges(arrays: Mapping[str, NDArray], columns: int, most: int) -> Edges:
    """Read edges that a server sent.

    Raises:
        FedGraphError: they are no ascending finite numbers for this many columns, or too many.
    """
    who, sizes = "the server sent edges of bins", ArrayField((columns,), "int32", 0, most)
    check(arrays, {"edge": ArrayField((up_to(columns * most),), "float64"), "size": sizes}, who)
    edge, size = arrays["edge"], arrays["size"]
    edges = np.split(edge, np.cumsum(size)[:-1])
    if size.sum() != len(edge) or any((np.diff(bounds) <= 0).any() for bounds in edges):
        raise FedGraphError(f"{who} that do not ascend, or are not as many as their sizes say")
    return edges


def binned(x: Floats, edges: Edges) -> NDArray[Any]:
    """Return the bin of each value, columns [V, F] → [V, F]; a missing value has the bin after the last of the widest column.

    Bins are bytes where there are no more than 256, else of 16 bits.
    """
    last = max(map(len, edges), default=0) + 1
    bins = np.empty(x.shape, np.uint8 if last < 256 else np.uint16)
    for f, bounds in enumerate(edges):
        bins[:, f] = np.where(np.isnan(x[:, f]), last, np.searchsorted(bounds, x[:, f], side="left"))
    return bins


def bin_counts(x: Floats, edges: Edges) -> Floats:
    """Return the number of values in each bin of each column, one column after the other, in `UNIT`; missing ones not at all."""
    counted = [
        np.bincount(np.searchsorted(bounds, x[~np.isnan(x[:, f]), f], side="left"), minlength=len(bounds) + 1)
        for f, bounds in enumerate(edges)
    ]
    return np.concatenate([np.zeros(0), *counted]) / UNIT


def float_keys(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return integers in the order of numbers of 32 bits."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def key_values(keys: NDArray[np.int64]) -> Floats:
    """Undo `float_keys`."""
    bits = np.where(keys < 0, np.int64(0x80000000) | -keys, keys).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


WIDEST = int(float_keys(np.array([LARGEST], np.float32))[0])


def first_edges(columns: int) -> Edges:
    """Return the edges of about `CELLS` cells of all finite numbers: sign, exponent and one bit of the mantissa."""
    bounds = key_values(np.unique(np.linspace(-WIDEST, WIDEST, CELLS + 1).astype(np.int64))[1:-1])
    return [bounds] * columns


def finer_edges(edges: Edges, counts: Floats) -> Edges:
    """Return edges of about `CELLS` cells per column, in proportion to the counts of coarser ones (`bin_counts`)."""
    return [_finer(bounds, np.maximum(n, 0)) for bounds, n in zip(edges, _by_column(edges, counts), strict=True)]


def _by_column(edges: Edges, counts: Floats) -> list[Floats]:
    return np.split(counts, np.cumsum([len(bounds) + 1 for bounds in edges])[:-1])


def _finer(edges: Floats, counts: Floats) -> Floats:
    held = np.flatnonzero(counts > 0)
    if not held.size:
        return np.zeros(0)
    bounds = np.concatenate([[-WIDEST - 1], float_keys(edges.astype(np.float32)), [WIDEST]])
    low, high = bounds[held], bounds[held + 1]
    parts = np.minimum(np.ceil(counts[held] / counts.sum() * CELLS).astype(np.int64), high - low)
    cell = np.repeat(np.arange(held.size), parts)
    part = np.arange(cell.size) - np.repeat(np.cumsum(parts) - parts, parts) + 1
    keys = low[cell] + ((high - low)[cell] * (part / parts[cell])).astype(np.int64)
    return np.unique(key_values(np.concatenate([low[low > -WIDEST - 1], keys])))[:-1] if keys.size else np.zeros(0)


def chosen_edges(edges: Edges, counts: Floats, bins: int) -> Edges:
    """Return the edges of at most ``bins`` bins per column with about equal counts, among the edges of finer cells."""
    selection = []
    for bounds, n in zip(edges, _by_column(edges, np.maximum(counts, 0)), strict=True):
        held = np.flatnonzero(n > 0)
        if len(held) > bins:
            total = n.cumsum()
            held = np.unique(np.searchsorted(total, np.arange(1, bins) * (total[-1] / bins), side="left"))
        else:
            held = held[:-1]
        selection.append(bounds[held[held < len(bounds)]])
    return selection


def agreed_edges(columns: int, bins: int, count: Callable[[Edges], Floats]) -> Edges:
    """Return the edges of at most ``bins`` bins for each column, by counting values twice.

    Args:
        columns: F.
        bins: maximum number of bins.
        count: returns the counts of values over all items, in the order of `bin_counts`.
    """
    coarse = first_edges(columns)
    fine = finer_edges(coarse, count(coarse))
    return chosen_edges(fine, count(fine), bins)


# --- growth -----------------------------------------------------------------------------------------------------------


def histograms(
    bins: NDArray[Any], width: int, g: Floats, h: Floats, at: NDArray[np.int64], tree: NDArray[np.int64]
) -> Floats:
    """Return Σ g, Σ h and counts by node, column and bin [Q, F, B + 1, 3], in `UNIT`; the last bin has missing values.

    Args:
        bins: bin of each item and column [V, F].
        width: B + 1.
        g: gradients [V, K].
        h: second derivatives [V, K].
        at: place of the node that each item reached in each tree [K, V], -1 for none of the Q nodes.
        tree: tree of each node [Q].
    """
    sums = np.zeros((len(tree), bins.shape[1], width, 3))
    for k in np.unique(tree):
        rows = np.flatnonzero(at[k] >= 0)
        nodes, size = at[k][rows], len(tree) * width
        for f in range(bins.shape[1]):
            cell = nodes * width + bins[rows, f]
            for channel, weights in enumerate((g[rows, k], h[rows, k], None)):
                sums[:, f, :, channel] += np.bincount(cell, weights, size).reshape(-1, width)
    return sums / UNIT


def extends(forest: Arrays, earlier: Arrays) -> bool:
    """Return whether trees that grow have all splits of earlier ones."""
    if len(forest["start"]) != len(earlier["start"]):
        return False
    ends = [np.append(trees["start"][1:], len(trees["feature"])) for trees in (forest, earlier)]
    for tree, end, first, last in zip(forest["start"], ends[0], earlier["start"], ends[1], strict=True):
        split = np.flatnonzero(earlier["feature"][first:last] >= 0)
        if end - tree < last - first:
            return False
        names = ("feature", "threshold", "left", "right", "default_left")
        if any((forest[name][tree + split] != earlier[name][first + split]).any() for name in names):
            return False
    return True


def held_bins(edges: Edges) -> NDArray[np.bool_]:
    """Return which bins each column has, the last one for missing values [F, B + 1]; messages hold only these."""
    sizes = np.array([len(bounds) for bounds in edges])
    held = np.arange(sizes.max(initial=0) + 2) <= sizes[:, None]
    held[:, -1] = True
    return held


class Growth:
    """K trees of one boosting iteration, grown level by level from histograms.

    Args:
        outputs: K.
        edges: edges of the bins.
        params: keys of the method.

    Attributes:
        held: as `held_bins`.
        tree: tree of each node whose histograms come next [Q].
        node: its number in that tree [Q].
    """

    def __init__(self, outputs: int, edges: Edges, params: BoostingParams):
        self.edges, self.params = edges, params
        self.sizes = np.array([len(bounds) for bounds in edges])
        self.held = held_bins(edges)
        self.tree = np.arange(outputs)
        self.node = np.zeros(outputs, np.int64)
        self._depth = 0
        self._next = np.ones(outputs, np.int64)  # nodes of each tree so far
        self._nodes = self._leaves(self.tree, np.zeros(outputs))  # of all trees, as they were made
        self._places = np.arange(outputs)  # of the open nodes among all

    @property
    def open(self) -> bool:
        """Whether a node may still be split."""
        return bool(self.tree.size) and self._depth < self.params.depth

    def _leaves(self, tree: NDArray[np.int64], value: Floats) -> dict[str, NDArray]:
        count = len(tree)
        zeros = np.zeros(count, np.int32)
        return {
            "tree": tree,
            "feature": zeros - 1,
            "threshold": np.zeros(count),
            "left": zeros.copy(),
            "right": zeros.copy(),
            "value": value,
            "default_left": np.zeros(count, bool),
        }

    def after(self, sums: Floats) -> Self:
        """Return a copy after `split`."""
        found = copy(self)
        found._next = self._next.copy()
        found._nodes = {name: values.copy() for name, values in self._nodes.items()}
        found.split(sums)
        return found

    def split(self, sums: Floats) -> None:
        """Split the open nodes by their histograms [Q, F, B + 1, 3], in `UNIT`, where that gains enough."""
        rules, splits = self.params, best_splits(sums * UNIT, self.sizes, self.params)
        if not self._depth:
            self._nodes["value"] = self._score(splits["total"])
        good = np.flatnonzero(splits["gain"] > MIN_GAIN)
        tree, best = self.tree[good], {name: values[good] for name, values in splits.items()}
        order = np.argsort(tree, kind="stable")
        rank = np.empty(len(good), np.int64)
        rank[order] = np.arange(len(good)) - np.searchsorted(tree[order], tree[order], side="left")
        left = self._next[tree] + 2 * rank
        threshold = [self.edges[f][b] for f, b in zip(best["feature"], best["bin"], strict=True)]
        values = {name: best[name] for name in ("feature", "default_left")} | {"left": left, "right": left + 1}
        for name, array in (values | {"threshold": threshold, "value": best["gain"]}).items():
            self._nodes[name][self._places[good]] = array
        children = np.stack([best["left"], best["right"]], axis=1).reshape(-1, 3)
        self.tree, self.node = np.repeat(tree, 2), np.stack([left, left + 1], axis=1).ravel()
        self._next += 2 * np.bincount(tree, minlength=len(self._next))
        self._places = len(self._nodes["tree"]) + np.arange(len(self.tree))
        made = self._leaves(self.tree, self._score(children))
        self._nodes = {name: np.concatenate([array, made[name]]) for name, array in self._nodes.items()}
        self._depth += 1
        large = children[:, 2] >= 2 * rules.min_data_in_leaf - 0.5
        self.tree, self.node, self._places = self.tree[large], self.node[large], self._places[large]

    def _score(self, sums: Floats) -> Floats:
        """Return the scores of leaves with these sums [n, 3]."""
        return -self.params.learning_rate * sums[:, 0] / np.maximum(sums[:, 1] + self.params.l2, MIN_HESSIAN)

    def forest(self) -> Arrays:
        """Return the trees so far."""
        outputs, order = np.arange(len(self._next), dtype=np.int32), np.argsort(self._nodes["tree"], kind="stable")
        nodes = {name: values[order] for name, values in self._nodes.items()}  # in the order of a tree's numbers
        start = np.searchsorted(nodes.pop("tree"), outputs)
        return {"start": start.astype(np.int32), "output": outputs, **nodes}


def grown(growth: Growth, sums: Callable[[Arrays, NDArray, NDArray], Floats]) -> Arrays:
    """Grow trees to the end, and return them.

    Args:
        growth: trees without splits.
        sums: returns the histograms of nodes, given the trees so far, and the tree and the number of each node.
    """
    while growth.open:
        growth.split(sums(growth.forest(), growth.tree, growth.node))
    return growth.forest()


def best_splits(sums: Floats, sizes: NDArray[np.int64], rules: BoostingParams) -> dict[str, NDArray]:
    """Return the best split of each node.

    Args:
        sums: Σ g, Σ h and counts [Q, F, B + 1, 3]; the last bin has missing values.
        sizes: edges per column [F].
        rules: λ and the fewest items of a leaf.

    Returns:
        ``total``, ``left`` and ``right`` (sums [Q, 3]), ``gain``, ``feature``, ``bin`` and ``default_left`` [Q].
    """
    missing, below = sums[:, :, -1:], sums[:, :, :-1].cumsum(axis=2)
    total = below[:, :, -1:] + missing  # of each column: under noise they differ
    node = total[:, :, 0].mean(axis=1)
    left = np.stack([below, below + missing], axis=3)  # [Q, F, B, 2, 3]: missing values go right, or left
    right = total[:, :, :, None] - left

    def quality(part: Floats) -> Floats:
        return part[..., 0] ** 2 / np.maximum(part[..., 1] + rules.l2, MIN_HESSIAN)

    gain = quality(left) + quality(right) - quality(total)[..., None]
    allowed = (np.arange(below.shape[2]) < sizes[:, None])[None, :, :, None]
    for part in (left, right):
        allowed = allowed & (part[..., 2] >= rules.min_data_in_leaf - 0.5) & (part[..., 1] >= MIN_HESSIAN)
    gain = np.where(allowed, gain, -np.inf).reshape(len(sums), -1)
    most = gain.max(axis=1, initial=-np.inf)
    chosen = (
        (gain >= (most - np.abs(most) * SAME)[:, None]).argmax(axis=1) if gain.size else np.zeros(len(sums), np.int64)
    )
    feature, place, way = np.unravel_index(chosen, (*below.shape[1:3], 2))
    rows = np.arange(len(sums))
    ends = left[rows, feature, place, way], right[rows, feature, place, way]
    none = missing[rows, feature, 0, 2] < 0.5  # an unseen missing value goes with most items
    return {
        "total": node,
        "left": ends[0],
        "right": ends[1],
        "gain": most,
        "feature": feature,
        "bin": place,
        "default_left": np.where(none, ends[0][:, 2] >= ends[1][:, 2], way == 1),
    }
