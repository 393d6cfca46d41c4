"""Readouts: models that predict items made of nodes, on top of the outputs of any model.

    Z = model(X, edges) [N, H],   logits_e = W_2 ReLU(W_s z_u + W_t z_v + W_e e + b_1) + b_2     of an edge e from u to v

The readout's parameters are ``readout.``, part of the head: methods that keep the head private keep them private, too.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.layers import Linear, dropout, glorot
from fedgraph_flwr.models.plain import Plain, torch_layout
from fedgraph_flwr.numerics.blocks import GraphInputs

AT_ONCE = 1 << 18
"""Items whose hidden layer is held at once where they are scored."""

READOUT = "readout."
"""Prefix of the names of a readout's parameters."""


class EdgeReadout(nn.Module):
    """Logits of edges from the outputs of their ends and their features: an MLP with one hidden layer, on [z_u ‖ z_v ‖ e].

    Args:
        width: H, of a node's outputs.
        num_edge_features: D.
        num_classes: C.
        hidden: width of the hidden layer.
        dropout: of the hidden layer.

    Shapes: Z [N, H], ends [2, V], e [V, D] or None → [V, C].
    """

    def __init__(self, width: int, num_edge_features: int, num_classes: int, *, hidden: int, dropout: float):
        super().__init__()
        self.source, self.target = Linear(width, hidden), Linear(width, hidden, bias=False)
        self.edge = glorot(num_edge_features, hidden) if num_edge_features else None
        self.last = Linear(hidden, num_classes)
        self.dropout = dropout

    def forward(self, z: Tensor, inputs: Any) -> Tensor:
        """Return [V, C]."""
        if inputs.item_index is None:
            raise ValueError("inputs without items cannot be read out")
        projections = self.source(z), self.target(z)
        size = inputs.item_index.size(1) if self.training else AT_ONCE
        pieces = [
            self._read(
                projections, inputs.item_index[:, rows], None if inputs.item_attr is None else inputs.item_attr[rows]
            )
            for start in range(0, max(inputs.item_index.size(1), 1), max(size, 1))
            for rows in [slice(start, start + max(size, 1))]
        ]
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _read(self, projections: tuple[Tensor, Tensor], ends: Tensor, attr: Tensor | None) -> Tensor:
        h = projections[0][ends[0]] + projections[1][ends[1]]
        if self.edge is not None and attr is not None:
            h = h + attr @ self.edge
        return self.last(dropout(h.relu(), self.dropout, self.training))

    def plain(self, net: Plain) -> Plain:
        """Return an exported model with this readout."""
        (width, hidden), features = self.source.weight.shape, 0 if self.edge is None else self.edge.size(0)
        sizes = {
            "width": width,
            "hidden": hidden,
            "num_outputs": self.last.weight.size(1),
            "num_edge_features": features,
        }
        return net.with_readout("edges", sizes, torch_layout(self))


class RelationRows(nn.Module):
    """Vectors of relations, as further rows of a model's outputs.

    Args:
        num_relations: R.
        width: W, of a node's outputs.

    Shapes: Z [N, W] → [N + R, W], nodes first.
    """

    def __init__(self, num_relations: int, width: int):
        super().__init__()
        self.relations = nn.Parameter(torch.randn(num_relations, width) * width**-0.5)

    def forward(self, z: Tensor, inputs: Any) -> Tensor:
        """Return [N + R, W]."""
        return torch.cat([z, self.relations])


class GraphReadout(nn.Module):
    """Outputs of whole graphs: an MLP with one hidden layer, on what `pooled` makes of the outputs of their nodes.

    Args:
        width: H, of a node's outputs.
        num_outputs: W.
        hidden: width of the hidden layer.
        dropout: of the hidden layer.
        pool: ``sum``, ``mean`` or ``max``.

    Shapes: Z [N, H] → [G, W].
    """

    def __init__(self, width: int, num_outputs: int, *, hidden: int, dropout: float, pool: str):
        super().__init__()
        self.first, self.last = Linear(width, hidden), Linear(hidden, num_outputs)
        self.dropout, self.pool = dropout, pool

    def forward(self, z: Tensor, inputs: Any) -> Tensor:
        """Return [G, W]."""
        h = self.first(pooled(z, inputs, self.pool)).relu()
        return self.last(dropout(h, self.dropout, self.training))

    def plain(self, net: Plain) -> Plain:
        """Return an exported model with this readout."""
        return net.with_readout("graphs", of_graphs(self.first, self.last, self.pool), torch_layout(self))


def of_graphs(first: Any, last: Any, pool: str) -> dict[str, Any]:
    """Return the arguments of an exported readout of graphs, of two `Linear` layers."""
    (width, hidden), outputs = first.weight.shape, last.weight.size(1)
    return {"width": width, "hidden": hidden, "num_outputs": outputs, "pool": pool}


def has_graphs(inputs: Any) -> bool:
    """Return whether the items of ``inputs`` are graphs, and not edges."""
    return inputs.item_index is not None and inputs.item_index.dim() == 1


def pooled(z: Tensor, inputs: Any, how: str) -> Tensor:
    """Return the sum, mean or maximum of the rows [N, H] of each graph's nodes, [G, H]."""
    if inputs.item_index is None:
        raise ValueError("inputs without graphs cannot be pooled")
    size, index = inputs.item_attr, inputs.item_index
    if how == "max":
        rows = index[:, None].expand_as(z)
        return z.new_empty(size.size(0), z.size(1)).scatter_reduce(0, rows, z, "amax", include_self=False)
    summed = z.new_zeros(size.size(0), z.size(1)).index_add(0, index, z)
    return summed / size if how == "mean" else summed


def graphs_of(index: Tensor, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the fields of `Inputs` for graphs, from the graph of each node [N], on a device."""
    return {"item_index": index.to(device), "item_attr": index.bincount().to(device, dtype)[:, None]}


class OfItems(Model):
    """Mixin of a model with a readout: its outputs are those of items, not of nodes."""

    stacks = False
    readout: nn.Module

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Compute logits [V, C] of the items of ``inputs``."""
        return self.readout(super().classify(h, inputs), inputs)

    def forward(self, inputs: Any) -> Tensor:
        """Compute logits [V, C]; in blocks, of all nodes first."""
        outputs = super().forward(inputs)
        return self.readout(outputs, inputs) if isinstance(inputs, GraphInputs) else outputs

    def grads(self, *args: Any) -> None:
        """Leave gradients to autograd."""
        return None

    def plain(self) -> Plain:
        """Export the model with its readout."""
        return self.readout.plain(super().plain())  # type: ignore[operator]


def attach(model: Model, readout: nn.Module) -> Model:
    """Return the model with a readout of its outputs, as part of its head."""
    model.__class__ = _with_readout(type(model))  # type: ignore[arg-type]
    model.readout = readout
    model.head_prefixes = (*model.head_prefixes, READOUT)
    return model


@functools.cache
def _with_readout(kind: type[Model]) -> type[Model]:
    namespace = {"__module__": kind.__module__, "__doc__": kind.__doc__, "samples": vars(kind).get("samples", False)}
    namespace |= {name: vars(kind)[name] for name in kind.again if name in vars(kind)}
    return type(kind.__name__, (OfItems, kind), namespace)


def items_of(index: Tensor, attr: Tensor, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """Return the fields of `Inputs` for items with these ends [2, V] and features [V, D], on a device."""
    return {"item_index": index.to(device), "item_attr": attr.to(device, dtype) if attr.size(1) else None}
