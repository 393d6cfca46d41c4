"""Gradient boosting: trees by LightGBM and from histograms, their exchange, and what a malicious party's trees could do."""

import sys
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgraph_flwr.clients import lightgbm_trees, replies
from fedgraph_flwr.clients.boosting import BoostingClient
from fedgraph_flwr.clients.lightgbm_trees import parsed
from fedgraph_flwr.config import SplitConfig, compose
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.methods import boosting
from fedgraph_flwr.methods.boosting import BoostingParams, Growth, Objective
from fedgraph_flwr.models.forest import Forest
from fedgraph_flwr.node import start
from fedgraph_flwr.numerics.forest import (
    check_forest,
    constants,
    empty_forest,
    forest_fields,
    gains,
    joined,
    raw_scores,
)
from fedgraph_flwr.numerics.gathered import Gathered
from fedgraph_flwr.partition.clients import cut
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.tasks.edges import Edges
from tests.conftest import client_graph
from tests.support import assert_same_arrays

HISTOGRAM = ["strategy=boosting", "strategy.mode=histogram", "strategy.min_data_in_leaf=2", "strategy.depth=3"]
BAGGING = ["strategy=boosting", "strategy.min_data_in_leaf=2", "strategy.trees=12"]
SECURE = ["privacy.secagg=true"]


def table(rows: int = 400, columns: int = 6, seed: int = 0) -> np.ndarray:
    """Columns of numbers, of few values, and with missing values."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    x[:, 1] = rng.integers(4, size=rows)
    x[rng.random((rows, columns)) < 0.15] = np.nan
    x[:, 0] = rng.standard_normal(rows)
    return x.astype(np.float32).astype(np.float64)


def answer(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(x[:, 0]) + np.where(np.isnan(x[:, 2]), 1.0, np.nan_to_num(x[:, 1] - 1.5) * np.sign(x[:, 0]))


# --- trees as arrays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass"])
def test_plain_arrays_predict_as_lightgbm_does(kind):
    x, rng = table(), np.random.default_rng(1)
    number = answer(x) + 0.3 * rng.standard_normal(len(x))
    y = {"regression": number, "binary": number > 0.5, "multiclass": np.digitize(number, [-0.5, 0.5, 1.5])}[kind]
    rules = {"objective": kind, "verbosity": -1, "min_data_in_leaf": 3, "boost_from_average": False, "num_threads": 1}
    outputs = 4 if kind == "multiclass" else 1
    rules |= {"num_class": 4} if outputs > 1 else {}
    booster = lightgbm.train(rules, lightgbm.Dataset(x, y.astype(float)), 30)
    trees = parsed(booster.model_to_string(), outputs)
    other = np.concatenate([table(300, seed=5), np.full((1, 6), np.nan), np.zeros((1, 6)), np.full((1, 6), 1e17)])
    other[:50][np.random.default_rng(2).random((50, 6)) < 0.5] = np.nan  # also where training had all values
    check_forest(trees, outputs, 6, 200, 200, "LightGBM")
    expected = booster.predict(other, raw_score=True, num_threads=1).reshape(len(other), outputs)
    np.testing.assert_allclose(raw_scores(trees, other, outputs), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(gains(trees, 6), booster.feature_importance("gain"), rtol=1e-4)
    for column, threshold in zip(trees["feature"], trees["threshold"], strict=True):
        if column >= 0 and 1e-30 < abs(threshold) < 1e17:  # 0, and missing or not, are others
            known = np.unique(x[~np.isnan(x[:, column]), column])
            place = np.searchsorted(known, threshold)
            assert threshold == pytest.approx(known[place - 1 : place + 1].mean(), rel=1e-12), "as docs/trees.md says"


def two_trees() -> dict[str, np.ndarray]:
    """A split of column 1 with a split of column 0 on its right side, and a leaf."""
    return {
        "start": np.array([0, 5], np.int32),
        "output": np.array([0, 0], np.int32),
        "feature": np.array([1, -1, 0, -1, -1, -1], np.int32),
        "threshold": np.array([0.5, 0, -1, 0, 0, 0]),
        "left": np.array([1, 0, 3, 0, 0, 0], np.int32),
        "right": np.array([2, 0, 4, 0, 0, 0], np.int32),
        "value": np.array([7.0, 1, 3, 2, 4, 8]),
        "default_left": np.array([True, False, False, False, False, False]),
    }


def test_a_forest_by_hand():
    x = np.array([[0, 0.5], [0, 0.6], [-1, 0.6], [np.nan, 0.6], [0, np.nan]])
    np.testing.assert_array_equal(raw_scores(two_trees(), x, 1)[:, 0], [9, 12, 10, 12, 9])
    np.testing.assert_array_equal(gains(two_trees(), 3), [3, 7, 0])
    both = joined([constants(np.array([1.0])), two_trees(), two_trees()], [1, 0.25, 0.5])
    check_forest(both, 1, 2, 9, 5, "a test")
    np.testing.assert_allclose(raw_scores(both, x, 1)[:, 0], 1 + 0.75 * np.array([9, 12, 10, 12, 9]))


WRONG = {
    "a cycle": ("left", 2, 2),
    "a way back": ("left", 2, 1),
    "a child of another tree": ("right", 2, 5),
    "a node with two parents": ("right", 0, 1),
    "a shared child": ("left", 2, 4),
    "a node without a parent": ("right", 0, 3),
    "a column out of range": ("feature", 0, 2),
    "a negative column": ("feature", 0, -2),
    "a leaf of NaN": ("value", 1, np.nan),
    "an endless leaf": ("value", 5, np.inf),
    "a leaf beyond all scores": ("value", 5, 1e12),
    "a negative gain": ("value", 0, -1.0),
    "a threshold of NaN": ("threshold", 0, np.nan),
    "a leaf with children": ("left", 5, 1),
    "another output": ("output", 0, 1),
    "trees that overlap": ("start", 1, 0),
    "a start after the end": ("start", 1, 6),
    "a first tree elsewhere": ("start", 0, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_malformed_trees_are_refused_by_name(name):
    array, place, value = WRONG[name]
    forest = two_trees()
    check_forest(forest, 1, 2, 2, 5, "client 3")
    forest[array][place] = value
    with pytest.raises(FedGraphError, match=r"^client 3 with "):
        check_forest(forest, 1, 2, 2, 5, "client 3")


@given(st.sampled_from(sorted(two_trees())), st.integers(0, 5), st.integers(-3, 9))
def test_what_is_accepted_ends(array, place, value):
    forest = two_trees()
    forest[array][place % len(forest[array])] = value
    try:
        check_forest(forest, 1, 2, 2, 5, "client 3")
    except FedGraphError:
        return
    assert np.isfinite(raw_scores(forest, np.zeros((3, 2)), 1)).all()


def test_too_many_trees_or_nodes_are_refused():
    for bounds in ((1, 5), (2, 4)):
        with pytest.raises(FedGraphError, match=r"^client 3 with .*(expected \(0 to 1\)|expected 0 to 3)"):
            check_forest(two_trees(), 1, 2, *bounds, "client 3")


@pytest.mark.parametrize("attack", ["cycle", "huge", "nan", "column"])
def test_a_malicious_partys_trees_do_not_reach_the_model(run, monkeypatch, attack):
    original = BoostingClient.send

    def send(self: Any) -> Any:
        sent, numbers = original(self)
        if self.graph.client == 1:
            forest = {key: array.copy() for key, array in sent["forest"].items()}
            split = int(np.flatnonzero(forest["feature"] >= 0)[0])
            if attack == "cycle":
                forest["left"][split] = 0
            elif attack == "nan":
                forest["value"][np.flatnonzero(forest["feature"] < 0)[0]] = np.nan
            elif attack == "column":
                forest["feature"][split] = 10**6
            else:
                forest["feature"] = np.broadcast_to(np.int32(-1), 10**9)[: 10**7]
            sent["forest"] = forest
        return sent, numbers

    monkeypatch.setattr(BoostingClient, "send", send)
    monkeypatch.setattr(replies, "is_finite", lambda array: True)  # a party may change its node's own check
    finished = run(*BAGGING, sizes=(40, 40, 40))
    assert list(finished.summary["failures"]) == ["1 (train)"]
    assert finished.summary["failures"]["1 (train)"].startswith("client 1 replied to phase 'train' with ")
    check_forest(finished.arrays, 3, 5, 1000, 100, "the model")


# --- bagging ----------------------------------------------------------------------------------------------------------


def clients_of(finished: Any, kind: type = BoostingClient) -> list[BoostingClient]:
    from fedgraph_flwr.partition import load_client

    return [kind(finished.cfg, load_client(finished.cfg, index)) for index in range(finished.cfg.num_clients)]


@pytest.mark.parametrize("loss", ["cross_entropy", "weighted"])
def test_bagging_is_the_mean_of_the_parties_own_models_from_one_base_rate(run, loss):
    """Against LightGBM, called for each party with the base rate as initial score; weighted items weigh in the base rate, too."""
    finished = run(*BAGGING, "strategy.patience=0", f"train.loss={loss}", sizes=(40, 60, 80))
    assert [r["round"] for r in finished.rounds] == [1]
    assert finished.summary["exchanges_per_round"] == 1
    parties = clients_of(finished)
    weights = {}
    for c in parties:
        tally = np.bincount(c.y[c.train_nodes], minlength=3)
        weights[c] = tally.sum() / (np.count_nonzero(tally) * tally) if loss == "weighted" else np.ones(3)
    counts = sum(weights[c] * np.bincount(c.y[c.train_nodes], minlength=3) for c in parties)
    base = np.log(counts / counts.sum())
    x, total, expected = parties[0].x, 0, 0.0
    for party in parties:
        rows = party.rows
        rules = {"objective": "multiclass", "num_class": 3, "min_data_in_leaf": 2, "lambda_l2": 1, "learning_rate": 0.1}
        rules |= {"max_depth": 6, "num_leaves": 31, "verbosity": -1, "boost_from_average": False, "num_threads": 1}
        rules |= {"deterministic": True, "force_row_wise": True}
        y, start = party.y.numpy()[rows], np.tile(base, (len(rows), 1))
        data = lightgbm.Dataset(party.x[rows], y, weight=weights[party][y], init_score=start)
        expected = expected + len(rows) * lightgbm.train(rules, data, 12).predict(x, raw_score=True)
        total += len(rows)
    equal = np.isclose(raw_scores(finished.arrays, x, 3), base + expected / total, rtol=1e-6, atol=1e-8)
    assert equal.mean() > (0.9 if loss == "weighted" else 0.999), (
        "LightGBM rounds weights to float32, which may move a split"
    )


def parties_without_positives(folder, others):
    """Write three clients of two classes; some have items of the first class only, or all but ``others[client]`` of them."""
    for client in range(3):
        graph = client_graph(client, 60, num_classes=2)
        if client in others:
            positive = (graph.train_mask & (graph.y == 1)).nonzero().view(-1)
            graph.y[positive[others[client] :]] = 0
        graph.save(folder / f"client_{client:04d}.safetensors")
    return f"graph={folder}"


def test_a_party_without_a_class_sits_out_by_name_and_moves_nothing(run, tmp_path):
    finished = run(*BAGGING, parties_without_positives(tmp_path / "one", {1: 0}))
    why = "fewer than 2 training items of a class, or fewer than 4 in all (strategy.min_data_in_leaf=2)"
    assert finished.summary["sits_out"] == {"1": why}
    parties = clients_of(finished)
    raw = raw_scores(finished.arrays, parties[1].x, 1)
    assert raw.min() > -6, "not the -34.5 of a model of one class"
    assert parties[1].trained_outputs().tolist() == [False]
    with pytest.raises(RunFailed, match="each client has fewer than 2 training items of a class"):  # a sweep stores it
        run(*BAGGING, parties_without_positives(tmp_path / "all", dict.fromkeys(range(3), 0)))


def test_parties_with_fewer_positives_than_a_leaf_has_items_take_part(run, tmp_path):
    words = ["strategy=boosting", "strategy.min_data_in_leaf=10", "strategy.trees=12"]
    finished = run(*words, parties_without_positives(tmp_path / "few", {0: 5, 1: 5, 2: 5}))
    assert "sits_out" not in finished.summary
    x = np.concatenate([party.x[party.rows] for party in clients_of(finished)])
    y = np.concatenate([party.y.numpy()[party.rows] for party in clients_of(finished)])
    raw = raw_scores(finished.arrays, x, 1)[:, 0]
    assert raw[y == 1].mean() > raw[y == 0].mean() + 0.1
    party = clients_of(finished)[0]
    assert party.trained_outputs().tolist() == [True]
    party.policy = Policy(min_nodes=6)
    assert party.trained_outputs().tolist() == [False], "a class of fewer items than the policy allows"


def test_an_absent_class_of_several_stays_at_the_base_rate(run, tmp_path):
    for client in range(3):
        graph = client_graph(client, 60)
        if client == 1:
            graph.train_mask &= graph.y != 2
        graph.save(tmp_path / "three" / f"client_{client:04d}.safetensors")
    finished = run(*BAGGING, f"graph={tmp_path / 'three'}")
    assert "sits_out" not in finished.summary
    party = clients_of(finished)[1]
    party.receive({"base": {"score": np.array([-1.0, -1.1, -1.2])}})
    party.train()
    assert set(party.new["output"]) == {0, 1}


def test_alone_and_pooled_by_one_key(run):
    alone = run(*BAGGING, "strategy.shared=[]", sizes=(40, 40, 40))
    assert alone.arrays == {}
    assert alone.summary["bytes_by_phase"].keys() == {"describe", "train", "evaluate"}
    assert [r["round"] for r in alone.rounds] == [1]
    one, other = (run(*BAGGING, *words, sizes=(40,)) for words in ([], ["strategy.shared=[]"]))
    losses = [finished.summary["metrics"]["last"]["test_loss"] for finished in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_trees_added_over_rounds_are_those_of_one_round(run):
    whole = run(*BAGGING, "strategy.patience=0", sizes=(60, 60, 60))
    parts = run(*BAGGING, "strategy.patience=0", "strategy.per_round=4", "rounds=9", sizes=(60, 60, 60))
    assert [r["round"] for r in parts.rounds] == [1, 2, 3]
    x = clients_of(whole)[0].x
    np.testing.assert_allclose(raw_scores(parts.arrays, x, 3), raw_scores(whole.arrays, x, 3), atol=1e-6)


def test_validation_items_choose_the_number_of_trees(run):
    few = run(*BAGGING, "strategy.trees=300", "strategy.patience=3", sizes=(60, 60, 60))
    many = run(*BAGGING, "strategy.trees=300", "strategy.patience=0", sizes=(60, 60, 60))
    assert len(few.arrays["start"]) < len(many.arrays["start"]) / 3


@pytest.mark.parametrize(
    "protection",
    [
        SECURE,
        ["privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
        ["strategy.aggregator=median"],
    ],
)
def test_protections_refuse_bagging_and_point_to_histograms(protection):
    with pytest.raises(FedGraphError) as refused:
        check_method(compose(["strategy=boosting", "num_clients=3", *protection]))
    assert "aggregator" in str(refused.value) or "mode=histogram needs only sums" in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["strategy.objective=[prox]"], "does not go with strategy=boosting"),
        (["strategy.personalization=ditto"], "does not go with strategy=boosting"),
        (["train.loss=focal"], "does not support train.loss=focal"),
        (["task=nodes-regression", "task.loss=mae"], "set task.loss=mse"),
        (["train.sampler=neighbors", "train.batch_size=4"], "train.sampler=none"),
        (["task=links"], "does not serve task=links"),
        (["model=rgcn"], "one type"),
        (["strategy.inputs=both"], "pass the run folder"),
        (["task=edges", "strategy.edge_columns=true"], "reads columns of the edges of nodes, got task=edges"),
        (["strategy.mode=stacking"], "strategy.mode"),
    ],
)
def test_what_trees_cannot_do_is_refused(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(["strategy=boosting", "num_clients=3", *overrides]))


# --- histograms -------------------------------------------------------------------------------------------------------


def test_keys_of_numbers_ascend_and_come_back():
    values = np.array([-3e38, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1.0000001, 3e38], np.float32)
    keys = boosting.float_keys(values)
    assert (np.diff(keys) >= 0).all()
    np.testing.assert_array_equal(boosting.key_values(keys), values.astype(np.float64))


@pytest.mark.parametrize("bins", [2, 16, 255])
def test_agreed_bins_have_equal_counts_and_part_few_values(bins):
    x = table(3000)
    edges = boosting.agreed_edges(6, bins, lambda bounds: boosting.bin_counts(x, bounds) * boosting.UNIT)
    placed = boosting.binned(x, edges)
    assert max(map(len, edges)) == bins - 1
    most = np.bincount(placed[:, 0]).max()
    assert most <= 3000 / bins + 0.005 * 3000
    if bins > 4:
        known = ~np.isnan(x[:, 1])
        assert len(np.unique(placed[known, 1])) == 4, "each of four values has its own bin"
    assert (placed[np.isnan(x)] == max(map(len, edges)) + 1).all()


def best_by_trial(x: np.ndarray, g: np.ndarray, h: np.ndarray, edges: Any, rules: BoostingParams) -> float:
    """The largest gain over all columns, edges and ways of missing values."""
    quality = lambda rows: g[rows].sum() ** 2 / (h[rows].sum() + rules.l2)  # noqa: E731
    improvements = [-np.inf]
    for column, cuts in enumerate(edges):
        for edge in cuts:
            for missing_left in (False, True):
                left = np.where(np.isnan(x[:, column]), missing_left, x[:, column] <= edge)
                if min(left.sum(), (~left).sum()) >= rules.min_data_in_leaf:
                    improvements.append(quality(left) + quality(~left) - quality(np.ones(len(x), bool)))
    return max(improvements)


def test_splits_are_the_best_of_all():
    x, rng = table(120), np.random.default_rng(3)
    g, h = rng.standard_normal(120) + np.nan_to_num(x[:, 1]), rng.random(120) + 0.1
    rules = BoostingParams(mode="histogram", depth=3, min_data_in_leaf=5, bins=16)
    edges = boosting.agreed_edges(6, 16, lambda bounds: boosting.bin_counts(x, bounds))
    placed, growth = boosting.binned(x, edges), Growth(1, edges, rules)

    def sums(forest: Any, tree: Any, node: Any) -> np.ndarray:
        from fedgraph_flwr.numerics.forest import leaves

        places = np.full(len(forest["feature"]), -1)
        places[forest["start"][tree] + node] = np.arange(len(tree))
        return boosting.histograms(
            placed, growth.held.shape[1], g[:, None], h[:, None], places[leaves(forest, x)], tree
        )

    forest = boosting.grown(growth, sums)
    check_forest(forest, 1, 6, 1, rules.nodes, "the growth")
    rows = {0: np.ones(120, bool)}
    for node in range(len(forest["feature"])):
        members = rows[node]
        column = forest["feature"][node]
        if column < 0:
            score = -rules.learning_rate * g[members].sum() / (h[members].sum() + rules.l2)
            assert forest["value"][node] == pytest.approx(score, rel=1e-12)
            continue
        assert forest["value"][node] == pytest.approx(
            best_by_trial(x[members], g[members], h[members], edges, rules), rel=1e-6
        )
        way = np.isnan(x[:, column]) & forest["default_left"][node]
        left = members & (way | (x[:, column] <= forest["threshold"][node]))
        rows |= {int(forest["left"][node]): left, int(forest["right"][node]): members & ~left}


def pooled_and_federated(run: Any, *overrides: str) -> tuple[Any, Any]:
    federated = run(*HISTOGRAM, "dtype=float64", "rounds=6", *overrides, sizes=(40, 60, 80))
    graphs = [party.graph for party in clients_of(federated)]
    joint = federated.out.parent / "joint"
    names = ("x", "y", "train_mask", "val_mask", "test_mask")
    pooled = {name: torch.cat([getattr(graph, name) for graph in graphs]) for name in names}
    ids = torch.arange(180)
    ClientGraph(**pooled, edge_index=torch.zeros(2, 0, dtype=torch.int64), num_classes=3, name="toy", node_id=ids, client=0,
                num_clients=1, num_global_nodes=180).save(joint / "client_0000.safetensors")  # fmt: skip
    alone = [word for word in overrides if "privacy" not in word]
    return federated, run(*HISTOGRAM, "dtype=float64", "rounds=6", f"graph={joint}", "num_clients=1", *alone)


def test_trees_from_sums_are_those_of_pooled_rows(run):
    federated, pooled = pooled_and_federated(run)
    for name in ("start", "output", "feature", "threshold", "left", "right", "default_left"):
        np.testing.assert_array_equal(federated.arrays[name], pooled.arrays[name], err_msg=name)
    np.testing.assert_allclose(federated.arrays["value"], pooled.arrays["value"], rtol=1e-9, atol=1e-12)
    assert len(federated.arrays["start"]) == 3 + 6 * 3


def test_trees_from_secure_sums_are_the_same(run):
    federated, pooled = pooled_and_federated(run, *SECURE)
    np.testing.assert_array_equal(federated.arrays["feature"], pooled.arrays["feature"])
    np.testing.assert_allclose(federated.arrays["value"], pooled.arrays["value"], rtol=1e-5, atol=1e-6)
    assert federated.summary["failures"] == {}


def test_noise_of_the_clients_is_booked_for_every_level(run):
    noised = ["privacy.dp=distributed", "privacy.secagg=true", "privacy.secagg_bits=20", "privacy.noise_multiplier=1"]
    finished = run(*HISTOGRAM, *noised, "strategy.weighting=uniform", "privacy.scores=none", "rounds=2")
    levels = finished.summary["bytes_by_phase"].get("grow", {"exchanges": 0})["exchanges"]
    assert finished.summary["privacy"]["releases"] == 1 + 2 + 2 + levels
    assert 0 <= levels <= 4


def test_a_run_grows_no_more_than_its_trees(run):
    finished = run(*HISTOGRAM, "strategy.trees=2", "rounds=9")
    assert [r["round"] for r in finished.rounds] == [1, 2]


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        (
            {"forest": {**constants(np.zeros(3)), "left": np.ones(3, np.int32)}},
            "leaf that has children|leaf with|a leaf",
        ),
        (
            {
                "forest": constants(np.zeros(3)),
                "nodes": {"tree": np.array([3], np.int32), "node": np.array([0], np.int32)},
            },
            "not in",
        ),
        (
            {
                "forest": constants(np.zeros(3)),
                "nodes": {"tree": np.array([0], np.int32), "node": np.array([1], np.int32)},
            },
            "not in",
        ),
        ({"forest": constants(np.zeros(3)), "nodes": {"tree": np.zeros(1), "node": np.zeros(1)}}, "not in the trees"),
        ({}, "without default_left"),
    ],
)
def test_a_client_refuses_trees_and_nodes_that_do_not_exist(groups, match):
    client = BoostingClient(compose([*HISTOGRAM, "num_clients=3"]), client_graph(0))
    client.receive({"base": {"score": np.zeros(3)}})
    client.begin_histograms()
    with pytest.raises(FedGraphError, match=f"the server .*{match}|{match}"):
        client.grow(groups, {})


@pytest.mark.parametrize(
    "bins",
    [
        {"edge": np.array([1.0, 0.0]), "size": np.array([2, 0, 0, 0, 0], np.int32)},
        {"edge": np.array([np.nan]), "size": np.array([1, 0, 0, 0, 0], np.int32)},
        {"edge": np.zeros(1), "size": np.array([1], np.int32)},
        {"edge": np.zeros(5), "size": np.array([1, 0, 0, 0, 0], np.int32)},
        {"edge": np.arange(999.0), "size": np.array([999, 0, 0, 0, 0], np.int32)},
        {},
    ],
)
def test_a_client_refuses_bins_that_are_none(bins):
    client = BoostingClient(compose([*HISTOGRAM, "num_clients=3"]), client_graph(0))
    with pytest.raises(FedGraphError, match="the server sent edges of bins"):
        client.receive({"bins": bins})


def test_gradients_are_the_slopes_of_the_loss():
    rng = np.random.default_rng(0)
    raw, step = rng.standard_normal((7, 3)), 1e-6
    y, number = rng.integers(3, size=7), rng.standard_normal((7, 3))

    def losses(objective: Objective, scores: np.ndarray) -> np.ndarray:
        if objective.kind == "softmax":
            return torch.nn.functional.cross_entropy(
                torch.from_numpy(scores), torch.from_numpy(y), reduction="none"
            ).numpy()
        if objective.kind == "logistic":
            target = torch.from_numpy((number > 0).astype(float))
            entropies = torch.nn.functional.binary_cross_entropy_with_logits(
                torch.from_numpy(scores), target, reduction="none"
            )
            return entropies.numpy().sum(1)
        return ((scores - number) ** 2).sum(1) / 2

    for kind in ("softmax", "logistic", "square"):
        objective = Objective(kind, 3)
        targets = objective.targets(y if kind == "softmax" else (number > 0) * 1.0 if kind == "logistic" else number)
        g, h = objective.gradients(raw, targets)
        for k in range(3):
            moved = raw.copy()
            moved[:, k] += step
            np.testing.assert_allclose(g[:, k], (losses(objective, moved) - losses(objective, raw)) / step, atol=1e-5)
            slope = (objective.gradients(moved, targets)[0] - g)[:, k] / step
            np.testing.assert_allclose(h[:, k], slope * (1.5 if kind == "softmax" else 1), atol=1e-5)


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bagging", "histogram"])
def test_targets_and_labels_are_learnt(run, mode):
    words = ["strategy=boosting", f"strategy.mode={mode}", "strategy.min_data_in_leaf=5", "dataset.nodes=1200"]
    words += ["rounds=12", "strategy.bins=32", "strategy.learning_rate=0.2", "strategy.depth=3"]
    numbers = run(*words, "task=nodes-regression", "dataset=planted-regression", sizes=(1, 1, 1))
    assert 0.15 < numbers.summary["metrics"]["last"]["test_r2"] < 0.42, "at most .375 is in the columns"
    labels = run(*words, "task=nodes-multilabel", "dataset=planted-multilabel", sizes=(1, 1, 1))
    assert labels.summary["metrics"]["last"]["test_auc"] > 0.75


def test_columns_of_an_edge_are_its_own_then_those_of_its_ends_and_missing_beyond_the_client():
    rng, none = np.random.default_rng(0), torch.zeros(12, dtype=torch.bool)
    graph = Graph(
        x=torch.from_numpy(rng.standard_normal((12, 5))).float(),
        edge_index=torch.from_numpy(rng.integers(12, size=(2, 60))),
        y=torch.arange(12) % 2,
        **{f"{split}_mask": none.clone() for split in ("train", "val", "test")},
        num_classes=2,
        num_edge_classes=2,
        edge_attr=torch.arange(120.0).view(60, 2),
        edge_time=torch.from_numpy(rng.permutation(60)),
        edge_y=torch.from_numpy(rng.integers(2, size=60)),
    )
    timed = split_graph(graph, SplitConfig(kind="temporal", until=[30, 45]), seed=0)
    for part in cut(timed, [torch.arange(12)[torch.arange(12) % 2 == i] for i in range(2)]):
        task = Edges(compose(["task=edges", "split.kind=temporal", "num_clients=2"]), part)
        columns, known = task.columns(), set(part.node_id.tolist())
        assert columns.shape == (len(task.y), Edges.num_columns(5, 2))
        for row, (s, t) in enumerate(task.ends.T.tolist()):
            edge = int(columns[row, 0]) // 2
            assert graph.edge_index[:, edge].tolist() == [s, t]
            assert int(graph.edge_y[edge]) == int(task.y[row])
            assert torch.equal(columns[row, 2:7], graph.x[s])
            assert torch.equal(columns[row, 7:], graph.x[t]) if t in known else columns[row, 7:].isnan().all()


def test_class_weights_move_the_base_rate(run):
    plain = run(*BAGGING, sizes=(40, 40, 40))
    weighted = run(*BAGGING, "train.loss=weighted", "train.class_weights=federated", sizes=(40, 40, 40))
    start = {
        key: raw_scores(finished.arrays, np.zeros((1, 5)), 3) for key, finished in {"p": plain, "w": weighted}.items()
    }
    assert not np.allclose(start["p"], start["w"])
    np.testing.assert_allclose(weighted.arrays["value"][:3], np.log(1 / 3), atol=1e-6)


def test_the_schema_bounds_what_a_party_sends():
    fields = forest_fields(1, 4, 10, 61)
    assert fields["feature"].shape[0].stop == 611
    assert (fields["feature"].low, fields["feature"].high) == (-1, 3)
    assert fields.keys() == empty_forest().keys()


def test_a_stored_forest_is_checked_when_it_is_read():
    model = Forest(1, 2, binary=True, trees=2, nodes=5)
    model.fit_to({name: torch.from_numpy(array) for name, array in two_trees().items()}, "a file")
    assert_same_arrays(model.arrays, two_trees())
    with pytest.raises(FedGraphError, match="a file sent a model with"):
        model.fit_to({**two_trees(), "left": two_trees()["right"]}, "a file")


def test_a_checkpoint_with_a_malformed_forest_is_refused(run):
    from fedgraph_flwr.data.graph import read_tensors, write_tensors

    half = run(*HISTOGRAM, "rounds=2", "checkpoint_every=1")
    file = half.out / "checkpoint.safetensors"
    tensors, values = read_tensors(file)
    tensors["arrays/left"][:] = 0
    write_tensors(file, tensors, values)
    with pytest.raises((FedGraphError, RunFailed), match="children do not lie behind their parent"):
        run(*HISTOGRAM, "rounds=3", f"resume={half.out}", f"out={half.out}", f"graph={half.cfg.graph}")


def test_outputs_of_a_finished_run_are_columns(run):
    source = run("strategy=fedper", "rounds=4", "checkpoint_every=0", sizes=(40, 40, 40))
    graph = f"graph={source.cfg.graph}"
    runs = {
        kind: run(*BAGGING, f"strategy.inputs={kind}", f"strategy.run={source.out}", graph)
        for kind in ("embeddings", "both")
    }
    party = clients_of(runs["both"])[1]
    expected = load_predictor(source.out, 1).logits(party.graph)
    np.testing.assert_array_equal(party.x[:][:, 5:], expected.double().numpy())
    np.testing.assert_array_equal(party.x[:][:, :5], party.graph.x.double().numpy())
    assert clients_of(runs["embeddings"])[0].x.shape == (40, 3)
    assert runs["embeddings"].arrays["feature"].max() <= 2
    assert load_predictor(runs["both"].out, 1).logits(party.graph).shape == (40, 3)


def test_a_node_reads_no_folder_for_a_server(run):
    source = run("rounds=1")
    cfg = compose([*BAGGING, "num_clients=3", "strategy.inputs=both", f"strategy.run={source.out}"])
    client = BoostingClient(cfg, client_graph(0, 12))
    client.policy = Policy()
    with pytest.raises(FedGraphError, match="this node reads no model from"):
        client.predict()


def test_a_folder_without_a_run_is_named(run, tmp_path):
    with pytest.raises((FedGraphError, RunFailed), match="holds no finished run on the graph of client"):
        run(*BAGGING, "strategy.inputs=both", f"strategy.run={tmp_path}", "strategy.on_failure=fail")


def test_a_node_starts_without_trees_of_the_servers_choice():
    """Chosen trees would give each record its own gradient."""
    client = BoostingClient(compose([*HISTOGRAM, "num_clients=3"]), client_graph(0))
    start.check_start(client, empty_forest())
    with pytest.raises(FedGraphError, match="starts this run with other parameters than its seed"):
        start.check_start(client, constants(np.array([1.0, 2.0, 3.0])))


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["strategy.min_data_in_leaf=4"], "leaves of fewer than 5 items"),
        (["strategy.min_data_in_leaf=5"], ""),
        (["strategy.mode=histogram"], r"bins of fewer than 5 items.*set privacy\.secagg=true"),
        (["strategy.mode=histogram", *SECURE], ""),
        (["strategy.mode=histogram", "strategy.shared=[]"], ""),
    ],
)
def test_a_nodes_policy_bounds_the_items_of_leaves_and_bins(overrides, match):
    client = BoostingClient(compose(["strategy=boosting", "num_clients=3", *overrides]), client_graph(0, 40))
    client.policy = Policy(min_nodes=5)
    client.receive({"base": {"score": np.zeros(3)}} if client.shared else {})
    if client.params.mode == "histogram" and not match:
        client.check_policy()
        return
    if not match:
        assert np.isfinite(client.train())
        return
    with pytest.raises(FedGraphError, match=match):
        client.train()
    if client.params.mode == "histogram":
        with pytest.raises(FedGraphError, match=match):
            client.bins({}, {})
        with pytest.raises(FedGraphError, match=match):
            client.grow({}, {})


def test_a_folder_of_another_run_is_absolute(monkeypatch, tmp_path):
    """Clients of other engines run in other folders."""
    monkeypatch.chdir(tmp_path)
    cfg = compose(["strategy=boosting", "strategy.inputs=both", "strategy.run=runs/gnn"])
    assert cfg.strategy.params["run"] == str(tmp_path / "runs/gnn")
    assert compose(["strategy=boosting"]).strategy.params["run"] == ""


def test_without_lightgbm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(
        FedGraphError, match=r"needs LightGBM .*install fedgraph-flwr\[trees\], or set strategy\.mode=histogram"
    ):
        check_method(compose(["strategy=boosting", "num_clients=3"]))
    check_method(compose(["strategy=boosting", "strategy.mode=histogram", "num_clients=3"]))


@pytest.mark.parametrize("rows", [30, 201_000])
def test_trees_of_rows_that_are_read_in_batches_are_those_of_the_matrix(rows):
    """Also of more rows than LightGBM draws to choose bins, by the seed, and of few, where it leaves out columns."""
    rng = np.random.default_rng(0)
    tables = [
        rng.normal(size=(rows, 2)).astype(np.float32),
        np.where(rng.random((7, 2)) < 0.2, np.nan, rng.random((7, 2))),
    ]
    place = rng.integers(7, size=rows)
    x = Gathered([(tables[0], np.arange(rows)), (tables[1], place), (np.zeros((7, 1)), place)])
    matrix = np.concatenate([tables[0].astype(np.float64), tables[1][place], np.zeros((rows, 1))], axis=1)
    np.testing.assert_array_equal(x, matrix)
    np.testing.assert_array_equal(np.concatenate([*x.blocks()]), matrix)
    y = (matrix[:, 0] + np.nan_to_num(matrix[:, 2]) + rng.normal(size=rows) > 0.5) * 1.0
    rules = BoostingParams(trees=3, min_data_in_leaf=2, patience=0, leaves=7)
    one = lightgbm_trees.LabelledRows(x, y[:, None], np.ones(rows), np.zeros((rows, 1)))
    trees, _ = lightgbm_trees.fit(Objective("logistic", 2, binary=True), one, one, rules, 3, np.ones(1, bool), 5)
    keys = {"objective": "binary", "num_leaves": 7, "max_depth": 6, "lambda_l2": 1.0, "min_data_in_leaf": 2, "seed": 5}
    keys |= {
        "boost_from_average": False,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(matrix, y, weight=np.ones(rows), init_score=np.zeros(rows), params=keys)
    expected = lightgbm_trees.parsed(lightgbm.train(keys, data, 3).model_to_string(), 1)
    assert len(trees["start"]) == 3
    for name, values in expected.items():
        np.testing.assert_array_equal(trees[name], values, err_msg=name)


def test_bins_are_bytes_where_there_are_few():
    x = np.array([[0.0, np.nan], [2.0, 5.0]])
    few, many = boosting.binned(x, [np.arange(254.0)] * 2), boosting.binned(x, [np.arange(255.0)] * 2)
    assert few.dtype == np.uint8
    assert many.dtype == np.uint16
    assert few.tolist() == [[0, 255], [2, 5]]
    assert many.tolist() == [[0, 256], [2, 5]]


def test_columns_that_tell_nothing_apart_are_said_to(run):
    with pytest.raises(RunFailed, match="no split of the columns predicts"):
        run(
            "num_clients=2",
            "rounds=1",
            "strategy=boosting",
            "dataset=payments",
            "dataset.accounts=600",
            "dataset.per_kind=12",
        )
