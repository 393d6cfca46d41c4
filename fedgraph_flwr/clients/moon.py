"""MOON client: model-contrastive federated learning (Li, He & Song, CVPR 2021, arXiv:2103.16257).

    ℓ_con = −log [ e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ}) ]                 Eq. (3)
    ℓ = ℓ_sup + μ ℓ_con                                                                                   Eq. (4)

sim is the cosine of a training node's hidden features under the model in training (z), the one received (z_glob) and this
client's of its last training (z_prev); ℓ_con is their mean. The graph stays the same, so z_prev [V, H] is kept, not the model.
As ours: hidden features are what the network's head reads (the paper puts a projection between), z_glob and z_prev are taken
without dropout, and a client that has not trained yet has the model received for its last: ℓ_con is log 2, and flat. μ = 0 is
FedAvg. Leaves the client: what FedAvg sends. Never leaves it: z.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model

PREVIOUS = "previous"


@dataclass
class Params:
    """Keys of MOON."""

    mu: float = 1.0  # μ, of the paper's grid 0.1, 1, 5, 10; 0 is FedAvg
    temperature: float = number(0.5, without_low=True)  # τ of Section 4.1


def contrast(z: Tensor, to: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Eq. (3), the mean over nodes; all [V, H]."""
    sims = torch.stack([F.cosine_similarity(z, to), F.cosine_similarity(z, away)], dim=1)  # [V, 2]
    return -F.log_softmax(sims / temperature, dim=1)[:, 0].mean()


class MoonClient(GraphClient):
    """Trains towards the features of the model received, and away from those of its own last one.

    Attributes:
        hidden: features of the pass at hand, [N, H].
        received: z_glob.
    """

    Params: ClassVar[type] = Params

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """A network of one layer has no hidden features that training could move."""
        if method_params(cls, cfg).mu and cfg.model.layers < 2:
            raise FedGraphError(
                f"strategy={cfg.strategy.name} contrasts hidden features, so model.layers must be >= 2, got {cfg.model.layers}"
            )

    def logits(self, inputs: Any) -> Tensor:
        """The network's two halves, with what lies between them kept."""
        self.hidden = self.model.encode(inputs)
        return self.model.classify(self.hidden, inputs)

    def loss(self) -> Tensor:
        """Eq. (4)."""
        loss = super().loss()
        if not self.params.mu:
            return loss
        z, previous = self.of_batch(self.hidden), self.memory.get(PREVIOUS, self.received)
        return loss + self.params.mu * contrast(z, self.received, previous, self.params.temperature)

    def train(self) -> float:
        """Find z_glob, train, and keep the z_prev of the next round."""
        if not self.params.mu:
            return super().train()
        self.received = self.features()
        loss = super().train()
        self.memory[PREVIOUS] = self.features()
        return loss

    def features(self) -> Tensor:
        """Z of the model as it is, [V, H]."""
        self.model.eval()
        with torch.no_grad():
            return self.of_batch(self.model.encode(self.batch.inputs))

    def of_batch(self, rows: Tensor) -> Tensor:
        """Those of the training nodes, [V, H]."""
        return rows if self.batch.nodes is None else rows[self.batch.nodes]
