"""Inputs that give the label away: a column that alone predicts it almost perfectly, or far better than all others together.

The name of a column does not show this, but its values do. `check_inputs` reads the model's inputs, of training items only:

    a column's gain = (AP − b) / (1 − b),   b = share of the class

AP is the best average precision of: the number, ascending or descending, and the mean of the label over its categories (bins of
a number; one is for missing values), computed out of fold. A column of nodes predicts labels of edges by the value at the
source, at the target, and by both.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.graph import Graph, marks
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.data.schema import EDGE, NODE, Column, agreed_schema, feature_names
from fedgraph_flwr.errors import FedGraphError, check_names

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

PERFECT = 0.95
"""Gain from which a column predicts the label almost perfectly."""

FAR, GAIN_OF_FLAG, GAIN_OF_NUMBER = 2.0, 0.3, 0.5
"""Multiple of the other columns' gain from which a column predicts far better than they do; least gain of a column with at most
`BINS` different values, such as a flag, and of others: an honest number may well be the best of few weak columns."""

MIN_ITEMS, MIN_COMPARED = 20, 50
"""Items of a class, and items of all others, below which no column is judged, or none is compared with the others. Payments of a
class by fewer accounts than the first do not judge the accounts' columns."""

MIN_OTHERS = 3
"""Other columns below which none is compared with them."""

BINS, FOLDS, MAX_PAIRS = 20, 5, 5000
MAX_ROWS, MAX_CELLS = 300_000, 20_000_000
"""Items, and items times columns, that are read at most; more are sampled."""


@dataclass(frozen=True)
class Values:
    """Values of one column, by row.

    Attributes:
        code: category or bin, int64 [R].
        number: the number, NaN where missing [R]; None for a category.
        row: row of the table that each value is of, or the graph whose label it has [R]; None: each has its own.
    """

    code: Ints
    number: Floats | None = None
    row: Ints | None = None

    def at(self, rows: Ints) -> "Values":
        """Return the values of some rows, which may be repeated."""
        number = None if self.number is None else self.number[rows]
        return Values(self.code[rows], number, rows if self.row is None else self.row[rows])

    def judges(self, positive: Mask) -> bool:
        """Return whether the items of a class have values of enough rows: else a value may just name an account."""
        return self.row is None or bool(np.count_nonzero(np.bincount(self.row[positive])) >= MIN_ITEMS)


@dataclass(frozen=True)
class Items:
    """Labelled training items, with what each column says about them.

    Attributes:
        what: "accounts" or another name of the items, for the error message.
        y: class of each item, int64 [V].
        columns: values [V] by name of the column, one for each end that has it.
        matrix: all inputs [V, F] by column, also those that are computed from own records, named "".
    """

    what: str
    y: Ints
    columns: dict[str, list[Values]] = field(default_factory=dict)
    matrix: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Leak:
    """A column that gives the label away.

    Attributes:
        name: the column.
        reason: what it predicts, and how well.
    """

    name: str
    reason: str


def check_inputs(graph: Graph | HeteroGraph, accepted: Collection[str], where: str) -> None:
    """Refuse columns that give the label away; a column of `accepted` is known when the model predicts.

    Raises:
        FedGraphError: names the column, its measure and the options; or an accepted column is unknown.
    """
    schema = agreed_schema(graph.schema, where)
    names = {name for columns in schema.nodes.values() for name in columns} if schema else set()
    check_names(accepted, names, "column in inputs", where)
    for items in items_of(graph):
        if leak := next((leak for leak in leaks(items) if leak.name not in accepted), None):
            raise FedGraphError(
                f"{where}: column '{leak.name}' {leak.reason}: it may follow from the label. Leave it out by"
                f" kinds.{leak.name}=ignored (in a schema that has it: kind: ignored), or pass inputs={leak.name} if you know its"
                " value when you predict"
            )


def leaks(items: Items) -> Iterator[Leak]:
    """Yield the columns that give the label of some items away."""
    counts = np.bincount(items.y)
    judged = [c for c in np.flatnonzero(counts) if min(counts[c], len(items.y) - counts[c]) >= MIN_ITEMS]
    if not judged:
        return
    two = int((counts > 0).sum()) == 2
    judged = [min(judged, key=lambda c: (counts[c], -c))] if two else judged
    gains = {name: _least(values, items.y, judged) for name, values in items.columns.items()}
    about = f"the label of {len(items.y)} {items.what} for training"
    for name, value in gains.items():
        if value >= PERFECT:
            yield Leak(name, f"alone predicts {about} almost perfectly ({_percent(value)} of what is possible)")
    best = max(gains, key=lambda name: gains[name], default="")
    if not (two and best and _least_gain(items.columns[best]) <= gains[best] < PERFECT):
        return
    if counts[judged[0]] < MIN_COMPARED:
        return
    others = [block for name, blocks in items.matrix.items() if name != best for block in blocks]
    if len(items.matrix) + ("" in items.matrix) * MIN_OTHERS - 1 < MIN_OTHERS:
        return
    rest = together(others, items.y == judged[0])
    if gains[best] >= FAR * rest:
        yield Leak(
            best,
            f"alone predicts {about} far better than all other inputs together ({_percent(gains[best])} of what is possible, and"
            f" {_percent(rest)})",
        )


def _least_gain(values: list[Values]) -> float:
    few = all(np.unique(one.code if one.number is None else one.number).size <= BINS for one in values)
    return GAIN_OF_FLAG if few else GAIN_OF_NUMBER


def _least(values: list[Values], y: Ints, classes: list[Any]) -> float:
    """Return the least gain over classes, or the first one that is not almost perfect."""
    least = 1.0
    for c in classes:
        least = min(least, gain(values, y == c))
        if least < PERFECT:
            break
    return least


def _percent(value: float) -> str:
    return f"{max(value, 0.0):.0%}"


def gain(values: list[Values], positive: Mask) -> float:
    """Return the best gain of one column.

    Args:
        values: of the items [V], one for each end.
        positive: whether each item is of the class [V].

    Returns:
        The gain; 0 where no values judge (`Values.judges`).
    """
    values = [one for one in values if one.judges(positive)]
    base = float(positive.mean())
    precisions: list[float] = []
    for one in values:
        precisions.append(out_of_fold(one.code, positive))
        if one.number is not None:
            known = np.nan_to_num(one.number, nan=np.nanmin(one.number, initial=0.0))
            hits, rows = _tallies(known, positive)
            precisions += [_average(hits, rows), _average(hits[::-1], rows[::-1])]
    if len(values) == 2:
        width = int(values[1].code.max()) + 1
        pair = values[0].code * width + values[1].code
        if int(values[0].code.max() + 1) * width <= MAX_PAIRS:
            precisions.append(out_of_fold(pair, positive))
    return max(((precision - base) / (1 - base) for precision in precisions), default=0.0)


def _tallies(score: Floats, hits: Any, rows: Any = None) -> tuple[Any, Any]:
    """Return the positives and the items at each distinct score, ascending, from those of groups [G] with one score each."""
    place = np.unique(score, return_inverse=True)[1]
    return np.bincount(place, hits), np.bincount(place, rows)


def _average(hits: Floats, rows: Floats) -> float:
    """Return the average precision from the positives and the items at each distinct score, the best one first."""
    above = hits.cumsum()
    return float((hits * above / rows.cumsum()).sum() / above[-1])


def out_of_fold(code: Ints, positive: Mask) -> float:
    """Return the average precision of the share of positive items with the same code in other folds.

    One item of the average share is added to each.
    """
    size = int(code.max()) + 1
    cell = _folds(len(code)) * size + code
    hits = np.bincount(cell, positive, FOLDS * size).reshape(FOLDS, size)
    rows = np.bincount(cell, minlength=FOLDS * size).reshape(FOLDS, size)
    share = (hits.sum(0) - hits + float(positive.mean())) / (rows.sum(0) - rows + 1)
    return _average(*_tallies(-share[rows > 0], hits[rows > 0], rows[rows > 0]))


@lru_cache(1)
def _folds(count: int) -> Ints:
    return np.random.default_rng(0).permutation(count) % FOLDS


def together(inputs: list[Any], positive: Mask) -> float:
    """Return the gain of inputs together: of boosted trees, out of fold.

    Args:
        inputs: columns of the items, each [V, F].
        positive: whether each item is of the class [V].
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, base = np.concatenate(inputs, axis=1), float(positive.mean())
    fold = _folds(len(x)) % 2
    score = np.zeros(len(x))
    for k in range(2):
        trees = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=8, random_state=0)
        score[fold == k] = trees.fit(x[fold != k], positive[fold != k]).predict_proba(x[fold == k])[:, 1]
    return (_average(*_tallies(-score, positive)) - base) / (1 - base)


def encoded(columns: Mapping[str, Column], x: Any) -> tuple[dict[str, Values], dict[str, Any]]:
    """Return the values of each column, and its inputs [R, F], from all inputs of a table [R, F'].

    Inputs after those of the columns are computed from own records; their name is "".
    """
    values: dict[str, Values] = {}
    blocks: dict[str, Any] = {}
    place = 0
    for name, column in columns.items():
        width = len(feature_names({name: column}))
        block = x[:, place : place + width]
        place += width
        if not width or column.width > 1:  # columns of a saved object have no names
            continue
        blocks[name] = block
        gone = block[:, -1] > 0 if column.missing else np.zeros(len(block), dtype=bool)
        if column.kind == "category":
            shown = block[:, : width - column.missing]
            values[name] = Values(np.where(gone, shown.shape[1], shown.argmax(1)).astype(np.int64))
        else:
            values[name] = numbered(np.where(gone, np.nan, block[:, 0]))
    return values, blocks | ({"": x[:, place:]} if x.shape[1] > place else {})


def numbered(number: Any) -> Values:
    """Return numbers [R] with their bins: one for missing numbers, and one for each number if there are few."""
    number = np.asarray(number, dtype=np.float64)
    distinct = np.unique(number[~np.isnan(number)])
    edges = distinct if distinct.size <= BINS else np.unique(np.quantile(distinct, np.linspace(0, 1, BINS)))
    code = np.where(np.isnan(number), 0, np.searchsorted(edges, number, side="right"))
    return Values(code.astype(np.int64), number)


def items_of(graph: Graph | HeteroGraph) -> Iterator[Items]:
    """Yield the labelled training items of an imported graph: nodes, then edges."""
    schema = agreed_schema(graph.schema, "the import")
    if schema is None:
        return
    kind, x = (graph.target, graph.x.get(graph.target)) if isinstance(graph, HeteroGraph) else (NODE, graph.x)
    values, blocks = ({}, {}) if x is None else encoded(schema.nodes.get(kind, {}), x.numpy())
    rows = _sampled(np.flatnonzero(_training(graph)), len(values))
    # a node of many graphs has the label of its graph
    of_label = graph.graph_id.numpy() if isinstance(graph, Graph) and graph.graph_id.numel() else None
    yield Items(
        "nodes",
        graph.y.numpy()[rows],
        {name: [replace(column, row=of_label).at(rows)] for name, column in values.items()},
        {name: [block[rows]] for name, block in blocks.items()},
    )
    if isinstance(graph, Graph) and graph.edge_y.numel():
        yield _edges(graph, schema.nodes.get(EDGE, {}), values, blocks)


def _sampled(rows: Ints, columns: int) -> Ints:
    """Return the rows, or a sample of them in order if there are too many for a number of columns."""
    most = min(MAX_ROWS, MAX_CELLS // max(columns, 1))
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _training(graph: Graph | HeteroGraph) -> Mask:
    """Return the labelled training nodes; all labelled ones before a split."""
    known = graph.y.numpy() >= 0
    return known & graph.train_mask.numpy() if bool(marks(graph).any()) else known


def _edges(
    graph: Graph, columns: Mapping[str, Column], values: Mapping[str, Values], blocks: Mapping[str, Any]
) -> Items:
    """Return labelled training edges with the columns of their table, and those of nodes at both ends."""
    y = graph.edge_y.numpy()
    split = graph.edge_split.numpy() if graph.edge_split.numel() else np.zeros(len(y))
    rows = _sampled(np.flatnonzero((y >= 0) & (split == 0)), 2 * len(values) + len(columns))
    items = Items("edges", y[rows])
    if graph.num_edge_features:
        of_edges, inputs = encoded(columns, graph.edge_attr.numpy()[rows])
        items.columns.update({name: [column] for name, column in of_edges.items()})
        items.matrix.update({name: [block] for name, block in inputs.items()})
    ends = graph.edge_index.numpy()[:, rows]
    for name, column in values.items():
        items.columns[name] = [*items.columns.get(name, []), *(column.at(end) for end in ends)]
        items.matrix[name] = [*items.matrix.get(name, []), *(blocks[name][end] for end in ends)]
    return items
