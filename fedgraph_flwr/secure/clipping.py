"""Clipping of updates to an L2 norm, on both sides."""

from collections.abc import Mapping

import numpy as np

from fedgraph_flwr.config.schema import PrivacyConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Groups, sums
from fedgraph_flwr.secure.adaptive import bit
from fedgraph_flwr.wire.messages import CLIPPED, Arrays, flat, shaped

SLACK = 1e-6  # relative tolerance of a norm, for machines that add in another order


def clipped(update: np.ndarray, bound: float) -> np.ndarray:
    """Compute Δ min(1, C / ‖Δ‖₂); [P] → [P]. A zero update stays zero."""
    norm = np.linalg.norm(update)
    return update * (bound / norm) if norm > bound else update


def clipped_model(model: Arrays, origin: Arrays, bound: float) -> Arrays:
    """Clip a model's update of ``origin``, such that it stays clipped after rounding to the model's dtypes."""
    start, update = flat(origin), clipped(flat(model) - flat(origin), bound)
    while True:
        sent = shaped(start + update, model)
        norm = np.linalg.norm(flat(sent) - start)
        if norm <= bound:
            return sent
        update *= bound / norm * (1 - SLACK / 10)  # rounding to float32 made it longer than the bound


def shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays, by name."""
    return {name: array.shape for name, array in arrays.items()}


def clipped_groups(
    sent: Mapping[str, Arrays], declared: Groups, received: Arrays, rules: PrivacyConfig, norms: Mapping[str, float]
) -> dict[str, Arrays]:
    """Clip each summed group of a reply to its norm; with distributed noise clip only the update.

    Adaptive norms add the group of bits. With distributed noise, the update is then in units of its norm.

    Args:
        sent: the groups.
        declared: the uplink of the phase.
        received: the shared parameters that came with the request.
        rules: the run's privacy.
        norms: clipping norms of the summed groups.
    """
    bounded: dict[str, Arrays] = {}
    bits: Arrays = {}
    for group in sums(declared):
        if group in sent:
            own, origin = sent[group], received
            if getattr(declared[group], "origin", "") != ARRAYS:
                origin = {key: np.zeros_like(array) for key, array in own.items()}
            elif shapes(origin) != shapes(own):
                raise FedGraphError(
                    f"the server's message has no model with the arrays of '{group}', whose update privacy.dp={rules.dp} clips"
                )
            update, norm = flat(own) - flat(origin), norms[group]
            bits[group] = np.array([bit(float(np.linalg.norm(update)), norm)])
            if rules.side == "distributed":
                update = clipped(update, norm) / (norm if rules.adaptive else 1.0)
                bounded[group] = shaped(update, {key: array.astype(np.float64) for key, array in own.items()})
            else:
                bounded[group] = clipped_model(own, origin, norm)
    if CLIPPED in declared and bits:
        bounded[CLIPPED] = {**{group: np.zeros(1) for group in sums(declared) if group != CLIPPED}, **bits}
    return {**sent, **bounded}
