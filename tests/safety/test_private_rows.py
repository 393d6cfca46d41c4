"""Privacy of single rows at the wire and at a node: only noised sums leave it, and its ledger outlives runs and processes."""

import json

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.secure.accounting import skellam_epsilon
from tests.nodes import model_of
from tests.support import recorded_messages

ROW = [
    "strategy=fedgrad",
    "model=mlp",
    "model.dropout=0",
    "privacy.unit=row",
    "privacy.dp=local",
    "privacy.scores=none",
]
ROW += ["privacy.rows=8", "privacy.noise_multiplier=1"]
SECURE = ["privacy.dp=distributed", "privacy.secagg=true", "privacy.secagg_bits=20"]


@pytest.fixture
def exact(monkeypatch):
    """Collect the sums without noise of all clients."""
    found, own_rows = [], vars(FedGradClient)["training_rows"]
    real = own_rows.func

    def watched(self):
        own = real(self)
        sums = own.clipped_sums

        def recorded(*args):
            found.append(sums(*args))
            return found[-1]

        own.clipped_sums = recorded
        return own

    monkeypatch.setattr(own_rows, "func", watched)
    return found


def numbers_of(messages):
    return {key for content in messages for record in content.metric_records.values() for key in record}


@pytest.mark.parametrize("secure", [[], SECURE])
def test_no_message_holds_anything_without_noise(run, monkeypatch, exact, secure):
    """Train replies hold the noised sum and the client's number; no loss, score, size or exact sum is in any message."""
    with recorded_messages(monkeypatch) as seen:
        run(*ROW, *secure, "privacy.batch=4", sizes=(16, 16, 16))
    up = [content for way, _, content in seen if way == "up"]
    assert numbers_of(up) <= {"client", "num_features", "num_classes", "protocol"}
    trained = [content.array_records["model"] for content in up if "model" in content.array_records]
    assert len(trained) == len(exact) == 9
    assert {group for content in up for group in content.array_records} <= {"model", "secagg"}
    for sent in trained:
        for sums in exact:
            for name, total in sums.items():
                array = sent[name].numpy()
                if secure:
                    assert array.dtype == np.uint64
                else:
                    noise = torch.from_numpy(array) - total
                    assert noise.abs().max() > 0.05
                    assert noise.abs().min() > 0


def test_a_node_replies_to_no_other_request(node):
    asked = node(*ROW, policy={"min_nodes": 0})
    described = asked.request("describe", 0)
    assert set(described.metric_records["metrics"]) == {"client", "num_features", "num_classes", "protocol"}
    assert "only its own log has the reason" in asked.request("evaluate", 1, {"model": model_of(asked)})
    other = node(*ROW, "privacy.scores=none", "strategy.double_softmax=true", policy={"min_nodes": 0})
    assert "only its own log has the reason" in other.request("train", 1, {"model": model_of(other)})
    wrong = node("strategy=fedavg", *ROW[1:], policy={"min_nodes": 0})
    assert "does not: set strategy=fedgrad" in wrong.request("describe", 0)


def test_few_rows_are_no_reason_to_refuse(node):
    """A refusal would tell that a party has fewer rows than its policy's least."""
    asked = node(*ROW, policy={"min_nodes": 50})
    reply = asked.request("train", 1, {"model": model_of(asked)})
    assert set(reply.metric_records["metrics"]) == {"client"}


def test_the_ledger_outlives_a_node_and_bounds_all_runs(node, tmp_path):
    limit = skellam_epsilon(1e-5, 1.0, 2, 2.0**19, 0.5) * 1.001
    words = [*ROW, "privacy.batch=4"]
    for number, allowed in enumerate((True, True, False)):
        asked = node(*words, policy={"min_nodes": 0, "max_epsilon": limit, "check_start": False}, state=True)
        reply = asked.request("train", 1, {"model": model_of(asked)})
        assert (not isinstance(reply, str)) == allowed, reply
        if not allowed:
            assert "over all runs of purpose 'training' (max_epsilon)" in reply
        booked = json.loads((tmp_path / "state" / "privacy_training_row.json").read_text())
        assert sum(entry["releases"] for entry in booked.values()) == min(number + 1, 2)
        assert {entry["sampling_rate"] for entry in booked.values()} == {0.5}


def test_without_a_bound_the_ledger_is_kept_too(node, tmp_path):
    asked = node(*ROW, policy={"min_nodes": 0}, state=True)
    asked.request("train", 1, {"model": model_of(asked)})
    assert (tmp_path / "state" / "privacy_training_row.json").is_file()
