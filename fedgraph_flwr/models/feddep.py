"""FedDEP's networks (Zhang et al., 2024, arXiv:2401.04336): convolutions that hear generated neighbours, and their generator.

    layer 0        GraphSAGE on X and the client's own edges
    layers l > 0   H^{l+1} = ReLU(H^l W_self + M' [H^l; Z̃] W_nb + b)           embedding-fused convolution
    ñ_v = ReLU(u_v w + b),   z̃_vp = ReLU((u_v + ε) W_p + b_p),  u = MLP(h_v),  ε ~ N(0, I)

Z̃ [g, H] are generated embeddings, each heard by one node; M' [N, N + g] is the mean over a node's neighbours, generated ones too.
They stand for what a neighbour has gathered within its own reach, so layer 0, on raw features, has none.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.layers import Linear, mean_adjacency
from fedgraph_flwr.models.sage import GraphSAGE
from fedgraph_flwr.models.stack import Normed
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import SparseMatrix


@dataclass
class FusedInputs(Inputs):
    """Inputs with generated neighbours.

    Attributes:
        fused: M' [N, N + g]; None: there are none.
        z: Z̃ [g, H].
    """

    fused: SparseMatrix | None = field(default=None, kw_only=True)
    z: Tensor | None = field(default=None, kw_only=True)


class FusedSAGE(GraphSAGE):
    """GraphSAGE that hears generated embeddings from its second layer on."""

    def __init__(self, num_features: int, num_classes: int, **common: Unpack[Normed]):
        super().__init__(num_features, num_classes, **common)

    def convolve(self, layer: Any, h: Any, inputs: Inputs) -> Tensor:
        """H W_self + M' [H; Z̃] W_nb + b; on X, and without Z̃, as GraphSAGE."""
        if h is inputs.x or not isinstance(inputs, FusedInputs) or inputs.fused is None or inputs.z is None:
            return super().convolve(layer, h, inputs)
        return layer.itself(h) + inputs.fused @ layer.neighbours(torch.cat([h, inputs.z]))


def fused_inputs(inputs: Inputs, edge_index: Tensor, num_nodes: int, z: Tensor, at: Tensor) -> FusedInputs:
    """Inputs of a graph with generated neighbours z [g, H], each heard by the node ``at`` [g]."""
    total = num_nodes + at.numel()
    new = torch.stack([num_nodes + torch.arange(at.numel()), at.cpu()])
    matrix = mean_adjacency(torch.cat([edge_index, new], dim=1), total)[:num_nodes]
    fused = SparseMatrix(matrix, z.dtype).to(z.device)
    return FusedInputs(inputs.x, inputs.adj, propagated=inputs.propagated, fused=fused, z=z)


class DeepGenerator(nn.Module):
    """How many neighbours a node misses, and what they have gathered.

    Args:
        width: H of the embeddings, read and made.
        widths: of the layers between.
        neighbours: P.
    """

    def __init__(self, width: int, widths: list[int], neighbours: int):
        super().__init__()
        sizes = [width, *widths]
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise(sizes)])
        self.count = Linear(sizes[-1], 1)
        self.heads = nn.ModuleList([Linear(sizes[-1], width) for _ in range(neighbours)])
        self.width = width

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Counts [N], and what the heads read of each node, with noise, [N, D]."""
        for layer in self.layers:
            h = torch.relu(layer(h))
        return torch.relu(self.count(h)).squeeze(1), h + torch.randn_like(h)

    def rows(self, u: Tensor, node: Tensor, place: Tensor) -> Tensor:
        """Embeddings of the neighbours ``place`` of nodes ``node``, both [R], from what the heads read [N, D]: [R, H]."""
        made = u.new_zeros(node.numel(), self.width)
        for index, head in enumerate(self.heads):
            at = (place == index).nonzero().view(-1)
            made = made.index_copy(0, at, torch.relu(head(u[node[at]])))
        return made
