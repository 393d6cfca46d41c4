"""GCN between a projection and a classifier: the baselines' model in FedHERO (arXiv 2504.21206, Section 4.1).

    Z^0 = ReLU(X W_0 + b_0),   Z^l = ReLU(Â Z^{l-1} W^l + b^l),   logits = Z^L W_c + b_c

Shapes: X [N, F], Â [N, N] (`layers.gcn_adjacency`), W_0 [F, H], W^l [H, H], W_c [H, C]. It is the local channel of
FedHERO's network without the concatenation.
"""

from typing import Any

from torch import Tensor

from fedgraph_flwr.models.layers import Linear
from fedgraph_flwr.models.plain import PlainLayer, plain_gcn, plain_linear
from fedgraph_flwr.models.stack import Stack
from fedgraph_flwr.numerics.inputs import Inputs


class ProjectedGCN(Stack):
    """A linear projection, ``layers`` graph convolutions, a linear classifier; ReLU and dropout between them."""

    stacks = True
    samples = True

    def __init__(self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float):
        super().__init__(num_features, num_classes, Linear, hidden=hidden, layers=layers + 2, dropout=dropout)

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Return PyG's GCNConv between two linear layers."""
        return plain_linear(layer) if layer is self.layers[0] or layer is self.head else plain_gcn(layer)

    def reads_neighbours(self, index: int) -> bool:
        """All but the projection and the classifier do."""
        return 0 < index < len(self.layers)

    def convolve(self, layer: Any, h: Any, inputs: Inputs) -> Tensor:
        """Compute Â H W + b; H W + b in the projection and the classifier."""
        alone = layer is self.layers[0] or layer is self.head
        return layer(h if alone else inputs.adj @ h)
