"""FedSAM at the client: sharpness-aware local steps (Qu et al., ICML 2022, arXiv:2206.02618; Foret et al., ICLR 2021).

    g = ∇F_i(θ),   g̃ = ∇F_i(θ + ρ g / ‖g‖₂),   θ ← θ − η g̃                                  Algorithm 1, lines 5-7

The norm is over all trainable parameters. ρ = 0 is FedAvg. Both gradients are taken under the same dropout mask,
and running statistics of batch normalisation are those of the pass at θ. With other terms in the objective, F_i includes them.
Leaves the client: what FedAvg sends.
"""

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart, Step
from fedgraph_flwr.numerics.optim import Optimizer


class Sam(ClientPart):
    """The gradient a little uphill."""

    @property
    def idle(self) -> bool:
        """Whether ρ is 0."""
        return not self.keys.rho

    def gradient(self, client: GraphClient, inner: Step, optimizer: Optimizer) -> Tensor:
        """Leave g̃ in the parameters; returns F_i(θ)."""
        state = torch.get_rng_state()
        loss = inner(optimizer)
        statistics = [buffer.clone() for buffer in client.model.buffers()]
        parameters = [p for p in client.model.parameters() if p.grad is not None]
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().clamp(min=1e-12)
        climbs = [g * (self.keys.rho / norm) for g in grads]
        torch._foreach_add_([p.data for p in parameters], climbs)
        torch.set_rng_state(state)
        inner(optimizer)
        torch._foreach_sub_([p.data for p in parameters], climbs)
        for buffer, value in zip(client.model.buffers(), statistics, strict=True):
            buffer.copy_(value)
        return loss
