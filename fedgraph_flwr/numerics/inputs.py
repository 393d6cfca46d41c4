"""The constants of a graph that a network's forward pass reads."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix


@dataclass
class Inputs:
    """What a forward pass reads and no step changes. A network that needs more adds fields in a subclass.

    Attributes:
        x: features [N, F].
        adj: what the network propagates with, [N, N]; row target, column source.
        propagated: S X of the `narrow` X, where the network's first layer needs S (X W): (S X) W is the same without a
            sparse product in every step.
    """

    x: Tensor | SparseMatrix
    adj: SparseMatrix
    propagated: Tensor | None = field(default=None, kw_only=True)

    def narrow(self, width: int) -> Tensor | None:
        """X where it is dense and no wider than the first layer's output: else S X costs more than it saves."""
        return self.x if isinstance(self.x, Tensor) and self.x.size(1) <= width else None

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """A copy on a device, its floating-point values of a type; other fields stay as they are."""

        def move(value: Any) -> Any:
            if isinstance(value, SparseMatrix | Pattern) or (isinstance(value, Tensor) and value.is_floating_point()):
                return value.to(device, dtype)
            return value.to(device) if isinstance(value, Tensor) else value

        return dataclasses.replace(self, **{f.name: move(getattr(self, f.name)) for f in dataclasses.fields(self)})
