"""Differential privacy by config: its limits, the bound on an update, the noise, and the accountant's ε."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from flwr.app import Error, Message

from benchmarks.dp_audit import epsilon_at
from fedgraph_flwr.cli.run import print_summary
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import sent_scores
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.secure import lattice, noise
from fedgraph_flwr.secure.accounting import RELATION, skellam_epsilon
from fedgraph_flwr.secure.clipping import clipped_model
from fedgraph_flwr.store.folder import CHECKPOINT
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.connection import Connection
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.privacy import Privacy, Terms
from tests.conftest import client_graph
from tests.methods.regression import WORDS, vector
from tests.support import recorded_messages, write_report

UNIFORM = "strategy.weighting=uniform"
UNEQUAL = "train.local_steps_by_client=[1,3,2]"
HUGE = ["privacy.dp=client_fixed", "privacy.clipping_norm=1e6"]
NOISY = [UNIFORM, "privacy.dp=server_fixed", "privacy.noise_multiplier=4"]
LIAR = ["adversary.kind=scaling", "adversary.clients=[1]"]


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedavgm"])
def test_no_noise_and_a_huge_norm_give_the_plain_method(run, strategy):
    plain = run(f"strategy={strategy}", UNIFORM)
    private_run = run(f"strategy={strategy}", UNIFORM, *HUGE)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(private_run.arrays[name], array, atol=1e-6, err_msg=name)
        assert private_run.arrays[name].dtype == np.float32
    assert private_run.summary["exchanges_per_round"] == 1
    assert private_run.summary["privacy"] == {"epsilon": None, "delta": 1e-5, "releases": 3, "relation": RELATION}


@pytest.mark.parametrize("fraction", [1, 0.67])
@pytest.mark.parametrize("strategy", ["scaffold", "feddyn", "feddc", "fednova", "fedadam", "fedyogi", "fedadagrad"])
def test_no_noise_and_a_huge_norm_change_rounding_only(run, strategy, fraction):
    overrides = [*WORDS, f"strategy={strategy}", f"strategy.fraction={fraction}", UNEQUAL]
    plain, private_run = run(*overrides), run(*overrides, *HUGE)
    assert [r["cohort"] for r in private_run.rounds] == [r["cohort"] for r in plain.rounds]
    np.testing.assert_allclose(vector(private_run.arrays), vector(plain.arrays), rtol=0, atol=1e-9)


@pytest.mark.parametrize("strategy", ["scaffold", "feddyn", "feddc", "fednova"])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_lost_reply_counts_as_that_of_a_client_that_did_not_train(run, monkeypatch, strategy, dropped):
    """Client 1's reply of round 2 is lost under privacy, or it is dropped before; without privacy it replies, after no steps."""
    overrides, call, batches = [*WORDS, f"strategy={strategy}", UNEQUAL], InlineGrid._call, GraphClient.batches
    configure = GraphStrategy.configure_train

    def drops(self, server_round, *args):
        self.drop([1] if server_round == 2 else [])
        return configure(self, server_round, *args)

    def lossy(self, message):
        config, node = message.content["config"], self.contexts[message.metadata.dst_node_id]
        reply = call(self, message)
        lost = (config["phase"], config["round"], node.node_config["partition-id"]) == ("train", 2, 1)
        return Message(Error(1, "lost"), reply_to=message) if lost else reply

    with monkeypatch.context() as patch:
        patch.setattr(*((GraphStrategy, "configure_train", drops) if dropped else (InlineGrid, "_call", lossy)))
        private_run = run(*overrides, *HUGE)
    assert len(private_run.summary["failures"]) == (not dropped)

    def some(self):
        return iter(()) if (self.graph.client, self.server_round) == (1, 2) else batches(self)

    monkeypatch.setattr(GraphClient, "batches", some)
    expected = run(*overrides)
    assert expected.summary["failures"] == {}
    np.testing.assert_allclose(vector(private_run.arrays), vector(expected.arrays), rtol=0, atol=1e-12)


def _step(messages, finished):
    """θ^{t+1} − θ^t of a one-round run and each client's reply minus θ^t, all flat."""
    from fedgraph_flwr.wire.messages import from_record

    def flat(content):
        return _flat(from_record(content["model"]))

    sent = next(flat(c) for d, _, c in messages if d == "down" and c["config"]["phase"] == "train")
    replies = [flat(c) - sent for d, _, c in messages if d == "up" and "model" in c]
    return _flat(finished.arrays) - sent, replies


def booked(delta, noise_multiplier, releases):
    """ε that a run with central noise reports."""
    return skellam_epsilon(delta, noise_multiplier, releases, lattice.FINENESS / noise_multiplier)


def _flat(arrays):
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)]).astype(np.float64)


@pytest.fixture
def no_noise(monkeypatch):
    """Noise of which nothing is left, so that what it is added to can be seen."""
    monkeypatch.setattr(
        noise, "source", type("Silent", (), {"poisson": lambda self, lam, size: np.zeros(size, np.int64)})
    )


@pytest.mark.parametrize("dp", ["server_fixed", "client_fixed"])
def test_updates_are_scaled_to_the_norm(run, monkeypatch, no_noise, dp):
    with recorded_messages(monkeypatch) as messages:
        plain = run(UNIFORM, "rounds=1")
    _, updates = _step(messages, plain)
    norm = float(np.sort([np.linalg.norm(u) for u in updates])[1])  # binds one client, touches one, spares one
    expected = np.mean([u * min(1, norm / np.linalg.norm(u)) for u in updates], axis=0)
    assert np.linalg.norm(expected - np.mean(updates, axis=0)) > 1e-4
    with recorded_messages(monkeypatch) as messages:
        overrides = [f"privacy.dp={dp}", f"privacy.clipping_norm={norm}", "privacy.noise_multiplier=1"]
        clipped = run(UNIFORM, "rounds=1", *overrides)
    step, replies = _step(messages, clipped)
    np.testing.assert_allclose(step, expected, atol=1e-6)
    longest = max(np.linalg.norm(u) for u in replies)
    assert (longest <= norm * (1 + 1e-9)) == (dp == "client_fixed")  # exactly, though float32 rounds


@pytest.mark.parametrize("gone", [[], [1], [0, 2]])
def test_the_divisor_does_not_depend_on_who_answered(run, monkeypatch, no_noise, gone):
    """One client more or less moves the model by C / n at most, also where it would change the number of answers."""
    train = GraphClient.train

    def fails(self):
        if self.graph.client in gone:
            raise ValueError("gone")
        return train(self)

    monkeypatch.setattr(GraphClient, "train", fails)
    with recorded_messages(monkeypatch) as messages:
        done = run(*NOISY, "rounds=1", "privacy.clipping_norm=0.01")
    step, updates = _step(messages, done)
    assert len(updates) == 3 - len(gone)
    np.testing.assert_allclose(step, sum(u * 0.01 / np.linalg.norm(u) for u in updates) / 3, atol=1e-7)


def test_a_cohort_planned_is_the_divisor(run, no_noise, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        done = run(*NOISY, "rounds=1", "privacy.clipping_norm=0.01", "strategy.fraction=0.6")
    step, updates = _step(messages, done)
    assert len(updates) == 2
    np.testing.assert_allclose(step, sum(u * 0.01 / np.linalg.norm(u) for u in updates) / 2, atol=1e-7)


@pytest.mark.parametrize("bound", [1e-7, 1e-3, 0.3, 50.0])
def test_a_clipped_model_is_no_longer_than_the_norm_after_rounding(bound):
    """Weights a thousand times as large as the bound: rounding to float32 alone would lengthen the update."""
    rng = np.random.default_rng(0)
    origin = {"a": rng.normal(size=(30, 7)).astype(np.float32) * 100}
    model = {"a": origin["a"] + rng.normal(size=(30, 7)).astype(np.float32)}
    sent = clipped_model(model, origin, bound)
    assert sent["a"].dtype == np.float32
    norm = np.linalg.norm(sent["a"].astype(np.float64) - origin["a"])
    assert norm <= bound
    if bound in (0.3, 50.0):
        full = np.linalg.norm(model["a"].astype(np.float64) - origin["a"])
        assert norm == pytest.approx(min(bound, full), rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_not_clipped(value):
    """No factor makes it shorter."""
    with pytest.raises(FedGraphError, match="not finite"):
        clipped_model({"a": np.float32([value])}, {"a": np.float32([0])}, 1.0)


def test_who_sends_more_than_the_norm_is_refused_by_name(run):
    overrides = [UNIFORM, "rounds=1", "privacy.dp=client_fixed", "privacy.clipping_norm=0.01"]
    liar = run(*overrides, "adversary.kind=scaling", "adversary.strength=1.1", "adversary.clients=[1]")
    (who, reason), *others = liar.summary["failures"].items()
    assert (who, others) == ("1 (train)", [])
    assert "client 1 replied with an update of L2 norm 0.011" in reason
    server = [w.replace("client_fixed", "server_fixed") for w in overrides] + ["privacy.noise_multiplier=1"]
    assert run(*server, *LIAR).summary["failures"] == {}


def test_a_client_without_training_nodes_adds_nothing(run, monkeypatch, no_noise, tmp_path):
    for client in range(3):
        graph = client_graph(client)
        graph.train_mask &= client != 1
        graph.save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    with recorded_messages(monkeypatch) as messages:
        done = run(*NOISY, "rounds=1", "privacy.clipping_norm=0.01", f"graph={tmp_path / 'graphs'}")
    assert done.summary["failures"] == {}
    step, updates = _step(messages, done)
    assert np.linalg.norm(updates[1]) == 0
    np.testing.assert_allclose(step, sum(updates[i] * 0.01 / np.linalg.norm(updates[i]) for i in (0, 2)) / 3, atol=1e-7)


def test_the_noise_is_as_wide_as_said_and_new_in_every_run(run):
    overrides = [UNIFORM, "rounds=1", "privacy.dp=client_fixed", "model.hidden=256"]
    still = run(*overrides)
    noisy = [run(*overrides, "privacy.noise_multiplier=2") for _ in range(2)]
    noise = [_flat(n.arrays) - _flat(still.arrays) for n in noisy]
    size = noise[0].size
    for one in noise:  # z C / n, to five standard errors
        assert abs(one.std() / (2 * 1.0 / 3) - 1) < 5 / math.sqrt(2 * size)
    assert abs(np.corrcoef(*noise)[0, 1]) < 5 / math.sqrt(size)


@pytest.mark.parametrize(("noise", "releases"), [(0.5, 1), (1.0, 30), (4.0, 5), (20.0, 200)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_epsilon_is_that_of_an_independent_accountant(noise, releases, delta):
    """Google's: loss distributions on a grid come out a little above the exact value, Rényi's bound well above."""
    gaussians = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), releases)
    ours = epsilon_at(delta, noise, releases)
    grid = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3).compose(gaussians)
    assert ours == pytest.approx(grid.get_epsilon(delta), rel=5e-3)
    bound = rdp_privacy_accountant.RdpAccountant().compose(gaussians).get_epsilon(delta)
    assert ours < bound < 1.3 * ours + 0.2
    assert ours < booked(delta, noise, releases) < 1.15 * bound, "of integer noise, by whole orders"


def test_epsilon_grows_with_every_release(run):
    overrides = [UNIFORM, "privacy.dp=client_fixed", "privacy.noise_multiplier=4", "privacy.delta=1e-4", "rounds=4"]
    finished = run(*overrides)
    spent = [r["privacy"]["epsilon"] for r in finished.rounds]
    assert spent == [booked(1e-4, 4, t) for t in (1, 2, 3, 4)] == sorted(spent)
    assert finished.summary["privacy"] == {"epsilon": spent[-1], "delta": 1e-4, "releases": 4, "relation": RELATION}


def test_a_run_ends_before_the_release_that_exceeds_its_budget(run):
    budget = booked(1e-5, 4, 3) * 1.01
    overrides = [*NOISY, f"privacy.epsilon_budget={budget}", "checkpoint_every=2"]
    finished = run(*overrides, "rounds=9")
    assert [r["round"] for r in finished.rounds] == [1, 2, 3]
    assert finished.summary["privacy"]["epsilon"] <= budget == finished.summary["privacy"]["budget"]
    assert "metrics" in finished.rounds[-1]
    again = run(*overrides, "rounds=9", f"resume={finished.out}", f"out={finished.out}")
    assert again.summary["privacy"]["releases"] == 3  # round 2's checkpoint booked what the budget left, and no more
    assert len(again.rounds) == 2


def test_no_score_and_no_loss_travels_where_none_is_wanted(run, monkeypatch, capsys):
    with recorded_messages(monkeypatch) as messages:
        done = run(*NOISY, "privacy.scores=none")
    numbers = [dict(c["metrics"]) for d, _, c in messages if d == "up" and "model" in c]
    assert len(numbers) == 9
    assert all(sorted(entry) == ["client"] for entry in numbers)
    assert {c["config"]["phase"] for d, _, c in messages if d == "down"} == {"describe", "train"}
    assert done.summary["privacy"]["releases"] == 3
    assert np.isnan(done.summary["test_accuracy"])
    print_summary(done.summary, done.cfg)
    shown = " ".join(capsys.readouterr().out.split())
    assert "no scores: privacy.scores=none | rounds 3" in shown
    assert "nan" not in shown
    assert "for one client's contribution replaced by zero" in shown
    assert "not covered" not in shown


@pytest.mark.slow
def test_noised_scores_are_means_with_the_models_noise_and_count_as_releases(run, capsys):
    """2 scores of 3 clients: noise of deviation z √2 / 3 on each mean, one release for each of 30 rounds beside its model."""
    overrides = [
        UNIFORM,
        "privacy.dp=client_fixed",
        "privacy.noise_multiplier=0.9",
        "privacy.clipping_norm=1e-6",
        "rounds=30",
    ]
    still, done = (
        run(*overrides),
        run(*overrides, "privacy.scores=noised"),
    )  # updates so short that the model stays as it was
    assert done.summary["privacy"]["releases"] == 60
    assert done.rounds[9]["privacy"]["releases"] == 10 + 10, "its own scores among them"
    names = sorted(done.rounds[0]["metrics"])
    assert names == ["test_accuracy", "val_accuracy"]
    assert all(r["clients"] == {} and r["train"] == {} for r in done.rounds)
    rounds = zip(done.rounds, still.rounds, strict=True)
    errors = np.array([[noisy["metrics"][n] - true["metrics"][n] for n in names] for noisy, true in rounds])
    assert errors.std() == pytest.approx(0.9 * math.sqrt(2) / 3, rel=5 / math.sqrt(2 * errors.size))
    assert abs(errors.mean()) < 5 * errors.std() / math.sqrt(errors.size)
    print_summary(done.summary, done.cfg)
    shown = " ".join(capsys.readouterr().out.split())
    assert "after 60 releases of the model and of scores" in shown
    assert "for one client's contribution replaced by zero" in shown
    assert "not covered" not in shown


@pytest.mark.parametrize("side", ["client_fixed", "server_fixed"])
def test_clients_send_only_the_terms_of_noised_scores(run, monkeypatch, side):
    """Exact losses, counts and other metrics of both splits left the clients beside the metric that is released."""
    overrides = [UNIFORM, f"privacy.dp={side}", "privacy.noise_multiplier=1", "privacy.scores=noised"]
    with recorded_messages(monkeypatch) as seen:
        done = run(*overrides, "rounds=2", "evaluation.metric=macro_f1")
    replies = [content["metrics"] for way, _, content in seen if way == "up"]
    names = {"val-macro_f1", "test-macro_f1"}
    scored = [numbers for numbers in replies if names & {*numbers}]
    assert len(scored) == 3 * 2, "each client in each round"
    assert all({*numbers} == {"client", *names} for numbers in scored)
    assert all(0 <= value <= 1 for numbers in scored for name in names for value in numbers[name])
    assert not [
        name for numbers in replies for name in numbers if "loss" in name or "count" in name or "accuracy" in name
    ]
    assert sorted(done.rounds[0]["metrics"]) == ["test_macro_f1", "val_macro_f1"]


def test_a_client_without_scored_nodes_adds_nothing_to_noised_scores():
    cfg = compose([*NOISY, "privacy.scores=noised", "num_clients=3"])
    client = GraphClient(cfg, client_graph(0))
    scores = {"val-accuracy": [math.nan], "test-accuracy": [1.5], "val-loss": [0.3], "val-count": [0.0]}
    assert sent_scores(client, scores) == {"val-accuracy": [0.0], "test-accuracy": [1.0]}


def test_scores_are_clipped_before_they_are_noised(no_noise):
    """Even values that no built-in metric has move a mean by 1 / K at most."""
    cfg = compose([*NOISY, "privacy.scores=noised", "num_clients=4"])
    scores = {"val-accuracy": [491.8, 0.5, -3.0, math.nan], "test-accuracy": [math.inf, -math.inf, 0.25, 0.75]}
    assert Privacy(cfg).release_scores(scores) == {"val_accuracy": 1.5 / 4, "test_accuracy": 2.0 / 4}


def test_a_budget_covers_noised_scores_too(run):
    """Five releases: two rounds with their scores, which a third would make six."""
    budget = booked(1e-5, 4, 5) * 1.001
    done = run(*NOISY, "privacy.scores=noised", f"privacy.epsilon_budget={budget}", "rounds=9", "checkpoint_every=2")
    assert [r["round"] for r in done.rounds] == [1, 2]
    assert all("metrics" in r for r in done.rounds)
    assert done.summary["privacy"]["releases"] == 4


def test_the_terminal_and_the_report_tell_epsilon_and_what_it_does_not_cover(run, capsys):
    done = run(*NOISY)
    print_summary(done.summary, done.cfg)
    shown = " ".join(capsys.readouterr().out.split())
    page = write_report([done.out], done.out / "report.html").read_text()
    for text in (shown, page):
        assert f"ε ≤ {booked(1e-5, 4, 3):.3g} at δ = 1e-05 after 3 releases" in text
        assert "not covered: scores, training losses and numbers of scored nodes" in text


def test_no_resumption_under_counts_what_was_released(run, monkeypatch, tmp_path):
    """Two attempts die before their next checkpoint, one of them with another interval; the third ends."""
    released = 0
    aggregate = Privacy.release

    def counted(self, *args):
        nonlocal released
        released += 1
        return aggregate(self, *args)

    monkeypatch.setattr(Privacy, "release", counted)

    def attempt(dies_after, *overrides):
        nonlocal released
        bound = released + dies_after if dies_after else math.inf

        def dies(self, *args):
            answer = counted(self, *args)
            if released >= bound:
                raise KeyboardInterrupt
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(Privacy, "release", dies)
            return run(*NOISY, "rounds=8", f"out={tmp_path / 'run'}", *overrides)

    again = f"resume={tmp_path / 'run'}"
    with pytest.raises(KeyboardInterrupt):
        attempt(4, "checkpoint_every=3")  # after round 4: the checkpoint is that of round 3
    with pytest.raises(KeyboardInterrupt):
        attempt(4, "checkpoint_every=20", again)  # after round 7, with no checkpoint before the end
    finished = attempt(0, "checkpoint_every=0", again)
    releases = finished.summary["privacy"]["releases"]
    assert released == 4 + 4 + 5
    assert releases >= released
    assert releases == 3 + 3 + 5 + 5  # round 3, what could follow it in the first and second attempt, and the third's
    assert [r["privacy"]["releases"] for r in finished.rounds][2:] == [3, 12, 13, 14, 15, 16]


def test_a_resumed_run_that_dies_again_keeps_who_took_part(run, monkeypatch, tmp_path):
    """Its first checkpoint, written before any client restored its state, named no client."""
    words = [*NOISY, f"out={tmp_path / 'run'}", "checkpoint_every=2", "strategy.fraction=0.67", "evaluation.clients=1"]

    def involved():
        tensors, _ = read_tensors(tmp_path / "run" / CHECKPOINT)
        return next(tensor.tolist() for name, tensor in tensors.items() if name.endswith("involved"))

    run(*words, "rounds=2")
    part = involved()
    assert part

    def dies(self, *args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Live, "enough_replies", dies)
        with pytest.raises(KeyboardInterrupt):
            run(*words, "rounds=4", f"resume={tmp_path / 'run'}")
    assert involved() == part


def test_a_run_that_ended_and_is_made_longer_books_each_round_once(run):
    whole = run(*NOISY, "rounds=4", "checkpoint_every=2")
    longer = run(*NOISY, "rounds=6", "checkpoint_every=2", f"resume={whole.out}", f"out={whole.out}")
    assert longer.summary["privacy"]["releases"] == 6


@pytest.mark.parametrize("before", [[UNIFORM], [*NOISY[:2], "privacy.noise_multiplier=1"]])
def test_a_run_is_not_resumed_with_other_noise(run, before):
    whole = run(*before, "rounds=2", "checkpoint_every=2")
    with pytest.raises(FedGraphError, match=r"privacy\.noise_multiplier=4\.0 \(it has"):
        run(*NOISY, "rounds=4", f"resume={whole.out}", f"out={whole.out}")


def test_a_run_is_not_resumed_where_its_releases_are_not_booked(run):
    whole = run(*NOISY, "rounds=2", "checkpoint_every=2")
    with pytest.raises(FedGraphError, match="in its own folder"):
        run(*NOISY, "rounds=4", f"resume={whole.out}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["strategy=fedomd"],
            "fedomd needs each client's values of 'range' in phase 'moments_sum' .a largest",
        ),
        (["strategy=fedtgp"], "fedtgp needs each client's values of 'prototypes'"),
        (["strategy=local"], "local shares nothing"),
        (["strategy=central"], "central has one client"),
        (["strategy=fedavg"], "strategy.weighting=uniform"),
        (
            [UNIFORM, "train.loss=weighted", "train.class_weights=federated"],
            "uploads label shares, which privacy.dp=server_fixed does not cover: set privacy.dp=none",
        ),
        (
            ["strategy=fedproto", "strategy.weighting=nodes"],
            "strategy.weighting=nodes uploads each client's number of nodes",
        ),
        ([UNIFORM, "evaluation.average=nodes"], "evaluation.average=nodes uploads numbers of nodes"),
        ([UNIFORM, "privacy.delta=0"], "privacy.delta must be in"),
        ([UNIFORM, "privacy.delta=0.4"], "publishing all data of one client: expected at most 0.33"),
        ([UNIFORM, "privacy.epsilon_budget=0.1"], "does not allow one round, whose ε is 4"),
        ([UNIFORM, "privacy.scores=some"], "privacy.scores 'some' is unknown"),
        ([UNIFORM, "privacy.scores=noised", "evaluation.trained=true"], "evaluation.trained=true needs more"),
        (
            [UNIFORM, "privacy.scores=noised", "evaluation.average=test_nodes"],
            "evaluation.average=test_nodes needs more",
        ),
        (["strategy=fedavg_ft", UNIFORM, "privacy.scores=noised"], "strategy.personal=true needs more"),
        ([UNIFORM, "privacy.scores=noised", "evaluation.confusion=true"], "evaluation.confusion=true needs more"),
        (
            [UNIFORM, "privacy.scores=noised", "evaluation.metric=own_methods:kappa"],
            r"not guaranteed for evaluation.metric=own_methods:kappa: set",
        ),
        ([UNIFORM, "privacy.scores=none", "evaluation.patience=3"], "evaluation.patience=3 needs scores"),
        ([UNIFORM, "privacy.scores=none", "evaluation.confusion=true"], "evaluation.confusion=true needs scores"),
        ([UNIFORM, "privacy.clipping_norm=0"], "privacy.clipping_norm must be > 0"),
    ],
)
def test_what_cannot_be_covered_is_refused(run, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        run(*overrides, "privacy.dp=server_fixed", "privacy.noise_multiplier=1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["privacy.noise_multiplier=1"], "has no effect with privacy.dp=none"),
        (["privacy.dp=server_fixed"], "protects no more than strategy.aggregator=norm_bound"),
        (["privacy.dp=server_fixed", "privacy.noise_multiplier=-0.0"], "with privacy.noise_multiplier=0 protects"),
        (["privacy.dp=client_fixed", "privacy.scores=noised"], "privacy.scores=noised adds no noise with"),
        (["privacy.dp=client_fixed", "privacy.epsilon_budget=1"], "has no effect with privacy.noise_multiplier=0"),
    ],
)
def test_settings_that_do_nothing_are_refused(run, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        run(UNIFORM, *overrides)


def test_the_noise_of_each_of_several_groups_is_as_wide_as_said(monkeypatch):
    """Unit noise injected: z C_g √G over the divisor, exactly."""
    variances = []

    def one_deviation(variance, count, generator):
        variances.append(variance)
        return np.full(count, round(math.sqrt(variance)))

    monkeypatch.setattr(lattice, "skellam", one_deviation)
    cfg = compose([*NOISY, "num_clients=3", "privacy.clipping_norm=0.5", "privacy.clipping_norms={variates: 0.1}"])
    privacy, zero = Privacy(cfg), {"w": np.zeros(4)}
    groups = ("model", "variates", "counts")
    sums = privacy.release({group: Terms(zero, [zero] * 3, [1.0] * 3, 3.0) for group in groups})
    for group, bound in zip(groups, (0.5, 0.1, 0.5), strict=True):
        np.testing.assert_allclose(sums[group]["w"], 4 * bound * math.sqrt(3) / 3, rtol=2**-19)
    assert privacy.releases == 1
    privacy.release({"model": Terms(zero, [zero] * 3, [1.0] * 3, 3.0)})
    assert math.sqrt(variances[-1]) == 4 * 0.5 * lattice.unit(4 * 0.5)


def test_a_budget_covers_every_exchange_of_a_round(run):
    """FedOMD releases moments and models: two releases a round, of which four fit and not six."""
    budget = booked(1e-5, 4, 5) * 1.01
    overrides = ["strategy=fedomd", "strategy.cmd_range=unit", f"privacy.epsilon_budget={budget}", "rounds=9"]
    done = run(*NOISY, *overrides)
    spent = done.summary["privacy"]
    assert (len(done.rounds), spent["releases"]) == (2, 4)
    assert spent["epsilon"] == booked(1e-5, 4, 4) < budget < booked(1e-5, 4, 6)


@pytest.mark.parametrize("dp", ["server_fixed", "client_fixed"])
def test_noise_on_running_statistics_is_refused_before_any_client_starts(run, monkeypatch, dp):
    overrides = [UNIFORM, "rounds=1", f"privacy.dp={dp}", "privacy.noise_multiplier=4", "model.norm=batch"]
    run(*overrides, "strategy=fedbn")  # they stay at the clients
    run(*overrides[:-1], "model.norm=layer")
    monkeypatch.setattr("fedgraph_flwr.node.respond.client_at", lambda *_: pytest.fail("a client started"))
    with pytest.raises(FedGraphError, match=r"running statistics norms.*running_mean.*model.norm to layer"):
        run(*overrides)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("deviation", [1e-9, 0.3, 1.0, 7.0, 1e6])
def test_what_is_released_is_a_whole_number_of_steps(dtype, deviation, monkeypatch):
    """The least bits of a float with Gaussian noise told which sums were impossible (Mironov, CCS 2012)."""
    monkeypatch.setattr(noise, "source", lambda: np.random.default_rng(0))  # of 50 fresh draws, two may be equal
    step = 1 / lattice.unit(deviation)
    assert 2**19 <= deviation / step < 2**20
    terms = [np.full(50, deviation / 7, dtype).astype(np.float64)] * 3
    total = lattice.noisy_sum(terms, deviation, deviation, 50)
    assert (total / step == np.rint(total / step)).all()
    assert len(set(total.tolist())) == 50
    assert np.abs(total - 3 * deviation / 7).max() < 6 * deviation


def test_a_rounded_term_is_never_longer_than_its_norm():
    rng = np.random.default_rng(0)
    for size in (1, 10, 10_000):
        value = rng.normal(size=size)
        term = lattice.rounded(value * 1e4, 1e4 * np.linalg.norm(value) / 2)
        assert (term.astype(object) ** 2).sum() <= (1e4 * np.linalg.norm(value) / 2) ** 2 * (1 + 1e-12)


def test_a_client_that_is_left_out_changes_no_other_contribution(run, monkeypatch):
    """The next client took its place, so leaving one out changed two contributions: ε was 4.4, an audit measured 9.7."""
    cohorts_of = []
    begin = Recorder.begin_round

    def spy(self, server_round, cohort):
        cohorts_of.append(list(cohort))
        return begin(self, server_round, cohort)

    monkeypatch.setattr(Recorder, "begin_round", spy)
    overrides = [*NOISY, "rounds=8", "strategy.fraction=0.5"]
    run(*overrides, sizes=(12, 16, 20, 14))
    wait = Connection.wait

    def without(self, *args):
        return {client: info for client, info in wait(self, *args).items() if client != 1}

    monkeypatch.setattr(Connection, "wait", without)
    run(*overrides, sizes=(12, 16, 20, 14))
    whole, less = cohorts_of[:8], cohorts_of[8:]
    assert any(1 in cohort for cohort in whole)
    assert less == [[client for client in cohort if client != 1] for cohort in whole]
