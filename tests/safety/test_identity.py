"""A client's index belongs to the node that first registered with it."""

import logging

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from hypothesis import example, given
from hypothesis import strategies as st

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_header
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.weighting import capped
from fedgraph_flwr.strategies.connection import Connection
from tests.support import recorded_messages


@pytest.fixture
def before_round(monkeypatch):
    """``before_round(r, act)``: ``act(grid)`` before round r."""
    returned = Connection.returned

    def at(server_round, act):
        looks = iter(range(1, 1000))

        def acting(self, *args):
            if next(looks) == server_round:
                act(self.grid)
            return returned(self, *args)

        monkeypatch.setattr(Connection, "returned", acting)

    return at


def twin(node, new=77):
    """Another node with the graph of ``node``."""

    def add(grid):
        old = grid.contexts[node]
        grid.contexts[new] = Context(grid.run_id, new, dict(old.node_config), RecordDict(), old.run_config)

    return add


@pytest.fixture
def gone(monkeypatch):
    """``gone(node, r)``: from round r on, the SuperLink replies for that node."""
    call = InlineGrid._call

    def off(node, server_round):
        def answer(self, message):
            if message.metadata.dst_node_id == node and message.content["config"]["round"] >= server_round:
                return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
            return call(self, message)

        monkeypatch.setattr(InlineGrid, "_call", answer)

    return off


def trained(messages):
    return [node for way, node, c in messages if way == "down" and c["config"]["phase"] == "train"]


def test_the_record_says_which_node_each_client_was(run):
    finished = run("rounds=2", "checkpoint_every=1")
    assert finished.summary["nodes"] == {0: 1, 1: 2, 2: 3}
    assert read_header(finished.out / "checkpoint.safetensors")[1]["nodes"] == {"0": 1, "1": 2, "2": 3}


def test_a_late_node_is_refused_once_the_client_has_answered_again(run, before_round, gone, monkeypatch, caplog):
    """It is refused for good: when the client's own node falls silent later, the other one is not taken for it."""
    before_round(2, twin(2))
    gone(2, 4)
    with recorded_messages(monkeypatch) as messages, caplog.at_level(logging.WARNING):
        finished = run("rounds=6")
    assert 77 not in trained(messages)
    assert finished.summary["nodes"] == {0: 1, 1: 2, 2: 3}
    assert "node 77 is refused: it claims to be client 1, which is node 2 and still replies" in caplog.text


def test_a_client_whose_answer_was_refused_is_not_replaced(run, before_round, monkeypatch):
    """It is present; its wrong replies gives no other node a right to its index."""
    train = GraphClient.train

    def wrong(self):
        train(self)
        return float("nan") if self.graph.client == 1 and self.server_round > 1 else 0.5

    monkeypatch.setattr(GraphClient, "train", wrong)
    before_round(2, twin(2))
    with recorded_messages(monkeypatch) as messages:
        run("rounds=5")
    assert 77 not in trained(messages)


@pytest.mark.parametrize("key", ["num_train", "num_features", "num_classes"])
def test_a_client_that_comes_back_must_be_what_it_was(run, before_round, gone, monkeypatch, caplog, key):
    describe = GraphClient.describe

    def grown(self):
        description = describe(self)
        return description | ({key: description[key] + 1} if self.server_round else {})

    monkeypatch.setattr(GraphClient, "describe", grown)
    before_round(3, twin(2))
    gone(2, 2)
    with recorded_messages(monkeypatch) as messages, caplog.at_level(logging.WARNING):
        run("rounds=5")
    assert 77 not in trained(messages)
    assert f"node 77 is refused: it claims to be client 1, with a different description: {key}=" in caplog.text


def test_a_client_that_comes_back_is_taken(run, before_round, gone, monkeypatch):
    before_round(3, twin(2))
    gone(2, 2)
    with recorded_messages(monkeypatch) as messages:
        finished = run("rounds=4")
    assert trained(messages)[6:] == [1, 77, 3, 1, 77, 3]
    assert finished.summary["nodes"] == {0: 1, 1: 77, 2: 3}


def resumed_with(monkeypatch, change):
    start = InlineGrid.__init__

    def changed(self, *args, **kwargs):
        start(self, *args, **kwargs)
        change(self)

    monkeypatch.setattr(InlineGrid, "__init__", changed)


def test_a_resumed_run_knows_its_nodes(run, monkeypatch):
    """Of two that claim an index, the one that was that client is believed; without a record neither is."""
    half = run("rounds=2", "checkpoint_every=1")
    resumed_with(monkeypatch, twin(1))
    finished = run("rounds=3", f"resume={half.out}", f"out={half.out}")
    assert finished.summary["nodes"] == {0: 1, 1: 2, 2: 3}
    with pytest.raises(FedGraphError, match="nodes 1 and 77 both claim to be client 0"):
        run("rounds=1")


def test_a_node_cannot_be_another_client_of_the_run_it_was_in(run, monkeypatch):
    half = run("rounds=2", "checkpoint_every=1")

    def swap(grid):
        a, b = grid.contexts[1].node_config, grid.contexts[2].node_config
        a["partition-id"], b["partition-id"] = b["partition-id"], a["partition-id"]

    resumed_with(monkeypatch, swap)
    with pytest.raises(FedGraphError, match="node 1: it was client 0 of this run, and claims to be client 1"):
        run("rounds=3", f"resume={half.out}", f"out={half.out}")


@given(st.lists(st.floats(0, 2**31, allow_nan=False), min_size=1, max_size=12), st.floats(0.001, 1, exclude_min=True))
@example([2.0, 5e-324, 0.0], 0.5)  # a share of 0 in floats, a weight above 0
def test_no_share_is_above_the_cap(weights, most):
    amounts = np.array(capped(weights, most))
    assert amounts.shape == (len(weights),)
    assert (amounts >= 0).all()
    if sum(weights):
        shares = amounts / amounts.sum()
        assert shares.max() <= max(most, 1 / np.count_nonzero(weights)) + 1e-9  # who weighs nothing is given nothing
        assert (np.diff(shares[np.argsort(weights, kind="stable")]) >= -1e-9).all()  # the order stays


def test_the_cap_by_hand():
    assert capped([1.0, 1, 8], 1.0) == [1.0, 1, 8]
    assert capped([1.0, 1, 8], 0.5) == pytest.approx([0.25, 0.25, 0.5])
    assert capped([1.0, 2, 97], 0.4) == pytest.approx(
        [0.2, 0.4, 0.4]
    )  # 2 of 3 of what is left would be 0.4: just right
    assert capped([1.0, 3, 96], 0.4) == pytest.approx([0.2, 0.4, 0.4])  # 3 of 4 of it would be 0.45: capped in turn
    assert capped([1.0, 3, 96], 0.1) == [1.0, 1, 1]
    assert capped([0.0, 3, 96], 0.4) == [0.0, 1, 1]


def test_a_client_that_claims_many_nodes_has_its_share_and_no_more(run, monkeypatch):
    describe = GraphClient.describe

    def boast(self):
        description = describe(self)
        return description | ({"num_nodes": 2**31 - 1} if self.graph.client == 1 and "num_nodes" in description else {})

    monkeypatch.setattr(GraphClient, "describe", boast)
    overrides = ["rounds=1", "strategy.weighting=nodes"]
    alone, shared, fair = (
        run(*overrides),
        run(*overrides, "strategy.max_share=0.4"),
        run("rounds=1", "strategy.weighting=uniform"),
    )
    name = next(iter(fair.arrays))
    assert (
        np.abs(shared.arrays[name] - fair.arrays[name]).max()
        < 0.2 * np.abs(alone.arrays[name] - fair.arrays[name]).max()
    )


def test_a_cap_that_would_cap_nothing_is_refused(run):
    with pytest.raises(FedGraphError, match=r"strategy.max_share must be in \(0, 1\], got 0"):
        compose(["strategy.max_share=0"])
    with pytest.raises(
        FedGraphError,
        match=r"max_share=0.5 caps a weight, but strategy=fedgrad has no weighted mean: set strategy.max_share=1",
    ):
        run("strategy=fedgrad", "strategy.max_share=0.5")
    with pytest.raises(FedGraphError, match=r"max_share=0.5 caps a weight, but aggregator=median uses no weights: set"):
        run("strategy.aggregator=median", "strategy.max_share=0.5")


def test_a_resumed_run_without_a_round_left_is_scored(run):
    """Its nodes were asked up to the last round, and refuse requests of earlier ones."""
    whole = run("rounds=2", "checkpoint_every=1")
    again = run("rounds=2", f"resume={whole.out}", f"out={whole.out}")
    assert [r["metrics"] for r in again.rounds] == [r["metrics"] for r in whole.rounds]
