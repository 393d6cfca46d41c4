"""Predictions of edges, pairs of nodes and graphs from a model of nodes, and of numbers in the unit of the data."""

from typing import Any

import torch
from torch import Tensor, nn


class Nodes(nn.Module):
    """Outputs of nodes [N, W]."""

    def forward(self, z: Tensor, items: Tensor | None, item_attr: Tensor | None) -> Tensor:
        """Return all rows, or those of ``items`` [V]."""
        return z if items is None else z[items]


class Pairs(nn.Module):
    """Scores of pairs of nodes: dot products of their outputs."""

    def forward(self, z: Tensor, items: Tensor | None, item_attr: Tensor | None) -> Tensor:
        """Return the scores [V] of pairs ``items`` [2, V]; without pairs, the outputs [N, W]."""
        return z if items is None else (z[items[0]] * z[items[1]]).sum(-1)


class Edges(nn.Module):
    """Outputs of edges: a hidden layer on the outputs of both ends and the features of the edge."""

    def __init__(self, width: int, hidden: int, num_outputs: int, num_edge_features: int):
        super().__init__()
        self.source, self.target = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.edge = nn.Parameter(torch.zeros(num_edge_features, hidden)) if num_edge_features else None
        self.last = nn.Linear(hidden, num_outputs)

    def forward(self, z: Tensor, items: Tensor, item_attr: Tensor | None) -> Tensor:
        """Return [V, W] of edges with ends ``items`` [2, V] and features ``item_attr`` [V, D]."""
        h = self.source(z)[items[0]] + self.target(z)[items[1]]
        if self.edge is not None:
            if item_attr is None:
                raise ValueError("the model reads edge features: pass edge_attr [E, D]")
            h = h + item_attr @ self.edge
        return self.last(h.relu())


class Graphs(nn.Module):
    """Outputs of graphs: a hidden layer on the sum, mean or maximum (``pool``) of the outputs of their nodes."""

    def __init__(self, width: int, hidden: int, num_outputs: int, pool: str):
        super().__init__()
        self.first, self.last, self.pool = nn.Linear(width, hidden), nn.Linear(hidden, num_outputs), pool

    def forward(self, z: Tensor, items: Tensor | None, item_attr: Tensor | None) -> Tensor:
        """Return [G, W]; ``items`` [N] is the graph of each node, 0..G-1, by default one graph."""
        index = torch.zeros(z.size(0), dtype=torch.int64, device=z.device) if items is None else items
        size = index.bincount().to(z.dtype).unsqueeze(1)
        if self.pool == "max":
            rows = index.unsqueeze(1).expand_as(z)
            aggregates = z.new_empty(size.size(0), z.size(1)).scatter_reduce(0, rows, z, "amax", include_self=False)
        else:
            aggregates = z.new_zeros(size.size(0), z.size(1)).index_add(0, index, z)
        return self.last(self.first(aggregates / size if self.pool == "mean" else aggregates).relu())


READOUTS = {"nodes": Nodes, "pairs": Pairs, "edges": Edges, "graphs": Graphs}


class Items(nn.Module):
    """A model of nodes, and what predicts items from its outputs.

    Args:
        net: features [N, F], edges [2, E], and edge features if it ``reads_edges`` -> outputs [N, W].
        readout: key of `READOUTS`.
        arguments: of the readout.
        scale: means and standard deviations of T numbers, which turn outputs into the unit of the data; None: as they are.
    """

    def __init__(self, net: nn.Module, readout: str, arguments: dict[str, Any], scale: Any = None):
        super().__init__()
        self.net, self.readout, self.scale = net, READOUTS[readout](**arguments), scale
        self.reads_edges = getattr(net, "reads_edges", False)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        items: Tensor | None = None,
        item_attr: Tensor | None = None,
        **known: Tensor,
    ) -> Tensor:
        """Return predictions of items.

        Args:
            x: features of nodes [N, F].
            edge_index: edges [2, E] (source, target).
            edge_attr: features of edges [E, D].
            items: what is predicted, as the readout takes it; of edges by default all.
            item_attr: features of the edges in ``items``.
            known: further inputs of the model.
        """
        z = self.net(x, edge_index, edge_attr, **known) if self.reads_edges else self.net(x, edge_index, **known)
        if items is None and isinstance(self.readout, Edges):
            items, item_attr = edge_index, edge_attr
        predictions: Tensor = self.readout(z, items, item_attr)
        if self.scale is None:
            return predictions
        mean, spread = torch.tensor(self.scale, dtype=torch.float64, device=predictions.device)
        return predictions.double() * spread + mean


def by_step(
    net: nn.Module, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, steps: Tensor, **known: Tensor
) -> Tensor:
    """Return outputs of edges [E, W], each computed from the edges until the end of its own step.

    Args:
        net: a model of edges.
        x: features of nodes [N, F].
        edge_index: edges [2, E] (source, target).
        edge_attr: features of edges [E, D].
        steps: number of the step in which each edge occurs [E], such as its day since 1970.
        known: further inputs of the model.
    """
    parts = []
    for step in steps.unique().tolist():
        read = (steps <= step).nonzero().view(-1)
        outputs = net(x, edge_index[:, read], None if edge_attr is None else edge_attr[read], **known)
        mask = steps[read] == step
        parts.append((read[mask], outputs[mask]))
    order = torch.cat([rows for rows, _ in parts]).argsort()
    return torch.cat([outputs for _, outputs in parts])[order]
