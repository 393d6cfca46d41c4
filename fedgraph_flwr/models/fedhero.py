r"""FedHERO's dual-channel model (arXiv 2504.21206, Section 3.2).

    Ã     = g_L(X, A)                                                    `structure_learner`, shared
    Z^0   = f_0(X) = ReLU(X W_0 + b_0)                                   `projection.`, private
    H^l   = P̃ Z^{l-1} W_g^l + b_g^l,  P̃ = (D̃ + I)⁻¹ (Ã + I)              `global_convs.`, shared
    E^l   = P(A) Z^{l-1} W_loc^l + b_loc^l                               `local_convs.`, private
    Z^l   = ReLU(α E^l + (1 − α) H^l)                                    (5)
    Y     = softmax(f_c([X, Z^0, ..., Z^L]))                             (6) `classifier.`, private

Shapes: X [N, F], A [N, N], all W_g and W_loc [H, H], f_c [F + (L+1) H, C]. α weighs the LOCAL channel. Ours, where the
paper is silent: f_0 is one layer, dropout on every Z and none on the ego features X.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import Range
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.layers import Linear, dropout, proper_pattern
from fedgraph_flwr.models.structure_learner import EdgeWeight, Latent, LatentGraph, MetricName, StructureLearner
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device, Pattern


@dataclass
class DualInputs(Inputs):
    """Inputs of both channels and of the smoothness loss.

    Attributes:
        edges: A without loops and duplicates (row: target, column: source).
        raw: features, dense [N, F].
        square: ‖x_u‖², [N].
        distance: ‖x_u − x_v‖² of all pairs, [N, N], if N <= F; else None.
    """

    edges: Pattern
    raw: Tensor
    square: Tensor
    distance: Tensor | None

    def distances(self, pattern: Pattern) -> Tensor:
        """Return ‖x_u − x_v‖² of a pattern's pairs, [E]."""
        if self.distance is not None:
            return self.distance[pattern.row, pattern.col]
        with torch.no_grad():
            return self.square[pattern.row] + self.square[pattern.col] - 2 * pattern.dot(self.raw, self.raw)


class FedHERO(Model):
    """The model of this module; other keyword arguments go to `StructureLearner`.

    Args:
        num_features: F.
        num_classes: C.
        hidden: H, also the structure learner's width.
        layers: L.
        dropout: on every Z.
        alpha: α of equation (5), the share of the local channel.
        dual_channel: False drops `local_convs`: `global_convs` works on both graphs (Table 5).
        heads: see `StructureLearner`, likewise the others.
    """

    head_prefixes = ("classifier.",)

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        alpha: Annotated[float, Range(0, 1)] = 0.2,  # share of the local channel
        dual_channel: bool = True,  # false: one channel for both graphs (Table 5)
        heads: Annotated[int, Range(1)] = 4,  # N_H, of metric=multi_head
        k: Annotated[int, Range(1)] = 20,  # neighbours kept per node
        metric: MetricName = "multi_head",  # Table 4: multi_head | cos | att | gat | glcn | gaug
        edge_weight: EdgeWeight = "value",  # (ours) value | ste | binary
        symmetrize: bool = False,  # replace Ã by (Ã + Ãᵀ) / 2
        latent: Latent = "top_k",  # at inference: top_k | bernoulli (Table 9)
        candidates: Annotated[int, Range(1)] = 5,  # (ours) bernoulli draws from the candidates * k best of each row
    ):
        super().__init__()
        self.structure_learner = StructureLearner(
            num_features,
            hidden,
            heads=heads,
            k=k,
            metric=metric,
            edge_weight=edge_weight,
            symmetrize=symmetrize,
            latent=latent,
            candidates=candidates,
        )
        self.projection = Linear(num_features, hidden)
        self.global_convs = nn.ModuleList([Linear(hidden, hidden) for _ in range(layers)])
        self.local_convs = nn.ModuleList([Linear(hidden, hidden) for _ in range(layers if dual_channel else 0)])
        self.classifier = Linear(num_features + (layers + 1) * hidden, num_classes)
        self.dropout, self.alpha = dropout, alpha

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> DualInputs:
        """Prepare also the edges as a pattern, and distances between features for the smoothness loss."""
        inputs = super().prepare(graph, device, dtype)
        raw = graph.x.to(device, dtype)
        square = raw.square().sum(1)
        small, edges = (
            graph.num_nodes <= graph.num_features,
            proper_pattern(graph.edge_index, graph.num_nodes).to(device),
        )
        distance = square[:, None] + square - 2 * (raw @ raw.T) if small else None
        return DualInputs(inputs.x, inputs.adj, edges, raw, square, distance)

    def encode(self, inputs: DualInputs) -> Tensor:
        """Return [Z^0, ..., Z^L], [N, (L+1) H], each after dropout, as the next layer reads it."""
        return self.encode_both(inputs)[0]

    def classify(self, h: Tensor, inputs: DualInputs) -> Tensor:
        """Compute logits [N, C] from hidden and ego features, Eq. (6)."""
        ego, hidden = self.classifier.weight.tensor_split([self.projection.weight.size(0)])
        return inputs.x @ ego + h @ hidden + self.classifier.bias  # type: ignore[operator]

    def both(self, inputs: DualInputs) -> tuple[Tensor, LatentGraph]:
        """Compute logits [N, C], and the latent graph, which the smoothness loss needs."""
        h, latent = self.encode_both(inputs)
        return self.classify(h, inputs), latent

    def encode_both(self, inputs: DualInputs) -> tuple[Tensor, LatentGraph]:
        """Compute hidden features [N, (L+1) H], and the latent graph."""
        latent = self.structure_learner(inputs.x, inputs.adj, inputs.edges)
        z = self._activate(self.projection(inputs.x))
        kept = [z]
        for shared, local in zip(self.global_convs, self.local_convs or self.global_convs, strict=True):
            on_latent = shared(latent.propagate(z))
            on_graph = local(inputs.adj @ z)
            z = self._activate(self.alpha * on_graph + (1 - self.alpha) * on_latent)  # Eq. (5)
            kept.append(z)
        return torch.cat(kept, 1), latent

    def representations(self, inputs: DualInputs) -> dict[str, Tensor]:
        """Return also the structure learner's Z and the projection's Z^0."""
        learner = self.structure_learner
        return {
            "": self(inputs),
            "structure_learner.": learner.embed(inputs.x, inputs.adj),
            "projection.": torch.relu(self.projection(inputs.x)),
        }

    def _activate(self, z: Tensor) -> Tensor:
        return dropout(torch.relu(z), self.dropout, self.training)
