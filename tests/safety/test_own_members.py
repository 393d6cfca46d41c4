"""Members and messages that the framework does not expect: what leaves is what is declared, and errors name the cause."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord, RecordDict

from fedgraph_baselines.clients.fedproto import FedProtoClient
from fedgraph_flwr.clients.fedstruct import FedStructClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.engine.inline import run_identity
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.methods.declared import uplink_of as declared
from fedgraph_flwr.plugin import (
    ARRAYS,
    METRICS,
    MODEL,
    TRAIN,
    ArrayField,
    GraphClient,
    GraphStrategy,
    Mean,
    NumberField,
)
from fedgraph_flwr.plugin import Public as PublicGroup
from fedgraph_flwr.strategies.exchange import exchange
from fedgraph_flwr.wire.messages import DESCRIBE, Reply
from tests.conftest import client_graph
from tests.methods.small_runs import METHODS, sampled

HERE = "tests.safety.test_own_members"
AVERAGED = Mean(ARRAYS, origin=ARRAYS)


# --- protections ------------------------------------------------------------------------------------------------------


class Weighs(GraphStrategy):
    """Weighs clients by a number of its own, which moved a sum by more than the clipping norm."""

    def weights(self, clients):
        return [1.0 + client for client in clients]


@pytest.mark.parametrize(
    "protection", [["privacy.secagg=true"], ["privacy.dp=server_fixed", "privacy.noise_multiplier=1"]]
)
def test_own_weights_are_refused_under_a_protection(protection):
    words = [f"strategy.server={HERE}:Weighs", "strategy.weighting=uniform", "num_clients=3"]
    check_method(compose(words))
    with pytest.raises(FedGraphError, match="Weighs has its own weights of clients"):
        check_method(compose([*words, *protection]))


class Tells(GraphClient):
    """Returns a number of its data as a score."""

    def fit(self, parameters, config):
        trained, nodes, numbers = super().fit(parameters, config)
        return trained, nodes, numbers | {"val-accuracy": [float(self.y[0])]}


def test_a_number_that_fit_returns_is_declared_or_stays(run):
    """With ``privacy.scores=none`` a score left, if only ``fit`` returned it."""
    with pytest.raises(
        RunFailed, match="reply to 'train' holds number 'val-accuracy', which its uplink does not declare"
    ):
        run(f"strategy.client={HERE}:Tells", "privacy.scores=none", "rounds=1")


def rows(cfg, params):
    return {TRAIN: {MODEL: AVERAGED, "rows": PublicGroup({"x": ArrayField((2,), "float64")})}}


def size(cfg, params):
    return {TRAIN: {MODEL: AVERAGED}, DESCRIBE: {METRICS: PublicGroup({"degree": NumberField(0, 100)})}}


class ShowsRows(GraphStrategy):
    uplink = staticmethod(rows)


class SendsRows(GraphClient):
    uplink = staticmethod(rows)

    def send(self):
        return {"rows": {"x": self.graph.x[0, :2].double().numpy()}}, {}


def test_public_values_are_equal_at_all_clients(run):
    words = [f"strategy={HERE}:ShowsRows", f"strategy.client={HERE}:SendsRows", "rounds=1"]
    with pytest.raises(RunFailed, match=r"clients \[\d, \d\] sent other values of 'rows' in phase 'train'"):
        run(*words, "privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform")


def test_a_public_number_of_a_description_is_a_size():
    kind = type("Sizes", (GraphStrategy,), {"uplink": staticmethod(size)})
    with pytest.raises(FedGraphError, match="describes itself by Public 'metrics', expected whole numbers"):
        declared(kind, compose([]))


# --- malformed messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sampled(METHODS))
def test_a_request_without_its_parts_is_an_error_with_their_names(method, node):
    """A traceback was in the log of the party's node."""
    cfg = compose([f"strategy={method}"])
    kind = locate(cfg.strategy.client)
    failures = {}
    for phase in (TRAIN, *(phase for phase in declared(kind, cfg) if hasattr(kind, phase))):
        reply = node(f"strategy={method}").request(phase, server_round=1)
        if isinstance(reply, str) and "the request failed" in reply:
            failures[phase] = reply
    assert failures == {}


def test_prototypes_of_another_shape_are_refused():
    client = FedProtoClient(compose(["strategy=fedproto", "model.hidden=8", "num_clients=3"]), client_graph(0))
    good = {"mean": np.zeros((3, 8), np.float32), "known": np.ones(3, bool)}
    client.receive({"prototypes": good})
    for wrong in ({"mean": good["mean"]}, good | {"mean": good["mean"][:2]}, good | {"known": np.ones(2, bool)}):
        with pytest.raises(FedGraphError, match="the server"):
            client.receive({"prototypes": wrong})


class Twice:
    """A grid whose nodes reply twice, the second time to no open request."""

    def __init__(self) -> None:
        self.sent: dict[str, Message] = {}
        self.pulled = 0

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        ids = [f"m{len(self.sent) + place}" for place, _ in enumerate(messages)]
        self.sent.update(zip(ids, messages, strict=True))
        return ids

    def pull_messages(self, ids: Sequence[str]) -> list[Message]:
        self.pulled += 1
        replies = []
        for name in list(self.sent)[: self.pulled]:
            reply = Message(RecordDict({METRICS: MetricRecord({"client": 0})}), reply_to=self.sent[name])
            reply.metadata.__dict__["_reply_to_message_id"] = name
            replies.append(reply)
        return replies


def test_a_reply_to_no_open_request_is_dropped(caplog):
    def read(message: Message, client: int | None) -> Reply:
        return Reply(client or 0, {}, {}, message)

    with run_identity(1):
        sent = [Message(RecordDict(), dst_node_id=10 + i, message_type=MessageType.QUERY) for i in range(3)]
        outcome: Any = exchange(Twice(), sent, {10 + i: i for i in range(3)}, read, 5, "round 1, train")
    assert [reply.client for reply in outcome.replies] == [0, 1, 2]
    assert outcome.failures == {}
    assert "dropped a message of node" in caplog.text


# --- blame ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prune", [[], ["strategy.prune=5", "strategy.prune_mode=global"]])
def test_a_missing_envelope_is_not_the_receivers_fault(go, monkeypatch, prune):
    acquire = FedStructClient.acquire

    def silent(self, groups, config):
        reply, numbers = acquire(self, groups, config)
        if self.graph.client == 1 and "0" in reply.get("envelopes", {}):
            del reply["envelopes"]["0"]
        return reply, numbers

    silent.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FedStructClient, "acquire", silent)
    with pytest.raises(RunFailed, match=r"clients \[1\] sealed nothing for client 0 in exchange \d of phase 'acquire'"):
        go("fedstruct", "rounds=1", *prune)
