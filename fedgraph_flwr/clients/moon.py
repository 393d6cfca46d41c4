"""MOON at the client: model-contrastive federated learning (Li, He & Song, CVPR 2021, arXiv:2103.16257).

    ℓ_con = −log [ e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ}) ]                 Eq. (3)
    ℓ = ℓ_sup + μ ℓ_con                                                                                   Eq. (4)

sim is the cosine of a training node's hidden features under two models: the model in training (z), the received one (z_glob),
or this client's previous one (z_prev). The mean over training nodes is ℓ_con. The graph stays the same, so z_prev [V, H] is
kept, not the model. Ours: hidden features are the inputs of the head (the paper puts a projection between), and z_glob and
z_prev are computed without dropout. A client that has not trained yet uses the received model as its previous one: ℓ_con is
then log 2, without a gradient. With μ = 0, the method is FedAvg. Leaves the client: what FedAvg sends. Never leaves it: z.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model

PREVIOUS = "previous"


def contrast(z: Tensor, to: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Eq. (3), the mean over nodes; all [V, H]."""
    sims = torch.stack([F.cosine_similarity(z, to), F.cosine_similarity(z, away)], dim=1)  # [V, 2]
    return -F.log_softmax(sims / temperature, dim=1)[:, 0].mean()


class Moon(ClientPart):
    """The contrastive term of the local objective; keeps z_prev in `memory`."""

    serves: ClassVar[frozenset[str]] = frozenset({"nodes"})
    samples: ClassVar[bool] = False
    adds: ClassVar[bool] = True
    reads_hidden: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = True
    stacks: ClassVar[bool] = False

    @property
    def idle(self) -> bool:
        """Whether μ is 0."""
        return not self.keys.mu

    def check(self, cfg: RunConfig, model: Model) -> None:
        """Refuse a model of one layer, which has no hidden features that training could move."""
        if cfg.model.layers < 2:
            raise FedGraphError(
                f"strategy={cfg.strategy.name} contrasts hidden features, so model.layers must be >= 2, got {cfg.model.layers}"
            )

    def begin(self, client: GraphClient) -> None:
        """Compute z_glob."""
        client.round_state["moon"] = features(client)

    def term(self, client: GraphClient) -> Tensor:
        """The second term of Eq. (4)."""
        assert client.hidden is not None
        z, received = of_batch(client, client.hidden), client.round_state["moon"]
        return self.keys.mu * contrast(z, received, client.memory.get(PREVIOUS, received), self.keys.temperature)

    def end(self, client: GraphClient) -> None:
        """Keep the z_prev of the next round."""
        client.memory[PREVIOUS] = features(client)


def features(client: GraphClient) -> Tensor:
    """Compute Z of the current model, without dropout, [V, H]."""
    client.model.eval()
    with torch.no_grad():
        return of_batch(client, client.model.encode(client.batch.inputs))


def of_batch(client: GraphClient, rows: Tensor) -> Tensor:
    """Those of the training nodes, [V, H]."""
    return rows if client.batch.nodes is None else rows[client.batch.nodes]
