"""Who may do what on a fleet that stands as the how-to says: real processes, on loopback."""

import json
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedgraph_flwr.engine.flower import end_group, free_port, tool
from fedgraph_flwr.fleet.run_folders import LIST, READ
from tests.conftest import client_graph
from tests.engine.fleet import COMMAND, NAME, ROOT, GuardedFleet
from tests.support import PATIENCE, wait_for

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.faults,
    pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed: apt-get install nginx"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedFleet]:
    """A guarded SuperLink with one SuperNode."""
    folder = tmp_path_factory.mktemp("guarded")
    client_graph(0).save(folder / "graphs" / "client_0000.safetensors")
    fleet = GuardedFleet(folder, folder / "graphs")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def _keys(folder: Path, nodes: int) -> None:
    subprocess.run(
        [*COMMAND, "fleet", "init", str(folder), "--trial", str(nodes)], check=True, stdout=subprocess.DEVNULL
    )


def _outsider(fleet: GuardedFleet, *overrides: str) -> str:
    """What Flower's command tells somebody who has the address and ca.crt alone; it must fail."""
    home = fleet.folder / "outsider"
    fleet.connect(home, f'address = "127.0.0.1:{fleet.port}"\nroot-certificates = "{fleet.keys / "ca.crt"}"')
    with pytest.raises(RuntimeError) as refused:
        fleet.flwr(*overrides, FLWR_HOME=str(home))
    return str(refused.value)


def _nodes(fleet: GuardedFleet) -> list[dict[str, str]]:
    nodes: list[dict[str, str]] = json.loads(fleet.flwr("supernode", "list", NAME, "--format", "json"))["nodes"]
    return [node for node in nodes if node["status"] != "unregistered"]


def test_an_outsider_can_do_nothing_and_the_operator_everything(fleet):
    keys = fleet.folder / "outsiders-keys"
    _keys(keys, 1)
    (node,) = _nodes(fleet)
    out = fleet.operators / "out"
    process = fleet.begin(out, "rounds=2", "checkpoint_every=1", f"num_clients={len(fleet.files)}")
    wait_for(lambda: process.poll() is not None or bool(re.search(r"started run \d+", _log(fleet))), "the run to start")
    run = re.search(r"started run (\d+)", _log(fleet))[1]
    attempts = [
        ("supernode", "list", NAME),
        ("supernode", "register", str(keys / "node_0.pub"), NAME),
        ("supernode", "unregister", str(node["node-id"]), NAME),
        ("list", NAME),
        ("run", str(ROOT), NAME),
        ("stop", run, NAME),
        ("log", run, NAME, "--show"),
    ]
    for args in attempts:
        assert "403" in _outsider(fleet, *args), args
    assert process.wait(PATIENCE) == 0, fleet.log("run-out")
    assert [n["node-id"] for n in _nodes(fleet)] == [node["node-id"]]
    assert "finished:completed" in fleet.flwr("list", NAME, "--format", "json")
    _check_copies(fleet, out)

    register = ["supernode", "register", str(keys / "node_0.pub"), NAME]
    fleet.flwr(*register)  # the operator may
    (other,) = (n["node-id"] for n in _nodes(fleet) if n["node-id"] != node["node-id"])
    fleet.flwr("supernode", "unregister", str(other), NAME)


def _check_copies(fleet: GuardedFleet, out: Path) -> None:
    """The operator has the server's files, may copy them again and resume the run, and an outsider may not read them."""
    there = fleet.runs / "out"
    files = {path.name for path in there.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert {"summary.json", "rounds.jsonl", "model_final.safetensors", "checkpoint.safetensors", "status.json"} <= files
    assert all((out / name).read_bytes() == (there / name).read_bytes() for name in files)
    command = [*COMMAND, "runs", str(fleet.folder / "second"), "--name", NAME]
    listed, copied = (
        subprocess.run([*command, *more], env=fleet.environment, capture_output=True, text=True, check=True).stdout
        for more in (["--json"], ["--copy", "out"])
    )
    ((name, state),) = [(run["run"], run["state"]) for run in json.loads(listed)]
    assert (name, state) == ("out", "finished")
    assert copied.startswith(f"copied {len(files)} files to ")
    assert {path.name for path in (fleet.folder / "second" / "out").iterdir()} == files
    command = [*COMMAND, "fleet", "status", "--json", "--name", NAME]
    done = subprocess.run(command, env=fleet.environment, capture_output=True, text=True, check=True)
    status = json.loads(done.stdout)
    (node,), (run,) = status["nodes"], status["runs"]
    assert (node["status"], node["versions"]["flwr"]) == ("online", version("flwr"))
    assert (run["run"], run["state"], run["rounds_done"], run["waiting"]) == ("out", "finished:completed", 2, [])
    context = ssl.create_default_context(cafile=str(fleet.keys / "ca.crt"))
    for path in (LIST, READ):
        assert _status(fleet, path, context) == 403
    assert fleet.wait(fleet.begin(out, f"resume={out}", "rounds=3")) is None
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3
    assert (out / "summary.json").read_bytes() == (there / "summary.json").read_bytes()


def _log(fleet: GuardedFleet) -> str:
    path = fleet.operators / "out" / "flower.log"
    return path.read_text() if path.is_file() else ""


def test_a_node_whose_key_is_not_registered_is_not_let_in(fleet):
    keys = fleet.folder / "strangers-keys"
    _keys(keys, 1)
    command = [tool("flower-supernode"), "--superlink", f"127.0.0.1:{fleet.port}", "--port", str(free_port())]
    command += ["--root-certificates", str(fleet.keys / "ca.crt"), "--auth-supernode-private-key", str(keys / "node_0")]
    process = fleet._spawn("stranger", command)
    try:
        wait_for(
            lambda: "Connection attempt failed" in fleet.log("stranger") or process.poll() is not None, "an answer"
        )
        assert "SuperNode ID" not in fleet.log("stranger")
        assert len(_nodes(fleet)) == 1
    finally:
        end_group(process)


PATHS = {
    "/v1/control/list-nodes": 403,
    "/v1/control/list-runs": 403,
    "/v1/control/start-run": 403,
    "/v1/fleet/../control/list-nodes": 403,
    "/v1/fleet/%2e%2e/control/list-nodes": 403,
    "/v1/fleet%2f..%2fcontrol/list-nodes": 403,
    "//v1//control/list-nodes": 403,
    "/v1/control/../fleet/list-nodes": 404,  # as the SuperLink says
    "/v1/CONTROL/list-nodes": 404,
    "/v1/control/": 404,
    "/v1/control/list-nodes/x": 404,
    "/v1/runtime/acquire-task": 404,
    "/v1/runtime/get-nodes": 404,
    "/v1/fleet/../runtime/get-nodes": 404,
    "/health": 404,
    "/docs": 404,
    "/openapi.json": 404,
    "/": 404,
    "/v1/fleet/pull-messages": 401,
    "/v1/fleet/register-node": 401,
    "/v1/fleet/unregister-node": 401,
}


@pytest.mark.parametrize("shown", ["nothing", "the server's certificate", "a certificate of another authority"])
def test_what_an_outsider_reaches(fleet, tmp_path, shown):
    context = ssl.create_default_context(cafile=str(fleet.keys / "ca.crt"))
    if shown == "the server's certificate":
        context.load_cert_chain(fleet.keys / "server.crt", fleet.keys / "server.key")
    elif shown != "nothing":
        _keys(tmp_path, 0)
        context.load_cert_chain(tmp_path / "operator.crt", tmp_path / "operator.key")
    for path, wanted in PATHS.items():
        status = _status(fleet, path, context)
        assert status == wanted if shown == "nothing" else status in (wanted, 400), (path, status)


def test_only_posts_are_passed_on(fleet):
    context = ssl.create_default_context(cafile=str(fleet.keys / "ca.crt"))
    for path in ("/v1/fleet/pull-messages", "/v1/control/list-nodes"):
        assert _status(fleet, path, context, "GET") in (403, 405)


def _status(fleet: GuardedFleet, path: str, context: ssl.SSLContext, method: str = "POST") -> int:
    headers = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    url = f"https://127.0.0.1:{fleet.port}{path}"
    request = urllib.request.Request(url, b"" if method == "POST" else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
