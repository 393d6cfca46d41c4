"""FedSage+'s generator of missing neighbours (Zhang et al., NeurIPS 2021, arXiv:2106.13430).

    z = GCN(X, A)                                     two layers, [N, Z]
    ñ_v = ReLU(z_v w + b)                             how many neighbours v misses
    x̃_v = tanh(MLP(z_v + ε) W),  ε ~ N(0, I)          features of P of them, [P, F]

W [D, P F] dominates the size of the generator. Rows are computed only for the requested neighbours: [R, F] and never [N, P, F].
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.feddep import rows_of_heads
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.models.layers import Linear, dropout


class NeighGen(nn.Module):
    """Encoder, and heads for the number and the features of a node's missing neighbours.

    Args:
        num_features: F.
        hidden: width of the encoder.
        latent: Z.
        widths: widths of the MLP's layers.
        neighbours: P.
        p: dropout of the encoder and before W.
    """

    def __init__(self, num_features: int, *, hidden: int, latent: int, widths: list[int], neighbours: int, p: float):
        super().__init__()
        self.encoder = GCN(num_features, latent, hidden=hidden, layers=2, dropout=p)
        self.count = Linear(latent, 1)
        sizes = [latent, *widths]
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise(sizes)])
        self.heads = nn.ModuleList([Linear(sizes[-1], num_features) for _ in range(neighbours)])
        self.p = p

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return counts [N], and each node's input of the heads, [N, D]."""
        z = self.encoder(inputs)
        h = z + torch.randn_like(z)
        for layer in self.layers:
            h = torch.relu(layer(h))
        return torch.relu(self.count(z)).squeeze(1), dropout(h, self.p, self.training)

    def rows(self, h: Tensor, node: Tensor, place: Tensor) -> Tensor:
        """Generate features [R, F] of the neighbours ``place`` of nodes ``node``, both [R], from the heads' input [N, D]."""
        return rows_of_heads(self.heads, torch.tanh, h, node, place)
