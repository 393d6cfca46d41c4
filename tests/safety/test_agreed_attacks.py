"""Attacks on agreed runs by someone who knows the repository: as the coordinator, and as a member that writes the agreement."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgraph_flwr.clients.boosting import BASE, BINS, UNIT
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.config.schema import OWN_SEED
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.fleet import agreements
from fedgraph_flwr.methods.boosting import packed_edges
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node.node import node_of
from fedgraph_flwr.secure import beginning, secagg
from fedgraph_flwr.secure.keyring import Keyring, read_key
from fedgraph_flwr.strategies.beginning import begin
from fedgraph_flwr.wire.messages import MODEL
from tests.conftest import client_graph
from tests.nodes import model_of
from tests.safety.coordinator import Coordinator, Run, keys_of
from tests.support import bomb

SECURE = ["privacy.secagg=true", "strategy.weighting=uniform"]
NOISED = [
    *("privacy.secagg=true", "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.scores=none"),
    *("privacy.secagg_bits=20", "strategy.weighting=uniform"),
]
TREES = [
    *("strategy=boosting", "strategy.mode=histogram", "strategy.depth=1", "strategy.bins=4", "strategy.per_round=1"),
    *("strategy.min_data_in_leaf=5", "evaluation.select=last", *SECURE),
]


def sum_of(found):
    """An opened sum, which no node refused."""
    assert not isinstance(found, str), found
    return found


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


def test_trees_over_changed_members_need_the_signed_sentence_though_their_set_up_is_skipped(tmp_path):
    """Histograms of the first tree follow from no seed, in whatever round: less those before, they are the new member's."""
    for number, accepted in enumerate(("", agreements.DIFFERENCE)):
        run = Coordinator(tmp_path / str(number), *TREES, changed=["bank_2"], accepted=accepted).run(1)
        run.begin()
        client: Any = node_clients.client_at(node_of(run.nodes[0].context)).client
        edges = [np.linspace(-1, 1, 3).astype(np.float32) for _ in range(client.model.columns)]
        groups = {MODEL: arrays_of(client), BINS: packed_edges(edges), BASE: {"score": np.zeros(client.outputs)}}
        found = run.opened_sum(1, [0, 1, 2], groups)
        assert ("sums of phase 'train' follow from no seed" in found) == (not accepted), found


def test_epsilon_does_not_fall_within_a_run(tmp_path):
    """A ledger of a back-up is older than the audit log in the run that it knows, too."""
    run = Coordinator(tmp_path, *NOISED, epsilon=1e6).run(1)
    run.begin()
    path, model = tmp_path / "state_0/privacy_rings.json", {MODEL: model_of(run.nodes[0])}
    sum_of(run.opened_sum(1, [0, 1, 2], model))
    older = path.read_bytes()
    sum_of(run.opened_sum(2, [0, 1, 2], model))
    newer = path.read_bytes()
    path.write_bytes(older)
    assert "this node's audit log lists 2: it is older" in run.opened_sum(3, [0, 1, 2], model)
    path.write_bytes(newer)
    sum_of(run.opened_sum(4, [0, 1, 2], model))


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
    own = np.stack([dealt[peer][secagg.SECAGG][secagg.ENVELOPES][place] for peer in dealt])
    part = {secagg.MEMBERS: np.array(list(dealt), np.int64), secagg.ENVELOPES: own}
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
    assert "requested something else before, of the others" in run.opened_sum(3, [0, 1, 2], {MODEL: model})


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

    def client(own):
        cfg = compose([f"strategy={method}", "num_clients=3"])
        setattr(cfg, OWN_SEED, own)
        return locate(cfg.strategy.client)(cfg, client_graph(0, 60))

    first, again, other = (drawn(client(own)) for own in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
