"""Parties that trust nobody, as real processes: their policies, their pinned keys, and a node that claims another's index."""

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import client_graph
from tests.engine.fleet import NAME, Fleet
from tests.support import PATIENCE, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.faults]

POLICY = "strategies: [fedprox]\nmin_clients: 3\nmin_nodes: 0\nrequired_config: {privacy.secagg: true}\n"
SIZES = (12, 16, 20)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three SuperNodes that sign their keys and pin the others'; the second has a policy."""
    folder = tmp_path_factory.mktemp("strangers")
    for client, size in enumerate(SIZES):
        client_graph(client, size).save(folder / "graphs" / f"client_{client:04d}.safetensors")
    (folder / "policy.yaml").write_text(POLICY)
    fleet = Fleet(folder, folder / "graphs")
    fleet.make_keys("--trial", str(len(SIZES) + 1))
    (folder / "peers").mkdir()
    for node in range(len(SIZES)):
        shutil.copy(fleet.keys / f"node_{node}.pub", folder / "peers")
    try:
        fleet.start_superlink()
        fleet.register(*range(len(SIZES)))
        for node in range(len(SIZES)):
            options = {"policy": str(folder / "policy.yaml")} if node == 1 else {}
            fleet.start_node(node, key=str(fleet.keys / f"node_{node}"), peers=str(folder / "peers"), **options)
        yield fleet
    finally:
        fleet.stop()


def test_a_run_outside_a_partys_policy_is_refused_by_its_node(fleet, tmp_path):
    message = r"this node's policy refuses strategy=fedavg \(client .*\): it accepts strategies fedprox"
    assert fleet.begin(tmp_path / "outside", "rounds=1").wait(PATIENCE) == 1
    assert re.search(rf"error: 2 of 3 clients registered; (?:node )?[\w ]+: {message}", fleet.log("run-outside"))
    assert re.search(message, fleet.log("node_1"))
    assert not re.search("policy refuses", fleet.log("node_0") + fleet.log("node_2"))


def test_a_run_inside_it_goes_on_though_a_late_node_claims_an_index(fleet, tmp_path):
    """Secure sums under pinned keys; all parties can read out the same fingerprints."""
    out = tmp_path / "inside"
    overrides = ["strategy=fedprox", "privacy.secagg=true", "strategy.min_clients=3", "rounds=60"]
    process = fleet.begin(out, *overrides)
    wait_for(lambda: "secagg_keys 1" in fleet.log("node_0"), "round 1 to begin")
    late = len(SIZES)
    fleet.flwr("supernode", "register", str(fleet.keys / f"node_{late}.pub"), NAME)
    fleet.files.append(fleet.files[1])  # the graph, and so the index, of another party
    fleet.start_node(late)
    fleet.files.pop()
    message = r"warning: node (\d+) is refused: it claims to be client 1, which is node (\d+) and still replies"
    wait_for(lambda: bool(re.search(message, fleet.log("run-inside"))), "the late node to be refused")
    process.terminate()
    assert process.wait(PATIENCE) == 130
    last = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])
    assert not last["failed"]
    assert last["clients"]["test-count"] == [3.0, 4.0, 5.0]
    match = re.search(r"SuperNode ID: (\d+)", fleet.log(f"node_{late}"))
    assert match[1] == re.search(message, fleet.log("run-inside"))[1]
    assert "train message" not in fleet.log(f"node_{late}")
    lines = [
        re.findall(r"keys of clients 0, 1, 2 \(secagg_keys 1 0\): [\d ]{47}", fleet.log(f"node_{i}")) for i in range(3)
    ]
    assert lines[0]
    assert lines[0] == lines[1] == lines[2]
    fleet.kill(f"node_{late}")
    fleet.flwr("supernode", "unregister", match[1], NAME)  # other tests have three nodes
