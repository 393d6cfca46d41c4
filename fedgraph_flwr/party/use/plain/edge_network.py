"""GINE, PNA, GATv2 or the graph transformer: models that read edge features, in the layout of Multi-GNN."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, TransformerConv

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def mlp(num_in: int, num_out: int) -> nn.Module:
    """Two linear layers with ReLU between them."""
    return nn.Sequential(nn.Linear(num_in, num_out), nn.ReLU(), nn.Linear(num_out, num_out))


class Masked(nn.Module):
    """A layer whose messages an explanation scales by ``edge_mask`` [E]; None: as they are."""

    edge_mask: Tensor | None = None

    def masked(self, message: Tensor) -> Tensor:
        """Messages [E, H]."""
        return message if self.edge_mask is None else message * self.edge_mask.unsqueeze(1)


class GINE(Masked):
    """MLP((1 + eps) h_v + sum of ReLU(h_u + e W)): [N, F] -> [N, H]."""

    def __init__(self, num_in: int, num_out: int, num_edge_features: int):
        super().__init__()
        self.mlp = mlp(num_in, num_out)
        self.eps = nn.Parameter(torch.zeros(()))
        self.edge = nn.Parameter(torch.zeros(num_edge_features, num_in)) if num_edge_features else None

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor | None) -> Tensor:
        """Nodes [N, F], edges [2, E] and their features [E, D]."""
        source, target = edge_index
        message = h[source] if e is None or self.edge is None else h[source] + e @ self.edge
        return self.mlp(((1 + self.eps) * h).index_add(0, target, self.masked(message.relu())))


class PNA(Masked):
    """Mean, minimum, maximum and deviation of messages, each times 1, ln(d + 1) / delta and its inverse."""

    def __init__(self, num_in: int, num_out: int, num_edge_features: int, delta: float):
        super().__init__()
        self.pre, self.post = nn.Linear(2 * num_in, num_in), nn.Linear(13 * num_in, num_out)
        self.edge = nn.Parameter(torch.zeros(num_edge_features, num_in)) if num_edge_features else None
        self.delta = delta

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor | None) -> Tensor:
        """Nodes [N, F], edges [2, E] and their features [E, D]."""
        source, target = edge_index
        message = self.pre(torch.cat([h[target], h[source]], dim=1))
        message = self.masked(message if e is None or self.edge is None else message + e @ self.edge)
        index, shape = target.unsqueeze(1).expand_as(message), (h.size(0), message.size(1))
        degree = target.bincount(minlength=h.size(0)).to(h.dtype).clamp(min=1).unsqueeze(1)
        mean, squares = (h.new_zeros(shape).index_add(0, target, m) / degree for m in (message, message.square()))
        deviation = (squares - mean.square()).clamp(min=1e-5).sqrt()
        deviation = deviation.masked_fill(deviation <= 1e-5**0.5, 0)
        low, high = (
            h.new_zeros(shape).scatter_reduce(0, index, message, kind, include_self=False) for kind in ("amin", "amax")
        )
        aggregates, scale = torch.cat([mean, low, high, deviation], dim=1), (degree + 1).log() / self.delta
        return self.post(torch.cat([h, aggregates, aggregates * scale, aggregates / scale], dim=1))


class Net(nn.Module):
    """``layers`` convolutions between a linear embedding of the nodes and a linear head.

    Args:
        kind: ``gine``, ``pna``, ``gatv2`` or ``transformer``.
        num_features: F.
        num_outputs: C.
        num_edge_features: D.
        hidden: H.
        layers: number of convolutions.
        norm: ``none`` or a key of `NORMS`.
        reverse: average convolutions along and against the edges.
        residual: average the input and the output of each layer.
        edge_updates: update edge features between convolutions.
        heads: number of heads of attention.
        delta: of PNA.
    """

    reads_edges = True

    def __init__(
        self,
        kind: str,
        num_features: int,
        num_outputs: int,
        num_edge_features: int,
        hidden: int,
        layers: int,
        norm: str = "none",
        reverse: bool = False,
        residual: bool = False,
        edge_updates: bool = False,
        heads: int = 1,
        delta: float = 1.0,
    ):
        super().__init__()
        width = hidden if edge_updates else num_edge_features

        def convolution() -> nn.Module:
            if kind == "gine":
                return GINE(hidden, hidden, width)
            if kind == "pna":
                return PNA(hidden, hidden, width, delta)
            options: dict[str, Any] = {"heads": heads, "edge_dim": width or None}
            if kind == "gatv2":
                return GATv2Conv(hidden, hidden // heads, add_self_loops=False, **options)
            return TransformerConv(hidden, hidden // heads, **options)

        self.embed, self.head = nn.Linear(num_features, hidden), nn.Linear(hidden, num_outputs)
        self.layers = nn.ModuleList([nn.ModuleList([convolution() for _ in range(1 + reverse)]) for _ in range(layers)])
        self.norms = nn.ModuleList([NORMS[norm](hidden) for _ in range(layers)] if norm != "none" else [])
        embeds = edge_updates and num_edge_features
        self.embed_edges = nn.Linear(num_edge_features, hidden, bias=False) if embeds else None
        self.updates = nn.ModuleList([mlp(3 * hidden, hidden) for _ in range(layers - 1 if edge_updates else 0)])
        self.loops, self.residual, self.edge_updates = kind == "gatv2", residual, edge_updates

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Features [N, F], edges [2, E] (source, target) and their features [E, D] -> outputs [N, C]."""
        e = edge_attr
        if self.loops:
            edge_index = torch.cat([edge_index, torch.arange(x.size(0), device=x.device).expand(2, -1)], dim=1)
            e = None if e is None else torch.cat([e, e.new_zeros(x.size(0), e.size(1))])
        if self.edge_updates:
            none = x.new_zeros(edge_index.size(1), self.head.in_features)
            e = none if self.embed_edges is None else self.embed_edges(e)
        h, (source, target) = self.embed(x), edge_index
        for index, layer in enumerate(self.layers):
            forth, *back = layer.children()
            if index and e is not None and len(self.updates):
                e = e + self.updates[index - 1](torch.cat([h[source], h[target], e], dim=1)) / 2
            new = forth(h, edge_index, e)
            if back:
                new = (new + back[0](h, edge_index.flip(0), e)) / 2
            new = (self.norms[index](new) if len(self.norms) else new).relu()
            h = (h + new) / 2 if self.residual else new
        return self.head(h)
