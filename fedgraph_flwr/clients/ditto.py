"""Ditto client (Li et al., ICML 2021, arXiv:2012.04221).

    h_i(v; w) = F_i(v) + (λ/2) ‖v − w‖²                                             the objective (Ditto) of Section 3
    w_i ← local training of F_i from w^t;   v_i ← v_i − η (∇F_i(v_i) + λ (v_i − w^t)),  s times        Algorithm 1

w^t is the model as received, which FedAvg's server averages: the shared model is FedAvg's bit for bit, whatever λ. v_i begins
as the first w^t that the client trains on, takes as many steps as w_i with an optimiser of its own, and is what the client is
scored by; λ = 0 is Local. Leaves the client: what FedAvg sends. v_i never does.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.fedprox import anchored, proximal_term
from fedgraph_flwr.clients.personal import PersonalClient, copied
from fedgraph_flwr.config import TASKS
from fedgraph_flwr.numerics.optim import make_optimizer
from fedgraph_flwr.wire.trees import flatten


@dataclass
class Params:
    """Keys of Ditto."""

    lam: float = 0.1  # (ours) λ; the paper chooses it on validation data. 0: the client's own model is Local's


class DittoClient(PersonalClient):
    """FedAvg's client with a second model; v_i and its optimiser's moments stand in `memory`."""

    Params: ClassVar[type] = Params
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    predicts_with: ClassVar[tuple[str, ...]] = ("model",)
    stacks: ClassVar[tuple[str, ...] | None] = ("anchor",)
    anchor: dict[str, Tensor] | None = None  # w^t while v_i trains

    def train(self) -> float:
        """v_i, then w_i; returns the last F_i(w_i)."""
        received = anchored(self.shared)
        optimizer = make_optimizer(self.model.parameters(), self.cfg.train)
        optimizer.load_state(flatten(self.memory.get("optimizer", {})))
        with self.with_parameters(self.memory.get("model", {}), optimizer):
            self.anchor = received
            super().train()
            self.anchor = None
            self.memory = {"model": copied(self.model.state_dict())}
            if self.optimizer is not None and self.cfg.train.keeps_optimizer:
                self.memory["optimizer"] = self.optimizer.state()
        return super().train()

    def loss(self) -> Tensor:
        """F_i, and of v_i its distance from w^t."""
        loss = super().loss()
        return loss if self.anchor is None else loss + proximal_term(self.shared, self.anchor, self.params.lam)

    def personal_parameters(self) -> dict[str, Tensor]:
        """v_i."""
        return dict(self.memory.get("model", {}))
