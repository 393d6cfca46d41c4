"""Scores at an operating point, against plain loops on arrays with ties, and in runs."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

import fedgraph_flwr as fg
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.operating_points import point
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.operating_points import level, value
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.tasks.edges import Edges

RNG = np.random.default_rng(0)


def at(name: str) -> Any:
    operating_point = point(name)
    assert operating_point is not None, name
    return operating_point


def logits_of(scores: Any) -> np.ndarray:
    return np.stack([np.zeros(len(scores)), np.asarray(scores, float)], axis=1)


def by_trial(kind: str, k: int, scores: Any, y: Any, day: Any) -> float:
    """The mean over all orders of items with equal scores."""
    rates = []
    for order in itertools.permutations(range(len(y))):
        order = sorted(order, key=lambda i: -scores[i])
        taken = [i for d in set(day) for i in [j for j in order if day[j] == d][:k]]
        hits = sum(y[i] for i in taken)
        rate = {"precision": hits / len(taken), "recall": hits / sum(y), "lift": hits / len(taken) / np.mean(y)}
        rates.append(rate[kind])
    return float(np.mean(rates))


@pytest.mark.parametrize("kind", ["precision", "recall", "lift"])
@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_alerts_per_day_with_ties(kind, k):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scores, y, day = rng.integers(3, size=6), np.array([1, 0, 0, 1, 0, 1]), rng.integers(2, size=6)
        expected = by_trial(kind, k, scores.tolist(), y.tolist(), day.tolist())
        assert value(at(f"{kind}@{k}"), logits_of(scores), y, day) == pytest.approx(expected, rel=1e-12)
        whole = by_trial(kind, k, scores.tolist(), y.tolist(), [0] * 6)
        assert value(at(f"{kind}@{k}"), logits_of(scores), y) == pytest.approx(whole, rel=1e-12)
        chance = by_trial(kind, k, [0] * 6, y.tolist(), day.tolist())
        assert level(at(f"{kind}@{k}"), y, 2, day) == pytest.approx(chance, rel=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.25, 0.5, 1.0])
def test_rates_with_ties(rate):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scores, y = rng.integers(6, size=40).astype(float), (rng.random(40) < 0.3).astype(np.int64)
        recall, precision = [0.0], []
        for threshold in sorted(set(scores)):
            alerts = scores >= threshold
            if (alerts & (y == 0)).sum() / (y == 0).sum() <= rate:
                recall.append((alerts & (y == 1)).sum() / y.sum())
            if (alerts & (y == 1)).sum() / y.sum() >= rate:
                precision.append((alerts & (y == 1)).sum() / alerts.sum())
        assert value(at(f"recall@fpr={rate}"), logits_of(scores), y) == pytest.approx(max(recall))
        assert value(at(f"precision@recall={rate}"), logits_of(scores), y) == pytest.approx(max(precision))
        assert level(at(f"recall@fpr={rate}"), y, 2) == rate
        assert level(at(f"precision@recall={rate}"), y, 2) == pytest.approx(y.mean())


def test_costs_and_probabilities():
    scores, y = RNG.normal(size=200), (RNG.random(200) < 0.2).astype(np.int64)
    p = 1 / (1 + np.exp(-scores))
    spent = sum(5 if a else 100 * t for a, t in zip(p >= 0.05, y, strict=True)) / 200
    assert value(at("cost@100/5"), logits_of(scores), y) == pytest.approx(spent)
    every = [sum(5 if alert else 100 * t for t in y) / 200 for alert in (True, False)]
    assert level(at("cost@100/5"), y, 2) == pytest.approx(min(every))
    assert value(at("brier"), logits_of(scores), y) == pytest.approx(brier_score_loss(y, p))
    assert value(at("log_loss"), logits_of(scores), y) == pytest.approx(log_loss(y, p))
    assert level(at("brier"), y, 2) == pytest.approx(brier_score_loss(y, np.full(200, y.mean())))
    assert level(at("log_loss"), y, 2) == pytest.approx(log_loss(y, np.full(200, y.mean())))
    three, of_three = RNG.normal(size=(90, 3)), np.arange(90) % 3
    q = np.exp(three) / np.exp(three).sum(1, keepdims=True)
    assert value(at("brier"), three, of_three) == pytest.approx(np.mean(((q - np.eye(3)[of_three]) ** 2).sum(1)))
    assert level(at("brier"), of_three, 3) == pytest.approx(2 / 3)


def test_what_is_not_defined_is_nan():
    y = np.zeros(5, np.int64)
    for name in ("recall@2", "lift@2", "recall@fpr=0.1", "precision@recall=0.5"):
        assert math.isnan(value(at(name), logits_of(range(5)), y))
        assert math.isnan(level(at(name), y, 2))
    assert value(at("precision@2"), logits_of(range(5)), y) == 0
    assert math.isnan(value(at("precision@2"), logits_of(range(5)), y, floor=3)), "fewer alerts than a policy allows"
    assert math.isnan(level(at("brier"), y[:0], 2))


@pytest.mark.parametrize(
    "name",
    [
        "precision@0",
        "precision@-1",
        "precision@1.5",
        "recall@fpr=0",
        "recall@fpr=1.5",
        "cost@0/1",
        "cost@5",
        "accuracy",
        "lift@",
    ],
)
def test_other_names_are_none(name):
    assert point(name) is None
    with pytest.raises(FedGraphError, match=r"precision@K, recall@K"):
        compose([f"evaluation.metrics=[{name}]"])
    if name != "accuracy":
        with pytest.raises(FedGraphError, match=r"evaluation\.metric"):
            compose([f"evaluation.metric={name}"])


NAMES = [
    "precision@3",
    "recall@3",
    "lift@3",
    "recall@fpr=0.2",
    "precision@recall=0.5",
    "cost@10/1",
    "brier",
    "log_loss",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(tmp_path_factory.mktemp("root")))
        keys = {"dataset.accounts": 200, "dataset.background": 1500, "dataset.per_kind": 6, "dataset.days": 30}
        out: Path = tmp_path_factory.mktemp("run") / "run"
        yield fg.run(
            **{"task": "edges", "dataset": "payments", "num_clients": 2, "rounds": 1, "strategy": "boosting"},
            **{"evaluation.metric": "precision@3", "evaluation.metrics": NAMES, **keys},
            out=out,
            progress=False,
        )


def test_they_are_scored_with_their_chance_levels_by_party_and_day(finished):
    from fedgraph_flwr.party.use.predict import load_predictor

    assert finished.summary["headline"] == "test_precision@3 at best_val"
    table = finished.table()["last round"]
    for name in NAMES:
        assert np.isfinite(table[f"test_{name}"])
        assert np.isfinite(table[f"test_chance_{name}"])
    assert table["test_brier"] < table["test_chance_brier"]
    precisions = []
    for client in range(2):
        predictor = load_predictor(finished.path, client)
        logits, task = predictor.items(predictor.client_graph)
        assert isinstance(task, Edges)
        assert task.day is not None
        test, day = task.masks["test"].numpy(), task.day.numpy()
        assert len(set(day[test])) > 1
        precisions.append(value(at("precision@3"), logits.numpy()[test], task.y.numpy()[test], day[test]))
        times = {}
        for key in ("edge_index", "cut_out"):
            edges = getattr(predictor.client_graph, key)
            ids = (
                predictor.client_graph.node_id[edges]
                if key == "edge_index"
                else torch.stack([predictor.client_graph.node_id[edges[0]], edges[1]])
            )
            seconds = getattr(predictor.client_graph, "edge_time" if key == "edge_index" else "cut_out_edge_time")
            for ends, second in zip(ids.T.tolist(), seconds.tolist(), strict=True):
                times.setdefault(tuple(ends), set()).add(second // 86_400)
        assert all(int(d) in times[tuple(ends)] for ends, d in zip(task.ends.T.tolist(), day, strict=True))
    assert finished.summary["test_precision@3"] == pytest.approx(np.mean(precisions))
    assert finished.summary["chance"] == pytest.approx(table["test_chance_precision@3"])


def test_they_stand_in_report_and_comparison(finished):
    text = finished.report().read_text()
    assert "precision@3" in text
    assert "recall@fpr=0.2" in text
    other = fg.compare([finished, finished])
    assert other.loc[0, "headline"] == "test_precision@3 at best_val"
    assert other.loc[0, "cost@10/1"] == pytest.approx(finished.summary["metrics"]["last"]["test_cost@10/1"])
    assert other.loc[0, "chance_brier"] > other.loc[0, "brier"]


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["task=nodes-regression", "evaluation.metric=precision@3"], "for task=nodes-regression, got"),
        (["task=links", "evaluation.metrics=[brier]"], "needs classes of nodes"),
        (
            [
                "privacy.scores=noised",
                "privacy.dp=server_fixed",
                "privacy.noise_multiplier=1",
                "evaluation.metrics=[brier]",
            ],
            "releases only evaluation.metric=accuracy, but",
        ),
        (
            [
                "privacy.scores=noised",
                "privacy.dp=server_fixed",
                "privacy.noise_multiplier=1",
                "evaluation.metric=cost@9/1",
            ],
            "a metric with values in",
        ),
    ],
)
def test_where_they_do_not_apply_they_are_refused(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(overrides))


def test_more_than_two_classes_are_named(run):
    with pytest.raises(FedGraphError, match=r"precision@3 needs two classes.*this data has 3"):
        run("rounds=1", "evaluation.metrics=[precision@3]")
    scores = run("rounds=1", "evaluation.metrics=[brier,log_loss]").summary["metrics"]["last"]
    assert scores["test_log_loss"] == pytest.approx(scores["test_loss"])


def test_stacked_clients_are_scored_alike(run):
    words = ["evaluation.metrics=[brier,log_loss]", "dtype=float64", "rounds=2"]
    plain, stacked = run(*words), run(*words, "stack=3")
    for key, score in plain.summary["metrics"]["last"].items():
        assert stacked.summary["metrics"]["last"][key] == pytest.approx(score, nan_ok=True, rel=1e-9), key


def test_a_lower_cost_selects_the_round():
    cfg = compose(["evaluation.metric=cost@10/1"]).evaluation
    assert metrics.watched(cfg, {"val_cost@10/1": 2.0}) == -2
