"""FedLIT: keys, the name of the message group, and clustering and matching of links.

A link {u, v}, u ≤ v (stored loops included), is embedded as [z_u ‖ z_v], z the projection. Its type is the centroid with the
largest cosine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_baselines.methods.similarity import unit_rows
from fedgraph_flwr.config import RunConfig, choice
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, LateMean, Uplink
from fedgraph_flwr.wire.messages import EVALUATE, MODEL, TRAIN

LINKS = "links"
"""Group, both ways: ``centroids`` [k, 2H]; to the server also ``count`` [k], training nodes that each type's links touch."""


@dataclass
class Params:
    """Keys of FedLIT."""

    # links that a branch reads: those of its cluster | (ours, for comparison) random: drawn once | all
    links: str = choice("clustered", ("clustered", "random", "all"))


def assigned(z: Tensor, pairs: Tensor, centroids: Tensor) -> Tensor:
    """Return the type of each link: z [N, H], pairs [2, E], centroids [k, 2H] → [E], without a matrix of [z_u ‖ z_v]."""
    left, right = (centroids / centroids.norm(dim=1, keepdim=True).clamp(min=1e-12)).chunk(2, 1)
    score = (z @ left.T)[pairs[0]] + (z @ right.T)[
        pairs[1]
    ]  # [E, k]; the norm of a link's embedding does not change the argmax
    return score.argmax(1)


def link_counts(types: Tensor, pairs: Tensor, k: int, n: int) -> Tensor:
    """Return how many links of each of k types have each of n nodes as their first and as their second end, [2, k, n]."""
    return torch.stack([(types * n + end).bincount(minlength=k * n) for end in pairs]).view(2, k, n)


def means(z: Tensor, pairs: Tensor, types: Tensor, previous: Tensor) -> Tensor:
    """Return the mean embedding of each type's links, [k, 2H]; the previous centroid for a type without links."""
    k, n = previous.size(0), z.size(0)
    count = types.bincount(minlength=k)
    ends = [counts @ z for counts in link_counts(types, pairs, k, n).to(z)]
    return torch.where(count[:, None] > 0, torch.cat(ends, 1) / count.clamp(min=1)[:, None], previous)


def matched(centroids: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Match clusters to centres [k, D] one to one, greedily by descending cosine; return the cluster of each centre, [k]."""
    k = len(centres)
    likeness = unit_rows(centres) @ unit_rows(centroids).T
    clusters = np.full(k, -1)
    for _ in range(k):
        centre, cluster = np.unravel_index(likeness.argmax(), likeness.shape)
        clusters[centre] = cluster
        likeness[centre], likeness[:, cluster] = -np.inf, -np.inf
    return clusters


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, whose branches are matched by clusters of links, and the clusters."""
    return {
        TRAIN: {
            MODEL: LateMean(ARRAYS, why="each client orders its branches differently"),
            LINKS: Individual(why="the server matches the clusters of all clients"),
        }
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the centres of link types."""
    groups = {LINKS: Input("the centres of the types of links", {"centroids": None})}
    return {TRAIN: groups, EVALUATE: groups}
