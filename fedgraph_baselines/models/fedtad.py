"""FedTAD's generator on the server: nodes of given classes, and the edges between them.

x̂ = W_3 tanh(W_2 tanh(W_1 tanh(W_0 [e_y ‖ z])))                       z ~ N(0, I), e_y an embedding of the class
A = symmetrised k-nearest-neighbour graph by cosine, each node among its own k, with one loop per node
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_flwr.models.structure_learner import top_k

WIDTHS = (64, 128, 256)


class Generator(nn.Module):
    """Generator of node features from noise and classes.

    Args:
        noise: width of z.
        num_features: F.
        num_classes: C, also the width of e_y.
    """

    def __init__(self, noise: int, num_features: int, num_classes: int):
        super().__init__()
        self.classes = nn.Embedding(num_classes, num_classes)
        widths = [noise + num_classes, *WIDTHS]
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTHS[-1], num_features))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """[n, noise] and [n] → [n, F]."""
        return self.layers(torch.cat([self.classes(y), z], 1))


def nearest_edges(x: Tensor, k: int) -> Tensor:
    """Return edges [2, E] between nodes [n, F] and their k − 1 most similar others, both directions, each once."""
    unit, n = F.normalize(x.detach(), dim=1), x.size(0)
    near = top_k(unit, unit, k - 1)
    key = torch.cat([near.row * n + near.col, near.col * n + near.row]).unique()
    return torch.stack([key // n, key % n])


def diversity(z: Tensor, x: Tensor) -> Tensor:
    """exp(−mean over pairs of ‖z_a − z_b‖² ‖x_a − x_b‖₁, each over its width): small if different noise gives different nodes."""
    apart = torch.cdist(z, z).square() / z.size(1) * torch.cdist(x, x, p=1) / x.size(1)
    return (-apart.mean()).exp()
