"""The orthogonal GCN of FedOMD (Tang et al., ICPP Workshops 2024, Table 1), built on Ortho-GCN (Guo et al., AAAI 2022).

    Z^1 = ReLU(Â X W^0 + b^0)                     GCNConv F → H                              Eq. (7)
    Z^{k+1} = ReLU(Â Z^k O(W^k)),  k = 1..n       OrthoConv H → H, no bias                   Eq. (8)
    logits = Â Z^{n+1} W^{n+1} + b^{n+1}          GCNConv H → C                              Eq. (9)
    L_ortho = Σ_k ‖O(W^k) O(W^k)ᵀ − I‖_F                                                     Eq. (6)

Eq. (8) as printed multiplies by an N x N matrix Q̃ "solved by Newton iteration as in Ortho-GCN". That iteration acts on
the H x H weight, and Table 1 gives OrthoConv the shape H → H. We therefore read Q̃ Z as Â Z O(W). The softmax of Eq.
(9) is left to the loss. "2-hidden" (Table 7) is read as n = 2 OrthoConv layers, Ortho-GCN's own default.

The code of Ortho-GCN differs: it drops out before the first layer too, and can make groups of rows of W orthogonal separately.
Here O(W) takes all rows together.
"""

from typing import Annotated, Any, Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from fedgraph_flwr.config import Range
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.models.layers import Linear
from fedgraph_flwr.models.stack import Common
from fedgraph_flwr.numerics.inputs import Inputs


def orthogonal(weight: Tensor, *, steps: int, mix: float = 1.0, center: bool = False, eps: float = 1e-5) -> Tensor:
    """O(W) [H, H] → [H, H]: approximately the orthogonal factor U Vᵀ of Ŵ = mix W + (1 − mix) I = U Σ Vᵀ.

    G = Ŵ Ŵᵀ + eps I is divided by its Frobenius norm c (spectral bounding), which puts its eigenvalues in (0, 1], where
    Newton's iteration for S^{-1/2}, S = G / c, converges; then O = S^{-1/2} Ŵ / √c. The iteration is the coupled one: Y
    ← Y M, B ← M B with M = (3 I − B Y) / 2 from Y = S, B = I. Step by step it equals B ← (3 B − B³ S) / 2. That form
    diverges in float32 from about 12 steps on, because after rounding B and S no longer commute.

    ``center`` subtracts each row's mean first, as Ortho-GCN's program does; Ŵ is then singular, and so is O.
    """
    identity = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    w = mix * weight + (1 - mix) * identity
    if center:
        w = w - w.mean(1, keepdim=True)
    gram = torch.addmm(identity, w, w.T, beta=eps)
    bound = torch.linalg.matrix_norm(gram)
    y, b = gram / bound, identity
    for _ in range(steps):
        m = torch.addmm(identity, b, y, beta=1.5, alpha=-0.5)
        y, b = y @ m, m @ b
    return b @ w / bound.sqrt()


def orthogonality(weights: list[Tensor]) -> Tensor:
    """Compute L_ortho = Σ_k ‖W^k W^kᵀ − I‖_F of square matrices [H, H] (Eq. 6), with a finite gradient at 0."""
    total = weights[0].new_zeros(()) if weights else torch.zeros(())
    for w in weights:
        gap = w @ w.T - torch.eye(len(w), dtype=w.dtype, device=w.device)
        total = total + (gap.square().sum() + 1e-12).sqrt()
    return total


class Pass(NamedTuple):
    """One forward pass: logits [N, C], Z^1..Z^{n+1} each [N, H], and the weights [H, H] of L_ortho."""

    logits: Tensor
    hidden: list[Tensor]
    weights: list[Tensor]


class Fixed(NamedTuple):
    """Build a layer with a given weight [H, H]."""

    weight: Tensor
    bias: None = None


class OrthoGCN(GCN):
    """GCNConv, ``layers`` − 2 OrthoConv, GCNConv. ``ortho=False`` is `GCN` itself, number for number.

    Args:
        num_features: F.
        num_classes: C.
        ortho: whether the middle layers multiply by O(W) and have no bias.
        ortho_on: what L_ortho judges, O(W) (``transformed``) or W (``raw``).
        newton_steps: of `orthogonal`, at least 1.
        mix: share of W against the identity in `orthogonal`.
        center: see `orthogonal`.
        common: keywords of `GCN`; ``layers`` counts both kinds together.
    """

    samples = True

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        ortho: bool = True,  # false: the plain GCN of as many layers ("CMD" in Table 6)
        # weights in L_ortho: transformed, as in Ortho-GCN's code | raw
        ortho_on: Literal["transformed", "raw"] = "transformed",
        # (ours) Ortho-GCN has 1 or 4 by dataset; 8 brings |O O' - I| below 1e-3
        newton_steps: Annotated[int, Range(1)] = 8,
        # Ortho-GCN's hybrid initialisation, one of its values 0.1, 0.2, 0.5; 1 is off
        mix: Annotated[float, Range(0, 1, without_low=True)] = 0.2,
        # Ortho-GCN's code centres rows; the weight is then singular and cannot become orthogonal
        center: bool = False,
        **common: Unpack[Common],
    ):
        if (layers := common["layers"]) < 2:
            raise FedGraphError(f"model.layers must be >= 2 for fedomd (a GCNConv at each end), got {layers}")
        super().__init__(num_features, num_classes, **common)
        self.middle = range(1, layers - 1) if ortho else range(0)
        for i in self.middle:
            self.layers[i] = Linear(common["hidden"], common["hidden"], bias=False)
        self.raw = ortho_on == "raw"
        self.steps, self.mix, self.center = newton_steps, mix, center

    def own_layers(self) -> list[Any]:
        """Return the hidden layers, with O(W) instead of W in orthogonal ones."""
        layers: list[Any] = list(self.layers)
        for index in self.middle:
            weight = orthogonal(layers[index].weight, steps=self.steps, mix=self.mix, center=self.center)
            layers[index] = Fixed(weight)
        return layers

    def propagate(self, inputs: Inputs) -> Pass:
        """Compute logits, and the inputs of the losses of Eq. (6) and (11)."""
        layers = self.own_layers()
        hidden = self.hidden(inputs, layers)
        judged: Any = self.layers if self.raw else layers
        return Pass(self.classify(hidden[-1], inputs), hidden, [judged[index].weight for index in self.middle])
