"""Models that read edge features: GINE, GATv2, the graph transformer and PNA, in the layout of Multi-GNN.

    H^0 = X W + b,   H^{l+1} = σ(norm(conv_l(H^l, e)))  for l < L,   logits = H^L W_head + b_head

GINE (Hu et al., ICLR 2020, arXiv:1905.12265), with aggregated messages in the last formula of each:

    h'_v = MLP((1 + ε) h_v + Σ_{u→v} ReLU(h_u + W e_uv))

GATv2 (Brody et al., ICLR 2022, arXiv:2105.14491) and the graph transformer (Shi et al., IJCAI 2021, arXiv:2009.03509), on PyG's
``GATv2Conv`` and ``TransformerConv``: e enters the keys, and the values of the transformer. PNA (Corso et al., NeurIPS 2020,
arXiv:2004.05718), with messages m_uv = W [h_v ‖ h_u ‖ W_e e_uv] and in-degree d_v:

    h'_v = U [h_v ‖ {mean, min, max, std}_u m_uv × {1, ln(d_v + 1) / δ, δ / ln(d_v + 1)}]

Options of Multi-GNN (Egressy et al., AAAI 2024, arXiv:2306.11586): ``reverse`` adds messages against the edges, with separate
weights. ``residual`` takes the mean of a layer's input and output. ``edge_updates`` updates edge
features from both ends: it adds MLP([h_u ‖ h_v ‖ e]) / 2 to e.

Edge features of zero give the same logits as no edge features: nothing that is added for them has a bias. 0 is the mean of a
standardised column. Parallel edges each send a message.
Shapes: X [N, F], e [E, D] → logits [N, C].
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph_flwr.config import Range
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.in_blocks import Step
from fedgraph_flwr.models.layers import Linear, glorot, no_adjacency
from fedgraph_flwr.models.plain import Plain, torch_layout
from fedgraph_flwr.models.readout import READOUT
from fedgraph_flwr.models.stack import Norm, Stack
from fedgraph_flwr.numerics.blocks import NO_MATRIX, NOT_READ, BatchInputs, EdgeNeighbours
from fedgraph_flwr.numerics.draws import Entries, row_pointer
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sampler import Csr
from fedgraph_flwr.numerics.sparse import Device


@dataclass
class EdgeFeatureInputs(Inputs):
    """`Inputs` with the edges as a list, ``edge_index`` [2, E], and their features, ``edge_attr`` [E, D]; None without any."""

    edge_index: Tensor
    edge_attr: Tensor | None


@dataclass
class EdgeFeatureBatch(EdgeFeatureInputs):
    """What a layer reads of a sampled batch: edges into its targets, then edges out of them, which it reads backwards.

    Attributes:
        targets: number of nodes that receive messages, the first ones.
        scale: degree over the number of drawn edges, for each edge, [E].
        degree: in-degree of each node, [N]; 0 for those that are no targets.
        forward: number of edges that are read forwards, the first ones.
        out_degree: out-degree of each node, [N]; 0 for those that are no targets.
    """

    targets: int
    scale: Tensor
    degree: Tensor
    forward: int
    out_degree: Tensor


class EdgeFeatureNeighbours(EdgeNeighbours):
    """Edges with features, each of which is drawn, with ``reverse`` in both directions."""

    def __init__(self, graph: Graph, loops: bool, device: torch.device, dtype: torch.dtype, reverse: bool = False):
        attr = graph.edge_attr.to(device, dtype) if graph.num_edge_features else None
        order = None if attr is None else np.argsort(graph.edge_index[1].numpy(), kind="stable")
        super().__init__(*graph.in_neighbours(), device, order)
        self.attr, self.loops, self.dtype = attr, loops, dtype
        self.away: EdgeNeighbours | None = None
        if reverse:
            source, target = graph.edge_index.numpy()
            order = np.argsort(source, kind="stable")
            self.away = EdgeNeighbours(
                row_pointer(source, graph.num_nodes), target[order].astype(self.indices.dtype), device, order
            )
            self.back = Csr(self.away.indptr, self.away.indices)

    def layer(
        self, nodes: NDArray[np.int64], hop: Entries, sources: int, back: Entries | None = None
    ) -> EdgeFeatureBatch:
        """Return the drawn edges with their features, and loops with features of zero."""
        targets = len(hop.degree)
        drawn: list[tuple[Entries, Tensor, EdgeNeighbours]] = [(hop, self.edges(hop, self.loops), self)]
        if back is not None and self.away:
            drawn.append((back, self.away.edges(back, self.loops).flip(0), self.away))
        attrs, scales = [], []
        for one, _, side in drawn:
            ones = np.ones(targets if self.loops else 0)
            scales.append(torch.from_numpy(np.concatenate([one.scale, ones])).to(self.device, self.dtype))
            if self.attr is not None:
                rows = self.attr[side.positions(one)]
                attrs.append(torch.cat([rows, rows.new_zeros(len(ones), rows.size(1))]))
        degrees = torch.zeros(2, sources, dtype=self.dtype, device=self.device)
        for degree, (one, _, _) in zip(degrees, drawn, strict=False):
            degree[:targets] = torch.from_numpy(one.degree.copy()).to(degree)
        edge_index = torch.cat([edges for _, edges, _ in drawn], dim=1)
        attr, forward = torch.cat(attrs) if attrs else None, drawn[0][1].size(1)
        scale = torch.cat(scales)
        return EdgeFeatureBatch(NOT_READ, NO_MATRIX, edge_index, attr, targets, scale, degrees[0], forward, degrees[1])


class EdgeNetwork(Stack):
    """``layers`` convolutions of width ``hidden`` between a linear embedding of the nodes and a linear head.

    Args:
        num_features: F.
        num_classes: C.
        num_edge_features: D.
        hidden: H.
        layers: L, the number of convolutions.
        dropout: of hidden features.
        norm: of hidden features, as in `Stack`.
        reverse: whether messages also travel against the edges.
        residual: whether a layer gives the mean of its input and its output.
        edge_updates: whether edge features are updated between convolutions.

    Attributes:
        loops: whether each node also sends itself a message, with edge features of zero.
        exported_as: kind of its convolutions in `party.use.plain.edge_network`.
        exported_options: further arguments of the exported convolutions.
    """

    reads_edges = True
    adjacency = staticmethod(no_adjacency)
    loops: bool = False
    exported_as: str = ""
    exported_options: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        num_edge_features: int = 0,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        norm: Norm = "none",
        reverse: bool = False,  # messages also against the edges, with separate weights
        residual: bool = False,  # each layer gives the mean of its input and its output
        edge_updates: bool = False,  # edge features are updated from both ends between the convolutions
    ):
        width = hidden if edge_updates else num_edge_features

        def layer(num_in: int, num_out: int) -> nn.Module:
            return nn.ModuleList([self.convolution(num_in, num_out, width) for _ in range(1 + reverse)])

        super().__init__(
            hidden, num_classes, layer, hidden=hidden, layers=layers + 1, dropout=dropout, head=Linear, norm=norm
        )
        self.num_edge_features, self.reverse, self.residual = num_edge_features, reverse, residual
        self.embed = Linear(num_features, hidden)
        embeds = edge_updates and num_edge_features
        self.embed_edges = Linear(num_edge_features, hidden, bias=False) if embeds else None
        self.edge_updates = edge_updates
        between = range(layers - 1 if edge_updates else 0)
        self.updates = nn.ModuleList([mlp(3 * hidden, hidden) for _ in between])

    @abstractmethod
    def convolution(self, num_in: int, num_out: int, num_edge_features: int) -> nn.Module:
        """Return a layer called with (H [N, a], edge_index [2, E], e [E, D] or None) → [N, b]."""

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> EdgeFeatureInputs:
        """Features, edges and edge features.

        Raises:
            FedGraphError: the graph has another number of edge features than the network.
        """
        base = super().prepare(graph, device, dtype)
        self.check_edges(graph)
        width, edge_index = graph.num_edge_features, graph.edge_index
        attr = graph.edge_attr.to(dtype) if width else None
        if self.loops:
            edge_index = torch.cat([edge_index, torch.arange(graph.num_nodes).expand(2, -1)], dim=1)
            attr = None if attr is None else torch.cat([attr, attr.new_zeros(graph.num_nodes, width)])
        return EdgeFeatureInputs(base.x, base.adj, edge_index, attr).to(device)

    def check_edges(self, graph: Graph) -> None:
        """Check that the graph has the network's number of edge features.

        Raises:
            FedGraphError: it has another one.
        """
        width = graph.num_edge_features
        if width != self.num_edge_features or (width and len(graph.edge_attr) != graph.num_edges):
            raise FedGraphError(
                f"the model reads {self.num_edge_features} features of each of {graph.num_edges} edges, but the graph has"
                f" {width} of {len(graph.edge_attr)}: import every graph of a run with the same schema"
            )

    def hidden(self, inputs: Any, layers: Any = None) -> list[Tensor]:
        """Compute H^1..H^L, each [N, H]; ``layers`` may replace the model's own."""
        return self.states(inputs, layers)[0]

    def states(self, inputs: Any, layers: Any = None) -> tuple[list[Tensor], Tensor | None]:
        """Compute H^1..H^L, each [N, H], and the edge features that the last convolution reads.

        In a batch, a layer updates the edges that it and later layers read, those of the last layer first, and reads its own.
        """
        states, h, convolutions = list[Tensor](), self.embed(inputs.x), self.layers if layers is None else layers
        parts = [self.at(inputs, index) for index in range(len(convolutions))]
        lists = parts[::-1] if isinstance(inputs, BatchInputs) else parts[:1]
        # What the first convolution reads, if edges are updated.
        e = torch.cat([self.embedded_edges(edge_set) for edge_set in lists]) if self.edge_updates else None
        for index, (layer, part) in enumerate(zip(convolutions, parts, strict=True)):
            read = part.edge_attr
            if e is not None:
                edge_index = torch.cat([edge_set.edge_index for edge_set in lists[: len(convolutions) - index]], dim=1)
                # A view sums gradients in another order.
                e = e if len(e) == edge_index.size(1) else e[: edge_index.size(1)]
                e = self.updated(e, h, edge_index, index) if index else e
                first = len(e) - part.edge_index.size(1)
                read = e[first:] if first else e
            h = self.convolved(layer, h, part, read, index)
            states.append(h)
        return states, read

    def updated(self, e: Tensor, h: Tensor, edge_index: Tensor, index: int) -> Tensor:
        """Update edge features [E, H] from both ends before convolution ``index`` >= 1."""
        source, target = edge_index
        return e + self.updates[index - 1](torch.cat([h[source], h[target], e], dim=1)) / 2

    def convolved(self, layer: Any, h: Tensor, inputs: Any, e: Tensor | None, index: int) -> Tensor:
        """Compute H^{index + 1} [R, H] from H^index [K, H] and edge features."""
        new = self.between(self.both_ways(layer, self.dropped(h) if index else h, inputs, e), index)
        return (h[: len(new)] + new) / 2 if self.residual else new

    def passes(self) -> list[Step]:
        """The embedding, the convolutions, and the head; features of edges that are updated follow from all H before."""

        def convolution(h: Tensor, inputs: EdgeFeatureBatch, *older: Tensor, index: int, layer: Any) -> Tensor:
            e = inputs.edge_attr
            if self.edge_updates:
                e = self.embedded_edges(inputs)
                for before, held in enumerate([*older, h][1:], 1):
                    e = self.updated(e, held, inputs.edge_index, before)
            return self.convolved(layer, h, inputs, e, index)

        applied = [partial(convolution, index=index, layer=layer) for index, layer in enumerate(self.layers)]
        return [
            Step(False, lambda x, inputs: self.embed(x)),
            *(Step(True, apply, index if self.edge_updates else 0) for index, apply in enumerate(applied)),
            Step(False, partial(EdgeNetwork.classify, self)),
        ]

    def embedded_edges(self, inputs: EdgeFeatureInputs) -> Tensor:
        """Embed edge features [E, H]; zeros without any."""
        if self.embed_edges is None:
            return self.embed.weight.new_zeros(inputs.edge_index.size(1), self.embed.weight.size(1))
        return self.embed_edges(inputs.edge_attr)

    def both_ways(self, layer: Any, h: Tensor, inputs: EdgeFeatureInputs, e: Tensor | None) -> Tensor:
        """Convolve along the edges or, with ``reverse``, average this and a convolution against them."""
        if not isinstance(inputs, EdgeFeatureBatch):
            forth = layer[0](h, inputs.edge_index, e)
            return (forth + layer[1](h, inputs.edge_index.flip(0), e)) / 2 if self.reverse else forth
        ways = [slice(0, inputs.forward), slice(inputs.forward, None)][: 1 + self.reverse]
        outputs = []
        for way, (part, convolution) in enumerate(zip(ways, layer, strict=True)):
            edges, degree = inputs.edge_index[:, part], inputs.out_degree if way else inputs.degree
            read = self.corrections(inputs.scale[part], degree)
            out = convolution(h, edges.flip(0) if way else edges, None if e is None else e[part], **read)
            outputs.append(out[: inputs.targets])
        return sum(outputs[1:], outputs[0]) / 2 if self.reverse else outputs[0]

    def corrections(self, scale: Tensor, degree: Tensor) -> dict[str, Tensor]:
        """Return what a convolution needs to know of the edges that were not drawn.

        Args:
            scale: degree over the number of drawn edges, for each drawn edge, [e].
            degree: degree of each node in the layer's direction, [K].
        """
        return {}

    def reads_neighbours(self, index: int) -> bool:
        """All but the head do."""
        return index < len(self.layers)

    @property
    def one_way(self) -> bool:
        """Without ``reverse`` and ``edge_updates``."""
        return not (self.reverse or self.edge_updates)

    def neighbours(
        self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> EdgeFeatureNeighbours:
        """Return the edges of the graph."""
        self.check_edges(graph)
        return EdgeFeatureNeighbours(graph, self.loops, torch.device(device), dtype, self.reverse)

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Compute logits [N, C]."""
        return self.head(self.dropped(h))

    def plain(self) -> Plain:
        """Export the model; subclasses add arguments of their convolutions."""
        hidden, outputs = self.head.weight.shape
        sizes = {"num_features": self.embed.weight.size(0), "num_outputs": outputs}
        sizes |= {"num_edge_features": self.num_edge_features, "hidden": hidden, "layers": len(self.layers)}
        options = {name: getattr(self, name) for name in ("norm", "reverse", "residual", "edge_updates")}
        arguments = {"kind": self.exported_as, **sizes, **options, **self.exported_options}
        weights = {name: w for name, w in torch_layout(self).items() if not name.startswith(READOUT)}
        return Plain("edge_network", arguments, weights, reads_edges=True)


def mlp(num_in: int, num_out: int) -> nn.Module:
    """Two linear layers with ReLU between them, [n, a] → [n, b]."""
    return nn.Sequential(Linear(num_in, num_out), nn.ReLU(), Linear(num_out, num_out))


class GINEConv(nn.Module):
    """One layer of GINE; PyG's has a bias for edge features, and needs them.

    Shapes: H [N, a], edge_index [2, E], e [E, D] or None → [N, b].
    """

    def __init__(self, num_in: int, num_out: int, num_edge_features: int):
        super().__init__()
        self.mlp = mlp(num_in, num_out)
        self.eps = nn.Parameter(torch.zeros(()))
        self.edge = glorot(num_edge_features, num_in) if num_edge_features else None

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor | None, scale: Tensor | None = None) -> Tensor:
        """Return [N, b]; ``scale`` [E] multiplies messages."""
        source, target = edge_index
        message = h[source] if e is None or self.edge is None else h[source] + e @ self.edge
        message = message.relu() if scale is None else message.relu() * scale.unsqueeze(1)
        return self.mlp(((1 + self.eps) * h).index_add(0, target, message))


class PNAConv(nn.Module):
    """One layer of PNA. PyG's layer would send δ to the server with the weights.

    Args:
        num_in: a.
        num_out: b.
        num_edge_features: D.
        delta: δ, the same at all parties.

    Shapes: H [N, a], edge_index [2, E], e [E, D] or None → [N, b].
    """

    def __init__(self, num_in: int, num_out: int, num_edge_features: int, delta: float):
        super().__init__()
        self.pre, self.post = Linear(2 * num_in, num_in), Linear(13 * num_in, num_out)
        self.edge = glorot(num_edge_features, num_in) if num_edge_features else None
        self.delta = delta

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor | None, degrees: Tensor | None = None) -> Tensor:
        """Return [N, b]; ``degrees`` [N] are those of d_v where not all edges are given."""
        source, target = edge_index
        message = self.pre(torch.cat([h[target], h[source]], dim=1))
        message = message if e is None or self.edge is None else message + e @ self.edge
        degree = target.bincount(minlength=h.size(0)).to(h.dtype).clamp_(min=1).unsqueeze(1)
        mean, squares = (h.new_zeros(h.shape).index_add(0, target, m) / degree for m in (message, message.square()))
        deviation = (squares - mean.square()).clamp(min=1e-5).sqrt()
        deviation = deviation.masked_fill(deviation <= 1e-5**0.5, 0)
        index = target.unsqueeze(1).expand_as(message)
        low, high = (
            h.new_zeros(h.shape).scatter_reduce(0, index, message, extreme, include_self=False)
            for extreme in ("amin", "amax")
        )
        if degrees is not None:
            degree = degrees.clamp(min=1).unsqueeze(1)
        aggregates, scale = torch.cat([mean, low, high, deviation], dim=1), (degree + 1).log() / self.delta
        return self.post(torch.cat([h, aggregates, aggregates * scale, aggregates / scale], dim=1))


class GINE(EdgeNetwork):
    """GINE of ``layers`` convolutions."""

    samples = True
    exported_as = "gine"

    def corrections(self, scale: Tensor, degree: Tensor) -> dict[str, Tensor]:
        """Scale messages, so that their sum is unbiased."""
        return {"scale": scale}

    def convolution(self, num_in: int, num_out: int, num_edge_features: int) -> nn.Module:
        """`GINEConv`."""
        return GINEConv(num_in, num_out, num_edge_features)


class PNA(EdgeNetwork):
    """PNA of ``layers`` convolutions.

    Args:
        delta: δ.
        others: as of `EdgeNetwork`.
    """

    samples = True
    exported_as = "pna"

    def corrections(self, scale: Tensor, degree: Tensor) -> dict[str, Tensor]:
        """Scale by the degrees of the graph; extremes and deviations are those of the drawn messages."""
        return {"degrees": degree}

    def __init__(
        self,
        *sizes: int,
        # δ: mean of ln(in-degree + 1), agreed between the parties, so that parameters mean the same for all
        delta: Annotated[float, Range(0, without_low=True)] = 1.5,
        **common: Any,
    ):
        self.delta, self.exported_options = delta, {"delta": delta}
        super().__init__(*sizes, **common)

    def convolution(self, num_in: int, num_out: int, num_edge_features: int) -> nn.Module:
        """`PNAConv`."""
        return PNAConv(num_in, num_out, num_edge_features, self.delta)


class Attention(EdgeNetwork):
    """PyG's convolutions with attention, with ``heads`` heads of total width ``hidden``.

    Args:
        heads: K.
        others: as of `EdgeNetwork`; ``dropout`` also falls on the attention weights.
    """

    def __init__(
        self,
        *sizes: int,
        heads: int = 8,  # hidden is their total width
        **common: Any,
    ):
        if heads < 1 or common["hidden"] % heads:
            raise FedGraphError(f"model.heads must divide model.hidden ({common['hidden']}), got {heads}")
        self.attention: dict[str, Any] = {"heads": heads, "dropout": common["dropout"]}
        self.exported_options = {"heads": heads}
        super().__init__(*sizes, **common)


class GATv2(Attention):
    """GATv2 of ``layers`` convolutions. Each node also attends to itself.

    That edge starts with features of zero, which ``model.edge_updates`` updates like those of other edges.
    """

    loops = True
    samples = True
    exported_as = "gatv2"

    def convolution(self, num_in: int, num_out: int, num_edge_features: int) -> nn.Module:
        """Return PyG's ``GATv2Conv``."""
        from torch_geometric.nn import GATv2Conv  # takes 1.5 s to import, so only if used

        width = num_out // self.attention["heads"]
        return GATv2Conv(num_in, width, **self.attention, edge_dim=num_edge_features or None, add_self_loops=False)


class GraphTransformer(Attention):
    """The graph transformer of ``layers`` convolutions; a node reads itself with separate weights."""

    samples = True
    exported_as = "transformer"

    def convolution(self, num_in: int, num_out: int, num_edge_features: int) -> nn.Module:
        """Return PyG's ``TransformerConv``."""
        from torch_geometric.nn import TransformerConv

        width = num_out // self.attention["heads"]
        return TransformerConv(num_in, width, **self.attention, edge_dim=num_edge_features or None)
