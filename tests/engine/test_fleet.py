"""A fleet on loopback, with real processes: the parameters of the in-process engine, and what happens when parts of it die."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedgraph_flwr.config import PrivacyConfig
from fedgraph_flwr.secure.accounting import RELATION, cost
from tests.conftest import client_graph
from tests.engine.fleet import ROOT, Fleet
from tests.engine.misbehaving import WRONG
from tests.nodes import party_nodes
from tests.support import PATIENCE, assert_same_arrays, same_result, wait_for, wait_for_end


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink with a database and three SuperNodes with state folders."""
    folder = tmp_path_factory.mktemp("fleet")
    for client, size in enumerate((12, 16, 20)):
        client_graph(client, size, num_edge_features=2).save(folder / "graphs" / f"client_{client:04d}.safetensors")
    fleet = Fleet(folder, folder / "graphs")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def inline(fleet: Fleet, run: Callable[..., Any]) -> Callable[..., Any]:
    """The same overrides on the in-process engine."""
    return lambda *overrides: run(f"graph={fleet.graphs}", *overrides)


def _rounds(out: Path) -> list[dict[str, Any]]:
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


SAMPLERS = [
    ["train.sampler=neighbors", "train.batch_size=5", "train.fanout=[3,2]"],
    ["train.sampler=clusters", "train.clusters=4", "train.clusters_per_batch=2"],
    ["train.sampler=saint", "train.batch_size=6"],
]


@pytest.mark.fleet
@pytest.mark.faults
def test_a_fleet_gives_the_parameters_of_the_inline_engine(fleet, inline, tmp_path):
    overrides = ["rounds=3", "model=gine", *SAMPLERS[0]]
    fleet_run, expected = fleet.run(tmp_path / "found", *overrides), inline(*overrides)
    assert_same_arrays(fleet_run.arrays, expected.arrays)
    assert [r["clients"] for r in fleet_run.rounds] == [r["clients"] for r in expected.rounds]
    for key in ("exchanges_per_round", "setup_exchanges", "bytes_up", "bytes_down", "bytes_by_phase", "failures"):
        assert fleet_run.summary[key] == expected.summary[key], key
    assert fleet_run.summary["exchanges_per_round"] == 1


@pytest.mark.parametrize("overrides", [[], ["model=gine"], *SAMPLERS])
def test_parties_nodes_give_the_parameters_of_the_inline_engine(run, tmp_path, overrides, monkeypatch):
    """All but the processes of a fleet: files, policies and state folders of their own, and Flower's protobuf.

    CI's fleets are those of `tests.engine.test_between_page` (FedGCN's and FedStruct's bits) and of the next test (secure sums).
    """
    overrides = ["rounds=3", *overrides]
    expected = run(*overrides, num_edge_features=2)
    (policy := tmp_path / "policy.yaml").write_text("min_nodes: 0\nsamplers: [none, neighbors, clusters, saint]\n")
    party_nodes(monkeypatch, sorted(Path(expected.cfg.graph).glob("*.safetensors")), policy, tmp_path)
    party_run = run(*overrides, f"graph={expected.cfg.graph}")
    same_result(party_run, expected)
    for key in ("exchanges_per_round", "setup_exchanges", "bytes_up", "bytes_down", "bytes_by_phase", "failures"):
        assert party_run.summary[key] == expected.summary[key], key


NOISY = ["strategy.weighting=uniform", "privacy.secagg=true", "privacy.secagg_bits=20", "privacy.dp=distributed"]
NOISY += ["privacy.noise_multiplier=4", "privacy.clipping_norm=0.5", "rounds=2", "strategy.timeout=120"]


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_distributed_noise_on_a_fleet_is_that_of_the_inline_engine(fleet, inline, tmp_path):
    """With noise that nodes seed, bit for bit; ε is the accountant's of two releases to three clients."""
    overrides = [*NOISY, "strategy.client=tests.engine.seeded:Seeded"]
    fleet_run, expected = fleet.run(tmp_path / "found", *overrides), inline(*overrides)
    assert_same_arrays(fleet_run.arrays, expected.arrays)
    assert [r["clients"] for r in fleet_run.rounds] == [r["clients"] for r in expected.rounds]
    for key in ("exchanges_per_round", "setup_exchanges", "failures"):
        assert fleet_run.summary[key] == expected.summary[key], key
    rules = PrivacyConfig("distributed", 4, clipping_norm=0.5, secagg=True, secagg_bits=20)
    epsilon = cost(rules, 3, 2)
    booked = {"epsilon": epsilon, "delta": 1e-5, "releases": 2, "noise": "distributed", "relation": RELATION}
    assert fleet_run.summary["privacy"] == booked
    assert [r["privacy"]["epsilon"] for r in fleet_run.rounds] == [cost(rules, 3, t) for t in (1, 2)]


@pytest.mark.fleet
@pytest.mark.faults
def test_answers_that_are_wrong_are_named_and_left_out(fleet, inline, tmp_path):
    overrides = ["rounds=3", "strategy.client=tests.engine.misbehaving:Misbehaving"]
    fleet_run, expected = fleet.run(tmp_path / "found", *overrides), inline(*overrides)
    messages = {
        "error": "RuntimeError (misbehaving.py, line",
        "nan": "not finite",
        "shapes": "of shape",
        "names": "without model/head.bias",
        "phase": "without model/head.bias",
    }
    for record in fleet_run.rounds:
        wrong = {client: fault for (server_round, client), fault in WRONG.items() if server_round == record["round"]}
        # Scores of a round's model travel with the next round's replies.
        unscored = {client for server_round, client in WRONG if server_round == record["round"] + 1}
        named = {f"{client} (train)" for client in wrong} | {f"{client} (scores)" for client in unscored}
        assert record["failed"].keys() == named
        assert all(messages[fault] in record["failed"][f"{client} (train)"] for client, fault in wrong.items())
    assert_same_arrays(fleet_run.arrays, expected.arrays)


@pytest.mark.fleet
@pytest.mark.faults
def test_a_run_ends_when_fewer_than_the_minimum_cohort_answer(fleet, tmp_path):
    out = tmp_path / "found"
    trained = fleet.log("node_2").count("train message")
    process = fleet.begin(out, "rounds=60", "strategy.timeout=30", "strategy.min_clients=3")
    wait_for(lambda: fleet.log("node_2").count("train message") > trained, "node 2 to be asked to train")
    os.killpg(fleet.processes["node_2"].pid, signal.SIGSTOP)
    try:
        assert process.wait(PATIENCE) == 1
    finally:
        os.killpg(fleet.processes["node_2"].pid, signal.SIGCONT)
    message = r"error: round \d+, train: 2 of 3 clients sent a valid reply, expected at least 3 .*; client 2: \w"
    assert re.search(message, fleet.log("run-found"))
    assert "warning: round" in fleet.log("run-found")


@pytest.mark.fleet
@pytest.mark.faults
def test_a_node_that_is_killed_and_one_that_never_answers_are_named_and_come_back(fleet, tmp_path):
    out = tmp_path / "found"
    trained = fleet.log("node_1").count("Receiving: train")
    process = fleet.begin(out, "rounds=60", "strategy.timeout=30")
    wait_for(lambda: fleet.log("node_1").count("Receiving: train") > trained + 1, "node 1 to be asked a second time")
    fleet.kill("node_1")
    os.killpg(fleet.processes["node_2"].pid, signal.SIGSTOP)
    for failed in (r"clients? (1|1, 2) failed: ", r"clients? (2|1, 2) failed: "):
        wait_for(lambda failed=failed: re.search(failed, (out / "flower.log").read_text()), failed)
    os.killpg(fleet.processes["node_2"].pid, signal.SIGCONT)
    fleet.restart_node(1)
    wait_for(lambda: len(_rounds(out)) > 1 and not _rounds(out)[-1]["failed"], "a round without a failure")
    process.terminate()
    assert process.wait(PATIENCE) == 130
    records = _rounds(out)
    named = set().union(*(record["failed"] for record in records))
    assert {"1 (train)", "2 (train)"} <= named
    assert not any(name.startswith("0 ") for name in named)
    assert records[-1]["clients"]["test-count"] == [3.0, 4.0, 5.0]


@pytest.mark.fleet
@pytest.mark.faults
def test_a_secure_sum_of_three_ends_when_a_node_is_killed_between_its_phases(fleet, tmp_path):
    """Node 1 has dealt its shares in round 2 when it dies: three clients tolerate no dropout (t = 3)."""
    overrides = ["rounds=4", "strategy.timeout=120", "strategy.client=tests.engine.misbehaving:Falling"]
    out, asked = tmp_path / "found", "Receiving: train message"
    trained = fleet.log("node_1").count(asked)
    process = fleet.begin(out, *overrides, "privacy.secagg=true")
    wait_for(lambda: fleet.log("node_1").count(asked) > trained + 1, "client 1 to be asked for a second term")
    fleet.kill("node_1")
    fleet.restart_node(1)
    assert process.wait(2 * PATIENCE) == 1
    message = r"round 2, train: 2 of 3 clients sent a valid reply, expected at least 3 for a secure sum"
    assert re.search(message, fleet.log("run-found"))
    assert [record["round"] for record in _rounds(out)] == [1]


@pytest.mark.fleet
@pytest.mark.faults
@pytest.mark.parametrize("victim", ["ServerApp", "SuperLink"])
def test_a_run_is_resumed_after_the_death_of_its(fleet, inline, tmp_path, victim):
    out = tmp_path / "found"
    process = fleet.begin(out, "rounds=3", "checkpoint_every=1")
    wait_for((out / "checkpoint.safetensors").is_file, "round 1 to end")
    server_app = psutil.Process(fleet.process_id("flwr-serverapp"))
    if victim == "ServerApp":
        server_app.kill()
    else:
        fleet.kill("superlink")
    assert process.wait(PATIENCE) == 1
    assert "error: " in fleet.log("run-found")
    if victim == "SuperLink":
        wait_for_end([server_app])  # until then, its folder is in use
        fleet.start_superlink()
    resumed_run = fleet.run(out, f"resume={out}")
    expected = inline("rounds=3")
    assert_same_arrays(resumed_run.arrays, expected.arrays)
    assert [r["clients"] for r in resumed_run.rounds] == [r["clients"] for r in expected.rounds]


@pytest.mark.fleet
@pytest.mark.faults
def test_a_run_resumes_that_wrote_a_checkpoint_while_a_node_was_down(fleet, tmp_path):
    """First while the node is still down, so that it restores its state once it is back; then with all nodes."""
    out = tmp_path / "found"
    trained = fleet.log("node_1").count("Receiving: train")
    process = fleet.begin(out, "rounds=200", "checkpoint_every=2", "strategy.timeout=30", "strategy=local")
    wait_for(lambda: fleet.log("node_1").count("Receiving: train") > trained + 4, "node 1 to store a state")
    fleet.kill("node_1")
    text = r"the checkpoint of round \d+ has an earlier state of client 1 \(round \d+\)"
    wait_for(lambda: re.search(text, (out / "flower.log").read_text()), "a checkpoint without node 1")

    def cut(process: subprocess.Popen[bytes]) -> None:
        psutil.Process(fleet.process_id("flwr-serverapp")).kill()
        assert process.wait(PATIENCE) == 1

    cut(process)
    process = fleet.begin(out, f"resume={out}")
    wait_for(lambda: "client 1 has not joined" in (out / "flower.log").read_text(), "the run to go on without node 1")
    done = len(_rounds(out))
    wait_for(lambda: len(_rounds(out)) > done, "a round without node 1")
    fleet.restart_node(1)
    wait_for(lambda: len(_rounds(out)) > done and not _rounds(out)[-1]["failed"], "a round with node 1")
    cut(process)
    last = len(_rounds(out)) + 4
    assert not fleet.run(out, f"resume={out}", f"rounds={last}").rounds[-1]["failed"]


@pytest.mark.fleet
@pytest.mark.faults
def test_three_banks_train_on_a_fleet_and_one_predicts_alone(tmp_path):
    """The script of `examples/banks`, shortened: SuperLink and SuperNodes of its own, gone when the party predicts."""
    script = ROOT / "examples" / "banks" / "banks.py"
    args = [sys.executable, str(script), str(tmp_path / "work"), "--customers", "800", "--rounds", "2", "--fleet"]
    args += ["--methods", "ditto"]
    environment = {**os.environ, "FEDGRAPH_DATA": str(tmp_path / "root"), "PYTHONPATH": str(ROOT)}
    environment |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
    done = subprocess.run(args, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "predict state_0" in done.stdout
    assert float(done.stdout.rpartition("differs by at most ")[2]) < 1e-6
