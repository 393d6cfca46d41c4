"""Class weights over all clients: the weights of their labels combined, sent as shares, and used by every method."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from fedgraph_flwr import partition
from fedgraph_flwr.clients import replies
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.labels import large_enough, shares, weights
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.wire.messages import from_record
from tests.methods.small_runs import METHODS, sampled
from tests.support import assert_same_arrays, call_fresh, honest_reply, patch_replies, recorded_messages

FEDERATED = ("train.loss=weighted", "train.class_weights=federated")

UNWEIGHTED = {"fedstruct_a"}
"""Methods that sum gradients of a plain loss."""


def test_weights_follow_from_shares():
    y = np.repeat([0, 1, 2], [70, 25, 5])
    np.random.default_rng(0).shuffle(y)
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(weights(shares(y, 3, 0)), theirs)
    parts = np.split(y, [10, 40])  # put together by their sizes, whoever holds what
    values = np.average([shares(part, 3, 0) for part in parts], axis=0, weights=[10, 30, 60])
    np.testing.assert_allclose(weights(values), theirs)
    assert weights(np.zeros(2)).tolist() == [1, 1]


def test_a_rare_class_is_not_told_and_counts_as_the_rarest():
    y = np.repeat([0, 1, 2], [70, 26, 4])
    assert shares(y, 3, 2).tolist() == [0.7, 0.26, 0.04]
    assert shares(y, 3, 5).tolist() == [0.7, 0, 0], "the rest to 1 would be the third class"
    assert weights(shares(y, 3, 5)).tolist() == [1 / 0.7] * 3


@pytest.mark.parametrize("method", sampled(METHODS))
def test_every_method_trains_by_the_weights_of_all(method, go, monkeypatch):
    seen: dict[int, torch.Tensor] = {}
    answer = honest_reply

    def spy(self, name, groups, config):
        reply = answer(self, name, groups, config)
        if name == "train":
            seen[self.graph.client] = self.class_weights
        return reply

    patch_replies(monkeypatch, spy)
    if method in UNWEIGHTED:
        with pytest.raises(FedGraphError, match=r"needs train\.loss=cross_entropy, got train\.loss=weighted"):
            go(method, "rounds=1", *FEDERATED)
        return
    finished = go(method, "rounds=1", *FEDERATED)
    assert finished.summary["failures"] == {}
    graphs = [partition.load_client(finished.cfg, i) for i in range(partition.num_clients(finished.cfg))]
    y = np.concatenate([graph.y[graph.train_mask].numpy() for graph in graphs])
    classes = np.unique(y)
    theirs = compute_class_weight("balanced", classes=classes, y=y)
    assert seen
    for tensor in seen.values():
        np.testing.assert_allclose(tensor[classes], theirs, rtol=1e-5)


def test_shares_alone_leave_a_client_once(go, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = go("fedavg", *FEDERATED)
    up = [(node, c.array_records["labels"]) for way, node, c in messages if way == "up" and "labels" in c.array_records]
    assert sorted(node for node, _ in up) == [1, 2, 3]
    for node, record in up:
        graph = partition.load_client(finished.cfg, node - 1)
        y = graph.y[graph.train_mask].numpy()
        expected = np.array([(y == c).mean() for c in range(graph.num_classes)])
        np.testing.assert_allclose(from_record(record)["share"], expected)
    plain = go("fedavg", "train.loss=weighted")
    assert [r["train"] for r in plain.rounds] != [r["train"] for r in finished.rounds]


def test_a_client_that_is_rebuilt_and_a_run_that_is_resumed_weigh_alike(go, monkeypatch):
    whole, half = go("fedspa", *FEDERATED), go("fedspa", *FEDERATED, "rounds=1", "checkpoint_every=1")
    node_clients.forget(0)
    assert_same_arrays(go("fedspa", *FEDERATED, f"resume={half.out}", f"out={half.out}").arrays, whole.arrays)
    monkeypatch.setattr(InlineGrid, "_call", call_fresh)
    assert_same_arrays(go("fedspa", *FEDERATED).arrays, whole.arrays)


def test_wrong_shares_are_refused_and_wrong_weights_too(go, monkeypatch):
    def lie(client, phase, groups, config):
        sent, numbers = honest_reply(client, phase, groups, config)
        if phase == "labels" and client.graph.client == 1:
            sent = {"labels": {"share": sent["labels"]["share"] * 9}}
        return sent, numbers

    with monkeypatch.context() as patch:
        patch_replies(patch, lie)
        failures = go("fedavg", "rounds=1", *FEDERATED).summary["failures"]
    assert "expected 0 to 1" in failures["1 (labels)"]
    build = Live.messages

    def without(live, *args, **kwargs):
        method = live.strategy
        method.class_weights = {"w": -np.ones(3)} if method.server_round else {}
        return build(live, *args, **kwargs)

    monkeypatch.setattr(Live, "messages", without)
    with pytest.raises(FedGraphError, match="'class_weights' of phase 'train' with 'w' from -1 to -1, expected 0"):
        go("fedavg", "rounds=1", *FEDERATED)


def test_it_needs_a_weighted_loss():
    with pytest.raises(FedGraphError, match=r"train\.class_weights=federated has no effect with train\.loss=focal"):
        compose(["train.class_weights=federated", "train.loss=focal"])


def test_a_partys_policy_holds_for_it(run, tmp_path):
    """On a fleet's node, classes of fewer training nodes than its policy's ``min_nodes`` are sent as 0."""
    from tests.nodes import Node

    folder = Path(run("rounds=1").cfg.graph)
    cfg = compose([f"graph={folder}", "num_clients=3", "model.hidden=8", *FEDERATED])
    (tmp_path / "policy.yaml").write_text("min_nodes: 4\n")
    graph = str(folder / "client_0002.safetensors")  # of 20 nodes, ten train
    y = partition.load(graph).y[partition.load(graph).train_mask].numpy()
    count = np.bincount(y, minlength=3)
    assert (count < 4).any()
    assert (count >= 4).any()
    reply = Node(cfg, graph=graph, policy=str(tmp_path / "policy.yaml")).request("labels")
    share = from_record(reply.array_records["labels"])["share"]
    shown = large_enough(count, 4)
    assert not shown[count < 4].any()
    np.testing.assert_allclose(share, np.where(shown, count / count.sum(), 0))


def test_shares_are_terms_of_a_secure_sum_where_sums_are_secure(go, monkeypatch):
    weighed = []
    weigh = replies.take_class_weights

    def spy(client, group):
        weighed.append(group["w"])
        weigh(client, group)

    monkeypatch.setattr(replies, "take_class_weights", spy)
    go("fedavg", "rounds=1", *FEDERATED)
    plain = weighed[-1]
    with recorded_messages(monkeypatch) as messages:
        go("fedavg", "rounds=1", "privacy.secagg=true", *FEDERATED)
    np.testing.assert_allclose(weighed[-1], plain, rtol=1e-5)
    up = [c.array_records["labels"] for way, _, c in messages if way == "up" and "labels" in c.array_records]
    assert {from_record(record)["share"].dtype for record in up} == {np.dtype(np.uint64)}
