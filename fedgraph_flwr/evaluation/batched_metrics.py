"""Scores of many clients' models at once: what `metrics.Scored.score` gives each of them, equal to rounding.

A client's nodes of a split are a segment; segments lie one behind the other, ``val`` and ``test`` of the first client, then of
the next. Every figure is a sum over segments, or a place in one that is sorted within segments.

Letters: M clients, S = 2 M segments, K nodes in them, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.evaluation.metrics import AT_THRESHOLD, MAJORITY, OF_CLASS, OF_RANKS, SPLITS, Scored, margin


class Segments:
    """The nodes that clients are scored on, looked up once for all of their models.

    Args:
        scored: of each client, of one part each.
    """

    def __init__(self, scored: Sequence[Scored]):
        self.scored = scored
        own = [client.parts[0][split] for client in scored for split in SPLITS]
        self.rows = [np.concatenate([client.parts[0][split].rows for split in SPLITS]) for client in scored]
        self.y = np.concatenate([nodes.y for nodes in own])
        self.count = np.array([nodes.y.size for nodes in own])
        self.start = np.cumsum(self.count) - self.count
        self.of = np.repeat(np.arange(len(own)), self.count)
        self.majority = np.array([nodes.majority if nodes.y.size else np.nan for nodes in own])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Of values [K] in each segment: [S]."""
        return np.bincount(self.of, values, len(self.count))

    def by_class(self, labels: np.ndarray, classes: int, chosen: np.ndarray | None = None) -> np.ndarray:
        """How many nodes of each segment have each label, among those that are chosen: [S, C]."""
        cells = self.of * classes + labels
        cells = cells if chosen is None else cells[chosen]
        return np.bincount(cells, minlength=len(self.count) * classes).reshape(-1, classes)

    def score(self, logits: Sequence[Tensor], metrics: Sequence[str]) -> list[dict[str, list[float]]]:
        """Scores of each client's model.

        Args:
            logits: [N, C] of each.
            metrics: names that `metrics.wanted` gives, none of the user's own.
        """
        outputs = np.concatenate(
            [own.detach().cpu().numpy()[rows] for own, rows in zip(logits, self.rows, strict=True)]
        )
        classes = outputs.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the NaN of what is not there
            values = self._of_guesses(outputs.argmax(axis=1), classes)
            values["count"], values[MAJORITY] = self.count.astype(float), self.majority
            values["loss"] = self.sums(_surprise(outputs, self.y)) / self.count
            if classes == 2:
                values |= self._of_margin(margin(outputs))
            else:
                values |= self._of_chances(outputs, [name for name in OF_RANKS if name in metrics])
            for name in (name for name in metrics if name.startswith(chance.PREFIX)):
                levels = [client.chance(0, split, name, classes) for client in self.scored for split in SPLITS]
                values[name] = np.array(levels)
        columns = [values[name].tolist() for name in ("count", "loss", *metrics)]
        keys = [[f"{split}-{name}" for name in ("count", "loss", *metrics)] for split in SPLITS]
        told: list[dict[str, list[float]]] = []
        for first in range(0, len(self.count), len(SPLITS)):
            of_client = enumerate(keys, start=first)
            told.append(
                {key: [column[s]] for s, names in of_client for key, column in zip(names, columns, strict=True)}
            )
        return told

    def _of_guesses(self, guess: np.ndarray, classes: int) -> dict[str, np.ndarray]:
        """What a look at the predictions tells, [S] each."""
        found, held = self.by_class(self.y, classes, guess == self.y), self.by_class(self.y, classes)
        f1 = 2 * found / (held + self.by_class(guess, classes))
        return {
            "accuracy": found.sum(axis=1) / self.count,
            "macro_f1": _known_mean(f1),
            "balanced_accuracy": _known_mean(found / held),
            **{f"{OF_CLASS}{c}": f1[:, c] for c in range(classes)},
        }

    def _of_margin(self, scores: np.ndarray) -> dict[str, np.ndarray]:
        """What sorts two classes, [S] each."""
        curves = _Curves(self, scores, self.y == 1)
        best = curves.best().reshape(-1, len(SPLITS))[:, SPLITS.index("val")]
        return {
            "auc": curves.area(),
            "average_precision": curves.precision(),
            AT_THRESHOLD: curves.f1(np.repeat(best, len(SPLITS))),
        }

    def _of_chances(self, outputs: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """What sorts each of more classes against the rest, their mean [S]."""
        if not names:
            return {}
        shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
        chances = shifted / shifted.sum(axis=1, keepdims=True)
        curves = [_Curves(self, chances[:, c], self.y == c) for c in range(outputs.shape[1])]
        of: dict[str, Any] = {"auc": _Curves.area, "average_precision": _Curves.precision}
        return {name: _known_mean(np.stack([of[name](curve) for curve in curves], axis=1)) for name in names}


class _Curves:
    """What each threshold gives, in each segment: as `metrics._Curve`.

    Args:
        segments: of K nodes.
        scores: [K].
        positive: bool [K].

    Attributes:
        of: the segment of each distinct score [E].
        scores: falling within a segment [E].
        hits: positives of the segment at each or above [E].
        taken: nodes of it at each or above [E].
        positives: [S].
        count: nodes [S].
        first: where a segment's scores begin [S].
    """

    def __init__(self, segments: Segments, scores: np.ndarray, positive: np.ndarray):
        order = np.lexsort((-scores, segments.of))
        falling = scores[order]
        last = np.ones(order.size, dtype=bool)
        np.not_equal(falling[1:], falling[:-1], out=last[:-1])
        last[segments.start[1:][segments.count[1:] > 0] - 1] = True  # of a segment, whatever the next begins with
        ends = last.nonzero()[0]
        self.of, self.scores, self.count = segments.of[ends], falling[ends], segments.count
        found = np.concatenate([[0], positive[order].cumsum()])
        self.hits = found[ends + 1] - found[segments.start[self.of]]
        self.taken = ends + 1 - segments.start[self.of]
        self.positives = segments.sums(positive)
        self.first = np.searchsorted(self.of, np.arange(len(self.count)))

    def _sums(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.of, values, len(self.count))

    def _increments(self, counts: np.ndarray) -> np.ndarray:
        steps = np.diff(counts, prepend=0)
        begins = self.first[self.count > 0]
        steps[begins] = counts[begins]
        return steps

    def area(self) -> np.ndarray:
        """Under the ROC curve, [S]; NaN of one class."""
        heights = 2 * self.hits - self._increments(self.hits)
        false = self._increments(self.taken - self.hits)
        return self._sums(false * heights) / (2 * self.positives * (self.count - self.positives))

    def precision(self) -> np.ndarray:
        """Its mean over the positives, [S]; NaN of one class."""
        both = np.where(self.positives < self.count, self.positives, 0)
        return self._sums(self._increments(self.hits) * self.hits / self.taken) / np.where(both, both, np.nan)

    def best(self) -> np.ndarray:
        """The score from which on F1 is best, the highest of equals, [S]; NaN without positives."""
        f1 = 2 * self.hits / (self.taken + self.positives[self.of])
        most = np.zeros(len(self.count))
        np.maximum.at(most, self.of, f1)
        found = np.full(len(self.count), np.nan)
        where = np.flatnonzero(f1 == most[self.of])[::-1]  # the highest of equals is written last
        found[self.of[where]] = self.scores[where]
        return np.where(self.positives > 0, found, np.nan)

    def f1(self, threshold: np.ndarray) -> np.ndarray:
        """Where a node is taken for positive from its segment's score on, [S]; NaN without one."""
        above = self._sums(self.scores >= threshold[self.of]).astype(np.int64)
        at = self.first + np.maximum(above, 1) - 1
        at = np.minimum(at, max(self.of.size - 1, 0))
        hits, taken = (np.where(above > 0, of[at] if of.size else 0, 0) for of in (self.hits, self.taken))
        return np.where(np.isnan(threshold) | (self.count == 0), np.nan, 2 * hits / (taken + self.positives))


def _surprise(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-ln softmax of each row [K] at its label, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(y.size), y]


def _known_mean(values: np.ndarray) -> np.ndarray:
    """Of what is there in each row [S, C] → [S]; NaN of nothing."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis=1) / known.sum(axis=1)
