"""ACM-GCN: low-pass, high-pass and identity channels, mixed for each node (Luan et al., NeurIPS 2022)."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import add_self_loops, remove_self_loops

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": nn.Identity,
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "standardize": partial(nn.BatchNorm1d, affine=False, track_running_stats=False),
}


class Layer(nn.Module):
    """[N, F] -> [N, H]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.low, self.high, self.identity = (nn.Linear(num_in, num_out, bias=False) for _ in range(3))
        self.scores = nn.Parameter(torch.zeros(3, num_out))
        self.mixing = nn.Parameter(torch.zeros(3, 3))
        self.mean = SimpleConv(aggr="mean")

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        """``edge_index`` has one loop a node."""
        low, high = self.mean(self.low(h), edge_index), self.high(h)
        channels = torch.stack([low, high - self.mean(high, edge_index), self.identity(h)], dim=1).relu()  # [N, 3, H]
        scores = (channels * self.scores).sum(2).sigmoid()  # [N, 3]
        return (3 * torch.softmax(scores @ self.mixing / 3, dim=1).unsqueeze(2) * channels).sum(1)


class Net(nn.Module):
    """Layers of these ``widths``: features, hidden, classes; ``norm``: of hidden features, a key of `NORMS`."""

    def __init__(self, widths: list[int], norm: str = "none"):
        super().__init__()
        self.layers = nn.ModuleList([Layer(a, b) for a, b in pairwise(widths)])
        self.norms = nn.ModuleList([NORMS[norm](width) for width in widths[1:-1]])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features [N, F] and edges [2, E] (source, target) -> logits [N, C]."""
        edge_index = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=x.size(0))[0]
        for index, layer in enumerate(self.layers):
            x = layer(x, edge_index)
            if index < len(self.norms):
                x = self.norms[index](x).relu()
        return x
