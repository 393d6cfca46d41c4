"""Relational GCN in the form used by FedHGN (Fu & King, IJCAI 2023; after Schlichtkrull et al., ESWC 2018).

    h^1_v = ReLU(Σ_r mean_{u ∈ N_v^r} (h^0_u + ε_uv) + b^0)                                  first layer: no weights
    h^{l+1}_v = σ(Σ_r mean_{u ∈ N_v^r} (h^l_u + ε_uv) W_r + [h^l_v T_{φ(v)}] + b^l)          σ: ReLU, none in the last
    logits = Dec(ReLU(h^L_v))

W_r belongs to edge type r; T_a, in the ``paper`` profile, to node type a (Trans of Eq. (1)). ε_uv = x_uv P_r are edge features
(`models.hetero`), missing where an edge type has none.
Shapes: h [N, H], W_r [H, H], T_a [H, H], x_uv [D_r], P_r [D_r, H], Dec: H → C.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.hetero import (
    EDGE,
    NODE,
    Block,
    EdgeStates,
    HeteroInputs,
    HeteroModel,
    TypedSum,
    plain_sum,
    xavier,
)
from fedgraph_flwr.models.layers import dropout
from fedgraph_flwr.numerics.sparse import Device, SparseMatrix


@dataclass
class Layer:
    """Prepared parts of a layer.

    Attributes:
        means: means over edges, one row per output (first layer), or per output and edge type.
        sums: their weighted sums; None in the first layer.
        states: means of edge features, by rows of the means.
        rows: the outputs' rows among the inputs by node type, for the ``paper`` profile.
    """

    means: SparseMatrix
    sums: TypedSum | None
    states: list[EdgeStates]
    rows: list[tuple[Tensor, Tensor]]


class RGCN(HeteroModel):
    """RGCN with decoupled or free weights; ``self_loop`` adds one H x H matrix per layer for all types."""

    head_prefixes = ("common.decoder.",)

    def __init__(
        self,
        num_features: Any,
        num_classes: int,
        *,
        self_loop: bool = False,  # one H x H matrix per layer for all types
        **common: Any,
    ):
        super().__init__(num_features, num_classes, **common)
        hidden, layers = self.hidden, self.num_layers
        for layer in range(1, layers):
            self.declare(f"edge_{layer}", EDGE, hidden, hidden)
            if self.profile == "paper":
                self.declare(f"node_{layer}", NODE, hidden, hidden)
        self.common.bias = nn.ParameterList([nn.Parameter(torch.zeros(hidden)) for _ in range(layers)])
        self.self_loop = self_loop
        if self_loop:
            self.common.loop = nn.ParameterList([xavier(hidden, hidden) for _ in range(layers)])
        self.common.decoder = nn.Linear(hidden, num_classes)

    def prepare_layer(self, layer: int, block: Block, device: Device, dtype: torch.dtype) -> Layer:
        """Prepare the sum over edges as sparse products."""
        sums = TypedSum(block, self.graph.edge_kinds, device, dtype) if layer else None
        means = sums.means if sums else plain_sum(block, device, dtype)
        rows = torch.from_numpy(block.rows).to(device)
        types = [(rows[place], torch.tensor([kind], device=device)) for kind, place in block.of_type()]
        return Layer(means, sums, self.edge_states(block, device, dtype, sums.row if sums else block.target), types)

    def propagate(self, h: Tensor, layers: list[Layer]) -> Tensor:
        """Compute ReLU(h^L) of the target nodes, [n, H]."""
        last = len(layers) - 1
        for i, layer in enumerate(layers):
            out = self.added(layer.means @ h, layer.states)
            if layer.sums is not None:
                out = layer.sums(out, self.typed(f"edge_{i}"))
            if i and self.profile == "paper":
                weight = self.typed(f"node_{i}")
                out = out + torch.cat([weight.times(h[rows].unsqueeze(1), kind) for rows, kind in layer.rows])
            if self.self_loop:
                out = out + h[torch.cat([rows for rows, _ in layer.rows])] @ self.common.loop[i]
            out = out + self.common.bias[i]
            h = torch.relu(out) if i == last else dropout(torch.relu(out), self.dropout, self.training)
        return h

    def classify(self, h: Tensor, inputs: HeteroInputs) -> Tensor:
        """Compute logits [n, C]."""
        return self.common.decoder(h)
