"""Keys and certificates whose writing was interrupted, by a full disk, which leaves files of 0 bytes, or by a kill."""

import os
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fedgraph_flwr.cli import main
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.certificates import renew, revoked
from fedgraph_flwr.fleet.keys import check_key, check_pairs, make_node, matches


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What `fleet init` writes."""
    folder = tmp_path_factory.mktemp("made") / "keys"
    assert main(["fleet", "init", str(folder), "--trial", "1"]) == 0
    return folder


@pytest.fixture
def keys(made, tmp_path):
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "keys")


def pairs(folder):
    """Whether the key and certificate of each name belong together."""
    return [matches(folder, name) for name in ("ca", "operators", "server", "operator")]


@pytest.mark.parametrize(
    "name", ["ca.key", "ca.crt", "operators.key", "server.key", "server.crt", "operator.key", "node_0", "node_0.pub"]
)
def test_init_completes_what_a_full_disk_left(keys, name, capsys):
    """In a folder whose later files are not there yet, as the first try leaves it."""
    order = [
        "ca.key",
        "ca.crt",
        "operators.key",
        "operators.crt",
        "server.key",
        "server.crt",
        "operator.key",
        "operator.crt",
        "node_0",
        "node_0.pub",
    ]
    for later in order[order.index(name) + 1 :]:
        (keys / later).unlink()
    kept = {path: path.read_bytes() for path in keys.iterdir() if path.name in order[: order.index(name) & ~1]}
    (keys / name).write_bytes(b"")
    assert main(["fleet", "init", str(keys), "--trial", "1"]) == 0, capsys.readouterr().err
    assert pairs(keys) == [True] * 4
    check_key(keys / "node_0")
    public = serialization.load_ssh_public_key((keys / "node_0.pub").read_bytes())
    assert public == check_key(keys / "node_0").public_key()
    assert {path: path.read_bytes() for path in kept} == kept


def test_init_makes_no_second_authority(keys, capsys):
    """Parties keep the certificate of the first one."""
    before = (keys / "ca.crt").read_bytes()
    for damage in (lambda: (keys / "ca.key").write_bytes(b""), (keys / "ca.key").unlink):
        damage()
        assert main(["fleet", "init", str(keys)]) == 2
        assert f"{keys / 'ca.key'} is missing or empty, and {keys / 'ca.crt'} is there" in capsys.readouterr().err
        assert (keys / "ca.crt").read_bytes() == before
    (keys / "ca.key").write_text("damaged")
    assert main(["fleet", "init", str(keys)]) == 2
    assert f"{keys / 'ca.key'} is not a private key" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["", "key"])
def test_an_interrupted_operator_is_made_again(keys, left, capsys):
    for suffix in ("key", "crt"):
        if not left or suffix == left:
            (keys / f"bob.{suffix}").write_bytes(b"")
    assert main(["fleet", "operator", "bob", "--keys", str(keys)]) == 0, capsys.readouterr().err
    assert matches(keys, "bob")
    assert main(["fleet", "operator", "bob", "--keys", str(keys)]) == 2


def test_join_completes_a_pair_and_refuses_a_foreign_one(tmp_path, capsys):
    for damage in (b"", None):
        assert main(["fleet", "join", str(tmp_path / "bank")]) == 0
        public = (tmp_path / "bank.pub").read_bytes()
        if damage is None:
            (tmp_path / "bank.pub").unlink()
        else:
            (tmp_path / "bank.pub").write_bytes(damage)
        assert main(["fleet", "join", str(tmp_path / "bank")]) == 0
        assert (tmp_path / "bank.pub").read_bytes() == public
    (tmp_path / "bank").write_bytes(b"")
    (tmp_path / "bank.pub").unlink()
    assert main(["fleet", "join", str(tmp_path / "bank")]) == 0
    assert "created" in capsys.readouterr().out.splitlines()[-2]
    make_node(tmp_path / "other")
    shutil.copy(tmp_path / "other.pub", tmp_path / "bank.pub")
    assert main(["fleet", "join", str(tmp_path / "bank")]) == 2
    assert "bank.pub is not the public key of" in capsys.readouterr().err


class Killed(BaseException):
    """What a kill is to a program."""


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("name", ["server", "operator", "ca"])
def test_a_renewal_that_was_killed_is_named_and_done_again(keys, monkeypatch, capsys, name, before):
    """At each of its renames; none leaves a copy of the authority's key."""
    replace, renames = os.replace, []

    def killed(source, target):
        if Path(target).parent == keys:  # an operator's earlier certificate is kept in a folder before
            if len(renames) == before:
                raise Killed
            renames.append(target)
        replace(source, target)

    unlink = type(keys).unlink
    monkeypatch.setattr(type(keys), "unlink", lambda *_, **__: None)  # nothing runs after a kill
    monkeypatch.setattr(os, "replace", killed)
    if name == "ca" and before:
        pytest.skip("it is one file")
    with pytest.raises(Killed):
        renew(keys, name, 400)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(type(keys), "unlink", unlink)
    authority = (keys / "ca.key").read_bytes()
    copies = [path for path in keys.rglob("*") if path.is_file() and path.read_bytes() == authority]
    assert copies == [keys / "ca.key"]
    if before:
        with pytest.raises(FedGraphError, match=rf"{name}.key does not belong to .*{name}.crt.*fleet renew"):
            check_pairs(keys)
    else:
        check_pairs(keys)
    renew(keys, name, 400)
    check_pairs(keys)
    assert not list(keys.glob(".*"))


def test_the_server_names_a_pair_that_does_not_fit_and_removes_copies_of_earlier_versions(
    keys, monkeypatch, tmp_path, capsys
):
    shutil.copy(keys / "operator.key", keys / "server.key")
    (keys / ".renew-abc").mkdir()
    shutil.copy(keys / "ca.key", keys / ".renew-abc")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert main(["server", str(keys), "--runs", str(tmp_path / "runs")]) == 2
    assert "server.key does not belong to" in capsys.readouterr().err
    assert not list(keys.glob(".renew-*"))


def test_files_that_are_no_text_are_named(keys, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (keys / "node_0.pub").write_bytes(b"\xff\xfee\0c\0")  # as an editor of Windows writes it
    assert main(["fleet", "join", str(keys / "node_0.pub"), "--keys", str(keys)]) == 2
    assert "node_0.pub is not a public key of `fedgraph-flwr fleet join`" in capsys.readouterr().err
    assert main(["fleet", "remove", str(keys / "node_0.pub"), "--keys", str(keys)]) == 2
    capsys.readouterr()
    (keys / "revoked").write_bytes(b"\xff\xfee\0c\0")
    with pytest.raises(FedGraphError, match=r"a line of .*revoked is not a public key"):
        revoked(keys)


def test_public_files_are_readable_and_keys_are_not(keys):
    assert {path.name for path in keys.iterdir() if path.stat().st_mode & 0o044} >= {
        "ca.crt",
        "server.crt",
        "node_0.pub",
    }
    for name in ("ca.key", "server.key", "operator.key", "node_0"):
        assert (keys / name).stat().st_mode & 0o077 == 0
