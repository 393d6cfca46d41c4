"""SCAFFOLD client (Karimireddy et al., ICML 2020, arXiv:1910.06378).

    y_i ← y_i − η (g_i(y_i) + c − c_i),   K times from y_i = x                                           Eq. (3)
    c_i⁺ = g_i(x)   (option I)   or   c_i − c + (x − y_i)/(K η)   (option II)                            Eq. (4)

g_i holds the weight decay. Option I takes the gradient of the first step, which is at x and over all training nodes; it is
right under any optimiser, to which g_i + c − c_i goes (ours: the paper has plain SGD). A parameter without a gradient, such as
that of an edge type which the client lacks, and its c_i are left as they are.
Leaves the client: beside what FedAvg sends, c_i⁺ − c_i.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import ReplyContent, to_numpy
from fedgraph_flwr.clients.variates import OFFER, OWN, Named, VariateClient
from fedgraph_flwr.config import TASKS
from fedgraph_flwr.methods import variates
from fedgraph_flwr.methods.variates import VARIATES, ScaffoldParams
from fedgraph_flwr.numerics.optim import Optimizer

CONTROL = "control"


class ScaffoldClient(VariateClient):
    """Trains against its drift.

    Attributes:
        first: g_i(x), by the names of the parameters that it reaches.
    """

    Params: ClassVar[type] = ScaffoldParams
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    uplink = staticmethod(variates.uplink)

    def train(self) -> float:
        """Find c − c_i, then train."""
        control = self.own(CONTROL)
        self.correction = {name: self.common[name] - control[name] for name in control}
        return super().train()

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave g_i + c − c_i in the parameters; returns F_i."""
        loss = super().gradient(optimizer)
        if not self.steps:
            decay = self.cfg.train.weight_decay
            self.first = {n: g + decay * p.detach() for n, p in self.trained.items() if (g := p.grad) is not None}
        self.correct(self.correction)
        return loss

    def renewed(self) -> dict[str, Named]:
        """Eq. (4)."""
        found = self.first
        if self.params.averages_steps(self.cfg.train):
            way, reach = self.moved(), self.steps * self.cfg.train.lr
            found = {name: -self.correction[name] - way[name] / reach for name in self.first}
        return {CONTROL: self.own(CONTROL) | found}

    def send(self) -> ReplyContent:
        """c_i⁺ − c_i, zero where nothing trained."""
        former = self.own(CONTROL)
        latter = self.memory.get(OFFER, {}).get(OWN, {}).get(CONTROL, former)
        change = {n: latter[n] - former[n] if n in former else torch.zeros_like(t) for n, t in self.shared.items()}
        return {VARIATES: {name: to_numpy(tensor) for name, tensor in change.items()}}, {}
