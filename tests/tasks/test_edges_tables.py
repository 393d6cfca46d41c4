"""Edges of a party's own tables: import with labels, times and counts, and predictions of new rows by their ids."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.edge_columns import log_counts
from fedgraph_flwr.data.graph import ClientGraph, read_tensors
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.predict import EdgePredictions, load_predictor
from fedgraph_flwr.party.use.prediction_input import new_nodes
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.testing import assert_same_arrays

ROOT = Path(__file__).parents[2]
ROLES = ["columns.time=at", "columns.edge_label=fraud", "columns.edge_id=ref", "edge_columns=amount"]
KNOWN = ["inputs=amount"]  # which alone makes the label


def payments(rows: int, first: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    amount = rng.lognormal(3, 1, rows).round(2)
    return pd.DataFrame(
        {
            "ref": [f"p{first + i}" for i in range(rows)],
            "source": rng.integers(20, size=rows),
            "target": rng.integers(20, size=rows),
            "at": first * 3600 + np.sort(rng.integers(rows * 3600, size=rows)),
            "amount": amount,
            "fraud": np.where(amount > 30, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Tables of a bank without labels of accounts, its client file, and a finished run."""
    folder = tmp_path_factory.mktemp("tables")
    pd.DataFrame({"id": range(20), "age": np.arange(20) * 3}).to_csv(folder / "accounts.csv", index=False)
    payments(200, 0, 0).to_csv(folder / "payments.csv", index=False)
    payments(30, 1000, 1).drop(columns="fraud").to_csv(folder / "new.csv", index=False)
    args = ["import", "--nodes", f"{folder / 'accounts.csv'}", "--edges", f"{folder / 'payments.csv'}", *ROLES]
    args += ["windows=2,0.5", "edge_classes=no,yes", "--split", "temporal", *KNOWN]
    assert (
        main([*args, "--client", "0", "--num-clients", "1", "--out", str(folder / "parts/client_0000.safetensors")])
        == 0
    )
    fg.run(
        task="edges",
        graph=str(folder / "parts"),
        rounds=8,
        out=str(folder / "run"),
        progress=False,
        **{"model.hidden": 16},
    )
    return folder


def test_an_import_keeps_labels_stages_and_counts_of_edges(work):
    graph, table = ClientGraph.load(work / "parts/client_0000.safetensors"), payments(200, 0, 0)
    assert (graph.num_edge_classes, graph.num_edge_features) == (2, 9)
    assert graph.schema["agreed"]["edge_classes"] == ["no", "yes"]
    assert graph.edge_split.bincount().tolist() == pytest.approx([120, 40, 40], abs=2)
    order = graph.edge_time.argsort(stable=True)
    ends = table[["source", "target"]].to_numpy().T
    expected = log_counts(ends, table["at"].to_numpy(), [2 * 86_400, 43_200])
    assert np.allclose(np.sort(graph.edge_attr[:, 1:].numpy(), axis=0), np.sort(expected, axis=0), atol=1e-6)
    assert graph.edge_y[order].tolist() == (table["fraud"] == "yes").astype(int).tolist()


def scored(work: Path, *args: str) -> pd.DataFrame:
    out = work / "scored.csv"
    given = ["--nodes", str(work / "accounts.csv"), "--edges", str(work / "new.csv"), "--out", str(out)]
    assert main(["predict", str(work / "run"), *given, *args]) == 0
    return pd.read_csv(out)


def test_new_payments_are_scored_by_their_ids_in_the_order_of_the_table(work):
    predictions, table = scored(work, "--client", "0"), payments(30, 1000, 1)
    assert predictions["edge"].tolist() == table["ref"].tolist()
    assert predictions[["source", "target"]].to_numpy().tolist() == table[["source", "target"]].to_numpy().tolist()
    assert list(predictions.columns[3:]) == ["p_no", "p_yes", "class"]
    assert predictions["p_yes"][table["fraud"] == "yes"].mean() > predictions["p_yes"][table["fraud"] == "no"].mean()
    table.drop(columns="fraud").iloc[::-1].to_csv(work / "new.csv", index=False)
    turned = scored(work, "--client", "0").iloc[::-1].reset_index(drop=True)
    assert turned["edge"].tolist() == predictions["edge"].tolist()
    assert np.allclose(turned["p_yes"], predictions["p_yes"], atol=1e-5)


def test_trees_score_new_payments_from_tables(work):
    """As they score the stored payments of the same columns; the client file is of an import with windows."""
    keys = {"strategy": "boosting", "strategy.min_data_in_leaf": 5, "strategy.trees": 30}
    fg.run(task="edges", graph=str(work / "parts"), rounds=1, out=str(work / "trees"), progress=False, **keys)
    given = [
        "--nodes",
        str(work / "accounts.csv"),
        "--edges",
        str(work / "payments.csv"),
        "--out",
        str(work / "again.csv"),
    ]
    assert main(["predict", str(work / "trees"), "--client", "0", *given]) == 0
    predictions, predictor = pd.read_csv(work / "again.csv"), load_predictor(work / "trees", 0)
    stored = predictor.predict(predictor.client_graph)
    assert isinstance(stored, EdgePredictions)
    order = predictor.client_graph.edge_time.argsort(stable=True).tolist()
    assert predictions["p_yes"].tolist() == pytest.approx([stored.probabilities[i, 1] for i in order], abs=1e-6)
    assert predictions["edge"].tolist() == payments(200, 0, 0)["ref"].tolist()
    assert predictor.column_names[:2] == ["amount", "edge column 1"]


def test_who_gets_places_instead_of_ids_is_told(work, capsys):
    """Joined to a table by its ids, stored payments have the scores of others."""
    stored = ["predict", str(work / "run"), "--client", "0", "--out", str(work / "stored.csv")]
    assert main(stored) == 0
    assert "'edge' is the place in the client's file" in capsys.readouterr().out
    assert pd.read_csv(work / "stored.csv")["edge"].tolist() == list(range(200))
    scored(work, "--client", "0")
    assert "is the place" not in capsys.readouterr().out


def test_new_payments_between_stored_accounts_are_scored_within_the_stored_graph(work):
    """Their counts include the stored payments, and stored payments are not listed."""
    pd.DataFrame({"id": [99], "age": [5]}).to_csv(work / "one.csv", index=False)
    table = payments(10, 190, 3).drop(columns="fraud").assign(source=99)
    table.to_csv(work / "few.csv", index=False)
    given = ["--nodes", str(work / "one.csv"), "--edges", str(work / "few.csv"), "--out", str(work / "few_scored.csv")]
    assert main(["predict", str(work / "run"), "--client", "0", *given]) == 0
    predictions = pd.read_csv(work / "few_scored.csv")
    assert predictions["edge"].tolist() == table["ref"].tolist()
    assert predictions["target"].tolist() == table["target"].tolist()


def test_new_payments_read_stored_payments_with_other_parties(work):
    """Accounts 15 to 19 belong to another party: the whole graph without their features and mutual edges predicts the same.

    Messages between parties do not read the counts, which are a party's own.
    """
    pd.DataFrame({"id": [99], "age": [5]}).to_csv(work / "one.csv", index=False)
    table = payments(10, 190, 3).drop(columns="fraud").assign(source=99)
    table["target"] %= 15
    table.to_csv(work / "few.csv", index=False)
    predictor = load_predictor(work / "run", 0)
    spec, whole = dataclasses.replace(predictor.input_spec, parallel=True), predictor.client_graph
    source, target = whole.edge_index
    mine, x = (source < 15).int() + (target < 15).int(), whole.x.clone()
    x[15:] = 0
    inner, out, into = ((mine == 2), (mine == 1) & (source < 15), (mine == 1) & (target < 15))
    kept, inner = (mine > 0).nonzero().view(-1), inner.nonzero().view(-1)
    part = dataclasses.replace(
        whole.with_edges(whole.edge_index[:, inner], inner),
        **{key: getattr(whole, key)[:15] for key in ("x", "y", "train_mask", "val_mask", "test_mask", "ids", "node_id")},
        cut_out=whole.edge_index[:, out],
        cut_in=whole.edge_index[:, into].flip(0),
        cut_out_owner=torch.zeros(int(out.sum()), dtype=torch.int64),
        cut_in_owner=torch.zeros(int(into.sum()), dtype=torch.int64),
        **{f"cut_{way}_{key}": getattr(whole, key)[rows] for way, rows in (("out", out), ("in", into))
           for key in ("edge_attr", "edge_time", "edge_y", "edge_split")},
    )  # fmt: skip
    stored = dataclasses.replace(whole.with_edges(whole.edge_index[:, kept], kept), x=x)
    attr = stored.edge_attr.clone()
    attr[mine[kept] == 1, whole.num_shared_edge_features :] = 0
    stored = dataclasses.replace(stored, edge_attr=attr)
    dropped = dataclasses.replace(part, book=part.book[:, (part.book[:2] < 15).all(0)], **{
        f.name: f.default_factory() for f in dataclasses.fields(part) if f.name.startswith("cut_")
    })  # fmt: skip
    chances = []
    for graph in (stored, part, dropped):
        given = work / "one.csv", work / "few.csv", Columns.of(spec.schema.tables), spec, graph, "it", spec.treatment()
        read = new_nodes(*given)
        chances.append((predictor.predict_edges(read).probabilities, read.graph.edge_attr[read.edges]))
    for array, expected in zip(chances[1], chances[0], strict=True):
        np.testing.assert_allclose(array, expected, atol=1e-5)
    assert not np.allclose(chances[2][0], chances[0][0], atol=1e-3)
    assert not np.allclose(chances[2][1], chances[0][1], atol=1e-3)


def test_predictions_of_the_stored_graph_are_those_that_were_scored(work):
    predictor = load_predictor(work / "run", 0)
    logits, task = predictor.items(predictor.client_graph)
    assert isinstance(task, Edges)
    record = fg.load_run(work / "run").summary["metrics"]["best_val"]
    scores = task.scorer(0).score(logits, ["average_precision"])
    for name in ("average_precision", "loss"):  # the loss differs if an edge is scored on later ones
        assert scores[f"test-{name}"][0] == pytest.approx(record[f"test_{name}"], rel=1e-5)
    assert torch.equal(predictor.predict(predictor.client_graph).logits, logits[task.order.argsort()])


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["windows=0"], "windows must be numbers of days above 0"),
        (["--split", "temporal", "--until", "soon,later"], "--until must be two times in seconds or dates"),
    ],
)
def test_wrong_options_are_refused(work, args, match, tmp_path, capsys):
    given = ["import", "--nodes", str(work / "accounts.csv"), "--edges", str(work / "payments.csv"), *ROLES, *args]
    given += [
        "edge_classes=no,yes",
        "--client",
        "0",
        "--num-clients",
        "1",
        "--out",
        str(tmp_path / "x.safetensors"),
    ]
    assert main(given) != 0
    assert match in capsys.readouterr().err


def test_windows_need_times(work, tmp_path, capsys):
    given = ["import", "--nodes", str(work / "accounts.csv"), "--edges", str(work / "payments.csv"), "windows=1"]
    assert main([*given, "columns.label=age", "--name", "none"]) != 0
    assert "windows=1 counts edges by their times: pass columns.time=NAME" in capsys.readouterr().err


def script(folder: Path, *args: str) -> str:
    """Output of the example in a process of its own."""
    command = [sys.executable, str(ROOT / "examples/banks/label_payments.py"), str(folder), "--accounts", "100", *args]
    environment = {**os.environ, "FEDGRAPH_DATA": str(folder / "root"), "PYTHONPATH": str(ROOT)}
    environment |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_three_banks_score_new_payments_and_a_fleet_trains_the_same_bits(tmp_path):
    """Tables, one schema, client files, a SuperLink with three SuperNodes, and bank a's scored payments of April."""
    said = script(tmp_path / "fleet", "--rounds", "2", "--fleet")
    assert "273 new payments, 24 of them laundering" in said
    run = fg.run(
        task="edges",
        graph=str(tmp_path / "fleet/parts"),
        rounds=2,
        out=str(tmp_path / "run"),
        progress=False,
        **{"model.hidden": 32, "train.lr": 0.02},
    )
    assert run.summary["rounds"] == 2
    models = (
        read_tensors(path / "model_final.safetensors")[0] for path in (tmp_path / "run", tmp_path / "fleet/runs/fedavg")
    )
    assert_same_arrays(*models)


@pytest.mark.slow
def test_three_banks_find_most_laundering_payments(tmp_path):
    said = script(tmp_path / "work", "--accounts", "300")
    hits, real = (int(word) for word in said.split("laundering: ")[-1].split(" with")[0].split(" of the "))
    assert (real, hits) >= (87, 70)
