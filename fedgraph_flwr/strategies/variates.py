"""The server of methods whose clients keep a variate between rounds: it says whose answer it heard, and how much each weighs.

What the server sums over rounds must equal what its clients keep, also when an answer is lost: see clients/variates.py.
"""

import numpy as np

from fedgraph_flwr.methods.variates import HEARD
from fedgraph_flwr.strategies.base import GraphStrategy, Groups, GroupsFor
from fedgraph_flwr.wire.messages import Arrays, Reply


class VariateStrategy(GraphStrategy):
    """Keeps in `memory` the round in which it last heard each client, [M]."""

    def common(self, arrays: Arrays) -> Groups:
        """Groups that all clients are sent with the model."""
        return {}

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """To each client, when it was last heard."""
        heard, common = self._heard, self.common(arrays)
        return {client: {**common, HEARD: {"round": heard[client : client + 1]}} for client in self.cohort}

    def aggregate(self, arrays: Arrays, replies: list[Reply]) -> Arrays:
        """The mean of the clients' models, and who was heard."""
        heard = self._heard.copy()
        heard[[reply.client for reply in replies]] = self.server_round
        self.memory[HEARD] = heard
        return super().aggregate(arrays, replies)

    def share(self, replies: list[Reply]) -> float:
        """Σ_{i∈S} p_i: the weight of those who answered among all clients."""
        return sum(self.weights(replies)) / sum(self.weights([Reply(client) for client in sorted(self.clients)]))

    @property
    def _heard(self) -> np.ndarray:
        return self.memory.get(HEARD, np.zeros(max(self.clients) + 1, np.int64))
