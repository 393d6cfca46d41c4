"""Base of methods whose clients keep a variate between rounds: it acknowledges replies, and computes the clients' weight.

The server's sum over rounds must equal the clients' variates, even if a reply is lost: see clients/variates.py.
"""

import numpy as np

from fedgraph_flwr.methods.variates import ACKNOWLEDGED
from fedgraph_flwr.strategies.base import GraphStrategy, Groups, GroupsFor
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays


class VariateStrategy(GraphStrategy):
    """A strategy whose `memory` holds the last acknowledged round of each client, [M]."""

    def common(self, arrays: Arrays) -> Groups:
        """Return groups that all clients receive with the model."""
        return {}

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send each client the last round in which its reply arrived."""
        acknowledged, common = self._acknowledged, self.common(arrays)
        return {
            client: {**common, ACKNOWLEDGED: {"round": acknowledged[client : client + 1]}} for client in self.cohort
        }

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return the mean of the clients' models, and record whose reply arrived."""
        acknowledged = self._acknowledged.copy()
        acknowledged[reduced.clients] = self.server_round
        self.memory[ACKNOWLEDGED] = acknowledged
        return reduced[MODEL]

    def share(self, clients: list[int]) -> float:
        """Return Σ_{i∈S} p_i: the weight of the clients that replied among all clients, at most 1.

        ``strategy.max_share`` caps p_i over all clients. In a mean over some of them it caps the mean's own weights.
        """
        everyone = sorted(self.clients)
        weights = dict(zip(everyone, self.weights(everyone), strict=True))
        return sum(weights[client] for client in clients) / sum(weights.values())

    @property
    def _acknowledged(self) -> np.ndarray:
        return self.memory.get(ACKNOWLEDGED, np.zeros(max(self.clients) + 1, np.int64))
