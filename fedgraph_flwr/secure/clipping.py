"""Clipping of updates to an L2 norm, on both sides."""

import numpy as np

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import Arrays, flat, shaped

SLACK = 1e-6  # relative tolerance of a norm, for machines that add in another order


def clipped(update: np.ndarray, bound: float) -> np.ndarray:
    """Compute Δ min(1, C / ‖Δ‖₂); [P] → [P]. A zero update stays zero."""
    norm = np.linalg.norm(update)
    return update * (bound / norm) if norm > bound else update


def clipped_model(model: Arrays, origin: Arrays, bound: float) -> Arrays:
    """Clip a model's update of ``origin``, such that it stays clipped after rounding to the model's dtypes.

    Raises:
        FedGraphError: the update is not finite.
    """
    start, update = flat(origin), clipped(flat(model) - flat(origin), bound)
    while True:
        sent = shaped(start + update, model)
        norm = np.linalg.norm(flat(sent) - start)
        if norm <= bound:
            return sent
        if not np.isfinite(norm):
            raise FedGraphError("an update has values that are not finite, which no norm bounds")
        update *= bound / norm * (1 - SLACK / 10)  # rounding to float32 made it longer than the bound
