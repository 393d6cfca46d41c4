"""ACM-GCN: adaptive mixing of a low-pass, a high-pass and an identity channel (Luan et al., NeurIPS 2022, arXiv:2210.07606).

    H_L = ReLU(P H W_L),   H_H = ReLU((I − P) H W_H),   H_I = ReLU(H W_I)                        Section 5, Option 1
    s = sigmoid([H_L a_L, H_H a_H, H_I a_I]),   α = softmax(s B / 3)
    H' = 3 (α_L H_L + α_H H_H + α_I H_I)

P = D̃^{-1} Ã (`layers.random_walk_adjacency`). The last layer's H' [N, C] are the logits. H' is a positive mixture of
ReLUs, so a further ReLU between layers would change nothing.

Shapes: H [N, F], W [F, H] each, a [H, 1] each, B [3, 3] → H' [N, H].
"""

import dataclasses
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.models.layers import glorot, random_walk_adjacency
from fedgraph_flwr.models.plain import Plain, of_modules
from fedgraph_flwr.models.stack import Normed, Stack
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device


def smoothed(inputs: Inputs, width: int) -> Inputs:
    """Add P X to inputs with narrow X."""
    x = inputs.narrow(width)
    return inputs if x is None else dataclasses.replace(inputs, propagated=inputs.adj @ x)


def filtered(h: Any, filters: Tensor, width: int, inputs: Inputs) -> list[Tensor]:
    """Compute ReLU of P H W_L, (I − P) H W_H and H W for [W_L | W_H | W] [F, 2 width + R]: [N, width] twice, and [N, R]."""
    parts = [width, width, filters.size(1) - 2 * width]
    smooth = inputs.propagated if h is inputs.x else None
    if smooth is not None:
        low, high, rest = filters.split(parts, dim=1)
        products = [smooth @ low, (h - smooth) @ high, h @ rest]
    else:
        product = h @ filters
        smooth_low, smooth_high = (inputs.adj @ product[:, : 2 * width]).chunk(2, dim=1)
        if len(smooth_low) < len(product):  # a sampled batch
            product = product[: len(smooth_low)]
        _, high, rest = product.split(parts, dim=1)
        products = [smooth_low, high - smooth_high, rest]
    return [torch.relu(values) for values in products]


class ACMLayer(nn.Module):
    """One layer: [N, F] → [N, H].

    Attributes:
        filters: [W_L | W_H | W_I], [F, 3H]: one product instead of three, each block initialised as a separate matrix.
        scores: a_L, a_H, a_I as rows, [3, H].
        mixing: B [3, 3].
    """

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.filters = nn.Parameter(torch.cat([glorot(num_in, num_out).data for _ in range(3)], dim=1))
        self.scores = nn.Parameter(torch.cat([glorot(num_out, 1).data.T for _ in range(3)]))
        self.mixing = glorot(3, 3)

    def forward(self, h: Any, inputs: Inputs) -> Tensor:
        """Return [N, H]."""
        channels = filtered(h, self.filters, self.scores.size(1), inputs)  # three of [N, H]
        scores = torch.stack([c @ a for c, a in zip(channels, self.scores, strict=True)], dim=1).sigmoid()  # [N, 3]
        low, high, identity = (3 * torch.softmax(scores @ self.mixing / 3, dim=1)).split(1, dim=1)
        return low * channels[0] + high * channels[1] + identity * channels[2]


class ACMGCN(Stack):
    """ACM-GCN of ``layers`` layers with dropout between them; ``norm`` as in `Stack`, with a ReLU after it."""

    stacks = True
    samples = True
    adjacency = staticmethod(random_walk_adjacency)

    def __init__(self, num_features: int, num_classes: int, **common: Unpack[Normed]):
        super().__init__(num_features, num_classes, ACMLayer, **common)
        self.width = common["hidden"] if self.layers else num_classes

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """Prepare features, P, and P X for narrow features."""
        return smoothed(super().prepare(graph, "cpu", dtype), self.width).to(device)

    def plain(self) -> Plain:
        """Export the same layers on dense features."""
        made = [*self.layers, self.head]
        weights = of_modules("norms", self.norms)
        for index, layer in enumerate(made):
            parts = zip(("low", "high", "identity"), layer.filters.chunk(3, dim=1), strict=True)
            weights |= {f"layers.{index}.{name}.weight": block.T for name, block in parts}
            weights |= {f"layers.{index}.{name}": getattr(layer, name) for name in ("scores", "mixing")}
        widths = [layer.filters.size(0) for layer in made] + [self.head.scores.size(1)]
        return Plain("acm", {"widths": widths, "norm": self.norm}, weights)

    def activate(self, h: Tensor, index: int) -> Tensor:
        """Apply ReLU to normalised features; without a norm it would change nothing."""
        return torch.relu(h) if self.norms else h
