"""What a message to a client may carry: methods declare it, and nodes refuse the rest."""

from types import ModuleType

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

import fedgraph_flwr as fg
from fedgraph_flwr.clients.base import GraphClient, phase
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.engine.inline import run_identity
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.status import RunStatus, WatchedGrid
from fedgraph_flwr.methods.downlink import Input, Stages
from fedgraph_flwr.methods.uplink import model_only
from fedgraph_flwr.node.request import check_input
from fedgraph_flwr.wire.messages import VERSIONS
from fedgraph_flwr.wire.reply_schema import ArrayField
from tests.methods.small_runs import METHODS, by_default
from tests.nodes import made, model_of

USUAL = {"min_nodes": 0, "check_start": False}


class Undeclared(GraphClient):
    """A client as before methods declared their inputs."""

    def receive(self, groups):
        self.seen = sorted(groups)

    def send(self):
        return {}, {}


class Declared(Undeclared):
    """Declares what its base takes."""

    @staticmethod
    def downlink(cfg, params):
        return {"train": {"goal": Input("a goal", None)}}


class Staged(GraphClient):
    """Has a second stage, in which models stay at the clients."""

    @staticmethod
    def downlink(cfg, params):
        sums = Input("a sum of features", {"sum": ArrayField(("F",), "float64")})
        return {"train": Stages({"sums": sums}, {"": True, "second": False})}


class Extended(Declared):
    """Takes more than its base declared."""

    @phase
    def look(self, groups, config):
        return {}, {}


def test_every_method_declares_what_its_clients_receive():
    kinds: dict[str, type[GraphClient]] = {name: locate(by_default(name).strategy.client) for name in METHODS}
    assert [name for name, kind in kinds.items() if not kind.declares_inputs()] == []
    assert len(METHODS) > 40


def test_a_class_with_hooks_of_its_own_declares_again():
    assert GraphClient.declares_inputs()
    kinds: list[type[GraphClient]] = [Undeclared, Declared, Extended]
    assert [kind.declares_inputs() for kind in kinds] == [False, True, False]


def test_a_module_without_a_downlink_declares_none():
    module = ModuleType("earlier")
    vars(module).update(uplink=model_only)

    class Earlier(GraphClient, method=module):
        receive = Undeclared.receive

    class Later(Declared, method=module):
        pass

    assert not Earlier.declares_inputs()
    assert Later.declares_inputs()
    assert Later.downlink is Declared.downlink


def test_a_node_accepts_what_the_server_of_a_fleet_adds(node, tmp_path, caplog):
    """The node's log and audit log say who started the run."""
    asked = node("strategy=fedavg", policy=USUAL, state=True)
    sent = []

    class Wire:
        def push_messages(self, messages):
            sent.extend(messages)
            return []

    with run_identity(1):
        content = RecordDict({"config": ConfigRecord({"phase": "describe", "round": 0})})
        grid = WatchedGrid(Wire(), RunStatus(tmp_path, 5, operator="CN=bob"))
        for _ in range(2):  # only the first one names the operator
            grid.push_messages([Message(content, dst_node_id=1, message_type="query")])
            content = RecordDict({"config": ConfigRecord({"phase": "train", "round": 1})})
    message, later = sent
    assert "started_by" not in later.content["config"]
    with caplog.at_level("INFO"):
        reply = asked.request(
            "describe", **{k: v for k, v in message.content["config"].items() if k not in ("phase", "round")}
        )
    assert f"run {asked.grid.run_id}: started by CN=bob, as the server says" in caplog.text
    assert fg.audit(asked.context.node_config["state"])["operator"].tolist() == ["CN=bob"]
    assert not isinstance(reply, str), reply
    assert reply[VERSIONS].keys() >= {"fedgraph-flwr", "flwr"}
    assert "asks_versions=1, expected bool" in asked.request("describe", asks_versions=1)


def test_a_node_refuses_what_the_method_does_not_declare(node):
    asked = node("strategy=fedavg", policy=USUAL)
    model, more = {"model": model_of(asked)}, {"goal": {"x": np.zeros(2)}}
    reasons = [
        asked.request("train", 1, {**model, **more}),
        asked.request("train", 2, model, colour="red"),
        asked.request("train", 3, model, stage="second"),
        asked.request("train", 4, model, keep_model=True),
    ]
    assert (
        "group 'goal' is unknown (in the server's message of phase 'train', but not in the client's downlink);"
        in reasons[0]
    )
    assert "expected one of: model" in reasons[0]
    assert "scalar 'colour' is unknown" in reasons[1]
    assert "stage 'second', expected '': the client's `downlink` declares stages (docs/extend.md)" in reasons[2]
    assert "keep_model=True, but models of stage '' are sent: the client's `downlink` declares" in reasons[3]
    assert not isinstance(asked.request("train", 5, model), str)


def test_a_node_refuses_arrays_that_are_not_as_declared(node):
    asked = node("strategy=fedproto", policy=USUAL)
    right = {"mean": np.zeros((3, 8), np.float32), "known": np.ones(3, bool)}
    wrong = {
        1: (right | {"mean": np.zeros((3, 9), np.float32)}, r"'mean' of shape \(3, 9\), expected \(3, 8\)"),
        2: (right | {"known": np.ones(3)}, "'known' of type float64, expected bool"),
        3: (right | {"other": np.ones(2)}, "with other"),
        4: ({"known": right["known"]}, "without mean"),
    }
    for server_round, (arrays, reason) in wrong.items():
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(asked.request("train", server_round, {"prototypes": arrays}))
    assert not isinstance(asked.request("train", 5, {"prototypes": right}), str)


def test_a_stage_that_keeps_models_is_known_before_the_message(node):
    asked = node("strategy=adafgl", policy=USUAL)
    model = {"model": model_of(asked)}
    kept = asked.request("train", 2, model, stage="personal")
    assert "keep_model=False, but models of stage 'personal' are kept" in kept


def test_a_method_of_ones_own_declares_its_stages(node):
    asked = node(f"strategy.client={__name__}:Staged", policy={**USUAL, "modules": [__name__]})
    model = {"model": model_of(asked)}
    assert not isinstance(asked.request("train", 1, model), str)
    kept = asked.request("train", 2, model, stage="second", keep_model=True)
    assert not isinstance(kept, str), kept
    assert "model" not in kept
    assert "stage 'third', expected '' or 'second'" in asked.request("train", 3, model, stage="third")


def test_a_size_of_a_declaration_may_be_zero(monkeypatch):
    client = made(Staged)
    monkeypatch.setattr(type(client.graph), "num_features", 0)
    taken = client.downlink_of.phases["train"]["sums"]
    check_input(client, {"sum": np.zeros(0)}, taken, "the server sent group 'sums'")
    with pytest.raises(FedGraphError, match=r"of shape \(1,\), expected \(0\)"):
        check_input(client, {"sum": np.zeros(1)}, taken, "the server sent group 'sums'")


def test_a_client_without_a_declaration_takes_any_group(node):
    asked = node(f"strategy.client={__name__}:Undeclared", policy={**USUAL, "modules": [__name__]})
    reply = asked.request("train", 1, {"model": model_of(asked), "goal": {"x": np.zeros(2)}})
    assert not isinstance(reply, str), reply


def test_the_frameworks_groups_are_declared_where_a_run_has_them():
    def groups(*words):
        from fedgraph_flwr.config import compose
        from fedgraph_flwr.methods.declared import downlink_of
        from fedgraph_flwr.methods.declared import uplink_of as declared

        cfg = compose(["num_clients=5", *words])
        kind = locate(cfg.strategy.client)
        return downlink_of(kind, cfg, declared(kind, cfg)).phases["train"].keys()

    assert groups() == {"model"}
    assert groups("privacy.secagg=true") == {"model", "secagg"}
    assert groups("train.loss=weighted", "train.class_weights=federated") == {"model", "class_weights"}
    assert groups("strategy.variates=scaffold") == {"model", "heard", "variates"}
