"""FedDEP's models (Zhang et al., 2024, arXiv:2401.04336): convolutions over generated neighbours, and their generator.

    layer 0        GraphSAGE on X and the client's own edges
    layers l > 0   H^{l+1} = ReLU(H^l W_self + M' [H^l; Z̃] W_nb + b)           embedding-fused convolution
    ñ_v = ReLU(u_v w + b),   z̃_vp = ReLU((u_v + ε) W_p + b_p),  u = MLP(h_v),  ε ~ N(0, I)

Z̃ [g, H] are generated embeddings, each a neighbour of one node. M' [N, N + g] averages over a node's neighbours, including
generated ones. An embedding represents what a neighbour has aggregated, so layer 0, on raw features, uses none.
"""

from collections.abc import Callable
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
        fused: M' [N, N + g]; None without generated neighbours.
        z: Z̃ [g, H].
    """

    fused: SparseMatrix | None = field(default=None, kw_only=True)
    z: Tensor | None = field(default=None, kw_only=True)


class FusedSAGE(GraphSAGE):
    """GraphSAGE that aggregates generated embeddings from its second layer on."""

    def __init__(self, num_features: int, num_classes: int, **common: Unpack[Normed]):
        super().__init__(num_features, num_classes, **common)

    def convolve(self, layer: Any, h: Any, inputs: Inputs) -> Tensor:
        """Return H W_self + M' [H; Z̃] W_nb + b; on X, and without Z̃, GraphSAGE's layer."""
        if h is inputs.x or not isinstance(inputs, FusedInputs) or inputs.fused is None or inputs.z is None:
            return super().convolve(layer, h, inputs)
        return layer.itself(h) + inputs.fused @ layer.neighbours(torch.cat([h, inputs.z]))


def fused_inputs(inputs: Inputs, edge_index: Tensor, num_nodes: int, z: Tensor, at: Tensor) -> FusedInputs:
    """Return inputs of a graph with generated neighbours z [g, H] of the nodes ``at`` [g]."""
    total = num_nodes + at.numel()
    new = torch.stack([num_nodes + torch.arange(at.numel()), at.cpu()])
    matrix = mean_adjacency(torch.cat([edge_index, new], dim=1), total)[:num_nodes]
    fused = SparseMatrix(matrix, z.dtype).to(z.device)
    return FusedInputs(inputs.x, inputs.adj, propagated=inputs.propagated, fused=fused, z=z)


class DeepGenerator(nn.Module):
    """Generator of the number of missing neighbours per node, and of their embeddings.

    Args:
        width: H, width of input and output embeddings.
        widths: hidden widths.
        neighbours: P.
    """

    def __init__(self, width: int, widths: list[int], neighbours: int):
        super().__init__()
        sizes = [width, *widths]
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise(sizes)])
        self.count = Linear(sizes[-1], 1)
        self.heads = nn.ModuleList([Linear(sizes[-1], width) for _ in range(neighbours)])

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return counts [N], and the heads' inputs with noise [N, D]."""
        for layer in self.layers:
            h = torch.relu(layer(h))
        return torch.relu(self.count(h)).squeeze(1), h + torch.randn_like(h)

    def rows(self, u: Tensor, node: Tensor, place: Tensor) -> Tensor:
        """Return embeddings [R, H] of neighbours ``place`` [R] of nodes ``node`` [R], from the heads' inputs u [N, D]."""
        return rows_of_heads(self.heads, torch.relu, u, node, place)


def rows_of_heads(
    heads: nn.ModuleList, activate: Callable[[Tensor], Tensor], h: Tensor, node: Tensor, place: Tensor
) -> Tensor:
    """Return activate(head_p(h_v)) [R, F] for the nodes v = ``node`` and places p = ``place`` of rows, both [R]; h [N, D]."""
    made = h.new_zeros(node.numel(), heads[0].weight.size(1))  # type: ignore[operator]
    for index, head in enumerate(heads):
        at = (place == index).nonzero().view(-1)
        made = made.index_copy(0, at, activate(head(h[node[at]])))
    return made
