"""FGGP: keys, names of message groups, and FINCH, which finds clusters without a given number of clusters.

FINCH (Sarfraz et al., CVPR 2019) joins each item with its most similar other item; connected components are clusters. The means
of the clusters are the items of the next, coarser partition. This continues while that has more than one cluster and at least
two fewer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from fedgraph_baselines.methods.prototypes import WIDTH, described_width
from fedgraph_baselines.methods.similarity import cosines
from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Individual, Uplink, model_only
from fedgraph_flwr.wire.messages import EVALUATE, TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField

PROTOTYPES = "prototypes"
"""Group sent to the server: ``mean`` [C, D] and ``known`` [C]."""

BANK = "bank"
"""Group sent to clients: ``mean`` [B, D] and its classes ``label`` [B]."""


@dataclass
class Params:
    """Keys of FGGP."""

    view_weight: float = 1.0  # weight of the second view's cross-entropy
    prototype_weight: float = 1.0  # weight of the alignment of both views' prototypes
    structure_weight: float = 1.0  # weight of the augmentor's loss
    refresh: int = number(10, low=1)  # f (10 to 50), rounds between searches for similar nodes
    near: int = 3  # k, similar nodes per node (1 on arXiv)
    # negatives in the alignment, prototypes of other classes in: both views (as the authors' code) | other: the other view
    negatives: str = choice("both", ("both", "other"))
    head: str = choice(
        "average", ("average", "initial")
    )  # average | initial: initial values in every round, as in the authors' code
    queue: int = number(
        10, low=0
    )  # rows per class that the bank keeps from past rounds (10, Twitch 20); 0: only the last round's
    inference: str = choice("prototypes", ("prototypes", "classifier"))  # prototypes | classifier, as OpenFGL
    votes: int = number(30, low=1)  # prototypes that vote (20 to 100)
    min_nodes: int = number(1, low=1)  # (ours) minimum sum of confidences of a class whose prototype is sent

    @property
    def augments(self) -> bool:
        """Whether training adds terms to FedAvg's loss."""
        return bool(self.view_weight or self.prototype_weight or self.structure_weight)


def finch(items: np.ndarray) -> np.ndarray:
    """Return the cluster of each item [n, D] in the coarsest partition that FINCH keeps, [n]."""
    clusters = _joined(items)
    while True:
        count = clusters.max() + 1
        coarser = _joined(_means(items, clusters))
        if coarser.max() == 0 or count - (coarser.max() + 1) <= 1:
            return clusters
        clusters = coarser[clusters]


def bank(means: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cluster prototypes per class.

    Args:
        means: prototypes per client [n, C, D].
        known: classes that each client knows [n, C].

    Returns:
        Means of each class's clusters [B, D], and their classes [B].
    """
    rows, labels = [], []
    for label in np.flatnonzero(known.any(axis=0)):
        prototypes = means[known[:, label], label].astype(np.float64)
        clusters = _means(prototypes, finch(prototypes))
        rows.append(clusters)
        labels.append(np.full(len(clusters), label))
    if not rows:
        return np.zeros((0, means.shape[2])), np.zeros(0, np.int64)
    return np.concatenate(rows), np.concatenate(labels)


def _joined(items: np.ndarray) -> np.ndarray:
    """Return one partition: each item joined with its most similar one."""
    n = len(items)
    if n == 1:
        return np.zeros(1, np.int64)
    likeness = cosines(items)
    np.fill_diagonal(likeness, -np.inf)
    links = sp.csr_matrix((np.ones(n), (np.arange(n), likeness.argmax(axis=1))), shape=(n, n))
    return connected_components(links, directed=False)[1].astype(np.int64)


def _means(items: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Return the mean of each cluster, [max + 1, D]."""
    total = np.zeros((cluster.max() + 1, items.shape[1]))
    np.add.at(total, cluster, items)
    return total / np.bincount(cluster)[:, None]


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model and a prototype per class."""
    fields = {"mean": ArrayField(("C", WIDTH), cfg.dtype), "known": ArrayField(("C",), "bool")}
    return {
        **described_width(),
        TRAIN: {
            **model_only(cfg, params)[TRAIN],
            PROTOTYPES: Individual(fields, why="the server clusters all clients' prototypes"),
        },
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the bank of prototypes."""
    groups = {BANK: Input("prototypes of all clients with their classes", {"mean": None, "label": None})}
    return {TRAIN: groups, EVALUATE: groups}
