"""FedSPA's model, profile ``plain``: propagation by edge type (Tan et al., CVPR 2025, Section 4.1)."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.utils import degree, remove_self_loops

POWERS = {"sym": (-0.5, -0.5), "mean": (-1.0, 0.0), "sum": (0.0, 0.0)}


class Layer(nn.Module):
    """[N, F] -> [N, H]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.itself, self.hom, self.het = (nn.Linear(num_in, num_out, bias=i == 0) for i in range(3))
        self.phi = nn.Linear(num_in, 1)

    def forward(self, z: Tensor, edge_index: Tensor, weights: list[Tensor]) -> Tensor:
        """Compute one layer; ``weights`` [E] of edges between equal, different and unknown labels."""

        def incoming(h: Tensor, weight: Tensor) -> Tensor:
            out = torch.zeros_like(h)
            return out.index_add_(0, edge_index[1], weight[:, None] * h[edge_index[0]])

        hom, het, alpha = self.hom(z), self.het(z), torch.sigmoid(self.phi(z))
        same, other, unknown = weights
        known = incoming(hom, same) + incoming(het, other)
        return self.itself(z) + known + alpha * incoming(hom, unknown) + (1 - alpha) * incoming(het, unknown)


class Net(nn.Module):
    """FedSPA's model.

    Args:
        widths: number of features, hidden widths, number of classes.
        normalization: edge normalisation, a key of `POWERS`.
        typed: False: treat every edge as one between equal labels.
    """

    def __init__(self, widths: list[int], normalization: str = "sym", typed: bool = True):
        super().__init__()
        self.layers = nn.ModuleList([Layer(a, b) for a, b in pairwise(widths)])
        self.normalization, self.typed = normalization, typed

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor | None = None, known: Tensor | None = None) -> Tensor:
        """Features [N, F] and edges [2, E] (source, target) -> logits [N, C]; reads ``y`` [N] where ``known`` [N] is true."""
        edge_index = remove_self_loops(edge_index)[0]
        source, target = edge_index
        into, out = POWERS[self.normalization]
        weight = degree(target, x.size(0), x.dtype).clamp(min=1)[target] ** into
        weight = weight * degree(source, x.size(0), x.dtype).clamp(min=1)[source] ** out
        if not self.typed:
            kinds = torch.zeros_like(source)
        elif y is None or known is None:
            kinds = torch.full_like(source, 2)
        else:
            kinds = torch.where(known[source] & known[target], (y[source] != y[target]).long(), 2)
        weights = [weight * (kinds == kind) for kind in range(3)]
        for index, layer in enumerate(self.layers):
            x = layer(x, edge_index, weights)
            x = x.relu() if index < len(self.layers) - 1 else x
        return x
