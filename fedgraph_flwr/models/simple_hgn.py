"""Simple-HGN (Lv et al., KDD 2021, arXiv:2112.14936, section 5): attention with edge types.

    e_uv = LeakyReLU(a^T [W h_v ‖ W h_u ‖ W_e (r_{ψ(uv)} + ε_uv)]),   α_uv = softmax_{u ∈ N_v}(e_uv)
    h'_v = ELU(Σ_u α_uv W (h_u + ε_uv) + W_res h_v), heads side by side; their mean, without ELU, in the last layer
    logits = o_v / ‖o_v‖

Parameters of a type: the edge embeddings r of every layer and, in the ``paper`` profile of FedHGN, a transform of the
initial state by node type. All types share the rest. Attention has no residual (β = 0 in the paper). ε_uv = x_uv P_r are edge
features (`models.hetero`), missing where an edge type has none.
Shapes: h [N, H], K heads of width D = H / K (C in the last layer), W [H, K D], r [R, H], W_e [H, K H], a three vectors per head,
x_uv [D_r], P_r [D_r, H].
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.hetero import EDGE, NODE, Block, EdgeStates, HeteroInputs, HeteroModel, xavier
from fedgraph_flwr.models.layers import dropout
from fedgraph_flwr.numerics.sparse import Device


@dataclass
class Edges:
    """A layer's edges: source, target and type [e] each, the outputs' rows among the inputs [O], and features of edges."""

    source: Tensor
    target: Tensor
    relation: Tensor
    rows: Tensor
    states: list[EdgeStates]


class Attention(nn.Module):
    """Weights of a layer that all types share."""

    def __init__(self, width: int, heads: int, out: int):
        super().__init__()
        self.weight = xavier(width, heads * out)
        self.residual = xavier(width, heads * out)
        self.edge = xavier(width, heads * width)
        self.to_source, self.to_target, self.to_edge = xavier(heads, out), xavier(heads, out), xavier(heads, width)

    def forward(self, h: Tensor, r: Tensor, edges: Edges, slope: float, states: Tensor | None = None) -> Tensor:
        """Compute [O, K, D] from states [I, H], edge embeddings [R, H] and states of edges ε [e, H]; None without features."""
        heads, out = self.to_source.shape
        wh = (h @ self.weight).view(-1, heads, out)
        wr = (r @ self.edge).view(r.size(0), heads, -1)
        score = (
            (wh * self.to_source).sum(2)[edges.source]
            + (wh[edges.rows] * self.to_target).sum(2)[edges.target]
            + (wr * self.to_edge).sum(2)[edges.relation]
        )
        if states is not None:
            score = score + states @ (self.edge.view(len(self.edge), heads, -1) * self.to_edge).sum(2)
        alpha = edge_softmax(F.leaky_relu(score, slope), edges.target, edges.rows.numel())  # [e, K]
        message = wh[edges.source]
        if states is not None:
            message = message + (states @ self.weight).view(-1, heads, out)
        summed = torch.zeros(edges.rows.numel(), heads, out, dtype=h.dtype, device=h.device)
        summed = summed.index_add(0, edges.target, alpha.unsqueeze(2) * message)
        return summed + (h[edges.rows] @ self.residual).view(-1, heads, out)


class SimpleHGN(HeteroModel):
    """Simple-HGN of ``layers`` layers and ``heads`` heads."""

    def __init__(
        self,
        num_features: Any,
        num_classes: int,
        *,
        heads: int = 4,  # attention heads; hidden is their total width
        slope: float = 0.05,  # negative slope of LeakyReLU
        **common: Any,
    ):
        super().__init__(num_features, num_classes, **common)
        hidden, layers = self.hidden, self.num_layers
        if heads < 1 or hidden % heads:
            raise FedGraphError(f"model.heads must divide model.hidden={hidden}, got {heads}")
        self.slope = slope
        if self.profile == "paper":
            self.declare("node_0", NODE, hidden, hidden)
        for layer in range(layers):
            self.declare(f"edge_{layer}", EDGE, hidden)
        widths = [hidden // heads] * (layers - 1) + [num_classes]
        last = layers - 1
        types = (f"{part}.edge_{last}" for part in ("bases", "coefficients", "free"))
        self.head_prefixes = (f"common.attention.{last}.", *types)
        self.common.attention = nn.ModuleList([Attention(hidden, heads, out) for out in widths])

    def prepare_layer(self, layer: int, block: Block, device: Device, dtype: torch.dtype) -> Edges:
        """Return the edges as tensors."""
        columns = (block.source, block.target, self.graph.edge_kinds[block.relation], block.rows)
        source, target, relation, rows = (torch.from_numpy(column).to(device) for column in columns)
        return Edges(source, target, relation, rows, self.edge_states(block, device, dtype))

    def initial(self, inputs: HeteroInputs) -> Tensor:
        """Compute initial states [I, H], transformed by node type in the ``paper`` profile."""
        h = super().initial(inputs)
        if self.profile == "paper":
            kinds, counts = inputs.types.unique_consecutive(return_counts=True)
            weight = self.typed("node_0")
            parts = zip(h.split(counts.tolist()), kinds.view(-1, 1), strict=True)
            h = torch.cat([weight.times(part.unsqueeze(1), kind) for part, kind in parts])
        return h

    def propagate(self, h: Tensor, layers: list[Edges]) -> Tensor:
        """Compute hidden states [I, H] of all nodes that the last layer reads."""
        for i, edges in enumerate(layers[:-1]):
            h = F.elu(self.attend(i, h, edges).flatten(1))
        return h

    def classify(self, h: Tensor, inputs: HeteroInputs) -> Tensor:
        """Apply the last layer: logits [n, C] of the target nodes, rows of length 1."""
        return F.normalize(self.attend(self.num_layers - 1, h, inputs.layers[-1]).mean(1), dim=1)

    def attend(self, layer: int, h: Tensor, edges: Edges) -> Tensor:
        """Apply dropout and one layer: [I, H] → [O, K, D]."""
        h = dropout(h, self.dropout, self.training)
        states = self.added(h.new_zeros(edges.source.numel(), self.hidden), edges.states) if edges.states else None
        return self.common.attention[layer](h, self.typed(f"edge_{layer}").all(), edges, self.slope, states)


def edge_softmax(score: Tensor, target: Tensor, num_targets: int) -> Tensor:
    """Compute the softmax of [e, K] over the edges of each target, shifted by its maximum."""
    index = target.unsqueeze(1).expand_as(score)
    top = score.new_zeros(num_targets, score.size(1)).scatter_reduce(
        0, index, score.detach(), "amax", include_self=False
    )
    weight = (score - top[target]).exp()
    total = weight.new_zeros(num_targets, score.size(1)).index_add(0, target, weight)
    return weight / total[target]
