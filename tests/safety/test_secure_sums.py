"""Attacks of a malicious server on secure sums: what it recovered before, and that it is refused now."""

import numpy as np
import pytest

from fedgraph_flwr.clients import session
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.secure.secagg import threshold
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.requests import requests
from fedgraph_flwr.wire.messages import MODEL, TRAIN, from_record, to_record
from tests.methods.small_runs import METHODS, sampled
from tests.secure.rounds import SECURE, Round, accepted


@pytest.mark.parametrize("share", [0.5000000001, 0.51, 2 / 3, 1.0])
def test_a_threshold_is_more_than_half(share):
    for clients in range(2, 200):
        assert clients / 2 < threshold(share, clients) <= clients
    assert threshold(2 / 3, 100) == 67


def test_two_lists_of_survivors_rebuild_no_secret_twice():
    """With t = 2 of 4 a server named half of the clients as survivors to each half, and had all four clients' values."""
    made = Round(count=4, share=0.5000000001).deal()
    for client in range(4):
        made.mask(client)
    for client, found in enumerate(([0, 1], [0, 1], [2, 3], [2, 3])):
        with pytest.raises(RunFailed, match="expected at least 3"):
            made.members[client].reveal(np.array(found), made.round)


@pytest.mark.parametrize("weights", [[1, 0, 0, 0, 0], [0.9, 0.05, 0.05, 0, 0], [0, 0, 0.5, 0, 0]])
def test_a_weight_for_one_client_alone_is_refused(weights):
    """The sum was that client's model."""
    made = Round().deal()
    for client, member in enumerate(made.members):
        member.max_share = 0.75
        with pytest.raises(RunFailed, match=r"at most 0.75 \(max_share\)"):
            made.mask(client, weights)


def test_weights_for_fewer_clients_than_a_party_wants_are_refused():
    made = Round().deal()
    made.members[0].floor = 3
    with pytest.raises(RunFailed, match=r"2 clients may have weight.*at least 3 clients \(min_clients\)"):
        made.mask(0, [0.5, 0.5, 0, 0, 0])


@pytest.mark.parametrize("weights", [[0.2] * 4, [0.2] * 6, [2.0] + [0.2] * 4, [-0.2] + [0.2] * 4, [np.nan] + [0.2] * 4])
def test_a_list_that_is_none_of_weights_is_refused(weights):
    made = Round().deal()
    ratios = {group: np.array(weights) for group in made.values[0]}
    with pytest.raises(RunFailed, match="and a weight from 0 to 1"):
        made.members[0].masked(made.values[0], ratios, np.arange(5), made.dealt[0]["envelopes"], made.round)


def noise(made, answers):
    """Whether a server that takes all masks off that it can is left with noise."""
    shares = made.shares(range(5), list(range(5)))
    try:
        return float(np.median(np.abs(made.sum(answers, shares)[MODEL]["w"]))) > 1
    except RunFailed as error:
        return "did not mask as the protocol requires" in str(error)


def test_a_list_of_weights_for_each_client_makes_no_sum():
    """Each list looks harmless to its client; only client 0 receives one in which it weighs itself."""
    made = Round().deal()
    lists = [[0.2] * 5, *([0.2 * (i not in (0, c)) for i in range(5)] for c in range(1, 5))]
    answers = {}
    for client, weights in enumerate(lists):
        made.members[client].max_share = 0.75
        answers[client] = made.mask(client, weights)
    assert noise(made, answers)


def test_a_model_for_each_client_makes_no_sum():
    """A model under which the others learn nothing shows what one client learned (Pasquini et al., CCS 2022)."""
    made = Round().deal()
    answers = {client: made.mask(client, 0.2, received=b"another" if client else b"a") for client in range(5)}
    assert noise(made, answers)
    alike = Round().deal()
    assert not noise(alike, {client: alike.mask(client, 0.2, received=b"a") for client in range(5)})


def test_survivors_that_differ_by_client_leave_enough():
    """Of 10 clients, lists that leave out 4 each can leave out 6 in all; the sum of the last 4 was then in the clear."""
    made = Round(count=10, share=0.6).deal()
    for client, member in enumerate(made.members):
        member.floor = 5
        made.mask(client, 0.1)
    with pytest.raises(RunFailed, match=r"4 clients may have weight.*at least 5 clients \(min_clients\)"):
        made.members[0].reveal(np.arange(6), made.round)
    made.members[1].reveal(np.arange(10), made.round)


def test_survivors_among_whom_one_weighs_too_much_are_refused():
    made = Round().deal()
    for client, member in enumerate(made.members):
        member.max_share = 0.75
        made.mask(client, [0.6, 0.3, 0.03, 0.03, 0.03])
    with pytest.raises(RunFailed, match=r"at most 0.75 \(max_share\)"):
        made.members[0].reveal(np.array([0, 2, 3, 4]), made.round)


@pytest.fixture
def fleet(monkeypatch):
    """Clients reply like nodes of a fleet, by the default policy."""
    monkeypatch.setattr(session, "_policy", lambda context: Policy())


@pytest.mark.parametrize("method", sampled([name for name in METHODS if accepted(name)]))
def test_no_node_of_a_fleet_adds_up_alone(method, go, fleet, monkeypatch):
    """Weight 1 for client 0 and 0 for the others gave the server that client's model in one round."""

    def alone(self, reducer, clients):
        return [float(client == clients[0]) for client in clients]

    go(method, "rounds=1", "model.dropout=0", SECURE)
    monkeypatch.setattr(GraphStrategy, "weights_in", alone)
    with pytest.raises((FedGraphError, RunFailed), match=r"one client may have a share of 1, and only 1 clients"):
        go(method, "rounds=1", "model.dropout=0", SECURE)


@pytest.mark.parametrize(
    ("overrides", "group"),
    [
        (["strategy=scaffold"], "variates"),
        (["strategy=fedavg", "train.loss=weighted", "train.class_weights=federated"], "class_weights"),
    ],
)
def test_a_group_that_only_one_client_received_makes_no_sum(run, monkeypatch, overrides, group):
    """With other control variates or class weights, a server could make all updates predictable but one."""
    sent = []

    def unequal(method, phase, clients, *args):
        messages = requests(method, phase, clients, *args)
        if phase == TRAIN:
            sent.append(list(messages[0].content))
            record = from_record(messages[0].content[group])
            messages[0].content[group] = to_record({name: array + 1.5 for name, array in record.items()})
        return messages

    monkeypatch.setattr("fedgraph_flwr.strategies.base.requests", unequal)
    with pytest.raises(RunFailed, match="masked their values under different lists"):
        run(*overrides, "privacy.secagg=true", "rounds=2")
