"""What a server and a node answer to a monitor."""

import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.node import Node, ServerAddress, monitor_address
from fedgraph_flwr.cli.server import Health, SuperExec
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.monitor import condition, monitor
from fedgraph_flwr.fleet.processes import Process, free_port
from tests.support import PATIENCE, wait_for

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
    node = Node([], False, 1, ServerAddress("fleet.example.org", 9090, Path("ca.crt")))
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


def test_a_waiting_node_keeps_nothing_that_its_checks_import(tmp_path, client_files):
    """Torch and pandas would stay in the memory of a process that only waits."""
    graph = Path(client_files().removeprefix("graph=")) / "client_0000.safetensors"
    assert main(["fleet", "init", str(tmp_path / "keys"), "--trial", "1"]) == 0
    words = [
        "--server",
        "h:1",
        "--key",
        str(tmp_path / "keys" / "node_0"),
        "--graph",
        str(graph),
        "--state",
        str(tmp_path / "s"),
    ]
    code = f"""import sys; from fedgraph_flwr.cli.app import _parse
from fedgraph_flwr.cli.node import supernode_options
from fedgraph_flwr.errors import FedGraphError
supernode_options(args := _parse({["node", *words]!r}))
args.graph = args.key
try: supernode_options(args)
except FedGraphError as error: print(error)
print([name for name in ("torch", "numpy", "scipy", "pandas", "flwr") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    error, modules = done.stdout.splitlines()
    assert "--graph:" in error
    assert modules == "[]"


def test_a_server_is_ready_when_its_superlink_responds_and_its_folder_is_writable(tmp_path, monkeypatch):
    responds = [True]
    monkeypatch.setattr("fedgraph_flwr.cli.server.healthy", lambda *_: responds[0])
    monkeypatch.setattr("ssl.create_default_context", lambda **_: None)
    health = Health("https://127.0.0.1:1", Path("ca.crt"), tmp_path)
    assert (health.not_live(), health.not_ready()) == ("", "the SuperLink is starting")
    health.begun, health.superexec = True, SimpleNamespace(up=True)
    assert (health.not_live(), health.not_ready()) == ("", "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert health.not_ready() == f"cannot write {tmp_path}"
    responds[0] = False
    assert health.not_live() == health.not_ready() == "the SuperLink on https://127.0.0.1:1 does not respond within 3 s"


def test_a_superexec_that_ended_is_started_again(tmp_path, monkeypatch):
    """Flower starts it once, and then every run stays pending; with an expired certificate it ends at once."""
    program = tmp_path / "flower-superexec"
    program.write_text(f"#!/bin/sh\ntest -e {tmp_path}/expired && exit 1\nsleep 600")
    program.chmod(0o755)
    monkeypatch.setattr("fedgraph_flwr.cli.server.tool", lambda name: str(tmp_path / name))
    monkeypatch.setattr("fedgraph_flwr.cli.server.healthy", lambda *_: True)
    monkeypatch.setattr("ssl.create_default_context", lambda **_: None)
    monkeypatch.setattr(SuperExec, "EVERY", 0.0)
    superlink = Process(["sh", "-c", f"{program} & wait; sleep 600"])
    superexec = SuperExec(superlink, "127.0.0.1:1", Path("ca.crt"), {})
    health = Health("https://127.0.0.1:1", Path("ca.crt"), tmp_path)
    health.begun, health.superexec = True, superexec
    now = [time.monotonic()]
    monkeypatch.setattr("fedgraph_flwr.cli.server.time", SimpleNamespace(monotonic=lambda: now[0]))

    def numbers():
        return {metric.name: metric.samples[0][1] for metric in health.metrics(tmp_path)[:2]}

    try:
        wait_for(superexec._runs, "Flower's own")
        superexec.look()
        assert not health.not_ready()
        (child,) = psutil.Process(superlink.pid).children()
        end_family(child)
        (tmp_path / "expired").touch()
        wait_for(lambda: superexec.look() or superexec.process, "another one")
        assert health.not_ready() == "the SuperExec ended, so that no run can start; it is started again"
        wait_for(superexec.process.ended, "its end")
        first = superexec.process
        superexec.look()
        assert superexec.process is first  # it waits
        (tmp_path / "expired").unlink()
        now[0] += 11.0
        superexec.look()
        assert superexec.process is not first
        assert numbers() == {"superexec_up": 0.0, "superexec_restarts_total": 2.0}
        now[0] += 11.0
        superexec.look()
        assert not health.not_ready()
        assert numbers() == {"superexec_up": 1.0, "superexec_restarts_total": 2.0}
        words = shlex.join(superexec.process.command)
        assert words.endswith(
            f"--root-certificates ca.crt --runtime-api-address 127.0.0.1:1 --parent-pid {superlink.pid}"
        )
    finally:
        superexec.end()
        end_family(psutil.Process(superlink.pid))
        superlink.end()


def end_family(process):
    """Kill a process and its children."""
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            one.kill()


def test_a_client_that_goes_away_prints_nothing(capsys):
    """A monitoring system that resets its connection is no error; with JSON lines, a traceback would be no line."""
    address = ("127.0.0.1", free_port())
    begun, gone = threading.Event(), threading.Event()

    def slow():
        begun.set()
        gone.wait(PATIENCE)
        return ""

    with monitor(address, {"/ready": condition(slow)}):
        client = socket.create_connection(address)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets when it closes
        client.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
        begun.wait(PATIENCE)
        client.close()
        gone.set()
        assert get(address, "/other")[0] == 404
        wait_for(lambda: not [one for one in threading.enumerate() if "process_request" in one.name], "the answer")
    out, err = capsys.readouterr()
    assert out + err == ""
