"""A node's bounds of ε: noise and norms of a run, and a ledger over all runs of a purpose."""

import json
import re
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.fedomd import range_of
from fedgraph_flwr.config import PrivacyConfig, compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet import audit_chain
from fedgraph_flwr.fleet.audit_chain import entry_name
from fedgraph_flwr.methods.declared import uplink_of as declared
from fedgraph_flwr.methods.moments import central_moments, powers_about
from fedgraph_flwr.node import records
from fedgraph_flwr.secure.accounting import cost
from fedgraph_flwr.secure.eligibility import not_private
from fedgraph_flwr.secure.policy import Policy, read_policy
from fedgraph_flwr.secure.spent import DELTA, SpentPrivacy, booking, spent
from fedgraph_flwr.strategies.fedomd import impossible
from tests.methods.small_runs import METHODS, by_default, sampled
from tests.nodes import model_of, nodes_with

UNIFORM = "strategy.weighting=uniform"
PRIVATE = [UNIFORM, "privacy.dp=client_fixed", "privacy.noise_multiplier=4", "privacy.scores=none"]


@pytest.mark.parametrize(
    ("policy", "overrides", "message"),
    [
        (
            {"min_noise_multiplier": 1},
            ["privacy.dp=client_fixed", "privacy.noise_multiplier=0.001"],
            "noise_multiplier=0.001",
        ),
        ({"min_noise_multiplier": 1}, ["privacy.dp=client_fixed"], "noise_multiplier=0: it accepts at least 1"),
        ({"min_noise_multiplier": 1}, [], "privacy.dp=none: it accepts differential privacy"),
        (
            {"max_clipping_norm": 1},
            ["privacy.dp=client_fixed", "privacy.clipping_norm=1e17"],
            "clipping_norm=1e+17: it acc",
        ),
        (
            {"max_clipping_norm": 1},
            ["privacy.dp=client_fixed", "privacy.clipping_norms={model: 2}"],
            "clipping_norms.model=2",
        ),
        (
            {"max_clipping_norm": 1},
            ["privacy.dp=client_adaptive", "privacy.noise_multiplier=1", "privacy.clipping_norm=0.5"],
            "clipping_norm=0.5, with adaptive norms up to 500000: it accepts at most 1",
        ),
        ({"max_epsilon": 8}, ["privacy.dp=client_fixed"], "noise_multiplier=0: it accepts noise (max_epsilon)"),
        ({"max_epsilon": 8}, PRIVATE[1:3], "privacy.scores=exact, which ε does not cover"),
    ],
)
def test_a_run_with_less_privacy_is_refused(policy, overrides, message):
    """`required_config` compares for equality: noise of 0.001 (ε of two million) and a norm of 1e17 passed."""
    cfg = compose(["num_clients=3", UNIFORM, *overrides])
    with pytest.raises(FedGraphError) as error:
        Policy(**policy).check_run(cfg)
    assert f"this node's policy refuses {'privacy.' if not message.startswith('privacy') else ''}{message}" in str(
        error.value
    )


def test_what_the_bounds_allow_is_accepted():
    policy = Policy(min_noise_multiplier=4, max_clipping_norm=1, max_epsilon=8)
    policy.check_run(compose(["num_clients=3", *PRIVATE]))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("min_noise_multiplier", -1, "must be >= 0, got -1"),
        ("max_epsilon", ".inf", "must be >= 0 and finite, got inf"),
        ("purpose", "../x", "is not a name"),
    ],
)
def test_wrong_bounds_are_named(tmp_path, key, value, message):
    (tmp_path / "policy.yaml").write_text(f"{key}: {value}\n")
    with pytest.raises(FedGraphError, match=message):
        read_policy(str(tmp_path / "policy.yaml"))


def test_the_ledger_adds_up_runs_of_any_noise(tmp_path):
    """ε of several runs is that of all their releases: for equal noise, that of one long run."""
    rules = {z: compose(["num_clients=3", *PRIVATE, f"privacy.noise_multiplier={z}"]) for z in (4, 8)}
    path = tmp_path / "privacy_training.json"
    for run in range(5):
        SpentPrivacy(path, 100.0, "training").book(str(run), rules[4], 2)
    whole = cost(PrivacyConfig("client_fixed", 4, delta=DELTA), 3, 10)
    assert spent(json.loads(path.read_text())) == pytest.approx(whole)
    SpentPrivacy(path, 100.0, "training").book("more", rules[8], 4)
    after = spent(json.loads(path.read_text()))
    assert cost(PrivacyConfig("client_fixed", 4, delta=DELTA), 3, 11) == pytest.approx(after), (
        "four at half the cost each"
    )
    before = path.read_bytes()
    with pytest.raises(
        FedGraphError, match=r"allows ε ≤ 4 at δ = 1e-05 over all runs of purpose 'training' \(max_epsilon\)"
    ):
        SpentPrivacy(path, 4.0, "training").book("more", rules[8], 40)
    assert path.read_bytes() == before
    for damage in (b"[]", b"{", b'{"1": {}}', b'{"1": {"noise_multiplier": 0, "sensitivity": 1, "releases": 1}}'):
        path.write_bytes(damage)
        with pytest.raises(FedGraphError, match="is not the ledger of this node's privacy"):
            SpentPrivacy(path, 4.0, "training").book("more", rules[8], 1)


@pytest.fixture
def bounded(monkeypatch):
    """``bounded(max_epsilon)``: clients reply like nodes of a fleet with this policy."""

    def be(**keys):
        records._spent.clear()
        nodes_with(monkeypatch, lambda: Policy(min_nodes=0, **keys))

    yield be
    records._spent.clear()


def private(method):
    cfg = by_default(method)
    return not not_private(cfg, declared(locate(cfg.strategy.server), cfg))


@pytest.mark.parametrize("method", sampled([name for name in METHODS if private(name)]))
def test_each_node_books_what_the_server_books(method, go, bounded):
    bounded(max_epsilon=1e6)
    done = go(method, "rounds=2", *PRIVATE)
    booked = [sum(entry["releases"] for entry in ledger.booked.values()) for ledger in records._spent.values()]
    assert booked == [done.summary["privacy"]["releases"]] * 3


def test_noised_scores_are_booked_too(go, bounded):
    bounded(max_epsilon=1e6)
    done = go("fedavg", "rounds=2", *PRIVATE[:-1], "privacy.scores=noised")
    assert done.summary["privacy"]["releases"] == 4
    assert {spent["releases"] for ledger in records._spent.values() for spent in ledger.booked.values()} == {4}


def test_runs_share_one_budget(go, bounded):
    """A second run of the same server was not counted."""
    limit = cost(PrivacyConfig("client_fixed", 4, delta=DELTA), 3, 3) * 1.001
    bounded(max_epsilon=limit)
    go("fedavg", "rounds=2", *PRIVATE)
    with pytest.raises((FedGraphError, RunFailed), match=r"\(max_epsilon\): now it is .*, with 1 more release\(s\)"):
        go("fedavg", "rounds=2", *PRIVATE)


KEPT = {"keep_model": True}


@pytest.mark.parametrize("method", [name for name in METHODS if private(name)])
def test_a_stage_that_keeps_models_books_what_leaves(method, node, tmp_path):
    """`keep_model` counted no release, while FedProto's prototypes left with every reply."""
    asked = node(
        f"strategy={method}", *PRIVATE, policy={"min_nodes": 0, "max_epsilon": 1e6, "check_start": False}, state=True
    )
    reply = asked.request("train", 1, {"model": model_of(asked)} if declares_model(method) else {}, **KEPT)
    path = tmp_path / "state" / "privacy_training.json"
    booked = sum(entry["releases"] for entry in json.loads(path.read_text()).values()) if path.is_file() else 0
    if isinstance(reply, str):
        return  # refused, nothing left
    cfg = by_default(method)
    summed = {name for name, reducer in declared(locate(cfg.strategy.server), cfg)["train"].items() if reducer.early}
    left = {name for name, record in reply.array_records.items() if name in summed and record}
    assert booked >= bool(left)


def declares_model(method):
    cfg = by_default(method)
    return "model" in declared(locate(cfg.strategy.server), cfg)["train"]


@pytest.mark.parametrize("kept", [{}, KEPT])
def test_no_stage_exceeds_the_bound(node, kept):
    """50 releases of prototypes left under a bound that allows three."""
    limit = cost(PrivacyConfig("client_fixed", 4, delta=DELTA), 3, 3) * 1.001
    asked = node(
        "strategy=fedproto", *PRIVATE, policy={"min_nodes": 0, "max_epsilon": limit, "check_start": False}, state=True
    )
    replies = [asked.request("train", number, {}, **kept) for number in range(1, 6)]
    sent = 0 if kept else 3  # the method has no stage that keeps models
    assert [isinstance(reply, str) for reply in replies] == [False] * sent + [True] * (5 - sent)
    assert ("keep_model=True" if kept else "(max_epsilon)") in replies[3]


def test_what_was_booked_is_not_priced_again(tmp_path):
    """A run number used again with more noise made the earlier releases cheap: ε 29 left under a bound of 20."""
    path = tmp_path / "privacy_training.json"
    rules = {z: compose(["num_clients=3", *PRIVATE, f"privacy.noise_multiplier={z}"]) for z in (1, 100)}
    SpentPrivacy(path, 100.0, "training").book("7", rules[1], 3)
    before = spent(json.loads(path.read_text()))
    SpentPrivacy(path, 100.0, "training").book("7", rules[100], 1)
    assert spent(json.loads(path.read_text())) > before
    assert before == pytest.approx(cost(PrivacyConfig("client_fixed", 1, delta=DELTA), 3, 3))


def test_a_ledger_of_an_earlier_version_keeps_what_it_booked(tmp_path):
    """Its entries are named by runs."""
    path = tmp_path / "privacy_training.json"
    old = {"7": {"noise_multiplier": 1.0, "sensitivity": 1.0, "sampling_rate": 1.0, "delta": 1e-5, "releases": 3}}
    path.write_text(json.dumps(old))
    before = spent(old)
    SpentPrivacy(path, 1e6, "training").book("7", compose(["num_clients=3", *PRIVATE]), 1)
    now = json.loads(path.read_text())
    assert now["7"] == old["7"]
    assert spent(now) > before


@pytest.mark.parametrize("unit", ["client", "row"])
def test_a_deleted_ledger_is_no_fresh_start(unit, node, tmp_path):
    """Until the owner writes an empty ledger."""
    row = ["strategy=fedgrad", "model=mlp", "privacy.unit=row", "privacy.dp=local", "privacy.rows=8"]
    overrides = PRIVATE if unit == "client" else [*row, "privacy.noise_multiplier=4", "privacy.scores=none"]
    policy = {"min_nodes": 0, "max_epsilon": 1e6, "check_start": False}
    path = tmp_path / "state" / ("privacy_training.json" if unit == "client" else "privacy_training_row.json")

    def train():
        asked = node(*overrides, policy=policy, state=True)
        return asked.request("train", 1, {"model": model_of(asked)})

    assert not isinstance(train(), str)
    path.unlink()
    assert "lists 1 releases with noise: restore it, or, to forget what was spent, write {} into it" in train()
    assert not path.is_file()
    path.write_text("{}")
    assert not isinstance(train(), str)


def test_a_restored_ledger_releases_nothing_again(node, tmp_path):
    """It is older than the audit log: until the owner restores the newer one, or confirms what is forgotten."""
    policy = {"min_nodes": 0, "max_epsilon": 1e6, "check_start": False}
    path = tmp_path / "state" / "privacy_training.json"

    def train():
        asked = node(*PRIVATE, policy=policy, state=True)
        return asked.request("train", 1, {"model": model_of(asked)})

    assert not isinstance(train(), str)
    backup = path.read_bytes()
    assert not isinstance(train(), str)
    newer = path.read_bytes()
    path.write_bytes(backup)
    refusal = train()
    assert (
        "lacks 1 of 2 releases with noise that this node's audit log lists: it is older, as from a back-up" in refusal
    )
    assert "write 1 into privacy_training.json.forgotten beside it" in refusal
    path.write_bytes(newer)
    assert not isinstance(train(), str)
    path.write_bytes(backup)
    path.with_name("privacy_training.json.forgotten").write_text("2")
    assert not isinstance(train(), str)
    assert not isinstance(train(), str)


@pytest.mark.parametrize("ends", ["refused", "killed"])
def test_the_audit_log_lists_what_was_booked_without_a_reply(node, tmp_path, monkeypatch, ends):
    """An older ledger was accepted once as many later requests were booked and refused: ε fell."""
    policy = {"min_nodes": 0, "max_epsilon": 1e6, "check_start": False}
    path = tmp_path / "state" / "privacy_training.json"
    asked = node(*PRIVATE, policy=policy, state=True)
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}), str)
    backup = path.read_bytes()
    with monkeypatch.context() as patch:
        if ends == "refused":
            patch.setattr(GraphClient, "fit", Mock(side_effect=IndexError))
            assert "only its own log has the reason" in asked.request("train", 2, {"model": model_of(asked)})
            assert fg.audit(tmp_path / "state")["releases"].tolist() == [2]
        else:
            patch.setattr(audit_chain, "append", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                asked.request("train", 2, {"model": model_of(asked)})
    assert not isinstance(asked.request("train", 3, {"model": model_of(asked)}), str)
    log = fg.audit(tmp_path / "state")
    assert (log["releases"].tolist(), log.attrs["epsilon"]["client"]) == ([3], spent(json.loads(path.read_bytes())))
    path.write_bytes(backup)
    assert "lacks 2 of 3 releases" in asked.request("train", 4, {"model": model_of(asked)})


def test_a_ledger_of_cheaper_releases_is_an_older_one(tmp_path):
    """It holds as many as the log lists, of another price; what an owner forgets is that of one back-up only."""
    path, listed = tmp_path / "privacy_training.json", Counter()
    noised = {z: compose(["num_clients=3", *PRIVATE, f"privacy.noise_multiplier={z}"]) for z in (1, 2, 100)}
    names = {z: entry_name("7", booking(cfg, 1)) for z, cfg in noised.items()}

    def book(z, releases=1):
        booked = SpentPrivacy(path, 1e9, "training", lambda: listed).book("7", noised[z], releases)
        listed[names[z]] = max(listed[names[z]], booked["releases"])

    book(100)
    book(100)
    cheap = path.read_bytes()
    book(2)
    branch = path.read_bytes()
    path.write_bytes(cheap)
    listed[names[100]] = 1
    with pytest.raises(FedGraphError, match=r"lacks 1 of 2 releases .* write 1 into privacy_training.json.forgotten"):
        book(100)
    (tmp_path / "privacy_training.json.forgotten").write_text("1")
    book(1)
    book(2, 0)
    assert listed == {names[100]: 1, names[2]: 1, names[1]: 1}
    book(2)
    assert listed[names[2]] == 2, "the forgotten one and the new one"
    path.write_bytes(branch)
    with pytest.raises(FedGraphError, match="lacks 2 of 4 releases"):
        book(100)


def test_another_purpose_has_a_ledger_of_its_own(node, tmp_path):
    """Its first release is not refused because the log lists those of the first purpose."""
    for purpose in ("training", "research"):
        policy = {"min_nodes": 0, "max_epsilon": 1e6, "check_start": False, "purpose": purpose}
        asked = node(*PRIVATE, policy=policy, state=True)
        assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}), str)
    assert len([*(tmp_path / "state").glob("privacy_*.json")]) == 2


def test_a_run_number_used_again_is_refused_for_another_method(node):
    """The folder of records is named by method and run, so that another method's run began without records."""
    first = node("strategy=fedavg", policy={"min_nodes": 0, "check_start": False}, state=True)
    assert not isinstance(first.request("train", 1, {"model": model_of(first)}), str)
    second = node("strategy=fedprox", policy={"min_nodes": 0, "check_start": False}, state=True)
    second.grid.run_id = second.context.run_id = first.context.run_id
    assert "uses the number of an earlier run again (fedavg-" in second.request("describe", 0)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sampled([name for name in METHODS if private(name)]))
def test_a_refusal_under_privacy_tells_no_number(node, caplog, method):
    """A step on too few nodes was refused with their number, which no noise covers."""
    asked = node(f"strategy={method}", *PRIVATE, policy={"min_nodes": 50})
    reply = asked.request("train", 1, {"model": model_of(asked)})
    assert reply.startswith(
        "this node refuses the request; under privacy.dp=client_fixed only its own log has the reason"
    )
    assert not re.search("[0-9]", reply)
    assert re.search("min_nodes", caplog.text)


def test_an_exception_under_privacy_tells_no_place(node, caplog, monkeypatch):
    """A method's code may fail where a party's data decide."""

    def fails(client, *_):
        raise IndexError("index 37 is out of bounds")

    monkeypatch.setattr(GraphClient, "fit", fails)
    asked = node("strategy=fedavg", *PRIVATE, policy={"min_nodes": 0})
    reply = asked.request("train", 1, {"model": model_of(asked)})
    assert reply.startswith("this node refuses the request")
    assert "IndexError" not in reply
    assert "index 37 is out of bounds" in caplog.text
    plain = node("strategy=fedavg", policy={"min_nodes": 0})
    assert "IndexError" in plain.request("train", 1, {"model": model_of(plain)})


def test_without_privacy_a_refusal_has_its_reason(node):
    asked = node("strategy=fedavg", policy={"min_nodes": 50})
    reply = asked.request("train", 1, {"model": model_of(asked)})
    assert "training nodes in a step, but its node's policy requires at least 50" in reply


def test_a_refusal_while_a_private_client_is_built_tells_no_number(node):
    overrides = ["train.sampler=neighbors", "train.batch_size=999"]
    policy = {"min_nodes": 0, "samplers": ["neighbors"]}
    assert "is more than the" in node(*overrides, policy=policy).request("describe", 0)
    assert "only its own log has the reason" in node(*PRIVATE, *overrides, policy=policy).request("describe", 0)


@pytest.mark.parametrize("least", [1, 2, 5])
def test_a_range_of_features_is_that_of_several_nodes(least):
    """FedOMD's largest feature was one node's. The server's checks of possible moments accept the range that is sent."""
    for seed in range(20):
        z = torch.from_numpy(np.random.default_rng(seed).exponential(size=(12, 2, 3)))
        z[0, 0] *= 50
        moments = central_moments(z)
        low, high = range_of(z, moments, least).T
        if least == 1:
            assert torch.equal(torch.stack([low, high]), torch.stack([z.amin((0, 2)), z.amax((0, 2))]))
        else:
            ends = torch.sort(z.amax(2), 0, descending=True).values[least - 1]
            assert (high >= ends).all()
            assert high[0] < z.max(), "not one node's"
        whole = moments.numpy()
        assert impossible("mean", whole[:, 0], np.stack([low, high], 1)) == ""
        assert (
            impossible("powers", powers_about(z, torch.zeros(2, 3)).numpy(), np.stack([low, high], 1), np.zeros((2, 3)))
            == ""
        )


def test_moments_of_features_that_became_zero_are_possible():
    """Powers about an earlier mean round: the mean of features that are all 0 came out as 3e-17, and every client was refused."""
    point = np.random.default_rng(0).uniform(0.01, 5, (3, 40))
    powers = powers_about(torch.zeros(37, 3, 40, dtype=torch.float64), torch.from_numpy(point)).numpy()
    assert impossible("powers", powers, np.zeros((3, 2)), point) == ""
    powers[0, 0, 0] += 1e-3
    assert "outside the range" in impossible("powers", powers, np.zeros((3, 2)), point)
