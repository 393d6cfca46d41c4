"""Models of the authors' form of FedDEP (zkzhangke/FedDEP at cf50e38, gfl/model/sage.py and gfl/model/feddep.py).

    E^0 = Z̄,   E^{l+1} = E^l V^l + c^l,   H^{l+1} = ReLU(SAGE^l(H^l) + E^{l+1})       fusion, in every layer; no ReLU in the last
    ñ_v = ReLU(u_v w + b),   z̃_v = tanh(MLP(u_v + ε)),   u = SAGE(X, A),  ε ~ N(0, I)               generator

Z̄ [N, H] is the mean over a node's P slots of generated embeddings, with 0 in unused ones; without any, Z̄ is 0.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.layers import Linear, dropout
from fedgraph_flwr.models.sage import GraphSAGE
from fedgraph_flwr.models.stack import Normed
from fedgraph_flwr.numerics.inputs import Inputs


@dataclass
class AugmentedInputs(Inputs):
    """Inputs with generated embeddings.

    Attributes:
        z: Z̄ [N, H].
    """

    z: Tensor | None = field(default=None, kw_only=True)


class LinearFusedSAGE(GraphSAGE):
    """GraphSAGE with a linear map of generated embeddings added in every layer, parameters ``fuse.{l}.``."""

    stacks = False

    def __init__(self, num_features: int, num_classes: int, **common: Unpack[Normed]):
        super().__init__(num_features, num_classes, **common)
        hidden = common["hidden"]
        self.fuse = nn.ModuleList([*(Linear(hidden, hidden) for _ in self.layers), Linear(hidden, num_classes)])
        self.width = hidden
        self.head_prefixes = ("head.", f"fuse.{len(self.layers)}.")

    def encode(self, inputs: Any) -> Tensor:
        """Return [H^{L-1} ‖ E^{L-1}], [N, 2 H], since the head reads both; with one layer, X."""
        h = super().encode(inputs)
        return torch.cat([h, self.embeddings(inputs, len(self.layers)).expand(len(h), -1)], 1) if self.layers else h

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Return logits [N, C]: SAGE^L(H^{L-1}) + E^{L-1} V^{L-1} + c^{L-1}."""
        if not self.layers:
            return super().classify(h, inputs)
        hidden, e = h.split(self.width, 1)
        return GraphSAGE.convolve(self, self.head, self.dropped(hidden), inputs) + self.fuse[-1](e)

    def embeddings(self, inputs: Any, layers: int) -> Tensor:
        """Return E^l [N, H] after ``layers`` linear maps; [1, H] without generated embeddings."""
        z = inputs.z if isinstance(inputs, AugmentedInputs) else None
        e = self.head.itself.weight.new_zeros(1, self.width) if z is None else z
        for fuse in self.fuse[:layers]:
            e = fuse(e)
        return e

    def convolve(self, layer: Any, h: Any, inputs: Inputs) -> Tensor:
        """Return SAGE^l(H^l) + E^{l+1}."""
        layers = [*self.layers, self.head]
        place = next(index for index, known in enumerate(layers) if known is layer)
        return super().convolve(layer, h, inputs) + self.embeddings(inputs, place + 1)


class LocalEncoder(GraphSAGE):
    """A client's own encoder: GraphSAGE with tanh on its last hidden layer, and a linear classifier."""

    def __init__(self, num_features: int, num_classes: int, hidden: int, layers: int, p: float):
        super().__init__(num_features, num_classes, hidden=hidden, layers=layers, dropout=p, head=True)

    def activate(self, h: Tensor, index: int) -> Tensor:
        """Apply ReLU, or tanh in the last layer."""
        return torch.tanh(h) if index == len(self.layers) - 1 else torch.relu(h)

    def loss(self, inputs: Inputs, y: Tensor, nodes: Tensor) -> Tensor:
        """Return the cross-entropy of softmax scores; like the authors' code, this applies the softmax twice."""
        scores = dropout(self(inputs), self.dropout, self.training)
        return nn.functional.cross_entropy(scores.softmax(1)[nodes], y[nodes])


class LocalGenerator(nn.Module):
    """Generator of the number of missing neighbours and of their embeddings.

    Args:
        latent: D.
        widths: hidden widths.
        neighbours: P.
        width: H.
        p: dropout before the generator's last layer.
    """

    def __init__(self, latent: int, widths: list[int], neighbours: int, width: int, p: float):
        super().__init__()
        self.count = Linear(latent, 1)
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise([latent, *widths])])
        self.head = Linear([latent, *widths][-1], neighbours * width)
        self.neighbours, self.width, self.p = neighbours, width, p

    def counts(self, u: Tensor) -> Tensor:
        """Return ñ [n] for latent features u [n, D]."""
        return torch.relu(self.count(u)).squeeze(1)

    def forward(self, u: Tensor) -> Tensor:
        """Return z̃ [n, P, H] for latent features u [n, D]."""
        h = u + torch.randn_like(u)
        for layer in self.layers:
            h = torch.relu(layer(h))
        return torch.tanh(self.head(dropout(h, self.p, self.training))).view(-1, self.neighbours, self.width)

    @property
    def shared(self) -> dict[str, Tensor]:
        """Parameters that the other clients receive."""
        return dict(self.named_parameters())

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that exchanges train: the authors' code freezes the predictor of counts after the local steps."""
        return {name: tensor for name, tensor in self.named_parameters() if not name.startswith("count.")}
