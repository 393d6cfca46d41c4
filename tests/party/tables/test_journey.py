"""The way of three banks from tables as they are exported to a schema, a run, predictions and an export."""

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.data.schema import Schema
from tests.party import banks

BANKS = Path(__file__).parents[3] / "examples" / "banks"
ENDINGS = {"a": "csv", "b": "csv", "c": "tsv"}
GERMAN = ["columns.id=kunde", "columns.label=status", "columns.source=von", "columns.target=an"]


def go(capsys, *overrides):
    """One command; what it printed, with its warnings."""
    overrides = [str(word) for word in overrides]
    code = cli.main(overrides)
    captured = capsys.readouterr()
    assert code == 0, (overrides, captured.err)
    return captured.out + captured.err


def files(letter):
    return [
        "--nodes",
        f"ugly/{letter}_customers.{ENDINGS[letter]}",
        "--edges",
        f"ugly/{letter}_payments.{ENDINGS[letter]}",
    ]


@pytest.fixture
def ugly(tmp_path, monkeypatch):
    """The ugly tables, in a folder of their own."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, str(BANKS / "ugly_tables.py"), "ugly", "--customers", "200"], check=True)
    return tmp_path


def agree(capsys, caplog):
    """Statistics of each bank, one schema, and each bank's file by it; what is detected, changed or lost is said."""
    common = ["columns.split=part", "--classes", "ok,fraud", "--undirected", "scales.income=log"]
    outputs = {}
    for letter in ENDINGS:
        options = {"b": GERMAN, "c": ["kinds.branch=ignored"]}.get(letter, [])
        outputs[letter] = go(capsys, "import", *files(letter), *common, *options, "--statistics", f"{letter}.json")
    assert "a_customers.csv: formats: income as 1,234.5, balance as 1,234.5, opened as ISO8601|%d.%m.%Y" in outputs["a"]
    assert re.search(r"a_payments\.csv: \d+ of \d+ rows repeat an edge of another row", outputs["a"])
    assert "b_customers.csv: read as cp1252 (Latin-1) because it is not UTF-8" in outputs["b"]
    assert "b_customers.csv: columns are separated by semicolon" in outputs["b"]
    assert "income as 1.234,5, balance as 1.234,5, opened as %d.%m.%Y" in outputs["b"]
    assert "c_customers.tsv: columns are separated by tab" in outputs["c"]
    assert "income as 1 234,5" in outputs["c"]
    for text in outputs.values():
        assert "name (200 different values in 200 rows)" in text
        assert "warning" not in text.lower()
    merged = go(capsys, "schema", "merge", "a.json", "b.json", "c.json", "--out", "schema.yaml")
    assert "column 'country': only c.json has 'Germany'" in merged
    assert "formats of column 'income' differ between a.json and b.json: each party's is detected" in merged
    assert "id of the tables is the default in a.json, 'kunde' in b.json" in merged
    schema = Schema.load(Path("schema.yaml"))
    assert (schema.tables.split, schema.tables.id, schema.undirected) == ("part", "", True)
    for number, letter in enumerate(ENDINGS):
        options = GERMAN if letter == "b" else []
        client = ["--client", number, "--num-clients", 3, "--out", f"parts/client_{number:04d}.safetensors"]
        go(capsys, "import", *files(letter), *options, "--schema", "schema.yaml", *client)


def check_files():
    """The same features as from the clean tables, whatever the format; both directions; the bank's own ids."""
    make = banks.module()
    schema = Schema.load(Path("schema.yaml")).nodes["node"]
    for number, letter in enumerate(ENDINGS):
        clean, payments = make.bank(letter, 200, 0)
        graph = ClientGraph.load(f"parts/client_{number:04d}.safetensors")
        names = list(schema)
        assert names[:3] == ["age", "income", "balance"]
        statistics = schema["balance"].statistics
        place = 2 + sum(schema[name].missing for name in names[:2])
        expected = (clean["balance"] - statistics["center"]) / statistics["spread"]
        np.testing.assert_allclose(graph.x[:, place], expected, rtol=1e-4, atol=1e-5)
        assert unpack_words(graph.ids).tolist() == clean["id"].tolist()
        pairs = {frozenset(pair) for pair in zip(payments["source"], payments["target"], strict=True)}
        assert graph.edge_index.size(1) == 2 * len(pairs)


def check_predictions(capsys, caplog, *source):
    """New customers in the stored graph: their own ids, the classes by name, and a line for the trade nobody knows."""
    caplog.clear()
    overrides = ["--nodes", "ugly/new_customers.csv", "--edges", "ugly/new_payments.csv"]
    output = go(capsys, "predict", *source, *overrides, "--out", "predictions.csv")
    assert "50 nodes joined to the 200 nodes of" in output
    assert "'crypto' 5; it lists clerk" in caplog.text
    assert "classes: ok " in output
    predictions = pd.read_csv("predictions.csv")
    assert predictions["id"].tolist() == pd.read_csv("ugly/new_truth.csv")["id"].tolist()
    assert list(predictions.columns) == ["id", "p_ok", "p_fraud", "class"]
    return overrides, predictions


def check_export(capsys, overrides, predictions, *source):
    go(capsys, "export", *source, "--out", "exported")
    graph = ["--graph", "parts/client_0000.safetensors"]
    go(capsys, "predict", "exported", *graph, *overrides, "--out", "again.csv")
    np.testing.assert_allclose(pd.read_csv("again.csv")["p_fraud"], predictions["p_fraud"], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_journey_from_ugly_tables_to_an_export(ugly, capsys, caplog):
    agree(capsys, caplog)
    check_files()
    overrides = ["graph=parts", "strategy=ditto", "rounds=2", "train.loss=weighted", "out=runs/mine"]
    go(capsys, "run", *overrides, "--quiet", "--no-report")
    source = ["runs/mine", "--client", "0"]
    overrides, predictions = check_predictions(capsys, caplog, *source)
    check_export(capsys, overrides, predictions, *source)


@pytest.mark.slow
@pytest.mark.fleet
def test_the_journey_on_a_fleet(ugly, capsys, caplog, monkeypatch):
    """The same on a server and three nodes, each with its own file; bank a predicts from its node's state."""
    agree(capsys, caplog)
    with fleet(ugly, monkeypatch):
        overrides = [
            "engine=banks",
            "num_clients=3",
            "strategy=ditto",
            "rounds=2",
            "train.loss=weighted",
            "out=runs/mine",
        ]
        go(capsys, "run", *overrides, "--quiet", "--no-report")
    source = ["state_0"]
    check_predictions(capsys, caplog, *source)
    # The server's folder knows no classes: the bank's file does.
    go(capsys, "predict", "runs/mine", "--graph", "parts/client_0000.safetensors", "--out", "server.csv")
    table = pd.read_csv("server.csv")
    assert list(table.columns) == ["id", "p_ok", "p_fraud", "class"]
    assert table["id"][0] == "a00000"


@contextmanager
def fleet(folder, monkeypatch):
    """The fleet of `examples/banks/banks.py`."""
    monkeypatch.syspath_prepend(str(BANKS))
    import banks as script

    with script.fleet(folder):
        yield
