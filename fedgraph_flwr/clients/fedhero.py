"""FedHERO client (arXiv 2504.21206): the dual-channel model, trained as a whole on the private graph.

    L = CE(Y, Y_train) + λ Σ_uv Ã_uv ‖x_u − x_v‖² + μ ‖Ã‖²_F                                    (7), (8)

Every step trains all parameters. Those of f_global are then averaged; the others stay, with their part of Adam's moments.
Leaves the client: f_global, N_i, scores.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.requirements import network
from fedgraph_flwr.config import choice
from fedgraph_flwr.models.fedhero import FedHERO
from fedgraph_flwr.models.structure_learner import REDUCTIONS, smoothness


@dataclass
class Params:
    """Keys of FedHERO's objective."""

    lam: float = 0.1  # λ of Eq. (7)
    mu: float = 0.1  # μ of Eq. (7)
    reduction: str = choice("n2", tuple(REDUCTIONS))  # (ours) n2 | sum, as printed | edges


class FedHEROClient(GraphClient, requires=(network(FedHERO, "fedhero"),)):
    """FedAvg's client with the smoothness loss of Eq. (7)."""

    Params: ClassVar[type] = Params
    model: FedHERO

    def loss(self) -> Tensor:
        """Compute Eq. (8)."""
        logits, latent = self.model.both(self.inputs)
        p, distance = self.params, self.inputs.distances(latent.pattern)
        smooth = smoothness(latent, distance, lam=p.lam, mu=p.mu, reduction=p.reduction)
        return self.task_loss(logits) + smooth + latent.penalty
