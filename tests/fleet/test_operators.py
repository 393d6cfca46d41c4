"""Who did what: nginx as the server starts it, the log of operators, their roles and limits, and what they export."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse

from fedgraph_flwr import api as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.superlink import Caller, follow, note_action
from fedgraph_flwr.fleet import audit_chain
from fedgraph_flwr.fleet.audit_chain import LOCAL, LOG, append, files_of, operator_of
from fedgraph_flwr.fleet.certificates import days_left, read, renew
from fedgraph_flwr.fleet.flower_commands import refusal
from fedgraph_flwr.fleet.keys import earlier, is_revoked, make_operator
from fedgraph_flwr.fleet.parties import read_parties
from fedgraph_flwr.fleet.processes import free_port
from fedgraph_flwr.fleet.run_folders import LIST, READ, ServerRuns, add_routes
from fedgraph_flwr.secure.audit_numbers import AuditNumbers
from tests.support import wait_for

START = "/v1/control/start-run"
NODES = [SimpleNamespace(node_id=7, name="bank_a", status="online")]


def superlink(runs, ports, keys):
    """What stands in for the SuperLink: its paths of operators, with Flower's handlers replaced, and the package's own."""
    handlers = SimpleNamespace(
        start_run=lambda request: SimpleNamespace(run_id=5),
        stop_run=lambda request: SimpleNamespace(),
        register_node=lambda request: SimpleNamespace(node_id=7),
        unregister_node=lambda request: SimpleNamespace(),
    )
    follow(handlers, runs, SimpleNamespace(get_node_info=lambda: NODES))
    app = Starlette()
    app.add_middleware(Caller)
    add_routes(app, runs, lambda root, filters: [], lambda action, subject: note_action(runs, action, subject))

    def add(path, respond):
        async def answer(request):
            respond()
            return JSONResponse({})

        app.add_route(path, answer, methods=["POST"])

    add(START, lambda: handlers.start_run(SimpleNamespace()))
    add("/v1/control/stop-run", lambda: handlers.stop_run(SimpleNamespace(run_id=5)))
    add("/v1/control/register-node", lambda: handlers.register_node(SimpleNamespace(name="bank_a")))
    add("/v1/control/unregister-node", lambda: handlers.unregister_node(SimpleNamespace(node_id=7)))
    for path in ("/v1/control/list-nodes", "/v1/fleet/heartbeat"):
        add(path, lambda: None)
    certificate = {"ssl_certfile": keys / "server.crt", "ssl_keyfile": keys / "server.key"}
    return uvicorn.Server(uvicorn.Config(app, "127.0.0.1", ports["superlink"], log_level="error", **certificate))


class Fleet:
    """A server's nginx before a stand-in for the SuperLink; operators with all roles, and with one each."""

    def __init__(self, folder: Path):
        self.keys, self.runs = folder / "keys", folder / "runs"
        (self.runs / "first").mkdir(parents=True)
        (self.runs / "first" / "model.safetensors").write_bytes(b"model")
        (self.runs / "first" / "rounds.jsonl").write_bytes(b"{}")
        ports = {name: free_port() for name in ("listen", "superlink", "syslog")}
        self.port = ports["listen"]
        addresses = [word for name in ("listen", "superlink") for word in (f"--{name}", f"127.0.0.1:{ports[name]}")]
        assert main(["fleet", "init", str(self.keys), *addresses]) == 0
        for name, *roles in (("bob",), ("rita", "read"), ("rick", "run"), ("ada", "admit"), ("both", "read", "run")):
            words = [word for role in roles for word in ("--role", role)]
            assert main(["fleet", "operator", name, "--keys", str(self.keys), *words]) == 0
        (self.keys / "nginx").mkdir()
        self.siem = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.siem.bind(("127.0.0.1", 0))
        self.siem.settimeout(10)
        exported = f"access_log syslog:server=127.0.0.1:{self.siem.getsockname()[1]} operators if=$logged;"
        (self.keys / "nginx" / "siem.conf").write_text(
            f"{exported}\naccess_log {folder}/access.jsonl operators if=$logged;"
        )
        self.log, self.file = folder / "nginx.log", folder / "access.jsonl"
        self.superlink = superlink(self.runs, ports, self.keys)
        self.thread = threading.Thread(target=self.superlink.run, daemon=True)
        self.thread.start()
        command = ["nginx", "-e", "stderr", "-c", str(self.keys / "server.conf")]
        self.nginx = subprocess.Popen(command, stdout=self.log.open("ab"), stderr=subprocess.STDOUT)
        wait_for(lambda: self.superlink.started and self.ask("/v1/control/list-nodes", "bob")[0] == 200, "nginx", 20)

    def context(self, name: str = "") -> ssl.SSLContext:
        """TLS as an operator, or as nobody."""
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        if name:
            context.load_cert_chain(self.keys / f"{name}.crt", self.keys / f"{name}.key")
        return context

    def ask(self, path: str, name: str = "", body: dict | None = None, **headers: str) -> tuple[int, str]:
        """Status and text of a request of an operator."""
        url, data = f"https://127.0.0.1:{self.port}{path}", json.dumps(body or {}).encode()
        try:
            request = urllib.request.Request(url, data, {key.replace("_", "-"): word for key, word in headers.items()})
            with urllib.request.urlopen(request, context=self.context(name), timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def lines(self, path: Path | None = None) -> list[dict]:
        """What nginx has logged."""
        return [json.loads(line) for line in (path or self.log).read_text().splitlines() if line.startswith("{")]

    def stop(self) -> None:
        """End both."""
        self.nginx.terminate()
        self.nginx.wait(10)
        self.superlink.should_exit = True
        self.thread.join()
        self.siem.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    if not shutil.which("nginx"):
        pytest.skip("nginx is not installed: apt-get install nginx")
    fleet = Fleet(tmp_path_factory.mktemp("operators"))
    try:
        yield fleet
    finally:
        fleet.stop()


def test_the_servers_nginx_says_who_asked_for_what_and_exports_it(fleet):
    """In the server's log, in a file and to a syslog server; polls of nodes that succeed are left out."""
    assert fleet.ask(START, "bob")[0] == 200
    assert fleet.ask("/v1/fleet/heartbeat")[0] == 200
    assert fleet.ask("/v1/control/list-nodes")[0] == 403
    assert fleet.ask('/v1/fleet/no"quote')[0] == 404
    wait_for(lambda: len(fleet.lines()) > 3, "the log", 20)
    (started,) = [line for line in fleet.lines() if line["path"] == START]
    assert started.keys() >= {"time", "run", "round", "party", "reason"}
    assert (started["level"], started["operator"], started["address"]) == ("INFO", "CN=bob", "127.0.0.1")
    assert started["message"] == f"POST {START}: status 200"
    assert int(started["serial"], 16)
    (refused,) = [line for line in fleet.lines() if line["status"] == 403]
    assert (refused["level"], refused["operator"]) == ("WARNING", "")
    assert [line["path"] for line in fleet.lines() if line["status"] == 404] == ['/v1/fleet/no"quote']
    assert not [line for line in fleet.lines() if "heartbeat" in line["path"]]
    assert fleet.lines(fleet.file) == fleet.lines()
    sent = b""
    while START.encode() not in sent:
        sent = fleet.siem.recv(8192)
    assert json.loads(sent[sent.index(b"{") :]) == started


def test_files_of_nginx_are_rotated(fleet):
    """As logrotate does with copytruncate."""
    before, older = fleet.lines(fleet.file), fleet.file.with_suffix(".1")
    shutil.copy(fleet.file, older)
    os.truncate(fleet.file, 0)
    assert fleet.ask(START, "bob")[0] == 200
    wait_for(lambda: fleet.lines(fleet.file), "a line in it", 20)
    assert fleet.lines(older) == before


def test_the_log_of_operators_has_starter_stops_copies_and_admissions(fleet, capsys):
    for path in (START, "/v1/control/stop-run", "/v1/control/register-node", "/v1/control/unregister-node"):
        assert fleet.ask(path, "bob")[0] == 200
    for file in ("model.safetensors", "rounds.jsonl"):
        assert fleet.ask(READ, "rita", {"run": "first", "file": file})[0] == 200
    assert operator_of(fleet.runs, 5, "start") == operator_of(fleet.runs, 5, "stop") == "CN=bob"
    assert operator_of(fleet.runs, 6, "start") == ""
    assert read_parties(fleet.runs)["7"]["name"] == "bank_a"
    capsys.readouterr()
    (fleet.runs / "first" / "status.json").write_text('{"run_id": "5"}')
    assert main(["audit", str(fleet.runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split(" ", 1)[1] for line in lines[:-1]]
    assert shown[-5:] == [
        "CN=bob 127.0.0.1 start 5 (first)",
        "CN=bob 127.0.0.1 stop 5 (first)",
        "CN=bob 127.0.0.1 admit bank_a (7)",
        "CN=bob 127.0.0.1 remove bank_a (7)",
        "CN=rita,OU=read 127.0.0.1 copy first/model.safetensors",
    ]  # rounds.jsonl is read again and again while a run works
    assert "the chain of" in lines[-1]
    path = fleet.runs / LOG
    whole = path.read_text()
    path.write_text(whole.replace("CN=bob", "CN=eve", 1))
    assert main(["audit", str(fleet.runs)]) == 2
    assert "does not follow from line" in capsys.readouterr().err
    path.write_text(whole)


def test_no_operator_is_another_and_the_server_itself_is_named(fleet):
    assert fleet.ask(START, "rick", x_fedgraph_operator="CN=bob", x_fedgraph_address="1.2.3.4")[0] == 200
    last = json.loads((fleet.runs / LOG).read_text().splitlines()[-1])
    assert (last["operator"], last["address"]) == ("CN=rick,OU=run", "127.0.0.1")
    fleet.superlink_port = int(fleet.superlink.config.port)
    url = f"https://localhost:{fleet.superlink_port}{START}"
    urllib.request.urlopen(urllib.request.Request(url, b"{}"), context=fleet.context(), timeout=10).close()
    assert json.loads((fleet.runs / LOG).read_text().splitlines()[-1])["operator"] == LOCAL


def test_roles_of_a_certificate_allow_their_requests_and_no_others(fleet):
    allowed = {
        "bob": {START, "/v1/control/register-node", READ, LIST, "/v1/control/list-nodes"},
        "rita": {READ, LIST, "/v1/control/list-nodes"},
        "rick": {START, "/v1/control/list-nodes"},
        "ada": {"/v1/control/register-node", "/v1/control/list-nodes"},
        "both": {START, READ, LIST, "/v1/control/list-nodes"},
    }
    body = {"run": "first", "file": "rounds.jsonl"}
    for name, paths in allowed.items():
        for path in allowed["bob"]:
            status, text = fleet.ask(path, name, body)
            assert (status == 200) == (path in paths), (name, path)
            assert status == 200 or "the roles of this certificate do not allow this request" in text
    assert "show a certificate that the server's operators.crt signed" in fleet.ask(LIST)[1]


def test_a_flood_is_limited(fleet, monkeypatch):
    """Per certificate, with a hundredth of the shipped limits, which a busy machine reaches."""
    text, port = (fleet.keys / "server.conf").read_text(), free_port()
    for shipped, here in (("rate=50r/s", "rate=1r/m"), ("burst=500", "burst=5"), ("server.pid", "other.pid")):
        assert text.count(shipped) == 1
        text = text.replace(shipped, here)
    text = text.replace(f"listen 127.0.0.1:{fleet.port}", f"listen 127.0.0.1:{port}")
    (fleet.keys / "other.conf").write_text(text)
    other = subprocess.Popen(["nginx", "-e", "stderr", "-c", str(fleet.keys / "other.conf")], stdout=subprocess.DEVNULL)
    monkeypatch.setattr(fleet, "port", port)
    try:
        wait_for(lambda: fleet.ask("/v1/control/list-nodes", "both")[0] == 200, "nginx", 20)
        assert [fleet.ask("/v1/control/list-nodes", "ada")[0] for _ in range(8)] == [200] * 6 + [429] * 2
        assert fleet.ask("/v1/control/list-nodes", "bob")[0] == 200  # another certificate
    finally:
        other.terminate()
        other.wait(10)


def test_an_audit_log_is_rotated_and_stays_one_chain(tmp_path, capsys):
    """As logrotate does with dateext and nocreate: the file is renamed, and the next entry begins another."""
    entry = {
        "run": "5",
        "strategy": "fedavg",
        "phase": "train",
        "round": 1,
        "exchange": 0,
        "received": 10,
        "refused": "",
    }
    numbers, held = AuditNumbers(tmp_path / LOG), 0
    for month in ("20261101", "20261201", ""):
        for _ in range(2):
            held += 2  # of the ledger; a line lists the two that no other lists
            noise = {"noise_multiplier": 4.0, "sensitivity": 1.0, "releases": held, "unit": "client", "purpose": "x"}
            append(tmp_path, entry | {"noise": noise, "sent": {"model": 40}})
        numbers.metrics()
        if month:
            (tmp_path / LOG).rename(tmp_path / f"{LOG}-{month}")
            assert fg.audit(tmp_path).attrs["lines"] == (2 if month == "20261101" else 4)  # before the next entry, too
    assert [path.name for path in files_of(tmp_path)] == [f"{LOG}-20261101", f"{LOG}-20261201", LOG]
    (row,) = fg.audit(tmp_path).to_dict("records")
    assert (row["requests"], row["releases"], row["sent"]) == (6, 12, 240)
    assert audit_chain.read_head(tmp_path)["n"] == 6
    for looked in (numbers, AuditNumbers(tmp_path / LOG)):  # a node that was restarted, too
        samples = {metric.name: metric.samples for metric in looked.metrics()}
        assert samples["node_requests_total"] == [({"phase": "train", "result": "replied"}, 6)]
        assert samples["node_epsilon_spent"] == samples["node_epsilon_spent"]
        assert looked.booked["x"]
    older = tmp_path / f"{LOG}-20261101"
    whole = older.read_text()
    older.write_text(whole.replace('"round": 1', '"round": 2', 1))
    assert main(["audit", str(tmp_path)]) == 2
    assert f"{LOG}-20261101, line 1 does not follow" in capsys.readouterr().err
    older.unlink()
    assert main(["audit", str(tmp_path)]) == 2  # a month is missing
    assert "line 1 is entry 3: lines were removed or moved" in capsys.readouterr().err
    older.write_text(whole)
    (tmp_path / LOG).unlink()  # not renamed
    with pytest.raises(fg.FedGraphError, match="shorter than"):
        append(tmp_path, entry | {"sent": {}})


def test_a_request_of_an_operator_is_signed_without_its_key(fleet, tmp_path, capsys):
    """The key stays on the operator's machine; a removed operator's name is free again."""
    openssl = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-nodes"]
    for _ in range(2):
        subprocess.run(
            [*openssl, "-keyout", tmp_path / "operator.key", "-out", tmp_path / "eve.csr", "-subj", "/CN=root"],
            check=True,
            capture_output=True,
        )
        words = [
            "fleet",
            "operator",
            str(tmp_path / "eve.csr"),
            "--role",
            "read",
            "--days",
            "7",
            "--keys",
            str(fleet.keys),
        ]
        assert main(words) == 0
        assert "send this to the operator, named operator.crt\n" in capsys.readouterr().out
        assert not (fleet.keys / "eve.key").exists()
        context = fleet.context()
        context.load_cert_chain(fleet.keys / "eve.crt", tmp_path / "operator.key")
        request = urllib.request.Request(f"https://127.0.0.1:{fleet.port}{LIST}", b"{}")
        assert urllib.request.urlopen(request, context=context, timeout=10).status == 200
        wait_for(lambda: [line for line in fleet.lines() if line["operator"] == "CN=eve,OU=read"], "its line", 20)
        other = [
            *openssl,
            "-keyout",
            tmp_path / "other.key",
            "-out",
            tmp_path / "other" / "eve.csr",
            "-subj",
            "/CN=eve",
        ]
        (tmp_path / "other").mkdir(exist_ok=True)
        subprocess.run(other, check=True, capture_output=True)
        assert (
            main([*words[:2], str(tmp_path / "other" / "eve.csr"), *words[3:]]) == 2
        )  # another key: the name is taken
        assert main(["fleet", "remove", str(fleet.keys / "eve.crt"), "--keys", str(fleet.keys)]) == 0
    assert (fleet.keys / "revoked_operators").read_text().count("CN=eve,OU=read removed") == 2
    (tmp_path / "no.csr").write_text("no")
    for name in (str(tmp_path / "no.csr"), "server", "operators"):
        assert main(["fleet", "operator", name, "--keys", str(fleet.keys)]) == 2
    assert main(["fleet", "remove", str(fleet.keys / "operator.crt"), "--keys", str(fleet.keys)]) == 0
    assert main(["fleet", "operator", "operator", "--keys", str(fleet.keys)]) == 0
    make_operator(fleet.keys, "short", 0)
    assert make_operator(fleet.keys, "short", 1).is_file()  # the first one has ended


def test_an_operator_renews_a_certificate_before_its_end_and_a_removal_refuses_both(fleet, tmp_path, capsys):
    """Without a gap, and with the roles that it has."""
    openssl = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-nodes"]
    key, request, keys = tmp_path / "operator.key", tmp_path / "dora.csr", ["--keys", str(fleet.keys)]
    subprocess.run([*openssl, "-keyout", key, "-out", request, "-subj", "/CN=dora"], check=True, capture_output=True)

    def status(certificate, path):
        context = fleet.context()
        context.load_cert_chain(certificate, key)
        ask = urllib.request.Request(f"https://127.0.0.1:{fleet.port}{path}", b"{}")
        try:
            return urllib.request.urlopen(ask, context=context, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    assert main(["fleet", "operator", str(request), "--role", "read", "--days", "7", *keys]) == 0
    first = tmp_path / "first.crt"
    shutil.copy(fleet.keys / "dora.crt", first)
    assert main(["fleet", "operator", str(request), "--days", "90", *keys]) == 0
    assert "the earlier one is valid until" in capsys.readouterr().out
    second = fleet.keys / "dora.crt"
    assert days_left(second) > 80
    assert [(status(credential, LIST), status(credential, START)) for credential in (first, second)] == [(200, 403)] * 2
    assert main(["fleet", "operator", str(request), "--role", "run", *keys]) == 0  # other roles, if they are passed
    assert status(second, START) == 200
    assert main(["fleet", "remove", str(second), *keys]) == 0
    fleet.nginx.send_signal(signal.SIGHUP)  # as `certificates.watch` lets the server do
    wait_for(
        lambda: {status(credential, LIST) for credential in (first, second)} == {403}, "nginx to read the list", 20
    )
    assert (fleet.keys / "revoked_operators").read_text().count("dora") == 3
    renew(fleet.keys, "operator", 30)
    assert main(["fleet", "remove", str(fleet.keys / "operator.crt"), *keys]) == 0
    assert all(is_revoked(fleet.keys, read(credential)) for credential in earlier(fleet.keys / "operator.crt"))
    assert earlier(fleet.keys / "operator.crt")
    assert make_operator(fleet.keys, "operator", 30)


def test_an_operator_without_a_certificate_or_the_role_learns_what_to_do(fleet, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    root = fleet.keys / "ca.crt"
    where = f'[superlink.far]\naddress = "localhost:{fleet.port}"\nroot-certificates = "{root}"\n'
    (tmp_path / "config.toml").write_text(where)
    with pytest.raises(
        fg.FedGraphError, match=r"the server of 'far' refuses this: show a certificate .* \(fleet operator\)"
    ):
        ServerRuns("far").files("first")
    assert "refuses this: show a certificate" in refusal("far")  # which `run` prints: Flower's command does not
    (tmp_path / "config.toml").write_text(where.replace(str(fleet.port), str(fleet.superlink.config.port)))
    assert refusal("far") == ""


def test_a_copy_has_the_mode_of_the_servers_file(fleet, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    root = fleet.keys / "ca.crt"
    port = fleet.superlink.config.port
    (tmp_path / "config.toml").write_text(
        f'[superlink.far]\naddress = "localhost:{port}"\nroot-certificates = "{root}"\n'
    )
    (copied := tmp_path / "copy").mkdir()
    ServerRuns("far").copy_file("first", "model.safetensors", copied)
    assert (copied / "model.safetensors").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "runs").write_text("a file")
    note_action(tmp_path / "runs", "start", "5")
    assert "error: not in the log of operators" in capsys.readouterr().out
    with contextlib.suppress(OSError):
        assert operator_of(tmp_path / "runs", 5, "start") == ""
