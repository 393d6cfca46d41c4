"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, arXiv:1910.06378).

    x ← x + η_g (ȳ − x),   c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i),   ȳ = (1/|S|) Σ_{i∈S} y_i                  Eq. (5)

so that c = (1/N) Σ_i c_i over all N clients, whoever takes part. ``strategy.weighting`` other than ``uniform`` weighs models
and variates alike, c = Σ_i p_i c_i (ours): then the clients' steps cancel where Σ_i p_i ∇F_i does, and not elsewhere.
With one step of plain SGD by all clients the variates cancel in the mean, and η_g = 1 is FedAvg.
Leaves the client: beside what FedAvg sends, c_i⁺ − c_i, as large as the model (of one step it is a difference of gradients).
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.methods import variates
from fedgraph_flwr.methods.variates import VARIATES, ScaffoldParams
from fedgraph_flwr.models import Model
from fedgraph_flwr.strategies.base import Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.variates import VariateStrategy
from fedgraph_flwr.wire.messages import Arrays


class Scaffold(VariateStrategy):
    """Keeps c in `memory`."""

    Params: ClassVar[type] = ScaffoldParams
    uplink = staticmethod(variates.uplink)

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Option II needs plain SGD."""
        method_params(cls, cfg).check(cfg)

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """One plain step of all clients is FedAvg's."""
        several = max(cfg.train.steps_of(client) for client in range(cfg.num_clients)) > 1
        if several or not cfg.train.plain_sgd or cfg.strategy.fraction < 1 or method_params(cls, cfg).server_lr != 1:
            return ""
        return f"strategy={cfg.strategy.name} with one local step of SGD a round is FedAvg; take train.local_steps=2 or more"

    def common(self, arrays: Arrays) -> Groups:
        """C."""
        return {VARIATES: self.memory.get(VARIATES) or {name: np.zeros_like(a) for name, a in arrays.items()}}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Eq. (5)."""
        mean, share = super().step(arrays, reduced), self.share(reduced.clients)
        change, control = reduced[VARIATES], self.common(arrays)[VARIATES]
        self.memory[VARIATES] = {name: control[name] + share * change[name] for name in arrays}
        return self.moved(arrays, mean, share)

    def moved(self, arrays: Arrays, mean: Arrays, share: float) -> Arrays:
        """The next parameters from x and ȳ."""
        rate = self.params.server_lr
        if rate == 1:
            return mean
        return mean | {n: arrays[n] + rate * (mean[n] - arrays[n]) for n in arrays.keys() - self.buffers}
