"""Networks that are a stack of layers, and what lies between the layers.

    H^0 = X,   H^{l+1} = σ(norm_l(conv_l(H^l)))  for l < L − 1,   logits = conv_{L-1}(H^{L-1})

Dropout falls on each hidden H^l where the next layer reads it. A network says what conv is, and σ where it is not ReLU.

Shapes: X [N, F], hidden H^l [N, H], logits [N, C].
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import one_of
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.layers import dropout
from fedgraph_flwr.models.plain import Plain, PlainLayer, of_modules
from fedgraph_flwr.numerics.inputs import Inputs

Norm = Literal["none", "batch", "layer"]
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
"""Normalisation of hidden features [N, H]: over the nodes of a client, or over each node's features."""

Layer = Callable[[int, int], nn.Module]
"""Makes a layer of an input width and an output width."""


class Common(TypedDict):
    """Keywords of `Stack` that every network has."""

    hidden: int
    layers: int
    dropout: float


class Normed(Common, total=False):
    """`Common`, and the norm of hidden features."""

    norm: Norm


class Stack(Model):
    """``layers`` layers, the last of which is the head; parameters ``layers.{l}.``, ``norms.{l}.``, ``head.``.

    Args:
        num_features: F.
        num_classes: C.
        layer: makes each of the layers.
        head: makes the last one, where it is of another kind.
        hidden: H.
        layers: L.
        dropout: between them.
        norm: of hidden features, ``none`` or a key of `NORMS`.
        input_norm: whether X is normalised by layer first.
        widths: of the hidden layers, where they differ, of which the first L − 1 count; empty: each H.

    Attributes:
        one_hop: whether a layer reads no further than a node's neighbours, and nothing between the layers does; a class made from
            one that says so says it anew.
        after_hidden: (H^l, l - 1) → what takes its place, [N, H], for a method that changes hidden features; None changes none.
            Parameters of a module put here would count among the network's.

    Raises:
        FedGraphError: an unknown norm, or too few widths.
    """

    one_hop: bool = False

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        layer: Layer,
        head: Layer | None = None,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        norm: Norm = "none",  # of hidden features, before the activation: none | batch, over a client's nodes | layer
        input_norm: bool = False,  # layer normalisation of the features
        # of the hidden layers, where they differ: as many as there are count; empty: each `hidden`
        widths: Sequence[int] = (),
    ):
        super().__init__()
        one_of(norm, ("none", *NORMS), "model.norm")
        if widths and (len(widths) < layers - 1 or min(widths) < 1):
            raise FedGraphError(
                f"model.widths must be at least {layers - 1} numbers >= 1, one per layer, got {list(widths)}"
            )
        self.norm, self.widths = norm, (list(widths) or [hidden] * (layers - 1))[: layers - 1]
        self.stacks = self.stacks and norm != "batch"  # whose statistics would count rows that are no nodes
        sizes = [num_features, *self.widths]
        self.input_norm: Any = nn.LayerNorm(num_features) if input_norm else nn.Identity()
        self.dense_features = self.dense_features or input_norm
        self.layers = nn.ModuleList([layer(a, b) for a, b in pairwise(sizes)])
        self.norms = nn.ModuleList([NORMS[norm](width) for width in self.widths] if norm != "none" else [])
        self.head: Any = (head or layer)(sizes[-1], num_classes)
        self.dropout = dropout
        self.after_hidden: Callable[[Tensor, int], Tensor] | None = None

    # --- what a network overrides -------------------------------------------------------------------------------------

    def convolve(self, layer: Any, h: Any, inputs: Any) -> Tensor:
        """One of `layers`, or the head: [N, a] → [N, b]."""
        return layer(h, inputs)

    def activate(self, h: Tensor, index: int) -> Tensor:
        """σ of the hidden layer ``index``, [N, H]."""
        return torch.relu(h)

    def plain_layer(self, layer: Any) -> PlainLayer:
        """One of `layers`, or the head, as `export.plain.stack` has it: kind, arguments, weights."""
        super().plain()  # raises
        raise NotImplementedError

    def plain_activation(self, index: int) -> str:
        """σ of the hidden layer ``index``, as `export.plain.stack` calls it."""
        return "relu"

    @property
    def hops(self) -> int | None:
        """A hop a layer; batch normalisation reads all nodes, and `after_hidden` may."""
        told = vars(type(self)).get("one_hop", False) and self.norm != "batch" and self.after_hidden is None
        return len(self.layers) + 1 if told else None

    # --- the pass -----------------------------------------------------------------------------------------------------

    def prepare(self, graph: Graph, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """As the base, of a graph that can be normalised."""
        if graph.num_nodes < 2 and any(isinstance(norm, nn.BatchNorm1d) for norm in self.norms):
            raise FedGraphError(f"model.norm=batch needs at least 2 nodes per client, got {graph.num_nodes}")
        return super().prepare(graph, device, dtype)

    def hidden(self, inputs: Any, layers: Sequence[Any] | None = None) -> list[Tensor]:
        """H^1..H^{L-1}, each [N, H]; ``layers`` may stand in for the network's own."""
        found: list[Tensor] = []
        h: Any = self.input_norm(inputs.x)
        for index, layer in enumerate(self.layers if layers is None else layers):
            h = self.between(self.convolve(layer, self.dropped(h) if index else h, inputs), index)
            found.append(h)
        return found

    def plain(self, layers: Sequence[Any] | None = None) -> Plain:
        """As the base; ``layers`` may stand in for the network's own."""
        made = [self.plain_layer(layer) for layer in (*(self.layers if layers is None else layers), self.head)]
        features = self.input_norm.weight.numel() if isinstance(self.input_norm, nn.LayerNorm) else 0
        weights = {f"layers.{i}.{name}": t for i, (_, _, own) in enumerate(made) for name, t in own.items()}
        return Plain(
            "stack",
            {
                "layers": [[kind, arguments] for kind, arguments, _ in made],
                "activations": [self.plain_activation(index) for index in range(len(self.layers))],
                "norms": [[self.norm, width] for width in self.widths],
                "input_norm": features,
            },
            weights | of_modules("norms", self.norms) | of_modules("input_norm", self.input_norm),
        )

    def between(self, h: Tensor, index: int) -> Tensor:
        """What follows the hidden convolution ``index``: normalisation, activation, `after_hidden`; [N, H]."""
        h = self.activate(self.norms[index](h) if self.norms else h, index)
        return h if self.after_hidden is None else self.after_hidden(h, index)

    def dropped(self, h: Tensor) -> Tensor:
        """Hidden features as the next layer reads them."""
        return dropout(h, self.dropout, self.training)

    def encode(self, inputs: Any) -> Tensor:
        """H^{L-1} [N, H]; of one layer, X as that layer reads it."""
        hidden = self.hidden(inputs)
        return hidden[-1] if hidden else self.input_norm(inputs.x)

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Logits [N, C]."""
        return self.convolve(self.head, self.dropped(h) if self.layers else h, inputs)
