"""Exported models of every task predict what `predict` does, and so does their model.py without this package's tasks."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.use.export import export, load_export
from fedgraph_flwr.party.use.predict import Predictor, load_predictor
from fedgraph_flwr.party.use.prediction_input import InputSpec

PAYMENTS = ["task=edges", "dataset=payments", "dataset.accounts=60", "dataset.background=200", "dataset.per_kind=1"]
CYCLES, COUNTS = (["dataset=cycles", "dataset.graphs=30"], ["dataset=planted-counts", "dataset.graphs=30"])
CSBM = ["dataset=csbm", "dataset.nodes=60"]
RUNS = {
    "edges": PAYMENTS,
    "edges gatv2": [*PAYMENTS, "model=gatv2"],
    "edges sage": [*PAYMENTS, "model=sage"],
    "links": ["task=links", *CSBM, "model=gcn"],
    "links gine": ["task=links", *CSBM, "model=gine"],
    "graphs": ["task=graphs", *CYCLES, "task.pool=mean"],
    "graphs gin": ["task=graphs", *CYCLES, "model=gin", "model.norm=layer"],
    "graphs pna": ["task=graphs", *CYCLES, "model=pna", "task.pool=max"],
    "graphs-regression": ["task=graphs-regression", *COUNTS],
    "graphs-regression gin": ["task=graphs-regression", *COUNTS, "model=gin"],
    "nodes-regression": ["task=nodes-regression", "dataset=planted-regression", "dataset.nodes=60"],
    "nodes-multilabel": ["task=nodes-multilabel", "dataset=planted-multilabel", "dataset.nodes=60"],
    "nodes gin": [*CSBM, "model=gin", "model.norm=batch"],
    "nodes gcn": [*CSBM, "model=gcn", "model.norm=standardize"],
    "nodes transformer": [*CSBM, "model=transformer"],
}


def finished(name: str, folder: Path) -> Path:
    overrides = ["num_clients=2", "rounds=1", "model.hidden=8", f"out={folder / 'run'}", *RUNS[name]]
    assert cli.main(["run", *overrides, "--quiet", "--no-report"]) == 0
    return folder / "run"


def predicted(predictor, graph):
    """What a model predicts: logits, scores of pairs, or numbers."""
    if predictor.cfg.task.name == "links":
        return predictor.predict_pairs(graph, [[0, 1], [3, 2], [5, 5]], range(graph.num_nodes)).scores
    predictions = predictor.predict(graph)
    return predictions.values if predictor.task.capabilities.targets else predictions.logits.numpy()


def alone(folder: Path, graph: Graph, task: str) -> np.ndarray:
    """What model.py makes of a graph's tensors."""
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    attr = [graph.edge_attr if graph.num_edge_features else None]
    more = {"links": [*attr, torch.tensor([[0, 3, 5], [1, 2, 5]])], "graphs": [*attr, graph.graph_id], "edges": attr}
    given = more.get(task.removesuffix("-regression"), []) if task != "nodes-regression" else []
    with torch.no_grad():
        return module.load()(graph.x, graph.edge_index, *given).numpy()


OTHER_MODELS = [pytest.param(name, marks=pytest.mark.slow) for name in RUNS if " " in name and name != "graphs gin"]
"""One model per task is in the fast part."""


@pytest.mark.parametrize("name", [name for name in RUNS if " " not in name or name == "graphs gin"] + OTHER_MODELS)
def test_an_exported_folder_predicts_as_the_run(name, tmp_path):
    run = finished(name, tmp_path)
    predictor = load_predictor(run, 1)
    made = load_export(export(predictor, tmp_path / "out", run))
    stored_graph, task = predictor.client_graph, predictor.cfg.task.name
    expected = predicted(predictor, stored_graph)
    np.testing.assert_allclose(predicted(made, stored_graph), expected, rtol=1e-5, atol=1e-5)
    assert made.threshold == predictor.threshold
    ids = np.unique(stored_graph.graph_id, return_inverse=True)[1] if stored_graph.graph_id.numel() else []
    held = {key: getattr(stored_graph, key) for key in ("x", "edge_index", "y", "num_classes", "edge_attr")}
    masks = {key: torch.zeros_like(stored_graph.train_mask) for key in ("train_mask", "val_mask", "test_mask")}
    graph = Graph(**held, **masks, graph_id=torch.as_tensor(ids, dtype=torch.int64))
    outputs = alone(tmp_path / "out", graph, task)
    probabilities = 1 / (1 + np.exp(-outputs)) if task.endswith("multilabel") else outputs
    np.testing.assert_allclose(probabilities, predicted(predictor, graph), rtol=1e-5, atol=1e-5)
    assert f"task={task}" in (tmp_path / "out/MODEL_CARD.md").read_text() or task == "nodes"
    index = json.loads((tmp_path / "out/export.json").read_text())
    for wrong in ({"task": 5}, {"task": {"name": "all"}}, {"readout": ["os", {}]}, {"target_stats": "x"}):
        (tmp_path / "out/export.json").write_text(json.dumps(index | wrong))
        with pytest.raises(FedGraphError):
            load_export(tmp_path / "out")


def test_models_of_triples_are_refused():
    predictor = Predictor(compose(["task=triples"]), None, {}, {}, 0, InputSpec(("0", "1"), 3))
    with pytest.raises(FedGraphError, match="trained for task=triples: its model predicts nothing after the run"):
        predictor.plain()


@pytest.mark.slow
def test_tables_of_payments_become_what_the_client_reads(tmp_path):
    """Columns of edges by preprocess.py alone; with counts in windows, only this package reads the tables."""
    rng = np.random.default_rng(0)
    pd.DataFrame({"id": range(20), "age": np.arange(20) * 3}).to_csv(tmp_path / "accounts.csv", index=False)
    rows = {
        "source": rng.integers(20, size=80),
        "target": rng.integers(20, size=80),
        "at": rng.integers(10**6, size=80),
    }
    table = pd.DataFrame(rows | {"amount": rng.lognormal(3, 1, 80), "kind": rng.choice(["a", "b"], 80)})
    table.assign(fraud=np.where(table["amount"] > 20, "yes", "no")).to_csv(tmp_path / "payments.csv", index=False)
    table[:30].to_csv(tmp_path / "new.csv", index=False)
    given = ["--nodes", str(tmp_path / "accounts.csv"), "--edges"]
    for name, args in {"plain": [], "counted": ["windows=2"]}.items():
        parts, run, out = tmp_path / name / "parts", str(tmp_path / name / "run"), tmp_path / name / "out"
        roles = [
            "columns.edge_label=fraud",
            "edge_classes=no,yes",
            "edge_columns=amount,kind",
            "columns.time=at",
            "inputs=amount",
            *args,
        ]
        place = ["--client", "0", "--num-clients", "1", "--out", str(parts / "client_0000.safetensors")]
        assert cli.main(["import", *given, str(tmp_path / "payments.csv"), *roles, *place]) == 0
        keys = ["task=edges", f"graph={parts}", "rounds=1", "model.hidden=8", f"out={run}", "split.kind=ratio"]
        assert cli.main(["run", *keys, "--quiet", "--no-report"]) == 0
        assert cli.main(["export", run, "--client", "0", "--out", str(out)]) == 0
        for source, made in ((run, "run.csv"), (str(out), "out.csv")):
            args = ["predict", source, *given, str(tmp_path / "new.csv"), "--out", str(tmp_path / name / made)]
            assert cli.main([*args, *(["--client", "0"] if source == run else [])]) == 0
        expected, predictions = (pd.read_csv(tmp_path / name / made) for made in ("run.csv", "out.csv"))
        pd.testing.assert_frame_equal(predictions, expected, atol=1e-6)
    assert not (tmp_path / "counted/out/preprocess.py").exists()
    out, expected = tmp_path / "plain/out", pd.read_csv(tmp_path / "plain/run.csv")
    spec = importlib.util.spec_from_file_location("preprocess", out / "preprocess.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, edge_index, edge_attr, _ = (value for value in module.read(tmp_path / "accounts.csv", tmp_path / "new.csv"))
    graph = Graph(
        x=torch.as_tensor(x), edge_index=torch.as_tensor(edge_index), edge_attr=torch.as_tensor(edge_attr),
        y=torch.zeros(20, dtype=torch.int64), num_classes=2,
        **dict.fromkeys(("train_mask", "val_mask", "test_mask"), torch.zeros(20, dtype=torch.bool)),
    )  # fmt: skip
    whole = torch.from_numpy(alone(out, graph, "edges")).softmax(1)[:, 1]
    assert not np.allclose(whole, expected["p_yes"], atol=1e-3), "it reads later days"
    model = importlib.util.spec_from_file_location("exported_edges", out / "model.py")
    network = importlib.util.module_from_spec(model)
    model.loader.exec_module(network)
    days = torch.as_tensor(module.steps(tmp_path / "new.csv"))
    assert days.tolist() == (table["at"][:30] // 86_400).tolist()
    for texts, error in (
        (["2026-01-01T10:00:00+02:00", "2026-01-01T10:00:00"], "row 2 has no time zone"),
        (["86400", "1767225600000"], "row 2: expected seconds below 253,402,300,800: divide milliseconds"),
    ):
        pd.DataFrame({"at": texts}).to_csv(tmp_path / "odd.csv", index=False)
        with pytest.raises(ValueError, match=error):
            module.steps(tmp_path / "odd.csv")
    with torch.no_grad():
        logits = network.by_step(network.load(), graph.x, graph.edge_index, graph.edge_attr, days)
    np.testing.assert_allclose(logits.softmax(1)[:, 1], expected["p_yes"], rtol=0, atol=1e-6)
