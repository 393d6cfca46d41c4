"""FedAvg, FedProx, Local: limits, symmetries, and what travels."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.fedprox import proximal_term
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import METRICS, MODEL, weighted_mean
from tests.conftest import client_graph
from tests.support import assert_same_arrays, recorded_messages


def test_weighted_mean_by_hand_and_fixed_point():
    a, b = {"w": np.array([1.0, 2.0], np.float32)}, {"w": np.array([5.0, 10.0], np.float32)}
    np.testing.assert_array_equal(weighted_mean([a, b], [1, 3])["w"], np.array([4.0, 8.0], np.float32))
    odd = {"w": np.random.default_rng(0).normal(size=50).astype(np.float32)}
    np.testing.assert_array_equal(weighted_mean([odd, odd, odd], [1, 2, 4])["w"], odd["w"])
    with pytest.raises(FedGraphError, match="sum to 0"):
        weighted_mean([a, b], [0, 0])


def test_one_sgd_step_equals_the_step_on_the_union(run):
    """p_i ∝ training nodes, one full-batch SGD step, no cut edges: FedAvg is a gradient step on the pooled mean loss."""
    overrides = [
        "rounds=1",
        "train.optimizer=sgd",
        "train.lr=0.3",
        "train.local_steps=1",
        "model.dropout=0",
        "dtype=float64",
    ]
    finished = run(*overrides, "train.weight_decay=0")
    cfg = finished.cfg
    clients = [GraphClient(cfg, client_graph(i, n)) for i, n in enumerate((12, 16, 20))]
    model = clients[0].model
    logits = [model(c.inputs)[c.train_nodes] for c in clients]
    labels = torch.cat([c.y[c.train_nodes] for c in clients])
    model.zero_grad()
    torch.nn.functional.cross_entropy(torch.cat(logits), labels).backward()
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - 0.3 * parameter.grad
        np.testing.assert_allclose(finished.arrays[name], expected.numpy(), rtol=0, atol=1e-12)


def test_same_seed_same_bits_other_seed_other_bits(run):
    first, again, other = run("seed=1"), run("seed=1"), run("seed=2")
    assert_same_arrays(first.arrays, again.arrays)
    assert any((first.arrays[k] != other.arrays[k]).any() for k in first.arrays)


def test_fedprox_without_mu_is_fedavg(run):
    assert_same_arrays(run("strategy=fedprox", "strategy.mu=0").arrays, run().arrays)


def test_fedprox_with_one_step_is_fedavg_and_with_three_is_not(run):
    one = ["train.optimizer=sgd", "train.local_steps=1"]
    assert_same_arrays(run(*one, "strategy=fedprox", "strategy.mu=5").arrays, run(*one).arrays)
    three = ["train.optimizer=sgd", "train.local_steps=3", "rounds=1"]
    moved = {mu: run(*three, "strategy=fedprox", f"strategy.mu={mu}").arrays for mu in (0, 1, 5)}
    start = run("rounds=1", "train.local_steps=0").arrays
    distance = {mu: sum(np.square(a[k] - start[k]).sum() for k in start) for mu, a in moved.items()}
    assert distance[0] > distance[1] > distance[5] > 0


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_proximal_gradient_is_mu_times_displacement(shift):
    model = torch.nn.Linear(3, 2)
    current = dict(model.named_parameters())
    proximal_term(current, {k: p.detach() - shift for k, p in current.items()}, mu=0.1).backward()
    for parameter in current.values():
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.1 * shift))


def test_local_sends_no_array_and_ignores_its_peers(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=local")
    assert not any(record for _, _, content in messages for record in content.array_records.values())
    assert finished.arrays == {}
    alone = run("strategy=local", sizes=(12,))
    assert [r["clients"]["test-accuracy"][0] for r in finished.rounds] == [
        r["clients"]["test-accuracy"][0] for r in alone.rounds
    ]


def test_messages_hold_the_shared_parameters_and_scores_only(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run()
    shapes = {name: array.shape for name, array in finished.arrays.items()}
    assert shapes
    for direction, _, content in messages:
        assert set(content) <= ({MODEL, METRICS} if direction == "up" else {MODEL, "config"})
        for record in content.array_records.values():
            assert {name: tuple(array.shape) for name, array in record.items()} == shapes
        for record in content.metric_records.values():
            lists = [value for value in record.values() if isinstance(value, list)]
            assert all(len(value) == 1 for value in lists), "one score a client, nothing by node"


@pytest.mark.parametrize(("rule", "weights"), [("train", (6, 8, 10)), ("nodes", (12, 16, 20)), ("uniform", (1, 1, 1))])
def test_weighting(run, monkeypatch, rule, weights):
    with recorded_messages(monkeypatch) as messages:
        finished = run("rounds=1", f"strategy.weighting={rule}", sizes=(12, 16, 20))
    up = [c.array_records[MODEL] for d, _, c in messages if d == "up" and MODEL in c.array_records]
    for name, array in finished.arrays.items():
        members = np.stack([record[name].numpy().astype(np.float64) for record in up])
        expected = np.tensordot(np.array(weights) / sum(weights), members, axes=1).astype(np.float32)
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-9)


def test_shared_prefix_keeps_the_rest_private(run, monkeypatch):
    names = [n for n, _ in GraphClient(compose(["model.hidden=8"]), client_graph(0)).model.named_parameters()]
    prefix = names[0]
    with recorded_messages(monkeypatch) as messages:
        run(f"strategy.shared=[{prefix}]")
    sent = {name for _, _, content in messages for record in content.array_records.values() for name in record}
    assert sent == {n for n in names if n.startswith(prefix)}


def test_a_client_without_training_nodes_weighs_nothing():
    cfg = compose(["model.hidden=8"])
    graph = client_graph(0)
    graph.train_mask[:] = False
    client = GraphClient(cfg, graph)
    before = client.get_parameters({})
    after, count, _ = client.fit(before, {})
    assert count == 0
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_adam_moments_survive_a_round_and_sgd_starts_fresh():
    client = GraphClient(compose(["model.hidden=8"]), client_graph(0))
    client.train()
    kept = client.optimizer
    client.train()
    assert client.optimizer is kept
    client = GraphClient(compose(["model.hidden=8", "train.optimizer=sgd"]), client_graph(0))
    client.train()
    first = client.optimizer
    client.train()
    assert client.optimizer is not first
