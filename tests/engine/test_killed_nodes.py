"""A node whose SuperNode, executor or client process is killed, at each moment of a task, on a fleet of real processes."""

import contextlib
import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.runtime import RuntimeHttpClient

from fedgraph_flwr.engine.flower import free_port
from tests.conftest import client_graph
from tests.engine.fleet import NAME, Fleet, finished, listens
from tests.engine.links import Link
from tests.support import PATIENCE, assert_same_arrays, wait_for, wait_for_end

pytestmark = [pytest.mark.fleet, pytest.mark.faults]

SIZES = (12, 16, 20)
MOMENTS = ("before it is asked", "its task begins", "it computes", "its reply is stored")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three nodes, each with its executor."""
    folder = tmp_path_factory.mktemp("deaths")
    for client, size in enumerate(SIZES):
        client_graph(client, size).save(folder / "graphs" / f"client_{client:04d}.safetensors")
    fleet = Fleet(folder, folder / "graphs")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def _mark(fleet: Fleet, moment: str) -> Callable[[], bool]:
    """Whether that moment of node 1's next task has come."""
    asked, log = fleet.log("node_1").count("Receiving: train"), lambda: fleet.log("node_1")
    sent = log().count("Sending: train")
    return {
        "before it is asked": lambda: log().count("Sending: train") > sent,
        "its task begins": lambda: log().count("Receiving: train") > asked,
        "it computes": lambda: log().count("Receiving: train") > asked and fleet.part("client") is not None,
        "its reply is stored": lambda: log().count("Sending: train") > sent,
    }[moment]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["client", "executor", "supernode"])
def test_a_run_goes_on_and_the_node_comes_back(fleet, tmp_path, victim, moment):
    if victim == "client" and moment == "before it is asked":
        pytest.skip("there is none then")
    wait_for(lambda: all(fleet.part("executor", node) for node in range(3)), "three executors")
    out = tmp_path / "found"
    began = fleet.log("node_1").count("SuperNode ID:")
    process = fleet.begin(out, "rounds=40", "strategy.timeout=20", "train.local_steps=3")
    wait_for(lambda: _rounds(out), "a round")  # a node without a record of the start begins in round 1 only
    wait_for(_mark(fleet, moment), moment)
    deadline = time.monotonic() + 5.0
    while not (part := fleet.part(victim)) and time.monotonic() < deadline:
        time.sleep(0.005)
    if part:  # a client may have been quicker
        part.kill()
    killed = len(_rounds(out))
    if victim == "supernode":
        wait_for(lambda: fleet.log("node_1").count("SuperNode ID:") > began, "the node to be admitted again")
    wait_for(lambda: any(not r["failed"] for r in _rounds(out)[killed + 1 :]), "a round without a failure")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 130
    records = _rounds(out)
    assert all(set(r["failed"]) <= {"1 (train)", "1 (scores)"} for r in records)
    if victim == "client":  # reported at once, not after the timeout nor Flower's minute
        assert all("within" not in why for r in records for why in r["failed"].values())
    assert fleet.part("executor")
    assert fleet.part("supernode")
    wait_for(lambda: fleet.part("client") is None, "no client process to be left")


def _rounds(out: Path) -> list[dict[str, Any]]:
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def test_a_killed_command_leaves_nothing(fleet):
    """`kill -9` of `fedgraph-flwr node` alone: its processes see that it is gone; the next one is admitted."""
    family = psutil.Process(fleet.processes["node_2"].pid).children(recursive=True)
    assert len(family) >= 2
    os.kill(fleet.processes["node_2"].pid, signal.SIGKILL)
    wait_for_end(family)
    fleet.kill("node_2")
    fleet.restart_node(2)


@pytest.mark.parametrize("options", [(), ("--plain",)], ids=["patched", "plain"])
def test_a_node_survives_a_load_balancer_without_a_server(fleet, options):
    """It accepts and closes for 25 s, which Flower takes as final; the node is not ready meanwhile, and is afterwards."""
    link, port = Link(fleet.port), free_port()
    fleet.kill("node_1")
    fleet.restart_node(1, "--monitor", str(port), *options, server=f"127.0.0.1:{link.port}")

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close() is None)
        return False

    try:
        wait_for(ready, "the node to be ready")
        link.become("closes")
        wait_for(lambda: not ready(), "the node to be not ready", 25.0)
        time.sleep(25.0)
        link.become("open")
        began = time.monotonic()
        wait_for(ready, "the node to be ready again")
        print(f"{options}: ready again after {time.monotonic() - began:.0f} s")
        assert options or time.monotonic() - began < 45.0  # unpatched, the server must miss two heartbeats first
        status = json.loads(fleet.flwr("supernode", "list", NAME, "--format", "json"))
        assert [node["status"] for node in status["nodes"]].count("online") == 3
    finally:
        fleet.kill("node_1")
        link.close()
        fleet.restart_node(1)


def test_the_parameters_are_those_of_a_run_in_one_process(fleet, run, tmp_path):
    """After all these deaths."""
    fleet_run = fleet.run(tmp_path / "found", "rounds=3")
    assert finished(tmp_path / "found").rounds
    assert_same_arrays(fleet_run.arrays, run(f"graph={fleet.graphs}", "rounds=3").arrays)


def test_who_has_no_secret_takes_no_task(fleet):
    """Another account of a node's machine, which reaches the port on loopback, would have the client's state with a task."""
    runtime = re.compile(r"--runtime 127\.0\.0\.1:(\d+)")
    wait_for(lambda: runtime.search(fleet.log("node_0")), "node 0 to name its port")
    port = runtime.search(fleet.log("node_0"))[1]
    wait_for(lambda: listens(int(port)), "node 0 to listen")
    client = RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, [])
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
    client.close()
