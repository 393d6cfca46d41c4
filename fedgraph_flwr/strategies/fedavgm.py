"""FedAvgM: FedAvg with momentum on the server (Hsu, Qi & Brown, 2019, arXiv:1909.06335).

    Δ^t = Σ_i p_i θ_i^t − θ^t,   v^{t+1} = β v^t + Δ^t,   θ^{t+1} = θ^t + η v^{t+1}                  Section 4.3

β = 0 with η = 1 is FedAvg. Running statistics of a network, which no gradient trains, are averaged.
Leaves the client: what FedAvg sends.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedgraph_flwr.config import number
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays


@dataclass
class Params:
    """Keys of FedAvgM."""

    beta: float = number(0.9, high=1, without_high=True)  # β of Section 4.3; 0 with server_lr 1 is FedAvg
    server_lr: float = 0.1  # (ours) η: with η / (1 − β) = 1 a steady step is FedAvg's


class FedAvgM(GraphStrategy):
    """Keeps the velocity v in `memory`."""

    Params: ClassVar[type] = Params

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """One step along the velocity."""
        mean, former = reduced[MODEL], self.memory.get("velocity", {})
        p = self.params
        velocity = {n: p.beta * former.get(n, 0) + (mean[n] - arrays[n]) for n in arrays.keys() - self.buffers}
        self.memory["velocity"] = velocity
        return mean | {n: (arrays[n] + p.server_lr * v).astype(arrays[n].dtype) for n, v in velocity.items()}
