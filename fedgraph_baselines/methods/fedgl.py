"""FedGL: its keys, names on the wire, and the server's fusion of predictions for nodes that clients share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedgraph_baselines.methods.prototypes import described_width
from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Individual, Once, Uplink, model_only
from fedgraph_flwr.models.structure_learner import top_k
from fedgraph_flwr.wire.messages import EVALUATE, TRAIN
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField

IDS = "ids"
"""Group, up, once: global ids of a client's nodes, ``node`` int64 [N], ascending."""

NODES = "nodes"
"""Group, up: predictions ``z`` [N, C] and embeddings ``h`` [N, D]."""

PSEUDO = "pseudo"
"""Group, down: ``label`` int64 [N], −1 for none; the pseudo graph among own nodes, ``row``, ``col``, ``weight`` [E]."""

THRESHOLD = 0.5
"""Confidence below which a client's prediction counts as 0 (OpenFGL)."""


@dataclass
class Params:
    """Keys of FedGL."""

    label_weight: float = 0.1  # weight of the pseudo labels' cross-entropy
    graph_weight: float = 0.1  # (ours) of the pseudo graph relative to the client's own; OpenFGL leaves it out (0)
    neighbours: int = number(20, low=1)  # (ours) per node in the pseudo graph; 100 in OpenFGL
    every: int = number(1, low=1)  # rounds between two updates of pseudo labels and graph

    @property
    def discovers(self) -> bool:
        """Whether the method does more than FedAvg."""
        return bool(self.label_weight or self.graph_weight)

    def due(self, server_round: int) -> bool:
        """Return whether clients send predictions in this round."""
        return self.discovers and (server_round - 1) % self.every == 0


def fused(ids: list[np.ndarray], values: list[np.ndarray], weights: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Average the clients' values of each node: ids [N_i], values [N_i, K] → all ids [U], ascending, and [U, K]."""
    nodes, place = np.unique(np.concatenate(ids), return_inverse=True)
    share = np.repeat(weights if any(weights) else np.ones(len(ids)), [len(part) for part in ids])
    total, weight = np.zeros((nodes.size, values[0].shape[1])), np.zeros(nodes.size)
    np.add.at(total, place, share[:, None] * np.concatenate(values))
    np.add.at(weight, place, share)
    return nodes, np.divide(total, weight[:, None], out=np.zeros_like(total), where=weight[:, None] > 0)


def pseudo_labels(z: np.ndarray) -> np.ndarray:
    """Return the most probable class of each node with a prediction above the threshold, else −1: [U, C] → [U]."""
    return np.where(z.sum(axis=1) > 0, z.argmax(axis=1), -1)


def pseudo_graph(h: np.ndarray, neighbours: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and weight of the pseudo graph: each node's largest products h_u·h_v > 0, over their sum."""
    rows = torch.from_numpy(h)
    near = top_k(rows, rows, neighbours)
    value = (rows[near.row] * rows[near.col]).sum(1).clamp(min=0)
    total = near.row_sum(value)[near.row]
    kept = (value > 0) & (total > 0)
    return near.row[kept].numpy(), near.col[kept].numpy(), (value / total)[kept].numpy()


def among(
    nodes: np.ndarray, members: np.ndarray, entries: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    """Select the entries with both ends among ``members``, in local numbering: nodes [U] and members [N] ids, both ascending."""
    local = np.full(nodes.size, -1)
    local[np.searchsorted(nodes, members)] = np.arange(members.size)
    row, col = local[entries[0]], local[entries[1]]
    inside = (row >= 0) & (col >= 0)
    return {"row": row[inside], "col": col[inside], "weight": entries[2][inside]}


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model; with pseudo labels or graph, ids of nodes once, and the client's predictions for each node."""
    model = model_only(cfg, params)[TRAIN]
    if not params.discovers:
        return {TRAIN: model, **described_width()}
    ids = {"node": ArrayField((range(1, LARGEST),), "int64", 0, LARGEST)}
    return {
        "identify": Once({IDS: Individual(ids, why="the server finds the nodes that several clients hold")}),
        TRAIN: {**model, NODES: Individual(why="predictions are fused node by node")},
        **described_width(),
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare pseudo labels and the pseudo graph of the client's nodes."""
    if not params.discovers:
        return {}
    names = ("label", "row", "col", "weight")
    groups = {PSEUDO: Input("pseudo labels of the client's nodes, and edges between them", dict.fromkeys(names))}
    return {TRAIN: groups, EVALUATE: groups}
