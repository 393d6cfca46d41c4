"""What a server and a node answer to a monitor."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from fedgraph_flwr.cli.node import Node, Server, monitor_address
from fedgraph_flwr.cli.server import Health
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.monitor import condition, monitor
from fedgraph_flwr.fleet.processes import free_port
from tests.support import PATIENCE

COMPOSE = yaml.safe_load((Path(__file__).parents[2] / "docs" / "fleet" / "compose.yaml").read_text())


def get(address, path):
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_monitor_answers_while_its_process_lives():
    address, problem = ("127.0.0.1", free_port()), []
    pages = {"/ready": condition(lambda: "; ".join(problem)), "/broken": condition(lambda: str(1 // 0))}
    with monitor(address, pages):
        assert get(address, "/ready") == (200, "ok\n")
        problem.append("no server")
        assert get(address, "/ready?x=1") == (503, "no server\n")
        assert get(address, "/broken")[0] == 503
        assert get(address, "/other") == (404, "expected one of: /ready, /broken\n")
        with pytest.raises(FedGraphError, match=r"--monitor .*pass another port"), monitor(address, pages):
            pass
    with pytest.raises(urllib.error.URLError):
        get(address, "/ready")


def test_the_health_check_of_the_containers_reads_the_answer():
    """Their command, as it stands in compose.yaml but for the port."""
    (_, program, *args), address = COMPOSE["services"]["server"]["healthcheck"]["test"], ("127.0.0.1", free_port())
    command = [sys.executable, *(word.replace("9464", str(address[1])) for word in args)]
    problem = [""]
    codes = []
    assert program == "python"
    with monitor(address, {"/ready": condition(lambda: problem[0])}):
        for problem[0] in ("", "no server"):
            codes.append(subprocess.run(command, capture_output=True, check=False).returncode)
    assert codes == [0, 1]


def test_a_monitor_is_on_loopback_unless_its_host_is_given():
    assert monitor_address("") is None
    assert monitor_address("9464") == ("127.0.0.1", 9464)
    assert monitor_address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    for wrong in ("99999", "x", "host:"):
        with pytest.raises(FedGraphError, match="--monitor"):
            monitor_address(wrong)


def test_a_node_is_ready_while_it_is_connected(monkeypatch):
    node = Node([], False, 1, Server("fleet.example.org", 9090, Path("ca.crt")))
    try:
        assert node.not_live() == ""
        for line, reason in [
            ("", "the SuperNode is starting"),
            ("INFO :      SuperNode ID: 5", ""),
            ("WARNING :  Connection attempt failed, retrying in 2.00 seconds", "no connection to the server"),
            ("INFO :      Connection successful after 4.00 seconds and 3 tries.", ""),
        ]:
            node._read(line)
            assert node.not_ready().startswith(reason) if reason else node.not_ready() == ""
        later = time.monotonic() + 500
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert node.not_live().startswith("no look at the SuperNode for")
        assert node.not_ready() == node.not_live()
    finally:
        monkeypatch.undo()
        node.end()


def test_a_server_is_ready_when_its_superlink_responds_and_its_folder_is_writable(tmp_path, monkeypatch):
    responds = [True]
    monkeypatch.setattr("fedgraph_flwr.cli.server.healthy", lambda *_: responds[0])
    monkeypatch.setattr("ssl.create_default_context", lambda **_: None)
    health = Health("https://127.0.0.1:1", Path("ca.crt"), tmp_path)
    assert (health.not_live(), health.not_ready()) == ("", "the SuperLink is starting")
    health.begun = True
    assert (health.not_live(), health.not_ready()) == ("", "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert health.not_ready() == f"cannot write {tmp_path}"
    responds[0] = False
    assert health.not_live() == health.not_ready() == "the SuperLink on https://127.0.0.1:1 does not respond within 3 s"
