"""Scores of real and binary targets: each column over its own known entries, then the mean over columns.

Shapes: predictions [V, T], targets [V, T] with NaN where unknown. A column without known entries does not count. R² needs two
known entries that differ; AUC and average precision need both classes, as in ogb. F1 of a column without positives and
without positive predictions is 0, as in scikit-learn.
"""

from collections.abc import Iterator

import numpy as np

from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.evaluation.curves import Curves, mean_known


def regression(predictions: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return RMSE, MAE and R², with their levels for the best constant prediction of each column."""
    scores: dict[str, list[float]] = {}
    for p, t in _columns(predictions, y):
        errors, spread = p - t, t - t.mean()
        variance, differs = float(np.mean(spread**2)), float(np.ptp(t)) > 0
        values = {
            "rmse": float(np.sqrt(np.mean(errors**2))),
            "mae": float(np.mean(np.abs(errors))),
            "r2": 1 - float(np.mean(errors**2)) / variance if differs else np.nan,
            chance.name_of("rmse"): float(np.sqrt(variance)),
            chance.name_of("mae"): float(np.mean(np.abs(t - np.median(t)))),
            chance.name_of("r2"): 0.0 if differs else np.nan,
        }
        for name, value in values.items():
            scores.setdefault(name, []).append(value)
    return {name: mean_known(values) for name, values in scores.items()}


def multilabel(logits: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return average precision, AUC, macro and micro F1, with their chance levels.

    A label is predicted if its probability is at least 1/2, which is a logit of at least 0.
    """
    columns = [_binary(p, t > 0) for p, t in _columns(logits, y)]
    hits, taken, positives, sizes = (np.array([c[k] for c in columns]) for k in range(4))
    ranks = np.array([c[4:] for c in columns]).reshape(-1, 2)
    either = taken + positives
    f1 = np.divide(2 * hits, either, out=np.zeros(len(hits)), where=either > 0)
    both = (positives > 0) & (positives < sizes)
    all_true = 2 * positives / (sizes + positives)
    return {
        "average_precision": mean_known(ranks[:, 0]),
        "auc": mean_known(ranks[:, 1]),
        "macro_f1": mean_known(f1),
        "micro_f1": float(2 * hits.sum() / either.sum()) if either.any() else 0.0,
        chance.name_of("average_precision"): mean_known((positives / sizes)[both]),
        chance.name_of("auc"): 0.5 if both.any() else np.nan,
        chance.name_of("macro_f1"): mean_known(all_true),
        chance.name_of("micro_f1"): _best_micro(positives, sizes),
    }


def _columns(predictions: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield predictions and known targets of each column that has any, float64 [K]."""
    for p, t in zip(predictions.T.astype(np.float64), y.T.astype(np.float64), strict=True):
        known = ~np.isnan(t)
        if known.any():
            yield p[known], t[known]


def _binary(logits: np.ndarray, positive: np.ndarray) -> tuple[float, ...]:
    """Return hits, positive predictions, positives, entries, average precision and AUC of one column."""
    guess, curve = logits >= 0, Curves(logits, positive)
    counts = (guess & positive).sum(), guess.sum(), positive.sum(), positive.size
    return (*map(float, counts), float(curve.precision()[0]), float(curve.area()[0]))


def _best_micro(positives: np.ndarray, sizes: np.ndarray) -> float:
    """Return the micro F1 of the best constant prediction: the columns with most positives are true."""
    order = np.argsort(-positives / sizes, kind="stable")
    return float(np.max(2 * np.cumsum(positives[order]) / (np.cumsum(sizes[order]) + positives.sum()), initial=0.0))
