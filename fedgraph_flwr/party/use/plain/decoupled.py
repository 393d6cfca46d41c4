"""A perceptron, then propagation without weights."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import add_self_loops, remove_self_loops


class Net(nn.Module):
    """sum_l weights[l] P^l f(X), P the mean over a node and its in-neighbours.

    Args:
        widths: of f: features, hidden layers, classes.
        weights: of P^1..P^L.
        input_norm: whether the features are normalised by layer first.
    """

    def __init__(self, widths: list[int], weights: list[float], input_norm: bool = False):
        super().__init__()
        self.input_norm = nn.LayerNorm(widths[0]) if input_norm else nn.Identity()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        self.mean = SimpleConv(aggr="mean")
        self.weights = weights

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features [N, F] and edges [2, E] (source, target) -> logits [N, C]."""
        edge_index = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=x.size(0))[0]
        h = self.input_norm(x)
        for layer in self.layers[:-1]:
            h = layer(h).relu()
        h = self.layers[-1](h)
        total = torch.zeros_like(h)
        for weight in self.weights:
            h = self.mean(h, edge_index)
            total = total + weight * h
        return total
