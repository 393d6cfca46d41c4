"""Ends of runs and a rolled upgrade on a fleet that stands as the how-to says: real processes, on loopback."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgraph_flwr.engine.flower import _STUB, APP
from fedgraph_flwr.fleet.certificates import key_of, revoke
from fedgraph_flwr.fleet.parties import read_parties
from fedgraph_flwr.wire.messages import PROTOCOL
from tests.conftest import client_graph
from tests.engine.fleet import NAME, GuardedFleet
from tests.support import PATIENCE, wait_for

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.faults,
    pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed: apt-get install nginx"),
]

OTHER = """
import importlib.metadata, os, sys
from importlib.machinery import PathFinder
installed = importlib.metadata.version
importlib.metadata.version = lambda name: os.environ["OTHER_VERSION"] if name == "fedgraph-flwr" else installed(name)

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "fedgraph_flwr.wire.messages" or "OTHER_PROTOCOL" not in os.environ:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module.PROTOCOL = int(os.environ["OTHER_PROTOCOL"])
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
"""What makes a node's Python that of another version: its number, and the version of its messages."""

SEEN = 20.0
"""Seconds within which the death of a ServerApp is reported: Flower takes a minute."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedFleet]:
    """Three nodes with installed packages: the operator's app has no code."""
    folder = tmp_path_factory.mktemp("operating")
    for client, size in enumerate((12, 16, 20)):
        client_graph(client, size).save(folder / "graphs" / f"client_{client:04d}.safetensors")
    fleet = GuardedFleet(folder, folder / "graphs")
    (folder / "app").mkdir()
    (folder / "app" / "pyproject.toml").write_text(_STUB)
    (folder / "other").mkdir()
    (folder / "other" / "sitecustomize.py").write_text(OTHER)
    fleet.environment |= {APP: str(folder / "app"), "FEDGRAPH_KEYS": str(fleet.keys)}
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def test_a_dead_server_app_is_named_at_once_and_its_run_resumed(fleet):
    out = fleet.operators / "dies"
    process = fleet.begin(out, "rounds=200", "checkpoint_every=1")
    wait_for((fleet.runs / "dies" / "checkpoint.safetensors").is_file, "round 1 to end")
    os.kill(fleet.process_id("flwr-serverapp"), signal.SIGKILL)
    began = time.monotonic()
    assert process.wait(PATIENCE) == 1
    took = time.monotonic() - began
    print(f"a dead ServerApp is reported after {took:.1f} s")
    assert took < SEEN
    why = "the run's process on the server ended without a result: it was killed, or the machine had no memory left"
    assert f"error: {why}; to continue, run: fedgraph-flwr run resume={out}" in fleet.log("run-dies")
    for folder in (out, fleet.runs / "dies"):
        assert json.loads((folder / "failure.json").read_text())["error"] == why
    assert fleet.run(out, f"resume={out}", "rounds=10").summary["rounds"] == 10
    assert not (fleet.runs / "dies" / "failure.json").exists()


def test_a_removed_key_is_registered_by_nobody(fleet):
    revoke(fleet.keys, key_of((fleet.keys / "node_2.pub").read_text(), ""), "node_2.pub")
    try:
        with pytest.raises(RuntimeError, match="removed from this fleet"):
            fleet.flwr("supernode", "register", str(fleet.keys / "node_2.pub"), NAME)
    finally:
        (fleet.keys / "revoked").unlink()


def test_a_fleet_is_rolled_over_to_a_neighbouring_version_while_a_run_goes_on(fleet):
    out = fleet.operators / "rolled"
    process = fleet.begin(out, "rounds=2000", "checkpoint_every=1", "strategy.timeout=60")
    there = fleet.runs / "rolled"
    wait_for((there / "checkpoint.safetensors").is_file, "round 1 to end")
    for node in range(3):
        _replace(fleet, node, OTHER_VERSION="0.3.0")
        reached = _rounds(there)[-1]["round"]
        wait_for(
            lambda reached=reached: any(r["round"] > reached and not r["failed"] for r in _rounds(there)[-5:]),
            "a round of all three",
        )
        assert process.poll() is None
    run = re.search(r"started run (\d+)", (out / "flower.log").read_text())[1]
    fleet.flwr("stop", run, NAME)
    assert process.wait(PATIENCE) == 1
    assert f"error: the run was stopped (flwr stop); to continue, run: fedgraph-flwr run resume={out}" in fleet.log(
        "run-rolled"
    )
    wait_for(lambda: json.loads((there / "status.json").read_text())["state"] == "stopped", "the ServerApp to end")
    done = _rounds(there)[-1]["round"]
    assert fleet.run(out, f"resume={out}", f"rounds={done + 2}").summary["rounds"] == done + 2
    nodes = json.loads((there / "status.json").read_text())["nodes"].values()
    assert [node["versions"]["fedgraph-flwr"] for node in nodes] == ["0.3.0"] * 3


def test_a_run_takes_the_chosen_parties_only(fleet):
    """Nodes that were admitted without a name are called by their numbers."""
    chosen = sorted(read_parties(fleet.runs))[:2]
    out = fleet.operators / "chosen"
    fleet.run(out, f"parties=[{','.join(chosen)}]", "num_clients=2", "rounds=2")
    status = json.loads((fleet.runs / "chosen" / "status.json").read_text())
    assert sorted(status["nodes"]) == chosen
    logs = [fleet.log(f"node_{node}").count(f"run {status['run_id']}: started by CN=operator") for node in range(3)]
    assert sorted(logs) == [0, 1, 1]
    process = fleet.begin(fleet.operators / "unknown", f"parties=[{chosen[0]},bank_x]", "num_clients=2", "rounds=2")
    assert process.wait(PATIENCE) == 2
    assert "party 'bank_x' is unknown" in fleet.log("run-unknown")


def test_a_node_with_other_messages_is_refused_by_name_before_training(fleet):
    _replace(fleet, 1, OTHER_VERSION="0.9.0", OTHER_PROTOCOL=str(PROTOCOL + 1))
    out = fleet.operators / "refused"
    process = fleet.begin(out, "rounds=3", "strategy.timeout=60")
    assert process.wait(PATIENCE) in (1, 2)
    theirs = f"version {PROTOCOL} of the protocol .* version {PROTOCOL + 1}"
    text = rf"2 of 3 clients registered; (?:node )?[\w ]+: the server uses {theirs}"
    assert re.search(text, fleet.log("run-refused"))
    assert not _rounds(fleet.runs / "refused")


def _replace(fleet: GuardedFleet, node: int, **environment: str) -> None:
    """Stop a node as a service manager does, and start it with another version."""
    name = f"node_{node}"
    process, ids = fleet.processes.pop(name), fleet.log(name).count("SuperNode ID:")
    process.terminate()
    process.wait(PATIENCE)
    usual = fleet.environment
    fleet.environment = usual | {"PYTHONPATH": str(fleet.folder / "other"), **environment}
    try:
        fleet.start_node(node)
    finally:
        fleet.environment = usual
    wait_for(lambda: fleet.log(name).count("SuperNode ID:") > ids, f"node {node} to be back")


def _rounds(folder: Path) -> list[dict]:
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
