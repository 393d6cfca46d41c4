"""Sums over single values that the server sees, or a robust rule over them."""

from collections.abc import Collection

import numpy as np

from fedgraph_flwr.methods.uplink import Mean, Reducer, Sum, sums
from fedgraph_flwr.strategies import aggregators
from fedgraph_flwr.strategies.reducing import Weights, added_up, averaged
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.summation.interface import Summation, origin_of
from fedgraph_flwr.wire.messages import MODEL, Arrays, Reply

TRAINED = Mean(weight="uniform", trained=True)
"""Weighs clients with training nodes by 1, others by 0."""


class Plain(Summation):
    """Means by the declared weights, sums, or ``strategy.aggregator`` instead of both."""

    __slots__ = ()

    def open_sums(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the mean or sum of each group."""
        declared = self.server.uplink_of.get(phase, {})
        return {
            group: self._reduced(declared[group], group, replies) for group in sums(declared)
        }

    def _reduced(self, reducer: Reducer, group: str, replies: list[Reply]) -> Arrays:
        """Return the mean or sum of a group."""
        rules = self.server.cfg.strategy
        values = [reply.groups.get(group, {}) for reply in replies]
        clients = [reply.client for reply in replies]
        if isinstance(reducer, Sum):
            if rules.aggregator == "mean":
                return added_up(values, reducer.dtype)
            return self._robust_sum(reducer, group, values, clients)
        if isinstance(reducer, Mean) and rules.aggregator != "mean":
            places = self.server.counting.ruled(reducer, clients)
            values = [values[place] for place in places]
            clients = [clients[place] for place in places]
            if reducer.scale:
                origin = origin_of(self.server, reducer, values[0])
                buffers = self.server.buffers
                values = [
                    _scaled(value, origin, reducer.scale(client), buffers)
                    for value, client in zip(values, clients, strict=True)
                ]
        weights = self.server.counting.weights_of(reducer, clients)
        return averaged(values, weights, origin_of(self.server, reducer, values[0]), rules)

    def _robust_sum(
        self, reducer: Sum, group: str, values: list[Arrays], clients: list[int]
    ) -> Arrays:
        """Return the result of a robust rule, times the number of values."""
        if group == MODEL:  # sums of gradients: a client without training nodes has none
            places = self.server.counting.ruled(TRAINED, clients)
            values = [values[place] for place in places]
        middle = aggregators.combine(values, {}, self.server.cfg.strategy)
        count = len(values)
        return {
            name: np.asarray(count * array.astype(reducer.dtype))
            for name, array in middle.items()
        }


def late_mean(
    server: Server,
    values: list[Arrays],
    weights: Weights,
    origin: Arrays | None,
    clients: list[int],
) -> Arrays:
    """Return a mean by weights that the method computes from other uploads.

    A robust rule counts only clients with training nodes.

    Args:
        server: the run's server.
        values: arrays per client.
        weights: weights per client.
        origin: start of the updates that the values are; None: the shared parameters.
        clients: the clients.
    """
    start = server.arrays if origin is None else origin
    if server.cfg.strategy.aggregator != "mean":
        values = [values[place] for place in server.counting.ruled(TRAINED, clients)]
    return averaged(values, weights, start, server.cfg.strategy)


def _scaled(arrays: Arrays, origin: Arrays, scale: float, buffers: Collection[str]) -> Arrays:
    """Return arrays whose updates are ``scale`` times as long, in float64.

    Running statistics do not change.
    """
    scaled = dict(arrays)
    for name in arrays.keys() - buffers:
        update = arrays[name].astype(np.float64) - origin[name]
        scaled[name] = origin[name] + scale * update
    return scaled
