"""GraphSAGE with the mean aggregator (Hamilton, Ying & Leskovec, NeurIPS 2017, arXiv:1706.02216), in PyG's form.

    H^0 = X,   H^{l+1} = ReLU(H^l W_self^l + M H^l W_nb^l + b^l),   the last layer without ReLU

M = D^{-1} A is the mean over in-neighbours (`layers.mean_adjacency`); the paper's Eq. (2) writes the two products as one
matrix on a concatenation. The row normalisation of its Algorithm 1 is left out, as PyG's default does.

Shapes: X [N, F], M [N, N], W_self and W_nb [F, H], [H, H], last [H, C] → logits [N, C].
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.base import Inputs, Model
from fedgraph_flwr.models.layers import Linear, dropout, mean_adjacency


class SAGELayer(nn.Module):
    """H W_self + M H W_nb + b: [N, F] → [N, H]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.itself = Linear(num_in, num_out)
        self.neighbours = Linear(num_in, num_out, bias=False)

    def forward(self, h: Any, inputs: Inputs) -> Tensor:
        """[N, H]."""
        return self.itself(h) + inputs.adj @ self.neighbours(h)


class GraphSAGE(Model):
    """GraphSAGE of ``layers`` layers over all neighbours, with ReLU and dropout between them."""

    adjacency = staticmethod(mean_adjacency)

    def __init__(self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float):
        super().__init__()
        widths = [num_features, *[hidden] * (layers - 1), num_classes]
        self.layers = nn.ModuleList([SAGELayer(a, b) for a, b in pairwise(widths)])
        self.dropout = dropout

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [N, C]."""
        h: Any = inputs.x
        for i, layer in enumerate(self.layers):
            if i:
                h = dropout(torch.relu(h), self.dropout, self.training)
            h = layer(h, inputs)
        return h
