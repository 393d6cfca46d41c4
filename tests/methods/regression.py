"""Softmax regression on three small clients, by hand: the oracle of methods that know nothing of graphs.

F_i(θ) = mean cross-entropy of client i + (wd/2) ‖θ‖²,   logits = X W + b,   θ = (W, b) as one vector [(F + 1) C]
"""

from typing import Any

import numpy as np

from tests.conftest import client_graph

SIZES, LR, DECAY = (12, 16, 20), 0.3, 0.01
TRAIN = np.array([6.0, 8.0, 10.0])
"""Training nodes of the clients."""

WORDS = [
    *("rounds=4", "model=mlp", "model.layers=1", "model.dropout=0", "dtype=float64", "train.optimizer=sgd"),
    *(f"train.lr={LR}", f"train.weight_decay={DECAY}", "strategy.weighting=uniform"),
]
"""Under which a run trains just that."""


def data(client: int) -> tuple[np.ndarray, np.ndarray]:
    """X [V, F] and one-hot labels [V, C] of a client's training nodes."""
    graph = client_graph(client, SIZES[client])
    mask = graph.train_mask.numpy()
    return graph.x.numpy()[mask].astype(float), np.eye(3)[graph.y.numpy()[mask]]


def gradient(theta: np.ndarray, client: int, decay: float = DECAY) -> np.ndarray:
    """∇F_i."""
    x, labels = data(client)
    rows = np.hstack([x, np.ones((len(x), 1))])
    logits = rows @ theta.reshape(-1, 3)
    e = np.exp(logits - logits.max(1, keepdims=True))
    return (rows.T @ (e / e.sum(1, keepdims=True) - labels)).ravel() / len(x) + decay * theta


def vector(arrays: Any) -> np.ndarray:
    """The run's parameters as θ."""
    return np.concatenate([np.ravel(arrays["head.weight"]), np.ravel(arrays["head.bias"])])


def start(run: Any) -> np.ndarray:
    """θ before round 1."""
    return vector(run(*WORDS, "rounds=1", "train.local_steps=0").arrays)


def weights(rule: str) -> np.ndarray:
    """p_i over all clients by ``strategy.weighting``."""
    return TRAIN / TRAIN.sum() if rule == "train" else np.full(3, 1 / 3)


def mean_of(values: list[np.ndarray], p: np.ndarray) -> np.ndarray:
    """Σ_i p_i v_i / Σ_i p_i."""
    return p @ np.stack(values) / p.sum()
