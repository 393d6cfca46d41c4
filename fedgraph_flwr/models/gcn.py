"""Graph convolutional network (Kipf & Welling, ICLR 2017, arXiv:1609.02907).

    H^0 = X,   H^{l+1} = ReLU(Â H^l W^l + b^l),   logits = Â H^{L-1} W^{L-1} + b^{L-1}            Eq. (2), (9)

Shapes: X [N, F], Â [N, N] (`layers.gcn_adjacency`), W^0 [F, H], hidden W^l [H, H], last W [H, C] → logits [N, C].
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.base import Inputs, Model
from fedgraph_flwr.models.layers import Linear, dropout


class GCN(Model):
    """GCN of ``layers`` layers with ReLU and dropout between them."""

    def __init__(self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float):
        super().__init__()
        widths = [num_features, *[hidden] * (layers - 1), num_classes]
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise(widths)])
        self.dropout = dropout

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [N, C]."""
        h: Any = inputs.x
        for i, layer in enumerate(self.layers):
            if i:
                h = dropout(torch.relu(h), self.dropout, self.training)
            h = inputs.adj @ (h @ layer.weight) + layer.bias
        return h
