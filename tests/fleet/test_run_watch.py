"""What a server notices of the ends of runs, and writes into their folders."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore import sql_mixin
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from sqlalchemy import create_engine, event, text

from fedgraph_flwr.cli import main, superlink
from fedgraph_flwr.engine.flower import _result
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.fleet.audit_chain import append
from fedgraph_flwr.fleet.certificates import key_of, revoke
from fedgraph_flwr.fleet.overview import joined, lines
from fedgraph_flwr.fleet.run_watch import DIED, RunWatch
from fedgraph_flwr.fleet.status import RunStatus, read_status
from fedgraph_flwr.report.listing import listed
from tests.support import wait_for


class State:
    """Flower's state of one run."""

    def __init__(self):
        self.status = SimpleNamespace(status="running", sub_status="", details="")
        self.finished = []
        self.token = "secret"

    def get_task_by_token(self, token):
        return SimpleNamespace(task_id=7, run_id=5) if token == self.token else None

    def get_run_info(self, run_ids):
        assert run_ids == [5]
        return [SimpleNamespace(status=self.status)]

    def finish_task(self, *args):
        self.finished.append(args)


@pytest.fixture
def app(tmp_path):
    """A process that Flower would have started, and nobody waits for."""
    (program := tmp_path / "flwr-serverapp").write_text("import time; time.sleep(600)")
    process = subprocess.Popen([sys.executable, str(program), "--insecure", "--token", "secret"])
    wait_for(lambda: str(program) in psutil.Process(process.pid).cmdline(), "the program to start")
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("status", "expected", "finished"),
    [
        (("running", "", ""), [(5, "lost", DIED)], [(7, "failed", DIED)]),
        (("finished", "stopped", ""), [(5, "stopped", "the run was stopped (flwr stop)")], []),
        (("finished", "failed", "ServerApp failed: x"), [(5, "failed", "ServerApp failed: x")], []),
        (("finished", "completed", ""), [], []),
    ],
)
def test_the_end_of_a_server_app_is_seen_at_the_next_look(app, status, expected, finished):
    state, ends = State(), []
    watch = RunWatch(state, lambda *end: ends.append(end))
    watch.look()
    watch.look()
    assert ends == []
    state.status = SimpleNamespace(status=status[0], sub_status=status[1], details=status[2])
    app.kill()
    wait_for(lambda: psutil.Process(app.pid).status() == psutil.STATUS_ZOMBIE, "its end")
    watch.look()
    assert ends == []  # a process in the middle of its start may be missed once
    watch.look()
    watch.look()
    assert (ends, state.finished) == (expected, finished)


def test_a_process_that_started_too_late_is_not_the_end_of_its_run(app):
    """On a busy machine Flower withdraws the token of a process that takes over 30 s to start, and starts another."""
    state, ends = State(), []
    watch = RunWatch(state, lambda *end: ends.append(end))
    watch.look()
    state.token = "of another process"
    app.kill()
    wait_for(lambda: psutil.Process(app.pid).status() == psutil.STATUS_ZOMBIE, "its end")
    for _ in range(3):
        watch.look()
    assert (ends, state.finished, watch.apps) == ([], [], {})


@pytest.fixture
def folder(tmp_path):
    """A run of Flower's number 5, with a checkpoint; its process is this one."""
    (folder := tmp_path / "runs" / "first").mkdir(parents=True)
    (folder / "config.yaml").write_text("rounds: 4\nstrategy: {name: fedavg}\nseed: 0\n")
    (folder / "checkpoint.safetensors").touch()
    RunStatus(folder, 5, rounds=4).write()
    return folder


def test_a_dead_run_has_a_failure_and_the_command_that_resumes(folder):
    superlink.record_end(folder.parent, 6, "lost", DIED)  # another run
    assert not (folder / "failure.json").exists()
    superlink.record_end(folder.parent, 5, "lost", DIED)
    status = read_status(folder)
    assert (status["state"], status["waiting"]) == ("lost", [])
    assert status["reason"] == f"{DIED}; resume=RUN continues from its last checkpoint"
    with pytest.raises(RunFailed) as error:
        _result(folder)
    assert str(error.value) == f"{DIED}; to continue, run: fedgraph-flwr run resume={folder}"
    ((state, reason),) = [(run["state"], run["reason"]) for run in listed(folder.parent)]
    assert (state, reason) == ("failed", DIED)
    (folder / "failure.json").unlink()
    superlink.record_end(folder.parent, 5, "lost", DIED)  # it has an end
    assert not (folder / "failure.json").exists()


def test_a_stopped_run_is_listed_as_stopped_and_the_data_of_a_fleet_as_unknown(folder, capsys):
    for action, who in (("start", "CN=bob"), ("stop", "CN=eve")):
        append(folder.parent, {"action": action, "subject": "5", "operator": who, "address": ""})
    superlink.record_end(folder.parent, 5, "stopped", "the run was stopped (flwr stop)")
    (run,) = superlink.listing(folder.parent, {"state": "stopped"})
    assert (run["run"], run["dataset"], run["status"]["state"]) == ("first", "unknown", "stopped")
    (shown,) = joined([{"run-id": "5", "status": "finished:stopped"}], [{**run["status"], "run": "first"}], [])
    assert "stopped by CN=eve" in lines({"nodes": [], "runs": [shown]})[-1]
    assert main(["runs", str(folder.parent)]) == 0
    assert "stopped, 0 of 4" in capsys.readouterr().out


def test_requests_wait_for_a_locked_database(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    superlink.wait_for_database(sql_mixin)
    engine = create_engine(f"sqlite:///{tmp_path / 'superlink.db'}")
    event.listen(engine, "connect", sql_mixin._set_sqlite_pragmas)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 60000
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_a_server_registers_no_removed_key_whoever_asks(tmp_path):
    assert main(["fleet", "init", str(tmp_path), "--trial", "2"]) == 0
    asked = []
    handlers = SimpleNamespace(register_node=lambda request, account: asked.append(request) or "registered")
    superlink.refuse_removed_keys(handlers, tmp_path)
    first, second = (
        SimpleNamespace(public_key=public_key_to_bytes(load_ssh_public_key((tmp_path / f"node_{i}.pub").read_bytes())))
        for i in range(2)
    )
    assert handlers.register_node(first, None) == "registered"
    revoke(tmp_path, key_of((tmp_path / "node_0.pub").read_text(), ""), "node_0.pub")
    with pytest.raises(FlowerError) as error:
        handlers.register_node(first, None)
    assert error.value.public_details == "it was removed from this fleet"
    assert handlers.register_node(second, None) == "registered"
    assert handlers.register_node(SimpleNamespace(public_key=b"no key"), None) == "registered"  # Flower refuses it
