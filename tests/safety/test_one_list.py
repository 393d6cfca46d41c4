"""Attacks of a server that opens sums over several lists of clients in one run, and the rule of one list that refuses them.

Each attack is run without the rule first: it then recovers single clients' values.
"""

import itertools

import numpy as np
import pytest

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.uplink import Mean, Sum
from fedgraph_flwr.methods.weighting import batch_of, batches, in_sum
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.secure.secagg import Member
from fedgraph_flwr.wire.messages import MODEL
from tests.methods.small_runs import METHODS, sampled
from tests.nodes import nodes_with
from tests.secure.rounds import SECURE, Round, accepted
from tests.support import assert_same_arrays

FOUR = (12, 16, 20, 14)


# --- the attack -------------------------------------------------------------------------------------------------------


def attack(fixed):
    """Open sums over four clients and over three of them, and subtract: the error of the values of the one that is missing."""
    true = np.random.default_rng(5).normal(size=(4, 6))
    members, sums = [Member(client, 2 / 3, 40) for client in range(4)], []
    for member in members:
        member.fixed = fixed
    for alive in ([0, 1, 2, 3], [0, 1, 2]):
        made, ratios = Round(members=members, share=2 / 3).deal(), np.full(4, 0.25)
        made.values = {client: {MODEL: {"w": true[client]}} for client in range(4)}
        answers = {client: made.mask(client, ratios) for client in range(4)}
        sums.append(made.sum({c: answers[c] for c in alive}, made.shares(alive, alive))[MODEL]["w"])
    return np.abs(4 * (sums[0] - sums[1]) - true[3]).max()


def test_a_client_declared_absent_for_one_round():
    assert attack(fixed=False) < 1e-9, "its values, exactly"
    with pytest.raises(RunFailed, match=r"to those of clients \[0, 1, 2, 3\], and the server requests a sum over"):
        attack(fixed=True)


def test_one_list_is_kept_for_each_kind_of_values():
    made = Round(server_round=2).deal()
    for member in made.members:
        member.fixed = True
    for client in range(5):
        made.mask(client)
    made.shares(range(5), list(range(5)))
    member = made.members[0]
    assert {kind: listed.tolist() for kind, listed in member.lists.items()} == {"models of rounds": [0, 1, 2, 3, 4]}
    again = Round(members=made.members, server_round=3).deal()
    with pytest.raises(RunFailed, match="two lists of one run"):
        again.mask(0, among=range(4))
    member.fixed = False
    assert again.mask(0, among=range(4)), "with noise, lists may differ"


# --- batches and weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "size"), [(3, 3), (10, 3), (11, 4), (100, 7), (7, 4)])
def test_batches_are_a_partition_that_does_not_depend_on_the_round(clients, size):
    parts = batches(clients, size, 5)
    assert sorted(itertools.chain(*parts)) == list(range(clients))
    assert {len(part) for part in parts} <= {size + extra for extra in range(size)}
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if len(parts) > 1:
        assert parts != batches(clients, size, 6)
    cfg = compose([f"num_clients={clients}", f"strategy.fraction={size / clients}", "seed=5", SECURE])
    seen = {tuple(batch_of(cfg, server_round)) for server_round in range(1, 200)}
    assert seen == set(parts)


def test_members_compute_the_weights_that_the_server_used_to_send():
    sizes = {client: np.array([train, nodes]) for client, (train, nodes) in enumerate([(10, 40), (30, 40), (0, 20)])}
    cases = [
        ([], Mean(), [0.25, 0.75, 0]),
        (["strategy.weighting=nodes"], Mean(), [0.4, 0.4, 0.2]),
        (["strategy.weighting=uniform"], Mean(), [0.5, 0.5, 0]),
        (["strategy.max_share=0.6"], Mean(), [0.4, 0.6, 0]),
        ([], Mean(weight="uniform"), [1 / 3] * 3),
        ([], Mean(scale=lambda client: 1 / (client + 1)), [0.4, 0.6, 0]),
        ([], Sum(), [1 / 3] * 3),
    ]
    for overrides, reducer, expected in cases:
        cfg = compose(["num_clients=3", SECURE, *overrides])
        np.testing.assert_allclose(
            in_sum(reducer, cfg, cfg.privacy.dp != "none", sizes, [0, 1, 2])[1], expected, atol=1e-12
        )


# --- in runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parties(monkeypatch):
    """Clients reply like nodes of parties."""
    nodes_with(monkeypatch, Policy)


@pytest.mark.parametrize("method", sampled([name for name in METHODS if accepted(name)]))
def test_every_method_has_one_list_per_kind(method, go, parties):
    assert go(method, "rounds=2", "model.dropout=0", SECURE).summary["failures"] == {}


def test_two_sums_in_a_round(go, parties):
    finished = go("fedomd", "rounds=3", "model.dropout=0", SECURE, "strategy.cmd_range=unit")
    assert finished.summary["failures"] == {}


def dropping(monkeypatch, drops):
    """Clients that fail in the exchange ``train`` of a round, by client: rounds."""
    fit = GraphClient.fit

    def spy(self, *args):
        if self.server_round in drops.get(self.graph.client, ()):
            raise RunFailed("the power is out")
        return fit(self, *args)

    monkeypatch.setattr(GraphClient, "fit", spy)


EXACT = ["dtype=float64", "model.dropout=0", "train.optimizer=sgd"]


def test_a_client_that_drops_out_once_ends_the_run(run, parties, monkeypatch):
    dropping(monkeypatch, {3: [2]})
    with pytest.raises(RunFailed, match=r"round 2, secagg_agree: 0 of 3 .*two lists of one run .*when all are back"):
        run("rounds=3", SECURE, *EXACT, sizes=FOUR)


def test_the_run_resumes_when_all_are_back(run, parties, monkeypatch):
    """To the bits of the undisturbed run; the list outlives the run, so it does not go on without the client."""
    whole = run("rounds=4", SECURE, *EXACT, "checkpoint_every=1", sizes=FOUR)
    words = [*("rounds=4", SECURE, *EXACT, "checkpoint_every=1"), f"out={whole.out.with_name('cut')}"]
    with monkeypatch.context() as patch:
        dropping(patch, {3: [3]})
        with pytest.raises(RunFailed, match="two lists of one run"):
            run(*words, sizes=FOUR)
        node_clients.forget(0)
        with pytest.raises(RunFailed, match="two lists of one run"):
            run(*words, f"resume={whole.out.with_name('cut')}", sizes=FOUR)
    node_clients.forget(0)
    resumed = run(*words, f"resume={whole.out.with_name('cut')}", sizes=FOUR)
    assert_same_arrays(resumed.arrays, whole.arrays)
