"""Runs that owners approve: what they sign, and what a node refuses."""

import dataclasses
import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import Message, RecordDict

from fedgraph_flwr.cli import main
from fedgraph_flwr.config import compose, to_json
from fedgraph_flwr.engine import flower
from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.fleet import flower_patches
from fedgraph_flwr.fleet.approvals import Refused, check, config_digest, read_rule, sign, stored
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.secure.audit import verified
from fedgraph_flwr.wire.messages import DECLINED

NOW = 1_800_000_000.0
BUNDLE = b"a bundle"


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Private keys of three owners and of a stranger."""
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in ("alice", "bob", "carol", "mallory"):
        key = found[name] = Ed25519PrivateKey.generate()
        (tmp_path / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (tmp_path / f"{name}.pub").write_bytes(public + b" of an owner\n")
    return found


@pytest.fixture
def rule(keys, tmp_path):
    return read_rule("2 of [alice.pub, bob.pub, carol.pub]", tmp_path)


def approved(keys, signers, changes=(), config="{}", **run_config):
    """A run config with an approval that these owners signed; ``changes`` are made afterwards."""
    statement = {
        "config": config_digest(config),
        "code": "",
        "nonce": "0" * 32,
        "expires": "2027-02-01T00:00:00Z",
        "uses": 2,
    }
    statement["code"] = (
        subprocess.run(["sha256sum"], input=BUNDLE, capture_output=True, check=True).stdout.split()[0].decode()
    )
    approval = {"statement": statement, "signatures": {}}
    for name in signers:
        sign(approval, keys[name])
    statement |= dict(changes)
    return {
        "config": config,
        "num-clients": 2,
        "overrides": "",
        "strategy": "",
        **run_config,
        "approval": json.dumps(approval),
    }


def test_two_of_three_owners_are_named_in_the_order_of_the_rule(keys, rule, tmp_path):
    run = approved(keys, ["carol", "alice", "mallory"])
    assert check(rule, run, BUNDLE, 7, tmp_path / "state", NOW) == ["alice", "carol"]


@pytest.mark.parametrize(
    ("signers", "changes", "more", "reason"),
    [
        (["alice"], {}, {}, "the approval has alice: missing is 1 of bob, carol"),
        (["alice", "mallory"], {}, {}, "the approval has alice: missing is 1 of bob, carol"),
        ([], {}, {}, "the approval has none: missing is 2 of alice, bob, carol"),
        # an operator who changes what was signed has forged all signatures
        (
            ["alice", "bob"],
            {"uses": 9},
            {},
            r"has none \(the signature of alice, bob does not belong to this approval\)",
        ),
        (["alice", "bob"], {"expires": "2099-01-01T00:00:00Z"}, {}, "has none"),
        (["alice", "bob"], {}, {"config": '{"rounds": 3}'}, "approved another configuration"),
        (["alice", "bob"], {}, {"bundle": b"another"}, "approved other code"),
        (["alice", "bob"], {}, {"now": NOW + 1e8}, "the approval expired at 2027-02-01T00:00:00Z"),
        (["alice", "bob"], {}, {"overrides": "rounds=9"}, r"settings apart from its configuration \(overrides\)"),
        (["alice", "bob"], {}, {"strategy": "fedsage"}, r"settings apart from its configuration \(strategy\)"),
        (["alice", "bob"], {}, {"config": ""}, "the run has no resolved configuration"),
        (["alice", "bob"], {}, {"approval": ""}, "the run has no approval: sign one with fedgraph-flwr approve"),
        (["alice", "bob"], {}, {"approval": "[" * 5000}, "the approval is damaged"),
        (["alice", "bob"], {"nonce": "../../x"}, {}, "the approval is damaged"),
        (["alice", "bob"], {"uses": True}, {}, "the approval is damaged"),
    ],
)
def test_what_is_not_approved_is_refused_and_not_counted(keys, rule, tmp_path, signers, changes, more, reason):
    bundle, now = more.pop("bundle", BUNDLE), more.pop("now", NOW)
    run = approved(keys, signers, changes) | more
    with pytest.raises(Refused, match=reason):
        check(rule, run, bundle, 7, tmp_path / "state", now)
    assert not (tmp_path / "state/approvals.json").exists()


def test_one_owner_is_one_signature(keys, tmp_path):
    """Two files with the same key are one owner, so that the rule cannot be met by one person."""
    (tmp_path / "again.pub").write_bytes((tmp_path / "alice.pub").read_bytes())
    with pytest.raises(Refused, match="expected a number from 1 to 1, the number of different keys"):
        read_rule("2 of [alice.pub, again.pub]", tmp_path)


@pytest.mark.parametrize(
    "text", ["alice.pub", "0 of [alice.pub]", "2 of []", "x of [alice.pub]", "1 of [alice]", "1 of [no.pub]"]
)
def test_a_rule_has_one_form(keys, tmp_path, text):
    with pytest.raises(Refused, match="approvals"):
        read_rule(text, tmp_path)


def test_uses_are_counted_by_run_and_survive_restarts(keys, rule, tmp_path):
    run, state = approved(keys, ["alice", "bob"]), tmp_path / "state"
    for number in (7, 7, 8, 7, 8):  # messages of two runs
        check(rule, run, BUNDLE, number, state, NOW)
    with pytest.raises(Refused, match="was used by 2 runs, and allows 2"):
        check(rule, run, BUNDLE, 9, state, NOW)
    (state / "approvals.json").write_text("{")
    with pytest.raises(Refused, match="cannot read its record of used approvals"):
        check(rule, run, BUNDLE, 7, state, NOW)


def test_signed_is_all_that_matters_to_a_node():
    base = ["strategy=fedprox", "rounds=3", "engine=fleet"]
    digest = config_digest(to_json(compose(base)))
    for free in ("out=elsewhere", "engine=far", "overwrite=true"):
        assert config_digest(to_json(compose([*base, free]))) == digest, free
    for signed in ("rounds=4", "seed=1", "strategy.mu=0.5", "num_clients=4"):
        assert config_digest(to_json(compose([*base, signed]))) != digest, signed


@pytest.mark.parametrize("key", ["init", "evaluate"])
def test_folders_are_signed_by_their_last_names(key):
    """`fedgraph-flwr run` sends absolute paths of its machine, and owners sign on theirs."""
    signed = dataclasses.replace(compose(["engine=fleet"]), **{key: "runs/first"})
    digest = config_digest(to_json(signed))
    assert config_digest(to_json(with_folder(signed))) == digest
    for other in ("runs/second", ""):
        assert config_digest(to_json(dataclasses.replace(signed, **{key: other}))) != digest


def test_owners_sign_one_after_the_other(keys, rule, tmp_path, capsys, monkeypatch):
    """With the command, from the same configuration and code; the run then brings the file."""
    app, words = tmp_path / "app.fab", ["strategy=fedprox", "rounds=3", "num_clients=2", "engine=fleet"]
    app.write_bytes(BUNDLE)
    assert main(["approve", *words, "--key", "alice", "--app", "app.fab", "--uses", "3", "--expires", "12h"]) == 0
    assert "trains gcn with fedprox on nodes, 2 clients, 3 rounds" in capsys.readouterr().out
    assert main(["approve", *words, "seed=2", "--key", "bob", "--app", "app.fab"]) == 2
    assert "approval.json is about another configuration" in capsys.readouterr().err
    (tmp_path / "other.fab").write_bytes(b"another")
    assert main(["approve", *words, "--key", "bob", "--app", "other.fab"]) == 2
    assert "approval.json is about other code: sign with the version and the installation" in capsys.readouterr().err
    assert main(["approve", "--key", "bob", "--app", "app.fab"]) == 2
    assert "engine=inline: only a fleet's nodes ask for approvals" in capsys.readouterr().err
    assert main(["approve", *words, "--key", "bob.pub", "--app", "app.fab"]) == 2
    assert "is not an Ed25519 private key" in capsys.readouterr().err
    for bound, reason in (["--uses", "2"], "for 3 runs"), (["--expires", "1h"], "which is later"):
        assert main(["approve", *words, "--key", "bob", "--app", "app.fab", *bound]) == 2
        assert reason in capsys.readouterr().err
    assert main(["approve", *words, "engine=far", "--key", "bob", "--app", "app.fab", "--uses", "3"]) == 0
    run = {"config": to_json(compose([*words, "out=x"])), "approval": (tmp_path / "approval.json").read_text()}
    assert check(rule, run, BUNDLE, 1, tmp_path / "state", 0.0) == ["alice", "bob"]
    assert main(["run", *words, "engine=inline", "--approval", "approval.json"]) == 2
    assert "engine=inline has no nodes that ask for it" in capsys.readouterr().err
    later = time.time() + 13 * 3600
    monkeypatch.setattr("time.time", lambda: later)
    for command in (
        ["run", *words, "--approval", "approval.json"],
        ["approve", *words, "--key", "bob", "--app", "app.fab"],
    ):
        assert main(command) == 2
        assert "approval.json: the approval expired at 20" in capsys.readouterr().err


def test_a_link_is_signed_and_brings_its_approval(keys, rule, tmp_path, monkeypatch, capsys):
    words = ["link", "engine=far", "num_clients=3", "--share", "amount", "--min-shared", "2"]
    assert main([*words, "--write-config", "link.yaml"]) == 0
    (tmp_path / "app.fab").write_bytes(BUNDLE)
    for name in ("alice", "bob"):
        assert main(["approve", "config=link.yaml", "--key", name, "--app", "app.fab"]) == 0
    sent = {}

    def run(cfg, on_wait):
        sent["config"] = to_json(cfg)
        sent["approval"] = Path(flower.os.environ[flower.APPROVAL]).read_text()
        return {}

    monkeypatch.setenv(flower.APPROVAL, "")
    monkeypatch.setattr("fedgraph_flwr.launch.runner.run", run)
    assert main([*words, "--approval", "approval.json"]) == 0
    assert check(rule, sent, BUNDLE, 1, tmp_path / "state", 0.0) == ["alice", "bob"]
    assert main([*words, "--min-records", "4", "--approval", "approval.json"]) == 2
    assert "is for another configuration" in capsys.readouterr().err
    assert main(["link", "--simulate", "a", "b", "--approval", "approval.json"]) == 2
    assert "--approval is for a link on a fleet" in capsys.readouterr().err


@pytest.mark.parametrize("signers", [["alice"], ["alice", "bob"]])
def test_a_task_checks_before_it_unpacks_the_bundle(keys, rule, tmp_path, signers, monkeypatch):
    """And replies with the reason; the bundle's code may name the signers in the audit log."""
    done = []
    context, run = SimpleNamespace(run_config=approved(keys, signers), run_id=7), SimpleNamespace(run_id=7)
    with run_identity(7):
        message = Message(RecordDict(), dst_node_id=1, message_type="train")
    client = SimpleNamespace(
        pull_task_input=lambda _: (message, context, run, SimpleNamespace(content=BUNDLE)),
        install_from_fab=lambda *_, **__: done.append("installed"),
        get_load_client_app_fn=lambda **_: lambda *_: lambda message, context: done.append("trained"),
    )
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setenv(flower_patches.SIGNERS, "")
    flower_patches._ask_for_approval(client, (stored(rule), tmp_path / "state"))
    client.pull_task_input(None)
    client.install_from_fab(BUNDLE, skip_prompt=True)
    with run_identity(7):
        reply = client.get_load_client_app_fn(multi_app=True)("id", "version", "hash")(message, context)
    if len(signers) == 2:
        assert done == ["installed", "trained"]
        assert flower_patches.os.environ[flower_patches.SIGNERS] == "alice, bob"
    else:
        assert done == []
        assert reply.error.code == DECLINED
        assert "the approval has alice: missing is 1 of bob, carol, who adds a signature" in reply.error.reason
        (line,) = verified(tmp_path / "state")
        assert (line["run"], line["phase"], line["refused"]) == ("7", "train", reply.error.reason)


def test_a_server_that_gives_runs_one_number_and_a_series_uses_up_the_approval(keys, rule, tmp_path, monkeypatch):
    """Flower keeps contexts by series: a message of run 7 may come with the context of a later run, which the code reads."""
    numbers = iter((7, 8, 9))
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setenv(flower_patches.SIGNERS, "")
    for allowed in (True, True, False):  # of two uses
        done = []
        context = SimpleNamespace(run_config=approved(keys, ["alice", "bob"]), run_id=next(numbers))
        pulled = (None, context, SimpleNamespace(run_id=7), SimpleNamespace(content=BUNDLE))
        client = SimpleNamespace(
            pull_task_input=lambda pulled=pulled: pulled,
            install_from_fab=lambda *_, done=done: done.append("installed"),
            get_load_client_app_fn=None,
        )
        flower_patches._ask_for_approval(client, (stored(rule), tmp_path / "state"))
        client.pull_task_input()
        client.install_from_fab(BUNDLE)
        assert done == ["installed"] * allowed


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--approvals", "2 of [alice.pub, bob.pub]"], "approvals need --state DIR"),
        (["--approvals", "2 of [alice.pub, bob.pub]", "--state", "s", "--plain"], "run without --plain"),
        (["--approvals", "2 of alice.pub"], "expected a rule such as 2 of"),
    ],
)
def test_a_node_that_cannot_check_does_not_start(keys, tmp_path, capsys, monkeypatch, more, reason):
    monkeypatch.setattr("fedgraph_flwr.cli.node.supernode_options", lambda args: [])
    assert main(["node", "--server", "h:1", "--key", "k", "--graph", "g.safetensors", *more]) == 2
    assert reason in capsys.readouterr().err


def test_a_partys_file_may_ask(keys, tmp_path):
    from fedgraph_flwr.party.party_file import read_party

    path = tmp_path / "party.yaml"
    path.write_text("party: a\nnodes: n.csv\nedges: e.csv\napprovals: 2 of [alice.pub, bob.pub]\n")
    assert read_rule(read_party(path).approvals, tmp_path).text() == "2 of alice, bob"


def test_describe_names_groups_and_epsilon(capsys):
    words = [
        "strategy.weighting=uniform",
        "privacy.dp=client_fixed",
        "privacy.noise_multiplier=4",
        "privacy.scores=none",
    ]
    assert main(["run", "--describe", "num_clients=3", "rounds=10", *words]) == 0
    out = capsys.readouterr().out
    assert "phase train, in each of 10 rounds, model:" in out
    assert "after 10 releases" in out
