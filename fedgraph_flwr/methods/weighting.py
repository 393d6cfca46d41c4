"""Weights of clients in declared means and sums: a function of the configuration and of the clients' sizes.

The server and, in secure sums, every member compute them alike. `Sizes` are a client's numbers of training items and of nodes.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunConfig, StrategyConfig
from fedgraph_flwr.methods.uplink import Mean, Reducer, Sum
from fedgraph_flwr.wire.messages import derive_seed

SIZE_KEYS = {"train": "num_train", "nodes": "num_nodes"}
"""Kind of weight → name of the number in a client's description."""

Counts = Callable[[str, list[int]], list[float]]
"""From a key of `SIZE_KEYS` and clients, their sizes."""


def sizes_of(description: Mapping[str, Any]) -> list[int]:
    """Return a client's sizes in the order of `SIZE_KEYS`: those in its description, else 0."""
    return [int(np.sum(description.get(key, 0))) for key in SIZE_KEYS.values()]


def by_rule(rules: StrategyConfig, private: bool, counts: Counts, clients: list[int]) -> list[float]:
    """Return unnormalised weights by ``strategy.weighting``, none above ``strategy.max_share`` of their sum.

    Args:
        rules: the run's strategy.
        private: whether differential privacy hides sizes.
        counts: returns sizes of clients.
        clients: the clients.
    """
    if rules.weighting == "uniform":
        ones = [1.0] * len(clients)
        return ones if private else unless_zero([float(n > 0) for n in counts("num_train", clients)], ones)
    return capped(counts(SIZE_KEYS[rules.weighting], clients), rules.max_share)


def in_reducer(
    reducer: Reducer,
    clients: list[int],
    rule: Callable[[list[int]], list[float]],
    private: bool,
    counts: Counts,
    everyone: list[int],
) -> list[float]:
    """Return the unnormalised weight of each client in a declared mean or sum.

    Args:
        reducer: the declaration.
        clients: the clients that are averaged.
        rule: returns weights by ``strategy.weighting``.
        private: whether differential privacy hides sizes.
        counts: returns sizes of clients.
        everyone: the clients over which ``shares`` are computed.
    """
    factors = [1.0] * len(clients)
    if not isinstance(reducer, Mean):
        return factors
    if reducer.weight == "weighting":
        factors = rule(clients)
    elif reducer.weight == "shares":
        weights = dict(zip(everyone, rule(everyone), strict=True))
        factors = unless_zero([weights[client] for client in clients], factors)
    elif reducer.weight != "uniform" and not private:
        factors = unless_zero(counts(SIZE_KEYS[reducer.weight], clients), factors)
    if reducer.scale:
        scaled = [weight * reducer.scale(client) for weight, client in zip(factors, clients, strict=True)]
        factors = unless_zero(scaled, factors)
    if reducer.trained and not private:
        trained = counts("num_train", clients)
        factors = unless_zero([weight * bool(n) for weight, n in zip(factors, trained, strict=True)], factors)
    return factors


def private_factors(reducer: Reducer, cfg: RunConfig) -> dict[int, float]:
    """Return the weight of each of ``num_clients`` clients relative to the largest; it follows from the configuration."""
    everyone = list(range(cfg.num_clients))
    weights = in_reducer(reducer, everyone, lambda clients: [1.0] * len(clients), True, _no_sizes, everyone)
    largest = max(weights)
    return {client: weight / largest for client, weight in zip(everyone, weights, strict=True)}


def in_sum(
    reducer: Reducer, cfg: RunConfig, private: bool, sizes: Mapping[int, NDArray[np.int64]], members: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each member's weight in a secure sum, and its share p_i of the weights: [m] each.

    Under differential privacy the largest share is 1/m, whatever the shares of the others add up to.

    Args:
        reducer: the declaration of the group.
        cfg: the run's configuration.
        private: whether differential privacy hides sizes.
        sizes: [2] by client: training items and nodes, in the order of `SIZE_KEYS`.
        members: the members of the sum.
    """
    if private:
        factors = private_factors(reducer, cfg)
        weights = np.array([factors[client] for client in members])
        return weights, weights / len(members)
    places = {key: place for place, key in enumerate(SIZE_KEYS.values())}

    def counts(key: str, clients: list[int]) -> list[float]:
        return [float(sizes[client][places[key]]) for client in clients]

    def rule(clients: list[int]) -> list[float]:
        return by_rule(cfg.strategy, False, counts, clients)

    weights = np.array([1.0] * len(members))
    if not isinstance(reducer, Sum):
        weights = np.array(in_reducer(reducer, members, rule, False, counts, members))
    total = weights.sum()
    return weights, weights / total if total else np.zeros(len(members))


@lru_cache(maxsize=64)
def batches(clients: int, size: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return the fixed cohorts of a run with secure sums: a partition of ``range(clients)`` in batches of at least ``size``.

    A server that sees sums over overlapping cohorts can subtract them (So et al., AAAI 2023, arXiv 2106.03328). Sums over
    disjoint batches, each always whole, leave nothing to subtract.

    Args:
        clients: number of clients of the run.
        size: number of clients that a round samples.
        seed: seed of the run.
    """
    order = sorted(range(clients), key=lambda client: derive_seed(seed, "batch", client))
    parts = np.array_split(np.array(order), max(clients // size, 1))
    return tuple(tuple(sorted(part.tolist())) for part in parts)


def batch_of(cfg: RunConfig, server_round: int) -> list[int]:
    """Return the places of a round of a run with secure sums; all places in the set-up. Batches take turns."""
    if not server_round:
        return list(range(cfg.num_clients))
    parts = batches(cfg.num_clients, cfg.strategy.cohort_size(cfg.num_clients), cfg.seed)
    return list(parts[(server_round - 1) % len(parts)])


def unless_zero(weights: list[float], others: list[float]) -> list[float]:
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


def _no_sizes(key: str, clients: list[int]) -> list[float]:
    raise RuntimeError(f"weights under differential privacy read {key}")
