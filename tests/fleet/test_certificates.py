"""Renewal of certificates, warnings before they end, and keys that stay removed."""

import asyncio
import datetime
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
import uvicorn
import uvicorn.config
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.node import Node, ServerAddress
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import certificates, flower_commands
from fedgraph_flwr.fleet.certificates import days_left, read, renew, warnings
from fedgraph_flwr.fleet.checking import reach
from fedgraph_flwr.fleet.keys import make_ca, make_certificate, make_operator, named
from fedgraph_flwr.fleet.processes import free_port
from tests.support import wait_for


@pytest.fixture
def keys(tmp_path):
    """What `fleet init` writes."""
    folder = tmp_path / "keys"
    assert main(["fleet", "init", str(folder), "--trial", "2", "--host", "example.org", "--days", "40"]) == 0
    return folder


@contextmanager
def serving(folder, name="server"):
    """HOST, PORT of something that shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    context.wrap_socket(listening.accept()[0], server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield "127.0.0.1", listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def names(folder):
    extension = read(folder / "server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(map(str, extension.value))


def test_a_renewed_server_has_the_same_names_and_a_new_key(keys, capsys):
    before, key, known = (keys / "server.crt").read_bytes(), (keys / "server.key").read_bytes(), names(keys)
    assert main(["fleet", "renew", str(keys), "--days", "400"]) == 0
    out = capsys.readouterr().out
    assert "server.crt is valid for 400 days" in out
    assert (keys / "server.crt").read_bytes() != before
    assert (keys / "server.key").read_bytes() != key
    assert (keys / "server.key").stat().st_mode & 0o077 == 0
    assert names(keys) == known
    assert not list(keys.glob(".renew-*"))
    with serving(keys) as (host, port):
        finding = reach(host, port, keys / "ca.crt")
        assert (finding.right, finding.days) == (True, 399)


def test_old_and_new_copies_of_a_renewed_authority_accept_old_and_new_servers(keys, tmp_path):
    """So the order in which parties replace theirs does not matter."""
    (party := tmp_path / "ca.crt").write_bytes((keys / "ca.crt").read_bytes())
    with serving(keys) as old:
        assert main(["fleet", "renew", str(keys), "--also", "ca", "--also", "operator"]) == 0
        assert days_left(keys / "ca.crt") > 364 > 41 > days_left(party)
        with serving(keys) as new:
            for authority in (party, keys / "ca.crt"):
                for host, port in (old, new):
                    assert reach(host, port, authority).right
            assert not reach(new[0], new[1], keys / "operators.crt").right


def test_certificates_are_named_from_30_days_before_their_end(keys):
    now = datetime.datetime.now(datetime.UTC)
    assert list(warnings(keys, now + datetime.timedelta(days=9))) == []
    soon = list(warnings(keys, now + datetime.timedelta(days=20)))
    assert soon[0] == f"{keys / 'server.crt'} ends in 20 days: run `fedgraph-flwr fleet renew`"
    assert len(soon) == 4
    make_operator(keys, "bob", 60)
    make_operator(keys, "short", 24)
    assert list(warnings(keys, now + datetime.timedelta(days=15)))[4:] == []
    others = [
        f"{keys / name}.crt ends in {{}} days: that operator can renew it (fleet operator {name}.csr)"
        for name in ("bob", "short")
    ]
    assert list(warnings(keys, now + datetime.timedelta(days=20)))[4:] == [others[1].format(4)]
    assert list(warnings(keys, now + datetime.timedelta(days=41)))[4:] == [others[0].format(19)]
    (keys / "bob.crt").unlink()
    renew(keys, "server", 400)
    ended = list(warnings(keys, now + datetime.timedelta(days=41)))
    assert [text.partition(" has ended: run")[0] for text in ended] == [
        str(keys / name) for name in ("ca.crt", "operators.crt", "operator.crt")
    ]


def test_an_expired_certificate_is_named_at_once_and_the_node_waits(keys, monkeypatch, capsys):
    """It starts no SuperNode, which would try for two minutes; after the renewal it does."""
    make_certificate(keys, "server", "ca", named("localhost"), x509.ExtendedKeyUsageOID.SERVER_AUTH, 0)
    started = []
    monkeypatch.setattr("fedgraph_flwr.cli.node.PAUSES", (0.0,))
    with serving(keys) as (_, port):
        monkeypatch.setattr(Node, "_start", lambda self: started.append(self))
        finding = reach("localhost", port, keys / "ca.crt")
        assert (finding.right, finding.certificate) == (False, True)
        assert finding.explanation.startswith(f"the certificate of localhost:{port} has expired: the operator runs")
        node = Node([], True, 1, ServerAddress("localhost", port, keys / "ca.crt"), once=True)
        looked = []
        node.once = False

        def sleep(seconds):
            looked.append(len(started))
            if len(looked) == 3:
                node.refused, node.once = False, True
                monkeypatch.setattr(node, "_look", lambda: None)

        monkeypatch.setattr("fedgraph_flwr.cli.node.time.sleep", sleep)
        node.run()
    assert looked == [0, 0, 0]
    assert started == [node]
    assert f"localhost:{port}: the certificate of localhost:{port} has expired" in capsys.readouterr().out


def test_an_expired_authority_of_a_party_is_named(keys):
    make_ca(keys, "ca", 0)
    make_certificate(keys, "server", "ca", named("localhost"), x509.ExtendedKeyUsageOID.SERVER_AUTH, 9)
    with serving(keys) as (_, port):
        finding = reach("localhost", port, keys / "ca.crt")
    assert "ca.crt expired on" in finding.explanation
    assert "fleet renew --also ca" in finding.explanation


def test_a_certificate_of_another_authority_is_renewed_there(keys, capsys):
    (keys / "ca.key").unlink()
    assert main(["fleet", "renew", str(keys)]) == 2
    assert "ca.key is missing: renew server.crt with the authority that signed it" in capsys.readouterr().err


def test_a_server_shows_a_renewed_certificate_without_a_restart(keys, monkeypatch):
    monkeypatch.setattr(certificates, "LOOK", 0.05)
    monkeypatch.setattr(uvicorn.config, "create_ssl_context", uvicorn.config.create_ssl_context)
    certificates.reload_in_uvicorn()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    files = {"ssl_certfile": str(keys / "server.crt"), "ssl_keyfile": str(keys / "server.key")}
    config = uvicorn.Config(lambda *_: None, "127.0.0.1", port, lifespan="off", log_level="error", **files)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()

    def serial() -> int:
        with suppress(OSError):
            shown = ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(keys / "ca.crt"))
            return x509.load_pem_x509_certificate(shown.encode()).serial_number
        return 0

    wait_for(serial, "the server")
    assert serial() == read(keys / "server.crt").serial_number
    new = read(renew(keys, "server", 9)).serial_number
    wait_for(lambda: serial() == new, "the new certificate")
    server.should_exit = True
    thread.join(10)


# --- removed keys -----------------------------------------------------------------------------------------------------


class Control:
    """Flower's client for a server, and the server's nodes: key → (number, status)."""

    def __init__(self):
        self.nodes = {}

    def ListNodes(self, request):
        listed = [SimpleNamespace(public_key=k, node_id=n, status=s) for k, (n, s) in self.nodes.items()]
        return SimpleNamespace(nodes_info=listed)

    def RegisterNode(self, request):
        assert request.public_key not in self.nodes
        self.nodes[request.public_key] = (100 + len(self.nodes), "registered")

    def remove(self, number, name):
        self.nodes = {k: (n, "unregistered" if str(n) == number else s) for k, (n, s) in self.nodes.items()}


@pytest.fixture
def control(monkeypatch):
    fake = Control()

    @contextmanager
    def connected(name):
        yield fake

    monkeypatch.setattr(flower_commands, "_control", connected)
    for place in ("fedgraph_flwr.fleet.flower_commands.remove", "fedgraph_flwr.cli.fleet.remove"):
        monkeypatch.setattr(place, fake.remove)
    monkeypatch.setattr("fedgraph_flwr.cli.fleet.check_connection", lambda name: None)
    return fake


def test_a_removed_key_stays_out_also_after_a_lost_database(keys, control, capsys):
    first, second = (keys / f"node_{i}.pub" for i in range(2))
    assert list(flower_commands.admit_all(keys, "fleet", True)) == [f"{path} is registered" for path in (first, second)]
    assert list(flower_commands.admit_all(keys, "fleet", True)) == [
        f"{path} is already registered" for path in (first, second)
    ]
    assert main(["fleet", "remove", str(first), "--keys", str(keys)]) == 0
    assert f"{first} removed; {keys / 'revoked'} keeps it out" in capsys.readouterr().out
    out = [f"{first} was removed, and is not registered again", f"{second} is already registered"]
    assert list(flower_commands.admit_all(keys, "fleet", True)) == out
    kept = control.nodes
    control.nodes = {}  # a lost database
    assert list(flower_commands.admit_all(keys, "fleet", True)) == [out[0], f"{second} is registered"]
    key = public_key_to_bytes(load_ssh_public_key(first.read_bytes()))
    assert key not in control.nodes
    control.nodes = kept | {key: (7, "registered")}  # a copy from before the removal
    assert f"node 7 was unregistered: {keys / 'revoked'} lists its key" in list(
        flower_commands.admit_all(keys, "fleet", False)
    )
    assert control.nodes[key] == (7, "unregistered")
    assert main(["fleet", "join", str(first), "--keys", str(keys)]) == 2
    assert "no removed key is admitted again: the party creates another key" in capsys.readouterr().err


def test_an_admitted_key_is_kept_for_a_lost_database(keys, tmp_path, monkeypatch, capsys):
    """Wherever its file lies, and also if two banks send files of one name."""
    monkeypatch.setattr("fedgraph_flwr.cli.fleet.admit", lambda *args: "registered")
    monkeypatch.setattr("fedgraph_flwr.cli.fleet.check_connection", lambda *args: None)
    for bank, party in (("a", []), ("b", []), ("c", ["--party", "bank/c"]), ("a", [])):
        path = tmp_path / bank / "node"
        assert main(["fleet", "join", str(path)]) == 0
        assert main(["fleet", "join", f"{path}.pub", "--keys", str(keys), *party]) == 0
    for name, bank in (("node", "a"), ("node_2", "b"), ("bank_c", "c")):
        assert (keys / f"{name}.pub").read_text() == (tmp_path / bank / "node.pub").read_text()
    assert len(list(keys.glob("*.pub"))) == 2 + 3
    assert capsys.readouterr().out.count("the server admits it again if it loses its database") == 3


def respelled(text):
    """The same key with other unused bits at the end of its base64, which parsers ignore."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.strip().rstrip("=")
    return f"{body[:-1]}{letters[letters.index(body[-1]) + 1]}=="


def test_a_removed_key_in_another_spelling_stays_out(keys, control, capsys):
    first, again = keys / "node_0.pub", keys / "again.pub"
    assert main(["fleet", "remove", str(first), "--keys", str(keys)]) == 0
    again.write_text(respelled(first.read_text()))
    assert load_ssh_public_key(again.read_bytes()) == load_ssh_public_key(first.read_bytes())
    assert again.read_text().split()[1] != first.read_text().split()[1]
    assert f"{again} was removed, and is not registered again" in list(flower_commands.admit_all(keys, "fleet", True))
    assert main(["fleet", "join", str(again), "--keys", str(keys)]) == 2
    assert "no removed key is admitted again" in capsys.readouterr().err


def test_a_key_is_removed_also_after_a_line_without_an_end(keys, control):
    revoked = keys / "revoked"
    revoked.write_text((keys / "node_0.pub").read_text().strip() + " by hand")
    assert main(["fleet", "remove", str(keys / "node_1.pub"), "--keys", str(keys)]) == 0
    assert certificates.revoked(keys) == {(keys / f"node_{i}.pub").read_text().strip() for i in range(2)}


def test_a_half_written_certificate_ends_no_watch(keys, monkeypatch):
    monkeypatch.setattr(certificates, "LOOK", 0.01)
    whole, said, changes = (keys / "ca.crt").read_bytes(), [], []
    (keys / "ca.crt").write_bytes(whole[:100])
    certificates.watch(keys, lambda: changes.append(1), said.append)
    wait_for(lambda: said, "a warning")
    assert "ca.crt is not a certificate" in said[0]
    (keys / "ca.crt").write_bytes(whole)
    wait_for(lambda: changes, "the replaced certificate")


def test_join_tells_a_removed_key_from_a_registered_one(keys, control, monkeypatch):
    """Flower answers both in the same way."""
    done = SimpleNamespace(returncode=1, stdout="Public key already in use", stderr="")
    monkeypatch.setattr(flower_commands, "_flwr", lambda *args: done)
    list(flower_commands.admit_all(keys, "fleet", True))
    assert flower_commands.admit(keys / "node_0.pub", "fleet").endswith("is already registered")
    control.remove("100", "fleet")
    with pytest.raises(flower_commands.Removed, match=r"node_0\.pub was removed from this fleet"):
        flower_commands.admit(keys / "node_0.pub", "fleet")


def test_a_damaged_list_of_removed_keys_admits_nobody(keys, control):
    (keys / "revoked").write_text("# comments are fine\n\nnode_0\n")
    with pytest.raises(FedGraphError, match=r"a line of .*revoked is not a public key"):
        list(flower_commands.admit_all(keys, "fleet", True))
    assert control.nodes == {}


def test_join_reads_the_list_where_the_server_keeps_it(keys, control, tmp_path, monkeypatch, capsys):
    """From any folder of the server's machine, without --keys."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    flower_commands.connect("fleet", "127.0.0.1:9090", keys / "ca.crt")
    monkeypatch.chdir(tmp_path)
    first = keys / "node_0.pub"
    list(flower_commands.admit_all(keys, "fleet", True))
    assert main(["fleet", "remove", str(first)]) == 0
    assert certificates.revoked(keys)
    capsys.readouterr()
    assert main(["fleet", "join", str(first)]) == 2
    assert "no removed key is admitted again" in capsys.readouterr().err


def test_a_server_that_refuses_a_removed_key_is_understood(keys, monkeypatch):
    """As to an operator on another machine, which has no list."""
    text = "Public key already in use. it was removed \n from this fleet"
    monkeypatch.setattr(flower_commands, "_flwr", lambda *args: SimpleNamespace(returncode=1, stdout=text, stderr=""))
    with pytest.raises(flower_commands.Removed):
        flower_commands.admit(keys / "node_0.pub", "fleet")


def with_other_signature(certificate: x509.Certificate) -> x509.Certificate:
    """The same certificate with the other valid form of its ECDSA signature (r, n − s), which anyone can calculate."""
    order = int("ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
    r, s = decode_dss_signature(certificate.signature)
    changed = encode_dss_signature(r, order - s)
    der = certificate.public_bytes(Encoding.DER)
    head = der[der.index(certificate.tbs_certificate_bytes) : len(der) - len(certificate.signature)]
    head = head[: head.rindex(b"\x03")]  # up to the bit string of the signature
    body = head + b"\x03" + bytes([len(changed) + 1]) + b"\0" + changed
    return x509.load_der_x509_certificate(b"\x30\x82" + len(body).to_bytes(2, "big") + body)


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_a_removed_operator_is_refused_and_the_others_are_not(tmp_path, capsys):
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("--listen", "--superlink", "--operator")}
    assert main(["fleet", "init", str(tmp_path), *(word for pair in ports.items() for word in pair)]) == 0
    assert main(["fleet", "operator", "bob", "--keys", str(tmp_path)]) == 0
    assert main(["fleet", "operator", "bob", "--keys", str(tmp_path)]) == 2
    refused = capsys.readouterr().err
    assert (
        f"expected a new name of letters, digits, '.', '_' and '-': `fleet remove {tmp_path}/bob.crt` frees" in refused
    )
    assert main(["fleet", "operator", "ca", "--keys", str(tmp_path)]) == 2
    assert "frees" not in capsys.readouterr().err
    process = subprocess.Popen(["nginx", "-e", "stderr", "-c", str(tmp_path / "server.conf")])

    def status(name):
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        url = f"https://{ports['--listen']}/v1/control/list-runs"
        try:
            return urllib.request.urlopen(urllib.request.Request(url, b"{}"), context=context, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    try:
        wait_for(lambda: status("bob"), "nginx")
        assert status("operator") == status("bob") == 502  # passed on to a SuperLink that does not run
        for done in ("removed", "was already removed"):
            assert main(["fleet", "remove", str(tmp_path / "operator.crt"), "--keys", str(tmp_path)]) == 0
            assert f"operator.crt {done}; {tmp_path / 'revoked_operators'} keeps it out" in capsys.readouterr().out
        process.send_signal(signal.SIGHUP)  # as `certificates.watch` lets the server do
        wait_for(lambda: status("operator") == 403, "nginx to read the list")
        assert status("bob") == 502
        other = with_other_signature(read(tmp_path / "operator.crt"))
        other.verify_directly_issued_by(read(tmp_path / "operators.crt"))
        (tmp_path / "again.crt").write_bytes(other.public_bytes(Encoding.PEM))
        shutil.copy(tmp_path / "operator.key", tmp_path / "again.key")
        wait_for(lambda: status("again") == 403, "all workers of nginx to read the list")
        assert main(["fleet", "remove", str(tmp_path / "server.crt"), "--keys", str(tmp_path)]) == 2
        assert "is not signed by" in capsys.readouterr().err
    finally:
        process.terminate()
        process.wait()
