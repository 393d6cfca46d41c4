"""Base of clients that train a generator on an impaired graph (`fedgraph_baselines.methods.impaired`)."""

from functools import cached_property
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.methods.impaired import Impaired, whole_numbers
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.model_inputs import replace_inputs
from fedgraph_flwr.numerics.losses import task_loss
from fedgraph_flwr.secure.policy import counted
from fedgraph_flwr.wire.trees import Tree


class GeneratingClient(GraphClient):
    """Client that generates missing neighbours.

    Attributes:
        plain: the inputs without generated neighbours.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.plain = self.inputs

    @cached_property
    def impaired(self) -> Impaired:
        """The graph without the hidden nodes."""
        return Impaired.of(self.graph, self.params.neighbours, self.cfg.own_seed)

    @property
    def trains(self) -> Tensor:
        """Training nodes of the impaired graph, [m]."""
        return self.impaired.trains.to(self.device)

    def built(self, make: Any, width: int) -> Any:
        """Make a generator, if the node's policy allows its size and that of its rows [P, width]."""
        self.policy.check_size(self.params.neighbours * width, "a generator")
        self.policy.check_size(counted(make), "a generator")
        return make().to(self.device, self.dtype)

    def whole(self, count: Tensor) -> Tensor:
        """Convert counts to numbers of neighbours."""
        return whole_numbers(count.round(), self.params.neighbours, self.graph.client)

    def extended(self, at: Tensor) -> Any:
        """Return the model's inputs with generated neighbours of the nodes ``at`` [R]."""
        raise NotImplementedError

    def take(self) -> None:
        """Train and predict with the generated neighbours in `memory`."""
        at = self.memory["at"]
        replace_inputs(self, self.extended(at) if at.numel() else self.plain)

    def load(self, tree: Tree) -> None:
        """Restore the generated neighbours."""
        super().load(tree)
        if "at" in tree:
            self.take()

    def count_loss(self, count: Tensor) -> Tensor:
        """Compute SmoothL1(ñ, n) of the training nodes from ñ of all nodes [n]."""
        return F.smooth_l1_loss(count[self.trains], self.impaired.count.to(count)[self.trains])

    def mended_loss(self, logits: Tensor) -> Tensor:
        """Compute the cross-entropy of the training nodes from logits [n, C] of the mended impaired graph."""
        y = self.y[self.impaired.kept[self.impaired.trains].to(self.device)]
        return task_loss(logits[self.trains], y, self.cfg.train, self.class_weights)
