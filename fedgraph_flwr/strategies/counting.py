"""How clients count in means and sums: a function of the configuration and of the clients' descriptions.

Under differential privacy no number depends on who is there or replied, and sizes are private.
Under secure aggregation rounds take fixed batches (`fedgraph_flwr.methods.weighting`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods import weighting
from fedgraph_flwr.methods.uplink import Mean, Reducer
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.strategies.connection import ClientInfo


class Counting:
    """The weights, sizes and places of a run's clients.

    Args:
        cfg: the run's configuration.
        clients: returns the clients of the run, by client index.
        rule: returns unnormalised weights of clients: the method's `weights`.

    Attributes:
        private: whether differential privacy hides the clients' sizes.
        protection: what the run's clients do before replies leave.
    """

    __slots__ = ("cfg", "clients", "private", "protection", "rule")

    def __init__(
        self,
        cfg: RunConfig,
        clients: Callable[[], Mapping[int, ClientInfo]],
        rule: Callable[[list[int]], list[float]],
    ):
        self.cfg = cfg
        self.clients = clients
        self.rule = rule
        self.protection = protection_of(cfg)
        self.private = self.protection.private

    def cohort_size(self, server_round: int) -> int:
        """Return the number of places that a round draws."""
        return self.protection.cohort_size(server_round, sorted(self.clients()))

    def meant_for(self, server_round: int) -> int:
        """Return the number of clients that the configuration samples for an exchange."""
        return self.cohort_size(server_round) if server_round else self.cfg.num_clients

    def counts(self, key: str, clients: list[int]) -> list[float]:
        """Return a number from the clients' descriptions, such as ``num_train``, per client."""
        known = self.clients()
        return [float(np.sum(known[client].description[key])) for client in clients]

    def weights_of(self, reducer: Reducer, clients: list[int]) -> list[float]:
        """Return unnormalised weights in a declared mean or sum, known before the exchange."""
        everyone = sorted(self.clients())
        return weighting.in_reducer(
            reducer, clients, self.rule, self.private, self.counts, everyone
        )

    def ruled(self, reducer: Mean, clients: list[int]) -> list[int]:
        """Return the places of the clients that a robust rule counts.

        These are the clients with weight and, where models count, training nodes. Without any such
        client, all count.
        """
        # even if ``strategy.weighting=nodes`` weighs an unchanged model
        models = reducer.weight in ("weighting", "shares")
        counting = replace(reducer, trained=reducer.trained or models)
        weights = self.weights_of(counting, clients)
        places = [place for place, weight in enumerate(weights) if weight]
        return places or list(range(len(clients)))

    def counted(self, sampled: list[int], replied: list[int]) -> list[int]:
        """Return the clients by which a mean divides: those that replied; of a private one, those that were sampled."""
        return sampled if self.private else replied

    def sizes(self, key: str, clients: list[int]) -> list[float]:
        """Return a number of the clients' descriptions; 1 for each where it is private."""
        return [1.0] * len(clients) if self.private else self.counts(key, clients)

    def items(self, clients: list[int], server_round: int) -> float:
        """Return the number of training items of clients.

        Where it is private, it is the number of clients in a round, or of rows that they are expected to draw.

        Raises:
            RunFailed: no client has a training node.
        """
        if self.private:
            return float(self.cohort_size(server_round) * self.protection.rows)
        total = sum(self.counts("num_train", clients))
        if not total:
            raise RunFailed(
                f"round {server_round}: none of the clients that replied has a training"
                " node: raise strategy.fraction"
            )
        return total

    def share(self, clients: list[int], server_round: int) -> float:
        """Return the weight of clients among all clients, at most 1; of a private mean, the share of those that were sampled.

        ``strategy.max_share`` caps the weights over all clients.
        """
        if self.private:
            return self.cohort_size(server_round) / self.cfg.num_clients
        everyone = sorted(self.clients())
        weights = dict(zip(everyone, self.rule(everyone), strict=True))
        return sum(weights[client] for client in clients) / (sum(weights.values()) or 1.0)
