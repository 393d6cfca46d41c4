"""Attacks of a malicious server on secure sums: what it recovered before, and that it is refused now."""

import numpy as np
import pytest

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure import secagg
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.secure.secagg import Member, threshold
from fedgraph_flwr.secure.shamir import combine
from fedgraph_flwr.strategies.counting import Counting
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.summation.masked import Masked
from fedgraph_flwr.wire.messages import MODEL, TRAIN, from_record, to_record
from tests.methods.small_runs import METHODS, sampled
from tests.nodes import nodes_with
from tests.secure.rounds import SECURE, Round, accepted
from tests.support import assert_same_arrays


@pytest.mark.parametrize("share", [0.5, 2 / 3, 1.0])
def test_a_threshold_is_more_than_two_thirds(share):
    for clients in range(3, 200):
        assert 2 * clients / 3 < threshold(share, clients) <= clients
    assert [clients - threshold(2 / 3, clients) for clients in range(3, 10)] == [0, 1, 1, 1, 2, 2, 2]


def two_lists(count, colluders):
    """A server and colluding clients name two lists, one without client 0: whether they have both its secrets; None: refused.

    Honest clients are split as evenly as both lists need. Colluders sign both lists and give all shares that they hold.
    """
    made = Round(count=count, share=2 / 3).deal()
    for client in range(count):
        made.values[client] = {MODEL: {"w": np.full(2, client + 1.0)}}
        made.mask(client)
    held = {client: dict(member.state) for client, member in enumerate(made.members)}
    honest = list(range(count - colluders))
    first, second = honest[: (len(honest) + 1) // 2], honest[(len(honest) + 1) // 2 :]
    bad = list(range(count - colluders, count))
    views = []
    for told, alive in ((first, list(range(count))), (second, list(range(1, count)))):
        survivors, signed = np.array(alive), {}
        for client in told:
            signed[client] = made.members[client].agree(survivors, made.round)
        for client in bad:
            member = Member(client, 2 / 3, made.bits)
            member.state = dict(held[client])
            signed[client] = member.agree(survivors, made.round)
        shares = {client: held[client]["shares"][0, int(0 in alive)] for client in bad}
        for client in told:
            try:
                shares[client] = made.members[client].unmask(signed, made.round)["shares"][0]
            except RunFailed:
                return None
        views.append(shares)
    needed = secagg.threshold(2 / 3, count)
    secret, mask = (
        combine(
            [client + 1 for client in sorted(shares)[:needed]], np.stack([shares[c] for c in sorted(shares)[:needed]])
        )
        for shares in views
    )
    published = made.keys[0]
    return (
        secagg.commitment(secret.tobytes()) == published[2].tobytes()
        and secagg.mask_sealer(0, mask.tobytes()).public == published[1].tobytes()
    )


@pytest.mark.parametrize(("clients", "colluders"), [(3, 1), (6, 2), (9, 3), (30, 10)])
def test_two_lists_of_survivors_rebuild_no_secret_twice(clients, colluders, monkeypatch):
    """With t = ⌈2n/3⌉ a third of the clients and the server had both secrets of client 0, and so its value."""
    assert two_lists(clients, colluders) is None
    monkeypatch.setattr(secagg, "threshold", lambda share, count: -(-2 * count // 3))
    assert two_lists(clients, colluders) is True


def test_a_signature_on_another_list_does_not_count():
    made = Round(count=4, share=2 / 3).deal()
    for client in range(4):
        made.mask(client)
    lists = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]
    signed = {c: made.members[c].agree(np.array(named), made.round) for c, named in enumerate(lists)}
    with pytest.raises(RunFailed, match="a list that 1 of them signed, expected at least 3"):
        made.members[2].unmask(signed, made.round)
    made.members[0].unmask(signed, made.round)


def test_a_signature_of_an_earlier_sum_does_not_count():
    made = Round(count=3, share=2 / 3).deal()
    for client in range(3):
        made.mask(client)
    old = made.signatures(range(3))
    again = Round(members=made.members, share=2 / 3).deal()
    for client in range(3):
        again.mask(client)
    again.members[0].agree(np.arange(3), again.round)
    with pytest.raises(RunFailed, match="a list that 0 of them signed, expected at least 3"):
        again.members[0].unmask(old, again.round)


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


def test_clients_outside_a_batch_are_refused():
    made = Round()
    ids, keys, sizes = np.arange(5), np.stack(list(made.keys.values())), np.zeros((5, 2), np.int64)
    with pytest.raises(RunFailed, match=r"with client 3 in round 3, whose batch by the run's seed is \[0, 1, 2\]"):
        made.members[0].deal(ids, keys, sizes, made.round, batch=[0, 1, 2])


def test_sizes_that_a_server_changed_are_refused():
    made = Round()
    ids, keys, sizes = np.arange(5), np.stack(list(made.keys.values())), np.full((5, 2), 7)
    with pytest.raises(RunFailed, match="its own differ from those it published"):
        made.members[0].deal(ids, keys, sizes, made.round)


def test_a_list_of_weights_for_each_client_makes_no_sum():
    """Each list looks harmless to its client; only client 0 receives one in which it weighs itself."""
    made = Round().deal()
    lists = [[0.2] * 5, *([0.2 * (i not in (0, c)) for i in range(5)] for c in range(1, 5))]
    for client, weights in enumerate(lists):
        made.members[client].max_share = 0.75
        made.mask(client, weights)
    with pytest.raises(RunFailed, match="a list that 1 of them signed, expected at least 4"):
        made.shares(range(5), list(range(5)))


def test_a_model_for_each_client_makes_no_sum():
    """A model under which the others learn nothing shows what one client learned (Pasquini et al., CCS 2022)."""
    made = Round().deal()
    for client in range(5):
        made.mask(client, 0.2, received=b"another" if client else b"a")
    with pytest.raises(RunFailed, match="a list that 1 of them signed, expected at least 4"):
        made.shares(range(5), list(range(5)))
    alike = Round().deal()
    answers = {client: alike.mask(client, 0.2, received=b"a") for client in range(5)}
    total = alike.sum(answers, alike.shares(range(5), list(range(5))))
    expected = sum(0.2 * alike.values[client][MODEL]["w"] for client in range(5))
    np.testing.assert_allclose(total[MODEL]["w"], expected, rtol=0, atol=1e-9)


def test_survivors_among_whom_one_weighs_too_much_are_refused():
    made = Round().deal()
    for client, member in enumerate(made.members):
        member.max_share = 0.75
        made.mask(client, [0.6, 0.3, 0.03, 0.03, 0.03])
    with pytest.raises(RunFailed, match=r"at most 0.75 \(max_share\)"):
        made.members[0].agree(np.array([0, 2, 3, 4]), made.round)


@pytest.fixture
def fleet(monkeypatch):
    """Clients reply like nodes of a fleet, by the default policy."""
    nodes_with(monkeypatch, Policy)


@pytest.mark.parametrize("method", sampled([name for name in METHODS if accepted(name)]))
def test_no_node_of_a_fleet_adds_up_alone(method, go, fleet, monkeypatch):
    """Weight 1 for client 0 and 0 for the others gave the server that client's model in one round."""

    def alone(counting, reducer, clients):
        return [float(client == clients[0]) for client in clients]

    opened, open_sums = [], Masked.open_sums

    def spy(self, phase, replies):
        opened.append(open_sums(self, phase, replies))
        return opened[-1]

    monkeypatch.setattr(Masked, "open_sums", spy)
    go(method, "rounds=1", "model.dropout=0", SECURE)
    monkeypatch.setattr(Counting, "weights_of", alone)
    go(method, "rounds=1", "model.dropout=0", SECURE)
    honest, other = opened[: len(opened) // 2], opened[len(opened) // 2 :]
    for before, after in zip(honest, other, strict=True):
        assert before.keys() == after.keys()
        for group in before:
            assert_same_arrays(before[group], after[group])


@pytest.mark.parametrize(
    ("overrides", "group"),
    [
        (["strategy=scaffold"], "variates"),
        (["strategy=fedavg", "train.loss=weighted", "train.class_weights=federated"], "class_weights"),
    ],
)
def test_a_group_that_only_one_client_received_makes_no_sum(run, monkeypatch, overrides, group):
    """With other control variates or class weights, a server could make all updates predictable but one."""
    sent, send = [], Live.messages

    def unequal(live, phase, clients, *args):
        messages = send(live, phase, clients, *args)
        if phase == TRAIN:
            sent.append(list(messages[0].content))
            record = from_record(messages[0].content[group])
            messages[0].content[group] = to_record({name: array + 1.5 for name, array in record.items()})
        return messages

    monkeypatch.setattr(Live, "messages", unequal)
    with pytest.raises(RunFailed, match="masked their values under different lists"):
        run(*overrides, "privacy.secagg=true", "rounds=2")
