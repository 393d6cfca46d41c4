"""What methods that share class prototypes have in common: keys, names on the wire, and the mean embedding of each class.

C_i^j = (1 / |D_ij|) Σ_{v ∈ D_ij} f_i(v)                    FedProto, Eq. (3): D_ij the training nodes of class j at client i
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import at_least, one_of

PROTOTYPES = "prototypes"
"""Group. Up: ``mean`` [C, D], ``count`` [C], 0 where the client tells nothing. Down: ``mean`` [C, D], ``known`` [C]."""

WIDTH = "width"
"""What a client tells of itself: D, the width of its embeddings."""


@dataclass
class Params:
    """Keys of both sides."""

    lam: float = 1.0  # λ; 0 is Local
    distance: str = "nodes"  # nodes | prototypes
    min_nodes: int = 1  # classes with fewer training nodes at a client are not told

    def __post_init__(self) -> None:
        at_least(self.lam, 0, "strategy.lam")
        at_least(self.min_nodes, 1, "strategy.min_nodes")
        one_of(self.distance, ("nodes", "prototypes"), "strategy.distance")


def class_means(h: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean embedding of each class and its number of nodes, [V, D] and [V] → [C, D] and [C]; 0 for an empty class."""
    member = F.one_hot(y, num_classes).to(h.dtype)  # [V, C]
    count = y.bincount(minlength=num_classes)
    return member.T @ h / count.clamp(min=1)[:, None], count


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of rows, [R, D] and [S, D] → [R, S]; not by products, which lose digits between close rows."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
