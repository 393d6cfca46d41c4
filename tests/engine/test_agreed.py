"""Months of members who agreed on their runs: real processes, on loopback.

Tables grow and are imported again; a run is cut and resumed; a bank is down for a month; noise is added by members.
"""

import contextlib
import json

import numpy as np
import psutil
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.secure.audit import released
from tests.conftest import client_graph
from tests.engine.fleet import COMMAND, NAME, Fleet, finished
from tests.support import PATIENCE, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.faults]

WORDS = [
    "num_clients=3",
    "rounds=2",
    "model.hidden=8",
    "model.dropout=0",
    "privacy.secagg=true",
    "strategy.weighting=uniform",
]
NOISED = [
    *("num_clients=4", "rounds=2", "checkpoint_every=1", *WORDS[2:], "strategy.min_clients=3", "strategy.timeout=90"),
    *("privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.scores=none", "privacy.secagg_bits=20"),
    "evaluation.select=last",
]


def agreed_fleet(folder, count, words, *terms):
    """A fleet whose nodes accept the runs of one agreement, and the agreement's file."""
    for client in range(count):
        graph = client_graph(client, 40)
        graph.num_clients = count
        graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
    fleet = Fleet(folder, folder / "graphs")
    agreement = folder / "agreement.yaml"
    named = [word for i in range(count) for word in ("--member", f"bank_{i}={fleet.keys / f'node_{i}.pub'}")]
    about = ["--name", "rings", "--purpose", "a test", "--until", "2099-01-01", "--runs", "3", "--out", str(agreement)]
    assert cli.main(["agree", "new", *words, f"engine={NAME}", *named, *about, *terms]) == 0
    for client in range(count):
        assert cli.main(["agree", "sign", str(agreement), "--key", str(fleet.keys / f"node_{client}")]) == 0
    return fleet, agreement


@contextlib.contextmanager
def running(fleet, agreement):
    """All nodes are there."""
    clients = range(len(fleet.files))
    try:
        fleet.start_superlink()
        fleet.register(*clients)
        for client in clients:
            fleet.start_node(client, agreement=str(agreement))
        yield
    finally:
        fleet.stop()


def begin_month(fleet, agreement, out, *words):
    """Start a run of an agreement."""
    command = [*COMMAND, "run", "--quiet", "--no-report", "--agreement", str(agreement), f"engine={NAME}"]
    return fleet._spawn(f"run-{out.name}", [*command, f"out={out}", *words])


@pytest.fixture
def members(tmp_path):
    """A fleet of three without noise."""
    fleet, agreement = agreed_fleet(tmp_path, 3, WORDS)
    with running(fleet, agreement):
        yield fleet, agreement


@pytest.fixture
def noised(tmp_path):
    """A fleet of four with noise, of whom one may be absent."""
    fleet, agreement = agreed_fleet(tmp_path, 4, NOISED, "--absent", "allowed", "--epsilon", "1000000")
    with running(fleet, agreement):
        yield fleet, agreement


def test_months_of_an_agreement_and_no_other_run(members, tmp_path):
    fleet, agreement = members

    def month(name, *words):
        return begin_month(fleet, agreement, tmp_path / name, *words)

    seeds = set()
    for name, size in (("march", 40), ("april", 42)):
        for client in range(3):
            client_graph(client, size, seed=size).save(fleet.files[client])  # imported again
        fleet.wait(month(name))
        done = finished(tmp_path / name)
        assert done.summary["failures"] == {}
        seeds.add(done.summary["seed"])
    assert len(seeds | {0}) == 3
    assert fleet.begin(tmp_path / "other", "rounds=1").wait(PATIENCE) == 2
    assert "the run is under no agreement" in fleet.log("run-other")
    assert month("again", "--number", "1").wait(PATIENCE) == 2
    assert "is used up: this node is at run 2" in fleet.log("run-again")


def test_a_cut_month_and_one_without_a_bank_end_with_models(noised, tmp_path):
    """The cut one resumes with its number, and draws no noise twice."""
    fleet, agreement = noised
    march, april = tmp_path / "march", tmp_path / "april"
    process = begin_month(fleet, agreement, march)
    wait_for((march / "checkpoint.safetensors").is_file, "a checkpoint")
    psutil.Process(fleet.process_id("flwr-serverapp")).kill()
    assert process.wait(PATIENCE)
    resumed = fleet.run(march, f"resume={march}")
    assert (len(resumed.rounds), resumed.summary["failures"]) == (2, {})
    for client in range(4):
        assert sum(released(tmp_path / f"state_{client}", "client", "rings").values()) == 2
    fleet.kill("node_3")
    fleet.wait(begin_month(fleet, agreement, april))
    done = finished(april)
    assert [record["cohort"] for record in done.rounds] == [[0, 1, 2]] * 2
    assert done.summary["seed"] != resumed.summary["seed"]


def test_every_node_computes_the_rounds(tmp_path):
    """The server and a node die in round 2, which members repeat."""
    words = [
        *WORDS,
        "dataset=csbm",
        "privacy.coordinator=verified",
        "privacy.max_update=5",
        "privacy.scores=none",
        "evaluation.select=last",
    ]
    fleet, agreement = agreed_fleet(tmp_path, 3, words)
    march = tmp_path / "march"
    with running(fleet, agreement):
        process = begin_month(fleet, agreement, march)
        wait_for((march / "checkpoint.safetensors").is_file, "a checkpoint")
        psutil.Process(fleet.process_id("flwr-serverapp")).kill()
        assert process.wait(PATIENCE)
        fleet.kill("node_1")
        fleet.restart_node(1, agreement=str(agreement))
        done = fleet.run(march, f"resume={march}")
    assert (len(done.rounds), done.summary["failures"]) == (2, {})
    files = sorted(tmp_path.rglob("verified_000002.safetensors"))
    assert len(files) == 3
    for file in files:
        assert json.loads(file.with_name("verified.json").read_text())["verified"]["round"] == 2
        held, _ = read_tensors(file)
        for name, array in done.arrays.items():
            kept = held[f"arrays/{name}"].numpy().view(array.dtype)
            np.testing.assert_array_equal(kept, array, err_msg=f"{file}: {name}")
