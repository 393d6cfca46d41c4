"""`fedgraph-flwr blend`: weights of runs by each party's validation items."""

import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.party.use.blend import Weights, blend, fit
from fedgraph_flwr.party.use.predict import load_predictor

RNG = np.random.default_rng(0)
Y = (RNG.random(400) < 0.3).astype(np.int64)
GOOD = np.stack([np.zeros(400), 2.0 * Y - 1 + RNG.normal(size=400)], axis=1)
NOISE = np.stack([np.zeros(400), 3 * RNG.normal(size=400)], axis=1)


def cross_entropy(weights: Weights, logits: list[np.ndarray], y: np.ndarray) -> float:
    found = torch.from_numpy(weights.apply(logits))
    return float(torch.nn.functional.cross_entropy(found, torch.from_numpy(y)))


def test_noise_gets_no_weight_and_scale_is_calibrated():
    found = fit([GOOD, NOISE], Y)
    assert found.runs[1] < 0.05
    for scale in (0.1, 1.0, 20.0):
        assert cross_entropy(fit([scale * GOOD, NOISE], Y), [scale * GOOD, NOISE], Y) < 0.5


def test_weights_are_those_of_logistic_regression():
    """Of one useful run, up to the small pull; against scikit-learn."""
    own = LogisticRegression(C=1e6).fit(GOOD[:, 1:], Y)
    p = own.predict_proba(GOOD[:, 1:])[:, 1]
    found = fit([GOOD, GOOD], Y).apply([GOOD, GOOD])
    mine = 1 / (1 + np.exp(found[:, 0] - found[:, 1]))
    np.testing.assert_allclose(mine, p, atol=0.02)


def test_weights_are_a_minimum():
    third = np.stack([np.zeros(400), 1.5 * Y + RNG.normal(size=400)], axis=1)
    found, given, count = fit([GOOD, third], Y), [GOOD, third], 400

    def loss(values: np.ndarray) -> float:
        weights = Weights(values[:2], values[2:])
        pull = ((values[:2] - 0.5) ** 2).sum() + (values[2:] ** 2).sum()
        return cross_entropy(weights, given, Y) + pull / (2 * count)

    at = np.concatenate([found.runs, found.bias])
    other = minimize(loss, at + 0.1, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-8, "fatol": 1e-12})
    assert loss(at) <= other.fun + 1e-9


@pytest.mark.parametrize("y", [np.zeros(0, np.int64), np.ones(5, np.int64)])
def test_without_two_classes_runs_weigh_alike(y):
    found = fit([GOOD[: len(y)], NOISE[: len(y)]], y)
    assert found.runs.tolist() == [0.5, 0.5]
    assert not found.bias.any()


@pytest.fixture
def runs(run):
    first = run("rounds=15", "checkpoint_every=0", sizes=(60, 60, 60))
    words = ["strategy=boosting", "strategy.min_data_in_leaf=4", "strategy.trees=20", f"graph={first.cfg.graph}"]
    return first, run(*words)


def test_a_blend_is_a_run_folder_with_scores_of_each_partys_weights(runs, tmp_path, capsys):
    out = tmp_path / "blend"
    assert main(["blend", str(runs[0].out), str(runs[1].out), "--out", str(out)]) == 0
    assert "headline: test_accuracy at best_val" in capsys.readouterr().out
    held = json.loads((out / "blend.json").read_text())
    summary = json.loads((out / "summary.json").read_text())
    scores = []
    for party in range(3):
        both = [load_predictor(one.out, party) for one in runs]
        logits = [one.logits(one.own).numpy() for one in both]
        graph, own = both[0].own, held["weights"][str(party)]
        mixed = Weights(np.array(own["runs"]), np.array(own["bias"])).apply(logits)
        assert min(own["runs"]) >= 0
        chosen = graph.test_mask.numpy()
        scores.append(metrics.accuracy(mixed[chosen], graph.y.numpy()[chosen]))
    assert summary["test_accuracy"] == pytest.approx(np.mean(scores))
    assert len(fg.compare([out, runs[0].out, runs[1].out])) == 3
    assert fg.Run(out).report().stat().st_size > 1000
    with pytest.raises(FedGraphError, match="is a blend of other runs and holds no model"):
        load_predictor(out, 0)
    with pytest.raises(FedGraphError, match="holds a finished run"):
        blend([one.out for one in runs], out)


def test_what_cannot_be_blended_is_named(runs, run, tmp_path):
    other = run("rounds=1", sizes=(60, 60, 60), seed=5)
    with pytest.raises(FedGraphError, match="score other items of client 0"):
        blend([runs[0].out, other.out], tmp_path / "no")
    with pytest.raises(FedGraphError, match="at least two runs, got 1"):
        blend([runs[0].out], tmp_path / "no")
    numbers = run("task=nodes-regression", "dataset=planted-regression", "rounds=1", "dataset.nodes=60")
    with pytest.raises(FedGraphError, match="weighs logits of classes"):
        blend([numbers.out, numbers.out], tmp_path / "no")
    assert not (tmp_path / "no").exists()
