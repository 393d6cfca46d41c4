"""FedALA at the client (Zhang et al., AAAI 2023, arXiv:2212.01197).

    Θ̂_i = Θ_i^{t−1} + (Θ^{t−1} − Θ_i^{t−1}) ⊙ W_i                                   adaptive local aggregation
    W_i ← clip(W_i − η ∇_{Θ̂} L(Θ̂_i, D_i^s) ⊙ (Θ^{t−1} − Θ_i^{t−1}), 0, 1)           weight learning, W_i = 1 at first

Θ^{t−1} is the model as received, Θ_i^{t−1} the client's own after its last training. Both equations are of Algorithm 1 and
apply only to the last p layers; all others take Θ^{t−1}. D_i^s are s of the client's training nodes, newly drawn each time, and
on a fleet at least the policy's ``min_nodes``.
When there is a Θ_i^{t−1} to mix for the first time, W_i is learned until the standard deviation of the last ten losses is below
a threshold. This takes at most `passes` passes (ours). Later rounds make one pass. Training then starts from Θ̂_i, and the
client is scored with Θ̂_i. No layer to mix, or η = 0, is FedAvg. Leaves the client: FedAvg's uploads. W_i never leaves it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart, assign, copied, with_parameters
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.models import Model, check_prefixes

LOSSES = 10
"""Number of losses whose standard deviation says that learning has settled."""


class Ala(ClientPart):
    """A start from a mixture of the client's last model and the received one; `memory` holds both parts."""

    serves: ClassVar[frozenset[str]] = frozenset({"nodes"})
    samples: ClassVar[bool] = False
    predicts_with: ClassVar[tuple[str, ...]] = ("local", "weights")
    tunes: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = True

    def check(self, cfg: RunConfig, model: Model) -> None:
        """Refuse a prefix of ``mixed`` that matches no parameter."""
        check_prefixes(self.keys.mixed, "strategy.ala.mixed", cfg, model)

    def begin(self, client: GraphClient) -> None:
        """Start from Θ̂_i."""
        start, client.round_state["ala"] = self.aggregated(client)
        assign(self.upper(client), start)

    def end(self, client: GraphClient) -> None:
        """Keep Θ_i of the last p layers, and W_i."""
        client.memory |= {"local": copied(self.upper(client)), "weights": client.round_state.pop("ala")}

    def parameters(self, client: GraphClient) -> Mapping[str, Tensor]:
        """Θ̂_i."""
        return self.aggregated(client)[0]

    def upper(self, client: GraphClient) -> dict[str, Tensor]:
        """The parameters of the last p layers that travel; they alias the model."""
        tensors = client.model.shared(self.keys.mixed)
        return {name: t for name, t in tensors.items() if name in client.shared and t.requires_grad}

    def aggregated(self, client: GraphClient) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Θ̂_i of the last p layers, empty where it is Θ, and W_i; nothing of the client is changed."""
        upper, local = self.upper(client), client.memory.get("local", {})
        weights: dict[str, Tensor] = client.memory.get("weights", {})
        if all(torch.equal(upper[name], local[name]) for name in local):
            return {}, weights
        received, losses = copied(upper), list[float]()
        limit = 1 if weights else self.keys.passes
        weights = weights or {name: torch.ones_like(t) for name, t in received.items()}
        start = _mixed(local, received, weights)
        whole = client.batch
        with with_parameters(client, start):
            client.model.train()
            client.batch = self.sampled(client)
            while len(losses) < limit and not self.converged(losses):
                loss = client.loss()
                grads = torch.autograd.grad(loss, list(upper.values()), materialize_grads=True)
                for name, grad in zip(upper, grads, strict=True):
                    step = self.keys.eta * grad * (received[name] - local[name])
                    weights = {**weights, name: (weights[name] - step).clamp(0, 1)}
                start = _mixed(local, received, weights)
                assign(upper, start)
                losses.append(float(loss.detach()))
        client.batch = whole
        return start, weights

    def converged(self, losses: list[float]) -> bool:
        """Whether learning has settled."""
        return len(losses) > LOSSES and float(np.std(losses[-LOSSES:])) < self.keys.threshold

    def sampled(self, client: GraphClient) -> Any:
        """The batch D_i^s."""
        size = max(1, int(self.keys.sample * client.num_train), client.policy.min_nodes)
        nodes = client.train_nodes[torch.randperm(client.num_train)[:size].to(client.device)]
        return client.batch._replace(inputs=client.inputs, nodes=nodes, y=client.y[nodes])


def _mixed(local: dict[str, Tensor], received: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Θ̂; exactly the received values where W = 1."""
    return {name: torch.lerp(local[name], received[name], weights[name]) for name in local}
