"""A table of quick runs, and what of it is run."""

import csv
import random
from pathlib import Path

import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.sweeps import runs

SMALL = ["dataset=csbm", "dataset.clients=2", "dataset.nodes=60", "num_clients=2", "rounds=2", "model.hidden=4"]

TOY = f"""\
title: A toy
source: Nobody, 2026, Table 1
common: [{", ".join(SMALL)}]
settings:
  few: [train.local_steps=1]
  many: [train.local_steps=2]
methods:
  FedAvg: [strategy=fedavg]
  Local: [strategy=local]
  Majority: []
seeds: [0, 1]
paper:
  few: {{FedAvg: 81.5 (0.3)}}
notes: A note.
figure: false
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder one is in."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def toy(place: Path) -> Path:
    """The file of a table of twelve quick runs."""
    path = place / "toy.yaml"
    path.write_text(TOY)
    return path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What is run, in order; nothing trains: figures are a function of the overrides, whatever their order."""
    seen = []

    def run_cell(cell, keep=None, on_share=None):
        seen.append((cell.setting, cell.method, cell.seed))
        figures = random.Random(str(sorted(cell.overrides)))
        value, validation = figures.random(), figures.random()
        return {
            **cell.row,
            "value": value,
            "validation": validation,
            "headline": "test_accuracy at best_val",
            "seconds": 1,
        }

    monkeypatch.setattr(runs, "run_cell", run_cell)
    return seen


def sweep(*args: object, code: int = 0) -> None:
    """``fedgraph-flwr sweep`` in this process, which must end with ``code``."""
    jobs = [] if "--jobs" in args else ["--jobs", "0"]
    assert cli.main(["sweep", *map(str, args), *jobs]) == code


def rows(path: Path) -> list[dict[str, str]]:
    """Those of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def one(folder: Path, ending: str) -> Path:
    """The only file there of a kind."""
    [path] = folder.glob(f"*{ending}")
    return path
