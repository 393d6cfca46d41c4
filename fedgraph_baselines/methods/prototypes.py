"""Shared parts of methods with class prototypes: keys, names on the wire, and the mean embedding of each class.

C_i^j = (1 / |D_ij|) Σ_{v ∈ D_ij} f_i(v)                    FedProto, Eq. (3): D_ij the training nodes of class j at client i
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Individual, Public, Sum, Uplink
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, METRICS, TRAIN
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, NumberField

PROTOTYPES = "prototypes"
"""Group. Up: ``mean`` [C, D], ``count`` [C], 0 for a class that is not sent. Down: ``mean`` [C, D], ``known`` [C]."""

WIDTH = "width"
"""Number in a client's description: D, the width of its embeddings."""


@dataclass
class Params:
    """Keys of both sides."""

    lam: float = 1.0  # λ of Eq. (7), best on MNIST and FEMNIST (0.1 on CIFAR-10); 0 is Local
    # L_R: nodes (the authors' code) | prototypes, Eq. (8)
    distance: str = choice("nodes", ("nodes", "prototypes"))
    # (ours) a client does not send classes with fewer training nodes; with 1, a prototype may be one node's embedding
    min_nodes: int = number(1, low=1)


@dataclass
class FedTGPParams(Params):
    """Keys of FedTGP."""

    lam: float = 0.1  # λ of Eq. (11), the paper's value; 10 in the script of the authors' code; 0 is Local
    server_epochs: int = 100  # S, epochs of training the prototypes per round
    server_lr: float = 0.01  # step size of the server's SGD


def class_means(h: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Compute the mean embedding and number of nodes of each class, [V, D] and [V] → [C, D] and [C]; 0 for an empty class."""
    member = F.one_hot(y, num_classes).to(h.dtype)  # [V, C]
    count = y.bincount(minlength=num_classes)
    return member.T @ h / count.clamp(min=1)[:, None], count


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Compute Euclidean distances of rows, [R, D] and [S, D] → [R, S], without products, which lose digits for close rows."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare FedProto's uplink: per class the sum of its nodes' embeddings, and their number."""
    sums = {"sum": ArrayField(("C", WIDTH), "float64"), "count": ArrayField(("C",), "float64", 0, LARGEST)}
    return {**described_width(), TRAIN: {PROTOTYPES: Sum(sums)}}


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the global prototypes."""
    fields = {"mean": ArrayField(("C", WIDTH), cfg.dtype), "known": ArrayField(("C",), "bool")}
    groups = {PROTOTYPES: Input("the prototype of each class, and whether it has one", fields)}
    return {TRAIN: groups, EVALUATE: groups}


def single_uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare FedTGP's uplink: one prototype per class, and whether the client has it."""
    fields = {"mean": ArrayField(("C", WIDTH), cfg.dtype), "count": ArrayField(("C",), "int64", 0, 1)}
    return {
        **described_width(),
        TRAIN: {PROTOTYPES: Individual(fields, why="the server trains on every client's prototypes")},
    }


def described_width() -> Uplink:
    """Declare D in the description."""
    return {DESCRIBE: {METRICS: Public({WIDTH: NumberField(1, LARGEST, whole=True)})}}
