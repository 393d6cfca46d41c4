"""Class weights over all clients (``train.loss=weighted train.class_weights=federated``), which any method inherits.

    s_c = Σ_i n_i s_ic / Σ_i n_i,   w_c = 1 / (C' s_c)

with n_i the training nodes of client i, s_ic their share in class c, and C' the number of classes with s_c > 0: the weights of
`numerics.losses` over all training nodes at once. Leaves a client, once: its shares [C], as a term of a secure sum under
``privacy.secagg``. For a class with fewer nodes than the owner's policy allows in a statistic it sends 0 (`large_enough`). A
class that no client sends counts as the rarest one that is sent.
"""

import numpy as np
from numpy.typing import NDArray

LABELS = "labels"
"""The phase, and the group of its reply: ``share`` [C]."""

CLASS_WEIGHTS = "class_weights"
"""The group that travels with every later request that may lead to training: ``w`` [C]."""


def large_enough(count: NDArray[np.int64], floor: int) -> NDArray[np.bool_]:
    """Mark the classes whose count [C] may leave a client: the unsent rest of the known total is 0 or at least ``floor``.

    Classes below ``floor`` are not sent. If they have fewer nodes together, the next smallest class is not sent either, since
    the rest of the total would reveal them.
    """
    shown = count >= floor
    for label in np.argsort(count, kind="stable"):
        hidden = count[~shown].sum()
        if not 0 < hidden < floor:
            break
        shown[label] = False
    return shown


def shares(y: NDArray[np.int64], num_classes: int, floor: int) -> NDArray[np.float64]:
    """Return the share of the training labels ``y`` [n] in each class [C]; 0 where it is not `large_enough`."""
    count = np.bincount(y, minlength=num_classes)
    return np.where(large_enough(count, floor), count, 0) / max(y.size, 1)


def weights(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights [C] for shares ``share`` [C]; ones if no class has a share."""
    known = share > 0
    if not known.any():
        return np.ones_like(share)
    inverses = 1 / (known.sum() * np.where(known, share, 1))
    return np.where(known, inverses, inverses[known].max())
