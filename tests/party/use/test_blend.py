"""`fedgraph-flwr blend`: weights of runs by validation items."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.party.use.blend import Weights, blend, fit, load_blend
from fedgraph_flwr.party.use.export import load_export
from fedgraph_flwr.party.use.predict import load_node, load_predictor
from fedgraph_flwr.party.use.worth import _cost
from fedgraph_flwr.store.earlier import headline_model

RNG = np.random.default_rng(0)
Y = (RNG.random(400) < 0.3).astype(np.int64)
GOOD = np.stack([np.zeros(400), 2.0 * Y - 1 + RNG.normal(size=400)], axis=1)
NOISE = np.stack([np.zeros(400), 3 * RNG.normal(size=400)], axis=1)


def cross_entropy(weights: Weights, logits: list[np.ndarray], y: np.ndarray) -> float:
    outputs = torch.from_numpy(weights.apply(logits))
    return float(torch.nn.functional.cross_entropy(outputs, torch.from_numpy(y)))


def test_noise_gets_no_weight_and_scale_is_calibrated():
    weights = fit([GOOD, NOISE], Y)
    assert weights.runs[1] < 0.05
    for scale in (0.1, 1.0, 20.0):
        assert cross_entropy(fit([scale * GOOD, NOISE], Y), [scale * GOOD, NOISE], Y) < 0.5


def test_weights_are_those_of_logistic_regression():
    """Of one useful run, up to the small pull; against scikit-learn."""
    regression = LogisticRegression(C=1e6).fit(GOOD[:, 1:], Y)
    p = regression.predict_proba(GOOD[:, 1:])[:, 1]
    outputs = fit([GOOD, GOOD], Y).apply([GOOD, GOOD])
    mine = 1 / (1 + np.exp(outputs[:, 0] - outputs[:, 1]))
    np.testing.assert_allclose(mine, p, atol=0.02)


def test_no_weights_on_a_grid_are_better():
    """Brute force: the cross entropy and the pull, each pair of weights with its best bias by Newton's method."""
    third = np.stack([np.zeros(400), 1.5 * Y + RNG.normal(size=400)], axis=1)
    given, logs = [GOOD, third], [one[:, 1] for one in (GOOD, third)]

    def loss(w: np.ndarray, b: np.ndarray) -> np.ndarray:
        z = w @ logs + b[:, None]
        pull = ((w - 0.5) ** 2).sum(axis=1) + b**2 / 2  # of the biases -b/2 and b/2
        return (np.logaddexp(0, z) - Y * z).sum(axis=1) + pull / 2

    grid = np.stack(np.meshgrid(*[np.linspace(0, 3, 31)] * 2), axis=-1).reshape(-1, 2)
    b = np.zeros(len(grid))
    for _ in range(12):
        p = 1 / (1 + np.exp(-(grid @ logs + b[:, None])))
        b -= ((p - Y).sum(axis=1) + b / 2) / ((p * (1 - p)).sum(axis=1) + 0.5)
    weights = fit(given, Y)
    assert weights.bias.sum() == pytest.approx(0, abs=1e-6)
    best = loss(weights.runs[None], np.diff(weights.bias))[0]
    values = loss(grid, b)
    assert best <= values.min() + 1e-6
    np.testing.assert_allclose(grid[values.argmin()], weights.runs, atol=0.11)


def drawn(rng: np.random.Generator, positives: int, count: int = 400) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the logits of two runs, as good as each other with errors of their own, and the classes of items."""
    y = (np.arange(count) < positives).astype(np.int64)
    return [np.stack([np.zeros(count), 2.5 * y - 4 + rng.normal(size=count)], axis=1) for _ in range(2)], y


def test_a_blend_with_few_positives_is_not_below_a_run():
    """Three parties with 6 validation positives each: their common weights beat weights of each, and both runs."""
    rng, scores = np.random.default_rng(0), []
    for _ in range(12):
        val, test = [drawn(rng, 6) for _ in range(3)], [drawn(rng, 100, 1000) for _ in range(3)]
        fits = [fit(*part) for part in val]
        pooled = [np.concatenate(part) for part in zip(*(logits for logits, _ in val), strict=True)]
        common = fit(pooled, np.concatenate([y for _, y in val]))
        for part, (logits, y) in zip(fits, test, strict=True):
            mixed = [*logits, common.apply(logits), part.apply(logits)]
            scores.append([average_precision_score(y, one[:, 1] - one[:, 0]) for one in mixed])
    first, second, common_score, own_score = np.mean(scores, axis=0)
    assert common_score > max(first, second) + 0.05
    assert common_score > own_score


@pytest.mark.parametrize("y", [np.zeros(0, np.int64), np.ones(5, np.int64)])
def test_without_two_classes_runs_weigh_alike(y):
    weights = fit([GOOD[: len(y)], NOISE[: len(y)]], y)
    assert weights.runs.tolist() == [0.5, 0.5]
    assert not weights.bias.any()


@pytest.fixture
def runs(run):
    first = run("rounds=15", "checkpoint_every=0", sizes=(60, 60, 60))
    words = ["strategy=boosting", "strategy.min_data_in_leaf=4", "strategy.trees=20", f"graph={first.cfg.graph}"]
    return first, run(*words)


def test_a_blend_is_a_run_folder_with_scores_of_common_weights(runs, tmp_path, monkeypatch, capsys):
    out = tmp_path / "below" / "blend"
    assert main(["blend", *(os.path.relpath(run.out) for run in runs), "--out", str(out)]) == 0
    monkeypatch.chdir(tmp_path)  # where the relative paths name nothing
    assert "headline: test_accuracy at best_val" in capsys.readouterr().out
    held = json.loads((out / "blend.json").read_text())
    summary = json.loads((out / "summary.json").read_text())
    scores, val, y = [], [], []
    weights = Weights(*(np.array(held["weights"][key]) for key in ("runs", "bias")))
    assert weights.runs.min() >= 0
    for party in range(3):
        both = [load_predictor(one.out, party) for one in runs]
        logits = [one.logits(one.client_graph).numpy() for one in both]
        graph, mixed = both[0].client_graph, weights.apply(logits)
        val.append([run_logits[graph.val_mask.numpy()] for run_logits in logits])
        y.append(graph.y.numpy()[graph.val_mask.numpy()])
        chosen = graph.test_mask.numpy()
        scores.append(accuracy_score(graph.y.numpy()[chosen], mixed[chosen].argmax(1)))
    assert summary["test_accuracy"] == pytest.approx(np.mean(scores))
    fitted = fit([np.concatenate(run_logits) for run_logits in zip(*val, strict=True)], np.concatenate(y))
    np.testing.assert_allclose(fitted.runs, weights.runs, rtol=1e-6)
    parts, both = (list(_cost(places).values())[:3] for places in ([Path(one.out) for one in runs], [out]))
    assert both == pytest.approx([2 * mean for mean in parts]), "a blend costs what its two runs cost"
    assert len(fg.compare([out, runs[0].out, runs[1].out])) == 3
    again = fg.blend([fg.load_run(runs[0].out), runs[1].out], tmp_path / "again")
    assert again.summary["test_accuracy"] == summary["test_accuracy"]
    forged = tmp_path / "again" / "summary.json"
    forged.write_text(json.dumps(json.loads(forged.read_text()) | {"blend": [str(forged.parent), 7]}))
    assert np.isnan(list(_cost([forged.parent]).values())).all(), "a summary that names itself, and no folder"
    assert fg.Run(out).report().stat().st_size > 1000
    with pytest.raises(FedGraphError, match="is a blend of other runs and holds no model"):
        load_predictor(out, 0)
    for key in ("init", "evaluate"):
        with pytest.raises(
            FedGraphError, match=rf"{key}={out} is a blend of other runs and holds no model: pass one of"
        ):
            headline_model(out, key)
    with pytest.raises(FedGraphError, match="holds a finished run"):
        blend([one.out for one in runs], out)
    for path in Path(runs[1].out).glob("model_*.safetensors"):  # as of a sweep without `--keep all`
        path.unlink()
    with pytest.raises(
        FedGraphError, match=r"has no model_.*safetensors: run it again; a sweep keeps models with --keep all"
    ):
        load_blend(out)


def test_a_blend_predicts_and_is_exported_as_a_model(runs, tmp_path, capsys):
    out, paths = tmp_path / "blend", [str(one.out) for one in runs]
    assert main(["blend", *paths, "--out", str(out)]) == 0
    assert main(["predict", str(out), "--client", "1", "--out", str(tmp_path / "p.csv")]) == 0
    held = json.loads((out / "blend.json").read_text())
    weights = Weights(*(np.array(held["weights"][key]) for key in ("runs", "bias")))
    members = [load_predictor(one.out, 1) for one in runs]
    logits = weights.apply([one.logits(one.client_graph).numpy() for one in members])
    expected = np.exp(logits - logits.max(1, keepdims=True))
    predictions = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(predictions.filter(like="p_"), expected / expected.sum(1, keepdims=True), atol=1e-9)
    assert main(["export", str(out), "--client", "1", "--out", str(tmp_path / "exported")]) == 0
    card = (tmp_path / "exported/MODEL_CARD.md").read_text()
    headline = json.loads((out / "summary.json").read_text())
    assert f"| 1 | [fedavg](part_0/MODEL_CARD.md) | {weights.runs[0]:.4f} |" in card
    assert f"{headline['headline']} = {headline['test_accuracy']:.4f}" in card
    assert json.loads((tmp_path / "exported/metrics.json").read_text())["clients"]["test-accuracy"]
    assert main(["alerts", str(out), "--client", "1", "--outcomes", "decided.csv", "--budget", "3"]) == 2
    assert "--outcomes compares decisions with the stored threshold" in capsys.readouterr().err
    again = load_export(tmp_path / "exported")
    np.testing.assert_allclose(again.logits(members[0].client_graph), logits, atol=1e-4)
    assert again.threshold == load_blend(out, 1).threshold
    plain: dict[str, Any] = {"__file__": str(tmp_path / "exported/model.py")}
    exec((tmp_path / "exported/model.py").read_text(), plain)
    np.testing.assert_allclose(
        plain["blend"]([one.logits(one.client_graph).numpy() for one in members]), logits, atol=1e-9
    )
    first = runs[0]
    assert main(["run", f"config={first.out}/config.yaml", f"out={first.out}", "overwrite=true", "rounds=2"]) == 0
    capsys.readouterr()
    assert main(["predict", str(out), "--client", "1"]) == 2
    assert f"blends {first.out}, which holds other models now: blend the runs again" in capsys.readouterr().err
    (out / "blend.json").write_text(json.dumps(held | {"weights": {"runs": [1.0, float("nan")], "bias": [0, 0, 0]}}))
    assert main(["predict", str(out), "--client", "1"]) == 2
    assert "blend.json is damaged (expected 2 finite weights" in capsys.readouterr().err


def test_what_cannot_be_blended_is_named(runs, run, tmp_path, monkeypatch):
    other = run("rounds=1", sizes=(60, 60, 60), seed=5)
    with pytest.raises(FedGraphError, match="score other items: pass runs"):
        blend([runs[0].out, other.out], tmp_path / "no")
    read = load_predictor(runs[0].out, 0)
    of_fleet = replace(read, cfg=replace(read.cfg, engine="banks"))
    with monkeypatch.context() as patched:
        patched.setattr("fedgraph_flwr.party.use.blend.load_predictor", lambda *_: of_fleet)
        with pytest.raises(
            FedGraphError, match=r"is a run of the fleet 'banks'.* blend STATE STATE --out DIR` at each"
        ):
            blend([runs[0].out, other.out], tmp_path / "no")
    with pytest.raises(FedGraphError, match="at least two runs, got 1"):
        blend([runs[0].out], tmp_path / "no")
    numbers = run("task=nodes-regression", "dataset=planted-regression", "rounds=1", "dataset.nodes=60")
    with pytest.raises(FedGraphError, match="weighs logits of classes"):
        blend([numbers.out, numbers.out], tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.fixture
def states(tmp_path, monkeypatch):
    """Folders of one node's states after a network and after boosting."""
    paths = [tmp_path / f"a_{kind}.csv" for kind in ("nodes", "edges")]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    label = np.where(x[:, 0] + rng.normal(size=200) > 0, "yes", "no")
    rows = [f"n{i},{a:.3f},{b:.3f},{y}" for i, ((a, b), y) in enumerate(zip(x, label, strict=True))]
    paths[0].write_text("\n".join(["id,a,b,label", *rows]) + "\n")
    ends = rng.integers(200, size=(500, 2))
    paths[1].write_text("\n".join(["source,target", *(f"n{s},n{t}" for s, t in ends)]) + "\n")
    file = tmp_path / "parts" / "client_0000.safetensors"
    tables = [
        "--nodes",
        str(paths[0]),
        "--edges",
        str(paths[1]),
        "--classes",
        "no,yes",
        "--client",
        "0",
        "--num-clients",
        "1",
    ]
    assert main(["import", *tables, "--out", str(file)]) == 0
    (policy := tmp_path / "policy.yaml").write_text("min_nodes: 0\n")
    folders = []
    for name in ("network", "trees"):
        state = tmp_path / name
        config = {"graph": str(file), "state": str(state), "policy": str(policy)}

        def call(self, message, config=config):
            node = message.metadata.dst_node_id
            self.contexts[node].node_config = config
            node_clients.forget(self.run_id)
            return self.app(message, self.contexts[node])

        monkeypatch.setattr(InlineGrid, "_call", call)
        method = (
            ["rounds=5", "model.hidden=8"]
            if name == "network"
            else ["strategy=boosting", "strategy.min_data_in_leaf=5"]
        )
        cfg = with_folder(
            compose([f"graph={file.parent}", "num_clients=1", *method, f"out={tmp_path / f'run_{name}'}"])
        )
        run_inline(cfg)
        folders.append(state)
    return folders


def test_a_party_blends_the_models_of_its_own_state(states, tmp_path, capsys):
    out = tmp_path / "blend"
    assert main(["blend", *map(str, states), "--out", str(out)]) == 0
    assert "test_accuracy: " in capsys.readouterr().out
    weights = json.loads((out / "blend.json").read_text())["weights"]
    both = [load_node(state) for state in states]
    logits = [one.items(one.client_graph)[0].numpy() for one in both]
    mixed = Weights(np.array(weights["runs"]), np.array(weights["bias"])).apply(logits)
    table = pd.read_csv(out / "predictions.csv")
    assert table["id"].tolist() == [f"n{i}" for i in range(200)]
    np.testing.assert_allclose(table["p_yes"], torch.from_numpy(mixed).softmax(1)[:, 1], rtol=1e-9)
    later = next(path for path in states[1].glob("*/client_0000") if (path / "model_last.safetensors").is_file())
    shutil.copytree(later, states[0] / "later" / later.name, copy_function=shutil.copyfile)
    assert load_node(states[0]).cfg.strategy.name == "boosting", "the node stored another model"
    blended = load_blend(out)
    np.testing.assert_array_equal(blended.items(blended.client_graph)[0].numpy(), mixed)
    for args, match in (
        ([str(states[0]), "--out", str(tmp_path / "no")], "at least two runs, got 1"),
        (
            [str(tmp_path / "run_network"), *map(str, states), "--out", str(tmp_path / "no")],
            "run folders or state folders of a party, not both",
        ),
        ([*map(str, states), "--out", str(out)], "exists: pass a new folder"),
        ([str(out), str(states[0]), "--out", str(tmp_path / "no")], "is a blend of other runs and holds no model"),
    ):
        assert main(["blend", *args]) == 2
        assert match in capsys.readouterr().err
