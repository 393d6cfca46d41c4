"""Constants of a graph for a model's forward pass."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from fedgraph_flwr.numerics.sparse import Device, Pattern, SparseMatrix


@dataclass
class Inputs:
    """Constant inputs of a forward pass. A model that needs more adds fields in a subclass.

    Attributes:
        x: features [N, F].
        adj: propagation matrix, [N, N]; row target, column source.
        propagated: S X of the `narrow` X, if the model's first layer needs S (X W): (S X) W is the same without a
            sparse product in every step.
        item_index: nodes of the items that a readout predicts, [2, V] for edges; for graphs, the graph of each node [N]; None
            without a readout.
        item_attr: features of these items [V, D]; of graphs, their numbers of nodes [G, 1]; None without any.
    """

    x: Tensor | SparseMatrix
    adj: SparseMatrix
    propagated: Tensor | None = field(default=None, kw_only=True)
    item_index: Tensor | None = field(default=None, kw_only=True)
    item_attr: Tensor | None = field(default=None, kw_only=True)

    def narrow(self, width: int) -> Tensor | None:
        """Return X if it is dense and not wider than the first layer's output; otherwise S X costs more than it saves."""
        return self.x if isinstance(self.x, Tensor) and self.x.size(1) <= width else None

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Return a copy on a device with floating-point values of a dtype; other fields are unchanged."""

        def move(value: Any) -> Any:
            if isinstance(value, SparseMatrix | Pattern) or (isinstance(value, Tensor) and value.is_floating_point()):
                return value.to(device, dtype)
            return value.to(device) if isinstance(value, Tensor) else value

        return dataclasses.replace(self, **{f.name: move(getattr(self, f.name)) for f in dataclasses.fields(self)})
