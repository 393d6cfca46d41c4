"""Models that are a stack of layers, and the operations between the layers.

    H^0 = X,   H^{l+1} = σ(norm_l(conv_l(H^l)))  for l < L − 1,   logits = conv_{L-1}(H^{L-1})

Dropout applies to each hidden H^l as input of the next layer. A model defines conv, and σ if it is not ReLU.

Shapes: X [N, F], hidden H^l [N, H], logits [N, C].
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import one_of
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.in_blocks import Step
from fedgraph_flwr.models.layers import dropout
from fedgraph_flwr.models.plain import Plain, PlainLayer, of_modules
from fedgraph_flwr.numerics.blocks import BatchInputs
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device

Norm = Literal["none", "batch", "layer", "standardize"]
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "standardize": partial(nn.BatchNorm1d, affine=False, track_running_stats=False),
}
"""Normalisation of hidden features [N, H]: ``batch`` over the nodes of a client, ``layer`` over each node's features, and
``standardize`` over the nodes of the graph that is trained on or predicted, without parameters or running statistics."""

OVER_NODES = ("batch", "standardize")
"""Norms that read all nodes."""

Layer = Callable[[int, int], nn.Module]
"""Makes a layer from an input width and an output width."""


class Common(TypedDict):
    """Keywords of `Stack` that every model has."""

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
        layer: makes each layer.
        head: makes the last layer, if it differs.
        hidden: H.
        layers: L.
        dropout: dropout between the layers.
        norm: normalisation of hidden features, ``none`` or a key of `NORMS`.
        input_norm: whether layer normalisation is applied to X first.
        widths: widths of the hidden layers, of which the first L − 1 count; empty: H for each.

    Attributes:
        samples: whether it trains on sampled batches, where a layer's inputs may have fewer rows than columns. A subclass must
            declare it again.
        after_hidden: (H^l, l - 1) → its replacement, [N, H], for a method that changes hidden features; None: no change.
            Parameters of a module put here would count among the model's.

    Raises:
        FedGraphError: an unknown norm, or too few widths.
    """

    samples: bool = False

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
        # of hidden features, before the activation: none | batch, over a client's nodes | layer | standardize, over the
        # nodes of the graph, without parameters
        norm: Norm = "none",
        input_norm: bool = False,  # layer normalisation of the features
        # widths of the hidden layers, if they differ; the first layers - 1 count; empty: `hidden` for each
        widths: Sequence[int] = (),
    ):
        super().__init__()
        one_of(norm, ("none", *NORMS), "model.norm")
        if widths and (len(widths) < layers - 1 or min(widths) < 1):
            raise FedGraphError(
                f"model.widths must be at least {layers - 1} numbers >= 1, one per hidden layer, got {list(widths)}"
            )
        self.norm, self.widths = norm, (list(widths) or [hidden] * (layers - 1))[: layers - 1]
        self.stacks = (
            type(self).capabilities.stacks and norm not in OVER_NODES
        )  # its statistics would count padding rows
        sizes = [num_features, *self.widths]
        self.input_norm: Any = nn.LayerNorm(num_features) if input_norm else nn.Identity()
        self.dense_features = type(self).capabilities.dense_features or input_norm
        self.layers = nn.ModuleList([layer(a, b) for a, b in pairwise(sizes)])
        self.norms = nn.ModuleList([NORMS[norm](width) for width in self.widths] if norm != "none" else [])
        self.head: Any = (head or layer)(sizes[-1], num_classes)
        self.dropout = dropout
        self.after_hidden: Callable[[Tensor, int], Tensor] | None = None

    # --- hooks of a model ---------------------------------------------------------------------------------------------------

    def convolve(self, layer: Any, h: Any, inputs: Any) -> Tensor:
        """Apply one of `layers`, or the head: [N, a] → [N, b]."""
        return layer(h, inputs)

    def activate(self, h: Tensor, index: int) -> Tensor:
        """Apply σ of the hidden layer ``index``, [N, H]."""
        return torch.relu(h)

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Describe one of `layers`, or the head, for `party.use.plain.stack`: kind, arguments, weights."""
        super().plain()  # raises
        raise NotImplementedError

    def plain_activation(self, index: int) -> str:
        """Name σ of the hidden layer ``index`` for `party.use.plain.stack`."""
        return "relu"

    def reads_neighbours(self, index: int) -> bool:
        """Whether a layer reads neighbours; the index of the head is the number of `layers`."""
        return True

    @property
    def sampled_hops(self) -> int | None:
        """Number of layers that read neighbours; None with batch normalisation or `after_hidden`, which may read all nodes."""
        if not vars(type(self)).get("samples", False) or self.norm in OVER_NODES or self.after_hidden is not None:
            return None
        return sum(map(self.reads_neighbours, range(len(self.layers) + 1)))

    @property
    def subgraphs(self) -> bool:
        """Whether it declares ``samples``, with edges to read; batch normalisation is over the nodes of the part.

        ``standardize`` would predict with the statistics of a block, so it needs the whole graph.
        """
        reads = vars(type(self)).get("samples", False) and self.norm != "standardize"
        return reads and self.after_hidden is None and self.sampled_hops != 0

    def at(self, inputs: Any, index: int) -> Any:
        """Return the inputs of a layer: in a sampled batch its own, else those of all layers."""
        if not isinstance(inputs, BatchInputs) or not self.reads_neighbours(index):
            return inputs
        return inputs.layers[sum(map(self.reads_neighbours, range(index)))]

    # --- the pass -----------------------------------------------------------------------------------------------------

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """Prepare inputs, and refuse a graph that is too small for batch normalisation."""
        if graph.num_nodes < 2 and any(isinstance(norm, nn.BatchNorm1d) for norm in self.norms):
            needs = f"model.norm={self.norm} needs at least 2 nodes per client, got {graph.num_nodes}"
            raise FedGraphError(f"{needs}: set model.norm to layer or none")
        return super().prepare(graph, device, dtype)

    def hidden(self, inputs: Any, layers: Sequence[Any] | None = None) -> list[Tensor]:
        """Compute H^1..H^{L-1}, each [N, H]; ``layers`` may be `own_layers` as computed before."""
        states: list[Tensor] = []
        h: Any = self.input_norm(inputs.x)
        for index, layer in enumerate(self.own_layers() if layers is None else layers):
            h = self.advance(layer, h, self.at(inputs, index), index)
            states.append(h)
        return states

    def advance(self, layer: Any, h: Any, inputs: Any, index: int) -> Tensor:
        """Compute H^{index + 1} [R, H] from H^index [K, a]; ``inputs`` are those of the layer."""
        return self.between(self.convolve(layer, self.dropped(h) if index else h, inputs), index)

    def own_layers(self) -> Sequence[Any]:
        """Return the hidden layers as a pass applies and an export contains them."""
        return list(self.layers)

    def passes(self) -> list[Step]:
        """One per layer."""

        def hidden(h: Any, inputs: Any, index: int, layer: Any) -> Tensor:
            return self.advance(layer, h if index else self.input_norm(h), inputs, index)

        def last(h: Any, inputs: Any) -> Tensor:
            h = self.dropped(h) if self.layers else self.input_norm(h)
            return self.convolve(self.head, h, inputs)

        applied: list[Any] = [partial(hidden, index=i, layer=layer) for i, layer in enumerate(self.own_layers())]
        return [Step(self.reads_neighbours(index), apply) for index, apply in enumerate([*applied, last])]

    def plain(self) -> Plain:
        """Export the stack."""
        made = [self.plain_layer(layer) for layer in (*self.own_layers(), self.head)]
        features = self.input_norm.weight.numel() if isinstance(self.input_norm, nn.LayerNorm) else 0
        weights = {f"layers.{i}.{name}": t for i, (_, _, part) in enumerate(made) for name, t in part.items()}
        weights |= of_modules("norms", self.norms) | of_modules("input_norm", self.input_norm)
        activations = [self.plain_activation(index) for index in range(len(self.layers))]
        arguments = {"layers": [[kind, part] for kind, part, _ in made], "activations": activations}
        norms = [[self.norm, width] for width in self.widths]
        return Plain("stack", {**arguments, "norms": norms, "input_norm": features}, weights)

    def between(self, h: Tensor, index: int) -> Tensor:
        """Apply normalisation, activation and `after_hidden` after the hidden convolution ``index``; [N, H]."""
        h = self.activate(self.norms[index](h) if self.norms else h, index)
        return h if self.after_hidden is None else self.after_hidden(h, index)

    def dropped(self, h: Tensor) -> Tensor:
        """Apply dropout to hidden features, as the next layer reads them."""
        return dropout(h, self.dropout, self.training)

    def encode(self, inputs: Any) -> Tensor:
        """Compute H^{L-1} [N, H]; with one layer, X as that layer reads it."""
        hidden = self.hidden(inputs)
        return hidden[-1] if hidden else self.input_norm(inputs.x)

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Compute logits [N, C]."""
        return self.convolve(self.head, self.dropped(h) if self.layers else h, self.at(inputs, len(self.layers)))
