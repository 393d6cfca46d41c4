"""The commands `fleet`, `node` and `server` without Flower's programs: what they write, refuse and say."""

import datetime
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import suppress
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography import x509

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.fleet import accepts_defaults
from fedgraph_flwr.cli.node import Node, ServerAddress
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import flower_commands
from fedgraph_flwr.fleet import keys as fleet_keys
from fedgraph_flwr.fleet.checking import Finding, clock, reach, same_schema, same_versions
from fedgraph_flwr.fleet.keys import check_key, read_fleet
from fedgraph_flwr.fleet.processes import environment, free_port
from fedgraph_flwr.secure.policy import read_policy
from fedgraph_flwr.wire.messages import PROTOCOL
from tests.conftest import client_graph
from tests.support import PATIENCE, wait_for


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """What `fleet init` writes for a server on other machines' networks."""
    folder = tmp_path_factory.mktemp("init") / "keys"
    assert (
        main(["fleet", "init", str(folder), "--trial", "2", "--host", "example.org", "--listen", "0.0.0.0:9090"]) == 0
    )
    return folder


def test_init_writes_keys_that_others_cannot_read_and_configurations(keys):
    for name in ("ca.key", "operators.key", "server.key", "operator.key", "node_0", "node_1"):
        assert (keys / name).stat().st_mode & 0o077 == 0, name
    places, versions = read_fleet(keys)
    assert (places.server, places.superlink, places.guarded) == ("example.org:9090", "127.0.0.1:9091", True)
    assert versions["flwr"] == version("flwr")
    names = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"localhost", "example.org"} == set(names.value.get_values_for_type(x509.DNSName))
    for name in ("server.conf", "operator.conf"):
        assert "@" not in "".join(line for line in (keys / name).read_text().splitlines() if not line.startswith("#"))


def test_without_templates_as_in_a_bundle_init_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fleet_keys, "_TEMPLATES", tmp_path)
    assert main(["fleet", "init", str(tmp_path / "keys")]) == 2
    assert "`flwr build` adds no .conf files to a bundle" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_an_operators_nginx_answers_no_page_in_a_browser(tmp_path):
    """A page whose address changes to 127.0.0.1 could start runs with the operator's certificate."""
    address = f"127.0.0.1:{free_port()}"
    assert main(["fleet", "init", str(tmp_path), "--host", "localhost", "--operator", address]) == 0
    moved = tmp_path / "operators machine"
    moved.mkdir()
    for name in ("ca.crt", "operator.crt", "operator.key", "operator.conf"):
        (tmp_path / name).rename(moved / name)
    process = subprocess.Popen(["nginx", "-e", "stderr", "-p", f"{moved}/", "-c", "operator.conf"])

    def status(headers):
        request = urllib.request.Request(f"http://{address}/v1/control/list-runs", b"{}", headers, method="POST")
        try:
            return urllib.request.urlopen(request, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    try:
        wait_for(lambda: status({}), "nginx")
        assert status({}) == 502  # passed on to a server that does not run
        for origin in ("https://page.example.org", f"http://{address}", "null"):
            assert status({"Origin": origin}) == 403, origin
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_nginx_reads_the_servers_file_in_a_folder_with_a_space(tmp_path, capsys):
    folder = tmp_path / "our 'new' {keys}; #1"
    assert main(["fleet", "init", str(folder), "--listen", f"0.0.0.0:{free_port()}"]) == 0
    done = subprocess.run(
        ["nginx", "-t", "-e", "stderr", "-c", str(folder / "server.conf")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert main(["fleet", "init", str(tmp_path / "$keys")]) == 2
    assert "whose name has '$': rename it" in capsys.readouterr().err


def test_init_leaves_what_is_there_and_adds(keys, capsys):
    stays = [path for path in keys.iterdir() if path.suffix in ("", ".key", ".pub") and path.name != "server.key"]
    before = {path.name: path.read_bytes() for path in stays}
    assert main(["fleet", "init", str(keys), "--trial", "3", "--host", "example.org", "--listen", "0.0.0.0:9090"]) == 0
    assert before.items() <= {path.name: path.read_bytes() for path in keys.iterdir()}.items()
    assert (keys / "node_2.pub").is_file()


def test_on_loopback_the_superlink_listens_itself(tmp_path):
    assert main(["fleet", "init", str(tmp_path)]) == 0
    assert not read_fleet(tmp_path)[0].guarded


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fleet", "init", "k", "--listen", "9090"], "--listen 9090: expected HOST:PORT"),
        (["fleet", "init", "k", "--listen", "h:99999"], "--listen h:99999: expected HOST:PORT"),
        (["fleet", "init", "k", "--superlink", "0.0.0.0:9091"], "expected a loopback address"),
        (["fleet", "init", "k", "--trial", "-1"], "expected at least 0 nodes"),
        (["fleet", "join", "x.pub"], "x.pub: no such file"),
        (
            ["server", "nowhere"],
            r"nowhere/fleet.json: no such file; create it with `fedgraph-flwr fleet init nowhere`",
        ),
        (["node", "--server", "h", "--key", "k", "--graph", "g"], "--server h: expected HOST:PORT"),
        (["node", "--server", "h:1", "--key", "k", "--graph", "g"], "--key k: no such file"),
        (["node", "--server", "h:1", "--key", "KEYS/node_0", "--graph", "g"], "--graph g: no such file"),
        (
            ["node", "--server", "h:1", "--key", "KEYS/ca.key", "--graph", "g"],
            "expected an EC P-384 OpenSSH key without passphrase",
        ),
        (
            ["node", "--server", "h:1", "--key", "KEYS/node_1", "--graph", "KEYS/ca.crt", "--peers", "x"],
            "no such folder",
        ),
        (
            ["node", "--server", "h:1", "--key", "KEYS/node_1", "--graph", "graph", "--policy", "KEYS/fleet.json"],
            "--policy: policy key 'server' is unknown",
        ),
        (
            ["node", "--server", "h:1", "--key", "KEYS/node_1", "--graph", "graph", "--state", "KEYS/ca.crt/state"],
            "cannot write --state KEYS/ca.crt/state: Not a directory",
        ),
        (["fleet", "status", "--name", "nope"], "config.toml has no connections; `fedgraph-flwr server` writes one"),
        (
            ["node", "--server", "h:1", "--key", "KEYS/node_1", "--graph", "KEYS/ca.crt"],
            "ca.crt, it is truncated or not a safetensors file",
        ),
    ],
)
def test_wrong_input_is_a_sentence(keys, tmp_path, monkeypatch, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    client_graph(0).save(tmp_path / "graph")
    assert main([word.replace("KEYS", str(keys)) for word in args]) == 2
    assert message.replace("\\", "").replace("KEYS", str(keys)) in capsys.readouterr().err


def test_a_key_that_others_can_read_is_refused(keys, tmp_path):
    (copy := tmp_path / "node").write_bytes((keys / "node_0").read_bytes())
    copy.chmod(0o644)
    with pytest.raises(FedGraphError, match="is readable by other users; run chmod 600"):
        check_key(copy)


def test_join_makes_a_pair_once(tmp_path, capsys):
    for message in ("created: keep it private", "exists: keep it private"):
        assert main(["fleet", "join", str(tmp_path / "party" / "node")]) == 0
        assert message in capsys.readouterr().out
    check_key(tmp_path / "party" / "node")
    assert main(["fleet", "join", str(tmp_path / "bank.a")]) == 0
    assert (tmp_path / "bank.a.pub").is_file()


def test_a_connection_is_written_beside_others_and_moves_with_its_fleet(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local:"\n')
    for address in ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:2"):
        flower_commands.connect("fleet", address, tmp_path / "ca.crt")
        known = tomllib.loads((tmp_path / "config.toml").read_text())["superlink"]
        assert known["fleet"] == {"address": address, "root-certificates": str(tmp_path / "ca.crt")}
        assert known["local"] == {"address": ":local:"}
    for folder in ("", "moved", "other"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "ca.crt").write_text("of another fleet" if folder == "other" else "of this fleet")
    with pytest.raises(FedGraphError, match=r"another connection 'fleet' \(to 127.0.0.1:2\): pass another --name"):
        flower_commands.connect("fleet", "127.0.0.1:2", tmp_path / "other" / "ca.crt")
    before = "ca.crt"
    for folder in ("moved", "restored"):  # a copy beside the first folder, then one whose earlier folder is gone
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "ca.crt").write_bytes((tmp_path / before).read_bytes())
        if folder == "restored":
            (tmp_path / before).unlink()
        before = f"{folder}/ca.crt"
        flower_commands.connect("fleet", "127.0.0.1:3", tmp_path / before)
        known = tomllib.loads((tmp_path / "config.toml").read_text())["superlink"]
        assert known["fleet"] == {"address": "127.0.0.1:3", "root-certificates": str(tmp_path / before)}


def test_restored_keys_give_certificates_that_parties_accept(keys, tmp_path):
    """A backup needs the authorities' keys only: parties keep their ca.crt."""
    for name in ("ca.key", "operators.key"):
        shutil.copy(keys / name, tmp_path)
    assert main(["fleet", "init", str(tmp_path), "--listen", "127.0.0.1:9090"]) == 0
    for name, authority in (("server", "ca"), ("operator", "operators")):
        certificate, earlier = (
            x509.load_pem_x509_certificate(path.read_bytes())
            for path in (tmp_path / f"{name}.crt", keys / f"{authority}.crt")
        )
        certificate.verify_directly_issued_by(earlier)


@pytest.mark.slow
def test_status_names_the_server_that_does_not_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
    (tmp_path / "config.toml").write_text(f'[superlink.fleet]\naddress = "{address}"\ninsecure = true\n')
    assert main(["fleet", "status"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: no SuperLink responds at {address}, the address of connection 'fleet' in {tmp_path}"
    )
    assert main(["fleet", "status", "--name", "other"]) == 2
    assert "--name 'other' is unknown" in capsys.readouterr().err


def test_a_node_that_waits_says_for_which_server(keys, monkeypatch):
    answers = iter(["nothing listens on h:1", ""])
    monkeypatch.setattr(ServerAddress, "unreachable", lambda self: next(answers))
    waiting = Node([], True, 1, ServerAddress("h", 1, keys / "ca.crt"))
    waiting.code = 305
    assert waiting._why() == "no connection to the server h:1: nothing listens on h:1"
    assert "does not accept this key yet" in waiting._why()


# --- diagnosis --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(keys):
    """HOST, PORT of something that shows the fleet's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "127.0.0.1", listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_what_is_reached_and_what_is_not(keys, server, tmp_path):
    host, port = server
    assert reach(host, port, keys / "ca.crt").right
    stranger = reach(host, port, keys / "operators.crt")
    assert not stranger.right
    assert "its certificate is not accepted" in stranger.explanation
    assert "no such file" in reach(host, port, tmp_path / "ca.crt").explanation
    (tmp_path / "ca.crt").write_text("x")
    assert "is not a certificate" in reach(host, port, tmp_path / "ca.crt").explanation
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert "nothing listens on" in reach(host, bound.getsockname()[1], keys / "ca.crt").explanation
    assert "cannot resolve host" in reach("no-such-host.invalid", port, keys / "ca.crt").explanation


class Proxy(BaseHTTPRequestHandler):
    """Proxy that tunnels ``CONNECT`` to the server that `target` names, whatever host it is asked for."""

    target = ("127.0.0.1", 0)
    seen: ClassVar[list[tuple[str, str | None]]] = []

    def do_CONNECT(self):
        self.seen.append((self.path, self.headers["Proxy-Authorization"]))
        if self.path.startswith("localhost:"):
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(self.target) as other:
            back = threading.Thread(target=self.copy, args=(other, self.connection), daemon=True)
            back.start()
            self.copy(self.connection, other)

    @staticmethod
    def copy(one, other):
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    def log_message(self, *args):
        """Print nothing."""


def test_a_server_is_reached_through_a_proxy(keys, server, monkeypatch):
    """The name is resolved by the proxy, which also has a password."""
    monkeypatch.setattr(Proxy, "target", server)
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pass%20word@127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("NO_PROXY", "elsewhere.org")
        finding = reach("example.org", 9090, keys / "ca.crt")
        assert finding.right, finding
        assert Proxy.seen == [("example.org:9090", "Basic bWU6cGFzcyB3b3Jk")]
        refused = reach("localhost", 9090, keys / "ca.crt")
        assert (
            f"the proxy 127.0.0.1:{proxy.server_port} gives no connection: Tunnel connection failed: 403"
            in refused.explanation
        )
        children = environment()
        assert children["NO_PROXY"] == "elsewhere.org,127.0.0.1,localhost"
        monkeypatch.setenv("NO_PROXY", children["NO_PROXY"])
        assert reach(server[0], server[1], keys / "ca.crt").right
        assert len(Proxy.seen) == 2  # the last one went without it
        proxy.shutdown()


@pytest.mark.parametrize(
    ("ahead", "right", "message"),
    [(0, True, "equal to the server's"), (-10, True, "10 s behind"), (60, False, "60 s ahead")],
)
def test_the_clock(ahead, right, message):
    there = datetime.datetime(2026, 5, 1, 12, 0, 0, tzinfo=datetime.UTC)
    finding = clock(format_datetime(there, usegmt=True), there.timestamp() + 0.5 + ahead)
    assert finding.right is right
    assert message in finding.explanation
    assert clock("yesterday", 0.0).right is None


def test_versions_are_compared_with_the_servers(keys, tmp_path):
    assert same_versions(keys).right
    assert same_versions(tmp_path).right is None
    config = json.loads((keys / "fleet.json").read_text())
    for name, right in (("flwr", False), ("torch", True), ("fedgraph-flwr", True), ("protocol", False)):
        other = config | {"versions": config["versions"] | {name: "0.1\033[31m"}}
        (tmp_path / "fleet.json").write_text(json.dumps(other))
        finding = same_versions(tmp_path)
        assert finding.right is right
        assert f"{name} {config['versions'][name]} (server: 0.1?[31m)" in finding.explanation
    earlier = {name: number for name, number in config["versions"].items() if name != "protocol"}
    for more, right in ({"flwr": "1.41.0"}, True), ({"fedgraph-flwr": "0.1.0"}, False):
        (tmp_path / "fleet.json").write_text(json.dumps(config | {"versions": earlier | more}))
        assert same_versions(tmp_path).right is right
    (tmp_path / "fleet.json").write_text("[]")
    with pytest.raises(FedGraphError, match="is invalid: create it again with `fedgraph-flwr fleet init`"):
        same_versions(tmp_path)


def test_a_graph_that_was_not_imported_has_no_schema_to_compare(tmp_path):
    client_graph(0).save(tmp_path / "graph.safetensors")
    assert same_schema(tmp_path / "graph.safetensors", None).right is None
    (tmp_path / "other.safetensors").write_bytes(b"x")
    assert same_schema(tmp_path / "other.safetensors", None).right is False


@pytest.mark.parametrize(
    ("text", "right", "message"),
    [
        ("min_nodes: 20", True, "accepts a run of default keys"),
        ("min_clients: 3", None, "refuses strategy.min_clients=1: it accepts at least 3 clients"),
        ("min_client: 3", False, "'min_client' is unknown"),
    ],
)
def test_a_check_says_whether_a_policy_accepts_the_default_run(tmp_path, text, right, message):
    (tmp_path / "policy.yaml").write_text(text)
    finding = accepts_defaults(tmp_path / "policy.yaml")
    assert finding.right is right
    assert message in finding.explanation
    if right is None:
        policy = read_policy(str(tmp_path / "policy.yaml"))
        policy.check_run(compose(["engine=fleet", "num_clients=3", "strategy.min_clients=3"]))


# --- a node that cannot come up ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_prints_what_it_starts_and_a_signal_ends_it_all(keys, tmp_path, number):
    client_graph(0).save(tmp_path / "graph.safetensors")
    options = ["--server", "127.0.0.1:1", "--key", str(keys / "node_0"), "--graph", str(tmp_path / "graph.safetensors")]
    program = tmp_path / "flower-supernode"  # in the place of Flower's, which would take seconds to start
    program.write_text("#!/bin/sh\necho Exit Code: 305\nexec sleep 600\n")
    program.chmod(0o755)
    script = f"""import sys
from fedgraph_flwr.cli import node
node.tool = lambda name: {str(program)!r}
from fedgraph_flwr.cli import main
sys.exit(main(["node", "--plain", *{options!r}]))"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    waits = process.stdout.readline()
    assert "no connection to the server 127.0.0.1:1: nothing listens on 127.0.0.1:1" in waits
    assert "the node keeps trying" in waits
    started = process.stdout.readline()
    assert "starting: FLWR_DISABLE_UPDATE_CHECK=1" in started
    assert f"--superlink 127.0.0.1:1 --root-certificates {keys / 'ca.crt'}" in started
    assert f'graph="{tmp_path / "graph.safetensors"}"' in started
    assert process.stdout.readline() == "Exit Code: 305\n"
    os.kill(process.pid, number)
    rest = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0
    assert "stopping the node" in rest
    paths = Path("/proc")
    wait_for(lambda: not any(str(program) in _read(path) for path in paths.glob("[0-9]*/cmdline")), "the node's end")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_a_server_names_its_versions_after_an_upgrade(keys, tmp_path, monkeypatch):
    places, _ = read_fleet(keys)
    assert fleet_keys.write_fleet(tmp_path, places)
    assert not fleet_keys.write_fleet(tmp_path, places)
    monkeypatch.setattr(fleet_keys, "installed", lambda *names: {"fedgraph-flwr": "0.3.0"})
    assert fleet_keys.write_fleet(tmp_path, places)
    assert read_fleet(tmp_path) == (places, {"fedgraph-flwr": "0.3.0", "protocol": str(PROTOCOL)})


def test_a_connection_that_works_again_is_ready_although_flower_does_not_say_so(keys, monkeypatch):
    """A reply to a run that ended during the cut is dropped, so that unpatched Flower prints no successful attempt."""
    node = Node([], True, 1, ServerAddress("127.0.0.1", free_port(), keys / "ca.crt"), key=keys / "node_0")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    try:
        node._read("INFO :      SuperNode ID: 5")
        assert not node.not_ready()
        node._read("WARNING :   Connection attempt failed, retrying in 13.41 seconds")
        assert "no connection to the server" in node.not_ready()
        now += 31.0
        assert not node._is_back()  # nothing listens
        monkeypatch.setattr(ServerAddress, "reach", lambda self: Finding("reachable", True, ""))
        assert node._is_back()
        node._read("WARNING :   Connection attempt failed, retrying in 20.00 seconds")
        assert not node._is_back()
        now += 31.0
        wait = iter((True,))  # the watch looks once
        monkeypatch.setattr(node.lost, "wait", lambda seconds: next(wait))
        with pytest.raises(StopIteration):
            node._watch()
        assert not node.not_ready()
    finally:
        node.end()


def test_a_removed_key_does_not_wait(keys, monkeypatch):
    monkeypatch.setattr(ServerAddress, "unreachable", lambda self: "")
    node = Node([], False, 1, ServerAddress("127.0.0.1", 1, keys / "ca.crt"), key=keys / "node_0")
    node.code = 305
    try:
        for right, expected in (
            (False, "the server does not know this key, or removed it"),
            (True, "waits about a minute"),
        ):
            finding = Finding("registered", right, "the server does not know this key, or removed it")
            monkeypatch.setattr("fedgraph_flwr.cli.node.admission", lambda *args, finding=finding: iter([finding]))
            assert expected in node._why()
    finally:
        node.end()


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (
            [Finding("clock", True, ""), Finding("registered", True, "the server knows this key")],
            "too late, since the connection was cut, or this machine slept",
        ),
        ([Finding("clock", False, "80 s behind the server's: set it")], "80 s behind the server's: set it"),
        ([Finding("registered", False, "the server does not know this key")], "the server does not know this key"),
    ],
)
def test_a_401_is_named_by_its_cause(keys, monkeypatch, findings, expected):
    monkeypatch.setattr("fedgraph_flwr.cli.node.admission", lambda *args: iter(findings))
    server = ServerAddress("127.0.0.1", free_port(), keys / "ca.crt")
    node = Node([], False, 1, server, key=keys / "node_0")
    line = "ERROR :     Client error '401 Unauthorized' for url 'https://fleet.example.org:9090/v1/fleet/pull-messages'"
    try:
        node._read(line)
        assert "401 above): the connection to 127.0.0.1" in node._why()
        assert "401" not in node._why()  # of the next end
        node._read(
            line.replace("fleet.example.org:9090/v1/fleet/pull-messages", "127.0.0.1:3/v1/runtime/push-task-output")
        )
        assert "401" not in node._why()  # it is of this machine
        monkeypatch.setattr(ServerAddress, "unreachable", lambda self: "")
        node._read(line)
        assert expected in node._why()
    finally:
        node.end()


@pytest.mark.parametrize(
    "line",
    [
        "WARNING :   Giving up reconnection after 7.02 seconds and 3 tries.",
        "ERROR :     SSL/TLS handshake error detected.",
        "ERROR :     Client error '404 Not Found' for url 'https://fleet.example.org/v1/fleet/pull-messages'",
    ],
)
def test_a_supernode_that_gave_up_is_started_again(keys, tmp_path, monkeypatch, line):
    """Its process stays, and prints nothing more."""
    program = tmp_path / "flower-supernode"
    program.write_text(f"""#!/bin/sh
echo 'INFO :      SuperNode ID: 5'
if mkdir {tmp_path}/first 2> {tmp_path}/none; then echo "{line}"; exec sleep 600; fi
sleep 0.5; echo Exit Code: 303""")
    program.chmod(0o755)
    monkeypatch.setattr("fedgraph_flwr.cli.node.tool", lambda name: str(program))
    monkeypatch.setattr("fedgraph_flwr.cli.node.PAUSES", (0.0,))
    node = Node([], True, 1, ServerAddress("127.0.0.1", free_port(), keys / "ca.crt"))
    try:
        with pytest.raises(FedGraphError, match="code 303"):  # of the second one
            node.run()
        assert node.restarts == 1
    finally:
        node.end()


def test_ready_means_an_answered_heartbeat(keys, monkeypatch):
    """Also if Flower's thread that sends them ended, and whatever its lines say."""
    node = Node([], False, 1, ServerAddress("127.0.0.1", free_port(), keys / "ca.crt"))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(node, "looked", now + 1e9)  # it is live
    try:
        node._read("INFO :      SuperNode ID: 5")
        assert not node.not_ready()
        now += 59.0
        node.heartbeat.touch()
        os.utime(node.heartbeat, (now, now))
        now += 59.0
        assert not node.not_ready()
        now += 3.0
        assert node.not_ready() == "the server has answered no heartbeat for 62 s"
        assert node.metrics()[0].samples[0][1] == 0.0
        node._read("WARNING :   Connection attempt failed, retrying in 13.41 seconds")
        now += 31.0
        monkeypatch.setattr(ServerAddress, "reach", lambda self: Finding("reachable", True, ""))
        assert not node._is_back()  # the server responds, but to no heartbeat
        node.heartbeat.touch()
        os.utime(node.heartbeat, (now, now))
        assert node._is_back()
    finally:
        node.end()
