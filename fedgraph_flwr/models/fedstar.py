"""FedStar's decoupled model (Tan et al., AAAI 2023, arXiv:2211.12814): one channel for features, one for structure.

    s^0 = s W_s + b_s,   h^0 = X W_x + b_x                                 s the structure encoding of `structure_encoding`
    h^l = dropout(ReLU(MLP([h ‖ s]_v + Σ_{u → v} [h ‖ s]_u)))              GIN of the feature channel, on h^{l-1} and s^{l-1}
          dropout(ReLU(Â [h ‖ s] W^l))                                     with ``convolution=gcn`` (ours)
          dropout(ReLU(MLP([h ‖ s]_v)))                                    with ``convolution=none`` (ours): no neighbours
    s^l = tanh(Â s^{l-1} W_s^l + b_s^l)                                    GCN of the structure channel
    logits = dropout(ReLU([h^L ‖ s^L] W_f W_p)) W_c                        with their biases

Clients share the structure channel, ``structure.`` and ``structure_convs.``. All other parameters are private, including the
fusion W_f. Graphs are predicted from the sum of their nodes' rows, taken between W_f and W_p. For nodes, this sum is left out,
and L is 2 instead of 3 (ours). FedStar helps where clients' features come from different domains but their graphs have similar
structure.
Cost: walks · E · N products, once, when the graph is prepared.

Shapes: X [N, F], s [N, walks + degrees], Â [N, N], h and s^l [N, H] (pooled [G, H]), W_f [2H, H], W_p [H, H], W_c [H, C].
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedgraph_flwr.config import Range, at_least
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.layers import Linear, adjacency, dropout, proper_adjacency
from fedgraph_flwr.models.readout import has_graphs, pooled
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import SparseMatrix, row_sums
from fedgraph_flwr.numerics.walks import return_probabilities


@dataclass
class ChannelInputs(Inputs):
    """Inputs of both channels.

    Attributes:
        s: structure encoding [N, walks + degrees].
        neighbours: A [N, N].
    """

    s: Tensor
    neighbours: SparseMatrix


def structure_encoding(edge_index: Tensor, num_nodes: int, walks: int, degrees: int) -> Tensor:
    """Return the structure encoding s, [N, walks + degrees].

    It joins the return probabilities of walks of 1..walks steps and the in-degree, clipped to [1, degrees], as one-hot. Edges are
    used as stored, without loops.
    """
    adj = proper_adjacency(edge_index, num_nodes)
    degree = row_sums(adj).astype(np.int64).clip(1, max(degrees, 1))
    one_hot = np.eye(max(degrees, 1))[degree - 1][:, :degrees]
    return torch.from_numpy(np.concatenate([return_probabilities(adj, walks), one_hot], axis=1))


class FedStar(Model):
    """FedStar's model.

    Args:
        num_features: F.
        num_classes: C.
        hidden: H.
        layers: L, layers per channel.
        dropout: rate after each feature layer, and before the classifier.
        walks: length of the longest random walk in the encoding.
        degrees: largest degree with its own one-hot column.
        convolution: convolution of the feature channel, ``gin``, ``gcn`` or ``none``.
    """

    pools = True

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        # length of the longest random walk in the structure encoding; costs walks x edges x nodes products, once
        walks: Annotated[int, Range()] = 16,
        degrees: Annotated[int, Range()] = 16,  # largest degree with its own one-hot column
        # gin: sums over neighbours | (ours) gcn: means over neighbours | (ours) none: only the node
        convolution: Literal["gin", "gcn", "none"] = "gin",
    ):
        super().__init__()
        at_least(walks + degrees, 1, "model.walks + model.degrees")
        self.features_in = Linear(num_features, hidden)
        self.structure = Linear(walks + degrees, hidden)
        self.convolution = convolution
        self.feature_convs = nn.ModuleList(
            [
                Linear(2 * hidden, hidden, bias=False)
                if convolution == "gcn"
                else nn.Sequential(Linear(2 * hidden, hidden), nn.ReLU(), Linear(hidden, hidden))
                for _ in range(layers)
            ]
        )
        self.structure_convs = nn.ModuleList([Linear(hidden, hidden) for _ in range(layers)])
        self.fuse = Linear(2 * hidden, hidden)
        self.post = Linear(hidden, hidden)
        self.head = Linear(hidden, num_classes)
        self.dropout, self.walks, self.degrees = dropout, walks, degrees

    def prepare(
        self, graph: Graph, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> ChannelInputs:
        """Prepare also the structure encoding, and A without weights."""
        inputs = super().prepare(graph, device, dtype)
        s = structure_encoding(graph.edge_index, graph.num_nodes, self.walks, self.degrees)
        plain = SparseMatrix(adjacency(graph.edge_index, graph.num_nodes), dtype)
        return ChannelInputs(inputs.x, inputs.adj, s.to(dtype), plain).to(device)

    def encode(self, inputs: ChannelInputs) -> Tensor:
        """Return ReLU([h^L ‖ s^L] W_f W_p), [N, H], or of graphs [G, H]."""
        h, s = self.features_in(inputs.x), self.structure(inputs.s)
        for feature, structure in zip(self.feature_convs, self.structure_convs, strict=True):
            both = torch.cat([h, s], 1)
            if self.convolution == "gin":
                both = both + inputs.neighbours @ both
            h = inputs.adj @ feature(both) if self.convolution == "gcn" else feature(both)
            h = dropout(torch.relu(h), self.dropout, self.training)
            s = self.structure_step(structure, s, inputs)
        fused = self.fuse(torch.cat([h, s], 1))
        return torch.relu(self.post(pooled(fused, inputs, "sum") if has_graphs(inputs) else fused))

    @staticmethod
    def structure_step(conv: Any, s: Tensor, inputs: ChannelInputs) -> Tensor:
        """Return s^l from s^{l-1}, [N, H]."""
        return torch.tanh(inputs.adj @ (s @ conv.weight) + conv.bias)

    def classify(self, h: Tensor, inputs: ChannelInputs) -> Tensor:
        """Return logits [N, C]."""
        return self.head(dropout(h, self.dropout, self.training))

    def representations(self, inputs: ChannelInputs) -> dict[str, Tensor]:
        """Return also the structure channel's s^L, which depends only on shared parameters."""
        s = self.structure(inputs.s)
        for structure in self.structure_convs:
            s = self.structure_step(structure, s, inputs)
        return {"": self(inputs), "structure": s}
