"""Ranks of positives among their negatives."""

import numpy as np
import pytest
from scipy.stats import rankdata

from fedgraph_flwr.tasks import ranking


def test_ranks_equal_those_of_scipy_with_ties_at_their_mean():
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(6, size=50).astype(float), rng.integers(6, size=(50, 9)).astype(float)
    expected = [rankdata(-np.append(p, row))[0] for p, row in zip(positive, negative, strict=True)]
    assert ranking.ranks(positive, negative) == pytest.approx(expected)


def test_a_negative_that_is_none_does_not_count():
    assert ranking.ranks(np.array([1.0]), np.array([[2.0, np.nan, 0.0]])).tolist() == [2.0]


def test_a_positive_without_a_score_comes_last():
    """A model that diverged must not reach an MRR of 1."""
    assert ranking.ranks(np.array([np.nan]), np.array([[2.0, np.nan, 0.0]])).tolist() == [3.0]


def test_a_constant_scorer_is_in_the_middle():
    places = ranking.ranks(np.zeros(4), np.zeros((4, 10)))
    assert places.tolist() == [6] * 4
    metrics = ranking.scores(places, np.full(4, 10))
    assert metrics["mrr"] == pytest.approx(1 / 6)
    assert (metrics["hits_3"], metrics["hits_10"]) == (0, 1)


def test_a_random_order_has_the_expected_reciprocal_rank():
    rng = np.random.default_rng(0)
    places = ranking.ranks(rng.random(40_000), rng.random((40_000, 7)))
    metrics = ranking.scores(places, np.full(3, 7))
    assert metrics["mrr"] == pytest.approx(metrics["chance_mrr"], abs=0.006)
