"""What is patched of Flower: where it has what the patches need, by one switch, and without this project's modules."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import flwr
import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from fedgraph_flwr.cli import main, node, server
from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.fleet import flower_patches

OTHER = (
    r"Flower \d+\.\d+\.\d+ has no 'def flower_supernode\(' in flwr/supernode/cli/flower_supernode\.py and runs unpatched: .*"
    r" Install flwr==\d+\.\d+\.\d+, or set FEDGRAPH_PLAIN=1"
)


@pytest.fixture
def other_version(monkeypatch, tmp_path):
    """A copy of Flower in which one function has another name."""
    assert flower_patches.missing() == ""  # the installed one
    root = Path(flwr.__file__).parent
    for name in flower_patches.NEEDED:
        (tmp_path / "flwr" / name).parent.mkdir(parents=True, exist_ok=True)
        text = (root / name).read_text().replace("def flower_supernode(", "def flower_super_node(")
        (tmp_path / "flwr" / name).write_text(text)
    places = SimpleNamespace(submodule_search_locations=[str(tmp_path / "flwr")])
    monkeypatch.setattr(flower_patches, "find_spec", lambda name: places)
    flower_patches.missing.cache_clear()
    yield
    flower_patches.missing.cache_clear()


@pytest.mark.parametrize("name", sorted(flower_patches.NEEDED))
def test_each_file_that_the_patches_need_is_looked_at(monkeypatch, tmp_path, name):
    """Without any one of its texts, Flower is left as it is."""
    source = (Path(flwr.__file__).parent / name).read_text()
    places = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    (tmp_path / name).parent.mkdir(parents=True)
    monkeypatch.setattr(flower_patches, "find_spec", lambda name: places)
    monkeypatch.setattr(flower_patches, "NEEDED", {name: flower_patches.NEEDED[name]})
    for text in ("", *flower_patches.NEEDED[name]):
        (tmp_path / name).write_text(source.replace(text, "other") if text else source)
        assert bool(flower_patches.missing.__wrapped__()) is bool(text), text


def test_another_version_runs_unmodified_with_a_warning(other_version, monkeypatch):
    warnings = []
    assert flower_patches.unmodified(warnings.append)
    assert re.match(OTHER, *warnings)
    monkeypatch.setenv(flower_patches.PLAIN, "1")
    assert flower_patches.unmodified(warnings.append)
    assert len(warnings) == 1


def test_a_node_beside_another_version_is_flowers_own(other_version, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(node, "supernode_options", lambda args: [])
    monkeypatch.setattr(node.Node, "run", lambda self: started.append(self.plain))
    overrides = ["node", "--server", "127.0.0.1:1", "--key", "key", "--graph", "graph"]
    assert main(overrides) == 1  # a SuperNode that ends by itself is an error
    assert re.search(f"warning: {OTHER}", capsys.readouterr().out)
    assert main([*overrides, "--plain"]) == 1
    assert "warning" not in capsys.readouterr().out
    assert started == [True, True]


def test_a_server_beside_another_version_is_flowers_own(other_version, monkeypatch, capsys, tmp_path):
    started = []

    def start(folder, places, database, runs, plain):
        started.append(plain)
        raise KeyboardInterrupt

    monkeypatch.setattr(
        server, "read_fleet", lambda folder: (SimpleNamespace(guarded=False, superlink="127.0.0.1:1"), None)
    )
    monkeypatch.setattr(server, "start", start)
    assert main(["server", "keys", "--runs", str(tmp_path / "runs")]) == 0
    assert re.search(f"warning: {OTHER}", capsys.readouterr().out)
    assert started == [True]


def test_a_server_app_beside_another_version_keeps_flowers_grid(other_version, monkeypatch, caplog, tmp_path):
    from flwr.app import Context

    from fedgraph_flwr import server_app
    from fedgraph_flwr.launch import serving

    class HttpGrid:
        """As a fleet's is called."""

    grids = []
    summary = {"metrics": {}, "bytes_up": 1, "bytes_down": 2, "rounds": 1, "total_seconds": 3.0, "failures": {}}
    monkeypatch.setattr(serving, "serve", lambda grid, cfg, on_round: grids.append(grid) or summary)
    monkeypatch.setattr(flower_patches, "quicken_pulls", lambda longest: pytest.fail("Flower was changed"))
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    config = {"overrides": f"out={tmp_path}", "config": "", "num-clients": 2}
    server_app.main(HttpGrid(), Context(1, 0, {}, RecordDict(), config))
    assert type(grids[0].grid) is HttpGrid
    assert re.search(OTHER, caplog.text)


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_switch(monkeypatch, value, off):
    monkeypatch.setenv(flower_patches.PLAIN, value)
    assert flower_patches.plain() is off


def test_all_that_is_replaced_is_there_and_takes_what_it_is_given():
    """Names of Flower's own, looked up as `supernode` and `executor` do: a new version that moves one fails here first."""
    import inspect

    from flwr.supercore.superexec import run_superexec
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.runtime import run_clientapp

    assert {"state", "object_store"} <= inspect.signature(loop._push_messages).parameters.keys()
    assert "time.sleep(3)" in inspect.getsource(loop.start_client_internal)
    assert loop.time is time
    assert callable(run_superexec.get_executor)
    assert callable(run_superexec._get_task_poll_interval)
    assert "skip_prompt" in inspect.signature(run_clientapp.install_from_fab).parameters
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        assert "initial_backoff" in function.__kwdefaults__


def test_pulls_are_quickened(monkeypatch):
    functions = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    for function in functions:
        monkeypatch.setitem(function.__kwdefaults__, "initial_backoff", 1)
        monkeypatch.setitem(function.__kwdefaults__, "max_time", 7200)
    flower_patches.quicken_pulls()
    assert all(function.__kwdefaults__["initial_backoff"] == flower_patches.BACKOFF for function in functions)
    assert all(function.__kwdefaults__["max_time"] == 7200 for function in functions)

    def never(object_id):
        raise inflatable_utils.ObjectUnavailableError(object_id)

    flower_patches.quicken_pulls(longest=0.1)
    with pytest.raises(inflatable_utils.ObjectPullError):
        inflatable_utils.pull_objects(["of a node that died"], never)


@pytest.mark.slow
def test_the_executors_imports_leave_out_this_projects_modules_and_threads():
    """What it preloads, in a process of its own: modules of the bundle that were there already would not be the bundle's."""
    script = f"""import runpy, sys, threading, os, importlib
space = runpy.run_path({flower_patches.__file__!r}, run_name="adjusted")
for name in space["PRELOADED"]: importlib.import_module(name)
ours = [name for name in sys.modules if name.split(".")[0] == "fedgraph_flwr"]
print(ours, threading.active_count(), len(os.listdir("/proc/self/task")))
print("torch" in sys.modules and sys.modules["torch"].cuda.is_initialized())"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[] 1 1", "False"]


def test_looks_follow_the_schedule_of_the_rounds():
    schedule = flower_patches.PollSchedule()
    assert schedule.pause(0.0) == flower_patches.IDLE
    schedule.begin(100.0)
    assert schedule.pause(100.0) == flower_patches.SHORTEST
    schedule.came(102.0)  # it took 2 s
    schedule.begin(103.0)
    assert schedule.pause(103.0) == pytest.approx(1.6)
    assert schedule.pause(104.6) == pytest.approx(0.16)
    assert schedule.pause(113.0) == pytest.approx(1.0)
    assert schedule.pause(1000.0) == flower_patches.IDLE


def test_what_is_there_at_the_first_look_is_looked_for_earlier_the_next_time():
    schedule = flower_patches.PollSchedule()
    schedule.begin(0.0)
    schedule.pause(0.0)
    schedule.came(2.0)
    for first_look in (1.6, 0.8 * 0.7 * 1.6):  # each is what the former leaves
        schedule.begin(10.0)
        assert schedule.pause(10.0) == pytest.approx(first_look)
        schedule.came(10.0 + first_look)
    schedule.begin(20.0)
    schedule.pause(20.0)
    schedule.pause(20.0 + schedule.took)  # the first look found nothing
    schedule.came(21.0)
    assert schedule.took == pytest.approx(1.0)


@pytest.fixture
def state():
    """A SuperNode's state with one question of run 7 and its task."""
    objects = ObjectStoreFactory()
    state, store = NodeStateFactory(objectstore_factory=objects).state(), objects.store()
    state.set_node_id(5)
    with run_identity(7):
        question = Message(RecordDict(), 5, "train")
        question.metadata.__dict__["_message_id"] = question.object_id
    state.store_message(question)
    task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=7, fab_hash="a")
    return SimpleNamespace(state=state, store=store, question=question, task=task)


def test_a_task_that_ended_without_a_reply_is_answered_for(state):
    assert flower_patches._open_tasks(state.state)
    assert state.state.claim_task(state.task)
    assert flower_patches._open_tasks(state.state)  # it may still speak
    assert state.state.finish_task(state.task, SubStatus.FAILED, "")
    assert not flower_patches._open_tasks(state.state)
    assert not flower_patches._complete(state.state, state.store)
    flower_patches._reply_for_crashed_task(state.state, state.store)
    assert flower_patches._complete(state.state, state.store)
    (reply,) = state.state.get_messages_legacy(is_reply=True)
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == state.question.metadata.message_id


def test_what_flower_ignored_is_forgotten(state):
    """A message without its objects, of a run that has ended: a client would wait for them, and the next message for it."""
    from flwr.supercore.inflatable.inflatable_object import get_object_tree

    state.store.preregister(7, get_object_tree(state.question))
    assert state.state.claim_task(state.task)
    flower_patches._forget(state.state, state.store)
    assert not flower_patches._unanswered(state.state)
    assert not flower_patches._open_tasks(state.state)
    assert state.store.get(state.question.metadata.message_id) is None
    flower_patches._forget(state.state, state.store)  # nothing is left to forget


def test_half_a_reply_is_none(state):
    from flwr.supercore.inflatable.inflatable_object import get_object_tree

    with run_identity(7):
        reply = Message(RecordDict(), reply_to=state.question)
        reply.metadata.__dict__["_message_id"] = reply.object_id
    state.state.store_message_and_object_tree(reply, get_object_tree(reply), state.state.start_session(7))
    assert not flower_patches._complete(state.state, state.store)
    flower_patches._reply_for_crashed_task(state.state, state.store)
    (received,) = state.state.get_messages_legacy(is_reply=True)
    assert received.has_error()


def test_a_bundle_is_unpacked_once_and_again_where_it_is_gone(tmp_path):
    installed, calls = tmp_path / "app", []

    def install(content: bytes, skip_prompt: bool) -> Path:
        calls.append(content)
        installed.mkdir(exist_ok=True)
        return installed

    (tmp_path / "markers").mkdir()
    for content in (b"one", b"one", b"another"):
        assert flower_patches._install_once(install, tmp_path / "markers", content, skip_prompt=True) == installed
    assert calls == [b"one", b"another"]
    installed.rmdir()
    flower_patches._install_once(install, tmp_path / "markers", b"one", skip_prompt=True)
    assert calls == [b"one", b"another", b"one"]


def test_a_fork_beside_a_thread_is_refused(tmp_path):
    import threading

    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        with pytest.raises(RuntimeError, match=r"the executor has \d+ threads, expected 1"):
            flower_patches.ForkingExecutor(0, tmp_path / "lock", os.getpid(), os.getppid()).launch(SimpleNamespace())
    finally:
        stop.set()
        other.join()


@pytest.mark.slow
def test_what_a_child_compiles_is_kept_for_the_next_one_and_not_in_the_app(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "bundled.py").write_text("print('a child of', __name__)")
    script = f"""import os, runpy, sys
from pathlib import Path
from types import SimpleNamespace
from flwr.supernode.runtime import run_clientapp
space = runpy.run_path({flower_patches.__file__!r}, run_name="adjusted")
sys.path.insert(0, {str(app)!r})
run_clientapp.run_clientapp = lambda **_: sys.exit(bool(not __import__("bundled")))
one = space["ForkingExecutor"](os.pipe()[0], Path({str(tmp_path / "task")!r}), os.getpid(), os.getppid())
one.held = os.open(one.lock, os.O_RDWR | os.O_CREAT)
names = ("runtime_api_address", "token", "insecure", "runtime_dependency_install")
one.launch(SimpleNamespace(**dict.fromkeys(names)))
print(os.waitpid(one.child, 0)[1], "bundled" in sys.modules)"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["a child of bundled", "0 False"]
    assert [path.name for path in app.iterdir()] == ["bundled.py"]
    assert len(list((tmp_path / "bytecode").rglob("bundled.*.pyc"))) == 1


def test_a_failed_handshake_is_tried_again(monkeypatch):
    """Flower takes it as final: a load balancer without a server accepts and closes."""
    import httpx
    from flwr.supernode import fleet_http_connection as connection

    monkeypatch.setattr(connection, "make_simple_http_retry_invoker", connection.make_simple_http_retry_invoker)
    monkeypatch.setattr(connection, "HeartbeatSender", connection.HeartbeatSender)
    flower_patches.keep_connection(Path("heartbeat"))
    invoker = connection.make_simple_http_retry_invoker()
    monkeypatch.setattr(invoker, "wait_function", lambda seconds: None)
    tries = iter([httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"), None])

    def call():
        if error := next(tries):
            raise error
        return "answer"

    assert invoker.invoke(call) == "answer"
    refused = httpx.HTTPStatusError("no", request=httpx.Request("GET", "https://h"), response=httpx.Response(404))
    with pytest.raises(httpx.HTTPStatusError):
        invoker.invoke(lambda: (_ for _ in ()).throw(refused))


def test_answered_heartbeats_are_noted_and_a_supernode_without_them_ends(monkeypatch, tmp_path):
    from flwr.supernode import fleet_http_connection as connection

    monkeypatch.setattr(connection, "make_simple_http_retry_invoker", connection.make_simple_http_retry_invoker)
    monkeypatch.setattr(connection, "HeartbeatSender", connection.HeartbeatSender)
    ended = []
    monkeypatch.setattr(os, "kill", lambda *args: ended.append(args))
    (path := tmp_path / "heartbeat").touch()
    flower_patches.keep_connection(path)
    answers = iter([True])
    sender = connection.HeartbeatSender(lambda: next(answers))
    sender._stop_event.wait = lambda seconds: False
    before = time.monotonic()
    with pytest.raises(StopIteration):  # as after a reply with status 404, which Flower does not expect
        sender._run()
    assert before - 1e-3 <= path.stat().st_mtime <= time.monotonic()
    assert ended == [(os.getpid(), signal.SIGTERM)]
