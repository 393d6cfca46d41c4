"""Class weights of all clients together (``train.loss=weighted train.class_weights=federated``), which any method inherits.

    s_c = Σ_i n_i s_ic / Σ_i n_i,   w_c = 1 / (C' s_c)

with n_i the training nodes of client i, s_ic the share of them in class c, and C' the number of classes with s_c > 0: the weights
of `numerics.losses` over all training nodes at once. Leaves a client, once: its shares [C], as a term of a secure sum where sums
are secure; of a class with fewer nodes than its owner's policy lets stand behind a statistic it sends 0 (`large_enough`). A class
that no client sends counts as the rarest that is sent.
"""

import numpy as np
from numpy.typing import NDArray

LABELS = "labels"
"""The phase, and the group of its answer: ``share`` [C]."""

CLASS_WEIGHTS = "class_weights"
"""The group that then goes down with what makes a client train: ``w`` [C]."""


def large_enough(count: NDArray[np.int64], floor: int) -> NDArray[np.bool_]:
    """Classes whose count [C] may leave a client, whose total is known: the rest of it is 0, or at least ``floor``.

    Classes below ``floor`` stay. If they have fewer nodes together, the next smallest class stays too, since what is missing
    from the total would show them.
    """
    shown = count >= floor
    for label in np.argsort(count, kind="stable"):
        hidden = count[~shown].sum()
        if not 0 < hidden < floor:
            break
        shown[label] = False
    return shown


def shares(y: NDArray[np.int64], num_classes: int, floor: int) -> NDArray[np.float64]:
    """Of the training labels ``y`` [n] the share in each class [C]; 0 where it is not `large_enough`."""
    count = np.bincount(y, minlength=num_classes)
    return np.where(large_enough(count, floor), count, 0) / max(y.size, 1)


def weights(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights [C] for shares ``share`` [C]; ones where no class is told."""
    told = share > 0
    if not told.any():
        return np.ones_like(share)
    found = 1 / (told.sum() * np.where(told, share, 1))
    return np.where(told, found, found[told].max())
