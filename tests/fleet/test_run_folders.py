"""Run folders of a server, over HTTP without Flower: what an operator lists and copies, and what nobody gets."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.superlink import listing, nodes_and_runs
from fedgraph_flwr.config import RunConfig, compose, configuration, to_yaml
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.processes import free_port
from fedgraph_flwr.fleet.run_folders import LIST, READ, ServerRuns, add_routes, files_of, run_folder
from fedgraph_flwr.launch.serving import serve as serve_run
from fedgraph_flwr.server_app import in_folder_of_runs
from fedgraph_flwr.store.checkpoint import DATA
from fedgraph_flwr.store.folder import InUse, owned
from tests.support import wait_for


def serve(app: Starlette) -> Iterator[str]:
    """Serve an application on loopback and yield its address."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started, "the server to listen")
    yield f"127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folder of runs of a server: one finished run, a lock, a state folder, and a link to a secret."""
    root = tmp_path_factory.mktemp("server") / "runs"
    (root / "first" / "state").mkdir(parents=True)
    (root / "first" / "config.yaml").write_text(to_yaml(RunConfig(seed=7)))
    (root / "first" / "rounds.jsonl").write_text('{"round": 1, "seconds": 1.0}\n')
    (root / "first" / "summary.json").write_text('{"headline": "test_accuracy at last", "test_accuracy": 0.75}')
    (root / "first" / "model_final.safetensors").write_bytes(bytes(range(256)) * 8192)
    started = {
        "run_id": "77",
        "state": "finished",
        "started": 1795945239.0,
        "operator": "CN=bob",
    }  # 2026-11-29 09:40:39
    (root / "first" / "status.json").write_text(json.dumps(started))
    (root / "first" / ".run.lock").touch()
    (root / "secret").write_text("secret")
    (root / "first" / "linked").symlink_to(root / "secret")
    return root


class State:
    """The state of a SuperLink."""

    def get_node_info(self):
        times = {"registered_at": "1", "last_activated_at": "", "last_deactivated_at": ""}
        node = SimpleNamespace(node_id=11, name="bank_a", status="registered", **times)
        return [node, SimpleNamespace(node_id=22, name="bank_b", status="unregistered", **times)]

    def get_run_info(self, **_):
        status = SimpleNamespace(status="finished", sub_status="failed", details="x")
        return [SimpleNamespace(run_id=run, pending_at=str(run), status=status) for run in (4, 5)]


@pytest.fixture(scope="module")
def address(root):
    app = Starlette()
    add_routes(app, root, listing, lambda action, subject: None, lambda: nodes_and_runs(State()))
    yield from serve(app)


@pytest.fixture
def connected(address, tmp_path, monkeypatch):
    """Connections to that server, and to one without these paths."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(f'[superlink.far]\naddress = "{address}"\ninsecure = true\n')
    return ServerRuns("far")


def test_an_operator_lists_and_copies_a_run(root, connected, tmp_path, capsys):
    assert main(["runs", "--name", "far", "seed=7"]) == 0
    shown = capsys.readouterr().out
    assert "0.7500" in shown
    assert " ".join(shown.split()).count("CN=bob") == 1
    assert "2026-11-29" in shown
    assert "09:40Z" in shown
    assert main(["runs", "--name", "far", "seed=8"]) == 0
    assert "no run in the server of 'far' has these values" in capsys.readouterr().out
    assert main(["runs", "--name", "far", "--copy", "first"]) == 0
    copied = {path.name: path.read_bytes() for path in (tmp_path / "runs" / "first").iterdir()}
    assert copied.keys() == {"config.yaml", "rounds.jsonl", "status.json", "summary.json", "model_final.safetensors"}
    assert all(content == (root / "first" / name).read_bytes() for name, content in copied.items())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--name", "far", "seed=7", "nokey=1"], "key 'nokey' is unknown"),
        (["--name", "far", "--copy", "none"], "the server of 'far' has no such run"),
        (["--name", "far", "--copy", "../secret"], "expected the name of a folder"),
        (["--copy", "first"], "needs --name NAME"),
        (["--name", "near"], "--name 'near' is unknown"),
    ],
)
def test_a_wrong_request_is_a_sentence(connected, words, message, capsys):
    assert main(["runs", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "file"),
    [
        ("first", "../secret"),
        ("first", "linked"),
        ("first", ".run.lock"),
        ("first", "state"),
        ("..", "secret"),
        ("", "secret"),
    ],
)
def test_no_file_outside_a_run_is_sent(connected, run, file):
    with pytest.raises(FedGraphError, match="the server of 'far': "):
        connected.text(run, file)


def test_a_request_that_is_no_object_is_refused(connected):
    for body in ([], "x", {"run": 1, "file": None}):
        with pytest.raises(FedGraphError, match="the server of 'far': "), connected._ask(READ, body):
            pass


@pytest.mark.filterwarnings("ignore")
def test_status_asks_the_server_without_flowers_packages(connected, tmp_path):
    """Their import takes most of the command's time."""
    code = """import sys; from fedgraph_flwr.cli import main
assert main(["fleet", "status", "--name", "far"]) == 0
print([name for name in ("flwr", "torch", "numpy", "scipy", "pandas", "httpx") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "1 admitted nodes, 0 online",
        "  bank_a (11): never connected",
        "2 runs: 2 finished:failed",
        "[]",
    ], done.stderr


def test_an_incomplete_copy_replaces_nothing(tmp_path, monkeypatch):
    """The server announces ten bytes, sends five and closes."""

    async def five(request):
        return StreamingResponse(iter([b"12345"]), headers={"content-length": "10"})

    async def listed(request):
        return JSONResponse({"files": {"summary.json": 10}})

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (kept := tmp_path / "copy" / "summary.json").parent.mkdir()
    kept.write_text("before")
    routes = [Route(LIST, listed, methods=["POST"]), Route(READ, five, methods=["POST"])]
    for address in serve(Starlette(routes=routes)):
        (tmp_path / "config.toml").write_text(f'[superlink.far]\naddress = "{address}"\ninsecure = true\n')
        with pytest.raises(FedGraphError, match=r"broke within first/summary\.json"):
            ServerRuns("far").copy("first", kept.parent)
    assert {path.name: path.read_text() for path in kept.parent.iterdir()} == {"summary.json": "before"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("size", "message"),
    [("", "without its size: nothing was copied"), ("9" * 15, r"it needs 1000000\.0 GB, and .* GB free")],
)
def test_a_file_without_an_end_fills_no_disk(tmp_path, monkeypatch, size, message):
    async def endless(request):
        return StreamingResponse(iter([b"12345"] * 9), headers={"content-length": size} if size else {})

    async def listed(request):
        return JSONResponse({"files": {"rounds.jsonl": 10}})

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # not for this machine, as with Flower's commands
    monkeypatch.setenv("no_proxy", "")
    routes = [Route(LIST, listed, methods=["POST"]), Route(READ, endless, methods=["POST"])]
    for address in serve(Starlette(routes=routes)):
        (tmp_path / "config.toml").write_text(f'[superlink.far]\naddress = "{address}"\ninsecure = true\n')
        with pytest.raises(FedGraphError, match=message):
            ServerRuns("far").copy("first", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_name_that_is_too_long_for_the_disk_is_refused(connected):
    with pytest.raises(FedGraphError, match="cannot read the run"):
        connected.files("\N{GREEK SMALL LETTER ALPHA}" * 200)


def test_a_server_without_run_folders_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    for address in serve(Starlette()):
        (tmp_path / "config.toml").write_text(f'[superlink.far]\naddress = "{address}"\ninsecure = true\n')
        assert main(["runs", "--name", "far"]) == 1
    assert "serves no run folders: it runs `server --plain`, or an older version" in capsys.readouterr().err


def test_a_copied_run_resumes_in_its_folder_here(tmp_path):
    """Its config.yaml names the server's folder."""
    (tmp_path / "config.yaml").write_text(to_yaml(RunConfig(engine="far", out="/srv/runs/first"), DATA))
    assert configuration([f"resume={tmp_path}"]).out == str(tmp_path)
    assert configuration([f"init={tmp_path}"]).out == ""
    with pytest.raises(FedGraphError, match="writes to its own folder"):
        configuration([f"resume={tmp_path}", "out=elsewhere"])


def test_a_server_maps_folders_by_their_last_name(tmp_path):
    given = RunConfig(out="/home/op/study/second", init="/home/op/study/first")
    cfg = in_folder_of_runs(given, tmp_path)
    assert (cfg.out, cfg.init, cfg.resume) == (str(tmp_path / "second"), str(tmp_path / "first"), "")
    for name in ("..", ".hidden", "", "a/b", "a\0"):
        with pytest.raises(FedGraphError, match="expected the name of a folder"):
            run_folder(tmp_path, name)
    assert files_of(tmp_path / "none") == {}


def test_a_start_keeps_the_stopped_run_of_another_operator(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first/checkpoint.safetensors").touch()
    given = RunConfig(out="/home/other/first")
    with pytest.raises(InUse, match="first has a run that can be resumed, perhaps of another operator: pass another"):
        in_folder_of_runs(given, tmp_path)
    for more in {"overwrite": True}, {"resume": given.out}, {"out": "/home/other/second"}:
        in_folder_of_runs(replace(given, **more), tmp_path)
    (tmp_path / "first/summary.json").touch()  # a finished run is refused by `check_unused`
    in_folder_of_runs(given, tmp_path)


def test_no_operator_replaces_the_run_of_another(tmp_path):
    """Whose it is, a server does not know; but a repetition takes nothing away."""
    out = tmp_path / "first"
    given = compose(["engine=far", f"out={out}", "seed=3"])
    out.mkdir()
    (out / "config.yaml").write_text(to_yaml(given, DATA))
    for name in ("checkpoint.safetensors", "summary.json"):
        (out / name).touch()
        assert in_folder_of_runs(replace(given, overwrite=True), tmp_path).overwrite
        other = replace(given, overwrite=True, rounds=1)
        with pytest.raises(
            InUse, match=r"first has a run with rounds=\d+, perhaps of another operator, and this one has 1:"
        ):
            in_folder_of_runs(other, tmp_path)
    in_folder_of_runs(replace(other, out="/home/op/second"), tmp_path)


def test_a_start_that_is_refused_writes_nothing_into_the_folder_of_a_running_run(tmp_path):
    """Two operators may choose one name: the first one's launcher would read the failure of the second."""
    out = tmp_path / "first"
    wrong = compose(["strategy=fedavg", "engine=far", f"out={out}", f"init={tmp_path / 'missing'}"])
    with owned(out):
        before = sorted(path.name for path in out.iterdir())
        with pytest.raises(FedGraphError, match="holds no finished run"):
            serve_run(None, wrong)
        assert sorted(path.name for path in out.iterdir()) == before
    with pytest.raises(FedGraphError, match="holds no finished run"):
        serve_run(None, wrong)
    assert (out / "failure.json").is_file()


def test_a_run_that_starts_from_a_folder_of_its_own_last_name_leaves_it_as_it_was(tmp_path):
    """On the server, both folders are one."""
    (out := tmp_path / "first").mkdir()
    (out / "summary.json").write_text("{}")
    given = compose(["strategy=fedavg", "engine=far", "out=/home/op/new/first", "init=/home/op/old/first"])
    with pytest.raises(InUse, match="reads the folder that out= would replace"):
        serve_run(None, in_folder_of_runs(given, tmp_path))
    assert [path.name for path in out.iterdir()] == ["summary.json"]


def test_a_run_is_copied_to_where_its_launch_was_cut_off_and_to_no_other_run(tmp_path, monkeypatch, capsys):
    class Remote:
        def __init__(self, name):
            pass

        def files(self, run):
            return {"config.yaml": 1}

        def copy(self, run, to):
            (to / "config.yaml").write_text("seed: 0")
            return ["config.yaml"]

    monkeypatch.setattr("fedgraph_flwr.fleet.run_folders.ServerRuns", Remote)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "flower.log").touch()
    command = ["runs", str(tmp_path), "--name", "far", "--copy", "first"]
    assert main(command) == 0
    assert main(command) == 2
    assert f"{tmp_path / 'first'} exists: pass another DIR" in capsys.readouterr().err
