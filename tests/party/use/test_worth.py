"""Worth of federation for a party: weighted scores against repeated items, intervals, and the command."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import bootstrap
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.party.use.worth import (
    METRICS,
    clipped,
    clusters_of,
    effective,
    interval,
    measure,
    model_name,
    scored,
)
from tests.nodes import party_nodes


def items(seed=0, groups=15, classes=2):
    """Clusters, classes and logits with ties."""
    rng = np.random.default_rng(seed)
    cluster = np.sort(rng.integers(groups, size=120))
    cluster = np.unique(cluster, return_inverse=True)[1]
    y = rng.integers(classes, size=120)
    logits = np.round(rng.normal(size=(120, classes)) + np.eye(classes)[y], 1)
    return cluster, y, logits


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_a_bootstrap_sample_has_the_score_of_its_repeated_items(metric, classes):
    """Brute force: each item as often as its cluster was drawn, scored by the package's and by scikit-learn's functions."""
    if metric == metrics.AT_THRESHOLD and classes > 2:
        return
    cluster, y, logits = items(classes=classes)
    groups = cluster.max() + 1
    draws = np.random.default_rng(1).multinomial(groups, np.full(groups, 1 / groups), 6).astype(np.float32)
    scores = measure(metric, logits, y, cluster, 0.3)(draws)

    def plain(logits, y):
        items = metrics.Scored(torch.from_numpy(y), {"test": torch.ones(len(y), dtype=torch.bool)})
        return items.score(torch.from_numpy(logits), (metric,))[f"test-{metric}"][0]

    for times, actual in zip(draws, scores, strict=True):
        rows = np.repeat(np.arange(len(y)), times[cluster].astype(int))
        margin = logits[rows, 1] - logits[rows, 0]
        if metric == metrics.AT_THRESHOLD:
            assert actual == pytest.approx(f1_score(y[rows], margin >= 0.3))
            continue
        assert actual == pytest.approx(plain(logits[rows], y[rows]), rel=1e-5)
        if classes == 2 and metric in ("auc", "average_precision"):
            other = roc_auc_score if metric == "auc" else average_precision_score
            assert actual == pytest.approx(other(y[rows], margin), rel=1e-5)


def test_the_interval_of_many_items_is_that_of_scipy():
    """Of single items, where the correction for few clusters vanishes."""
    rng = np.random.default_rng(0)
    y, first = rng.integers(2, size=(2, 600))
    second = np.where(rng.random(600) < 0.7, y, 1 - y)
    runs = [[measure("accuracy", np.eye(2)[guess], y, np.arange(600))] for guess in (first, second)]
    value, low, high = scored(runs, 600, 600, 600)[1][1]
    paired = ((second == y).astype(float) - (first == y),)
    expected = bootstrap(paired, np.mean, n_resamples=4000, method="percentile", rng=rng).confidence_interval
    assert value == pytest.approx(np.mean(paired[0]))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.006)


def test_identical_models_differ_by_nothing_and_few_clusters_widen():
    cluster, y, logits = items()
    same = measure("auc", logits, y, cluster)
    size = effective("auc", y, cluster)
    assert scored([[same], [same]], len(y), cluster.max() + 1, size, 50)[1][1] == (0, 0, 0)
    deviation = np.random.default_rng(0).normal(size=20_000)
    widths = {groups: np.ptp(interval(0.0, deviation, groups)) for groups in (5, 20, 1e9)}
    assert widths[1e9] == pytest.approx(2 * 1.96, rel=0.03)
    assert widths[20] == pytest.approx(2 * 2.093 * (20 / 19) ** 0.5, rel=0.05)  # t of 19 degrees of freedom
    seeds = np.array([-1.0, 0.0, 1.0])
    assert np.ptp(interval(0.0, deviation, 1e9, seeds)) > 1.1 * widths[1e9]


def test_days_that_are_alike_count_as_days():
    """100 items of each of 20 days with the same answer: the interval is that of 20 items, not of 2,000."""
    y = np.tile([0, 1], 1000)
    right = np.repeat(np.random.default_rng(0).random(20) < 0.6, 100)
    logits = np.eye(2)[np.where(right, y, 1 - y)]
    by_day, by_item = (
        scored([[measure("accuracy", logits, y, of)]], 2000, of.max() + 1, of.max() + 1, 800)[0][0]
        for of in (np.repeat(np.arange(20), 100), np.arange(2000))
    )
    assert by_day[2] - by_day[1] > 7 * (by_item[2] - by_item[1])
    sizes = np.array([1, 1, 1, 1, 96])
    assert effective("accuracy", np.zeros(100, int), np.repeat(np.arange(5), sizes)) == pytest.approx(
        100**2 / (4 + 96**2)
    )


SMALL = {"dataset.accounts": 150, "dataset.background": 1500, "dataset.per_kind": 40, "model.hidden": 8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A local model of two banks' payments, and a federated one of two seeds."""
    root = tmp_path_factory.mktemp("worth")
    keys = {"task": "edges", "dataset": "payments", "num_clients": 2, "rounds": 2, "checkpoint_every": 0, **SMALL}
    for name, method, seed in (("local", "local", 0), ("fedavg", "fedavg", 0), ("fedavg_1", "fedavg", 1)):
        fg.run(strategy=method, seed=seed, progress=False, out=str(root / name), **keys)
    return root


def test_a_party_compares_its_models(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedgraph_flwr.party.use.worth.scored", partial(scored, samples=500))
    out = tmp_path / "worth.csv"
    words = ["worth", runs / "local", runs / "fedavg", "--client", 1, "--clusters", "item", "--out", out]
    assert main(list(map(str, words))) == 0
    text, comparison = capsys.readouterr().out, pd.read_csv(out)
    assert "test items, intervals by" in text
    first = text.splitlines()[0]
    assert first.startswith(("FedAvg ", "For this party FedAvg is not shown to help (not decided): "))
    assert "points to Local (" in first
    assert "; chance " in text
    assert comparison["run"].tolist() == ["Local", "FedAvg"]
    for name, score in zip(("local", "fedavg"), comparison["score"], strict=True):
        run = fg.load_run(runs / name)
        at = run.config.evaluation.headline
        assert score == pytest.approx(run.clients[f"test_{at}"][1], abs=1e-6), "the score of the run's own report"
    last = comparison.iloc[1]
    assert last["difference"] == pytest.approx(comparison["score"][1] - comparison["score"][0])
    assert last["difference_low"] <= last["difference"] <= last["difference_high"]
    assert last["verdict"] in ("better", "worse", "level", "not decided")
    assert last["rounds"] == 2
    assert last["megabytes"] > comparison["megabytes"][0], "scores only"
    table = fg.worth([fg.load_run(runs / "local"), runs / "fedavg"], client=1, clusters="item")
    pd.testing.assert_frame_equal(table, comparison.fillna({"verdict": ""}), check_dtype=False, rtol=1e-6)


def test_a_party_compares_the_models_of_its_own_state(tmp_path, client_files):
    """Without the server and its run folders; the same table."""
    files = client_files((40, 40))
    graphs = sorted(Path(files.partition("=")[2]).glob("*.safetensors"))
    (tmp_path / "policy.yaml").write_text("min_nodes: 0\n")
    keys = {"num_clients": 2, "rounds": 2, "model.hidden": 8, "progress": False}
    with pytest.MonkeyPatch.context() as patch:
        party_nodes(patch, graphs, tmp_path / "policy.yaml", tmp_path)
        for method in ("fedavg", "local"):
            fg.run(files, strategy=method, out=str(tmp_path / "server" / method), **keys)
    runs = [fg.run(files, strategy=method, out=str(tmp_path / method), **keys) for method in ("local", "fedavg")]
    node_table, of_server = fg.worth([tmp_path / "state_1"]), fg.worth(runs, client=1)
    for key in ("run", "score", "low", "high", "difference", "verdict"):
        assert node_table[key].tolist() == of_server[key].tolist(), "as in a simulation of the same files"
    assert node_table["rounds"].isna().all(), "only the server's folder has the cost"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["local"], "two methods or more, got 1"),
        (["local", "fedavg"], "pass --client I"),
        (["local", "fedavg", "--client", "0", "--metric", "loss"], "cannot recompute metric 'loss'"),
        (["local", "fedavg", "--client", "0", "--clusters", "component"], "needs items that are nodes"),
        (["local", "missing", "--client", "0"], "holds no model of a finished run"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(words, says, runs, capsys):
    paths = [str(runs / word) if word in ("local", "fedavg", "missing") else word for word in words]
    assert main(["worth", *paths, *(["--client", "0"] if words == ["local"] else [])]) == 2
    assert says in capsys.readouterr().err


def test_names_tell_own_trees_from_federated_ones_and_intervals_stay_in_range():
    def name(*words: str) -> str:
        forest = {"feature": np.zeros(1)} if "boosting" in words[0] else {}
        return model_name(SimpleNamespace(cfg=compose(list(words)), forest=forest))

    assert [
        name("strategy=boosting", "strategy.shared=[]"),
        name("strategy=boosting"),
        name("strategy=boosting", "strategy.pooled=true"),
        name("strategy=local"),
        name("strategy=fedavg"),
        name("strategy=fedavg", "strategy.shared=[]"),
    ] == ["own trees", "federated trees", "pooled trees", "Local", "FedAvg", "FedAvg, own"]
    assert clipped((0.9, 0.7, 1.2), "auc", 0.0) == (0.9, 0.7, 1.0)
    assert clipped((0.9, -1.3, 1.2), "accuracy", -1.0) == (0.9, -1.0, 1.0)
    assert clipped((0.9, -1.3, 1.2), "rmse", 0.0) == (0.9, -1.3, 1.2)


def test_components_and_items_are_clusters_of_nodes(runs):
    """Ten pairs of nodes are ten components; a connected graph has one, so single items are drawn."""
    import torch

    pairs = torch.arange(20).view(10, 2).T
    task = SimpleNamespace(ITEMS="nodes", graph=SimpleNamespace(edge_index=pairs, num_nodes=20))
    rows = np.arange(20)
    by, of = clusters_of("auto", task, rows)
    assert (by, of.tolist()) == ("component", np.repeat(np.arange(10), 2).tolist())
    task.graph.edge_index = torch.stack([torch.arange(19), torch.arange(1, 20)])
    assert clusters_of("auto", task, rows)[0] == "item"
    assert clusters_of("component", task, rows)[1].max() == 0
    with pytest.raises(FedGraphError, match="needs items with times"):
        clusters_of("day", task, rows)
