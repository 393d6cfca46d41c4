"""Chance level of each metric: the score that a predictor reaches without looking at its input.

accuracy             the most frequent training class of the client (`metrics.MAJORITY`)
average precision    the share of the positive class; of more than two classes, the mean over the classes that occur
AUC                  0.5
balanced accuracy    1 / C over the C classes that occur
MRR, MR, hits@k      a random order of the candidates
RMSE, MAE, R²        the mean of the scored targets; of MAE, their median
operating points     a random ranking; of cost, Brier score and log loss, the best constant prediction (`operating_points.level`)
others               the best prediction of one class for every node
"""

import math
from collections.abc import Callable

import numpy as np

from fedgraph_flwr.config import sign_of as sign_of_metric
from fedgraph_flwr.config.operating_points import point

MAJORITY = "majority"
"""Score of the most frequent training class of a client: the chance level of accuracy."""

PREFIX = "chance_"
"""Prefix of the name of another metric's chance level."""

LARGEST = "the most frequent class"
BEST_CONSTANT = "the best constant prediction"

_PREDICTORS = {
    "accuracy": f"always predicting {LARGEST}",
    "average_precision": "the share of the positive class",
    **dict.fromkeys(("auc", "mrr", "hits_1", "hits_3", "hits_10", "mr"), "a random ranking"),
}

Score = Callable[[np.ndarray, np.ndarray], float]


def name_of(metric: str) -> str:
    """Return the name of a metric's chance level among a client's scores."""
    return MAJORITY if metric == "accuracy" else f"{PREFIX}{metric}"


def sign_of(metric: str) -> float:
    """Return 1 if a higher value of a metric or of its chance level is better, else -1."""
    return sign_of_metric(metric.removeprefix(PREFIX))


def metric_of(headline: str) -> str:
    """Return the metric of a summary's ``headline``, such as ``rmse`` of ``test_rmse_by_nodes at last``."""
    name = headline.partition(" at ")[0].removeprefix("test_")
    return name.removesuffix("_by_test_nodes").removesuffix("_by_nodes")


def predictor(metric: str) -> str:
    """Describe the predictor that reaches the chance level."""
    at = point(metric)
    if at and at.kind not in ("cost", "brier", "log_loss"):
        return "a random ranking"
    return _PREDICTORS.get(metric, BEST_CONSTANT)


def level(metric: str, y: np.ndarray, num_classes: int, scorer: Score | None = None) -> float:
    """Compute the chance level of a metric on nodes with labels ``y`` [n]; NaN if it is not defined on them.

    Args:
        metric: a built-in metric except accuracy, which depends on the training nodes, or the name of a custom metric.
        y: labels.
        num_classes: C.
        scorer: the custom metric, ``(logits [n, C], y [n]) -> float``.
    """
    if not y.size:
        return math.nan
    if scorer is not None:
        levels = [scorer(np.tile(np.eye(num_classes, dtype=np.float32)[c], (y.size, 1)), y) for c in range(num_classes)]
        return max((one for one in levels if not math.isnan(one)), default=math.nan)
    held = np.bincount(y, minlength=num_classes)
    shares = held[held > 0] / y.size
    if metric == "balanced_accuracy":
        return 1 / shares.size
    if metric == "macro_f1":  # only the predicted class has an F1 above 0
        largest = float(shares.max())
        return 2 * largest / (1 + largest) / shares.size
    if metric not in ("auc", "average_precision") or shares.size < 2:
        return math.nan
    if metric == "auc":
        return 0.5
    return float(held[1] / y.size) if num_classes == 2 else 1 / shares.size
