"""What each threshold gives: ROC, precision and F1 of scores against labels, of one set of nodes or of many at once.

Nodes of S segments lie one behind the other. Every figure is a sum over a segment, or a place in one that is sorted within
segments. Of one segment a sum is NumPy's pairwise one; of several it is taken node by node, equal to rounding.
"""

from collections.abc import Callable

import numpy as np


class Curves:
    """The thresholds of each segment, its distinct scores.

    Args:
        scores: of the nodes [K].
        positive: which of them are, bool [K].
        count: nodes of each segment [S]; without it, all are one.

    Attributes:
        count: nodes [S].
        positives: [S].
        of: the segment of each distinct score [E].
        scores: falling within a segment [E].
        hits: positives of the segment at each or above [E].
        taken: nodes of it at each or above [E].
        first: where a segment's scores begin [S].
    """

    def __init__(self, scores: np.ndarray, positive: np.ndarray, count: np.ndarray | None = None):
        if count is None:  # a few calls less, since a client's few nodes are sorted in no time
            count, start, of = np.array([scores.size]), np.zeros(1, np.int64), np.zeros(scores.size, np.int64)
            order = np.argsort(-scores, kind="stable")
        else:
            start, of = count.cumsum() - count, np.repeat(np.arange(count.size), count)
            order = np.lexsort((-scores, of))
        falling = scores[order]
        last = np.ones(order.size, dtype=bool)
        np.not_equal(falling[1:], falling[:-1], out=last[:-1])
        last[start[1:][count[1:] > 0] - 1] = True  # of a segment, whatever the next begins with
        ends = last.nonzero()[0]
        self.count, self.of, self.scores = count, of[ends], falling[ends]
        self.first = ends.searchsorted(start)
        begins = start[self.of]
        found = np.zeros(order.size + 1, np.int64)
        np.cumsum(positive[order], out=found[1:])
        self.hits, self.taken = found[ends + 1] - found[begins], ends + 1 - begins
        self.positives = found[start + count] - found[start]

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Over each segment, [S]."""
        if self.count.size == 1:
            return np.add.reduce(values, keepdims=True)
        return np.bincount(self.of, values, self.count.size)

    def _increments(self, counts: np.ndarray) -> np.ndarray:
        """By how much a count of a segment grows at each of its scores, [E]."""
        steps = counts.copy()  # as np.diff, which takes ten times as long on a few numbers
        steps[1:] -= counts[:-1]
        begins = self.first[self.count > 0]
        steps[begins] = counts[begins]
        return steps

    def area(self) -> np.ndarray:
        """Under the ROC curve, whose steps are trapezia where scores are tied, [S]; NaN of one class."""
        heights = 2 * self.hits - self._increments(self.hits)  # both ends of a step
        false = self._increments(self.taken - self.hits)
        return _ratio(self._sums(false * heights), 2 * self.positives * (self.count - self.positives))

    def precision(self) -> np.ndarray:
        """The mean of the precision over the positives, as they are found, [S]; NaN of one class."""
        both = np.where(self.positives < self.count, self.positives, 0)
        return _ratio(self._sums(self._increments(self.hits) * self.hits / self.taken), both)

    def best(self) -> np.ndarray:
        """The score from which on F1 is best, the highest of equals, [S]; NaN without positives."""
        f1 = 2 * self.hits / (self.taken + self.positives[self.of])
        most = np.zeros(self.count.size)
        np.maximum.at(most, self.of, f1)
        found = np.full(self.count.size, np.nan)
        where = np.flatnonzero(f1 == most[self.of])[::-1]  # the highest of equals is written last
        found[self.of[where]] = self.scores[where]
        return np.where(self.positives > 0, found, np.nan)

    def f1(self, threshold: np.ndarray) -> np.ndarray:
        """Where a node is taken for positive from its segment's score on, [S]; NaN without one."""
        above = self._sums(self.scores >= threshold[self.of]).astype(np.int64)
        at = self.first + np.maximum(above, 1) - 1
        at = np.minimum(at, max(self.of.size - 1, 0))
        hits, taken = (np.where(above > 0, of[at] if of.size else 0, 0) for of in (self.hits, self.taken))
        return np.where(np.isnan(threshold) | (self.count == 0), np.nan, _ratio(2 * hits, taken + self.positives))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where ``below`` is 0."""
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)


OF_RANKS: dict[str, Callable[[Curves], np.ndarray]] = {"auc": Curves.area, "average_precision": Curves.precision}
"""Metrics that only look at the order of scores."""


def margin(logits: np.ndarray) -> np.ndarray:
    """The log odds of class 1 of two, which rank as its chance does: [N, 2] → float64 [N]."""
    return logits[:, 1].astype(np.float64) - logits[:, 0]


def chances(logits: np.ndarray) -> np.ndarray:
    """The softmax of each row [N, C], in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def surprise(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-ln softmax of each row [N] at its label, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.add.reduce(np.exp(shifted), axis=1)) - shifted[np.arange(y.size), y]
