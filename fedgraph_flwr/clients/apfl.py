"""APFL client: adaptive personalised federated learning (Deng, Kamani & Mahdavi, 2020, arXiv:2003.13461).

    v̄_i = α_i v_i + (1 − α_i) w_i
    w_i ← w_i − η ∇F_i(w_i),   v_i ← v_i − η ∇_v F_i(v̄_i) = v_i − η α_i ∇F_i(v̄_i)                    Algorithm 1, each step
    α_i ← α_i − η ⟨v_i − w_i, ∇F_i(v̄_i)⟩, clipped to [0, 1]                                         adaptive α, once a round

w_i starts each round as the received model and is averaged by FedAvg's server: the shared model is FedAvg's bit for bit. v_i
starts as the first model that the client trains on. The client is scored with v̄_i of its own v_i and the received model. α_i
changes at the round's first step, by η = train.lr with any optimiser (ours). A fixed α of 0 is FedAvg, of 1 Local. Leaves the
client: FedAvg's uploads. v_i and α_i never leave it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedgraph_flwr.clients.personal import PersonalClient, copied
from fedgraph_flwr.config import TASKS, number
from fedgraph_flwr.numerics.optim import Optimizer, make_optimizer
from fedgraph_flwr.wire.trees import flatten


@dataclass
class Params:
    """Keys of APFL."""

    alpha: float = number(0.5, high=1)  # (ours) initial share of the own model
    adaptive: bool = True  # the share changes once per round; false: it is fixed


class APFLClient(PersonalClient):
    """FedAvg's client with a second model; `memory` holds v_i, α_i and v_i's optimiser state."""

    Params: ClassVar[type] = Params
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    predicts_with: ClassVar[tuple[str, ...]] = ("model", "alpha")

    def train(self) -> float:
        """Train both models step by step, and return the last F_i(w_i)."""
        if not self.memory:
            floats = {n: t for n, t in self.model.state_dict().items() if t.is_floating_point()}
            alpha = torch.tensor(self.params.alpha, dtype=self.dtype, device=self.device)
            self.memory = {"model": copied(floats), "alpha": alpha}
        own = self.memory["model"]
        self.own = {name: nn.Parameter(own[name]) for name, _ in self.model.named_parameters()}  # shares the memory
        self.mover = make_optimizer(self.own.values(), self.cfg.train)
        self.mover.load_state(flatten(self.memory.get("optimizer", {})))
        loss = super().train()
        if self.cfg.train.keeps_optimizer:
            self.memory["optimizer"] = self.mover.state()
        return loss

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Take one step of v_i, in the first step also of α_i, and leave ∇F_i(w_i) in the parameters."""
        current, alpha = dict(self.model.named_parameters()), self.memory["alpha"]
        with self.with_parameters(self.personal_parameters()):
            super().gradient(optimizer)
            grads = {name: p.grad for name, p in current.items() if p.grad is not None}
            for name, buffer in self.model.named_buffers():  # v̄_i's statistics are v_i's
                if name in self.memory["model"]:
                    self.memory["model"][name].copy_(buffer)
        if self.params.adaptive and not self.steps:
            apart = [((self.own[name] - current[name]) * grad).sum() for name, grad in grads.items()]
            moved = alpha - self.cfg.train.lr * torch.stack(apart).sum().detach()
            self.memory["alpha"] = moved.clamp(0, 1)
        for name, grad in grads.items():
            self.own[name].grad = alpha * grad
        self.update(self.mover)
        return super().gradient(optimizer)

    def personal_parameters(self) -> dict[str, Tensor]:
        """Return v̄_i, exactly w_i at α_i = 0 and v_i at 1."""
        current, own = self.model.state_dict(), self.memory.get("model", {})
        return {name: torch.lerp(current[name], v, self.memory["alpha"]) for name, v in own.items()}
