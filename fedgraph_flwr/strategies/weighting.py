"""Weights of clients: in a mean by ``strategy.weighting``, and in a declared mean or sum (`fedgraph_flwr.methods.weighting`)."""

from fedgraph_flwr.methods import weighting
from fedgraph_flwr.methods.bases import GraphStrategy
from fedgraph_flwr.methods.uplink import Reducer
from fedgraph_flwr.methods.weighting import capped

__all__ = ["by_rule", "capped", "of_reducer", "over_all"]


def by_rule(method: GraphStrategy, clients: list[int]) -> list[float]:
    """Return the weights that `GraphStrategy.weights` documents."""
    return weighting.by_rule(method.cfg.strategy, bool(method.privacy), method.counts, clients)


def over_all(method: GraphStrategy) -> dict[int, float]:
    """Return the unnormalised weight of each client among all clients, by ``strategy.weighting`` and ``strategy.max_share``."""
    everyone = sorted(method.clients)
    return dict(zip(everyone, method.weights(everyone), strict=True))


def of_reducer(method: GraphStrategy, reducer: Reducer, clients: list[int]) -> list[float]:
    """Return the unnormalised weight of each client in a declared mean or sum, known before the exchange."""
    everyone = sorted(method.clients)
    return weighting.in_reducer(reducer, clients, method.weights, bool(method.privacy), method.counts, everyone)
