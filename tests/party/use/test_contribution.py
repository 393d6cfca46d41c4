"""Contribution of parties: Shapley values against all orders, and coalitions against the run that never had the others."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.party.use.contribution import EXACT, shapley
from fedgraph_flwr.party.use.predict import load_predictor


def game(count, seed=0):
    """A random game whose last two parties are alike, and whose first adds nothing."""
    rng, values = np.random.default_rng(seed), {}

    def value(members):
        twins = sum(party >= count - 2 for party in members)
        key = tuple(sorted(party for party in members if 0 < party < count - 2)), twins
        if key not in values:
            values[key] = rng.normal()
        return values[key]

    return value


@pytest.mark.parametrize("count", [3, 5])
def test_values_are_means_over_all_orders(count):
    value = game(count)
    contributions = shapley(value, count, 2)
    orders = list(itertools.permutations(range(count)))
    expected = np.zeros(count)
    for order in orders:
        for place, party in enumerate(order):
            expected[party] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    np.testing.assert_allclose(contributions[:, 0], expected / len(orders), atol=1e-12)
    assert np.isnan(contributions[:, 1:]).all()
    assert abs(contributions[0, 0]) < 1e-12
    assert math.isclose(contributions[-1, 0], contributions[-2, 0])


def test_drawn_orders_have_intervals_that_hold_the_exact_value():
    count = EXACT + 1
    exact = np.zeros(count)
    orders = list(itertools.permutations(range(count)))
    value = game(count)
    for order in orders:
        for place, party in enumerate(order):
            exact[party] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    exact /= len(orders)
    inside = []
    for seed in range(40):
        contributions = shapley(value, count, 15, seed)
        assert math.isclose(contributions[:, 0].sum(), value(frozenset(range(count))) - value(frozenset()))
        inside.append((contributions[1:, 1] <= exact[1:]) & (exact[1:] <= contributions[1:, 2]))
    assert 0.88 < np.mean(inside) <= 1


@pytest.mark.slow
def test_coalitions_are_runs_that_never_had_the_others(tmp_path, capsys):
    keys = {"dataset": "csbm", "dataset.nodes_per_client": [30, 40], "model.hidden": 4, "rounds": 1, "progress": False}
    keys["train.local_steps_by_client"] = [1, 2, 3]
    whole = fg.run(num_clients=3, out=str(tmp_path / "whole"), **keys)
    files = ["--out", str(tmp_path / "p.csv"), "--page", str(tmp_path / "p.html")]
    words = ["worth", str(whole.path), "--coalitions", str(tmp_path / "parts"), "--metric", "accuracy", *files]
    assert main(words) == 0
    said, table = capsys.readouterr().out, pd.read_csv(tmp_path / "p.csv")
    assert "with all; 6 runs" in said
    assert fg.load_run(tmp_path / "parts" / "1-2").config.train.local_steps_by_client == [2, 3]
    graphs = [whole._client_graph(client) for client in range(3)]

    def score(path):
        scores = []
        for graph in graphs:
            logits, task = load_predictor(path).items(graph)
            scores.append(accuracy_score(task.y[task.masks["test"]], logits[task.masks["test"]].argmax(1)))
        return np.mean(scores)

    without = fg.forget(whole, 1, tmp_path / "without")
    assert table["without"][1] == pytest.approx(score(without.path))
    assert table["alone"][2] == pytest.approx(score(tmp_path / "parts" / "2"))
    none = np.mean([(graph.y[graph.test_mask] == 0).float().mean() for graph in graphs])
    assert table["contribution"].sum() == pytest.approx(score(whole.path) - none, abs=1e-6)
    assert "Shapley values" in (tmp_path / "p.html").read_text()
    assert main(words) == 2
    assert "a new folder" in capsys.readouterr().err
    assert main([*words[:2], str(whole.path), *words[2:]]) == 2
    assert "--coalitions takes one RUN" in capsys.readouterr().err
