"""Base of the parts whose clients keep a variate between rounds: it acknowledges replies, and computes the clients' weight.

The server's sum over rounds must equal the clients' variates, even if a reply is lost: see
clients/variates.py.
"""

import numpy as np

from fedgraph_flwr.methods.variates import ACKNOWLEDGED
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import Groups
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.server_part import ServerPart
from fedgraph_flwr.wire.messages import Arrays


class Variates(ServerPart):
    """A part that keeps the last acknowledged round of each client, [M], in `memory`."""

    def common(self, server: Server, arrays: Arrays) -> Groups:
        """Return groups that all clients receive with the model."""
        return {}

    def groups(self, server: Server, arrays: Arrays) -> dict[int, Groups]:
        """Send each client the last round in which its reply arrived."""
        acknowledged = _acknowledged(server)
        common = self.common(server, arrays)
        return {
            client: {**common, ACKNOWLEDGED: {"round": acknowledged[client : client + 1]}}
            for client in server.cohort
        }

    def step(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Reduced) -> Arrays:
        """Record the clients that replied; return the mean unchanged."""
        acknowledged = _acknowledged(server).copy()
        acknowledged[reduced.clients] = server.server_round
        server.memory[ACKNOWLEDGED] = acknowledged
        return mean

    def share(self, server: Server, clients: list[int]) -> float:
        """Return Σ_{i∈S} p_i: the weight of the clients that replied among all clients, at most 1.

        ``strategy.max_share`` caps p_i over all clients, also in the mean of variates. In the mean
        model it caps the shares of the clients that replied. Under differential privacy a mean
        divides by the sampled clients, so S are those.
        """
        return server.counting.share(clients, server.server_round)


def _acknowledged(server: Server) -> np.ndarray:
    return server.memory.get(ACKNOWLEDGED, np.zeros(max(server.clients) + 1, np.int64))
