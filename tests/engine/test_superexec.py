"""A server whose SuperExec ends, or ended at the start because of an expired certificate, starts runs all the same."""

import os
import signal
import time
from pathlib import Path

import pytest
from cryptography import x509

from fedgraph_flwr.cli import main
from fedgraph_flwr.fleet.keys import make_certificate, named
from tests.conftest import client_graph
from tests.engine.fleet import ServedFleet
from tests.support import wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.faults]


@pytest.fixture
def fleet(tmp_path: Path):
    """Two nodes, not started."""
    for client, size in enumerate((12, 16)):
        client_graph(client, size).save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    fleet = ServedFleet(tmp_path, tmp_path / "graphs")
    yield fleet
    fleet.stop()


@pytest.mark.parametrize("plain", ["0", "1"])
def test_a_killed_superexec_is_started_again(fleet, plain):
    fleet.environment["FEDGRAPH_PLAIN"] = plain
    fleet.start()
    for name in ("first",) if plain == "1" else ("first", "second"):
        os.kill(fleet.process_id("flower-superexec"), signal.SIGKILL)
        wait_for(lambda: not fleet.ready(), "the server to be not ready", 20.0)
        process = fleet.begin(fleet.folder / name, "rounds=1")
        began = time.monotonic()
        wait_for(fleet.ready, "the server to be ready", 60.0)
        print(f"plain={plain}: ready after {time.monotonic() - began:.0f} s")
        fleet.wait(process)


def test_a_renewed_certificate_lets_runs_start(fleet, monkeypatch):
    """The server was started with an expired one."""
    make_certificate(fleet.keys, "server", "ca", named("localhost"), x509.ExtendedKeyUsageOID.SERVER_AUTH, 0)
    monkeypatch.setattr(fleet, "ready", lambda: "handshake error" in fleet.log("superlink"))
    fleet.start_superlink()  # until Flower's SuperExec ends
    assert "server.crt has ended: run" in fleet.log("superlink")
    assert (
        main(["fleet", "init", str(fleet.keys), "--host", "127.0.0.1"]) == 0
    )  # with the names that the expired one lacks
    monkeypatch.undo()
    wait_for(fleet.ready, "the server to be ready", 60.0)
    fleet.register(0, 1)
    for node in range(2):
        fleet.start_node(node)
    fleet.run(fleet.folder / "run", "rounds=1")
