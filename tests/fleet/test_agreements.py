"""Agreements: what members sign, which runs a node accepts, and what it refuses."""

import base64
import hashlib
import json
import re
import shlex
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from flwr.app import Message, RecordDict

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.node import agreement_options
from fedgraph_flwr.config import compose, to_json, to_yaml
from fedgraph_flwr.config.config_file import dotted_keys
from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import agreements, flower_patches
from fedgraph_flwr.fleet.agreements import (
    NEW,
    Agreement,
    Refused,
    check,
    code_digest,
    key_text,
    read,
    remembered,
    signed_part,
    withdraw,
    write,
)
from fedgraph_flwr.fleet.keys import check_key, make_node
from fedgraph_flwr.launch.agreed import agreed_run
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.node.beginning import Beginning
from fedgraph_flwr.secure.audit import verified
from fedgraph_flwr.secure.beginning import COMMIT
from fedgraph_flwr.wire.messages import DECLINED

NOW = 1_800_000_000.0  # 2027-01-15
BUNDLE = b"a bundle"
WORDS = ["strategy=fedprox", "rounds=3", "num_clients=3", "engine=fleet"]
MEMBERS = ("alice", "bob", "carol")
CODE = ["--code", "app.fab"]
"""What a member passes who signs code that is not this installation's."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Keys of three members and of a stranger, and a bundle, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in (*MEMBERS, "mallory"):
        make_node(tmp_path / name)
    (tmp_path / "app.fab").write_bytes(BUNDLE)
    return tmp_path


def new(*words, members=MEMBERS, **options):
    """The exit code of ``agree new``."""
    given = {"name": "rings", "purpose": "find rings", "until": "2027-06-30", "code": "app.fab", "runs": "2"} | options
    named = [word for key, value in given.items() if value for word in (f"--{key.replace('_', '-')}", value)]
    parties = [word for name in members for word in ("--member", f"{name}={name}.pub")]
    return main(["agree", "new", *(words or WORDS), *named, *parties])


def agree(*signers, **options):
    """An agreement that these members signed."""
    assert new(**options) == 0
    for name in signers or MEMBERS:
        assert main(["agree", "sign", "agreement.yaml", "--key", name, *CODE]) == 0
    return read(yaml_file())


def yaml_file():
    return Path("agreement.yaml")


def run_of(agreement, number=1, words=WORDS, **more):
    """Flower's run configuration of a run."""
    values = json.loads(to_json(compose(words))) | {"agreement": f"{agreement.digest}/{number}"}
    return {"config": json.dumps(values), "num-clients": 2, "overrides": "", "strategy": "", **more}


def accepted(agreement, run, state, bundle=BUNDLE, now=NOW):
    return check(agreement.path.absolute(), run, bundle, state, now)


def begun(agreement, number, state):
    """Run as far as alice's node commits to its seed."""
    accepted(agreement, run_of(agreement, number), state)
    return Beginning(agreement, f"{agreement.digest}/{number}", state, "alice").reply(COMMIT, {})


def test_members_sign_and_their_nodes_accept_the_run(folder, capsys):
    agreement = agree()
    out = capsys.readouterr().out
    assert "trains gcn with fedprox on nodes, 3 clients, 3 rounds" in out
    assert "the coordinator learns: each member's updates" in out
    assert "each run starts from the seed" in out
    assert f"signed as carol; signed by alice, bob, carol; digest {agreement.digest}" in out
    assert accepted(agreement, run_of(agreement), folder / "state").signers == list(MEMBERS)
    begun(agreement, 1, folder / "state")
    assert main(["agree", "status", "agreement.yaml", "--state", "state"]) == 0
    assert "this node used 1 of 2 runs; the next is run 2" in capsys.readouterr().out


def test_show_says_what_others_learn_from_a_sum(folder, capsys):
    assert new(*WORDS, "privacy.secagg=true", "strategy.weighting=uniform") == 0
    out = capsys.readouterr().out
    assert "the coordinator learns: one sum per round over all members" in out
    assert "the sum of the two others, by subtracting its own term" in out
    assert "a lost member is waited for" in out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v["signatures"].pop("bob"), "lacks the signature of bob: each signs it"),
        (
            lambda v: v.update(runs=9),
            r"lacks the signature of alice, bob, carol \(the signature of alice, bob, carol does not",
        ),
        (lambda v: v["configuration"].update(rounds=4), "lacks the signature of alice, bob, carol"),
        (lambda v: v["members"]["bob"].update(client=5), "members need the client numbers 0, 1, 2"),
        (lambda v: v["members"]["bob"].update(key=v["members"]["alice"]["key"]), "two members have one key"),
        (lambda v: v["members"].update(bob=3), "members need a client number and an EC P-384 key"),
        (lambda v: v.update(more=1), "the key more is unknown"),
        (lambda v: v.pop("epsilon"), "the key epsilon is missing"),
        (lambda v: v.update(runs=True), "runs=True has another type"),
        (lambda v: v.update(coordinator="verified"), "and privacy.coordinator=curious of"),
        (lambda v: v.update(absent="allowed"), "needs privacy.dp=distributed"),
        (lambda v: v.update(weights={"alice": 1}), "weights: expected uniform, or a whole number above 0 for each"),
        (lambda v: v.update(start="there"), "expected seed, continues or the digest of a model"),
        (lambda v: v.update(code="x"), "expected a digest, or releases"),
        (lambda v: v.update(until="soon"), "until needs a date"),
        (lambda v: v.update(until="20270101"), "until needs a date"),  # as text, after each day of 2027
        (lambda v: v.update(until="2027-W01-1"), "until needs a date"),
        (
            lambda v: v.update(version=0),
            "version=0 and continues='': version 1 continues none, each later one a digest",
        ),
        (lambda v: v.update(version=-4), "version 1 continues none"),
        (lambda v: v.update(version=2), "version 1 continues none"),
        (lambda v: v.update(continues="0" * 64), "version 1 continues none"),
        (lambda v: v.update(version=2, continues="one"), "version 1 continues none"),
        (lambda v: v.update(changed=["bob"]), "changed names members, and no version is continued"),
        (lambda v: v.update(accepted="all is well"), "accepted: expected nothing, or the difference"),
        (lambda v: v.update(changed=[3]), "changed needs names of members"),
        (
            lambda v: v.update(purpose="rings\n\u03b5 of all runs together: at most 1"),
            "has characters that no terminal shows",
        ),
        (lambda v: v.update(purpose="rings\u3164"), "has characters that no terminal shows"),
        (lambda v: v.update(purpose="rings" + 80 * " " + "members: alice"), "purpose: expected at most 200 characters"),
        (lambda v: v.update(purpose="${oc.env:HOME}"), "which readers would resolve to their own values"),
        (lambda v: v.update(changed=["members: alice"]), "changed needs names of members"),
        (lambda v: v["members"]["bob"].update(client=True), "members need the client numbers"),
        (lambda v: v["members"]["bob"].update(client=1.0), "members need the client numbers"),
        (lambda v: v["members"]["bob"].update(note="trusted"), "a member has other keys than client and key"),
        (lambda v: v.update(schema=["any"]), "schema needs whole numbers"),
        (lambda v: v.update(epsilon=10**400), "expected more than 0, or null; at most 1e12"),
        (lambda v: v["configuration"]["privacy"].update(dp=3), "lacks the signature of alice, bob, carol"),
        (lambda v: v.update(purpose="rings\x1b[8m"), "has characters that no terminal shows"),
        (lambda v: v["configuration"].update({"x\u202e": 1}), "has characters that no terminal shows"),
    ],
)
def test_a_changed_agreement_is_no_agreement(folder, change, reason):
    agreement = agree()
    run = run_of(agreement)
    change(agreement.values)
    write(agreement)
    values = json.loads(run["config"])
    values["agreement"] = f"{agreement.digest}/1"  # a server that names the changed content
    with pytest.raises(Refused, match=reason):
        accepted(agreement, run | {"config": json.dumps(values)}, folder / "state")
    assert not (folder / "state").exists()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"words": [*WORDS, "rounds=4"]}, "another configuration: rounds is 4, signed was 3"),
        ({"words": [*WORDS, "strategy.mu=0.7"]}, r"another configuration: strategy.*mu is 0.7, signed was"),
        ({"bundle": b"another"}, "members signed other code"),
        ({"now": NOW + 1e8}, "ended on 2027-06-30"),
        ({"overrides": "rounds=9"}, r"settings apart from its configuration \(overrides\)"),
        ({"strategy": "fedsage"}, r"settings apart from its configuration \(strategy\)"),
        ({"config": ""}, "the run has no resolved configuration"),
        ({"config": "{}"}, r"the run is under no agreement, and this node accepts [0-9a-f]{12}: start it with"),
        ({"config": '{"agreement": "0/1"}'}, "expected DIGEST/NUMBER"),
        ({"number": 3}, "run 3 of .*agreement.yaml, which allows 2"),
        ({"words": [*WORDS, "init=runs/other"], "prepared": False}, "starts each run anew"),
    ],
)
def test_what_members_did_not_agree_on_is_refused_and_not_counted(folder, more, reason):
    agreement = agree()
    checks = {key: more.pop(key) for key in ("bundle", "now") if key in more}
    words = more.pop("words", WORDS)
    init = next((word[5:] for word in words if word.startswith("init=")), "")
    more.pop("prepared", None)
    run = run_of(agreement, more.pop("number", 1), [w for w in words if not w.startswith("init=")], **more)
    if init:
        run["config"] = json.dumps(json.loads(run["config"]) | {"init": init})
    with pytest.raises(Refused, match=reason) as refusal:
        accepted(agreement, run, folder / "state", **checks)
    assert str(folder) not in str(refusal.value), "the server reads this"
    assert remembered(folder / "state").get(agreement.digest, NEW)["last"] == 0


def test_keys_of_the_desk_are_not_signed(folder):
    agreement = agree()
    for free in ("out=elsewhere", "engine=far", "overwrite=true", "tracking_group=x"):
        assert accepted(agreement, run_of(agreement, words=[*WORDS, free]), folder / "state"), free
    cfg = with_folder(compose([*WORDS, "out=x"]))
    assert signed_part(json.loads(to_json(cfg))) == agreement.values["configuration"]


def test_numbers_only_increase_and_survive_restarts(folder):
    agreement, state = agree(), folder / "state"
    accepted(agreement, run_of(agreement, 2), state)  # was only described
    for number in (1, 1, 2, 2):  # run 1 was resumed
        assert begun(agreement, number, state)
    with pytest.raises(Refused, match=r"run 1 of .* is used up: this node is at run 2"):
        accepted(agreement, run_of(agreement, 1), state)
    record = json.loads((state / "agreements.json").read_text())
    for damaged in ("{", json.dumps({key: value | {"last": "2"} for key, value in record.items()})):
        (state / "agreements.json").write_text(damaged)
        with pytest.raises(Refused, match="cannot read its record of agreed runs"):
            accepted(agreement, run_of(agreement, 2), state)
    (folder / "file").touch()  # as a disk that is only read
    with pytest.raises(Refused, match=r"cannot write agreements.json into its state folder \("):
        accepted(agreement, run_of(agreement, 2), folder / "file" / "state")


@pytest.mark.parametrize(
    ("line", "twice", "key"),
    [("runs: 2\n", "runs: 2\nruns: 9999\n", "runs"), ("  rounds: 3\n", "  rounds: 3\n  rounds: 900\n", "rounds")],
)
def test_a_key_that_comes_twice_is_refused(folder, capsys, line, twice, key):
    """Readers may take either of two values, and members sign what one of them shows."""
    agree()
    text = yaml_file().read_text()
    assert line in text
    yaml_file().write_text(text.replace(line, twice))
    for words in (["show"], ["sign", "--key", "bob"]):
        assert main(["agree", words[0], "agreement.yaml", *words[1:]]) == 2
        assert f"agreement.yaml: the key {key} comes twice" in capsys.readouterr().err


def test_a_power_cut_leaves_the_record_of_an_answered_run(folder, monkeypatch):
    """A renamed file is on the disk once its folder is."""
    agreement, synced = agree(), []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").resolve()))
    accepted(agreement, run_of(agreement), folder / "state")
    file, state = synced
    assert file.name.startswith(".agreements.json.")
    assert state == folder / "state"


def test_an_owner_withdraws(folder, capsys):
    agreement, state = agree(), folder / "state"
    assert main(["agree", "withdraw", "agreement.yaml", "--state", "state"]) == 0
    with pytest.raises(Refused, match="this node's owner withdrew from"):
        accepted(agreement, run_of(agreement), state)
    withdraw(state, "0" * 64, NOW)
    assert remembered(state)[agreement.digest]["withdrawn"]


def test_a_stranger_does_not_sign(folder, capsys):
    agree("alice")
    assert main(["agree", "sign", "agreement.yaml", "--key", "mallory", *CODE]) == 2
    assert "this key is none of alice, bob, carol" in capsys.readouterr().err
    other = Agreement(read(yaml_file()).values | {"purpose": "another"})
    other.values["signatures"]["bob"] = read(yaml_file()).values["signatures"]["alice"]
    assert other.signers == []
    assert other.sign(check_key(folder / "bob")) == "bob"
    assert other.signers == ["bob"]


def test_joining_is_a_new_version_and_says_what_it_shows(folder, capsys):
    secure = [*WORDS, "privacy.secagg=true", "strategy.weighting=uniform", "num_clients=3"]
    assert new(*secure) == 0
    yaml_file().rename("first.yaml")
    fourth = [word.replace("num_clients=3", "num_clients=4") for word in secure]
    four = {"members": (*MEMBERS, "mallory"), "continues": "first.yaml"}
    assert new(*fourth, **four) == 2, "a coordinator that chooses parameters subtracts sums, from whatever start"
    said = "members changed (mallory), and sums have no noise: less those before they show single members"
    assert said in capsys.readouterr().err
    assert new("--accept-difference", *fourth, **four) == 0
    values = yaml.safe_load(yaml_file().read_text())
    assert (values["version"], values["changed"]) == (2, ["mallory"])
    assert values["continues"] == read(folder / "first.yaml").digest
    capsys.readouterr()
    assert new(*fourth, start="continues", **four) == 2
    assert said in capsys.readouterr().err
    noised = [
        *fourth,
        "privacy.dp=distributed",
        "privacy.noise_multiplier=4",
        "privacy.scores=none",
        "privacy.secagg_bits=20",
    ]
    assert new(*noised, start="continues", absent="allowed", **four) == 0
    assert "each month ends with a model" in capsys.readouterr().out


def test_the_page_of_a_month_runs_as_printed(folder, monkeypatch):
    """All of its commands but the import, in one folder: nodes and runs as far as they reach a fleet."""
    page = (Path(__file__).parents[2] / "docs" / "consortium.md").read_text().replace("\\\n", "")
    commands = [
        shlex.split(line)
        for block in re.findall("```bash\n(.*?)```", page, re.S)
        for line in block.strip().splitlines()
    ]
    for party in ("keys", "received"):
        (folder / party).mkdir()
    for name in MEMBERS:
        shutil.copy(f"{name}.pub", folder / "received")
        shutil.copy(name, folder / "keys")
    Path("mallory.pub").rename("dora.pub")
    tried, march = folder / "runs" / "tried" / "config.yaml", folder / "runs" / "march" / "config.yaml"
    for file in (tried, march):
        file.parent.mkdir(parents=True)
    tried.write_text(to_yaml(compose(WORDS)))
    started = []
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setattr("fedgraph_flwr.api.train", lambda cfg, progress: march.write_text(to_yaml(cfg)) and 1 / 0)
    monkeypatch.setattr("fedgraph_flwr.cli.node.supernode_options", lambda args: [])
    monkeypatch.setattr("fedgraph_flwr.cli.node.Node.run", lambda node: started.extend(node.agreed))
    done = []
    for program, *words in commands:
        assert program == "fedgraph-flwr"
        done.append(" ".join(words[:2]))
        if words[0] == "run":
            with pytest.raises(ZeroDivisionError):
                main(words)
        else:
            assert main(words) == (words[0] == "node"), words
        for name in ("bob", "carol") if done[-1] == "agree sign" else ():
            assert main(["agree", "sign", words[2], "--key", f"keys/{name}", "--peers", "received"]) == 0
    first, second = read(yaml_file()), read(folder / "agreement-2.yaml")
    assert started[-2:] == ["--digest", first.digest]
    assert (second.values["continues"], list(second.members.values())[3:]) == (first.digest, ["dora"])
    assert remembered(Path("party/state"))[first.digest]["withdrawn"]
    month = ["agree new", "agree show", "agree sign", "node --agreement", "run --agreement", "agree status"]
    assert done == [*month, "agree new", "agree withdraw"]


def test_several_agreements_are_told_apart_by_their_digests(folder):
    agreement = agree()
    (folder / "held").mkdir()
    yaml_file().rename("held/one.yaml")
    other = agree(name="others")
    yaml_file().rename("held/two.yaml")
    for one in (agreement, other):
        assert check(folder / "held", run_of(one), BUNDLE, folder / "state", NOW).values["name"] == one.values["name"]
    (folder / "held" / "bad.yaml").write_text("x: [")
    (folder / "held" / "draft.yaml").write_text(yaml.safe_dump(agreement.values | {"runs": 0}))
    assert check(folder / "held", run_of(agreement, 2), BUNDLE, folder / "state", NOW), "whatever else is there"
    for name in ("bad", "draft"):
        (folder / "held" / f"{name}.yaml").rename(folder / f"{name}.txt")
    with pytest.raises(
        Refused, match=r"under agreement 000000000000, and this node accepts [0-9a-f]{12}, [0-9a-f]{12}: start"
    ):
        check(folder / "held", {"config": json.dumps({"agreement": f"{'0' * 64}/1"})}, BUNDLE, folder / "state", NOW)


def test_the_desk_starts_the_next_run(folder, monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW)
    agreement = agree()
    cfg = compose(WORDS)
    runs = [agreed_run(yaml_file(), cfg, None) for _ in range(2)]
    assert [run.agreement for run in runs] == [f"{agreement.digest}/{n}" for n in (1, 2)]
    assert [run.weights for run in runs] == [[1, 1, 1]] * 2
    with pytest.raises(FedGraphError, match="allows 2 runs, and this would be run 3"):
        agreed_run(yaml_file(), cfg, None)
    assert agreed_run(yaml_file(), cfg, 1).agreement == f"{agreement.digest}/1"
    members = [*agreement.values["members"]]
    assert agreed_run(yaml_file(), compose([*WORDS, f"parties=[{','.join(members)}]"]), 1).agreement
    with pytest.raises(FedGraphError, match=f"is of {', '.join(members)}: name them all, or leave it out"):
        agreed_run(yaml_file(), compose([*WORDS, f"parties=[{','.join(members[1:])},eve]"]), 1)
    with pytest.raises(FedGraphError, match="rounds is 9, signed was 3"):
        agreed_run(yaml_file(), compose([*WORDS, "rounds=9"]), 1)
    sent = {}
    monkeypatch.setattr("fedgraph_flwr.api.train", lambda cfg, progress: sent.update(config=to_json(cfg)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", "--agreement", "agreement.yaml", "--number", "1", "engine=far", "out=march"])
    assert accepted(agreement, {"config": sent["config"]}, folder / "state")


def test_a_link_is_agreed_on(folder, monkeypatch, capsys):
    monkeypatch.setattr("time.time", lambda: NOW)
    words = ["link", "engine=far", "num_clients=3", "--share", "amount", "--min-shared", "2"]
    assert main([*words, "--write-config", "link.yaml"]) == 0
    assert new("config=link.yaml") == 0
    for name in MEMBERS:
        assert main(["agree", "sign", "--key", name, *CODE]) == 0
    sent = {}
    monkeypatch.setattr("fedgraph_flwr.launch.runner.run", lambda cfg, on_wait: sent.update(config=to_json(cfg)) or {})
    assert main([*words, "--agreement", "agreement.yaml"]) == 0
    assert check(yaml_file(), sent, BUNDLE, folder / "state", NOW)
    assert main([*words, "--min-records", "4", "--agreement", "agreement.yaml"]) == 2
    assert "members signed another configuration" in capsys.readouterr().err
    assert main(["link", "--simulate", "a", "b", "--agreement", "agreement.yaml"]) == 2
    assert "--agreement is for a link on a fleet" in capsys.readouterr().err


@pytest.mark.parametrize("whole", [False, True])
def test_a_task_checks_before_it_unpacks_the_bundle(folder, whole, monkeypatch):
    """And replies with the reason; the bundle's code may name the signers in the audit log."""
    agreement = agree(*(MEMBERS if whole else ["alice"]))
    done = []
    context, run = SimpleNamespace(run_config=run_of(agreement), run_id=7), SimpleNamespace(run_id=7)
    with run_identity(7):
        message = Message(RecordDict(), dst_node_id=1, message_type="train")
    client = SimpleNamespace(
        pull_task_input=lambda _: (message, context, run, SimpleNamespace(content=BUNDLE)),
        install_from_fab=lambda *_, **__: done.append("installed"),
        get_load_client_app_fn=lambda **_: lambda *_: lambda message, context: done.append("trained"),
    )
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setenv(flower_patches.SIGNERS, "")
    flower_patches._accept_agreed(client, (agreement.path, folder / "state", [agreement.digest]))
    client.pull_task_input(None)
    client.install_from_fab(BUNDLE, skip_prompt=True)
    with run_identity(7):
        reply = client.get_load_client_app_fn(multi_app=True)("id", "version", "hash")(message, context)
    if whole:
        assert done == ["installed", "trained"]
        assert flower_patches.os.environ[flower_patches.SIGNERS] == "alice, bob, carol"
    else:
        assert done == []
        assert reply.error.code == DECLINED
        assert "lacks the signature of bob, carol" in reply.error.reason
        (line,) = verified(folder / "state")
        assert (line["run"], line["phase"], line["refused"]) == ("7", "train", reply.error.reason)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--agreement", "agreement.yaml"], "--agreement needs --state DIR"),
        (["--agreement", "agreement.yaml", "--state", "s", "--plain"], "run without --plain"),
        (["--agreement", "agreement.yaml", "--state", "s"], "lacks the signature of bob, carol"),
        (["--agreement", "no.yaml", "--state", "s"], "No such file"),
        (["--agreement", ".", "--state", "s"], "lacks the signature of bob, carol"),
    ],
)
def test_a_node_that_cannot_check_does_not_start(folder, capsys, monkeypatch, more, reason):
    agree("alice")
    monkeypatch.setattr("fedgraph_flwr.cli.node.supernode_options", lambda args: [])
    assert main(["node", "--server", "h:1", "--key", "k", "--graph", "g.safetensors", *more]) == 2
    assert reason in capsys.readouterr().err


def test_releases_need_trusted_keys(folder, capsys, monkeypatch):
    assert main(["agree", "new", *WORDS, "--releases", *_options()]) == 0
    for name in MEMBERS:
        assert main(["agree", "sign", "--key", name, *CODE]) == 0
    monkeypatch.setattr("fedgraph_flwr.cli.node.supernode_options", lambda args: [])
    words = ["node", "--server", "h:1", "--key", "k", "--graph", "g.safetensors"]
    assert main([*words, "--agreement", "agreement.yaml", "--state", "s"]) == 2
    assert "pass --trusted FILE" in capsys.readouterr().err
    agreement = read(yaml_file())
    assert accepted(agreement, run_of(agreement), folder / "state", bundle=b"any release")
    assert agreement.values["code"] != code_digest(BUNDLE)


def _options():
    parties = [word for name in MEMBERS for word in ("--member", f"{name}={name}.pub")]
    return ["--name", "rings", "--purpose", "find rings", "--until", "2027-06-30", *parties]


def test_a_partys_file_may_name_it(folder, capsys):
    from fedgraph_flwr.party.party_file import read_party

    path = folder / "party.yaml"
    path.write_text("party: a\nnodes: n.csv\nedges: e.csv\nagreement: agreement.yaml\n")
    assert read_party(path).path("agreement", folder) == folder / "agreement.yaml"
    path.write_text("party: a\nnodes: n.csv\nedges: e.csv\napprovals: 2 of [alice.pub, bob.pub]\n")
    with pytest.raises(FedGraphError, match="key of a party's file 'approvals' is unknown"):
        read_party(path)


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


def test_a_damaged_count_of_the_desk_is_refused(folder):
    agreement = agree()
    counted = folder / "agreement.yaml.runs"
    for text in ("{", "[]", json.dumps({agreement.digest: "x"}), json.dumps({agreement.digest: None})):
        counted.write_text(text)
        with pytest.raises(FedGraphError, match=r"does not hold the last run of .*: remove it, and pass --number"):
            agreed_run(yaml_file(), compose(WORDS), None)
    counted.unlink()
    assert agreed_run(yaml_file(), compose(WORDS), 2).agreement == f"{agreement.digest}/2"


# --- versions ---------------------------------------------------------------------------------------------------------


def version(number, before, *signers, members=MEMBERS, old=(), **content):
    """A signed version after another; ``old``: members with a new key, who sign with the old one too."""
    path = Path(f"agreement-{len(list(Path().glob('agreement-*')))}.yaml")
    given = {"continues": "agreement.yaml", "out": str(path)}
    assert new(*WORDS[:2], f"num_clients={len(members)}", WORDS[3], members=members, **given) == 0
    agreement = read(path)
    for member in old:
        agreement.values["members"][member]["key"] = key_text(check_key(Path(f"{member}-new")).public_key())
    agreement.values.update({"version": number, "continues": before.digest, **content})
    write(agreement)
    for name in members:
        assert main(["agree", "sign", str(path), "--key", f"{name}-new" if name in old else name, *CODE]) == 0
    for name in signers:
        assert main(["agree", "sign", str(path), "--key", name, "--replaced", name, *CODE]) == 0
    return read(path)


def test_a_renewal_does_not_hide_who_changed_in_a_version_before(folder):
    """With noise nobody needs to accept it; without, sums less those of the first version show the new member."""
    first = agree()
    accepted(first, run_of(first), folder / "state")
    fourth = (*MEMBERS, "mallory")
    four = [*WORDS[:2], "num_clients=4", *WORDS[3:]]
    second = version(2, first, members=fourth)  # each member's updates: nothing to accept
    accepted(second, run_of(second, words=four), folder / "state")
    secure = [*four, "privacy.secagg=true", "strategy.weighting=uniform"]
    configuration = signed_part(json.loads(to_json(compose(secure))))
    third = version(3, second, members=fourth, changed=[], configuration=configuration)
    assert "members changed (mallory), and sums have no noise" in refusal(
        third, run_of(third, words=secure), folder / "state"
    )


def test_a_node_compares_a_version_with_the_one_that_it_knows(folder):
    first = agree()
    accepted(first, run_of(first), folder / "state")
    new_member = (*MEMBERS, "mallory")
    hidden = version(2, first, members=new_member, changed=[])
    words = [*WORDS[:2], "num_clients=4", *WORDS[3:]]
    assert (
        "says that nobody joined, left or counts otherwise since the version before; this node knows that mallory did"
        in (refusal(hidden, run_of(hidden, words=words), folder / "state"))
    )
    unrelated = version(1, first, continues="", changed=[], purpose="another")
    assert "does not continue one that this node knows" in refusal(unrelated, run_of(unrelated), folder / "state")
    second = version(2, first, members=new_member)
    assert second.values["changed"] == ["mallory"]
    assert accepted(second, run_of(second, words=words), folder / "state")
    assert "was replaced by version 2, which this node knows" in refusal(first, run_of(first), folder / "state")
    assert accepted(hidden, run_of(hidden, words=words), folder / "newcomer"), "a new member knows no version before"


def test_a_node_follows_one_line_of_versions(folder):
    """Two that continue the same one are not compared with each other, nor are those that a gap is between."""
    first = agree()
    accepted(first, run_of(first), folder / "state")
    second, other, far = version(2, first), version(2, first, purpose="another"), version(5, first)
    assert "is version 5 after version 1, and this node knows version 1" in refusal(far, run_of(far), folder / "state")
    assert accepted(second, run_of(second), folder / "state")
    assert "is version 2 after version 1, and this node knows version 2" in (
        refusal(other, run_of(other), folder / "state")
    )
    assert accepted(second, run_of(second, 2), folder / "state")
    third = version(3, second)
    assert accepted(third, run_of(third), folder / "state")


def test_a_member_that_left_comes_back_with_its_key(folder):
    """Or another would, by its name, in the second of two versions."""
    make_node(folder / "bob-new")
    first = agree()
    accepted(first, run_of(first), folder / "state")
    words = [*WORDS[:2], "num_clients=2", *WORDS[3:]]
    second = version(2, first, members=("alice", "carol"), changed=["bob"])
    assert accepted(second, run_of(second, words=words), folder / "state")
    other = version(3, second, old=["bob"], changed=["bob"])
    assert (
        "another key of bob than version 1, in which it was last: a member that lost its key joins by another name"
        in (refusal(other, run_of(other), folder / "state"))
    )
    third = version(3, second, changed=["bob"])
    assert accepted(third, run_of(third), folder / "state")


@pytest.mark.parametrize("text", ["runs: 1" + ":59" * 300_000, "x" * 2_000_000], ids=["digits", "length"])
def test_a_file_that_takes_long_to_read_is_refused_at_once(folder, capsys, text):
    yaml_file().write_text(text)
    began = time.process_time()
    assert main(["agree", "show"]) == 2
    assert time.process_time() - began < 5
    assert "agreement.yaml" in capsys.readouterr().err


def test_a_version_hides_no_other_weights(folder, capsys):
    """Sums that follow from no seed, over the same tables with two weights, show the member whose weight changed."""
    first = agree()
    accepted(first, run_of(first), folder / "state")
    weights = {"alice": 1, "bob": 2, "carol": 1}
    hidden = version(2, first, weights=weights)
    assert (
        "says that nobody joined, left or counts otherwise since the version before; this node knows that bob did"
        in (refusal(hidden, run_of(hidden), folder / "state"))
    )
    named = [word for name, weight in weights.items() for word in ("--weight", f"{name}={weight}")]
    assert main(["agree", "new", *WORDS, *_options(), *named, "--continues", "agreement.yaml", "--out", "b.yaml"]) == 0
    assert "joined, left or counts otherwise since the version before: bob" in capsys.readouterr().out
    assert read(Path("b.yaml")).values["changed"] == ["bob"]
    same = version(2, first, weights=dict.fromkeys(MEMBERS, 1))
    assert accepted(same, run_of(same), folder / "state")


def test_a_version_starts_no_second_ledger_of_epsilon(folder):
    """Which has the agreement's name."""
    first = agree()
    accepted(first, run_of(first), folder / "state")
    renamed = version(2, first, name="rings-2")
    assert "continues 'rings' by another name, whose ledger of ε would be empty" in (
        refusal(renamed, run_of(renamed), folder / "state")
    )


def refusal(agreement, run, state):
    with pytest.raises(Refused) as error:
        accepted(agreement, run, state)
    return str(error.value)


def test_a_member_changes_its_key_with_the_old_one(folder, capsys):
    make_node(folder / "bob-new")
    first = agree()
    accepted(first, run_of(first), folder / "state")
    stolen = version(2, first, old=["bob"])
    assert "another key of bob than the version before, and that key did not sign" in (
        refusal(stolen, run_of(stolen), folder / "state")
    )
    forged = version(2, first, old=["bob"])
    signs = ["agree", "sign", str(forged.path), "--replaced", "bob", *CODE, "--key"]
    capsys.readouterr()
    assert main([*signs, "mallory"]) == 2
    assert "this key is not that of bob in agreement.yaml" in capsys.readouterr().err
    forged.sign(check_key(Path("mallory")), "bob")
    write(forged)
    assert "that key did not sign" in refusal(read(forged.path), run_of(forged), folder / "state")
    second = version(2, first, "bob", old=["bob"])
    assert second.values["changed"] == []
    assert accepted(second, run_of(second), folder / "state").signers == list(MEMBERS)


def test_members_upgrade_one_after_the_other(folder):
    """Several bundles in one agreement."""
    (folder / "newer.fab").write_bytes(b"a newer bundle")
    agreement = agree()
    agreement.values["code"] = [code_digest(BUNDLE), code_digest(b"a newer bundle")]
    for name in MEMBERS:
        agreement.sign(check_key(Path(name)))
    write(agreement)
    for bundle in (BUNDLE, b"a newer bundle"):
        assert accepted(agreement, run_of(agreement), folder / "state", bundle)
    with pytest.raises(Refused, match="members signed other code"):
        accepted(agreement, run_of(agreement), folder / "state", b"another")
    agreement.values["code"] = []
    write(agreement)
    with pytest.raises(Refused, match="expected a digest, or releases"):
        read(yaml_file())
    both = ["--code", "app.fab", "--code", "newer.fab"]
    named = [word for name in MEMBERS for word in ("--member", f"{name}={name}.pub")]
    terms = ["--name", "rings", "--purpose", "rings", "--until", "2027-06-30", *both]
    assert main(["agree", "new", *WORDS, *named, *terms]) == 0
    assert read(yaml_file()).codes == [code_digest(BUNDLE), code_digest(b"a newer bundle")]


def test_secure_sums_of_changing_members_are_refused(folder, capsys):
    assert new(*WORDS, "privacy.secagg=true", "strategy.weighting=uniform", "strategy.fraction=0.5") == 2
    assert "need strategy.fraction=1: other members in each run show single updates" in capsys.readouterr().err


def test_a_content_is_parsed_and_its_signatures_are_checked_once(folder, monkeypatch):
    """A node reads its agreement with each message; whoever changes what was read changes no later reading."""
    first = agree()
    assert len(first.signers) == len(MEMBERS)
    monkeypatch.setattr(agreements.yaml, "load", lambda *text: pytest.fail("parsed again"))
    monkeypatch.setattr(agreements, "public_key", lambda text: pytest.fail("checked again"))
    first.values["signatures"].clear()
    next(iter(first.values["members"].values()))["client"] = 7
    again = read(yaml_file())
    assert sorted(again.members) == [0, 1, 2]
    assert again.signers == list(MEMBERS)


# --- what a member sees before it signs -------------------------------------------------------------------------------


def shown(capsys, *words, action="show", **options):
    """What an action prints of an agreement with these words."""
    assert new(*words, **options) == 0
    capsys.readouterr()
    assert main(["agree", action, "agreement.yaml", *CODE]) == 0
    return capsys.readouterr().out


def test_a_member_signs_no_code_that_it_was_not_shown(folder, capsys):
    (folder / "evil.fab").write_bytes(b"another bundle")
    assert new(code="evil.fab") == 0
    digest = code_digest(b"another bundle")
    for words in ([], ["--code", "app.fab"]):
        capsys.readouterr()
        assert main(["agree", "sign", "--key", "bob", *words]) == 2
        caught = capsys.readouterr()
        assert f"code: OTHER than that of this installation: {digest}" in caught.out
        assert f"agreement.yaml names code that is not this installation's, {digest}: read its bundle" in caught.err
    assert read(yaml_file()).signers == []
    assert main(["agree", "sign", "--key", "bob", "--code", "evil.fab"]) == 0
    assert f"code: that of evil.fab ({digest[:12]})" in capsys.readouterr().out
    assert new(code="") == 0
    assert main(["agree", "sign", "--key", "bob"]) == 0
    assert "code: that of this installation (" in capsys.readouterr().out
    assert main(["agree", "new", *WORDS, "--releases", *_options()]) == 0
    assert main(["agree", "sign", "--key", "bob"]) == 0
    assert "code: whatever a key of node --trusted signs, also later" in capsys.readouterr().out


def test_a_member_sees_and_proves_the_keys_of_the_others(folder, capsys):
    """Else an author with two names of its own subtracts its own terms."""
    agreement = agree()
    signs = ["agree", "sign", "--key", "alice", *CODE]
    capsys.readouterr()
    assert main(signs) == 0
    out = capsys.readouterr().out
    for client, name in enumerate(MEMBERS):
        blob = base64.b64decode(Path(f"{name}.pub").read_text().split()[1])
        key = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")  # as ssh-keygen -lf prints it
        proof = "UNPROVEN" if client else "yours"
        assert f"  {name}, client {client}: key SHA256:{key} ({proof})" in out
    assert "compare unproven keys with their owners by telephone" in out
    for form in ("{name}.pub", "node_{client}.pub"):  # of `agree new`, and of `node --peers`
        peers = folder / form[:4]
        peers.mkdir()
        for client, name in enumerate(MEMBERS):
            (peers / form.format(name=name, client=client)).write_text(Path(f"{name}.pub").read_text())
        assert main([*signs, "--peers", str(peers)]) == 0
        out = capsys.readouterr().out
        assert "UNPROVEN" not in out
        assert "telephone" not in out
    (peers / "node_2.pub").unlink()
    assert main([*signs, "--peers", str(peers)]) == 2
    assert "has no key of carol: expected carol.pub or node_2.pub" in capsys.readouterr().err
    agreement.values["members"]["bob"]["key"] = key_text(check_key(Path("mallory")).public_key())
    write(agreement)
    for words in (signs, ["agree", "show"]):
        assert main([*words, "--peers", "."]) == 2
        assert "agreement.yaml has another key of bob than bob.pub: compare them with bob" in capsys.readouterr().err
    assert read(yaml_file()).signers == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("evaluation.confusion=true", ", its confusion matrix (numbers of test items by true and predicted class)"),
        ("evaluation.trained=true", ", the scores of the model that it trained"),
        ("train.lr=1", "  train.lr: 1.0"),
        ("model.hidden=1024", "  model.hidden: 1024"),
        ("train.local_steps=2", "  train.local_steps: 2"),
        ("strategy.min_clients=3", "  strategy.min_clients: 3"),
        ("strategy.prox.mu=7", "  strategy.prox.mu: 7.0"),
        ("evaluation.every=7", "  evaluation.every: 7"),
    ],
)
def test_whatever_is_configured_is_shown(folder, capsys, words, line):
    usual, out = (shown(capsys, *WORDS, *more) for more in ([], [words]))
    assert line in out
    assert line not in usual


def test_no_value_of_a_configuration_is_left_out(folder, capsys):
    """Whichever key differs from what the reader's package would use: each of them, and what it reads otherwise."""
    usual = shown(capsys, *WORDS)
    agreement = read(yaml_file())
    plain = dotted_keys(agreement.values["configuration"])
    lines = {line.strip().partition(": ")[0] for line in usual.splitlines() if line.startswith("  ")}
    written = agreement.values["configuration"] | {"evaluate": "march", "threads": 16, "checkpoint_every": 3}
    written["evaluation"] = written["evaluation"] | {"every": 5, "metric": "macro_f1"}
    agreement.values["configuration"] = written
    agreement.values["start"] = "0" * 64
    write(agreement)
    assert main(["agree", "show", *CODE]) == 0
    now = {line.strip().partition(": ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    changed = {key for key, value in dotted_keys(written).items() if plain.get(key) != value}
    assert len(changed) == 5
    assert changed <= now - lines


def test_a_version_is_compared_with_the_file_before(folder, capsys):
    """Not with what its author wrote."""
    assert new() == 0
    yaml_file().rename("first.yaml")
    words = [*WORDS[:2], "num_clients=4", WORDS[3], "train.lr=0.5"]
    four = {"members": (*MEMBERS, "mallory"), "continues": "first.yaml", "runs": "90"}
    assert new(*words, **four) == 0
    agreement = read(yaml_file())
    agreement.values["members"]["bob"]["key"], agreement.values["changed"] = read_key("dora"), []
    write(agreement)
    capsys.readouterr()
    assert main(["agree", "show", *CODE]) == 0
    out = capsys.readouterr().out
    before, _, changes = out.partition(
        "changes since first.yaml, version 1, signed by nobody; missing: alice, bob, carol:\n"
    )
    assert before
    assert "  runs: 2 → 90\n" in changes
    assert "  configuration.train.lr: 0.01 → 0.5\n" in changes
    assert "  configuration.num_clients: 3 → 4\n" in changes
    assert "  members.mallory.client: nothing → 3\n" in changes
    assert re.search(r"  members.bob.key: \"SHA256:\S{43}\" → \"SHA256:\S{43}\"\n", changes)
    assert "purpose" not in changes
    Path("first.yaml").rename("elsewhere.txt")
    assert main(["agree", "show", *CODE]) == 0
    assert "NOT COMPARED with the version before (" in capsys.readouterr().out
    assert main(["agree", "show", "--before", "elsewhere.txt", *CODE]) == 0
    assert "  runs: 2 → 90\n" in capsys.readouterr().out
    assert main(["agree", "show", "--before", "agreement.yaml", *CODE]) == 2
    assert "agreement.yaml is not the version that agreement.yaml continues" in capsys.readouterr().err


def read_key(name):
    make_node(Path(name))
    return key_text(check_key(Path(name)).public_key())


def test_a_link_says_what_peers_read(folder, capsys):
    words = ["link", "engine=far", "num_clients=3", "--share", "amount:exact,n_*:eps=1", "--min-records", "4"]

    def shown_link(*more):
        assert main([*words, *more, "--write-config", "link.yaml"]) == 0
        return shown(capsys, "config=link.yaml")

    out = shown_link()
    assert "match=payments, entities=edges: each peer reads shared records: the rows of both ends" in out
    assert "one_sided=drop: each peer learns nothing of records that only one party has" in out
    assert "each peer reads columns amount of accounts with 4 records or more, unchanged" in out
    assert (
        "columns n_* of accounts with 4 records or more, drawn by randomised response: local ε = 1 per account" in out
    )
    assert ", 2 in 2 runs" in out
    assert "the model" not in out
    assert "each peer learns ALL RECORDS that only one party has" in shown_link("--one-sided", "disclose")
    assert "a dry run: each peer learns the number of matches" in shown_link("--dry-run")
    words[3:] = ["--match", "ids"]
    out = shown_link()
    assert "each peer learns which identities both have" in out
    assert "reads columns" not in out


def test_signing_follows_no_link_that_came_with_the_file(folder):
    """A folder of another member's may link every name that could be guessed to a file of the signer's."""
    assert new() == 0
    (folder / "home").write_text("mine")
    for ending in ("part", "tmp", "new"):
        (folder / f".agreement.yaml.{ending}").symlink_to(folder / "home")
    assert main(["agree", "sign", "--key", "alice", *CODE]) == 0
    assert read(yaml_file()).signers == ["alice"]
    assert (folder / "home").read_text() == "mine"
    assert not yaml_file().is_symlink()


@pytest.mark.parametrize(("client", "said"), [("evil:Client", "NOT DESCRIBED"), ("os:system", "NOT DESCRIBED")])
def test_show_imports_nothing_that_a_file_names(folder, capsys, monkeypatch, client, said):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "evil.py").write_text("raise SystemExit('imported')")
    assert new() == 0
    agreement = read(yaml_file())
    agreement.values["configuration"]["strategy"]["client"] = client
    write(agreement)
    capsys.readouterr()
    assert main(["agree", "show", *CODE]) == 0
    out = capsys.readouterr().out
    assert f"{said}, since this is no code of this package: {client}; read it before you sign" in out
    agreement.values["configuration"]["strategy"]["client"] = "fedgraph_flwr.fleet.keys:Places"
    write(agreement)
    assert main(["agree", "show", *CODE]) == 2
    assert "is no client: expected module:Class of a method" in capsys.readouterr().err


@pytest.mark.parametrize("last", ["-5", "3", "99999999999"])
def test_a_confirmed_run_is_one_of_the_agreement(folder, capsys, last):
    agree()
    assert main(["agree", "confirm", "--state", "state", "--last", last]) == 2
    assert f"--last {last}: expected a run from 0 to 2, as agreement.yaml allows" in capsys.readouterr().err


def test_another_name_does_not_hide_who_joined(folder):
    """Sums without noise from one model, over other members than those of an agreement that a node knows."""
    secure = [*WORDS, "privacy.secagg=true", "strategy.weighting=uniform"]
    first = agree()
    accepted(first, run_of(first), folder / "state")
    members = (*MEMBERS, "mallory")
    words = [*secure, "num_clients=4"]
    for sentence in ("", agreements.DIFFERENCE):
        assert new(*words, members=members, name="r1ngs", start="continues", out="other.yaml") == 0
        other = read(Path("other.yaml"))
        other.values["accepted"] = sentence
        for name in members:
            other.sign(check_key(Path(name)))
        write(other)
        run = run_of(other, words=words)
        if sentence:
            assert accepted(other, run, folder / "state")
        else:
            assert "starts from a model with other members than 'rings'" in refusal(other, run, folder / "state")


def test_a_node_compares_an_agreement_with_the_keys_that_its_owner_pinned(folder, capsys, monkeypatch):
    agree()
    (folder / "peers").mkdir()
    (folder / "peers" / "node_1.pub").write_text(Path("mallory.pub").read_text())
    monkeypatch.setattr("fedgraph_flwr.cli.node.supernode_options", lambda args: [])
    words = ["node", "--server", "h:1", "--key", "k", "--graph", "g.safetensors", "--agreement", "agreement.yaml"]
    assert main([*words, "--state", "s", "--peers", "peers"]) == 2
    assert "agreement.yaml has another key of bob than peers/node_1.pub" in capsys.readouterr().err


def test_a_node_says_that_another_name_counts_epsilon_apart(folder, capsys):
    """Only its owner's `max_epsilon` bounds both."""
    words = ["privacy.secagg=true", "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.scores=none"]
    noised = [*WORDS, *words, "privacy.secagg_bits=20", "strategy.weighting=uniform"]
    given = SimpleNamespace(graph=Path("g.safetensors"), state=folder / "state", peers=None, trusted=None)
    for name in ("rings", "r1ngs"):
        assert new(*noised, name=name, out=f"{name}.yaml") == 0
        for member in MEMBERS:
            assert main(["agree", "sign", f"{name}.yaml", "--key", member, *CODE]) == 0
        capsys.readouterr()
        given.agreement = Path(f"{name}.yaml")
        assert agreement_options(given, False)[0]
        said = "rings and r1ngs.yaml count ε apart: max_epsilon of a policy bounds all together"
        shown = capsys.readouterr()
        assert (said in shown.out + shown.err) == (name == "r1ngs")


def held(folder):
    """Two versions, signed, in a folder; and what a node needs to start with them."""
    first = agree()
    assert new(continues="agreement.yaml", out="second.yaml") == 0
    for name in MEMBERS:
        assert main(["agree", "sign", "second.yaml", "--key", name, *CODE]) == 0
    (folder / "held").mkdir()
    for name in ("agreement.yaml", "second.yaml"):
        Path(name).rename(folder / "held" / name)
    return SimpleNamespace(
        first=first.digest,
        second=read(folder / "held" / "second.yaml").digest,
        args=SimpleNamespace(
            graph=Path("g"), state=folder / "state", peers=None, trusted=None, agreement=folder / "held"
        ),
    )


CUTS = {
    "damaged": lambda text: text[:200] + "[",
    "changed": lambda text: text.replace("find rings", "find rongs"),
    "unsigned": lambda text: text[: text.index("signatures:")] + "signatures: {}\n",
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_node_starts_beside_a_file_that_it_ignores_and_names(folder, capsys, cut):
    """And what is added, or signed, later waits for the next start, which compares keys."""
    agreement = agree()
    (folder / "held").mkdir()
    yaml_file().rename("held/one.yaml")
    given = SimpleNamespace(
        graph=Path("g"), state=folder / "state", peers=None, trusted=None, agreement=folder / "held"
    )
    assert agreement_options(given, False)[0][4:] == ["--digest", agreement.digest]
    other = agree(name="others")
    whole = yaml_file().read_text()
    (folder / "held" / "two.yaml").write_text(CUTS[cut](whole))
    capsys.readouterr()
    options, notes = agreement_options(given, False)
    assert options[4:] == ["--digest", agreement.digest]
    (note,) = notes
    why = "is not an agreement" if cut == "damaged" else "lacks the signature of alice, bob, carol"
    assert note.startswith("ignored: ")
    assert "two.yaml" in note
    assert why in note
    shown = capsys.readouterr()
    assert f"warning: {note}" in shown.out + shown.err
    assert main(["agree", "status", "held", "--state", "state"]) == 0
    out = capsys.readouterr().out
    assert note.replace(str(folder) + "/", "") in out
    assert f"digest {agreement.digest}" in out
    escapes, twice = folder / "held" / "three.yml", folder / "held" / "four.yaml"
    escapes.write_text(f'"\\e[2J{"x" * 900}": 1\n{whole}')
    twice.write_text('"\\e[31m": 1\n"\\e[31m": 2\n' + whole)
    assert [note.partition(": the key ")[2][:8] for note in agreement_options(given, False)[1]] == [
        "?[31m co",
        "?[2Jxxxx",
        "",
    ]
    assert max(map(len, agreement_options(given, False)[1])) < 600
    with pytest.raises(Refused) as refusal:
        check(folder / "held", run_of(agreement) | {"config": '{"agreement": ""}'}, BUNDLE, folder / "state", NOW)
    assert "xxx" not in str(refusal.value), "the server reads nothing of other files"
    (folder / "held" / "two.yaml").write_text(whole)
    with pytest.raises(Refused, match=r"did not accept two\.yaml when it started: its owner restarts it"):
        check(folder / "held", run_of(other), BUNDLE, folder / "state", NOW, options[5:])
    assert check(folder / "held", run_of(agreement), BUNDLE, folder / "state", NOW, options[5:])


@pytest.mark.parametrize("cut", CUTS)
def test_a_damaged_version_brings_no_older_one_back(folder, capsys, cut):
    """Neither at a node that knows the version, nor at one that knows none, as after the loss of its state folder."""
    given = held(folder)
    options, notes = agreement_options(given.args, False)
    assert options[4:] == ["--digest", given.first, "--digest", given.second]
    assert not notes
    file = folder / "held" / "second.yaml"
    whole = file.read_text()
    file.write_text(CUTS[cut](whole))
    with pytest.raises(FedGraphError, match=r"second\.yaml.*; .*agreement\.yaml was replaced by version 2"):
        agreement_options(given.args, False)
    given.args.state = folder / "lost"
    with pytest.raises(FedGraphError, match=r"agreement\.yaml is new here, and second\.yaml may be a later version"):
        agreement_options(given.args, False)
    capsys.readouterr()
    assert main(["agree", "status", "held", "--state", "state"]) == 0
    assert "ignored: agreement.yaml was replaced by version 2" in capsys.readouterr().out
    file.write_text(whole)
    assert main(["agree", "withdraw", str(file), "--state", "state"]) == 0
    file.write_text(CUTS[cut](whole))
    given.args.state = folder / "state"
    with pytest.raises(FedGraphError, match="was replaced by version 2"):
        agreement_options(given.args, False)
