"""Secure aggregation: the mean is the plain one, a transcript holds no term of it, clients may fall, and lies end the run."""

from typing import ClassVar

import numpy as np
import pytest

from fedgraph_flwr.clients import base
from fedgraph_flwr.clients.base import GraphClient, to_numpy
from fedgraph_flwr.clients.fedomd import FedOMDClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method, startup_notes
from fedgraph_flwr.methods import declared
from fedgraph_flwr.methods.uplink import ARRAYS, Mean, Sum
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.secure.secagg import Member, limit, unmasked
from fedgraph_flwr.strategies.fedavg import FedAvg
from fedgraph_flwr.wire.messages import MODEL, TRAIN, from_record
from fedgraph_flwr.wire.reply_schema import ArrayField
from tests.conftest import client_graph
from tests.methods.small_runs import METHODS, sampled
from tests.secure.rounds import SECURE, Round, accepted
from tests.support import assert_same_arrays, call_fresh, honest_reply, patch_replies, recorded_messages


def with_counts(cfg, params):
    """FedAvg's uplink and one number to add up."""
    return {TRAIN: {MODEL: Mean(ARRAYS, origin=ARRAYS), "counts": Sum({"nodes": ArrayField((), "float64")})}}


EXACT = ["dtype=float64", "model.dropout=0"]
FOUR = (12, 16, 20, 14)


# --- one sum, by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("among", "survivors", "helpers"),
    [
        (range(5), range(5), range(5)),
        (range(5), [0, 2, 3, 4], [0, 2, 3, 4]),  # one fell after its mask was in the sum
        ([0, 1, 3, 4], [0, 1, 3, 4], [0, 1, 3, 4]),  # one before
        (range(5), range(5), [0, 1, 2, 4]),  # one fell before it could reveal
    ],
)
def test_the_sum_is_exact_whoever_falls(among, survivors, helpers):
    made = Round().deal()
    answers = {i: made.mask(i, among=among) for i in survivors}
    total = made.sum(answers, made.shares(helpers, list(survivors)), among)
    for name in ("w", "b"):
        expected = sum(0.25 * made.values[i][MODEL][name] for i in survivors)
        np.testing.assert_allclose(total[MODEL][name], expected, rtol=0, atol=5 * 2.0**-41)


def test_without_a_survivors_seed_or_a_fallen_ones_key_the_sum_is_noise():
    """What Shamir shares below the threshold leave: the total of the shares, from which one mask is not taken."""
    made = Round().deal()
    answers = {i: made.mask(i) for i in range(5)}
    shares = made.shares(range(5), list(range(5)))
    few = dict(list(shares.items())[:2])
    with pytest.raises(RunFailed, match="do not give the secret that client 0 published"):
        unmasked(answers, few, list(range(5)), made.keys, 2, made.bits, made.round, made.agreed)
    total = sum(a[MODEL]["w"].astype(object) for a in answers.values())
    bare = np.array(total % 2**64, dtype=np.uint64).view(np.int64) * 2.0**-made.bits
    assert np.median(np.abs(bare)) > 1e5, "the self-masks still stand"


def test_masked_values_are_uniform_and_new_each_time():
    made, again = Round().deal(), Round().deal()
    for i in (0, 1):
        made.values[i] = again.values[i] = {MODEL: {"w": np.zeros(8000)}}
    y, other, next_run = made.mask(0)[MODEL]["w"], made.mask(1)[MODEL]["w"], again.mask(0)[MODEL]["w"]
    for array in (y, other, next_run):
        for shift in (60, 28, 0):
            counts = np.bincount(((array >> np.uint64(shift)) & np.uint64(15)).astype(int), minlength=16)
            chi = ((counts - 500) ** 2 / 500).sum()
            assert chi < 60, "15 degrees of freedom: chance 3e-7"
    assert not (y == next_run).any()
    assert not (y == other).any()


def test_a_wrong_share_ends_the_round():
    for survivors in (range(5), range(4)):  # a lie about a seed; about a fallen client's key
        made = Round().deal()
        answers = {i: made.mask(i) for i in survivors}
        shares = made.shares(survivors, list(survivors))
        shares[1][4 if 4 not in survivors else 2] ^= 1
        who = 4 if 4 not in survivors else 2
        with pytest.raises(
            RunFailed, match=f"the secret that client {who} published: one of them revealed a wrong share"
        ):
            made.sum(answers, shares)


def test_a_term_that_is_not_masked_as_told_ends_the_round():
    made = Round().deal()
    answers = {i: made.mask(i) for i in range(5)}
    answers[2][MODEL]["w"] += np.random.default_rng(0).integers(0, 2**63, size=(50, 4), dtype=np.uint64)
    with pytest.raises(RunFailed, match="above the limit 32768 for sums of"):
        made.sum(answers, made.shares(range(5), list(range(5))))


def test_a_client_answers_each_step_once_and_never_both_ways():
    made = Round().deal()
    ids, keys = np.arange(5), np.stack(list(made.keys.values()))
    first = made.members[0]
    with pytest.raises(RunFailed, match="client 0 accepts each step of a secure sum once"):
        first.deal(ids, keys, np.zeros((5, 2), np.int64), made.round)
    for client in range(5):
        made.mask(client)
    assert not {"mask", "self", "envelope"} & first.state.keys(), "its own secrets are gone"
    with pytest.raises(RunFailed, match="once and in order"):
        made.mask(0)
    with pytest.raises(RunFailed, match="once and in order"):
        first.unmask({}, made.round)
    with pytest.raises(RunFailed, match="of round 4"):
        first.agree(np.arange(5), made.round + 1)
    with pytest.raises(RunFailed, match=r"over clients \[0, 1, 2\].*expected at least 4 clients"):
        first.agree(np.arange(3), made.round)
    with pytest.raises(RunFailed, match="including itself"):
        first.agree(np.arange(1, 5), made.round)
    signed = made.signatures(range(5))
    with pytest.raises(RunFailed, match="once and in order"):
        first.agree(np.arange(4), made.round)
    few = {client: signed[client] for client in range(3)}
    for more in ({}, {3: signed[0]}, {7: signed[0]}, {3: {"consent": np.zeros(64, np.uint8)}}):
        with pytest.raises(RunFailed, match=r"a list that 3 of them signed, expected at least 4"):
            first.unmask(few | more, made.round)
    first.unmask(signed, made.round)
    with pytest.raises(RunFailed, match="once and in order"):
        first.unmask(signed, made.round)


def test_a_change_of_the_state_waits_for_the_signatures():
    """A list with a wrong signature was stored before it was refused, so the honest list came too late."""
    made, calls = Round(), []

    def refuse():
        calls.append(made.members[1].state.keys())
        raise RunFailed("a wrong signature")

    ids, keys, sizes = np.arange(5), np.stack(list(made.keys.values())), np.zeros((5, 2), np.int64)
    with pytest.raises(RunFailed, match="a wrong signature"):
        made.members[1].deal(ids, keys, sizes, made.round, verify=refuse)
    assert "clients" not in calls[0]
    made.members[1].deal(ids, keys, sizes, made.round)


def test_keys_that_the_server_swapped_for_the_clients_own_are_seen():
    made = Round()
    keys = np.stack(list(made.keys.values()))
    with pytest.raises(RunFailed, match="client 1 received a list of keys in which its own differ"):
        made.members[1].deal(np.arange(5), keys[[0, 0, 2, 3, 4]], np.zeros((5, 2), np.int64), made.round)
    with pytest.raises(RunFailed, match="join a secure sum with 1 others"):
        made.members[1].deal(np.arange(2), keys[:2], np.zeros((2, 2), np.int64), made.round)


def test_a_floor_holds_in_every_step():
    made = Round().deal()
    made.members[0].floor = 5
    with pytest.raises(
        RunFailed,
        match=r"client 0 was asked to mask a sum over clients \[0, 1, 2, 3\] of .*expected at least 5 clients",
    ):
        made.mask(0, among=range(4))
    for client in range(5):
        made.mask(client)
    with pytest.raises(RunFailed, match="expected at least 5 clients"):
        made.members[0].agree(np.arange(4), made.round)


def test_what_does_not_fit_the_fixed_point_is_refused():
    for value in (np.inf, np.nan, limit(40), -limit(40)):
        made = Round().deal()
        made.values[0][MODEL]["b"][1] = value
        with pytest.raises(
            RunFailed, match=r"client 0 has a value to add that is not below .* lower privacy\.secagg_bits=40"
        ):
            made.mask(0)


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sampled(METHODS))
def test_every_method_ends_as_without_or_is_refused(method, go):
    if not accepted(method):
        with pytest.raises(
            FedGraphError, match=rf"privacy\.secagg=true shows .*strategy={method} (needs|shares|has) ([^.]|\.\w)+; set"
        ):
            check_method(compose([f"strategy={method}", SECURE]))
        return
    overrides = ["rounds=2", "train.optimizer=sgd", *EXACT]  # Adam divides rounding by vanishing gradients
    plain, secure_run = go(method, *overrides), go(method, *overrides, SECURE)
    assert secure_run.summary["failures"] == {}
    masked = 2 if "moments_sum" in secure_run.summary["bytes_by_phase"] else 1
    assert secure_run.summary["exchanges_per_round"] == plain.summary["exchanges_per_round"] + 4 * masked
    for name, array in plain.arrays.items():
        scale = np.abs(array).max(initial=1e-3)
        within = 1e-8 if method == "fedfa" else 1e-9  # its variances are differences of squares
        np.testing.assert_allclose(secure_run.arrays[name], array, rtol=0, atol=within * scale, err_msg=name)


def test_messages_hold_no_plain_parameters(run, monkeypatch):
    trained = []
    fit = GraphClient.fit

    def spy(self, *args):
        answer = fit(self, *args)
        trained.append(answer[0])
        return answer

    monkeypatch.setattr(GraphClient, "fit", spy)
    with recorded_messages(monkeypatch) as messages:
        run("rounds=1", SECURE)
    up = [c for d, _, c in messages if d == "up" and MODEL in c]
    assert len(up) == 3
    for content in up:
        for array in from_record(content[MODEL]).values():
            assert array.dtype == np.uint64
    everything = b"".join(
        a.data for d, _, c in messages if d == "up" for r in c.array_records.values() for a in r.values()
    )
    for parameters in trained:
        for array in parameters:
            for value in array.ravel()[:5]:
                assert float(value) == 0 or value.tobytes() * 2 not in everything
            assert array.tobytes() not in everything


def answered(messages):
    """Groups of clients' answers: those in the clear, and those that are terms of sums; no group is both."""
    kinds = {
        (group, array.dtype == "uint64")
        for direction, _, content in messages
        for group, record in content.array_records.items()
        for array in record.values()
        if direction == "up" and group != "secagg"
    }
    return {group for group, masked in kinds if not masked}, {group for group, masked in kinds if masked}


def test_of_a_round_with_two_sums_no_term_is_seen_but_what_is_told(go, monkeypatch):
    """FedOMD: each layer's range travels as it is, or is not asked for; moments and model are terms of sums."""
    with pytest.raises(FedGraphError, match=r"a largest value is not a sum.*privacy\.reveal=\[range\]"):
        go("fedomd", "rounds=2", SECURE)
    for overrides, seen in ((["privacy.reveal=[range]"], {"range"}), (["strategy.cmd_range=unit"], set())):
        with monkeypatch.context() as patch, recorded_messages(patch) as messages:
            finished = go("fedomd", "rounds=2", SECURE, *overrides)
        assert finished.summary["failures"] == {}
        plain, masked = answered(messages)
        assert plain == seen
        assert masked == {"moments", MODEL}
        notes = startup_notes(finished.cfg)
        assert sum("privacy.reveal shows the server each client's range" in text for text in notes) == len(seen)


def test_keys_of_a_rounds_two_sums_are_told_apart(go, monkeypatch):
    """What a signature is of names the sum, so that a server cannot bring the first one's keys again."""
    seen = []
    publish = Member.publish

    def spy(self, server_round, exchange=0, *more):
        seen.append((self.client, server_round, exchange))
        return publish(self, server_round, exchange, *more)

    monkeypatch.setattr(Member, "publish", spy)
    go("fedomd", "rounds=2", SECURE, "strategy.cmd_range=unit")
    assert sorted(seen) == [(client, r, k) for client in range(3) for r in (1, 2) for k in (0, 1)]


def test_coefficients_that_are_handed_on_travel_beside_the_sum_and_the_user_is_told(go, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = go("fedhgn", "rounds=2", SECURE, "privacy.reveal=[coefficients]")
    assert answered(messages) == ({"coefficients"}, {MODEL})
    assert any(
        text.endswith("privacy.reveal shows the server each client's coefficients")
        for text in startup_notes(finished.cfg)
    )
    (note,) = startup_notes(compose(["strategy=fedavg", SECURE]))
    assert note.startswith("privacy.secagg=true without privacy.dp=distributed")


@pytest.mark.parametrize(
    ("name", "exchange"), [("moments_sum", "one_phase"), ("means", "two_phase"), ("moments_about", "two_phase")]
)
def test_a_client_gives_no_statistics_that_are_no_term_of_a_sum(name, exchange):
    overrides = ["strategy=fedomd", "num_clients=3", "model.hidden=8", SECURE, f"strategy.exchange={exchange}"]
    client = FedOMDClient(compose(overrides), client_graph(0))
    model = {name: to_numpy(tensor) for name, tensor in client.shared.items()}
    groups = {MODEL: model, "point": {"mean": np.zeros((3, 8), np.float32)}}
    with pytest.raises(RunFailed, match="client 0: the server requested an unmasked reply in round 0, which"):
        honest_reply(client, name, groups, {})


def falling(monkeypatch, *falls):
    """Clients that give an error in these phases, as (round, phase, client)."""
    answer = honest_reply

    def spy(self, name, groups, config):
        reply = answer(self, name, groups, config)
        if (self.server_round, name, self.graph.client) in falls:
            raise RunFailed("the power is out")
        return reply

    patch_replies(monkeypatch, spy)


def test_clients_may_fall_at_every_step(run, monkeypatch):
    """Those that never gave an answer to ``train`` are left out as they are without secure aggregation."""
    overrides = ["rounds=5", "strategy.min_clients=2", "train.optimizer=sgd", *EXACT]
    lost = [(1, "train", 3), (2, "train", 0), (3, "train", 1)]
    with monkeypatch.context() as patch:
        falling(patch, *lost)
        plain = run(*overrides, sizes=FOUR)
    falling(monkeypatch, (1, "secagg_keys", 3), (2, "secagg_shares", 0), (3, "train", 1), (4, "unmask", 2))
    secure_run = run(*overrides, SECURE, sizes=FOUR)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(secure_run.arrays[name], array, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("phase", ["secagg_keys", "secagg_shares", "train", "secagg_agree", "unmask"])
def test_below_the_threshold_the_run_ends_with_a_sentence(phase, run, monkeypatch):
    falling(monkeypatch, (2, phase, 0), (2, phase, 1))
    with pytest.raises(
        RunFailed,
        match=rf"round 2, {phase}: 2 of 4 .* expected at least 3 .*privacy.secagg_threshold=0.66.*power is out",
    ):
        run(SECURE, sizes=FOUR)


def test_a_client_that_lies_about_a_share_ends_the_run(run, monkeypatch):
    unmask = Member.unmask

    def lie(self, *args):
        reply = unmask(self, *args)
        return {"shares": reply["shares"] ^ (self.client == 1)}

    monkeypatch.setattr(Member, "unmask", lie)
    with pytest.raises(
        RunFailed, match=r"the shares of clients \[0, 1, 2\] do not give the secret that client 0 published"
    ):
        run(SECURE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedomd"])
def test_rebuilt_clients_and_resumed_runs_end_alike(method, run, monkeypatch):
    overrides = [f"strategy={method}", SECURE, "rounds=4", "strategy.fraction=0.75"]
    overrides += ["strategy.cmd_range=unit"] if method == "fedomd" else []
    whole = run(*overrides, sizes=FOUR)
    half = run(*overrides, "rounds=2", "checkpoint_every=1", sizes=FOUR)
    for file in half.out.rglob("*.safetensors"):
        assert not [name for name in read_tensors(file)[0] if "secagg" in name], "keys are filed in no checkpoint"
    node_clients.forget(0)
    resumed = run(*overrides, f"resume={half.out}", f"out={half.out}", sizes=FOUR)
    assert_same_arrays(resumed.arrays, whole.arrays)
    monkeypatch.setattr(InlineGrid, "_call", call_fresh)
    assert_same_arrays(run(*overrides, sizes=FOUR).arrays, whole.arrays)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["privacy.secagg_threshold=0.5"], r"privacy.secagg_threshold must be in \[0.66\d+, 1\], got 0.5"),
        (["privacy.secagg_bits=60"], r"privacy.secagg_bits must be in \[8, 48\], got 60"),
        (["privacy.dp=client_fixed"], "privacy.secagg=true hides the updates that privacy.dp=client_fixed"),
        (
            ["strategy=fedomd", "strategy.exchange=two_phase", "strategy.cmd_range=unit"],
            "set strategy.exchange=one_phase, not two_phase",
        ),
        (["strategy=fedhgn"], "each client aligns its coefficients .* accept .* privacy.reveal=.coefficients."),
        (
            [
                "strategy=fedhgn",
                "strategy.shared=[coefficients]",
                "strategy.private_schema=false",
                "privacy.reveal=[coefficients,rows]",
            ],
            "needs each client's values of 'model' .* .coefficients are averaged over the clients that hold a type",
        ),
        (["strategy=fedlit", "privacy.reveal=[links]"], "needs late weights of 'model'"),
        (["privacy.reveal=[model]"], "privacy.reveal: group of strategy=fedavg 'model' is unknown"),
        (["num_clients=2"], "requires at least 3 clients per round, but this run has 2"),
        (["num_clients=10", "strategy.fraction=0.2"], "but this run has 2"),
    ],
)
def test_what_cannot_be_summed_is_refused_before_clients_start(overrides, sentence):
    with pytest.raises(FedGraphError, match=sentence):
        check_method(compose([SECURE, *overrides]))


def test_a_reply_that_a_client_does_not_declare_never_leaves(run, monkeypatch):
    """Whatever the server asks, or its schema accepts."""
    plain = compose(["num_clients=3"])
    monkeypatch.setattr(base, "uplink_of", lambda kind, cfg: declared.uplink_of(kind, plain))
    with pytest.raises(RunFailed, match="reply to 'train' holds group 'variates', which its uplink does not declare"):
        run("strategy=scaffold")


class Both(FedAvg):
    """Averages models, and sums a statistic whose client weights are others."""

    uplink = staticmethod(with_counts)
    found: ClassVar[list[float]] = []

    def step(self, arrays, reduced):
        self.found.append(float(reduced["counts"]["nodes"]))
        return super().step(arrays, reduced)


class CountingClient(GraphClient):
    uplink = staticmethod(with_counts)

    def send(self):
        return {"counts": {"nodes": np.array(float(self.num_train))}}, {}


@pytest.mark.parametrize("protection", [[], [SECURE]])
@pytest.mark.parametrize("weighting", ["train", "uniform"])
def test_a_sum_beside_a_weighted_mean_is_the_sum(run, protection, weighting):
    """Each group has its own ratio: with one for both, a sum of 33 came out as 33.67."""
    Both.found.clear()
    names = ["strategy=tests.secure.test_secagg:Both", "strategy.client=tests.secure.test_secagg:CountingClient"]
    run(*names, f"strategy.weighting={weighting}", "rounds=2", *protection)
    nodes = sum(int(client_graph(i, size).train_mask.sum()) for i, size in enumerate((12, 16, 20)))
    assert Both.found == pytest.approx([nodes, nodes], abs=1e-9)
