"""APFL client: adaptive personalised federated learning (Deng, Kamani & Mahdavi, 2020, arXiv:2003.13461).

    v̄_i = α_i v_i + (1 − α_i) w_i
    w_i ← w_i − η ∇F_i(w_i),   v_i ← v_i − η ∇_v F_i(v̄_i) = v_i − η α_i ∇F_i(v̄_i)                    Algorithm 1, each step
    α_i ← α_i − η ⟨v_i − w_i, ∇F_i(v̄_i)⟩, clipped to [0, 1]                                         adaptive α, once a round

w_i begins each round as the received model and is what FedAvg's server averages: the shared model is FedAvg's bit for bit. v_i
begins as the first model that the client trains on; the client is scored by v̄_i of its own v_i and the received model. α_i
moves on the round's first step, by η = train.lr whatever the optimiser (ours). A fixed α of 0 is FedAvg, of 1 Local. Leaves the
client: what FedAvg sends. v_i and α_i never do.
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

    alpha: float = number(0.5, high=1)  # (ours) share of the own model at first
    adaptive: bool = True  # the share moves once a round; false: it stays


class APFLClient(PersonalClient):
    """FedAvg's client that moves a second model along; v_i, α_i and v_i's moments stand in `memory`."""

    Params: ClassVar[type] = Params
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    predicts_with: ClassVar[tuple[str, ...]] = ("model", "alpha")

    def train(self) -> float:
        """Both models, step by step; returns the last F_i(w_i)."""
        if not self.memory:
            floats = {n: t for n, t in self.model.state_dict().items() if t.is_floating_point()}
            alpha = torch.tensor(self.params.alpha, dtype=self.dtype, device=self.device)
            self.memory = {"model": copied(floats), "alpha": alpha}
        own = self.memory["model"]
        self.own = {name: nn.Parameter(own[name]) for name, _ in self.model.named_parameters()}  # of the same memory
        self.mover = make_optimizer(self.own.values(), self.cfg.train)
        self.mover.load_state(flatten(self.memory.get("optimizer", {})))
        loss = super().train()
        if self.cfg.train.keeps_optimizer:
            self.memory["optimizer"] = self.mover.state()
        return loss

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """One step of v_i, and of α_i at first; leaves ∇F_i(w_i) in the parameters."""
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
        """v̄_i, exactly w_i at α_i = 0 and v_i at 1."""
        current, own = self.model.state_dict(), self.memory.get("model", {})
        return {name: torch.lerp(current[name], v, self.memory["alpha"]) for name, v in own.items()}
