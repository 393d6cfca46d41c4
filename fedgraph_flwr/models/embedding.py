"""A free vector per node: what is learnt of a node in its client's graph, without features and messages.

    Z = E [N, W]

The vectors never leave the client, which learns them from its own items. It shares what the task adds, such as the vectors of
relations (`readout.RelationRows`). Nodes that a graph did not have in training have no vector.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.layers import no_adjacency


class Embedding(Model):
    """A vector of W numbers per node, W being the width of the outputs; the model has no hidden layer and no dropout.

    Args:
        num_features: F, not read.
        num_classes: W.
        hidden: not read.
        layers: not read.
        dropout: not read.
    """

    private = ("nodes",)
    head_prefixes = ()
    adjacency = staticmethod(no_adjacency)

    def __init__(self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float):
        super().__init__()
        self.nodes = nn.Parameter(torch.zeros(0, num_classes))

    def with_nodes(self, num_nodes: int) -> Self:
        """Draw the vectors of a graph's nodes: N(0, 1 / W)."""
        width = self.nodes.size(1)
        self.nodes = nn.Parameter(torch.randn(num_nodes, width, dtype=self.nodes.dtype) * width**-0.5)
        return self

    def encode(self, inputs: Any) -> Tensor:
        """Return E [N, W]."""
        return self.nodes

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Return the vectors as they are."""
        return h
