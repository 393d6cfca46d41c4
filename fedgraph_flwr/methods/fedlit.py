"""FedLIT: its keys, the name of what travels, and how clusters of links are found and matched.

A link {u, v}, u ≤ v (a loop that is stored is one), is embedded as [z_u ‖ z_v], z the projection; its type is the centroid whose
cosine with it is largest.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.similarity import unit_rows
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, LateMean, Uplink
from fedgraph_flwr.wire.messages import MODEL, TRAIN

LINKS = "links"
"""Group. Both ways: ``centroids`` [k, 2H]; up also ``count`` [k], training nodes that links of each type touch."""


@dataclass
class Params:
    """Keys of FedLIT."""

    em_steps: int = 1  # of clustering a round


def assigned(z: Tensor, pairs: Tensor, centroids: Tensor) -> Tensor:
    """The type of each link: z [N, H], pairs [2, E], centroids [k, 2H] → [E]. No [z_u ‖ z_v] is made."""
    left, right = (centroids / centroids.norm(dim=1, keepdim=True).clamp(min=1e-12)).chunk(2, 1)
    score = (z @ left.T)[pairs[0]] + (z @ right.T)[pairs[1]]  # [E, k]; a link's own length moves no comparison
    return score.argmax(1)


def means(z: Tensor, pairs: Tensor, types: Tensor, former: Tensor) -> Tensor:
    """The mean embedding of each type's links, [k, 2H]; the former centroid of a type without any."""
    k, n = former.size(0), z.size(0)
    count = types.bincount(minlength=k)
    ends = [(types * n + end).bincount(minlength=k * n).view(k, n).to(z) @ z for end in pairs]
    return torch.where(count[:, None] > 0, torch.cat(ends, 1) / count.clamp(min=1)[:, None], former)


def matched(centroids: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Of each centre [k, D] the cluster that is matched with it, one to one, greedily by descending cosine: [k]."""
    k = len(centres)
    likeness = unit_rows(centres) @ unit_rows(centroids).T
    found = np.full(k, -1)
    for _ in range(k):
        centre, cluster = np.unravel_index(likeness.argmax(), likeness.shape)
        found[centre] = cluster
        likeness[centre], likeness[:, cluster] = -np.inf, -np.inf
    return found


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """The model, whose branches are matched by the clusters of links, and these."""
    return {
        TRAIN: {
            MODEL: LateMean(ARRAYS, why="each client's branches come in an order of their own"),
            LINKS: Individual(why="the server matches the clusters of all clients"),
        }
    }
