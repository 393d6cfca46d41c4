"""Scores at an operating point (`fedgraph_flwr.config.operating_points`), and their chance levels.

Items with equal scores at the end of the alerts count by the share of them that are alerts: the mean over all their orders.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config.operating_points import Point
from fedgraph_flwr.evaluation.curves import Curves, chances, margin, surprise

SLACK = 1e-12
"""Tolerance of a rate, which is a quotient of counts."""


def value(
    point: Point, logits: NDArray, y: NDArray[np.int64], day: NDArray[np.int64] | None = None, floor: int = 0
) -> float:
    """Return the score of logits [n, C] against labels [n]; NaN where it is not defined.

    Args:
        point: the operating point.
        logits: of the items.
        y: their classes.
        day: day of each item [n], if items carry time.
        floor: fewest alerts behind a score of K alerts.
    """
    if point.kind == "log_loss":
        return float(np.mean(surprise(logits, y)))
    if point.kind == "brier":
        p = chances(logits)
        if p.shape[1] == 2:
            return float(np.mean((p[:, 1] - (y == 1)) ** 2))
        return float(np.mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1)))
    scores, positive = margin(logits), y == 1
    if point.kind == "cost":
        alerts = chances(logits)[:, 1] * point.first >= point.second
        missed = float((positive & ~alerts).sum())
        return (point.first * missed + point.second * float(alerts.sum())) / len(y)
    if point.kind in ("precision", "recall", "lift"):
        taken, hits = _alerts(scores, positive, day, int(point.first))
        return _of_alerts(point.kind, taken, hits, positive) if taken >= floor else math.nan
    curve, positives = Curves(scores, positive), float(positive.sum())
    if not 0 < positives < len(y):
        return math.nan
    recall = curve.hits / positives
    if point.kind == "recall@fpr":
        allowed = (curve.taken - curve.hits) / (len(y) - positives) <= point.first + SLACK
        return float(recall[allowed].max(initial=0.0))
    return float((curve.hits / curve.taken)[recall >= point.first - SLACK].max())


def level(point: Point, y: NDArray[np.int64], num_classes: int, day: NDArray[np.int64] | None = None) -> float:
    """Return the chance level on items with labels ``y`` [n]: of a random ranking, or the best constant prediction."""
    if not y.size:
        return math.nan
    shares = np.bincount(y, minlength=num_classes) / y.size
    if point.kind == "log_loss":
        held = shares[shares > 0]
        return float(-(held * np.log(held)).sum())
    if point.kind == "brier":
        return float((shares * (1 - shares)).sum() / (2 if num_classes == 2 else 1))
    rate, positive = float(shares[1]), y == 1
    if point.kind == "cost":
        return min(point.second, point.first * rate)
    if not 0 < rate < 1:
        return math.nan
    if point.kind == "recall@fpr":
        return point.first
    if point.kind == "precision@recall":
        return rate
    taken, hits = _alerts(np.zeros(y.size), positive, day, int(point.first))
    return _of_alerts(point.kind, taken, hits, positive)


def _alerts(
    scores: NDArray, positive: NDArray[np.bool_], day: NDArray[np.int64] | None, count: int
) -> tuple[float, float]:
    """Return the number of alerts, the ``count`` highest scores of each day, and the positives among them."""
    days = np.zeros(len(scores), np.int64) if day is None else day
    order = np.lexsort((-scores, days))
    days, ordered = days[order], scores[order]
    new_day = np.append(True, days[1:] != days[:-1])
    new = new_day | np.append(True, ordered[1:] != ordered[:-1])
    first = np.flatnonzero(new)  # of equal scores of a day
    size = np.diff(np.append(first, len(days)))
    began = np.maximum.accumulate(np.where(new_day, np.arange(len(days)), 0))[first]
    taken = np.clip(count - (first - began), 0, size)
    hits = np.add.reduceat(positive[order].astype(np.float64), first)
    return float(taken.sum()), float((hits * taken / size).sum())


def _of_alerts(kind: str, taken: float, hits: float, positive: NDArray[np.bool_]) -> float:
    positives = float(positive.sum())
    if kind == "precision":
        return hits / taken
    if not positives:
        return math.nan
    return hits / positives if kind == "recall" else hits / taken / (positives / len(positive))
