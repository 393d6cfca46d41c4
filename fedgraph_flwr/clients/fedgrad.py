"""Client of gradient averaging: one gradient of the summed loss per round, without a local step.

    g_i = ∇_θ Σ_{v∈V~_i} CE(y_v, ŷ_v)                                              FedStruct, Eqs. (7), (8)

Leaves the client: g_i under the names of the parameters, |V~_i|, scores. With ``privacy.unit=row`` or ``payment`` only a noised
sum of clipped gradients leaves it (`fedgraph_flwr.clients.row_gradients`).
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient, to_numpy
from fedgraph_flwr.clients.descent import grads
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.clients.row_gradients import RowGradients, check_rows
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedgrad
from fedgraph_flwr.methods.fedgrad import FedGradParams
from fedgraph_flwr.models import Model
from fedgraph_flwr.secure.protection import protection_of


class FedGradClient(GraphClient):
    """A client that returns gradients instead of trained parameters.

    Attributes:
        units: values of ``privacy.unit`` other than ``client`` that it supports. A subclass must declare them again.
    """

    Params: ClassVar[type] = FedGradParams
    uplink = staticmethod(fedgrad.uplink)
    downlink = staticmethod(fedgrad.downlink)
    stacks: ClassVar[tuple[str, ...] | None] = ()
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy", "weighted")
    serves: ClassVar[frozenset[str]] = frozenset({"nodes", "edges"})
    units: ClassVar[frozenset[str]] = frozenset({"row", "payment"})
    gradients: dict[str, Tensor]

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require cross-entropy, weighted by class or not: its sums add up over clients to the loss of all nodes."""
        super().check(cfg, model)
        if cfg.train.loss not in cls.losses:
            raise unfit(cfg, f"train.loss={' or '.join(cls.losses)}", f"train.loss={cfg.train.loss}", "set it")
        if protection_of(cfg).unit != "client":
            check_rows(cfg, model)

    @cached_property
    def training_rows(self) -> RowGradients:
        """The training rows, for gradients of single ones."""
        return RowGradients(self)

    def refuse_single(self, what: str, instead: str) -> None:
        """Refuse to send values of single nodes if the node's policy requires several in every statistic."""
        if self.policy.min_nodes > 1:
            raise FedGraphError(
                f"client {self.graph.client} would send {what}, but its node's policy requires at least {self.policy.min_nodes}"
                f" nodes in every statistic (min_nodes): {instead}, or min_nodes: 1 there"
            )

    def leaves(self) -> dict[str, Tensor]:
        """Return the tensors whose gradients are sent."""
        return {name: tensor for name, tensor in self.shared.items() if tensor.requires_grad}

    def loss(self) -> Tensor:
        """Compute Σ_{v∈V~_i} CE(y_v, ŷ_v)."""
        return self.summed_loss(self.model(self.batch.inputs)[self.batch.nodes])

    def summed_loss(self, logits: Tensor) -> Tensor:
        """Compute Σ_v w_v CE(y_v, ŷ_v) of the logits [|V~_i|, C] of the training nodes; Σ_v w_v is their number."""
        outputs = logits.softmax(1) if self.params.double_softmax else logits
        weights = None if self.class_weights is None else self.class_weights.to(outputs)
        return F.cross_entropy(outputs, self.batch.y, weights, reduction="sum")

    def train(self) -> float:
        """Compute `gradients`, and return the mean loss at the incoming parameters."""
        self.model.train()
        loss, gradients = grads(self, self.leaves())
        self.gradients = {name: grad for name, grad in gradients.items() if grad is not None}
        return float(loss.detach()) / self.num_train

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Return gradients instead of parameters; zeros for a client without training nodes."""
        if self.protection.unit != "client":
            if parameters:
                self.set_parameters(parameters)
            self.saved_models.take(self, {}, config)
            sums = self.training_rows.released(self.shared)
            return [sums[name] for name in self.shared], self.num_train, {}
        self.gradients = {}
        _, num_train, numbers = super().fit(parameters, config)
        for name, tensor in {**self.shared, **self.leaves()}.items():
            if name not in self.gradients:
                self.gradients[name] = torch.zeros_like(tensor)
        return [to_numpy(self.gradients[name]) for name in self.shared], num_train, numbers
