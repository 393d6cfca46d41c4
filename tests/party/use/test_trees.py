"""Exported trees: LightGBM and NumPy give our scores; names and gains of columns, also in the report."""

import importlib.util
import json

import lightgbm
import numpy as np
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr import cli
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.launch.prepare import unread_edge_features
from fedgraph_flwr.numerics import forest
from fedgraph_flwr.numerics.forest import raw_scores
from fedgraph_flwr.party.use.export import load_export
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.party.use.trees import importance

SMALL = ["strategy.min_data_in_leaf=3", "strategy.trees=15"]
KINDS = {
    "classes": [],
    "histogram": ["strategy.mode=histogram", "rounds=4", "strategy.depth=3"],
    "numbers": ["task=nodes-regression", "dataset=planted-regression", "dataset.nodes=150"],
    "labels": ["task=nodes-multilabel", "dataset=planted-multilabel", "dataset.nodes=150"],
}


def model_of(folder):
    spec = importlib.util.spec_from_file_location("exported_trees", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_lightgbm_and_numpy_give_our_scores(kind, run, tmp_path):
    finished_run = run("strategy=boosting", *SMALL, *KINDS[kind], sizes=(40, 40, 40))
    out = tmp_path / "trees"
    assert cli.main(["export", str(finished_run.out), "--out", str(out)]) == 0
    predictor = load_predictor(finished_run.out, 0)
    x = predictor.client_graph.x.double().numpy().copy()
    x[::3, 1] = np.nan
    about = json.loads((out / "export.json").read_text())
    expected = raw_scores(predictor.forest, x, about["outputs"])
    booster = lightgbm.Booster(model_file=str(out / "model.txt"))
    scored = booster.predict(x, raw_score=True).reshape(len(x), -1)
    np.testing.assert_allclose(scored, expected, rtol=0, atol=1e-12)
    model = model_of(out)
    assert "fedgraph" not in (out / "model.py").read_text()
    np.testing.assert_allclose(model.raw_scores(model.load(out), x), expected, rtol=0, atol=1e-12)
    inputs = predictor.client_graph.x.numpy()
    mine, theirs = model.predict(model.load(out), inputs), predictor.predict(predictor.client_graph)
    values = theirs.values if predictor.task.capabilities.targets else theirs.probabilities
    np.testing.assert_allclose(mine, values, rtol=1e-9, atol=1e-9)
    assert len(about["columns"]) == x.shape[1]
    assert "| column | share of the gain |" in (out / "MODEL_CARD.md").read_text()
    assert cli.main(["export", str(finished_run.out), "--out", str(out)]) == 0, "again over an earlier export"
    again = load_export(out).predict(predictor.client_graph)
    np.testing.assert_allclose(
        getattr(again, "values", None) if predictor.task.capabilities.targets else again.probabilities, values
    )
    (out / "export.json").write_text(json.dumps({key: about[key] for key in about if key != "schema"}))
    with pytest.raises(FedGraphError, match="an earlier release wrote it"):
        load_export(out)


@pytest.fixture(scope="module")
def payments(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(tmp_path_factory.mktemp("root")))
        sizes = {"dataset.accounts": 200, "dataset.background": 1500, "dataset.per_kind": 6, "dataset.days": 30}
        keys = {"task": "edges", "dataset": "payments", "dataset.recipe": "payments", "num_clients": 2, "rounds": 1}
        out = tmp_path_factory.mktemp("run") / "run"
        yield fg.run(**keys, **sizes, strategy="boosting", out=out, progress=False)


def test_columns_of_payments_have_the_names_of_the_recipe(payments):
    predictor = load_predictor(payments.path, 0)
    names = predictor.column_names
    task = predictor.outputs(predictor.client_graph)[1]
    assert len(names) == task.columns().shape[1]
    shares = importance(predictor)
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    column = names.index(next(iter(shares)))
    assert (predictor.forest["feature"] == column).any()
    assert "column" not in next(iter(shares)) or not predictor.input_spec.schema


def test_accounts_read_the_largest_columns_of_their_payments(tmp_path):
    """The model, its export and a predictor read the same columns, also where a far end's bank shares one."""
    sizes = {"dataset.accounts": 200, "dataset.background": 1500, "dataset.per_kind": 6, "dataset.days": 30}
    keys = {"task": "nodes", "dataset": "payments", "dataset.recipe": "payments", "num_clients": 2, "rounds": 1}
    keys |= {"strategy.edge_columns": True, "partition.share": ["edges.n_in_2d"], "strategy.min_data_in_leaf": 5}
    ran = fg.run(**keys, **sizes, strategy="boosting", out=tmp_path / "run", progress=False)
    predictor = load_predictor(ran.path, 0)
    shares = importance(predictor)
    assert any(name.startswith("largest of edges") for name in shares)
    nodes, edges = predictor.feature_names(predictor.client_graph)
    assert len(predictor.column_names) == len(nodes) + 2 * len(edges)
    assert cli.main(["export", str(ran.path), "--out", str(tmp_path / "trees")]) == 0
    probabilities = load_export(tmp_path / "trees").predict(predictor.client_graph).probabilities
    np.testing.assert_allclose(probabilities, predictor.predict(predictor.client_graph).probabilities, rtol=1e-12)
    assert not unread_edge_features(ran.config)
    more = {**keys, **sizes, "strategy": "boosting", "strategy.neighbours": True, "progress": False}
    for key in ("init", "evaluate"):  # the means would stand at the places of the largest columns
        with pytest.raises(FedGraphError, match="trees that read columns, edge_columns, but those of this run"):
            fg.run(**more, **{key: str(ran.path)}, out=tmp_path / key)


def test_columns_of_nodes_that_look_ahead_are_not_read(payments):
    """They count all payments of the training time, also those after a training payment."""
    predictor = load_predictor(payments.path, 0)
    count = predictor.client_graph.own_columns["nodes"]
    task = predictor.outputs(predictor.client_graph)[1]
    columns, features = task.columns(), predictor.client_graph.num_features
    assert count > 0
    for end in (columns[:, -features:], columns[:, -2 * features : -features]):
        known = end[~end.isnan().any(1)]
        assert not known[:, features - count :].any()


def test_the_report_has_the_gain_of_columns(payments):
    text = payments.report().read_text()
    assert "gain most by" in text
    assert next(iter(importance(load_predictor(payments.path, 0)))) in text


def test_some_items_are_scored_without_the_others(payments, tmp_path, monkeypatch):
    """Their logits and the threshold are those of all, and trees meet no other rows, also after an export."""
    predictor = load_predictor(payments.path, 0)
    every, task = predictor.outputs(predictor.client_graph)
    threshold = metrics.threshold(every, task.y, task.masks["val"])
    assert cli.main(["export", str(payments.path), "--client", "0", "--out", str(tmp_path / "trees")]) == 0
    met, whole = [], forest.leaves

    def counted(trees, x):
        met.append(len(x))
        return whole(trees, x)

    monkeypatch.setattr(forest, "leaves", counted)
    assert load_predictor(payments.path, 0).threshold == threshold
    assert sum(met) == int(task.masks["val"].sum())
    for model in (predictor, load_export(tmp_path / "trees")):
        met.clear()
        some, of = model.outputs(predictor.client_graph, lambda task: torch.tensor([5, 3, 3]))
        assert torch.equal(some, every[[5, 3, 3]])
        assert torch.equal(of.y, task.y)
        assert sum(met) == 3
