"""What a coordinator that chooses, repeats and swaps messages gets of members who agreed on their runs."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.fleet.agreements import remembered
from fedgraph_flwr.node.node import node_of
from fedgraph_flwr.secure import beginning
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.wire.messages import DESCRIBE, MODEL
from tests.conftest import client_graph
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


def test_a_description_uses_up_no_number(coordinator):
    """Nor does whatever is refused before members commit to the run's seed; a commitment does."""
    for client in range(3):
        assert coordinator.run(12).ask(client, DESCRIBE) == {}
        assert "has not begun here" in coordinator.run(12).ask(client, "train", 1)
        assert remembered(coordinator.folder / f"state_{client}")[coordinator.digest]["last"] == 0
    assert coordinator.run(1).begin()
    later = coordinator.run(2)
    assert later.commitments([0])
    assert "run 1 of agreement.yaml is used up" in coordinator.run(1).ask(0, DESCRIBE)
    assert not isinstance(coordinator.run(1).ask(1, DESCRIBE), str)


def test_nodes_train_from_the_seed_that_follows_and_draw_by_secrets_of_their_own(coordinator):
    run = coordinator.run(1)
    assert "the agreed run has not begun here" in run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0])})
    seed = run.begin()
    cfgs = [node_of(node.context).cfg for node in run.nodes]
    assert {cfg.seed for cfg in cfgs} == {seed}
    seeds = {cfg.own_seed for cfg in cfgs}
    assert len(seeds | {seed, 0}) == 5, "each member draws for itself"
    assert not isinstance(run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0])}), str)
    planted = {name: array + 1 for name, array in model_of(run.nodes[1]).items()}
    assert "other parameters than its seed" in run.ask(1, "train", 1, {MODEL: planted})


def test_a_run_has_one_record_of_requests_whatever_runs_of_flower_it_takes(coordinator):
    """Without it, a server that starts the number again gets another update from parameters of its choice."""
    run = coordinator.run(1)
    run.begin()
    start = {MODEL: model_of(run.nodes[0])}
    assert not isinstance(run.ask(0, "train", 1, start), str)
    again = coordinator.run(1)
    again.begin()
    assert "reached round 1 here: resume it from its checkpoint" in again.ask(0, "train", 1, start)
    assert "reached round 1 here" in again.ask(0, "train", 2, {MODEL: model_of(run.nodes[0], 2.0)})
    assert "another run of Flower goes on" in run.ask(0, "train", 2, start)
    assert not isinstance(again.ask(1, "train", 1, start), str), "this one has not trained"
    folders = [path.name for path in (coordinator.folder / "state_0").glob("fedavg-*")]
    assert folders == [f"fedavg-{coordinator.digest[32:]}-1"]


def test_checkpoints_are_of_the_run_and_not_of_a_name_that_the_server_chooses(coordinator):
    run = coordinator.run(1)
    run.begin()
    start = {MODEL: model_of(run.nodes[0])}
    assert not isinstance(run.ask(0, "train", 1, start, checkpoint=True, run="one"), str)
    again = coordinator.run(1)
    again.begin()
    assert not isinstance(again.ask(0, "describe", 0, resume=1, run="another"), str)
    assert not isinstance(again.ask(0, "train", 2, start, run="another"), str)
    assert "after round 2: requests of earlier rounds" in again.ask(0, "train", 1, start, run="another")


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
    assert "has no group '" in run.ask(0, beginning.OPEN)
    assert "has no array" in run.ask(0, beginning.OPEN, groups={beginning.START: {"x": np.zeros(1)}})


# --- what a node knows of other versions, of its start, and of a folder from a back-up ---------------------------------


def test_every_sum_without_noise_is_over_all_members_and_the_same_tables(tmp_path):
    """Two lists, or two files of one bank, under one number show one bank's term, or what changed in it."""
    coordinator = Coordinator(tmp_path, "privacy.secagg=true", "strategy.weighting=uniform", members=4)
    run = coordinator.run(1)
    run.begin()
    published = {client: run.ask(client, "secagg_keys", 1) for client in range(4)}
    assert not [reply for reply in published.values() if isinstance(reply, str)]
    published = {client: reply["secagg"] for client, reply in published.items()}
    signed = {str(client): group.pop("signature") for client, group in published.items()}
    for chosen, accepted in (((0, 1, 2), False), ((0, 1, 2, 3), True)):
        group = {key: np.stack([published[c][key] for c in chosen]) for key in ("keys", "sizes")}
        down = {
            "secagg": {"clients": np.array(chosen), **group},
            "signatures": {str(c): signed[str(c)] for c in chosen},
        }
        reply = run.ask(int(accepted), "secagg_shares", 1, down)
        assert (not isinstance(reply, str)) == accepted, reply
        assert accepted or "to those of clients [0, 1, 2, 3], and the server requests a sum over [0, 1, 2]" in reply
    client_graph(0, 40, seed=9).save(tmp_path / "graphs" / "client_0000.safetensors")
    assert "run 1 began here with other tables" in coordinator.run(1).ask(0, "describe")
    assert not isinstance(coordinator.run(2).ask(0, "describe"), str)


@pytest.mark.parametrize("lost", ["agreements.json", "fedavg-*/client_0000/asked.json"])
@pytest.mark.parametrize("back", [True, False])
def test_records_older_than_the_audit_log_are_refused_until_the_owner_confirms(coordinator, lost, back, capsys):
    state = coordinator.folder / "state_0"
    first = coordinator.run(1)
    first.begin()
    start = {MODEL: model_of(first.nodes[0])}
    assert not isinstance(first.ask(0, "describe"), str)
    (path,) = state.glob(lost)
    before = path.read_bytes()
    assert not isinstance(first.ask(0, "train", 1, start), str)
    second = coordinator.run(2)
    if lost == "agreements.json":
        second.begin()
    if back:
        path.write_bytes(before)
    else:
        path.unlink()
    run = coordinator.run(2 if lost == "agreements.json" else 1)
    refused = run.ask(0, beginning.COMMIT)
    if lost != "agreements.json":
        refused = run.ask(0, "train", 1, start)
    assert f"{path.name} in <state> is older than the node's audit log" in refused
    assert "go on with it by fedgraph-flwr agree confirm" in refused
    file = str(coordinator.folder / "agreement.yaml")
    assert cli.main(["agree", "confirm", file, "--state", str(state), "--last", "2"]) == 0
    assert "goes on after run 2" in capsys.readouterr().out
    assert "run 2 is used up: this node's owner confirmed it" in coordinator.run(2).ask(0, beginning.COMMIT)
    assert not isinstance(coordinator.run(3).ask(0, beginning.COMMIT), str)
    assert "run 2 of agreement.yaml is used up" in coordinator.run(2).ask(0, beginning.COMMIT)


def test_a_withdrawal_outlives_a_back_up(coordinator):
    state, file = coordinator.folder / "state_0", str(coordinator.folder / "agreement.yaml")
    coordinator.run(1).begin()
    before = (state / "agreements.json").read_bytes()
    assert cli.main(["agree", "withdraw", file, "--state", str(state)]) == 0
    assert "withdrew" in coordinator.run(2).ask(0, beginning.COMMIT)
    (state / "agreements.json").write_bytes(before)
    assert "phase 'withdrawn'" in coordinator.run(2).ask(0, beginning.COMMIT)


def test_members_notice_a_whole_folder_from_a_back_up(coordinator, tmp_path):
    """Its audit log is as old; the others saw it in a later run."""
    coordinator.run(1).begin()
    shutil.copytree(tmp_path / "state_0", tmp_path / "old")
    coordinator.run(2).begin()
    shutil.rmtree(tmp_path / "state_0")
    shutil.copytree(tmp_path / "old", tmp_path / "state_0")
    run = coordinator.run(3)
    nonces = run.nonces(run.commitments())
    refused = run.ask(1, beginning.BEGIN, groups=opened(nonces))
    assert "the state folder of bank_0 is older than run 2, which this node began with it" in refused
    file = str(tmp_path / "agreement.yaml")
    assert cli.main(["agree", "confirm", file, "--state", str(tmp_path / "state_0"), "--last", "2"]) == 0
    coordinator.run(4).begin()


def test_a_run_starts_with_the_model_that_members_agreed_on(tmp_path):
    wanted = model_of(Coordinator(tmp_path / "other").run(1).nodes[0], 2.0)
    coordinator = Coordinator(tmp_path, start=digest(wanted).hex())
    assert "starts run 1 with a model" in coordinator.run(1).ask(0, "describe")
    run = coordinator.run(1, f"init={tmp_path}")
    run.begin()
    assert "members agreed on" in run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0])})
    assert not isinstance(run.ask(1, "train", 1, {MODEL: wanted}), str)


def test_a_run_that_continues_needs_a_model_once_one_ended_with_it(tmp_path):
    coordinator = Coordinator(tmp_path, start="continues")
    coordinator.run(1).begin()
    run = coordinator.run(2)
    run.begin()
    assert not isinstance(run.ask(0, "train", 1, {MODEL: model_of(run.nodes[0])}), str)
    (folder,) = (tmp_path / "state_0").glob(f"fedavg-{coordinator.digest[32:]}-2*/client_0000")
    (folder / "model_last.safetensors").touch()
    assert not isinstance(coordinator.run(2).ask(0, "describe"), str)
    assert "starts run 3 with a model (start: continues)" in coordinator.run(3).ask(0, "describe")


@pytest.mark.parametrize("words", [[], ["privacy.secagg=true", "strategy.weighting=uniform"]], ids=["plain", "secure"])
def test_a_resumed_run_answers_a_round_for_one_model(tmp_path, words):
    """Each resumption could bring another model to the same draws."""
    coordinator = Coordinator(tmp_path, *words)
    first = coordinator.run(1)
    first.begin()
    start = model_of(first.nodes[0])
    scored = first.ask(0, "evaluate", 1, {MODEL: start}, checkpoint=True)
    assert not isinstance(scored, str), scored
    assert not isinstance(first.ask(0, "describe", 1, checkpoint=True, run="one"), str)
    assert not isinstance(first.ask(0, "evaluate", 2, {MODEL: start}), str)
    for factor, accepted in ((2.0, False), (1.0, True)):
        again = coordinator.run(1)
        again.begin()
        assert not isinstance(again.ask(0, "describe", 0, resume=1, run="one"), str)
        reply = again.ask(0, "evaluate", 2, {MODEL: {name: factor * array for name, array in start.items()}})
        assert isinstance(reply, str) != accepted
        assert accepted or "of this agreed run again, over another model" in reply


def test_a_resumption_gets_no_second_update_of_a_round(coordinator):
    """Neither over another model, nor as another exchange, nor after a round before the node's oldest checkpoint."""
    run = coordinator.run(1)
    run.begin()
    start = model_of(run.nodes[0])
    models = [start]
    for server_round in (1, 2, 3):
        reply = run.ask(0, "train", server_round, {MODEL: models[-1]}, checkpoint=True, run="one")
        models.append(reply[MODEL])
    planted = {name: -2 * array for name, array in start.items()}

    def resumed(after, server_round=0):
        again = coordinator.run(1)
        again.begin()
        assert not isinstance(again.ask(0, "describe", server_round, resume=after, run="one"), str)
        return again

    for after, at, asked, more in ((2, 0, 3, {}), (2, 0, 3, {"exchange": 1}), (2, 0, 2, {}), (3, 0, 3, {})):
        reply = resumed(after, at).ask(0, "train", asked, {MODEL: planted}, **more)
        assert "of this agreed run again, over another model" in reply, (after, asked, more)
    assert "after round 2: requests of earlier rounds" in resumed(0, 3).ask(0, "train", 1, {MODEL: planted})
    again = resumed(2)
    repeated = again.ask(0, "train", 3, {MODEL: models[2]}, checkpoint=True, run="one")
    for name, array in models[3].items():
        assert (repeated[MODEL][name] == array).all(), "the same reply"
    assert not isinstance(again.ask(0, "train", 4, {MODEL: planted}), str), "the next round"


def test_a_resumption_skips_no_round(tmp_path):
    """A client without it has another state, such as variates: its update over the same model would be a second one."""
    coordinator = Coordinator(tmp_path, "strategy=scaffold", "train.optimizer=sgd", "strategy.weighting=uniform")
    run = coordinator.run(1)
    run.begin()
    model = model_of(run.nodes[0])
    zero = {name: np.zeros_like(array) for name, array in model.items()}

    def asked(run, server_round, variates, **more):
        heard = {"round": np.array([server_round - 1])}
        groups = {MODEL: model, "variates": variates, "heard": heard}
        return run.ask(0, "train", server_round, groups, run="one", **more)

    replies = [asked(run, 1, zero, checkpoint=True), *(asked(run, number, zero) for number in (2, 3))]
    assert not [reply for reply in replies if isinstance(reply, str)], replies
    again = coordinator.run(1)
    again.begin()
    assert not isinstance(again.ask(0, "describe", 0, resume=1, run="one"), str)
    assert "of this agreed run again, over another model, or skips a round" in asked(again, 3, zero)
    again = coordinator.run(1)
    again.begin()
    assert not isinstance(again.ask(0, "describe", 0, resume=1, run="one"), str)
    for number in (2, 3):
        for name, array in asked(again, number, zero)[MODEL].items():
            assert (array == replies[number - 1][MODEL][name]).all()


def test_an_owners_own_bound_counts_over_agreements(coordinator):
    """Its ledger keeps the owner's name; an agreement with another name does not start a second one."""
    run = coordinator.run(1)
    (coordinator.folder / "policy.yaml").write_text("min_nodes: 0\npurpose: fraud\nmax_epsilon: 3\n")
    assert node_of(run.nodes[0].context).policy().purpose == "fraud"
    (coordinator.folder / "policy.yaml").write_text("min_nodes: 0\npurpose: fraud\n")
    assert node_of(run.nodes[0].context).policy().purpose == "rings"
