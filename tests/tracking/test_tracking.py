"""Trackers receive what the run folder contains, and none of them ends a run."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedgraph_flwr import tracking
from fedgraph_flwr.api import run
from fedgraph_flwr.cli import main
from fedgraph_flwr.errors import FedGraphError
from tests.support import PATIENCE

TINY = {"num_clients": 2, "rounds": 2, "checkpoint_every": 0, "progress": False}
WORDS = ("dataset.params.nodes=120", "model.hidden=4")


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def expected(folder: Path) -> dict[str, list[float]]:
    """Of test accuracy, bytes up and a client's test accuracy, by round, from the run's folder."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {
        "scores/test_accuracy": [r["metrics"]["test_accuracy"] for r in records],
        "train/train_loss": [r["train"]["train_loss"] for r in records],
        "bytes/up": [sum(p["bytes_up"] for p in r["phases"].values()) for r in records],
        "seconds/round": [r["seconds"] for r in records],
        "client/1/test_accuracy": [r["clients"]["test-accuracy"][1] for r in records],
    }


def test_tensorboard_reads_back_what_was_told():
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard here")
    done = run(*WORDS, **TINY, tracking=["tensorboard"], tracking_clients=True)
    accumulator = events.EventAccumulator(str(done.path / "tensorboard"))
    accumulator.Reload()
    for key, values in expected(done.path).items():
        logged = [event for event in accumulator.Scalars(key) if event.step]
        assert [event.step for event in logged] == [1, 2], key
        assert [event.value for event in logged] == pytest.approx(values), key
    assert accumulator.Scalars("final/test_accuracy")[0].value == pytest.approx(done.summary["test_accuracy"])
    assert "config/text_summary" in accumulator.Tags()["tensors"]


@pytest.mark.slow
def test_mlflow_holds_figures_keys_and_files(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = run(*WORDS, **TINY, tracking=["mlflow"], tracking_clients=True)
    client = mlflow.MlflowClient(f"file://{tmp_path / 'store'}")
    (held,) = client.search_runs([client.get_experiment_by_name("fedgraph-flwr").experiment_id])
    assert held.info.status == "FINISHED"
    assert held.data.params["strategy.name"] == "fedavg"
    assert held.data.params["train.lr"] == "0.01"
    assert held.data.metrics["final/test_accuracy"] == pytest.approx(done.summary["test_accuracy"])
    for key, values in expected(done.path).items():
        logged = client.get_metric_history(held.info.run_id, key)
        assert [(m.step, m.value) for m in logged] == [(step, pytest.approx(v)) for step, v in enumerate(values, 1)], (
            key
        )
    files = {file.path for file in client.list_artifacts(held.info.run_id)}
    assert files >= {"config.yaml", "rounds.jsonl", "summary.json", "model_final.safetensors"}


@pytest.mark.slow
def test_runs_of_a_sweep_lie_below_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here")
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    args = [*WORDS, "num_clients=2", "rounds=1", "strategy=fedavg,fedprox", "seed=0"]
    args += ["tracking=[mlflow,tensorboard]", "--no-baselines", "--jobs", "0", "--out", str(tmp_path / "sweeps")]
    assert main(["sweep", *args]) == 0
    client = mlflow.MlflowClient(f"file://{tmp_path / 'store'}")
    held = client.search_runs([client.get_experiment_by_name("fedgraph-flwr").experiment_id])
    (parent,) = (one for one in held if "fedgraph.group" in one.data.tags)
    below = [one for one in held if one.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(below) == len(held) - 1 == 2
    assert {one.data.params["strategy.name"] for one in below} == {"fedavg", "fedprox"}
    (folder,) = (tmp_path / "sweeps").glob("*-tensorboard")
    assert len(list(folder.iterdir())) == len(below)


def test_wandb_writes_offline(tmp_path):
    pytest.importorskip("wandb", reason="no wandb here (pip install 'fedgraph-flwr[wandb]')")
    overrides = [*WORDS, "num_clients=2", "rounds=1", "tracking=[wandb]", "out=run", "--quiet", "--no-report"]
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedgraph_flwr", "run", *overrides],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tracking=wandb failed" not in done.stderr
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    logged = log.read_bytes()
    for text in (b"scores/test_accuracy", b"final/test_accuracy", b"strategy.name", b"summary.json"):
        assert text in logged


class _Wrong(tracking.Tracker):
    """Fails at the hooks of a test's choice."""

    where = ""

    def __init__(self, cfg, name):
        self._maybe("__init__")

    def _maybe(self, here):
        if self.where == here:
            raise SystemExit("no such server") if here == "finish" else ConnectionError("no such server")

    def scalars(self, values, step):
        self._maybe("scalars")

    def finish(self, values, files):
        self._maybe("finish")

    def close(self, failed):
        self._maybe("close")


@pytest.fixture
def wrong(monkeypatch):
    monkeypatch.setitem(tracking.TRACKERS, "wrong", ("json", f"{__name__}:_Wrong"))
    return _Wrong


@pytest.mark.parametrize("where", ["__init__", "scalars", "finish", "close"])
def test_a_failing_tracker_never_ends_a_run(where, wrong, monkeypatch, caplog):
    monkeypatch.setattr(wrong, "where", where)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    done = run(*WORDS, **TINY, tracking=["wrong"])
    assert done.summary["rounds"] == 2
    (said,) = (record.getMessage() for record in caplog.records if "tracking" in record.getMessage())
    assert "tracking=wrong failed" in said
    assert "no such server" in said


def test_a_tracker_that_hangs_is_left_behind(wrong, monkeypatch, caplog):
    never, closed = threading.Event(), threading.Event()
    monkeypatch.setattr(wrong, "scalars", lambda *arguments: never.wait(PATIENCE))
    monkeypatch.setattr(wrong, "close", lambda *arguments: closed.set())
    monkeypatch.setattr(tracking, "PATIENCE", 0.2)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    assert run(*WORDS, **TINY, tracking=["wrong"]).summary["rounds"] == 2
    never.set()
    assert closed.wait(PATIENCE)  # left behind by the run, not by this test
    assert any("the run ends without it" in record.getMessage() for record in caplog.records)


def test_a_run_that_fails_is_told_as_such(wrong, monkeypatch):
    from fedgraph_flwr.clients.base import GraphClient

    ended = []
    monkeypatch.setattr(wrong, "close", lambda self, failed: ended.append(failed))
    run(*WORDS, **TINY, tracking=["wrong"])

    def fails(self):
        raise FedGraphError("no")

    monkeypatch.setattr(GraphClient, "train", fails)
    with pytest.raises(FedGraphError):
        run(*WORDS, **TINY, tracking=["wrong"])
    assert ended == [False, True]


def test_an_unknown_tracker_and_one_that_is_not_installed_are_refused_before_the_run(tmp_path, monkeypatch, capsys):
    assert main(["run", "tracking=[tensorbord]", f"out={tmp_path / 'out'}"]) == 2
    assert "did you mean 'tensorboard'" in capsys.readouterr().err
    monkeypatch.setitem(tracking.TRACKERS, "mlflow", ("no_such_package", ""))
    for one in ("mlflow", "[mlflow]"):
        assert main(["run", f"tracking={one}", f"out={tmp_path / 'out'}"]) == 2
        assert "pip install 'fedgraph-flwr[mlflow]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_not_finite_or_of_single_clients_is_left_out():
    record = {
        "round": 1,
        "cohort": [0, 1],
        "failed": {"1 (train)": "late"},
        "seconds": 2.0,
        "phases": {
            "a": {"bytes_up": 1, "bytes_down": 2, "seconds": 0.5},
            "b": {"bytes_up": 10, "bytes_down": 20, "seconds": 1},
        },
        "metrics": {"test_accuracy": 0.5, "test_auc": math.nan},
        "clients": {"test-accuracy": [0.25, math.nan]},
        "privacy": {"epsilon": None, "releases": 3},
    }
    scalars = tracking.scalars(record)
    assert scalars["bytes/down"] == 22
    assert scalars["bytes/a/up"] == 1
    assert scalars["seconds/b"] == 1
    assert (scalars["clients/asked"], scalars["clients/failed"]) == (2, 1)
    assert scalars["privacy/releases"] == 3
    assert not {"scores/test_auc", "privacy/epsilon", "client/0/test_accuracy"} & scalars.keys()
    by_client = tracking.scalars(record, by_client=True)
    assert by_client["client/0/test_accuracy"] == 0.25
    assert "client/1/test_accuracy" not in by_client
