"""Weights of clients: in a mean by ``strategy.weighting``, and in a declared mean or sum."""

import numpy as np

from fedgraph_flwr.methods.uplink import Mean, Reducer
from fedgraph_flwr.strategies.contract import Method

_SIZES = {"train": "num_train", "nodes": "num_nodes"}
"""Kind of weight → name of the number in a client's description."""


def by_rule(method: Method, clients: list[int]) -> list[float]:
    """Return the weights that `GraphStrategy.weights` documents."""
    rules = method.cfg.strategy
    if rules.weighting == "uniform":
        ones = [1.0] * len(clients)
        return (
            ones if method.privacy else _unless_zero([float(n > 0) for n in method.counts("num_train", clients)], ones)
        )
    return capped(method.counts(_SIZES[rules.weighting], clients), rules.max_share)


def over_all(method: Method) -> dict[int, float]:
    """Return the unnormalised weight of each client among all clients, by ``strategy.weighting`` and ``strategy.max_share``."""
    everyone = sorted(method.clients)
    return dict(zip(everyone, method.weights(everyone), strict=True))


def of_reducer(method: Method, reducer: Reducer, clients: list[int]) -> list[float]:
    """Return the unnormalised weight of each client in a declared mean or sum, known before the exchange."""
    found = [1.0] * len(clients)
    if not isinstance(reducer, Mean):
        return found
    if reducer.weight == "weighting":
        found = method.weights(clients)
    elif reducer.weight == "shares":
        weights = over_all(method)
        found = _unless_zero([weights[client] for client in clients], found)
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
    """Return the weights, or the others if all weights are 0."""
    return weights if any(weights) else others


def capped(weights: list[float], limit: float) -> list[float]:
    """Cap each weight at a share ``limit`` of the sum; the excess goes to the others, in proportion to their weights.

    If even equal shares exceed the limit, all positive weights become equal. If no share exceeds it, nothing changes.
    """
    values, total = np.array(weights), sum(weights)
    if not total or (values <= limit * total).all():
        return weights
    if limit * np.count_nonzero(values) <= 1:
        return [float(value > 0) for value in values]
    full = np.zeros(len(weights), dtype=bool)
    shares = values / total
    while (shares[~full] > limit).any():
        full |= shares > limit
        left = values[~full].sum()
        shares = np.where(full, limit, values / left * (1 - limit * full.sum()) if left else 0)
    return [float(share) for share in shares]
