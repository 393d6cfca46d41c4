"""FedTAD: keys, and the reliability of a client for each class.

t_v = (T_vv, T²_vv, .., T^p_vv),   T = A D^{-1}                                        the topology embedding of a node
Ψ_i[c] = Σ_{v trains, y_v = c} mean_{u ∈ N(v), v} cos([x_v ‖ t_v], [x_u ‖ t_u])        uploaded by client i
Φ_i[c] = Ψ_i[c] / Σ_j Ψ_j[c]                                                           weight of teacher i, over all clients

Φ is normalised over clients, as in the authors' code (zyl24/FedTAD 3285d54, train_fedtad.py, line 115). A client with one
training node of a class has little weight for it next to a client with many.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, Uplink
from fedgraph_flwr.models.layers import proper_adjacency, random_walk_adjacency
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.numerics.walks import return_probabilities
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import LARGEST, NumberField, up_to

RELIABILITY = "reliability"
"""Key of a client's description: Ψ_i [C]."""

WALKS = 5
"""p, length of the longest random walk in the topology embedding (the authors' code)."""

NODES = 100
"""Nodes generated per epoch; at least one per class (the authors' code)."""

NOISE = 32
"""Width of a generated node's noise (the authors' code)."""

STUDENT_STEPS = 5
"""Student steps per epoch, after one step of the generator (the authors' code)."""


@dataclass
class Params:
    """Keys of FedTAD."""

    epochs: int = 5  # distillation epochs after each average; 0 is FedAvg
    neighbours: int = number(5, low=2)  # neighbours of a generated node, including itself
    lam1: float = 1.0  # λ1, weight of the disagreement that the generator maximises
    lam2: float = 1.0  # λ2, weight of the diversity of generated nodes
    lr: float = number(1e-3, without_low=True)  # learning rate of generator and student
    weight_decay: float = 0.0  # weight decay of generator and student


def reliability(graph: Graph, min_nodes: int = 0) -> np.ndarray:
    """Compute Ψ_i, float64 [C]; 0 for classes with fewer than ``min_nodes`` training nodes or a negative sum."""
    returns = torch.from_numpy(return_probabilities(proper_adjacency(graph.edge_index, graph.num_nodes), WALKS))
    unit = F.normalize(torch.cat([graph.x.double().cpu(), returns], 1), dim=1)
    around = SparseMatrix(random_walk_adjacency(graph.edge_index, graph.num_nodes), torch.float64) @ unit
    alike = (unit * around).sum(1)[graph.train_mask]  # the mean of cosines is the cosine's sum with the mean
    total = torch.zeros(graph.num_classes, dtype=torch.float64).index_add(0, graph.y[graph.train_mask], alike)
    few = graph.y[graph.train_mask].bincount(minlength=graph.num_classes) < min_nodes
    return total.clamp(min=0).masked_fill(few, 0).numpy()


def teacher_weights(sums: Tensor) -> Tensor:
    """Divide Ψ [clients, C] by each class's sum over clients; 0 for a class that no client knows."""
    total = sums.sum(0)
    return torch.where(total > 0, sums / total.clamp(min=torch.finfo(sums.dtype).tiny), 0)


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, and once the client's reliability for each class."""
    sums = {RELIABILITY: NumberField(0, LARGEST, length=up_to(2**16))}
    return {
        DESCRIBE: {METRICS: Individual(sums, why="each teacher is weighted by its share of every class")},
        TRAIN: {MODEL: Individual(ARRAYS, why="every client's model is a teacher")},
    }
