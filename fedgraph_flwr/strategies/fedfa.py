"""FedFA (Zhou & Konukoglu, ICLR 2023, arXiv:2301.12995), server side.

    θ^{t+1} = Σ_i p_i θ_i^t,   μ̄ = Σ_i p_i μ̄_i,   σ̄ = Σ_i p_i σ̄_i
    S_μ = Var_i(μ̄_i),   S_σ = Var_i(σ̄_i)                                       per channel, over the clients that trained

Var divides by their number less one; of one client it is 0. The authors' program takes one variance over clients and channels
together, so that every γ is 1: ``variance=scalar``. Before round 1 μ̄ = 0 and σ̄ = S = 1, as there.
Leaves a client: see `fedgraph_flwr.clients.fedfa`.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr import models
from fedgraph_flwr.methods.fedfa import RUNNING, SPREAD, STATISTICS, Params
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.wire.messages import TRAIN, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema


class FedFA(GraphStrategy):
    """FedAvg that also pools clients' feature statistics; keeps them in `memory` by the names of their groups."""

    Params: ClassVar[type] = Params
    beyond_sums: ClassVar[str] = "the spread of single clients' feature statistics"

    def setup(self) -> None:
        """The statistics of nothing seen yet."""
        self.shape = len(models.probe(self.cfg.model).layers), self.cfg.model.hidden  # type: ignore[arg-type]
        mean, std = np.zeros(self.shape, self.cfg.dtype), np.ones(self.shape, self.cfg.dtype)
        self.memory = {RUNNING: {"mean": mean, "std": std}, SPREAD: {"mean": std, "std": std}}

    def before_train(self, arrays: Arrays) -> Groups:
        """The statistics, where they are used."""
        return self.memory if self.params.p else {}

    def schema(self, phase: str, client: int | None) -> ReplySchema:
        """The running statistics beside the model; deviations are not negative."""
        wanted = super().schema(phase, client)
        if phase != TRAIN or not self.params.p:
            return wanted
        mean, std = ArrayField(self.shape, self.cfg.dtype), ArrayField(self.shape, self.cfg.dtype, low=0)
        return wanted | ReplySchema({RUNNING: {"mean": mean, "std": std}})

    def aggregate(self, arrays: Arrays, replies: list[Reply]) -> Arrays:
        """The mean of models and statistics, and the variance of statistics."""
        trained = [reply for reply in replies if reply.metrics["num_train"]]
        if self.params.p and trained:
            told = [reply.groups[RUNNING] for reply in trained]
            spread = {key: self._variance(np.stack([group[key] for group in told])) for key in STATISTICS}
            self.memory = {RUNNING: self.average(told, self.weights(trained)), SPREAD: spread}
        return super().aggregate(arrays, replies)

    def _variance(self, values: np.ndarray) -> np.ndarray:
        """Over clients, [M, L-1, H] → [L-1, H]; ``scalar`` over clients and channels."""
        axis = (0, 2) if self.params.variance == "scalar" else (0,)
        count = np.prod([values.shape[a] for a in axis])
        found = values.var(axis, keepdims=True, ddof=1) if count > 1 else np.zeros(1)
        return np.broadcast_to(found, values.shape)[0].astype(values.dtype)
