"""Multi-layer perceptron: the reference that sees no edges.

    H^0 = X,   H^{l+1} = ReLU(H^l W^l + b^l),   logits = H^{L-1} W^{L-1} + b^{L-1}

Shapes: X [N, F], W^0 [F, H], hidden W^l [H, H], last W [H, C] → logits [N, C].
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.base import Inputs, Model
from fedgraph_flwr.models.layers import Linear, dropout, no_adjacency


class MLP(Model):
    """Perceptron of ``layers`` linear layers with ReLU and dropout between them."""

    adjacency = staticmethod(no_adjacency)

    def __init__(self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float):
        super().__init__()
        widths = [num_features, *[hidden] * (layers - 1), num_classes]
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise(widths)])
        self.dropout = dropout

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [N, C]."""
        return self.transform(inputs.x)

    def transform(self, h: Any) -> Tensor:
        """Features [N, F], dense or sparse → [N, C]."""
        for i, layer in enumerate(self.layers):
            if i:
                h = dropout(torch.relu(h), self.dropout, self.training)
            h = layer(h)
        return h
