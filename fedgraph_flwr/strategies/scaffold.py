"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, arXiv:1910.06378).

    x ← x + η_g (ȳ − x),   c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i),   ȳ = (1/|S|) Σ_{i∈S} y_i                  Eq. (5)

so that c = (1/N) Σ_i c_i over all N clients, whoever takes part. A ``strategy.weighting`` other
than ``uniform`` weighs models and variates alike: c = Σ_i p_i c_i (ours), where p_i are shares of
all clients, each at most ``strategy.max_share``. The clients' steps then cancel where Σ_i p_i ∇F_i
does, and not elsewhere. With one step of plain SGD by all clients the variates cancel in the mean,
and η_g = 1 is FedAvg. Leaves the client: FedAvg's uploads, and c_i⁺ − c_i, as large as the model
(of one step it is a difference of gradients).
"""

import numpy as np

from fedgraph_flwr.methods.variates import VARIATES
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import Groups
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.variates import Variates
from fedgraph_flwr.wire.messages import Arrays


class Scaffold(Variates):
    """Keeps c in `memory`."""

    def common(self, server: Server, arrays: Arrays) -> Groups:
        """Return c."""
        control = server.memory.get(VARIATES)
        return {VARIATES: control or {name: np.zeros_like(a) for name, a in arrays.items()}}

    def step(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Reduced) -> Arrays:
        """Apply Eq. (5)."""
        mean = super().step(server, arrays, mean, reduced)
        share = self.share(server, reduced.clients)
        change = reduced[VARIATES]
        control = self.common(server, arrays)[VARIATES]
        server.memory[VARIATES] = {
            name: control[name] + share * change[name] for name in arrays
        }
        return self.moved(server, arrays, mean, share)

    def moved(self, server: Server, arrays: Arrays, mean: Arrays, share: float) -> Arrays:
        """Return the next parameters from x and ȳ."""
        rate = self.keys.server_lr
        if rate == 1:
            return mean
        trained = arrays.keys() - server.buffers
        return mean | {n: arrays[n] + rate * (mean[n] - arrays[n]) for n in trained}
