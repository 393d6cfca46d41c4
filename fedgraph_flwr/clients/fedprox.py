"""FedProx client (Li et al., MLSys 2020, arXiv:1812.06127).

    h_i(θ; θ^t) = F_i(θ) + (μ/2) ‖θ − θ^t‖²                                                        Eq. (2)

μ = 0 is FedAvg; so is a single local step, since the proximal gradient is zero at θ^t.
Leaves the client: what FedAvg sends.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig


@dataclass
class Params:
    """Keys of FedProx."""

    mu: float = 0.01  # (ours) middle of the grid 1e-3, 1e-2, 1e-1, 1; 0 recovers FedAvg


def anchored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """θ^t: copies of those that train."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor.requires_grad}


def proximal_term(current: dict[str, Tensor], anchor: dict[str, Tensor], mu: float) -> Tensor:
    """(μ/2)‖θ − θ^t‖² over the shared trainable parameters; a scalar that carries gradient."""
    squares = [(current[name] - start).pow(2).sum() for name, start in anchor.items()]
    return 0.5 * mu * torch.stack(squares).sum()


class FedProxClient(GraphClient):
    """FedAvg's client with one more term in the local objective."""

    Params: ClassVar[type] = Params
    stacks: ClassVar[tuple[str, ...] | None] = ("anchor",)

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """One step is FedAvg's."""
        if max(cfg.train.steps_of(client) for client in range(cfg.num_clients)) > 1:
            return ""
        return f"strategy={cfg.strategy.name} with one local step a round is FedAvg; take train.local_steps=2 or more"

    def train(self) -> float:
        """Anchor the term at the received parameters θ^t, then train."""
        self.anchor = anchored(self.shared)
        return super().train()

    def loss(self) -> Tensor:
        """Eq. (2)."""
        return super().loss() + proximal_term(self.shared, self.anchor, self.params.mu)
