"""Weights of clients: of a mean by ``strategy.weighting``, and of a declared mean or sum."""

import numpy as np

from fedgraph_flwr.methods.uplink import Mean, Reducer
from fedgraph_flwr.strategies.contract import Method

_SIZES = {"train": "num_train", "nodes": "num_nodes"}
"""Kind of weight → the number of a client's description."""


def by_rule(method: Method, clients: list[int]) -> list[float]:
    """The weights that `GraphStrategy.weights` documents."""
    rules = method.cfg.strategy
    if rules.weighting == "uniform":
        ones = [1.0] * len(clients)
        return (
            ones if method.privacy else _unless_zero([float(n > 0) for n in method.counts("num_train", clients)], ones)
        )
    return capped(method.counts(_SIZES[rules.weighting], clients), rules.max_share)


def of_reducer(method: Method, reducer: Reducer, clients: list[int]) -> list[float]:
    """Unnormalised weight of each client in a declared mean or sum, known before the exchange."""
    found = [1.0] * len(clients)
    if not isinstance(reducer, Mean):
        return found
    if reducer.weight == "weighting":
        found = method.weights(clients)
    elif reducer.weight != "uniform" and not method.privacy:
        found = _unless_zero(method.counts(_SIZES[reducer.weight], clients), found)
    if reducer.scale:
        scaled = [weight * reducer.scale(client) for weight, client in zip(found, clients, strict=True)]
        found = _unless_zero(scaled, found)
    if reducer.trained and not method.privacy:
        counts = method.counts("num_train", clients)
        found = _unless_zero([weight * bool(n) for weight, n in zip(found, counts, strict=True)], found)
    return found


def _unless_zero(weights: list[float], others: list[float]) -> list[float]:
    """The weights; the others if all of them are 0."""
    return weights if any(weights) else others


def capped(weights: list[float], most: float) -> list[float]:
    """Weights of which none is more than a share ``most`` of their sum: what is above goes to the others, in their proportions.

    Where even equal shares are above it, weights above 0 are equal; where none is above it, they are as they came.
    """
    values, total = np.array(weights), sum(weights)
    if not total or (values <= most * total).all():
        return weights
    if most * np.count_nonzero(values) <= 1:
        return [float(value > 0) for value in values]
    full = np.zeros(len(weights), dtype=bool)
    shares = values / total
    while (shares[~full] > most).any():
        full |= shares > most
        left = values[~full].sum()
        shares = np.where(full, most, values / left * (1 - most * full.sum()) if left else 0)
    return [float(share) for share in shares]
