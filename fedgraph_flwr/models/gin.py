"""GIN (Xu et al., ICLR 2019, arXiv:1810.00826) in the layout of GCFL (Xie et al., NeurIPS 2021, arXiv:2106.13423).

    H^0 = X W_e + b_e,   H^{l+1} = dropout(ReLU(MLP_l((1 + ε) H^l + A H^l)))
    logits = dropout(ReLU(P W_p + b_p)) W_h + b_h,   P = H^L of nodes; of graphs the sum of their nodes' rows

MLP_l has two layers with ReLU between them, and ε = 0 does not train, as in the authors' code. ``embed.`` is its ``pre``,
``layers.`` are its convolutions, the only parameters that GCFL shares, and the head is its ``post`` and ``readout``.

Shapes: X [N, F], A [N, N], H^l [N, H] → logits [N, C], or [G, C] of graphs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.layers import Linear, adjacency
from fedgraph_flwr.models.plain import Plain, PlainLayer, plain_linear, torch_layout
from fedgraph_flwr.models.readout import has_graphs, of_graphs, pooled
from fedgraph_flwr.models.stack import Norm, Stack
from fedgraph_flwr.numerics.inputs import Inputs


class GINLayer(nn.Module):
    """MLP(H + A H): [N, a] → [N, b]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.mlp = nn.Sequential(Linear(num_in, num_out), nn.ReLU(), Linear(num_out, num_out))

    def forward(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Return [N, b]."""
        return self.mlp(h + inputs.adj @ h)


class GIN(Stack):
    """GIN of ``layers`` convolutions.

    Args:
        num_features: F.
        num_classes: C.
        hidden: H.
        layers: L, the number of convolutions.
        dropout: of hidden features, and of the pooled ones.
        norm: of hidden features, as in `Stack`.
    """

    pools = True
    head_prefixes = ("post.", "head.")
    adjacency = staticmethod(adjacency)

    def __init__(
        self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float, norm: Norm = "none"
    ):
        super().__init__(
            hidden, num_classes, GINLayer, Linear, hidden=hidden, layers=layers + 1, dropout=dropout, norm=norm
        )
        self.embed, self.post = Linear(num_features, hidden), Linear(hidden, hidden)

    def hidden(self, inputs: Any, layers: Any = None) -> list[Tensor]:
        """Compute H^1..H^L before dropout, each [N, H]; ``layers`` may replace the model's own."""
        states, h = [], self.embed(inputs.x)
        for index, layer in enumerate(self.layers if layers is None else layers):
            h = self.advance(layer, h, inputs, index)
            states.append(h)
        return states

    def reads_neighbours(self, index: int) -> bool:
        """All but the head do."""
        return index < len(self.layers)

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Compute logits [N, C], or of graphs [G, C]."""
        h = self.dropped(h)
        h = pooled(h, inputs, "sum") if has_graphs(inputs) else h
        return self.head(self.dropped(torch.relu(self.post(h))))

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Return PyG's GINConv, or a linear layer."""
        if isinstance(layer, Linear):
            return plain_linear(layer)
        num_in, num_out = layer.mlp[0].weight.shape
        weights = {f"nn.{name}": w for name, w in torch_layout(layer.mlp).items()}
        return "gin", {"num_in": num_in, "num_out": num_out}, weights | {"eps": layer.mlp[0].bias.new_zeros(1)}

    def plain(self) -> Plain:
        """Export the stack for nodes."""
        return self._plain([self.post, self.head])

    def plain_of_graphs(self) -> Plain:
        """Export the convolutions, and the layers after the sum as a readout."""
        weights = {"first": plain_linear(self.post)[2], "last": plain_linear(self.head)[2]}
        named = {f"{layer}.{key}": w for layer, tensors in weights.items() for key, w in tensors.items()}
        return self._plain([]).with_readout("graphs", of_graphs(self.post, self.head, "sum"), named)

    def _plain(self, last: list[Any]) -> Plain:
        """Return the embedding, the convolutions and linear layers, with ReLU after all but the first and the final one."""
        made = [self.plain_layer(layer) for layer in (self.embed, *self.layers, *last)]
        convolutions, hidden = len(self.layers), self.embed.weight.size(1)
        between = ["none", *["relu"] * convolutions, *["relu"] * (len(last) - 1)]
        norms = [["none", hidden], *[[self.norm, hidden]] * convolutions, *[["none", hidden]] * (len(last) - 1)]
        weights = {f"layers.{i}.{name}": w for i, (_, _, part) in enumerate(made) for name, w in part.items()}
        weights |= {
            f"norms.{i + 1}.{name}": w for i, norm in enumerate(self.norms) for name, w in norm.state_dict().items()
        }
        arguments = {"layers": [[kind, part] for kind, part, _ in made], "activations": between, "norms": norms}
        return Plain("stack", arguments, weights)
