"""Graph convolutional network (Kipf & Welling, ICLR 2017, arXiv:1609.02907).

    H^0 = X,   H^{l+1} = ReLU(Â H^l W^l + b^l),   logits = Â H^{L-1} W^{L-1} + b^{L-1}            Eq. (2), (9)

Gradients of a cost of the logits (`GCN.grads`): D^0 = X; D^l is H^l after dropout, which keeps a share q and divides by q;
Z^{l+1} = Â D^l W^l + b^l; G^l is the gradient with respect to Z^l. Then

    U^l = Âᵀ G^{l+1},   ∂W^l = (D^l)ᵀ U^l,   ∂b^l = Σ_v G^{l+1}_v,   G^l = 1[D^l > 0] ∘ U^l (W^l)ᵀ / q

Shapes: X [N, F], Â [N, N] (`layers.gcn_adjacency`), W^0 [F, H], hidden W^l [H, H], last W [H, C] → logits [N, C].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from torch import Tensor

from fedgraph_flwr.models.base import Cost
from fedgraph_flwr.models.layers import Linear, aggregated, dropped_relu_, dropped_relu_grad_
from fedgraph_flwr.models.plain import PlainLayer, plain_gcn
from fedgraph_flwr.models.stack import Normed, Stack
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import SparseMatrix


@dataclass
class SmoothInputs(Inputs):
    """Inputs whose x is already Â X, so that the first layer does not propagate."""


class GCN(Stack):
    """GCN of ``layers`` layers with ReLU and dropout between them; ``norm`` as in `Stack`."""

    stacks = True
    samples = True

    def __init__(self, num_features: int, num_classes: int, **common: Unpack[Normed]):
        super().__init__(num_features, num_classes, Linear, **common)

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Return PyG's GCNConv."""
        return plain_gcn(layer)

    def convolve(self, layer: Any, h: Any, inputs: Inputs) -> Tensor:
        """Compute Â H W + b, or (Â X) W + b for prepared Â X."""
        smooth = h is inputs.x and isinstance(inputs, SmoothInputs)
        propagated = h @ layer.weight if smooth else aggregated(inputs.adj, h, layer.weight)
        return propagated if layer.bias is None else propagated + layer.bias

    def grads(self, inputs: Any, values: Mapping[str, Tensor], cost: Cost) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Compute the closed form for this class itself on plain inputs."""
        if not self._written_out(inputs):
            return None
        names = [*(f"layers.{index}" for index in range(len(self.layers))), "head"]
        matrices = [inputs.adj] * len(names)
        if isinstance(inputs, SmoothInputs):
            matrices[0] = None
        weights, biases = [values[f"{name}.weight"] for name in names], [values.get(f"{name}.bias") for name in names]
        read = [inputs.x]
        for weight, bias, matrix in zip(weights, biases, matrices, strict=True):
            z = read[-1] @ weight
            z = z if matrix is None else matrix @ z
            z = z if bias is None else z.add_(bias.unsqueeze(-2))
            if len(read) < len(names):
                read.append(dropped_relu_(z, self.dropout, self.training))
        loss, grad = cost(z)
        gradients: dict[str, Tensor] = {}
        for index in reversed(range(len(names))):
            if biases[index] is not None:
                gradients[f"{names[index]}.bias"] = grad.sum(-2)
            grad = grad if matrices[index] is None else matrices[index].mT @ grad
            gradients[f"{names[index]}.weight"] = read[index].mT @ grad
            if index:
                grad = dropped_relu_grad_(grad @ weights[index].mT, read[index], self.dropout, self.training)
        return loss, gradients

    def settled(self, inputs: Any) -> Any:
        """Precompute Â X if X is `narrow`: (Â X) W equals Â (X W)."""
        first = (*self.layers, self.head)[0]
        if not self._written_out(inputs) or isinstance(inputs, SmoothInputs):
            return inputs
        x = inputs.narrow(first.weight.size(1))
        return inputs if x is None else SmoothInputs(inputs.adj @ x, inputs.adj)

    def _written_out(self, inputs: Any) -> bool:
        """Return whether the closed form applies: no subclass, no hook, and inputs of the expected kind."""
        layers = (*self.layers, self.head)
        return (
            type(self) is GCN
            and not self.norms
            and self.after_hidden is None
            and all(type(layer) is Linear for layer in layers)
            and isinstance(inputs, Inputs)
            and isinstance(inputs.adj, SparseMatrix)
            and isinstance(inputs.x, Tensor | SparseMatrix)
            and not getattr(inputs.x, "requires_grad", False)
        )
