"""A stack of PyG's own layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv


def gin(num_in: int, num_out: int) -> nn.Module:
    """PyG's GINConv with two linear layers."""
    return GINConv(nn.Sequential(nn.Linear(num_in, num_out), nn.ReLU(), nn.Linear(num_out, num_out)))


LAYERS = {"gcn": GCNConv, "sage": SAGEConv, "gat": GATConv, "gin": gin, "linear": nn.Linear}
ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU, "none": nn.Identity}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": nn.Identity,
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "standardize": partial(nn.BatchNorm1d, affine=False, track_running_stats=False),
}


class Net(nn.Module):
    """A sequence of layers; hidden layers are normalised and activated.

    Args:
        layers: kind (a key of `LAYERS`) and arguments per layer.
        activations: key of `ACTIVATIONS` per hidden layer.
        norms: key of `NORMS` and width per hidden layer.
        input_norm: width of a layer normalisation of the input features; 0: none.
        reverse: aggregate from the targets of a node's outgoing edges instead of the sources of its incoming edges.
    """

    def __init__(
        self, layers: list[Any], activations: list[str], norms: list[Any], input_norm: int = 0, reverse: bool = False
    ):
        super().__init__()
        self.kinds = [kind for kind, _ in layers]
        self.layers = nn.ModuleList([LAYERS[kind](**arguments) for kind, arguments in layers])
        self.activations = nn.ModuleList([ACTIVATIONS[name]() for name in activations])
        self.norms = nn.ModuleList([NORMS[name](width) for name, width in norms])
        self.input_norm = nn.LayerNorm(input_norm) if input_norm else nn.Identity()
        self.reverse = reverse

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features [N, F] and edges [2, E] (source, target) -> logits [N, C]."""
        edge_index = edge_index.flip(0) if self.reverse else edge_index
        h = self.input_norm(x)
        for index, (kind, layer) in enumerate(zip(self.kinds, self.layers, strict=True)):
            h = layer(h) if kind == "linear" else layer(h, edge_index)
            if index < len(self.activations):
                h = self.activations[index](self.norms[index](h))
        return h
