"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021, arXiv:2111.04263), Algorithm 1.

    h ← h − α (1/M) Σ_{i∈S} (θ_i − θ),   θ ← (1/|S|) Σ_{i∈S} θ_i − h/α

over M clients, of whom S reply: h = (1/M) Σ_i g_i, the mean of what the clients keep
(clients/feddyn.py). A ``strategy.weighting`` other than ``uniform`` weighs models and g_i alike: h
= Σ_i p_i g_i (ours; the authors' code scales each client's α instead). With α = 0, both terms are
left out, which is FedAvg. A small α is not, since h/α does not depend on it. Leaves the client:
what FedAvg sends.
"""

import numpy as np

from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.variates import Variates
from fedgraph_flwr.wire.messages import Arrays

H = "h"


class FedDyn(Variates):
    """Keeps h in `memory`."""

    def step(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Reduced) -> Arrays:
        """Apply the server's two lines of Algorithm 1."""
        mean = super().step(server, arrays, mean, reduced)
        alpha = self.keys.alpha
        if not alpha:
            return mean
        previous = server.memory.get(H, {})
        trained = arrays.keys() - server.buffers
        rate = alpha * self.share(server, reduced.clients)
        h = {
            n: previous.get(n, np.zeros_like(arrays[n])) - rate * (mean[n] - arrays[n])
            for n in trained
        }
        server.memory[H] = h
        return mean | {n: mean[n] - h[n] / alpha for n in trained}
