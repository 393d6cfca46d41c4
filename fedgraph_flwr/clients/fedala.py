"""FedALA client (Zhang et al., AAAI 2023, arXiv:2212.01197).

    Θ̂_i = Θ_i^{t−1} + (Θ^{t−1} − Θ_i^{t−1}) ⊙ W_i                                   adaptive local aggregation
    W_i ← clip(W_i − η ∇_{Θ̂} L(Θ̂_i, D_i^s) ⊙ (Θ^{t−1} − Θ_i^{t−1}), 0, 1)           weight learning, W_i = 1 at first

Θ^{t−1} is the model as received, Θ_i^{t−1} the client's own after its last training. Both equations are of Algorithm 1 and
apply only to the last p layers; all others take Θ^{t−1}. D_i^s are s of the client's training nodes, newly drawn each time.
When there is a Θ_i^{t−1} to mix for the first time, W_i is learned until the standard deviation of the last ten losses is below
a threshold (and for at most `passes`: ours); later rounds make one pass. Training then starts from Θ̂_i, and the client is
scored with Θ̂_i. No layer to mix, or η = 0, is FedAvg. Leaves the client: FedAvg's uploads. W_i never leaves it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import Batch
from fedgraph_flwr.clients.personal import PersonalClient, assign, copied
from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.models import Model, check_prefixes

LOSSES = 10  # losses over which convergence is measured


@dataclass
class Params:
    """Keys of FedALA."""

    # the last p layers by prefix; the paper's p = 1. [] is FedAvg
    mixed: list[str] = field(default_factory=lambda: ["head"])
    sample: float = number(0.8, high=1, without_low=True)  # s, the paper's 80 %
    eta: float = 1.0  # η, the paper's
    # standard deviation of ten losses at which the first learning stops (the authors' code)
    threshold: float = 0.1
    passes: int = number(100, low=1)  # (ours) most passes of the first learning


class FedALAClient(PersonalClient):
    """FedAvg's client that starts from a mixture of its last model and the received one; `memory` holds both parts."""

    Params: ClassVar[type] = Params
    predicts_with: ClassVar[tuple[str, ...]] = ("local", "weights")
    tunes: ClassVar[bool] = True

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require that every prefix of `mixed` matches a parameter."""
        check_prefixes(method_params(cls, cfg).mixed, "strategy.mixed", cfg, model)

    def train(self) -> float:
        """Train from Θ̂_i."""
        start, weights = self.aggregated()
        assign(self.upper(), start)
        loss = super().train()
        self.memory = {"local": copied(self.upper()), "weights": weights}
        return loss

    def personal_parameters(self) -> dict[str, Tensor]:
        """Return Θ̂_i."""
        return self.aggregated()[0]

    def upper(self) -> dict[str, Tensor]:
        """Return the shared parameters of the last p layers; they alias the model."""
        found = self.model.shared(self.params.mixed)
        return {name: t for name, t in found.items() if name in self.shared and t.requires_grad}

    def aggregated(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute Θ̂_i of the last p layers (empty if it equals Θ) and W_i, without changing the client."""
        upper, local = self.upper(), self.memory.get("local", {})
        weights: dict[str, Tensor] = self.memory.get("weights", {})
        if all(torch.equal(upper[name], local[name]) for name in local):
            return {}, weights
        received, losses = copied(upper), list[float]()
        limit = 1 if weights else self.params.passes
        weights = weights or {name: torch.ones_like(t) for name, t in received.items()}
        start = _mixed(local, received, weights)
        whole = self.batch
        with self.with_parameters(start):
            self.model.train()
            self.batch = self.sampled()
            while len(losses) < limit and not self.converged(losses):
                loss = self.loss()
                grads = torch.autograd.grad(loss, list(upper.values()), materialize_grads=True)
                for name, grad in zip(upper, grads, strict=True):
                    step = self.params.eta * grad * (received[name] - local[name])
                    weights = {**weights, name: (weights[name] - step).clamp(0, 1)}
                start = _mixed(local, received, weights)
                assign(upper, start)
                losses.append(float(loss.detach()))
        self.batch = whole
        return start, weights

    def converged(self, losses: list[float]) -> bool:
        """Return whether learning has converged."""
        return len(losses) > LOSSES and float(np.std(losses[-LOSSES:])) < self.params.threshold

    def sampled(self) -> Batch:
        """Draw D_i^s."""
        size = max(1, int(self.params.sample * self.num_train))
        nodes = self.train_nodes[torch.randperm(self.num_train)[:size].to(self.device)]
        return Batch(self.inputs, nodes, self.y[nodes])


def _mixed(local: dict[str, Tensor], received: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute Θ̂; exactly the received values where W = 1."""
    return {name: torch.lerp(local[name], received[name], weights[name]) for name in local}
