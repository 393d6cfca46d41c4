"""`fedgraph-flwr link` on a fleet: what a node's policy accepts, consent, and the record of runs."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import date

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from filelock import FileLock
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph, read_digest
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch import runner
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.partition import client_files
from fedgraph_flwr.party.link import policy as link_policy
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.policy import (
    Consent,
    LinkPolicy,
    book_link,
    check_consent,
    read_consent,
    sign_consent,
    write_consent,
)
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.link.uplink import STEP
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.policy import read_policy
from fedgraph_flwr.wire.messages import groups_of
from tests.party.linked_banks import BANKS, banks
from tests.support import recorded_messages

IDS = LinkRules(match="ids", entities="overlap")
CONSENT = Consent(2, "a model of fraud", "ids", "drop", "overlap", 1_000_000, "2026-12-31")
TODAY = date(2026, 6, 1)


def test_a_policy_accepts_no_link_run_unless_it_says_so(tmp_path):
    (tmp_path / "empty.yaml").write_text("rounds: 10\n")
    with pytest.raises(
        FedGraphError, match="this node's policy refuses a link run with match=payments: it accepts none"
    ):
        read_policy(str(tmp_path / "empty.yaml")).linking.bounded(LinkRules())
    (tmp_path / "some.yaml").write_text("link: {match: [payments], max_ids: 500, max_shared: 0.5}\n")
    policy = read_policy(str(tmp_path / "some.yaml"))
    rules = policy.linking.bounded(LinkRules(min_shared=2))
    assert (rules.max_ids, rules.min_shared, rules.max_shared) == (500, 5, 0.5)  # the stricter of both
    for refused in (LinkRules(match="routed"), IDS, LinkRules(one_sided="disclose")):
        with pytest.raises(FedGraphError, match="refuses a link run with"):
            policy.linking.bounded(refused)
    for text, message in (
        ("link: {matches: [payments]}", "key of link 'matches' is unknown.*did you mean 'match'"),
        ("link: {match: [names]}", "policy.link.match"),
        ("link: {match: 3}", "match"),
        ("link: {max_shared: 2}", r"policy.link.max_shared must be in \(0, 1\], got 2"),
    ):
        (tmp_path / "wrong.yaml").write_text(text)
        with pytest.raises(FedGraphError, match=message):
            read_policy(str(tmp_path / "wrong.yaml"))


@pytest.fixture
def keys():
    return [generate_private_key(SECP384R1()) for _ in range(2)]


@pytest.fixture
def signed(tmp_path, keys):
    write_consent(tmp_path / "c.json", CONSENT)
    for client, key in enumerate(keys):
        sign_consent(tmp_path / "c.json", client, key)
    return tmp_path / "c.json"


def ring(keys, client=0):
    pins = {k: key.public_key() for k, key in enumerate(keys) if k != client}
    return Keyring(client, key=keys[client], pins=pins)


def test_consent_of_all_parties_is_accepted_by_each(signed, keys):
    digests = {check_consent(str(signed), IDS, ring(keys, client), 2, TODAY) for client in range(2)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("change", "rules", "clients", "today", "message"),
    [
        ({}, IDS, 2, date(2027, 1, 1), "expired on 2026-12-31"),
        (
            {},
            replace(IDS, entities="edges"),
            2,
            TODAY,
            "is for entities=overlap, but the run has entities=edges: change the run",
        ),
        (
            {},
            replace(IDS, max_ids=2_000_000),
            2,
            TODAY,
            "is for max_ids=1000000, but the run has max_ids=2000000: change the run",
        ),
        ({}, IDS, 3, TODAY, "is for parties=2, but the run has parties=3"),
        ({}, replace(IDS, entities="edges", share=["age"]), 2, TODAY, "is for entities=overlap"),
        (
            {"entities": "edges", "share": ["age:eps=1"]},
            replace(IDS, entities="edges", share=["age"]),
            2,
            TODAY,
            r"is for share=\['age:eps=1'\], but the run has share=\['age'\]",
        ),
        ({"min_records": 5}, IDS, 2, TODAY, "is for min_records=5, but the run has min_records=1: change the run"),
        ({"min_records": "5"}, IDS, 2, TODAY, r"whole numbers of parties, max_ids and min_records, got .*'5'\)"),
        (
            {"entities": "edges", "share": ["age"]},
            replace(IDS, entities="edges", share=["age"]),
            2,
            TODAY,
            "not signed",
        ),
        ({"purpose": "another one"}, IDS, 2, TODAY, "is not signed by client 0's key"),
        ({"expires": "2030-01-01"}, IDS, 2, TODAY, "is not signed by client 0's key"),
        ({"expires": "soon"}, IDS, 2, TODAY, "expires of a consent must be a day"),
        ({"expires": "20261231"}, IDS, 2, TODAY, "expires of a consent must be a day"),
        (
            {"purpose": "fraud\x1b[8m"},
            IDS,
            2,
            TODAY,
            r"characters that no terminal shows as they are: 'fraud\\x1b\[8m'",
        ),
        ({"share": ["a\u202e"]}, IDS, 2, TODAY, "characters that no terminal shows as they are"),
    ],
)
def test_consent_to_something_else_is_refused(signed, keys, change, rules, clients, today, message):
    body = json.loads(signed.read_text())
    body["consent"] |= change
    signed.write_text(json.dumps(body))
    with pytest.raises(FedGraphError, match=message):
        check_consent(str(signed), rules, ring(keys), clients, today)


def test_consent_needs_pinned_keys_and_every_signature(tmp_path, signed, keys):
    with pytest.raises(
        FedGraphError, match="can be verified only with pinned keys: start this node with --key and --peers"
    ):
        check_consent(str(signed), IDS, Keyring(0), 2, TODAY)
    with pytest.raises(FedGraphError, match="needs the consent of all parties: set link"):
        check_consent("", IDS, ring(keys), 2, TODAY)
    other = [keys[0], generate_private_key(SECP384R1())]
    with pytest.raises(FedGraphError, match="is not signed by client 1's key"):
        check_consent(str(signed), IDS, ring(other), 2, TODAY)
    write_consent(tmp_path / "half.json", CONSENT)
    sign_consent(tmp_path / "half.json", 0, keys[0])
    with pytest.raises(FedGraphError, match="is not signed by client 1's key"):
        check_consent(str(tmp_path / "half.json"), IDS, ring(keys), 2, TODAY)
    with pytest.raises(FedGraphError, match="a consent of clients 0 to 1, got --client 2"):
        sign_consent(signed, 2, keys[0])


def test_the_command_writes_and_signs_a_consent(tmp_path, keys, capsys):
    path, key = str(tmp_path / "c.json"), tmp_path / "node_0"
    key.write_bytes(keys[0].private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    key.chmod(0o600)
    new = ["link", "--new-consent", path, "--parties", "2", "--purpose", "a model of fraud", "--until", "2026-12-31"]
    assert cli.main([*new, "--match", "ids", "--entities", "overlap"]) == 0
    assert cli.main(["link", "--sign-consent", path, "--key", str(key), "--client", "0"]) == 0
    consent, signatures = read_consent(tmp_path / "c.json")
    assert consent == CONSENT
    assert list(signatures) == ["0"]
    out = capsys.readouterr().out
    for line in (
        "consent of clients 0 to 1, whose keys each node pins, until 2026-12-31, for 'a model of fraud'",
        "match=ids, entities=overlap: each peer learns which identities both have, and reads their rows",
        "at most 1,000,000 records or identities for a peer",
    ):
        assert out.count(line) == 2, "where it is written, and where it is signed"
    assert cli.main(["link", "--sign-consent", path, "--client", "0"]) == 2
    assert "--sign-consent needs --key FILE and --client I" in capsys.readouterr().err


def test_a_key_of_a_consent_that_comes_twice_is_refused(tmp_path, keys):
    """A reader sees the first of two values, and json takes the last."""
    path = tmp_path / "c.json"
    write_consent(path, replace(CONSENT, entities="edges", share=["amount:buckets"]))
    text = path.read_text()
    path.write_text(text.replace('"share"', '"share": ["*:exact"],\n  "share"'))
    assert path.read_text() != text
    with pytest.raises(FedGraphError, match=r"is not a consent file \(the key share comes twice\)"):
        sign_consent(path, 0, keys[0])


def test_one_run_a_day_and_peer(tmp_path, keys, caplog):
    policy, ours = tmp_path / "policy.yaml", ring(keys)
    book_link(policy, {1: "b"}, ours, 24, now=1e9)
    with pytest.raises(
        FedGraphError,
        match=r"client 1 \('b'\) began 23.0 hours ago, at 2001-09-09 01:46 UTC.*one in 24 hours.* a run that was cut off counts."
        r" Link again after 2001-09-10 01:46 UTC, or ask this node's owner",
    ):
        book_link(policy, {1: "b"}, ours, 24, now=1e9 + 23 * 3600)
    (entry,) = json.loads((tmp_path / "policy.links.json").read_text())
    assert f"entry '{entry}' of {tmp_path / 'policy.links.json'}" in caplog.text  # for the owner, not for the server
    book_link(policy, {1: "b"}, ours, 24, now=1e9 + 24 * 3600)
    other = ring([keys[0], generate_private_key(SECP384R1())])
    book_link(policy, {1: "b"}, other, 24, now=1e9 + 24 * 3600)  # another key is another peer
    (tmp_path / "policy.links.json").write_text("[" * 5000)
    with pytest.raises(
        FedGraphError, match=r"cannot read.*links\.json.*: if it is damaged, move it away if no link run took place in"
    ):
        book_link(policy, {1: "b"}, ours, 24)


def test_of_two_runs_at_once_one_is_booked(tmp_path, keys, monkeypatch):
    """Both read the record before either has written it, unless the first holds a lock."""
    both, write = threading.Barrier(2), link_policy.write_bytes

    def slowly(*args):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # for the other run, which waits for the lock
        write(*args)

    monkeypatch.setattr(link_policy, "write_bytes", slowly)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(book_link, tmp_path / "policy.yaml", {1: "b"}, ring(keys), 24) for _ in range(2)]
    (refused,) = filter(None, (run.exception() for run in runs))
    assert "began 0.0 hours ago" in str(refused)


def test_a_record_that_another_process_holds_is_one_error(tmp_path, keys, monkeypatch):
    monkeypatch.setattr(link_policy, "LOCK_TIMEOUT", 0.1)
    with (
        FileLock(tmp_path / "policy.links.lock"),
        pytest.raises(
            FedGraphError, match=r"cannot read, lock or write .*policy\.links\.json, the record of link runs"
        ),
    ):
        book_link(tmp_path / "policy.yaml", {1: "b"}, ring(keys), 24)


def test_a_node_that_lists_strategies_lets_its_link_policy_decide(tmp_path):
    from fedgraph_flwr.config import configuration

    (tmp_path / "policy.yaml").write_text(
        "strategies: [ditto]\nnetworks: [sage]\ntasks: [edges]\nlink: {match: [payments]}\n"
    )
    policy = read_policy(str(tmp_path / "policy.yaml"))
    cfg = configuration(["num_clients=3", *link_overrides(LinkRules())])
    policy.check_run(cfg)
    with pytest.raises(FedGraphError, match="policy refuses strategy=fedavg"):
        policy.check_run(configuration(["num_clients=3"]))
    cfg.privacy.scores = "exact"
    with pytest.raises(FedGraphError, match=r"refuses privacy\.scores=exact of a link run: it accepts none, as"):
        policy.check_run(cfg)


def test_rules_travel_as_keys_of_the_run(run, tmp_path, monkeypatch, caplog):
    """All phases in process; nothing is trained or scored, and the server sends a party keys and what others sealed for it."""
    made = banks(tmp_path, accounts=8, payments=20)
    for client, bank in enumerate(BANKS):
        made.client(bank).save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    rules = LinkRules(one_sided="disclose", share=["a*:eps=1", "income"])
    with recorded_messages(monkeypatch) as seen:
        done = run(f"graph={tmp_path / 'graphs'}", *link_overrides(rules))
    sealed, received = set(), set()
    for way, node, content in seen:
        groups = groups_of(content)
        assert groups.keys() <= (
            {"announced", "signatures", "envelopes"} if way == "down" else {"announced", "envelopes"}
        )
        assert way == "up" or groups.get("announced", {}).keys() <= {"keys", "nodes"}
        for other, envelope in groups.get("envelopes", {}).items():
            ends = (node - 1, int(other)) if way == "up" else (int(other), node - 1)
            (sealed if way == "up" else received).add((*ends, envelope.tobytes()))
    assert received == sealed
    assert len(sealed) == 6 * 11  # of each pair, in each step but the last
    phases = done.summary["bytes_by_phase"]
    assert phases["link"]["exchanges"] == 12
    assert phases["announce"]["exchanges"] == 1
    assert phases["train"]["bytes_up_by_group"].keys() <= {"metrics"}
    assert asdict(LinkPolicy())["match"] == []
    lines = [
        f"setup: link {step} ({place} of 13): clients 0, 1, 2 replied" for place, step in enumerate(rules.phases, 1)
    ]
    assert [record.getMessage() for record in caplog.records if "setup: " in record.getMessage()] == lines


STEPS = LinkRules().phases
LAST = "write"


@pytest.mark.parametrize(
    ("left", "lost"),
    [
        *(pytest.param(step, False, marks=pytest.mark.slow) for step in STEPS[:-1]),
        (LAST, False),
        pytest.param(LAST, True, marks=pytest.mark.slow),  # the party wrote its file, and its reply is lost
    ],
)
def test_a_party_that_leaves_is_named_and_nothing_is_lost(left, lost, run, tmp_path, monkeypatch):
    """Before each step. In the last one the others write their files; the next run writes all again."""
    made = banks(tmp_path, accounts=8, payments=10)
    for client, bank in enumerate(BANKS):
        made.client(bank).save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "graphs").iterdir())}
    (policy := tmp_path / "policy.yaml").write_text(
        "min_nodes: 0\nlink: {match: [payments], min_shared: 1, hours: 0}\n"
    )
    call, steps = InlineGrid._call, iter([*STEPS, *[""] * 100])

    def node(self, message):
        client = message.metadata.dst_node_id - 1
        away = client == 1 and message.content["config"]["phase"] in ("announce", STEP) and next(steps) == left
        gone = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        if away and not lost:
            return gone
        settings = {"graph": tmp_path / f"graphs/client_{client:04d}.safetensors", "policy": policy}
        self.contexts[client + 1].node_config = {key: str(path) for key, path in settings.items()}
        node_clients.forget(self.run_id)  # every message reaches another process
        reply = call(self, message)
        return gone if away else reply

    monkeypatch.setattr(InlineGrid, "_call", node)
    args = [f"graph={tmp_path / 'graphs'}", *link_overrides(LinkRules())]
    with pytest.raises(RunFailed) as caught:
        run(*args)
    wrote = [0, 2] if left == LAST else []
    files = "no party wrote a linked file"
    if wrote:
        files = "clients 0, 2 confirmed a linked file, which no run accepts before all have theirs"
    why = "the SuperLink missed two heartbeats: the node, its machine or its connection is down"
    place = f"link {left} ({STEPS.index(left) + 1} of {len(STEPS)})"
    assert str(caught.value) == (
        f"{place} did not get valid replies of all parties: client 1: {why}; {files}; link again when all take part"
    )
    linked = {client: path.with_name(f"linked_{path.name}") for client, path in enumerate(before)}
    first = {client: read_digest(path) for client, path in linked.items() if path.exists()}
    assert sorted(first) == sorted(wrote + [1] * lost)
    assert {path: path.read_bytes() for path in before} == before
    if wrote and not lost:  # some parties start training with what they have
        for client, path in enumerate(before):
            source = linked[client] if client in wrote else path
            ClientGraph.load(source).save(tmp_path / "mixed" / path.name)
        with pytest.raises(FedGraphError, match="clients 0 and 1 have files that do not fit, one has an unlinked file"):
            client_files(compose([f"graph={tmp_path / 'mixed'}"]))
        with pytest.raises(RunFailed, match=r"keep different records of the last link.*link without --since"):
            run(args[0], *link_overrides(LinkRules(increment=True)))
    run(*args)
    assert not {read_digest(path) for path in linked.values()} & {*first.values()}  # the link has another number
    assert cli.main(["link", "--simulate", *map(str, before), "--out", str(tmp_path / "linked")]) == 0
    graphs = [ClientGraph.load(path) for path in linked.values()]
    assert len({graph.linking["link"] for graph in graphs}) == 1
    for graph, path in zip(graphs, before, strict=True):
        expected = ClientGraph.load(tmp_path / "linked" / path.name)
        assert graph.linking | {"link": ""} == expected.linking | {"link": ""}
        assert torch.equal(graph.node_id, expected.node_id)
        assert torch.equal(graph.cut_out, expected.cut_out)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_command_prints_a_line_per_step(quiet, tmp_path, monkeypatch, capsys):
    def linked(cfg, on_wait):
        if on_wait:
            on_wait("link mask (4 of 11): clients 0, 1")
        assert "-link-fleet-" in cfg.out
        return {"test_accuracy": float("nan"), "headline": "test_accuracy at best_val", "seed": 0}

    monkeypatch.setattr(runner, "run", linked)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["link", "engine=fleet", "num_clients=2", *["--quiet"] * quiet]) == 0
    assert json.loads(next(tmp_path.glob("runs/*/summary.json")).read_bytes()) == {"seed": 0}
    assert capsys.readouterr().err == ("" if quiet else "link mask (4 of 11): clients 0, 1\n")
