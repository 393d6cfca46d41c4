"""Multi-layer perceptron: a reference model that ignores edges.

    H^0 = X,   H^{l+1} = ReLU(H^l W^l + b^l),   logits = H^{L-1} W^{L-1} + b^{L-1}

Shapes: X [N, F], W^0 [F, H], hidden W^l [H, H], last W [H, C] → logits [N, C].
"""

from typing import Any, Unpack

from torch import Tensor

from fedgraph_flwr.models.layers import Linear, no_adjacency
from fedgraph_flwr.models.plain import PlainLayer, plain_linear
from fedgraph_flwr.models.stack import Normed, Stack
from fedgraph_flwr.numerics.inputs import Inputs


class MLP(Stack):
    """MLP of ``layers`` linear layers with ReLU and dropout between them; ``norm`` and ``input_norm`` as in `Stack`."""

    stacks = True
    samples = True
    row_wise = True
    adjacency = staticmethod(no_adjacency)

    def __init__(self, num_features: int, num_classes: int, *, input_norm: bool = False, **common: Unpack[Normed]):
        super().__init__(num_features, num_classes, Linear, input_norm=input_norm, **common)

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Return torch's linear layer."""
        return plain_linear(layer)

    def reads_neighbours(self, index: int) -> bool:
        """None does."""
        return False

    def convolve(self, layer: Any, h: Any, inputs: Inputs) -> Tensor:
        """Compute H W + b."""
        return layer(h)
