"""Attacks on agreed runs by someone who knows the repository: as the coordinator, and as a member that writes the agreement."""

import dataclasses
import itertools
import json
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgraph_flwr.clients.boosting import UNIT
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.config.schema import OWN_SEED
from fedgraph_flwr.errors import FedGraphError, RunFailed, unknown
from fedgraph_flwr.fleet import agreements, audit_chain
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node import respond
from fedgraph_flwr.node.node import node_of
from fedgraph_flwr.secure import audit, beginning, secagg
from fedgraph_flwr.secure.keyring import Keyring, read_key
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.strategies.beginning import begin
from fedgraph_flwr.wire.messages import MODEL
from tests.conftest import client_graph
from tests.nodes import model_of
from tests.safety.coordinator import Coordinator, Run, keys_of
from tests.support import assert_same_arrays, bomb

SECURE = ["privacy.secagg=true", "strategy.weighting=uniform"]
NOISED = [
    *("privacy.secagg=true", "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.scores=none"),
    *("privacy.secagg_bits=20", "strategy.weighting=uniform"),
]
TREES = [
    *("strategy=boosting", "strategy.mode=histogram", "strategy.depth=1", "strategy.bins=4", "strategy.per_round=1"),
    *("strategy.min_data_in_leaf=5", "evaluation.select=last", *SECURE),
]


def sum_of(groups):
    """An opened sum, which no node refused."""
    assert not isinstance(groups, str), groups
    return groups


def arrays_of(client):
    """The shared parameters of a client."""
    return {name: tensor.detach().numpy() for name, tensor in client.shared.items()}


# --- the coordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digit", ["\u0660", "\u0966", "\uff10"])
def test_a_number_has_one_spelling(tmp_path, digit):
    """Digits of other scripts are the same number to Python, and would be another run, with another seed, to the records."""
    coordinator = Coordinator(tmp_path)
    run = Run(coordinator, dataclasses.replace(coordinator.run(10).cfg, agreement=f"{coordinator.digest}/1{digit}"))
    assert "expected DIGEST/NUMBER" in run.ask(0, beginning.COMMIT)


def test_a_statistic_of_the_set_up_has_one_list_in_whatever_round(tmp_path):
    """A server that requests it again in round 1, over three of four members, would subtract the fourth's."""
    coordinator = Coordinator(tmp_path, *TREES, members=4)
    run = Run(coordinator, dataclasses.replace(coordinator.run(1).cfg, agreement=""))
    whole = sum_of(run.opened_sum(0, [0, 1, 2, 3], phase="base"))["base"]["total"]
    counts = sum(np.bincount(g.y[g.train_mask], minlength=3) for g in (client_graph(client, 40) for client in range(4)))
    np.testing.assert_allclose(4 * UNIT * whole, counts)
    assert "adds its base of the set-up to those of clients" in run.opened_sum(1, [0, 1, 2], phase="base")


def test_a_new_member_is_accepted_by_a_signed_sentence_only(tmp_path):
    """Over one model of the coordinator's choice, the sum of version 2 less that of version 1 is the new member's update."""
    later = {"changed": ["bank_2"], "version": 2, "continues": "a" * 64}
    for number, start in enumerate((agreements.SEED, agreements.CONTINUES)):
        with pytest.raises(agreements.Refused, match=r"members changed \(bank_2\), and sums have no noise"):
            Coordinator(tmp_path / str(number), *SECURE, **later, start=start)
    Coordinator(tmp_path / "accepted", *SECURE, **later, accepted=agreements.DIFFERENCE)
    Coordinator(tmp_path / "plain", **later)


def test_noised_sums_are_over_the_members_that_must_be_there(tmp_path):
    """Of three of six, one that colludes would remove a third of the noise."""
    for absent, least in (("forbidden", 6), ("allowed", 5)):
        run = Coordinator(tmp_path / absent, *NOISED, members=6, absent=absent).run(1)
        run.begin()
        model = {MODEL: model_of(run.nodes[0])}
        assert f"expected at least {least - 1}" in run.opened_sum(1, list(range(least - 1)), model)
        sum_of(run.opened_sum(2, list(range(least)), model))


def test_noise_of_a_request_is_drawn_once_whatever_the_number_of_its_keys(tmp_path):
    """The coordinator counts exchanges of keys; the mean of many draws would be the update."""
    coordinator, sums = Coordinator(tmp_path, *NOISED), []
    first = coordinator.run(1)
    first.begin()
    model = {MODEL: model_of(first.nodes[0])}
    sum_of(first.opened_sum(1, [0, 1, 2], model, checkpoint=True, run="a"))
    for number in (0, 7):
        again = coordinator.run(1)
        for client, node in enumerate(again.nodes):
            node.exchanges[secagg.PUBLISH, 2] = itertools.count(number)
            assert not isinstance(again.ask(client, "describe", 1, resume=1, run="a"), str)
        sums.append(sum_of(again.opened_sum(2, [0, 1, 2], model))[MODEL])
    for name, array in sums[0].items():
        np.testing.assert_allclose(array, sums[1][name], rtol=1e-9)


def test_epsilon_does_not_fall_within_a_run(tmp_path):
    """A ledger of a back-up is older than the audit log in the run that it knows, too; so is the head of that log."""
    run = Coordinator(tmp_path, *NOISED, epsilon=1e6).run(1)
    run.begin()
    files = [tmp_path / "state_0" / name for name in ("privacy_rings.json", audit_chain.HEAD)]
    model = {MODEL: model_of(run.nodes[0])}
    sum_of(run.opened_sum(1, [0, 1, 2], model))
    older = [path.read_bytes() for path in files]
    sum_of(run.opened_sum(2, [0, 1, 2], model))
    lost = f"{audit_chain.LOG} has later lines than {audit_chain.HEAD}, as if that were from a back-up"
    for number, reason in ((1, "lacks 1 of 2 releases with noise that this node's audit log lists"), (2, lost)):
        newer = [path.read_bytes() for path in files[:number]]
        for path, content in zip(files[:number], older, strict=False):
            path.write_bytes(content)
        assert reason in run.opened_sum(2 + number, [0, 1, 2], model)
        if number == 2:
            with pytest.raises(FedGraphError, match=lost):
                list(audit.verified(tmp_path / "state_0"))
        for path, content in zip(files, newer, strict=False):
            path.write_bytes(content)
    sum_of(run.opened_sum(5, [0, 1, 2], model))


def test_another_purpose_of_the_policy_is_no_fresh_start(tmp_path):
    """The owner's own bound has a ledger of its own, of which the agreement's bound began again."""
    coordinator = Coordinator(tmp_path, *NOISED, epsilon=2.0)
    for number, policy in enumerate(("max_epsilon: 50", "max_epsilon: 50\npurpose: fraud", ""), 1):
        run = coordinator.run(number)
        run.begin()
        model = {MODEL: model_of(run.nodes[0])}
        if number == 1:
            for server_round in (1, 2, 3):
                sum_of(run.opened_sum(server_round, [0, 1, 2], model))
        (tmp_path / "policy.yaml").write_text(f"min_nodes: 0\n{policy}\n")
        assert "now it is 1.85, with 1 more release(s) 2.17" in run.opened_sum(4, [0, 1, 2], model)


def test_failing_requests_use_up_no_more_epsilon_than_rounds_have(tmp_path):
    """A term is booked for its place once: attempts without end, with altered envelopes, used up that of all later runs."""
    coordinator, releases = Coordinator(tmp_path, *NOISED, epsilon=1e6), []
    run = coordinator.run(1)
    run.begin()
    model = model_of(run.nodes[0])
    sum_of(run.opened_sum(1, [0, 1, 2], {MODEL: model}, checkpoint=True, run="a"))
    assert "without group 'model'" in run.ask(0, "train", 3), "refused, and not booked"
    for _ in range(3):
        run = coordinator.run(1)
        for client in range(3):
            assert not isinstance(run.ask(client, "describe", 1, resume=1, run="a"), str)
        keys = {c: run.ask(c, secagg.PUBLISH, 2)[secagg.SECAGG] for c in range(3)}
        dealt = {c: run.ask(c, secagg.DEAL, 2, keys_of(keys)) for c in range(3)}
        dealt[2][secagg.SECAGG][secagg.ENVELOPES][0] ^= 1
        assert "cannot open the envelope of client 2" in masked_term(run, 0, 2, model, dealt)
        ledger = json.loads((tmp_path / "state_0/privacy_rings.json").read_text())
        releases += [entry["releases"] for entry in ledger.values()]
    assert releases == [2, 2, 2]


def test_a_checkpoint_of_a_later_round_lets_no_request_be_forgotten(tmp_path):
    """The node would forget requests before it, and train another model in a round that it had."""
    coordinator = Coordinator(tmp_path, *SECURE)
    early = coordinator.run(1)
    for client in range(3):
        assert not isinstance(early.ask(client, "describe", 5, checkpoint=True, run="a"), str)
    run = coordinator.run(1)
    run.begin()
    model = model_of(run.nodes[0])
    chosen = {name: array + 1 for name, array in model.items()}
    sum_of(run.opened_sum(1, [0, 1, 2], {MODEL: model}))
    sum_of(run.opened_sum(2, [0, 1, 2], {MODEL: model}))
    for client in range(3):
        assert not isinstance(run.ask(client, "describe", 2, checkpoint=True, run="a"), str)
    again = coordinator.run(1)
    for client in range(3):
        assert not isinstance(again.ask(client, "describe", 2, resume=2, run="a"), str)
    assert "of round 2 of this agreed run again, over another model" in again.opened_sum(2, [0, 1, 2], {MODEL: chosen})


def test_a_refused_start_loads_no_private_parameters(tmp_path):
    """Those of a model that was stored before any training, whose shared ones the coordinator chose."""
    coordinator = Coordinator(tmp_path, "strategy=fedper", start=agreements.CONTINUES)
    run = coordinator.run(1)
    run.begin()
    planted = {MODEL: {name: array + 1 for name, array in model_of(run.nodes[0]).items()}}
    assert not isinstance(run.ask(0, "describe", 0, planted, keep=True, run="a", best=0, scored=0), str)
    run = coordinator.run(2, "init=a")
    run.begin()

    def private():
        client = node_clients.client_at(node_of(run.nodes[0].context)).client
        return {name: t.numpy().copy() for name, t in client.model.state_dict().items() if name not in client.shared}

    before = private()
    assert "accepts only models of runs in which the node trained" in " ".join(run.ask(0, "train", 1, planted).split())
    assert_same_arrays(private(), before)


def test_a_process_from_before_the_beginning_draws_by_the_members_secret(tmp_path, monkeypatch):
    """A run of Flower asks for a description, another begins the run, and the first one trains in the same process."""
    monkeypatch.setattr(node_clients, "forget", lambda run_id: None)
    coordinator = Coordinator(tmp_path)
    first = coordinator.run(1)
    assert not isinstance(first.ask(0, "describe"), str)
    seed = coordinator.run(1).begin()
    assert not isinstance(first.ask(0, "train", 1, {MODEL: model_of(first.nodes[0])}), str)
    context = first.nodes[0].context
    cfg = node_clients._live[context.run_id, context.node_id][0].cfg
    assert cfg.seed == seed != cfg.own_seed


def masked_term(run, client, server_round, model, dealt):
    """A member's masked term for a model; nobody needs to open the sum."""
    place = list(dealt).index(client)
    envelopes = np.stack([dealt[peer][secagg.SECAGG][secagg.ENVELOPES][place] for peer in dealt])
    part = {secagg.MEMBERS: np.array(list(dealt), np.int64), secagg.ENVELOPES: envelopes}
    return run.ask(client, "train", server_round, {MODEL: model, secagg.SECAGG: part})


@pytest.mark.parametrize("words", [SECURE, [*SECURE, "privacy.scores=none"]])
def test_members_of_a_sum_had_the_same_requests_before(tmp_path, words):
    """Huge gradients in rounds whose sums nobody opens stop the optimisers of two members: later sums are the third's update."""
    run = Coordinator(tmp_path, *words).run(1)
    run.begin()
    model = model_of(run.nodes[0])
    sum_of(run.opened_sum(1, [0, 1, 2], {MODEL: model}))
    keys = {c: run.ask(c, secagg.PUBLISH, 2)[secagg.SECAGG] for c in range(3)}
    dealt = {c: run.ask(c, secagg.DEAL, 2, keys_of(keys)) for c in range(3)}
    planted = {name: np.full_like(array, 3e4) for name, array in model.items()}
    for client in (1, 2):
        assert not isinstance(masked_term(run, client, 2, planted, dealt), str)
    assert "clients [1, 2] signed something else: the server" in run.opened_sum(3, [0, 1, 2], {MODEL: model})


def test_a_checkpoint_of_an_untrained_client_is_no_way_around_its_start(tmp_path):
    """A second run of Flower stores one, under a round of its choice, and resumes from it over planted parameters."""
    coordinator = Coordinator(tmp_path, *SECURE)
    first = coordinator.run(1)
    first.begin()
    planted = {name: array + 1 for name, array in model_of(first.nodes[0]).items()}
    for server_round in (0, 2):
        again = coordinator.run(1)
        assert not isinstance(again.ask(0, "describe", server_round, checkpoint=True, run="a"), str)
        again = coordinator.run(1)
        assert not isinstance(again.ask(0, "describe", server_round, resume=server_round, run="a"), str)
        assert "other parameters than its seed" in again.ask(0, "train", server_round + 1, {MODEL: planted})


def test_a_refusal_of_a_secure_run_tells_no_value(tmp_path, caplog):
    """The largest of a member's parameters, under planted ones, was a row of its table."""
    run = Coordinator(tmp_path, *SECURE, "train.optimizer=sgd", "privacy.scores=none").run(1)
    run.begin()
    model = model_of(run.nodes[0])
    sum_of(run.opened_sum(1, [0, 1, 2], {MODEL: model}))
    planted = {name: np.full_like(array, 1e6) for name, array in model.items()}
    refused = run.opened_sum(2, [0, 1, 2], {MODEL: planted})
    assert "has a value to add that is not below 32768" in refused
    assert "e+" not in refused
    assert "an earlier request of this run failed at this node" in run.opened_sum(3, [0, 1, 2], {MODEL: model})
    protection = protection_of(run.cfg)
    assert protection.withheld("train") == "privacy.secagg=true", "as are other reasons of a phase with data"
    assert not any(protection.withheld(step) for step in secagg.STEPS)


def test_a_refusal_quotes_no_long_list(tmp_path):
    """It goes to the node's log, too."""
    run = Coordinator(tmp_path, *SECURE).run(1)
    run.begin()
    keys = {c: run.ask(c, secagg.PUBLISH, 1)[secagg.SECAGG] for c in range(3)}
    assert not isinstance(run.ask(0, secagg.DEAL, 1, keys_of(keys)), str)
    part = {secagg.MEMBERS: np.zeros(10_000, np.int64), secagg.ENVELOPES: np.zeros((1, 1), np.uint8)}
    refusal = run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0]), secagg.SECAGG: part})
    assert refusal.startswith("client 0 was asked to mask a sum over clients [0, 0, 0")
    assert len(refusal) == respond.LONGEST


@pytest.mark.parametrize("words", [SECURE, NOISED])
def test_the_sender_of_a_wrong_envelope_is_named(tmp_path, words):
    """Without a name, the members that cannot open it would be taken for the ones who fail."""
    run = Coordinator(tmp_path, *words).run(1)
    run.begin()
    keys = {c: run.ask(c, secagg.PUBLISH, 1)[secagg.SECAGG] for c in range(3)}
    dealt = {c: run.ask(c, secagg.DEAL, 1, keys_of(keys)) for c in range(3)}
    dealt[2][secagg.SECAGG][secagg.ENVELOPES][0] ^= 1
    assert "cannot open the envelope of client 2" in masked_term(run, 0, 1, model_of(run.nodes[0]), dealt)


def test_a_foreign_key_writes_nothing_into_a_terminal():
    """A configuration's key is another's text, in the reasons of refusals, too."""
    name = "\x1b]0;x\x07\nfedgraph-flwr: node accepted run 5"
    for text in (agreements._difference("configuration", {}, {name: 1}), str(unknown("key", name, ["train"]))):
        assert text.isprintable(), text


def test_an_agreement_to_score_lets_nothing_else_be_scored_or_trained(tmp_path):
    """The name of a folder said nothing of its content."""
    model = {"head.weight": np.zeros(3)}
    with pytest.raises(agreements.Refused, match="scores a model that members name by its digest"):
        Coordinator(tmp_path / "seed", "evaluate=runs/mine")
    trained = Coordinator(tmp_path / "trained").run(1)
    trained.begin()
    model = model_of(trained.nodes[0])
    run = Coordinator(tmp_path / "scored", "evaluate=runs/mine", start=digest(model).hex()).run(1)
    run.begin()
    planted = {name: array + 1 for name, array in model.items()}
    assert "and members agreed on" in run.ask(0, "evaluate", 1, {MODEL: planted})
    assert "and members agreed on" in run.ask(0, "describe", 1, {MODEL: planted}, keep=True, best=1, run="a")
    assert "members agreed to score a model, and the server requests training" in run.ask(0, "train", 1, {MODEL: model})
    assert not isinstance(run.ask(0, "evaluate", 1, {MODEL: model}), str)


def test_an_agreed_run_keeps_one_model_and_the_next_starts_from_no_others(tmp_path):
    coordinator = Coordinator(tmp_path, "privacy.scores=none", start="continues")
    run = coordinator.run(1)
    run.begin()
    model = {MODEL: model_of(run.nodes[0])}
    kept = {"keep": True, "best": 1, "scored": 1, "run": "a"}
    assert not isinstance(run.ask(0, "train", 1, model), str)
    other = {MODEL: {name: array + 1 for name, array in model[MODEL].items()}}
    assert not isinstance(run.ask(0, "describe", 1, other, **kept), str)
    assert "ends this agreed run with another model than before" in run.ask(0, "describe", 1, model, **kept)
    following = coordinator.run(2, "init=runs/mine")
    following.begin()
    assert "accepts only models of runs in which the node trained" in following.ask(0, "train", 1, model)
    stranger = Coordinator(tmp_path / "other", "privacy.scores=none", start="continues")
    shutil.copytree(tmp_path / "state_0", tmp_path / "other/state_0")
    (tmp_path / "other/state_0/agreements.json").unlink()
    for log in (tmp_path / "other/state_0").glob("audit*"):
        log.unlink()
    foreign = stranger.run(1, "init=runs/mine")
    foreign.begin()
    assert "of an agreed run, those of its agreement" in foreign.ask(0, "train", 1, other)
    third = coordinator.run(3, "init=runs/mine")
    third.begin()
    assert not isinstance(third.ask(0, "train", 1, other), str)


# --- a member that writes the agreement -------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0])
def test_no_epsilon_is_no_bound(tmp_path, epsilon):
    with pytest.raises(agreements.Refused, match="expected more than 0, or null"):
        Coordinator(tmp_path, *NOISED, epsilon=epsilon)


def test_a_file_of_repeated_lists_is_refused_at_once(tmp_path):
    path = tmp_path / "agreement.yaml"
    path.write_text(bomb() + "until: 2099-01-01\n")
    with pytest.raises(agreements.Refused, match="is not an agreement"):
        agreements.read(path)
    Coordinator(tmp_path)
    path.write_text(path.read_text().replace("configuration:", "configuration:\n  1: x"))
    with pytest.raises(agreements.Refused, match="is not an agreement"):
        agreements.read(path)


@pytest.mark.parametrize(
    ("size", "said"), [(1, ""), (10**6, "client 2 counts as 1e\\+06 in means, and members agreed on 1")]
)
def test_a_server_lets_no_member_choose_its_weight(tmp_path, size, said):
    """Sizes are what a node says: one that says a million would be the model of all."""
    counting = SimpleNamespace(private=False, sizes=lambda key, clients: [1.0, 1.0, float(size)])
    cfg = compose(["num_clients=3", "weights=[1,1,1]", f"out={tmp_path}"])
    server: Any = SimpleNamespace(cfg=cfg, counting=counting, clients=dict.fromkeys(range(3)))
    server.request = lambda phase: pytest.fail("begun")
    with pytest.raises(pytest.fail.Exception if not said else RunFailed, match=said or "begun"):
        begin(server)


def test_nodes_let_no_member_choose_its_weight_in_a_secure_sum(tmp_path):
    words = ["privacy.secagg=true", "strategy.weighting=train"]
    for size in (1, 5):
        coordinator = Coordinator(tmp_path / str(size), *words, weights={"bank_0": 1, "bank_1": 2, "bank_2": 1})
        run = coordinator.run(1)
        run.begin()
        keys = {client: run.ask(client, secagg.PUBLISH, 1)[secagg.SECAGG] for client in range(3)}
        keyring = Keyring(2, run.cfg.agreement, read_key(str(coordinator.folder / "keys/node_2")))
        sizes = np.array([size, 0], np.int64)
        signed = keyring.sign(f"{secagg.PUBLISH} 1 0", secagg.publication(keys[2][secagg.KEYS], sizes))
        keys[2] = {**keys[2], secagg.SIZES: sizes, **signed}
        reply = run.ask(0, secagg.DEAL, 1, keys_of(keys))
        refused = "client 2 published the sizes [5, 0], and members agreed on the weight 1" in reply
        assert refused if size == 5 else secagg.SECAGG in reply, reply


# --- what members draw ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "drawn"),
    [
        ("fedsage", lambda client: client.impaired.graph.x),
        ("feddep", lambda client: client.impaired.graph.x),
        ("feddep", lambda client: client.prototype({"encoder": arrays_of(client)}, {})[0]["prototypes"]["mean"]),
        ("adafgl", lambda client: client.homophily),
        ("fedlit", lambda client: client.centroids(client.embedded())),
    ],
)
def test_what_a_method_draws_of_a_members_data_follows_its_secret(method, drawn):
    """Everyone knows the seed of the run; which nodes and links a member hides, holds out or starts from is its own."""

    def client(secret):
        cfg = compose([f"strategy={method}", "num_clients=3"])
        setattr(cfg, OWN_SEED, secret)
        return locate(cfg.strategy.client)(cfg, client_graph(0, 60))

    first, again, other = (drawn(client(number)) for number in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
