"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021, arXiv:2111.04263), Algorithm 1.

    h ← h − α (1/M) Σ_{i∈S} (θ_i − θ),   θ ← (1/|S|) Σ_{i∈S} θ_i − h/α

over M clients, of whom S answer: h = (1/M) Σ_i g_i, the mean of what the clients keep (clients/feddyn.py).
``strategy.weighting`` other than ``uniform`` weighs models and g_i alike, h = Σ_i p_i g_i (ours; the authors' program scales
each client's α instead). α = 0 leaves both terms out and is FedAvg; a small α is not, since h/α does not depend on it.
Leaves the client: what FedAvg sends.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.methods.variates import FedDynParams
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.variates import VariateStrategy
from fedgraph_flwr.wire.messages import Arrays

H = "h"


class FedDyn(VariateStrategy):
    """Keeps h in `memory`."""

    Params: ClassVar[type] = FedDynParams

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Algorithm 1, the server's two lines."""
        mean, alpha, former = super().step(arrays, reduced), self.params.alpha, self.memory.get(H, {})
        if not alpha:
            return mean
        rate, trained = alpha * self.share(reduced.clients), arrays.keys() - self.buffers
        h = {n: former.get(n, np.zeros_like(arrays[n])) - rate * (mean[n] - arrays[n]) for n in trained}
        self.memory[H] = h
        return mean | {n: mean[n] - h[n] / alpha for n in trained}
