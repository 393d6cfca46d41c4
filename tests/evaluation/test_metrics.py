"""Scores against scikit-learn, and their means over clients by hand."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    precision_recall_curve,
    roc_auc_score,
)

from fedgraph_flwr.config import METRICS, EvaluationConfig
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.batched_metrics import Segments


def drawn(classes: int, n: int = 60, seed: int = 0, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(classes), torch.randint(classes, (n - classes,), generator=generator)])
    logits = torch.randn(n, classes, generator=generator)
    logits[torch.arange(n), y] += 0.7
    if ties:  # equal rows: chances that are only equal in theory differ in the last bit, by processor
        logits[n // 2 :] = logits[: n - n // 2].clone()
    return logits, y


def score(logits, y, masks, names, part=None, train=None):
    return metrics.Scored(y, masks, part, train).score(logits, names)


def value(name, logits, y):
    return score(logits, y, {"test": torch.ones(len(y), dtype=torch.bool)}, (name,))[f"test-{name}"][0]


def class_f1(logits, y):
    return [value(f"f1_class_{c}", logits, y) for c in range(logits.size(1))]


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("ties", [False, True])
def test_scores_are_scikit_learns(classes, ties):
    logits, y = drawn(classes, ties=ties)
    guess = logits.argmax(1)
    assert value("accuracy", logits, y) == pytest.approx(accuracy_score(y, guess))
    assert value("macro_f1", logits, y) == pytest.approx(f1_score(y, guess, average="macro"))
    chances = logits.double().softmax(1).numpy()
    theirs = roc_auc_score(y, chances[:, 1] if classes == 2 else chances, multi_class="ovr", average="macro")
    assert metrics.auc(logits, y) == pytest.approx(theirs)
    assert value("balanced_accuracy", logits, y) == pytest.approx(balanced_accuracy_score(y, guess))
    np.testing.assert_allclose(class_f1(logits, y), f1_score(y, guess, average=None))
    hot = np.eye(classes)[y]
    theirs = average_precision_score(*((y, chances[:, 1]) if classes == 2 else (hot, chances)), average="macro")
    assert metrics.average_precision(logits, y) == pytest.approx(theirs)


def test_confusion_by_hand():
    table = metrics.confusion([0, 1, 1, 0], [0, 1, 0, 0], 3)
    assert table.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_classes_that_are_not_there():
    logits, y = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 0])
    np.testing.assert_allclose(class_f1(logits, y)[:2], [0.8, 2 / 3])
    assert math.isnan(class_f1(logits, y)[2])
    assert value("balanced_accuracy", logits, y) == pytest.approx((2 / 3 + 1) / 2)
    assert math.isnan(metrics.average_precision(logits, torch.zeros_like(y)))


def test_the_majority_of_training_labels_is_scored_beside():
    """As scikit-learn's classifier that always says the most frequent class, by part where there are several."""
    logits, y = drawn(3)
    train, test = torch.arange(20), torch.arange(60) >= 20
    scores = score(logits, y, {"test": test}, ("majority",), train=train)
    theirs = DummyClassifier(strategy="most_frequent").fit(np.zeros((20, 1)), y[:20]).score(np.zeros((40, 1)), y[20:])
    assert scores["test-majority"] == [pytest.approx(theirs)]
    part = torch.arange(60) % 2
    scores = score(logits, y, {"test": test}, ("majority",), part, train)
    for p in (0, 1):
        mine = part == p
        model = DummyClassifier(strategy="most_frequent").fit(np.zeros((10, 1)), y[:20][mine[:20]])
        assert scores["test-majority"][p] == pytest.approx(model.score(np.zeros((20, 1)), y[20:][mine[20:]]))
    assert math.isnan(score(logits, y, {"test": test}, ("majority",))["test-majority"][0])


def uninformed(name: str, y: np.ndarray, classes: int) -> float:
    """Best score of scikit-learn's classifiers that predict one class, by scikit-learn's metrics."""
    x = np.zeros((y.size, 1))
    dummies = [DummyClassifier(strategy="constant", constant=c).fit(x, y) for c in np.unique(y)]
    if name == "macro_f1":
        return max(f1_score(y, model.predict(x), average="macro") for model in dummies)
    if name == "balanced_accuracy":
        return max(balanced_accuracy_score(y, model.predict(x)) for model in dummies)
    rank = roc_auc_score if name == "auc" else average_precision_score
    present = [1] if classes == 2 else np.unique(y)
    return float(
        np.mean(
            [rank(y == c, DummyClassifier(strategy="prior").fit(x, y == c).predict_proba(x)[:, 1]) for c in present]
        )
    )


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("name", ["macro_f1", "balanced_accuracy", "auc", "average_precision"])
def test_the_chance_level_is_that_of_scikit_learns_dummies(name, classes):
    rng = np.random.default_rng(classes)
    share = rng.dirichlet(np.full(classes, 0.7)) + 0.02
    y = rng.choice(classes, 90, p=share / share.sum())
    cfg = EvaluationConfig(metric=name)
    split = {"val": torch.arange(90) < 40, "test": torch.arange(90) >= 40}
    client = metrics.Scored(torch.from_numpy(y), split, train=torch.arange(30))
    logits = torch.randn(90, classes)
    scores = client.score(logits, metrics.wanted(cfg, classes))
    assert scores[f"test-chance_{name}"] == [pytest.approx(uninformed(name, y[40:], classes))]
    assert scores[f"val-chance_{name}"] == [pytest.approx(uninformed(name, y[:40], classes))]
    stacked = Segments([client, client]).score([logits, logits], metrics.wanted(cfg, classes))
    assert stacked[1][f"test-chance_{name}"] == scores[f"test-chance_{name}"]


def test_a_metric_of_ones_own_is_compared_with_its_best_prediction_of_one_class():
    cfg = EvaluationConfig(metric="tests.evaluation.test_metrics:found")
    y = torch.tensor([0, 1, 1, 2, 2, 2, 0, 1])
    client = metrics.Scored(y, {"test": torch.ones(8, dtype=torch.bool)})
    assert client.score(torch.eye(3)[y], metrics.wanted(cfg, 3), cfg.own)["test-chance_found"] == [6 / 8]
    cfg = EvaluationConfig(metric="tests.evaluation.test_metrics:needs_both")
    scores = client.score(torch.eye(3)[y], metrics.wanted(cfg, 3), cfg.own)
    assert scores["test-needs_both"] == [1.0]
    assert math.isnan(scores["test-chance_needs_both"][0])


def found(logits: np.ndarray, y: np.ndarray) -> float:
    """Twice the accuracy."""
    return 2 * accuracy_score(y, logits.argmax(1))


def needs_both(logits: np.ndarray, y: np.ndarray) -> float:
    """A metric that is not defined for predictions of one class."""
    if len(np.unique(logits.argmax(1))) < 2:
        raise ValueError("one class")
    return accuracy_score(y, logits.argmax(1))


@pytest.mark.parametrize("ties", [False, True])
def test_the_threshold_is_the_best_on_validation_nodes(ties):
    logits, y = drawn(2, n=200, ties=ties)
    y[y.bool() & (torch.arange(200) % 3 > 0)] = 0  # few positives
    val, test = torch.arange(200) < 100, torch.arange(200) >= 100
    scores = score(logits, y, {"val": val, "test": test}, ("f1_at_threshold",))
    chance = logits.double().softmax(1)[:, 1].numpy()
    precision, recall, thresholds = precision_recall_curve(y[val], chance[val])
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    assert scores["val-f1_at_threshold"] == [pytest.approx(f1.max())]
    best = {float(t) for t, value in zip(thresholds, f1, strict=False) if value > f1.max() - 1e-12}
    possible = [f1_score(y[test], chance[test] >= t) for t in best]
    assert any(scores["test-f1_at_threshold"][0] == pytest.approx(value) for value in possible)
    assert math.isnan(score(logits, y * 0, {"val": val}, ("f1_at_threshold",))["val-f1_at_threshold"][0])


def test_what_is_scored_follows_the_classes():
    cfg = EvaluationConfig()
    assert metrics.wanted(cfg, 7) == ("accuracy", "macro_f1", "balanced_accuracy", "majority")
    assert "auc" in metrics.wanted(EvaluationConfig(metric="auc"), 7)
    assert "f1_class_6" in metrics.wanted(EvaluationConfig(full=True), 7)
    scores = score(*drawn(2), {"test": torch.ones(60, dtype=torch.bool)}, metrics.wanted(cfg, 2))
    keys = metrics.averages(scores)
    assert metrics.shown(keys, cfg)[:2] == ["test_accuracy", "test_majority"]
    by_nodes = EvaluationConfig(average="test_nodes", metric="auc")
    scores = score(*drawn(2), {"test": torch.ones(60, dtype=torch.bool)}, metrics.wanted(by_nodes, 2))
    keys = metrics.averages(scores)
    assert metrics.shown(keys, by_nodes)[:2] == ["test_auc_by_test_nodes", "test_chance_auc_by_test_nodes"]
    assert {"test_auc", "test_average_precision", "test_f1_class_1"} < set(metrics.shown(keys, cfg))


def test_macro_f1_leaves_out_classes_that_occur_nowhere():
    logits = torch.eye(5)[[0, 0, 1, 3]]
    y = torch.tensor([0, 1, 1, 0])
    assert value("macro_f1", logits, y) == pytest.approx(f1_score(y, logits.argmax(1), average="macro"))
    assert value("macro_f1", logits, y) == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize("measure", [metrics.auc, metrics.average_precision])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_score_that_is_not_a_number_has_no_rank(measure, classes):
    """NaN outputs of a model were ranked last, or first, and AUC was 1."""
    y = np.arange(6) % classes
    logits = np.random.default_rng(0).normal(size=(6, classes))
    assert not np.isnan(measure(logits, y))
    logits[2] = np.nan
    assert np.isnan(measure(logits, y))
    assert np.isnan(measure(np.full((6, classes), np.nan), y))


def test_auc_of_one_class_is_not_a_number_and_of_those_that_occur_else():
    logits, y = drawn(3)
    assert math.isnan(metrics.auc(logits, torch.zeros_like(y)))
    two = y.clamp(max=1)  # class 2 does not occur: the mean is over the other two
    chances = logits.double().softmax(1).numpy()
    theirs = np.mean([roc_auc_score(two == c, chances[:, c]) for c in (0, 1)])
    assert metrics.auc(logits, two) == pytest.approx(theirs)


def test_score_reads_the_nodes_of_each_split():
    logits, y = drawn(3)
    fold = torch.arange(60) % 3
    scores = score(logits, y, {"val": fold == 1, "test": fold == 2}, METRICS)
    for split, number in (("val", 1), ("test", 2)):
        chosen = fold == number
        assert scores[f"{split}-count"] == [20.0]
        assert scores[f"{split}-accuracy"] == [pytest.approx(accuracy_score(y[chosen], logits[chosen].argmax(1)))]
        loss = -logits[chosen].log_softmax(1)[torch.arange(20), y[chosen]].mean()
        assert scores[f"{split}-loss"] == [pytest.approx(float(loss), rel=1e-5)]


def test_the_pooled_graph_is_scored_by_part():
    logits, y = drawn(3)
    part, mask = torch.arange(60) // 25, torch.arange(60) < 50  # the third client has no node of the split
    scores = score(logits, y, {"test": mask}, ("accuracy",), part)
    assert scores["test-count"] == [25.0, 25.0, 0.0]
    for p in (0, 1):
        assert scores["test-accuracy"][p] == pytest.approx(accuracy_score(y[part == p], logits[part == p].argmax(1)))
    assert math.isnan(scores["test-accuracy"][2])


def test_means_over_clients_by_hand():
    nan = float("nan")
    values = {"test-accuracy": [0.5, 1.0, nan], "test-count": [30.0, 10.0, 0.0]}
    means = metrics.averages(values, nodes=[100.0, 300.0, 50.0])
    assert means["test_accuracy"] == 0.75  # the client without test nodes does not count
    assert means["test_accuracy_by_test_nodes"] == (0.5 * 30 + 1.0 * 10) / 40
    assert means["test_accuracy_by_nodes"] == (0.5 * 100 + 1.0 * 300) / 400
    assert not any("count" in key for key in means)


def test_means_of_nothing_are_not_a_number():
    means = metrics.averages({"val-accuracy": [float("nan")] * 2, "val-count": [0.0, 0.0]})
    assert math.isnan(means["val_accuracy"])
    assert math.isnan(means["val_accuracy_by_test_nodes"])


@pytest.mark.parametrize(
    ("average", "suffix"), [("clients", ""), ("test_nodes", "_by_test_nodes"), ("nodes", "_by_nodes")]
)
@pytest.mark.parametrize("metric", METRICS)
def test_headline_is_among_the_means(average, suffix, metric):
    cfg = EvaluationConfig(metric=metric, average=average)
    logits, y = drawn(2)
    scores = score(logits, y, {"test": torch.ones(60, dtype=torch.bool)}, metrics.wanted(cfg, 2))
    assert metrics.headline(cfg, "test") == f"test_{metric}{suffix}"
    assert metrics.headline(cfg, "test") in metrics.averages(scores, [60.0])


def client_to_score(
    rng: np.random.Generator, classes: int, labels: int, shares: tuple[float, float]
) -> tuple[metrics.Scored, torch.Tensor]:
    """A client whose labels are the first few classes, with shares of its nodes in each split, and logits that tie."""
    nodes = int(rng.integers(4, 30))
    y = torch.from_numpy(rng.integers(0, labels, nodes))
    where = torch.from_numpy(rng.random(nodes))
    masks = {"val": where < shares[0], "test": where >= 1 - shares[1]}
    train = torch.from_numpy(rng.permutation(nodes)[: int(rng.integers(0, 3))])
    logits = torch.from_numpy(rng.integers(-2, 3, (nodes, classes)).astype(np.float32))
    return metrics.Scored(y, masks, None, train), logits


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_many_clients_are_scored_as_each_is(classes):
    rng = np.random.default_rng(classes)
    shares = [(0.3, 0.4), (0.0, 0.5), (0.5, 0.0), (0.0, 0.0), (0.1, 0.1)]
    given = [client_to_score(rng, classes, int(rng.integers(1, classes + 1)), shares[i % 5]) for i in range(200)]
    names = metrics.wanted(EvaluationConfig(full=True), classes)
    many = Segments([scorer for scorer, _ in given])
    scores = many.score([logits for _, logits in given], names)
    seen: Counter[str] = Counter()
    for received, (scorer, logits) in zip(scores, given, strict=True):
        alone = scorer.score(logits, names)
        assert list(received) == list(alone)
        for name, values in alone.items():
            assert np.array_equal(received[name], values, equal_nan=True) or received[name] == pytest.approx(
                values, rel=1e-12
            ), name
            assert all(type(value) is float for value in received[name])
            seen[name] += math.isfinite(values[0]) and values[0] != 0
    assert not [name for name, times in seen.items() if not times]  # each score was computed
