"""Reasons of scores: sums, brute-force Shapley values, planted payments, and what a random model says."""

from dataclasses import replace
from itertools import combinations
from math import comb, factorial

import numpy as np
import pandas as pd
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.payments import PaymentsSpec, generate
from fedgraph_flwr.numerics.forest import leaves, raw_scores
from fedgraph_flwr.party.use.explain import explain
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.party.use.trees import node_counts, shapley
from fedgraph_flwr.tasks.edges import Edges
from tests.party import two_banks

SMALL = {"model.hidden": 8, "dataset.features": 8, "dataset.nodes": 80}
RINGS = {
    "accounts": 300,
    "background": 1200,
    "per_kind": 8,
    "kinds": ("cycle",),
    "decoy_dir": 0,
    "decoy_time": 0,
    "cross": 0.0,
}


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    """A run on one bank's payments with planted cycles, and the cycle of each payment, -1 of the others."""
    keys = {f"dataset.{key}": list(value) if key == "kinds" else value for key, value in RINGS.items()}
    run = fg.run(
        task="edges",
        dataset="payments",
        num_clients=1,
        rounds=25,
        progress=False,
        out=str(tmp_path_factory.mktemp("explain") / "run"),
        checkpoint_every=0,
        **keys,
        **{"model.hidden": 16},
    )
    graph = load_predictor(run.path, 0).client_graph
    made = generate(PaymentsSpec(**RINGS), seed=0, banks=1)
    key = {
        tuple(row): int(pattern)
        for *row, pattern in zip(made.source, made.target, made.time, made.pattern, strict=True)
    }
    ends = graph.node_id[graph.edge_index].T.tolist()
    return run, np.array([key[(*pair, time)] for pair, time in zip(ends, graph.edge_time.tolist(), strict=True)])


def test_reasons_of_planted_payments_are_planted_payments(rings, tmp_path, capsys):
    """In the first five that raise the score, twice as often as by chance, and more often than those of a random model."""
    run, pattern = rings
    predictor = load_predictor(run.path, 0)
    logits, task = predictor.items(predictor.client_graph)
    assert isinstance(task, Edges)
    score = (logits[:, 1] - logits[:, 0]).double().numpy()
    rows = np.flatnonzero(task.y.numpy() == 1)
    rows = rows[np.argsort(-score[rows], kind="stable")][:6]
    items = task.order[torch.from_numpy(rows)].tolist()
    explanations = explain(predictor, predictor.client_graph, None, None, [str(item) for item in items])
    hits, random, chance = [], [], []
    for item, expected, reasons in zip(items, score[rows], explanations, strict=True):
        assert reasons.score == pytest.approx(expected, rel=1e-3)
        total = reasons.of_columns.sum() + reasons.of_edges.sum()
        assert total == pytest.approx(reasons.score - reasons.base, abs=1e-2 * total_size(reasons) + 1e-5)
        numbers = reasons.edges.astype(int)
        others = (reasons.of_edges != 0) & (numbers != item)
        same = pattern[numbers] == pattern[item]
        for counts, sizes in ((hits, reasons.of_edges), (random, reasons.random[len(reasons.columns) :])):
            first = np.argsort(-np.where(others, sizes, -np.inf), kind="stable")[:5]  # those that raise the score
            counts.append(same[first].mean())
        reach, planted = int(others.sum()), int((others & same).sum())
        chance.append(1 - comb(reach - planted, 5) / comb(reach, 5))
        # numbers, ends and times of the edges are those of the stored graph
        stored = predictor.client_graph
        assert reasons.ends.T.tolist() == stored.node_id[stored.edge_index[:, numbers]].T.tolist()
        assert reasons.time.tolist() == stored.edge_time[numbers].tolist()
    assert np.mean(np.array(hits) > 0) >= 2 * np.mean(chance)
    assert np.mean(np.array(hits) > 0) >= np.mean(np.array(random) > 0)
    assert np.mean(hits) > 1.5 * np.mean(random), "benchmarks/reasons.py has more data sets"
    assert np.mean([r.score - r.without for r in explanations]) > 0, "without its reasons, a payment is less suspicious"
    # the same as a command
    words = [
        "explain",
        run.path,
        "--client",
        0,
        "--items",
        f"{items[0]},{items[1]}",
        "--top",
        7,
        "--out",
        tmp_path / "r.csv",
    ]
    assert main([*map(str, words)]) == 0
    table = pd.read_csv(tmp_path / "r.csv")
    assert table.groupby("item").size().tolist() == [7, 7]
    assert table["item"].unique().tolist() == items[:2]
    sizes = np.sort(np.abs(np.concatenate([explanations[0].of_columns, explanations[0].of_edges])))[::-1][:7]
    np.testing.assert_allclose(table["contribution"].abs()[:7], sizes, rtol=1e-5)
    assert f"item {items[0]}: score {explanations[0].score:.3g}" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["gcn", "gat", "gine", "pna", "mlp"])
def test_contributions_of_nodes_sum_to_the_score(model, tmp_path):
    """Of every network of plain PyG; an edge far from the item and the columns of an unread node contribute nothing."""
    check_contributions(model, tmp_path, **SMALL)


def test_contributions_of_a_number_of_nodes_sum_to_it(tmp_path):
    check_contributions("gcn", tmp_path, dataset="planted-regression", task="nodes-regression", **{"dataset.nodes": 60})


def total_size(reasons):
    """Sum of the sizes of all contributions, of which the page of the second day allows an error of 1 %."""
    return np.abs(reasons.of_columns).sum() + np.abs(reasons.of_edges).sum()


def check_contributions(model, tmp_path, **keys):
    run = fg.run(f"model={model}", num_clients=1, rounds=1, progress=False, out=str(tmp_path / "run"), **keys)
    predictor = load_predictor(run.path, 0)
    graph = predictor.client_graph
    (reasons,) = explain(predictor, graph, None, None, [str(int(graph.node_id[3]))])
    logits = predictor.outputs(graph)[0][3].double().numpy()
    chosen = 1 if len(logits) == 2 else logits.argmax()
    score = logits[chosen] - np.delete(logits, chosen).mean() if len(logits) > 1 else logits[0]
    assert reasons.score == pytest.approx(score, rel=1e-3, abs=1e-4)
    total = reasons.of_columns.sum() + reasons.of_edges.sum()
    assert total == pytest.approx(reasons.score - reasons.base, abs=1e-2 * total_size(reasons) + 1e-5)
    source, target = graph.edge_index.numpy()
    near = {3}
    for _ in range(3 if model != "mlp" else 0):
        near |= set(source[np.isin(target, list(near))].tolist())
    assert not reasons.of_edges[~np.isin(target, list(near))].any()
    assert reasons.of_edges.any() == (model != "mlp")
    assert reasons.values[0] == pytest.approx(float(graph.x[3, 0]))


def slow_shapley(forest, counts, x):
    """Shapley values of one row by all subsets, where a node of an unread column counts its children by their rows."""
    columns = sorted(set(forest["feature"][forest["feature"] >= 0].tolist()))

    def value(start, node, held):
        at = start + node
        if forest["feature"][at] < 0:
            return forest["value"][at]
        sides = int(forest["left"][at]), int(forest["right"][at])
        if forest["feature"][at] in held:
            return value(start, sides[int(x[forest["feature"][at]] > forest["threshold"][at])], held)
        weights = [counts[start + side] for side in sides]
        return sum(w * value(start, side, held) for w, side in zip(weights, sides, strict=True)) / sum(weights)

    def total(held):
        return sum(value(start, 0, held) for start in forest["start"].tolist())

    contributions = np.zeros(len(x) + 1)
    contributions[-1] = total(())
    for column in columns:
        others = [c for c in columns if c != column]
        for size in range(len(columns)):
            weight = factorial(size) * factorial(len(columns) - size - 1) / factorial(len(columns))
            contributions[column] += sum(weight * (total((*s, column)) - total(s)) for s in combinations(others, size))
    return contributions


def test_contributions_of_trees_are_shapley_values(tmp_path):
    keys = {"strategy.min_data_in_leaf": 3, "strategy.trees": 4, "dataset.features": 5, "dataset.nodes": 60}
    run = fg.run(
        "dataset=csbm", "strategy=boosting", num_clients=2, rounds=1, progress=False, out=str(tmp_path / "run"), **keys
    )
    predictor = load_predictor(run.path, 0)
    x = predictor.inputs_of_trees(predictor.client_graph)
    forest = {key: value.copy() for key, value in predictor.forest.items()}
    outputs = int(forest["output"].max()) + 1
    counts = node_counts(forest, x)
    ends = leaves(forest, x)
    factor = (counts[ends[0, 0]] - 1) // (ends[0] == ends[0, 0]).sum()
    assert factor > 10**6
    assert counts[forest["start"][0]] == factor * len(x) + (forest["feature"][: forest["start"][1]] < 0).sum() < 2**31
    contributions = shapley(forest, x[:3], x, outputs)
    base = raw_scores(forest, x, outputs).mean(axis=0)  # the page: the mean score of the stored items
    np.testing.assert_allclose(contributions[:, :, -1], np.tile(base, (3, 1)), atol=1e-6)
    np.testing.assert_allclose(contributions.sum(axis=2), raw_scores(forest, x[:3], outputs), atol=1e-9)
    for output in range(outputs):
        bounds = [*forest["start"].tolist(), len(counts)]
        rows = np.concatenate([np.arange(bounds[t], bounds[t + 1]) for t in np.flatnonzero(forest["output"] == output)])
        sizes = [bounds[t + 1] - bounds[t] for t in np.flatnonzero(forest["output"] == output)]
        subforest = {k: v[rows] for k, v in forest.items() if k not in ("start", "output")}
        subforest["start"] = np.cumsum([0, *sizes[:-1]])
        for row in range(3):
            np.testing.assert_allclose(
                contributions[row, output], slow_shapley(subforest, counts[rows], x[row]), atol=1e-9
            )
    name = str(int(predictor.client_graph.node_id[3]))
    (reasons,) = explain(predictor, predictor.client_graph, None, None, [name])
    assert reasons.of_columns.sum() + reasons.base == pytest.approx(reasons.score, abs=1e-9)
    assert main(["explain", str(run.path), "--client", "0", "--items", name]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--items", "3"], "pass --client I, or the state folder of a node"),
        (["--client", "0", "--items", "3,nobody"], "--items names 'nobody', which is not among the"),
        (["--client", "0", "--items", ","], "--items needs ids"),
        (["--client", "0", "--items", "3", "--top", "0"], "--top a number above 0"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(words, says, rings, capsys):
    assert main(["explain", str(rings[0].path), *words]) == 2
    assert says in capsys.readouterr().err


def test_a_method_that_predicts_with_more_than_its_model_is_refused(rings, monkeypatch):
    """Explained are the scores that `predict` gives, or none."""
    predictor = load_predictor(rings[0].path, 0)
    other = replace(predictor, tensors={key: value * 1.5 for key, value in predictor.tensors.items()})
    monkeypatch.setattr(predictor, "plain", other.plain)
    with pytest.raises(fg.FedGraphError, match="cannot be explained: it predicts with more than its model"):
        explain(predictor, predictor.client_graph, None, None, ["3"])


def test_payments_of_a_day_are_explained_by_the_party_s_own_rows(tmp_path):
    """Payments of a table are named by their ids, and each has its own amount; other banks' accounts have no columns."""
    rows = two_banks.payments()
    rows["at"] -= 19_000 * two_banks.DAY  # to 1972
    history = two_banks.books(tmp_path / "history", rows[:240], since=1_000)
    fg.run(
        f"graph={history}",
        "task=edges",
        num_clients=2,
        rounds=1,
        progress=False,
        out=str(tmp_path / "run"),
        **{"model.hidden": 8},
    )
    day = rows[240:]
    day[(day[["from_bank", "to_bank"]] == "A").any(axis=1)].to_csv(tmp_path / "day.csv", index=False)
    items = [day["ref"][(day["from_bank"] == a) & (day["to_bank"] == b)].iloc[0] for a, b in ("AA", "AB", "BA")]
    given = [
        "--nodes",
        tmp_path / "history/a.csv",
        "--edges",
        tmp_path / "day.csv",
        "--top",
        10_000,
        "--out",
        tmp_path / "r.csv",
    ]
    assert main([*map(str, ["explain", tmp_path / "run", "--client", 0, "--items", ",".join(items), *given])]) == 0
    reasons = pd.read_csv(tmp_path / "r.csv")
    assert reasons["item"].unique().tolist() == items
    paid = reasons[reasons["kind"] == "payment"]
    assert not ((reasons["item"] == items[1]) & (reasons["name"] == "target age")).any()
    assert not ((reasons["item"] == items[2]) & (reasons["name"] == "source age")).any()
    assert ((reasons["item"] == items[0]) & (reasons["name"] == "source age")).any()
    new = paid[paid["name"].astype(str).str.startswith("p")]
    assert set(new["name"]) <= set(day["ref"]), "rows of the table"
    assert len(new)
    amounts = reasons[reasons["name"] == "amount"].set_index("item")["value"]
    expected = day.set_index("ref")["amount"]
    assert amounts.to_dict() == pytest.approx(expected[amounts.index].to_dict(), rel=1e-6)
    ends = new.merge(day, left_on="name", right_on="ref")
    assert (pd.to_datetime(ends["time"]) == pd.to_datetime(ends["at"], unit="s")).all(), "dates, in whatever year"
    mask = ends["from_bank"] == "A"
    assert (ends["source_x"][mask] == ends["source_y"][mask]).all()
    predictor = load_predictor(tmp_path / "run", 0)
    _, task = predictor.outputs(predictor.client_graph)
    assert isinstance(task, Edges)
    row = int(
        task.time.where(task.masks["test"], task.time.max()).argmin()
    )  # the first stored payment of the test days
    [stored] = explain(predictor, predictor.client_graph, None, None, [str(int(task.order[row]))], checks=False)
    assert stored.time.max() < (task.time[row] // 86_400 + 1) * 86_400 <= task.time.max()
