"""ROC, precision and F1 over all thresholds of scores, for one set of nodes or for many at once.

The nodes of S segments are concatenated and sorted by score within each segment. Every result is a sum over a segment, or a
position in it. One segment is summed by NumPy's pairwise summation; several are summed node by node, equal up to rounding.
"""

from collections.abc import Callable

import numpy as np


class Curves:
    """The thresholds of each segment: its distinct scores.

    Args:
        scores: scores of the nodes [K].
        positive: whether each node is positive, bool [K].
        count: number of nodes per segment [S]; default: one segment.

    Attributes:
        count: number of nodes [S].
        positives: number of positive nodes [S].
        of: segment of each distinct score [E].
        scores: distinct scores, descending within a segment [E].
        hits: positives of the segment at or above each score [E].
        taken: nodes of the segment at or above each score [E].
        first: position of a segment's first score [S].
        ranked: whether all scores are numbers, bool [S]; without, no result is defined. None: all are.
    """

    def __init__(self, scores: np.ndarray, positive: np.ndarray, count: np.ndarray | None = None):
        if count is None:  # fewer calls: sorting the few nodes of a client takes almost no time
            count, start, of = np.array([scores.size]), np.zeros(1, np.int64), np.zeros(scores.size, np.int64)
            order = np.argsort(-scores, kind="stable")
        else:
            start, of = count.cumsum() - count, np.repeat(np.arange(count.size), count)
            order = np.lexsort((-scores, of))
        falling = scores[order]
        last = np.ones(order.size, dtype=bool)
        np.not_equal(falling[1:], falling[:-1], out=last[:-1])
        last[start[1:][count[1:] > 0] - 1] = True  # the end of a segment, whatever the next one starts with
        ends = last.nonzero()[0]
        self.count, self.of, self.scores = count, of[ends], falling[ends]
        self.first = ends.searchsorted(start)
        begins = start[self.of]
        totals = np.zeros(order.size + 1, np.int64)
        np.cumsum(positive[order], out=totals[1:])
        self.hits, self.taken = totals[ends + 1] - totals[begins], ends + 1 - begins
        self.positives = totals[start + count] - totals[start]
        unknown = np.isnan(falling)
        self.ranked = np.bincount(of[order][unknown], minlength=count.size) == 0 if unknown.any() else None

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Sum over each segment, [S]."""
        if self.count.size == 1:
            return np.add.reduce(values, keepdims=True)
        return np.bincount(self.of, values, self.count.size)

    def _increments(self, counts: np.ndarray) -> np.ndarray:
        """Return the increase of a count at each score of its segment, [E]."""
        steps = counts.copy()  # like np.diff, which takes ten times as long for a few numbers
        steps[1:] -= counts[:-1]
        begins = self.first[self.count > 0]
        steps[begins] = counts[begins]
        return steps

    def area(self) -> np.ndarray:
        """Return the area under the ROC curve, with trapezoids for tied scores, [S].

        NaN for one class, or a score that is no number.
        """
        heights = 2 * self.hits - self._increments(self.hits)  # both ends of a step
        false = self._increments(self.taken - self.hits)
        return self._known(ratio(self._sums(false * heights), 2 * self.positives * (self.count - self.positives)))

    def _known(self, values: np.ndarray) -> np.ndarray:
        """Return values of the segments [S], NaN where a score is no number."""
        return values if self.ranked is None else np.where(self.ranked, values, np.nan)

    def precision(self) -> np.ndarray:
        """Return the mean precision over the positives, [S]; NaN for one class or a score that is no number."""
        both = np.where(self.positives < self.count, self.positives, 0)
        return self._known(ratio(self._sums(self._increments(self.hits) * self.hits / self.taken), both))

    def best(self) -> np.ndarray:
        """Return the threshold with the best F1, the highest of equals, [S]; NaN without positives."""
        f1 = 2 * self.hits / (self.taken + self.positives[self.of])
        most = np.zeros(self.count.size)
        np.maximum.at(most, self.of, f1)
        thresholds = np.full(self.count.size, np.nan)
        where = np.flatnonzero(f1 == most[self.of])[::-1]  # the highest of equals is written last
        thresholds[self.of[where]] = self.scores[where]
        return self._known(np.where(self.positives > 0, thresholds, np.nan))

    def f1(self, threshold: np.ndarray) -> np.ndarray:
        """Return F1 for the threshold of each segment, [S]; NaN without a threshold."""
        above = self._sums(self.scores >= threshold[self.of]).astype(np.int64)
        at = self.first + np.maximum(above, 1) - 1
        at = np.minimum(at, max(self.of.size - 1, 0))
        hits, taken = (np.where(above > 0, of[at] if of.size else 0, 0) for of in (self.hits, self.taken))
        return np.where(np.isnan(threshold) | (self.count == 0), np.nan, ratio(2 * hits, taken + self.positives))


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide; NaN where ``below`` is 0."""
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)


def means_of_rows(values: np.ndarray) -> np.ndarray:
    """Average the known values of each row [B, C] → [B]; NaN without any."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0).sum(axis=1), known.sum(axis=1))


def mean_known(values: np.ndarray | list[float]) -> float:
    """Return the mean of the values that are not NaN; NaN without any. Faster than ``mean()`` for a few numbers."""
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[~np.isnan(numbers)]
    return float(np.add.reduce(numbers) / numbers.size) if numbers.size else float("nan")


OF_RANKS: dict[str, Callable[[Curves], np.ndarray]] = {"auc": Curves.area, "average_precision": Curves.precision}
"""Metrics that depend only on the order of scores."""


def margin(logits: np.ndarray) -> np.ndarray:
    """Return the log odds of class 1 of two, which rank like its probability: [N, 2] → float64 [N]."""
    return logits[:, 1].astype(np.float64) - logits[:, 0]


def chances(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of each row [N, C], in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def surprise(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return -ln softmax of each row [N] at its label, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.add.reduce(np.exp(shifted), axis=1)) - shifted[np.arange(y.size), y]
