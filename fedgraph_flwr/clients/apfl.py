"""APFL at the client: adaptive personalised federated learning (Deng, Kamani & Mahdavi, 2020, arXiv:2003.13461).

    v̄_i = α_i v_i + (1 − α_i) w_i
    w_i ← w_i − η ∇F_i(w_i),   v_i ← v_i − η ∇_v F_i(v̄_i) = v_i − η α_i ∇F_i(v̄_i)                    Algorithm 1, each step
    α_i ← α_i − η ⟨v_i − w_i, ∇F_i(v̄_i)⟩, clipped to [0, 1]                                         adaptive α, once a round

w_i starts each round as the received model, and FedAvg's server averages it. The shared model therefore equals FedAvg's bit for
bit. Each v_i starts as the first model that the client trains on. The client is scored with v̄_i from v_i and the received
model. With any optimiser, α_i changes at the round's first step, by η = train.lr (ours). A fixed α of 0 is FedAvg, of 1 Local.
Leaves the client: FedAvg's uploads. v_i and α_i never leave it.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.chosen_parts import only
from fedgraph_flwr.clients.client_part import ClientPart, Step, copied, with_parameters
from fedgraph_flwr.clients.descent import update
from fedgraph_flwr.numerics.optim import Optimizer, make_optimizer
from fedgraph_flwr.wire.trees import flatten


class Apfl(ClientPart):
    """A second model in a mixture; `memory` holds v_i, α_i and v_i's moments."""

    predicts_with: ClassVar[tuple[str, ...]] = ("model", "alpha")

    def begin(self, client: GraphClient) -> None:
        """Start v_i and α_i in the first training, and give v_i its optimiser."""
        memory = client.memory
        if "alpha" not in memory:
            floats = {n: t for n, t in client.model.state_dict().items() if t.is_floating_point()}
            memory["model"] = copied(floats)
            memory["alpha"] = torch.tensor(self.keys.alpha, dtype=client.dtype, device=client.device)
        tensors = {
            name: nn.Parameter(memory["model"][name]) for name, _ in client.model.named_parameters()
        }  # same storage
        mover = make_optimizer(tensors.values(), client.cfg.train)
        mover.load_state(flatten(memory.get("optimizer", {})))
        client.round_state["apfl"] = tensors, mover

    def end(self, client: GraphClient) -> None:
        """Keep v_i's moments."""
        _, mover = client.round_state.pop("apfl")
        if client.cfg.train.keeps_optimizer:
            client.memory["optimizer"] = mover.state()

    def gradient(self, client: GraphClient, inner: Step, optimizer: Optimizer) -> Tensor:
        """Take one step of v_i, and of α_i at first; leaves the gradient of w_i in the parameters."""
        tensors, mover = client.round_state["apfl"]
        current, alpha = dict(client.model.named_parameters()), client.memory["alpha"]
        with with_parameters(client, self.parameters(client)), only(client):
            client.gradient(optimizer)
            grads = {name: p.grad for name, p in current.items() if p.grad is not None}
            for name, buffer in client.model.named_buffers():  # v̄_i's statistics are v_i's
                if name in client.memory["model"]:
                    client.memory["model"][name].copy_(buffer)
        if self.keys.adaptive and not client.steps:
            apart = [((tensors[name] - current[name]) * grad).sum() for name, grad in grads.items()]
            moved = alpha - client.cfg.train.lr * torch.stack(apart).sum().detach()
            client.memory["alpha"] = moved.clamp(0, 1)
        for name, grad in grads.items():
            tensors[name].grad = alpha * grad
        update(client, mover)
        return inner(optimizer)

    def parameters(self, client: GraphClient) -> Mapping[str, Tensor]:
        """v̄_i, exactly w_i at α_i = 0 and v_i at 1."""
        current, tensors = client.model.state_dict(), client.memory.get("model", {})
        return {name: torch.lerp(current[name], v, client.memory["alpha"]) for name, v in tensors.items()}
