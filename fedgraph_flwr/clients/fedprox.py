"""FedProx at the client (Li et al., MLSys 2020, arXiv:1812.06127).

    h_i(θ; θ^t) = F_i(θ) + (μ/2) ‖θ − θ^t‖²                                                        Eq. (2)

μ = 0 is FedAvg; so is a single local step, since the proximal gradient is zero at θ^t.
Leaves the client: what FedAvg sends.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart
from fedgraph_flwr.config import RunConfig


def anchored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """θ^t: copies of the tensors that train."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor.requires_grad}


def proximal_term(current: Mapping[str, Tensor], anchor: Mapping[str, Tensor], mu: float) -> Tensor:
    """(μ/2)‖θ − θ^t‖² over the shared trainable parameters; a scalar that carries gradient."""
    squares = [(current[name] - start).pow(2).sum() for name, start in anchor.items()]
    return 0.5 * mu * torch.stack(squares).sum()


class Prox(ClientPart):
    """The proximal term of the local objective."""

    adds: ClassVar[bool] = True

    @property
    def idle(self) -> bool:
        """Whether μ is 0."""
        return not self.keys.mu

    def note(self, cfg: RunConfig) -> str:
        """One step is FedAvg's."""
        alone = self.is_alone(cfg.strategy) and "strategies.fedavg:" in cfg.strategy.server
        if not alone or max(cfg.train.steps_of(client) for client in range(cfg.num_clients)) > 1:
            return ""
        return f"strategy={cfg.strategy.name} with one local step a round is FedAvg; take train.local_steps=2 or more"

    def begin(self, client: GraphClient) -> None:
        """Anchor the term at the parameters θ^t that training starts from."""
        client.term_state["prox"] = anchored(client.shared)

    def term(self, client: GraphClient) -> Tensor:
        """The second term of Eq. (2)."""
        return proximal_term(client.shared, client.term_state["prox"], self.keys.mu)
