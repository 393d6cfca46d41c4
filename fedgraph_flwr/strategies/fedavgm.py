"""FedAvgM: momentum on the server (Hsu, Qi & Brown, 2019, arXiv:1909.06335).

    Δ^t = Σ_i p_i θ_i^t − θ^t,   v^{t+1} = β v^t + Δ^t,   θ^{t+1} = θ^t + η v^{t+1}                  Section 4.3

β = 0 with η = 1 is FedAvg. Running statistics of a model, which no gradient trains, are averaged.
Leaves the client: what FedAvg sends.
"""

from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.server_part import ServerPart
from fedgraph_flwr.wire.messages import Arrays


class Momentum(ServerPart):
    """Keeps the velocity v in `memory`."""

    def step(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Reduced) -> Arrays:
        """Take one step along the velocity."""
        p = self.keys
        previous = server.memory.get("velocity", {})
        velocity = {
            n: p.beta * previous.get(n, 0) + (mean[n] - arrays[n])
            for n in arrays.keys() - server.buffers
        }
        server.memory["velocity"] = velocity
        return mean | {
            n: (arrays[n] + p.server_lr * v).astype(arrays[n].dtype)
            for n, v in velocity.items()
        }
