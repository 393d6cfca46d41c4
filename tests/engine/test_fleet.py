"""A fleet on loopback, with real processes: the parameters of the in-process engine, and what happens when parts of it die."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import client_graph
from tests.engine.fleet import Fleet, finished, wait_for
from tests.support import assert_same_arrays

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink with a database and three SuperNodes with state folders."""
    folder = tmp_path_factory.mktemp("fleet")
    for client, size in enumerate((12, 16, 20)):
        client_graph(client, size).save(folder / "graphs" / f"client_{client:04d}.safetensors")
    fleet = Fleet(folder, folder / "graphs")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def inline(fleet: Fleet, run: Callable[..., Any]) -> Callable[..., Any]:
    """The same words on the in-process engine."""
    return lambda *words: run(f"graph={fleet.graphs}", *words)


def _rounds(out: Path) -> list[dict[str, Any]]:
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def test_a_fleet_gives_the_parameters_of_the_inline_engine(fleet, inline, tmp_path):
    found, expected = fleet.run(tmp_path / "found", "rounds=3"), inline("rounds=3")
    assert_same_arrays(found.arrays, expected.arrays)
    assert [r["clients"] for r in found.rounds] == [r["clients"] for r in expected.rounds]
    for key in ("exchanges_per_round", "setup_exchanges", "bytes_up", "bytes_down", "bytes_by_phase", "failures"):
        assert found.summary[key] == expected.summary[key], key
    assert found.summary["exchanges_per_round"] == 1


def test_a_node_that_is_killed_and_one_that_never_answers_are_named_and_come_back(fleet, tmp_path):
    out = tmp_path / "found"
    trained = fleet.log("node_1").count("train message")
    process = fleet.begin(out, "rounds=2", "strategy.timeout=40")
    wait_for(lambda: fleet.log("node_1").count("train message") > trained, "node 1 to be asked to train")
    fleet.kill("node_1")
    os.killpg(fleet.processes["node_2"].pid, signal.SIGSTOP)
    fleet.start_node(1)
    log = out / "flower.log"
    wait_for(lambda: "no answer within" in log.read_text() or process.poll() is not None, "the end of round 1")
    os.killpg(fleet.processes["node_2"].pid, signal.SIGCONT)
    assert process.wait(timeout=180) == 0, fleet.log("run-found")
    first, second = _rounds(out)
    assert first["failed"] == {f"{c} (train)": "no answer within 40 s" for c in (1, 2)}
    assert not second["failed"]
    assert finished(out).summary["failures"] == first["failed"]


@pytest.mark.parametrize("victim", ["ServerApp", "SuperLink"])
def test_a_run_is_resumed_after_the_death_of_its(fleet, inline, tmp_path, victim):
    out = tmp_path / "found"
    process = fleet.begin(out, "rounds=4", "checkpoint_every=1")
    wait_for(lambda: _rounds(out), "round 1 to be recorded")
    if victim == "ServerApp":
        os.kill(fleet.descendant("superlink", "flwr-serverapp"), signal.SIGKILL)
    else:
        fleet.kill("superlink")
    import time

    t = time.time()
    print("waiting", victim)
    try:
        print(process.wait(timeout=180), time.time() - t)
    except Exception as e:
        print(e)
    print(fleet.log("run-found"))
    if victim == "SuperLink":
        fleet.start_superlink()
    found = fleet.run(out, f"resume={out}")
    expected = inline("rounds=4")
    assert_same_arrays(found.arrays, expected.arrays)
    assert [r["clients"] for r in found.rounds] == [r["clients"] for r in expected.rounds]
