"""The run loop: exchanges, scores, early stopping, partial participation, failures, checkpoints and resuming."""

import json
import re
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.inline import InlineGrid, run_identity
from fedgraph_flwr.errors import FedGraphError, Refusal, RunFailed
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.secure import secagg
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.strategies.exchange import (
    Overdue,
    failure_lines,
    name_late_replies,
    take,
)
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.round import Outcome
from fedgraph_flwr.strategies.summation import masked
from fedgraph_flwr.wire.messages import DECLINED, FAILED, METRICS, PROTOCOL, from_record
from tests.conftest import client_graph
from tests.support import assert_same_arrays, recorded_messages


def test_a_round_is_one_exchange_and_its_scores_are_those_of_the_model_after_it(run, monkeypatch):
    finished = run("rounds=4")
    assert finished.summary["exchanges_per_round"] == 1
    assert finished.summary["setup_exchanges"] == 1
    assert [r["round"] for r in finished.rounds] == [1, 2, 3, 4]
    shorter = run("rounds=2")  # its last round is scored by an exchange of its own
    assert finished.rounds[1]["metrics"] == shorter.rounds[1]["metrics"]


def test_headline_is_the_test_figure_of_the_best_validation_round(run):
    finished = run("rounds=6", "seed=3")
    val = [r["metrics"]["val_accuracy"] for r in finished.rounds]
    best = int(np.argmax(val))
    assert finished.summary["best_round"] == best + 1
    assert finished.summary["test_accuracy"] == finished.rounds[best]["metrics"]["test_accuracy"]
    last5 = np.mean([r["metrics"]["test_accuracy"] for r in finished.rounds[-5:]])
    assert run("rounds=6", "seed=3", "evaluation.select=last5").summary["test_accuracy"] == pytest.approx(
        last5, abs=1e-12
    )


def test_means_over_clients(run):
    last = run().rounds[-1]
    scores, counts = np.array(last["clients"]["test-accuracy"]), np.array(last["clients"]["test-count"])
    assert last["metrics"]["test_accuracy"] == pytest.approx(scores.mean())
    assert last["metrics"]["test_accuracy_by_test_nodes"] == pytest.approx((scores * counts).sum() / counts.sum())


def test_patience_stops_and_keeps_the_best_parameters(run):
    still = ["train.lr=1e-12", "evaluation.patience=2", "rounds=50"]  # nothing gets better
    finished = run(*still)
    assert finished.summary["rounds"] == 3
    assert finished.summary["best_round"] == 1


@pytest.mark.slow
def test_the_round_may_be_chosen_by_the_loss(run):
    overrides = ["train.lr=0.05", "rounds=30", "model.dropout=0", "seed=2"]
    rounds = run(*overrides).rounds
    loss = [r["metrics"]["val_loss"] for r in rounds]
    best = next(i for i in range(30) if min(loss[i : i + 6]) == loss[i])  # no better one in the five that follow
    finished = run(*overrides, "evaluation.monitor=loss", "evaluation.patience=5")
    assert 1 < finished.summary["best_round"] == best + 1 < finished.summary["rounds"] == best + 6
    assert finished.summary["headline"] == "test_accuracy at best_val"
    assert finished.summary["test_accuracy"] == rounds[best]["metrics"]["test_accuracy"]
    assert run(*overrides, "evaluation.patience=5").summary["best_round"] != best + 1


@pytest.mark.slow
@pytest.mark.parametrize("watch", ["metric", "loss"])
def test_clients_that_stop_by_themselves_are_scored_at_their_own_best_rounds(run, watch):
    overrides = ["strategy=local", "train.lr=0.003" if watch == "metric" else "train.lr=0.05", "seed=2", "rounds=60"]
    rounds = run(*overrides).rounds  # what each client scores in every round, were none to stop
    patience, picked, stopped = 4, [], []
    for client in range(3):
        val = [
            r["clients"]["val-accuracy"][client] if watch == "metric" else -r["clients"]["val-loss"][client]
            for r in rounds
        ]
        best = 0
        for now in range(len(val)):
            if now - best >= patience:
                break
            best = now if val[now] > val[best] else best
        picked.append(rounds[best]["clients"]["test-accuracy"][client])
        stopped.append(best + 1 + patience)
    assert len(set(stopped)) > 1  # they do stop at different rounds
    finished = run(
        *overrides, "evaluation.select=own_best_val", f"evaluation.patience={patience}", f"evaluation.monitor={watch}"
    )
    assert finished.summary["rounds"] == max(stopped)
    assert finished.summary["test_accuracy"] == pytest.approx(np.mean(picked), abs=1e-12)
    assert finished.summary["headline"] == "test_accuracy at own_best_val"


def test_cohorts_differ_between_rounds_and_repeat_with_the_seed(run):
    overrides = ["rounds=8", "strategy.fraction=0.34"]
    cohorts = [r["cohort"] for r in run(*overrides).rounds]
    assert all(len(c) == 1 for c in cohorts)
    assert len({tuple(c) for c in cohorts}) > 1
    assert cohorts == [r["cohort"] for r in run(*overrides).rounds]


def test_scores_cover_all_clients_under_partial_participation(run):
    finished = run("strategy.fraction=0.34", "rounds=3")
    assert all(len(r["clients"]["test-accuracy"]) == 3 for r in finished.rounds)
    assert all(r["phases"]["evaluate"]["exchanges"] == 1 for r in finished.rounds), "booked with the round they score"


@pytest.mark.parametrize("fraction", [1.0, 0.34])
def test_resuming_gives_the_uninterrupted_run(run, fraction):
    overrides = ["rounds=6", "checkpoint_every=2", "strategy=local"]  # all state is private: optimiser and model
    overrides += [f"strategy.fraction={fraction}"]
    whole = run(*overrides)
    broken = with_folder(
        compose(
            [*overrides, f"graph={whole.cfg.graph}", "num_clients=3", "model.hidden=8", "out=" + whole.cfg.out + "-b"]
        )
    )
    calls = []

    def stop(record):
        calls.append(record["round"])
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_inline(broken, stop)
    resumed = compose([f"resume={broken.out}"], f"{broken.out}/config.yaml")
    summary = run_inline(with_folder(resumed))
    assert summary["test_accuracy"] == whole.summary["test_accuracy"]
    rounds = [json.loads(line) for line in Path(broken.out, "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == [1, 2, 3, 4, 5, 6]
    assert [r["metrics"] for r in rounds] == [r["metrics"] for r in whole.rounds]


REFUSED = {
    "resume=docs": "has no checkpoint",
    "strategy.min_clients=4": r"strategy\.min_clients=4 exceeds the 3 clients of this run",
    "strategy=fedprox strategy.mu_typo=3": "mu_typo",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_cannot_run_is_one_error(run, overrides):
    with pytest.raises(FedGraphError, match=REFUSED[overrides]):
        run(*overrides.split())


def _break(monkeypatch, client, change):
    """Let one client's training reply be changed before the server sees it."""
    call = InlineGrid._call

    def broken(self, message):
        reply = call(self, message)
        if message.metadata.dst_node_id == client + 1 and "model" in reply.content:
            change(reply.content)
        return reply

    monkeypatch.setattr(InlineGrid, "_call", broken)


def _nan(content):
    from fedgraph_flwr.wire.messages import from_record, to_record

    arrays = from_record(content["model"])
    next(iter(arrays.values())).flat[0] = np.nan
    content["model"] = to_record(arrays)


def _renamed(content):
    from fedgraph_flwr.wire.messages import from_record, to_record

    content["model"] = to_record({f"x{k}": v for k, v in from_record(content["model"]).items()})


def _reshaped(content):
    from fedgraph_flwr.wire.messages import from_record, to_record

    content["model"] = to_record({k: np.ravel(v)[:-1] for k, v in from_record(content["model"]).items()})


@pytest.mark.parametrize(
    ("change", "message"), [(_nan, "not finite"), (_renamed, "without model/"), (_reshaped, "of shape")]
)
def test_a_bad_reply_is_named_and_left_out(run, monkeypatch, change, message):
    good = run("rounds=1", sizes=(12, 16))
    _break(monkeypatch, 2, change)
    finished = run("rounds=1", sizes=(12, 16, 20))
    assert message in finished.rounds[0]["failed"]["2 (train)"]
    assert_same_arrays(finished.arrays, good.arrays)
    with pytest.raises(RunFailed, match=message):
        run("rounds=1", "strategy.on_failure=fail")


def test_a_crash_in_a_client_is_a_failure_of_that_client(run, monkeypatch):
    train = GraphClient.train

    def crash(self):
        if self.graph.client == 1:
            raise ZeroDivisionError("no way")
        return train(self)

    monkeypatch.setattr(GraphClient, "train", crash)
    finished = run()
    assert "no way" in finished.rounds[0]["failed"]["1 (train)"]
    # Its scores were to come with the training reply; only those of the last model are asked for by themselves.
    assert [len(r["clients"]["test-accuracy"]) for r in finished.rounds] == [2, 2, 3]
    with pytest.raises(RunFailed, match="expected at least 3"):
        run("strategy.min_clients=3")


def test_the_ledger_counts_what_travels(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run("rounds=2")
    size = sum(a.nbytes for a in finished.arrays.values())
    trains = [c for d, _, c in messages if d == "up" and "model" in c]
    assert len(trains) == 6
    train = finished.rounds[0]["phases"]["train"]
    assert 0 <= train["bytes_up"] - 3 * size < 600  # the rest is scores and counts
    assert 0 <= train["bytes_down"] - 3 * size < 200


@pytest.mark.parametrize("overrides", [[], ["privacy.secagg=true"]])
def test_the_ledger_splits_a_phase_by_the_groups_of_the_uplink(run, monkeypatch, overrides):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=scaffold", "rounds=2", *overrides)
    size, item = sum(a.size for a in finished.arrays.values()), 8 if overrides else 4  # masked: uint64
    sent = [c for d, _, c in messages if d == "up" and "model" in c]
    assert len(sent) == 6
    assert {group for content in sent for group in content} == {
        "model",
        "variates",
        "metrics",
        *(["secagg"] * bool(overrides)),
    }
    for record in finished.rounds:
        train = record["phases"]["train"]
        assert sum(train["bytes_up_by_group"].values()) == train["bytes_up"]
        assert {g: train["bytes_up_by_group"][g] for g in ("model", "variates")} == dict.fromkeys(
            ("model", "variates"), 3 * item * size
        )
    for entry in finished.summary["bytes_by_phase"].values():
        assert sum(entry["bytes_up_by_group"].values()) == entry["bytes_up"]


def test_the_ledger_books_invalid_replies_apart(run):
    overrides = ["rounds=1", "strategy.weighting=uniform", "privacy.dp=client_fixed", "privacy.clipping_norm=0.01"]
    finished = run(*overrides, "adversary.kind=scaling", "adversary.strength=1.1", "adversary.clients=[1]")
    size = sum(a.nbytes for a in finished.arrays.values())
    groups = finished.rounds[0]["phases"]["train"]["bytes_up_by_group"]
    assert groups["model"] == 2 * size
    assert size <= groups["refused"] < size + 1000, "with the headers of its encoding"


def test_a_resumed_record_of_an_older_version_has_no_groups(run):
    half = run("rounds=2", "checkpoint_every=2")
    path = half.out / "rounds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for entry in record["phases"].values():
            del entry["bytes_up_by_group"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = run("rounds=3", f"resume={half.out}", f"out={half.out}").summary
    train = summary["bytes_by_phase"]["train"]
    assert 0 < sum(train["bytes_up_by_group"].values()) < train["bytes_up"]


def test_local_bytes_hold_no_parameters(run):
    assert run("strategy=local", "rounds=2").summary["bytes_up"] < 2000


def test_clients_that_disagree_are_named():
    from fedgraph_flwr.strategies.base import GraphStrategy
    from fedgraph_flwr.strategies.connection import ClientInfo

    cfg = compose()
    strategy = GraphStrategy(cfg)
    strategy.clients = {i: ClientInfo(i, i, {"num_classes": c}) for i, c in enumerate((3, 4))}
    with pytest.raises(FedGraphError, match="client 1 has num_classes=4, client 0 has num_classes=3"):
        strategy.agreed("num_classes")


def test_a_wrong_phase_is_refused_and_named(run, monkeypatch):
    from fedgraph_flwr.strategies.base import GraphStrategy

    monkeypatch.setattr(GraphStrategy, "before_train", lambda self, arrays: self.request("trian") and {})
    with pytest.raises(RunFailed, match=r"clients 0, 1, 2: .*'trian'.*describe.*train"):
        run()


def _at_round(monkeypatch, server_round, act):
    """Let something happen to the grid before a round."""
    from fedgraph_flwr.strategies.connection import Connection

    returned, looks = Connection.returned, count(1)

    def acting(self, *args):
        if next(looks) == server_round:
            act(self.grid)
        return returned(self, *args)

    monkeypatch.setattr(Connection, "returned", acting)


def _restart(grid, node, new_node, **config):
    """The SuperNode's process is gone with its memory; another one has its graph."""
    from flwr.app import RecordDict

    from fedgraph_flwr.node import clients as node_clients

    node_clients._live.pop((grid.run_id, node), None)
    context = grid.contexts.pop(node)
    context.node_id, context.state = new_node, RecordDict()
    context.node_config = context.node_config | config
    grid.contexts[new_node] = context


@pytest.mark.slow
@pytest.mark.parametrize("node", [2, 77])
@pytest.mark.parametrize("strategy", ["fedavg", "local"])  # private: the optimiser's moments, and the whole model
def test_a_node_started_anew_goes_on_with_its_state_folder(run, monkeypatch, tmp_path, strategy, node):
    from tests.support import call_fresh

    monkeypatch.setattr(InlineGrid, "_call", call_fresh)  # as on a fleet, no client outlives a message
    overrides = [f"strategy={strategy}", "rounds=4"]
    whole = run(*overrides)

    def keep_state(grid):
        for context in grid.contexts.values():
            context.node_config["state"] = str(tmp_path / "state")

    with monkeypatch.context() as patch:
        _at_round(patch, 1, keep_state)
        _at_round(patch, 3, lambda grid: _restart(grid, 2, node))
        restarted_run = run(*overrides)
    assert not any(r["failed"] for r in restarted_run.rounds)
    assert_same_arrays(restarted_run.arrays, whole.arrays)
    assert restarted_run.rounds[-1]["clients"] == whole.rounds[-1]["clients"]
    with monkeypatch.context() as patch:
        _at_round(patch, 3, lambda grid: _restart(grid, 2, node))
        lost = run(*overrides)
    assert lost.rounds[-1]["clients"] != whole.rounds[-1]["clients"]  # the state mattered


def test_a_node_that_failed_in_any_exchange_of_a_round_is_replaced(run, monkeypatch):
    """Before training, say: the exchange after that says nothing of it. A node that is gone is one the SuperLink answers for."""
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.constant import ErrorCode

    from fedgraph_flwr.strategies.base import GraphStrategy

    monkeypatch.setattr(GraphStrategy, "before_train", lambda self, arrays: self.request("describe") and {})
    call = InlineGrid._call

    def hangs(self, message):
        config = message.content["config"]
        if (message.metadata.dst_node_id, config["round"], config["phase"]) == (2, 2, "describe"):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return call(self, message)

    def start_another(grid):
        config = dict(grid.contexts[2].node_config)
        grid.contexts[77] = Context(grid.run_id, 77, config, RecordDict(), grid.contexts[2].run_config)

    monkeypatch.setattr(InlineGrid, "_call", hangs)
    _at_round(monkeypatch, 3, start_another)
    with recorded_messages(monkeypatch) as messages:
        run("rounds=3")
    asked = [(c["config"]["phase"], c["config"]["round"], node) for d, node, c in messages if d == "down"]
    assert [node for phase, server_round, node in asked if (phase, server_round) == ("train", 3)] == [1, 77, 3]


def test_a_secure_sum_waits_for_a_client_that_was_silent_and_comes_back(run, monkeypatch):
    """Round 2 is summed without client 1, and three are needed: round 3 asks for it till it is there, or time is up."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    from fedgraph_flwr.strategies import loop

    call, now, until = InlineGrid._call, [0.0], [0.0]

    def gone(self, message):
        config = message.content["config"]
        at_term = (config["round"], config["phase"]) == (2, "train")
        if message.metadata.dst_node_id == 2 and (at_term or (config["round"] == 3 and now[0] < until[0])):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return call(self, message)

    monkeypatch.setattr(InlineGrid, "_call", gone)
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(loop, "time", clock)
    for module in (secagg, masked):  # three clients tolerate no dropout, so that there is a round to wait in
        monkeypatch.setattr(module, "threshold", lambda share, clients: -(-2 * clients // 3))
    overrides = ["rounds=4", "privacy.secagg=true", "strategy.timeout=60"]
    until[0] = 20.0
    outcome = run(*overrides)
    assert [sorted(r["failed"]) for r in outcome.rounds] == [["1 (scores)"], ["1 (train)"], ["1 (describe)"], []]
    assert 20 < now[0] < 60
    assert len(outcome.rounds[2]["cohort"]) == 3
    now[0], until[0], limits = 0.0, 100.0, []
    describe = loop.Loop._describe
    monkeypatch.setattr(
        loop.Loop, "_describe", lambda self, *arguments: limits.append(arguments[1:]) or describe(self, *arguments)
    )
    with pytest.raises(
        RunFailed, match=r"round 3, secagg_keys: 2 of 3 clients .*client 1: the SuperLink missed two heartbeats"
    ):
        run(*overrides)
    assert 40 < now[0] < 60
    assert [limit for (limit,) in filter(None, limits)] == [
        59,
        57,
        53,
        45,
        35,
        25,
        15,
        5,
    ]  # what is left: one may say nothing at all


def test_a_newcomer_does_not_take_the_place_of_a_client_that_answers(run, monkeypatch):
    def double(grid):
        from flwr.app import Context, RecordDict

        config = dict(grid.contexts[2].node_config)
        grid.contexts[77] = Context(grid.run_id, 77, config, RecordDict(), grid.contexts[2].run_config)

    _at_round(monkeypatch, 2, double)
    with recorded_messages(monkeypatch) as messages:
        run("rounds=3")
    asked = [c["config"]["phase"] for d, node, c in messages if d == "down" and node == 77]
    assert asked == ["describe"]


def test_state_of_another_run_is_not_taken(tmp_path):
    from fedgraph_flwr.clients.state import StateFolder

    mine = StateFolder(tmp_path, "a", "local", 0)
    mine.write_last({"method/x": torch.ones(2)}, 3)
    assert mine.read_last()[1] == 3
    other = StateFolder(tmp_path, "b", "local", 0)
    assert other.read_last() is None
    mine.folder.parent.rename(other.folder.parent)
    with pytest.raises(FedGraphError, match="has run=a, expected b"):
        other.read_last()


def test_summary_keys_are_those_documented(run):
    documented = set(re.findall(r"``(\w+)``", Recorder.finish.__doc__))
    summary = run("rounds=2").summary
    when_asked = {"attack", "privacy", "adversary", "classes", "clients", "left_out", "start", "parties", "test_auc"}
    when_asked |= {"missing", "min_items"}
    assert documented - {"best_val", "own_best_val", "last", "last5"} - when_asked == set(summary)
    assert set(summary["metrics"]) == {"best_val", "own_best_val", "last", "last5"}


def test_a_full_disk_in_the_middle_of_a_run_loses_no_checkpoint(run, monkeypatch):
    """The disk is full from round 4 on; the checkpoint of round 2 is whole, and the run goes on from it."""
    overrides = ["rounds=6", "checkpoint_every=2", "strategy=local"]
    whole = run(*overrides)
    out = f"out={whole.cfg.out}-full"
    checkpoint, full = Recorder.checkpoint, []

    def filled(self, server_round, *args):
        full.append(server_round >= 4)
        checkpoint(self, server_round, *args)

    def fsync(fd):
        if any(full):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "checkpoint", filled)
        patch.setattr("fedgraph_flwr.data.files.os.fsync", fsync)
        with pytest.raises(FedGraphError, match="No space left on device"):
            run(*overrides, out)
    resumed = run(*overrides, out, f"resume={whole.cfg.out}-full")
    assert [r["metrics"] for r in resumed.rounds] == [r["metrics"] for r in whole.rounds]


def test_a_run_can_be_resumed_unless_told_otherwise():
    assert compose().checkpoint_every > 0


class _SlowGrid:
    """A grid whose clients answer, one by one, after so many looks."""

    def __init__(self, waits):
        self.waits, self.looks = list(waits), 0

    def push_messages(self, messages):
        self.sent = {str(i): message for i, message in enumerate(messages)}
        return list(self.sent)

    def pull_messages(self, message_ids):
        self.looks += 1
        if not self.waits or self.looks < self.waits[0]:
            return []
        self.looks = 0
        self.waits.pop(0)
        identifier = min(message_ids)
        answer = RecordDict({METRICS: MetricRecord({"client": int(identifier)})})
        reply = Message(answer, reply_to=self.sent[identifier])
        reply.metadata.__dict__["_reply_to_message_id"] = identifier
        return [reply]


def _asked(waits, monkeypatch, *overrides, grid=None, clients=2):
    """Valid replies, failures, and the pauses of one exchange, on a `_SlowGrid` unless another is given."""
    from fedgraph_flwr.strategies.base import GraphStrategy
    from fedgraph_flwr.strategies.connection import ClientInfo

    cfg = compose(overrides)

    class Tells(GraphStrategy):
        @staticmethod
        def uplink(cfg, params):
            return {"tell": {}}

    strategy = Tells(cfg)
    strategy.clients = {i: ClientInfo(i, 10 + i) for i in range(clients)}
    live = Live(strategy, grid or _SlowGrid(waits), Recorder(cfg))
    now, pauses = [0.0], []
    monkeypatch.setattr("fedgraph_flwr.strategies.exchange.time.perf_counter", lambda: now[0])

    def sleep(pause):
        pauses.append(pause)
        now[0] += pause

    monkeypatch.setattr("fedgraph_flwr.strategies.exchange.time.sleep", sleep)
    with run_identity(1):
        outcome = live.collect("tell", live.messages("tell", list(range(clients)), {}, {}))
    return [reply.client for reply in outcome.replies], outcome.failures, pauses


def test_waiting_looks_often_at_first_then_every_second_and_often_again_after_an_answer(monkeypatch):
    replies, failures, pauses = _asked([20, 5], monkeypatch)
    assert (replies, failures) == ([0, 1], {})
    first, second = pauses[:19], pauses[19:]
    assert first == sorted(first)
    assert first[0] < 0.01
    assert first[-2:] == [1.0, 1.0]
    assert sum(first[:8]) < 1  # so that a quick exchange does not wait
    assert second[0] == 0
    assert max(second) < 0.05


def test_clients_that_fail_for_one_reason_are_one_warning():
    failures = {i: f"client {i} sent infinity" for i in range(12)} | {
        12: "client 12 sent nothing",
        77: "no reply within 30 s",
    }
    assert failure_lines(failures, set(range(13))) == [
        "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more failed: sent infinity",
        "client 12 failed: client 12 sent nothing",
        "node 77 failed: no reply within 30 s",
    ]


def test_a_client_that_never_answers_is_named_after_the_timeout(monkeypatch):
    replies, failures, pauses = _asked([3], monkeypatch, "strategy.timeout=30")
    assert replies == [0]
    assert failures == {1: "no reply within 30 s (strategy.timeout)"}
    assert 30 < sum(pauses) <= 31


def test_a_look_that_waits_past_the_timeout_for_one_answer_costs_no_other_client_its_own(monkeypatch):
    """As over HTTP, where a look fetches what a node that died had begun to send."""

    class Stuck(_SlowGrid):
        def pull_messages(self, message_ids):
            if len(message_ids) == 2:
                time.sleep(100)  # of the clock that `_asked` gives
            return super().pull_messages(message_ids)

    replies, failures, pauses = _asked([1, 1], monkeypatch, "strategy.timeout=30", grid=Stuck([1, 1]))
    assert (replies, failures) == ([0, 1], {})
    assert pauses[0] == 100


class _Fleet(_SlowGrid):
    """A grid that knows which replies are late, and limits how long a look may wait for one."""

    def __init__(self, waits):
        super().__init__(waits)
        self.overdue, self.limits, self.limit_pull = {}, [], lambda seconds: self.limits.append(seconds)


def test_a_request_without_a_reply_in_time_is_overdue(monkeypatch):
    _, failures, _ = _asked([3], monkeypatch, "strategy.timeout=40", grid=(grid := _Fleet([3])))
    assert failures == {1: "no reply within 40 s (strategy.timeout)"}
    assert [(request.who, request.timeout) for request in grid.overdue.values()] == [("client 1", 40)]
    assert max(grid.limits) <= 40
    assert min(grid.limits) <= 1  # near the end, a reply that has only begun to arrive keeps no look waiting


@pytest.mark.parametrize(("created", "took"), [(1061.0, 61), (9e9, 99), (0.0, 40), (1005.0, None)])
def test_a_late_reply_is_named_with_what_it_took_and_what_to_set(monkeypatch, caplog, created, took):
    """An honest node says when it made the reply; another time counts only within what is possible."""
    grid = _Fleet([1])
    with run_identity(1):
        grid.push_messages([Message(RecordDict(), dst_node_id=10, message_type="query")])
        grid.overdue["0"] = Overdue("client 1", "round 3, train", 1000.0, 40.0)
        pull = grid.pull_messages

        def pull_with_time(message_ids):
            (reply,) = pull(message_ids)
            reply.metadata.__dict__["_created_at"] = created
            return [reply]

        grid.pull_messages = pull_with_time
        monkeypatch.setattr("fedgraph_flwr.strategies.exchange.time.time", lambda: 1099.0)
        name_late_replies(grid, grid.overdue)
        name_late_replies(grid, grid.overdue)  # none is left
    slow = (
        f"its reply took {took} s, and was dropped because strategy.timeout=40: set strategy.timeout above {took},"
        " or give this node less to compute"
    )
    cut = (
        "by its clock, its reply was ready after 5 s, but it came after strategy.timeout=40 s, and was dropped: check"
        " this node's connection"
    )
    assert caplog.messages == [f"round 3, train: client 1 was late: {slow if took else cut}"]


def test_a_failure_has_the_kind_that_its_code_or_its_exception_names():
    """Whatever its text says, in whatever language."""

    def read(message, client):
        raise Refusal("version") if client == 4 else FedGraphError("wrong shape: the node refuses nothing")

    outcome = Outcome()
    with run_identity(1):
        sent = [Message(RecordDict(), dst_node_id=10 + i, message_type="query") for i in range(5)]
        codes = (ErrorCode.NODE_UNAVAILABLE, DECLINED, FAILED)
        replies = [Message(Error(code, "der Knoten"), reply_to=sent[i]) for i, code in enumerate(codes)]
        replies += [Message(RecordDict(), reply_to=sent[i]) for i in (3, 4)]
    for i, reply in enumerate(replies):
        take(reply, 10 + i, i, read, outcome)
    assert list(outcome.kinds.values()) == ["no_reply", "refused", "error", "invalid", "refused"]
    assert outcome.kinds.keys() == outcome.failures.keys()
    assert outcome.silent == {0}


def test_state_of_another_schema_is_not_taken(tmp_path, monkeypatch):
    from fedgraph_flwr.clients import state

    state.StateFolder(tmp_path, "a", "local", 0).write_last({"method/x": torch.ones(2)}, 3)
    monkeypatch.setattr(state, "SCHEMA", state.SCHEMA + 1)
    with pytest.raises(FedGraphError, match=r"has schema=1, expected 2"):
        state.StateFolder(tmp_path, "a", "local", 0).read_last()


def test_a_simulation_is_given_messages_in_portions(monkeypatch):
    """Flower's in-memory grid, known by its name: never more than so many unanswered, all answered in the end."""
    monkeypatch.setattr("fedgraph_flwr.strategies.exchange.SIMULATED", 2)
    pushed = []

    class InMemoryGrid(_SlowGrid):
        def push_messages(self, messages):
            given = {f"{len(pushed)}{i}": message for i, message in enumerate(messages)}
            pushed.append(len(given))
            self.sent = {**getattr(self, "sent", {}), **given}
            assert len(self.sent) <= 2
            return list(given)

        def pull_messages(self, message_ids):
            identifier = max(message_ids)  # the later one first
            message = self.sent.pop(identifier)
            answer = RecordDict({METRICS: MetricRecord({"client": message.metadata.dst_node_id - 10})})
            reply = Message(answer, reply_to=message)
            reply.metadata.__dict__["_reply_to_message_id"] = identifier
            return [reply]

    replies, failures, _ = _asked([], monkeypatch, grid=InMemoryGrid([]), clients=5)
    assert (replies, failures) == ([0, 1, 2, 3, 4], {})
    assert pushed == [2, 1, 1, 1]


@pytest.mark.parametrize("side", ["server", "node"])
def test_another_version_of_the_protocol_is_one_error_on_each_side(run, monkeypatch, side):
    old = PROTOCOL - 1
    module = "strategies.live" if side == "server" else "clients.replies"
    monkeypatch.setattr(f"fedgraph_flwr.{module}.PROTOCOL", old)
    if side == "server":
        expected = rf"the server uses version {old} .* this node version {PROTOCOL} \(fedgraph-flwr .*\): install"
    else:
        expected = rf"node 1 uses version {old} .* this server version {PROTOCOL} \(fedgraph-flwr .*\): install"
    with pytest.raises(FedGraphError, match=expected):
        run("rounds=1")


def test_uniform_weights_of_equal_clients_are_those_of_training_nodes(run, tmp_path):
    """Two clients have 8 training nodes each, the third has none."""
    for client in range(3):
        graph = client_graph(client)
        graph.train_mask &= client != 1
        graph.save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    overrides = ["dtype=float64", f"graph={tmp_path / 'graphs'}"]
    uniform, train = (run(*overrides, f"strategy.weighting={rule}").arrays for rule in ("uniform", "train"))
    for name, array in train.items():
        np.testing.assert_allclose(uniform[name], array, rtol=0, atol=1e-13)


@pytest.mark.parametrize("private", [False, True])
def test_uniform_weights_leave_out_clients_that_do_not_train(run, tmp_path, monkeypatch, private):
    """Under differential privacy they count, since weights follow from the configuration."""
    for client in range(3):
        graph = client_graph(client)
        graph.train_mask &= client != 1
        graph.save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    overrides = ["rounds=1", "strategy.weighting=uniform", f"graph={tmp_path / 'graphs'}", "dtype=float64"]
    with recorded_messages(monkeypatch) as messages:
        moved = run(*overrides, *(["privacy.dp=client_fixed", "privacy.clipping_norm=100"] * private)).arrays
    sent = [from_record(content["model"]) for way, _, content in messages if way == "up" and "model" in content]
    for name, array in moved.items():
        assert np.abs(sent[0][name] - sent[1][name]).max() > 1e-4
        np.testing.assert_allclose(
            array, np.mean([update[name] for update in (sent if private else sent[::2])], 0), atol=1e-13
        )
