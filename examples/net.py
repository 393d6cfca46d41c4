"""A network of your own: its ``__init__`` takes the sizes, its ``forward`` features [N, F] and edges [2, E] (docs/models.md)."""

import torch
from torch import Tensor
from torch_geometric.nn import GATv2Conv


class Net(torch.nn.Module):
    """Attention over neighbours, then a linear layer.

    Args:
        in_channels: number of features F.
        out_channels: number of classes C.
        hidden: width of each head, which ``model.hidden`` sets.
        heads: number of heads, which ``model.heads`` sets.
    """

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 16, heads: int = 2):
        super().__init__()
        self.first = GATv2Conv(in_channels, hidden, heads=heads)
        self.last = torch.nn.Linear(heads * hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits [N, C]."""
        logits: Tensor = self.last(self.first(x, edge_index).relu())
        return logits
