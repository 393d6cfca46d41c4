"""GraphSAGE with the mean aggregator (Hamilton, Ying & Leskovec, NeurIPS 2017, arXiv:1706.02216), in PyG's form.

    H^0 = X,   H^{l+1} = ReLU(H^l W_self^l + M H^l W_nb^l + b^l),   the last layer without ReLU

M = D^{-1} A is the mean over in-neighbours (`layers.mean_adjacency`); the paper's Eq. (2) writes the two products as one
matrix on a concatenation. The row normalisation of its Algorithm 1 is left out, as PyG's default does.

Shapes: X [N, F], M [N, N], W_self and W_nb [F, H], [H, H], last [H, C] → logits [N, C].
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.data.graph import Graph
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
    """GraphSAGE of ``layers`` layers over all neighbours, with ReLU and dropout between them.

    Args:
        num_features: F.
        num_classes: C.
        hidden: H.
        layers: of message passing.
        dropout: between them.
        input_norm: whether X is normalised by layer first.
        head: whether the last layer is H wide too and a linear classifier follows it.
        out_neighbours: whether a node hears the nodes its edges lead to, not those they come from.
    """

    adjacency = staticmethod(mean_adjacency)

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        input_norm: bool = False,
        head: bool = False,
        out_neighbours: bool = False,
    ):
        super().__init__()
        widths = [num_features, *[hidden] * (layers - 1), hidden if head else num_classes]
        self.norm: Any = nn.LayerNorm(num_features) if input_norm else nn.Identity()
        self.layers = nn.ModuleList([SAGELayer(a, b) for a, b in pairwise(widths)])
        self.head: Any = Linear(hidden, num_classes) if head else nn.Identity()
        self.dropout = dropout
        self.dense_features = input_norm
        self.out_neighbours = out_neighbours

    def prepare(self, graph: Graph, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """As the base, on reversed edges where out-neighbours are heard."""
        if self.out_neighbours:
            graph = replace(graph, edge_index=graph.edge_index.flip(0))
        return super().prepare(graph, device, dtype)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [N, C]."""
        h: Any = self.norm(inputs.x)
        for i, layer in enumerate(self.layers):
            if i:
                h = dropout(torch.relu(h), self.dropout, self.training)
            h = layer(h, inputs)
        return self.head(h)
