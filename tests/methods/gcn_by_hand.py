"""A two-layer GCN in NumPy, its gradient, and steps of SGD with weight decay."""

import numpy as np

from tests.conftest import client_graph
from tests.support import dense_gcn_adjacency

SIZES, TRAINS = (12, 16, 20), (6, 8, 10)


LR, DECAY, STEPS = 0.4, 0.01, 2


EXACT = ["dtype=float64", "model.dropout=0", "train.optimizer=sgd", f"train.lr={LR}", f"train.weight_decay={DECAY}"]


Theta = dict[str, np.ndarray]


class Party:
    """One client: its normalised adjacency [N, N], X [N, F], one-hot Y [N, C], and who trains and validates."""

    def __init__(self, client: int):
        graph = client_graph(client, SIZES[client])
        self.a = dense_gcn_adjacency(graph.edge_index, graph.num_nodes).numpy()
        self.x, self.y = graph.x.double().numpy(), np.eye(graph.num_classes)[graph.y.numpy()]
        self.train, self.val = graph.train_mask.numpy(), graph.val_mask.numpy()

    def forward(self, theta: Theta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Z^1 [N, H], H^1 [N, H] and log-probabilities [N, C]."""
        z = self.a @ self.x @ theta["layers.0.weight"] + theta["layers.0.bias"]
        h = np.maximum(z, 0)
        out = self.a @ h @ theta["head.weight"] + theta["head.bias"]
        return z, h, out - np.log(np.exp(out).sum(1, keepdims=True))

    def loss(self, theta: Theta, mask: np.ndarray) -> float:
        return float(-(self.forward(theta)[2] * self.y).sum(1)[mask].mean())

    def gradient(self, theta: Theta) -> Theta:
        z, h, logs = self.forward(theta)
        d = (np.exp(logs) - self.y) * self.train[:, None] / self.train.sum()
        dz = (self.a.T @ d @ theta["head.weight"].T) * (z > 0)
        return {
            "layers.0.weight": (self.a @ self.x).T @ dz,
            "layers.0.bias": dz.sum(0),
            "head.weight": (self.a @ h).T @ d,
            "head.bias": d.sum(0),
        }


def step(theta: Theta, gradient: Theta) -> Theta:
    return {n: t - LR * (gradient[n] + DECAY * t) for n, t in theta.items()}


def trained(party: Party, theta: Theta, steps: int = STEPS, mu: float = 0.0, held_at: Theta | None = None) -> Theta:
    """Steps of FedProx's objective with this μ, whose proximal term holds the model at its start or at another model."""
    start = held_at or theta
    for _ in range(steps):
        slope = party.gradient(theta)
        theta = step(theta, {n: slope[n] + mu * (theta[n] - start[n]) for n in theta})
    return theta


def mean(thetas: list[Theta]) -> Theta:
    return {n: sum(w * t[n] for w, t in zip(TRAINS, thetas, strict=True)) / sum(TRAINS) for n in thetas[0]}


def mix(v: Theta, w: Theta, share: float) -> Theta:
    return {n: share * v[n] + (1 - share) * w[n] for n in w}
