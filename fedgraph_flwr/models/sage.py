"""GraphSAGE with the mean aggregator (Hamilton, Ying & Leskovec, NeurIPS 2017, arXiv:1706.02216), in PyG's form.

    H^0 = X,   H^{l+1} = ReLU(H^l W_self^l + M H^l W_nb^l + b^l),   the last layer without ReLU

M = D^{-1} A is the mean over in-neighbours (`layers.mean_adjacency`); the paper's Eq. (2) writes the two products as one
matrix on a concatenation. The row normalisation of its Algorithm 1 is left out, as PyG's default does.

Shapes: X [N, F], M [N, N], W_self and W_nb [F, H], [H, H], last [H, C] → logits [N, C].
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.models.in_blocks import Step
from fedgraph_flwr.models.layers import Linear, aggregated, mean_adjacency
from fedgraph_flwr.models.plain import Plain, PlainLayer, plain_linear
from fedgraph_flwr.models.stack import Stack
from fedgraph_flwr.numerics.blocks import Neighbours
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device


class SAGELayer(nn.Module):
    """H W_self + M H W_nb + b: [N, F] → [N, H]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.itself = Linear(num_in, num_out)
        self.neighbours = Linear(num_in, num_out, bias=False)

    def forward(self, h: Any, inputs: Inputs) -> Tensor:
        """Return [N, H]."""
        targets, sources = inputs.adj.shape
        if targets == sources:
            return self.itself(h) + inputs.adj @ self.neighbours(h)
        center = self.itself(h[:targets]) if isinstance(h, Tensor) else self.itself(h)[:targets]
        return center + aggregated(inputs.adj, h, self.neighbours.weight)


class GraphSAGE(Stack):
    """GraphSAGE of ``layers`` layers over all neighbours, with ReLU and dropout between them.

    Args:
        num_features: F.
        num_classes: C.
        layers: number of message-passing layers.
        head: whether a linear classifier follows the last layer, which is then H wide.
        out_neighbours: whether a node aggregates over the targets of its edges instead of over their sources.
        common: keywords of `Stack`.
    """

    stacks = True
    samples = True
    adjacency = staticmethod(mean_adjacency)

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        layers: int,
        head: bool = False,  # a linear classifier after the last layer, which is then `hidden` wide
        out_neighbours: bool = False,  # aggregate over out-neighbours, where edges have a direction
        **common: Any,
    ):
        super().__init__(num_features, num_classes, SAGELayer, Linear if head else None, layers=layers + head, **common)
        self.linear_head = head
        self.out_neighbours = out_neighbours

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """Prepare inputs, on reversed edges for ``out_neighbours``."""
        return super().prepare(self.directed(graph), device, dtype)

    def neighbours(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Neighbours:
        """Return in-neighbours, or with ``out_neighbours`` those of reversed edges."""
        return super().neighbours(self.directed(graph), device, dtype)

    def directed(self, graph: Graph) -> Graph:
        """Return the graph, with reversed edges for ``out_neighbours``."""
        return replace(graph, edge_index=graph.edge_index.flip(0)) if self.out_neighbours else graph

    def plain(self) -> Plain:
        """Export like `Stack`, on reversed edges for ``out_neighbours``."""
        export = super().plain()
        return replace(export, arguments=export.arguments | {"reverse": self.out_neighbours})

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Return PyG's SAGEConv, or the linear head."""
        if isinstance(layer, Linear):
            return plain_linear(layer)
        num_in, num_out = layer.itself.weight.shape
        weights = {"lin_l.weight": layer.neighbours.weight.T, "lin_l.bias": layer.itself.bias}
        weights["lin_r.weight"] = layer.itself.weight.T
        return "sage", {"in_channels": num_in, "out_channels": num_out}, weights

    def plain_activation(self, index: int) -> str:
        """Name ReLU, or none before a linear classifier."""
        return "none" if self.linear_head and index == len(self.layers) - 1 else super().plain_activation(index)

    def reads_neighbours(self, index: int) -> bool:
        """All but a linear classifier do."""
        return not (self.linear_head and index == len(self.layers))

    def activate(self, h: Tensor, index: int) -> Tensor:
        """Apply ReLU, or nothing before a linear classifier."""
        return h if self.plain_activation(index) == "none" else super().activate(h, index)

    def classify(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Compute logits [N, C]."""
        return self.head(h) if self.linear_head else super().classify(h, inputs)

    def passes(self) -> list[Step]:
        """One per layer; no dropout before a linear classifier."""
        steps = super().passes()
        return [*steps[:-1], Step(False, lambda h, inputs: self.head(h))] if self.linear_head else steps
