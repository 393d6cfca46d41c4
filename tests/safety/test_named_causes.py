"""Smaller findings: a key that is none, parts that are missing, names that are markup, costs that are not shown."""

import json

import numpy as np
import pytest

from fedgraph_flwr.clients.fedspa import FedSPAClient
from fedgraph_flwr.clients.fedstruct import FedStructClient
from fedgraph_flwr.clients.fedstruct_private import PrivateFedStructClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.party.use.card import escaped
from tests.typed_graphs import typed_client

NASTY = "<img src=x onerror=alert(1)> [a](http://x) | `c` **b**\n# head"


def test_a_refused_key_of_fedspa_is_an_error(go, monkeypatch):
    """The server replied with a KeyError."""
    publish = FedSPAClient.publish_key

    def zero(self, groups, config):
        reply = publish(self, groups, config)
        if self.graph.client == 1:
            reply[0]["key"]["key"] = np.zeros(32, np.uint8)
        return reply

    zero.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FedSPAClient, "publish_key", zero)
    with pytest.raises((FedGraphError, RunFailed), match="client 1 replied to phase 'publish_key' with an invalid key"):
        go("fedspa", "strategy.fisher_exchange=scalar", "rounds=1")


@pytest.mark.parametrize("left_out", [1, 2])
def test_sums_without_a_part_are_refused(go, monkeypatch, left_out):
    """A server that relayed no envelope had a gradient with respect to only one client's part."""
    receive = PrivateFedStructClient.receive

    def without(self, groups):
        if self.graph.client == 0:
            groups = {
                **groups,
                "envelopes": {k: e for k, e in groups.get("envelopes", {}).items() if k != str(left_out)},
            }
        receive(self, groups)

    monkeypatch.setattr(PrivateFedStructClient, "receive", without)
    with pytest.raises((FedGraphError, RunFailed), match=rf"received no sealed part of s̄ from clients \[{left_out}\]"):
        go("fedstruct_private", "rounds=1", "strategy.on_failure=fail")


@pytest.mark.parametrize("exchange", [0, None])
def test_the_client_that_ends_otherwise_is_named(go, monkeypatch, exchange):
    """The others were."""
    acquire = FedStructClient.acquire

    def wrong(self, groups, config):
        groups, numbers = acquire(self, groups, config)
        if self.graph.client == 1 and (numbers["done"] or self.exchange == exchange):
            rows = {"support": np.arange(3, dtype=np.int32), "reached": np.ones(3, bool)}
            features = {"structure": {"s": self.structure_features()}}
            return ({"rows": rows, **features}, {"done": 1}) if exchange == 0 else ({}, {"done": 0})
        return groups, numbers

    wrong.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FedStructClient, "acquire", wrong)
    with pytest.raises(
        RunFailed, match=r"clients \[1\] sent other values of 'metrics' in phase 'acquire' than the other 2"
    ):
        go("fedstruct", "rounds=1")


@pytest.mark.parametrize("method", ["fedstruct", "fedstruct_private", "fedstruct_a"])
def test_fedstruct_on_a_typed_graph_is_an_error(tmp_path, method):
    for client in range(3):
        typed_client(client, people=11, features=client == 1).save(tmp_path / f"client_{client:04d}.safetensors")
    with pytest.raises(FedGraphError, match="model=fedstruct needs a graph with one"):
        run(compose([f"strategy={method}", f"graph={tmp_path}", "rounds=1", f"out={tmp_path}/run"]))


def test_names_of_classes_are_text():
    assert escaped("Theory of 2-3 trees") == "Theory of 2-3 trees"
    shown = escaped(NASTY)
    assert "<" not in shown
    assert "\n" not in shown
    assert r"\[a\]\(http://x\)" in shown
    assert r" \| " in shown


@pytest.mark.parametrize("noise", ["1e-200", "1e-4"])
def test_noise_without_an_epsilon_is_refused(noise):
    """Its ε was written as Infinity, which no JSON is."""
    with pytest.raises(FedGraphError, match=r"privacy\.noise_multiplier must be 0 or at least 0\.001"):
        compose(["privacy.dp=server_fixed", f"privacy.noise_multiplier={noise}"])


def test_noised_scores_are_in_the_record_of_their_round(go):
    overrides = [
        "privacy.dp=server_fixed",
        "privacy.noise_multiplier=1",
        "strategy.weighting=uniform",
        "privacy.delta=0.01",
    ]
    finished = go("fedavg", "rounds=3", *overrides, "privacy.scores=noised")
    assert [record["privacy"]["releases"] for record in finished.rounds] == [2, 4, 6]
    assert finished.summary["privacy"]["releases"] == 6
    for line in (finished.out / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
