"""Months of three members who agreed on their runs: real processes, on loopback."""

import pytest

from fedgraph_flwr import cli
from tests.conftest import client_graph
from tests.engine.fleet import COMMAND, NAME, Fleet, finished
from tests.support import PATIENCE

pytestmark = [pytest.mark.fleet, pytest.mark.faults]

WORDS = [
    "num_clients=3",
    "rounds=2",
    "model.hidden=8",
    "model.dropout=0",
    "privacy.secagg=true",
    "strategy.weighting=uniform",
]


@pytest.fixture
def members(tmp_path):
    """A fleet whose nodes accept the runs of one agreement."""
    for client in range(3):
        client_graph(client, 40).save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    fleet = Fleet(tmp_path, tmp_path / "graphs")
    agreement = tmp_path / "agreement.yaml"
    named = [word for i in range(3) for word in ("--member", f"bank_{i}={fleet.keys / f'node_{i}.pub'}")]
    terms = ["--name", "rings", "--purpose", "a test", "--until", "2099-01-01", "--runs", "3", "--out", str(agreement)]
    assert cli.main(["agree", "new", *WORDS, f"engine={NAME}", *named, *terms]) == 0
    for client in range(3):
        assert cli.main(["agree", "sign", str(agreement), "--key", str(fleet.keys / f"node_{client}")]) == 0
    try:
        fleet.start_superlink()
        fleet.register(0, 1, 2)
        for client in range(3):
            fleet.start_node(client, agreement=str(agreement))
        yield fleet, agreement
    finally:
        fleet.stop()


def test_months_of_an_agreement_and_no_other_run(members, tmp_path):
    fleet, agreement = members

    def month(name, *words):
        command = [*COMMAND, "run", "--quiet", "--no-report", "--agreement", str(agreement), f"engine={NAME}"]
        return fleet._spawn(f"run-{name}", [*command, f"out={tmp_path / name}", *words])

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
