"""Ditto at the client (Li et al., ICML 2021, arXiv:2012.04221).

    h_i(v; w) = F_i(v) + (λ/2) ‖v − w‖²                                             the objective (Ditto) of Section 3
    w_i ← local training of F_i from w^t;   v_i ← v_i − η (∇F_i(v_i) + λ (v_i − w^t)),  s times        Algorithm 1

w^t is the received model, which FedAvg's server averages. For any λ, the shared model therefore equals FedAvg's bit for bit.
Each v_i starts as the first w^t that the client trains on. It takes as many steps as w_i, with its own optimiser, and the
client is scored with it. λ = 0 is Local.
Leaves the client: what FedAvg sends. v_i never leaves it.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.chosen_parts import only
from fedgraph_flwr.clients.client_part import ClientPart, copied, with_parameters
from fedgraph_flwr.clients.descent import begin_training
from fedgraph_flwr.clients.fedprox import anchored, proximal_term
from fedgraph_flwr.numerics.optim import make_optimizer
from fedgraph_flwr.wire.trees import flatten


class Ditto(ClientPart):
    """A second model; `memory` holds v_i and its optimiser's moments."""

    adds: ClassVar[bool] = True
    predicts_with: ClassVar[tuple[str, ...]] = ("model",)

    def begin(self, client: GraphClient) -> None:
        """Train v_i, while w_i keeps the received values."""
        received = anchored(client.shared)
        optimizer = make_optimizer(client.model.parameters(), client.cfg.train)
        optimizer.load_state(flatten(client.memory.get("optimizer", {})))
        with with_parameters(client, client.memory.get("model", {}), optimizer), only(client, self):
            client.term_state["ditto"] = received
            client.descend(begin_training(client))
            del client.term_state["ditto"]
            client.memory["model"] = copied(client.model.state_dict())
            client.memory.pop("optimizer", None)
            if client.optimizer is not None and client.cfg.train.keeps_optimizer:
                client.memory["optimizer"] = client.optimizer.state()

    def term(self, client: GraphClient) -> Tensor | None:
        """The distance of v_i from w^t; None while w_i trains."""
        anchor = client.term_state.get("ditto")
        return None if anchor is None else proximal_term(client.shared, anchor, self.keys.lam)

    def parameters(self, client: GraphClient) -> Mapping[str, Tensor]:
        """v_i."""
        return dict(client.memory.get("model", {}))
