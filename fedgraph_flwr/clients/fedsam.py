"""FedSAM client: sharpness-aware local steps (Qu et al., ICML 2022, arXiv:2206.02618; Foret et al., ICLR 2021).

    g = ∇F_i(θ),   g̃ = ∇F_i(θ + ρ g / ‖g‖₂),   θ ← θ − η g̃                                  Algorithm 1, lines 5-7

The norm is over all trainable parameters. ρ = 0 is FedAvg. Both gradients are taken under the same dropout mask,
and running statistics of batch normalisation are those of the pass at θ.
Leaves the client: what FedAvg sends.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.numerics.optim import Optimizer


@dataclass
class Params:
    """Keys of FedSAM."""

    rho: float = 0.05  # ρ, the middle of the paper's grid; 0 is FedAvg


class FedSAMClient(GraphClient):
    """FedAvg's client whose gradient is taken a little uphill."""

    Params: ClassVar[type] = Params

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave g̃ in the parameters; returns F_i(θ)."""
        if not self.params.rho:
            return super().gradient(optimizer)
        state = torch.get_rng_state()
        loss = super().gradient(optimizer)
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().clamp(min=1e-12)
        climbs = [g * (self.params.rho / norm) for g in grads]
        torch._foreach_add_([p.data for p in parameters], climbs)
        torch.set_rng_state(state)
        super().gradient(optimizer)
        torch._foreach_sub_([p.data for p in parameters], climbs)
        for buffer, value in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(value)
        return loss
