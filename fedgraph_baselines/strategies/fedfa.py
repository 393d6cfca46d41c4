"""FedFA (Zhou & Konukoglu, ICLR 2023, arXiv:2301.12995), server side.

    θ^{t+1} = Σ_i p_i θ_i^t,   μ̄ = Σ_i p_i μ̄_i,   σ̄ = Σ_i p_i σ̄_i
    S_μ = Var_i(μ̄_i),   S_σ = Var_i(σ̄_i)                                       per channel, over the clients that trained

Var divides by their number less one; for one client it is 0. The authors' code takes one variance over clients and channels
together, so that every γ is 1: ``variance=scalar``. Before round 1 μ̄ = 0 and σ̄ = S = 1, as in that code.
Leaves a client: see `fedgraph_baselines.clients.fedfa`.
"""

import numpy as np

from fedgraph_baselines.methods import fedfa
from fedgraph_baselines.methods.fedfa import GAPS, RUNNING, SPREAD, STATISTICS
from fedgraph_flwr import models
from fedgraph_flwr.methods.uplink import Mean
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays


class FedFA(GraphStrategy, method=fedfa):
    """FedAvg that also pools clients' feature statistics; `memory` holds them by group."""

    def setup(self) -> None:
        """Initialise the statistics."""
        self.shape = len(models.probe(self.cfg.model).layers), self.cfg.model.hidden  # type: ignore[arg-type]
        mean, std = np.zeros(self.shape, self.cfg.dtype), np.ones(self.shape, self.cfg.dtype)
        self.memory |= {RUNNING: {"mean": mean, "std": std}, SPREAD: {"mean": std, "std": std}}

    def before_train(self, arrays: Arrays) -> Groups:
        """Send the statistics, if they are used."""
        return {group: self.memory[group] for group in (RUNNING, SPREAD)} if self.params.p else {}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return the mean model, and store mean and variance of the statistics."""
        if RUNNING in reduced:
            trained = self.counting.weights_of(Mean(weight="uniform", trained=True), reduced.clients)
            spread = {key: self._variance(key, reduced[GAPS], int(sum(trained))) for key in STATISTICS}
            self.memory |= {RUNNING: reduced[RUNNING], SPREAD: spread}
        return super().step(arrays, reduced)

    def _variance(self, key: str, gaps: Arrays, clients: int) -> np.ndarray:
        """Compute the variance over clients, [L-1, H], from mean gaps to the previous statistics and their squares.

        ``scalar`` takes it over channels, too.
        """
        gap, square = gaps[f"gap {key}"], gaps[f"square {key}"]
        if self.params.variance == "scalar":
            previous = self.memory[RUNNING][key].astype(np.float64)
            previous = previous - previous.mean(1, keepdims=True)  # relative to one point for all channels
            gap, square = previous + gap, square + 2 * previous * gap + previous**2
            clients *= gap.shape[1]
            gap, square = (np.broadcast_to(v.mean(1, keepdims=True), v.shape) for v in (gap, square))
        unbiased = clients / (clients - 1) if clients > 1 else 0.0
        return (np.maximum(square - gap**2, 0) * unbiased).astype(self.cfg.dtype)
