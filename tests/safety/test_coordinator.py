"""What a coordinator that chooses, repeats and swaps messages gets of members who agreed on their runs."""

import hashlib
import json

import numpy as np
import pytest

from fedgraph_flwr.node.node import node_of
from fedgraph_flwr.secure import beginning
from fedgraph_flwr.wire.messages import MODEL
from tests.nodes import model_of
from tests.safety.coordinator import Coordinator, opened


def by_hand(run, nonces):
    """Second derivation of the seed."""
    text = json.dumps(["fedgraph seed", run, {str(c): n.hex() for c, n in sorted(nonces.items())}])
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) >> 193


@pytest.fixture
def coordinator(tmp_path):
    return Coordinator(tmp_path)


def test_a_seed_cannot_be_searched_for(coordinator):
    """Whatever is repeated gives the same seed, until the next number uses this one up."""
    run = coordinator.run(1)
    commits = run.commitments()
    nonces = run.nonces(commits)
    seeds = {by_hand(run.cfg.agreement, nonces)}
    for _ in range(3):
        again = coordinator.run(1)  # another run of Flower, after a restart of all nodes
        assert {c: a[beginning.COMMITMENT].tobytes() for c, a in again.commitments().items()} == {
            c: a[beginning.COMMITMENT].tobytes() for c, a in commits.items()
        }
        assert again.nonces(again.commitments()) == nonces
        seeds.add(again.begin())
    assert len(seeds) == 1
    later = coordinator.run(2)
    assert later.begin() not in seeds
    for client in range(3):
        assert "is used up" in coordinator.run(1).ask(client, beginning.COMMIT)


def test_nodes_train_from_the_seed_that_follows_and_draw_by_secrets_of_their_own(coordinator):
    run = coordinator.run(1)
    assert "the agreed run has not begun here" in run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0])})
    seed = run.begin()
    cfgs = [node_of(node.context).cfg for node in run.nodes]
    assert {cfg.seed for cfg in cfgs} == {seed}
    own = {cfg.own_seed for cfg in cfgs}
    assert len(own | {seed, 0}) == 5, "each member draws for itself"
    assert not isinstance(run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0])}), str)
    planted = {name: array + 1 for name, array in model_of(run.nodes[1]).items()}
    assert "other parameters than its seed" in run.ask(1, "train", 1, {MODEL: planted})


def test_a_nonce_is_opened_for_one_whole_list(coordinator):
    run = coordinator.run(1)
    commits = run.commitments()
    assert "without bank_2: at least 3 are needed" in run.nonces({c: commits[c] for c in (0, 1)})[0]
    forged = commits | {2: commits[2] | {beginning.COMMITMENT: np.zeros(32, np.uint8)}}
    assert "without a valid signature of the pinned key" in run.nonces(forged, [0])[0]
    unsigned = commits | {2: {beginning.COMMITMENT: commits[2][beginning.COMMITMENT]}}
    assert "that is not signed" in run.nonces(unsigned, [0])[0]
    swapped = commits | {0: commits[1]}
    assert "its own differs: the server replaced it" in run.nonces(swapped, [0])[0]
    nonces = run.nonces(commits)
    other = {client: bytes(32) if client == 1 else nonce for client, nonce in nonces.items()}
    for client in range(3):
        assert "not those which members committed to" in run.ask(client, beginning.BEGIN, groups=opened(other))
        fewer = {c: nonces[c] for c in (0, 1)}
        assert "not those which members committed to" in run.ask(client, beginning.BEGIN, groups=opened(fewer))


def test_commitments_of_another_run_are_refused(coordinator):
    """A replay over runs."""
    first = coordinator.run(1)
    commits, _ = first.commitments(), first.begin()
    second = coordinator.run(2)
    mixed = second.commitments() | {2: commits[2]}
    assert "without a valid signature of the pinned key for this run" in second.nonces(mixed, [0])[0]


def test_a_member_may_be_absent_only_from_noised_runs(tmp_path):
    noised = ["privacy.secagg=true", "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.scores=none"]
    words = [*noised, "privacy.secagg_bits=20", "strategy.weighting=uniform"]
    run = Coordinator(tmp_path, *words, members=4, absent="allowed").run(1)
    commits = run.commitments([0, 1, 2])
    assert "without bank_2, bank_3: at least 3 are needed" in run.nonces({c: commits[c] for c in (0, 1)})[0]
    nonces = run.nonces(commits)
    assert all(isinstance(nonce, bytes) for nonce in nonces.values())
    whole = run.commitments()
    assert "has begun with other commitments" in run.nonces(whole, [0])[0], "the list was fixed before it was opened"


def test_messages_of_a_wrong_form_are_refused(coordinator):
    run = coordinator.run(1)
    run.commitments()
    for group in (
        {beginning.CLIENTS: np.arange(3), beginning.COMMITMENTS: np.zeros((3, 31), np.uint8)},
        {beginning.CLIENTS: np.zeros(3, np.int64), beginning.COMMITMENTS: np.zeros((3, 32), np.uint8)},
        {beginning.CLIENTS: np.arange(3), beginning.COMMITMENTS: np.zeros((3, 32))},
    ):
        assert "of another form" in run.ask(0, beginning.OPEN, groups={beginning.START: group})
    assert "has no group of phase" in run.ask(0, beginning.OPEN)
    assert "has no array" in run.ask(0, beginning.OPEN, groups={beginning.START: {"x": np.zeros(1)}})
