"""FedTGP: the margin and the training of prototypes on the server, by hand-written gradients in NumPy."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.strategies.fedtgp import FedTGP, margin
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.wire.messages import Reply, derive_seed
from tests.support import reduced

C, D, RATE, BATCH = 3, 4, 0.2, 3


def server_of(*overrides):
    keys = [f"strategy.server_lr={RATE}", "strategy.server_epochs=2"]
    server = FedTGP(compose(["strategy=fedtgp", "dtype=float64", *keys, *overrides]))
    server.clients = {i: ClientInfo(i, i, {"num_classes": C, "width": D}) for i in range(3)}
    server.setup()
    return server


def trained(state, prototypes, y, delta, orders):
    """P̂ and what it is made of after SGD on batches in these orders; gradients of Eq. (10) written out."""
    state = {name: value.copy() for name, value in state.items()}
    for order in orders:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            before = state["vectors"] @ state["inner.weight"].T + state["inner.bias"]
            hidden = np.maximum(before, 0)
            made = hidden @ state["outer.weight"].T + state["outer.bias"]
            slope = np.zeros_like(made)
            for r in rows:
                phi = np.sqrt(((prototypes[r] - made) ** 2).sum(1))
                power = np.exp(-phi - delta * (np.arange(C) == y[r]))
                share = power / power.sum()
                for c in range(C):
                    slope[c] += ((c == y[r]) - share[c]) * (made[c] - prototypes[r]) / phi[c] / len(rows)
            back = (slope @ state["outer.weight"]) * (before > 0)
            gradients = {
                "outer.weight": slope.T @ hidden,
                "outer.bias": slope.sum(0),
                "inner.weight": back.T @ state["vectors"],
                "inner.bias": back.sum(0),
                "vectors": back @ state["inner.weight"],
            }
            state = {name: value - RATE * gradients[name] for name, value in state.items()}
    hidden = np.maximum(state["vectors"] @ state["inner.weight"].T + state["inner.bias"], 0)
    return hidden @ state["outer.weight"].T + state["outer.bias"], state


def test_prototypes_are_trained_round_by_round(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.strategies.fedtgp.BATCH", BATCH)
    server, rng = server_of(), np.random.default_rng(0)
    state = {name: value.copy() for name, value in server.memory["generator"].items()}
    for server_round, count in ((1, [[1, 1, 0], [0, 1, 0], [1, 1, 1]]), (2, [[1, 0, 0], [1, 1, 0], [0, 0, 0]])):
        means, held = rng.normal(size=(3, C, D)), np.array(count)
        server.round = Round(server_round)
        server.learn(means, held)
        pairs = [(i, c) for i in range(3) for c in range(C) if held[i, c]]
        prototypes, y = [means[pair] for pair in pairs], [c for _, c in pairs]
        centres = {c: np.mean([p for p, k in zip(prototypes, y, strict=True) if k == c], 0) for c in set(y)}
        delta = max(np.linalg.norm(centres[a] - centres[b]) for a in centres for b in centres)
        assert 0 < delta < 100
        stream = torch.Generator().manual_seed(derive_seed(server.cfg.seed, "generator", server_round))
        orders = [torch.randperm(len(y), generator=stream).tolist() for _ in range(2)]
        made, state = trained(state, prototypes, y, delta, orders)
        np.testing.assert_allclose(server.memory["prototypes"]["mean"], made, rtol=1e-9, atol=1e-12)
        assert server.memory["prototypes"]["known"].all()
        for name, value in state.items():
            np.testing.assert_allclose(server.memory["generator"][name], value, rtol=1e-9, atol=1e-12)


def test_the_margin_grows_with_the_clusters_up_to_its_threshold():
    values = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0], [1.0, 13.0]])
    y = torch.tensor([0, 0, 1, 2])  # centres (1, 0), (1, 3), (1, 13)
    assert margin(values, y, 100.0) == pytest.approx(13)
    assert margin(values, y, 5.0) == 5
    assert margin(values[:2], y[:2], 5.0) == 0


def test_training_parts_prototypes_that_start_close():
    """Clients' prototypes of two classes are close together; the global ones end farther apart than their means."""
    rng = np.random.default_rng(1)
    centres = np.array([[0.5, 0, 0, 0], [-0.5, 0, 0, 0], [0, 0.5, 0, 0]])
    server = server_of("strategy.server_epochs=300", "strategy.server_lr=0.05")
    server.round = Round(1)
    server.learn(centres + 0.1 * rng.normal(size=(3, C, D)), np.ones((3, C), int))
    made = server.memory["prototypes"]["mean"]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(made[a] - made[b]) > np.linalg.norm(centres[a] - centres[b])
    assert [int(np.argmin(np.linalg.norm(made - c, axis=1))) for c in centres] == [0, 1, 2]


def test_nothing_is_learnt_of_clients_without_training_nodes():
    server = server_of()
    nothing = {"mean": np.zeros((C, D)), "count": np.zeros(C, int)}
    server.step({}, reduced(server, "train", [Reply(0, {"prototypes": nothing}, {"num_train": 0})]))
    assert server.before_train({}) == server.before_evaluate({}) == {}


def test_wrong_keys_are_refused():
    for word in ("server_epochs=-1", "server_lr=-1", "lam=-1"):
        with pytest.raises(FedGraphError, match=word.split("=")[0]):
            check_method(compose(["strategy=fedtgp", f"strategy.{word}"]))
