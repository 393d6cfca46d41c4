"""Scores of several targets against scikit-learn, column by column, with ties, unknown entries and columns of one class."""

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from fedgraph_flwr.evaluation import targets


def drawn(seed: int, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Predictions with ties [40, 6] and targets, a third unknown; column 4 has equal targets, column 5 none."""
    rng = np.random.default_rng(seed)
    p = rng.integers(-3, 4, size=(40, 6)) / 2
    y = rng.integers(2, size=p.shape).astype(float) if binary else np.round(rng.standard_normal(p.shape), 1)
    y[rng.random(p.shape) < 1 / 3] = np.nan
    y[:, 4] = np.where(np.isnan(y[:, 4]), np.nan, 1.0)
    y[:, 5] = np.nan
    return p, y


def columns(p: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(t[~np.isnan(t)], q[~np.isnan(t)]) for q, t in zip(p.T, y.T, strict=True) if not np.isnan(t).all()]


@pytest.mark.parametrize("seed", range(3))
def test_regression_scores_are_means_over_columns(seed):
    p, y = drawn(seed, binary=False)
    scores, pairs = targets.regression(p, y), columns(p, y)
    assert len(pairs) == 5
    assert scores["rmse"] == pytest.approx(np.mean([root_mean_squared_error(t, q) for t, q in pairs]))
    assert scores["mae"] == pytest.approx(np.mean([mean_absolute_error(t, q) for t, q in pairs]))
    assert scores["r2"] == pytest.approx(np.mean([r2_score(t, q) for t, q in pairs if np.ptp(t) > 0]))
    level = [root_mean_squared_error(t, np.full_like(t, t.mean())) for t, _ in pairs]
    assert scores["chance_rmse"] == pytest.approx(np.mean(level))


@pytest.mark.parametrize("seed", range(3))
def test_multilabel_scores_equal_those_of_scikit_learn(seed):
    p, y = drawn(seed, binary=True)
    scores, pairs = targets.multilabel(p, y), columns(p, y)
    both = [(t, q) for t, q in pairs if 0 < t.mean() < 1]
    assert len(both) == 4  # as in ogb, columns of one class do not count
    assert scores["auc"] == pytest.approx(np.mean([roc_auc_score(t, q) for t, q in both]))
    assert scores["average_precision"] == pytest.approx(np.mean([average_precision_score(t, q) for t, q in both]))
    assert scores["macro_f1"] == pytest.approx(np.mean([f1_score(t, q >= 0) for t, q in pairs]))
    pooled = np.concatenate([t for t, _ in pairs]), np.concatenate([q >= 0 for _, q in pairs])
    assert scores["micro_f1"] == pytest.approx(f1_score(*pooled))


def test_scores_without_both_classes_are_undefined_and_f1_of_nothing_is_zero():
    scores = targets.multilabel(np.full((4, 2), -1.0), np.zeros((4, 2)))
    assert np.isnan(scores["auc"])
    assert np.isnan(scores["average_precision"])
    assert (scores["macro_f1"], scores["micro_f1"]) == (0, 0)
    assert np.isnan(targets.regression(np.ones((3, 1)), np.full((3, 1), 0.1))["r2"])


def test_a_constant_prediction_reaches_its_chance_level():
    y = np.array([[1, 0], [1, 0], [1, 1], [0, 0.0]])
    levels = targets.multilabel(np.array([[1.0, -1.0]] * 4), y)
    assert levels["chance_micro_f1"] == pytest.approx(levels["micro_f1"])
