"""Class weights of all clients together (``train.loss=weighted train.class_weights=federated``), which any method inherits.

    s_c = Σ_i n_i s_ic / Σ_i n_i,   w_c = 1 / (C' s_c)

with n_i the training nodes of client i, s_ic the share of them in class c, and C' the number of classes with s_c > 0: the weights
of `numerics.losses` over all training nodes at once. Leaves a client, once: its shares [C], as a term of a secure sum where sums
are secure; of a class with fewer nodes than its owner's policy lets stand behind a statistic it tells 0. A class that nobody
tells counts as the rarest that is told.
"""

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema

LABELS = "labels"
"""The phase, and the group of its answer: ``share`` [C]."""

CLASS_WEIGHTS = "class_weights"
"""The group that then goes down with what makes a client train: ``w`` [C]."""


def schema(num_classes: int) -> ReplySchema:
    """The schema of a client's reply: the share of each class."""
    return ReplySchema({LABELS: {"share": ArrayField((num_classes,), "float64", low=0, high=1)}})


def shares(y: NDArray[np.int64], num_classes: int, floor: int) -> NDArray[np.float64]:
    """Of the training labels ``y`` [n] the share in each class [C]; 0 for a class of fewer than ``floor``."""
    count = np.bincount(y, minlength=num_classes)
    return np.where(count >= floor, count, 0) / max(y.size, 1)


def weights(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights [C] for shares ``share`` [C]; ones where no class is told."""
    told = share > 0
    if not told.any():
        return np.ones_like(share)
    found = 1 / (told.sum() * np.where(told, share, 1))
    return np.where(told, found, found[told].max())
