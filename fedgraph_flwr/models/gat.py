"""Graph attention network (Veličković et al., ICLR 2018, arXiv:1710.10903), on PyG's ``GATConv``.

    e_vu = LeakyReLU(a_targetᵀ W h_v + a_sourceᵀ W h_u),   α_v· = softmax of e_v· over N_v and v itself         Eq. (3)
    h'_v = ELU(‖_k Σ_u α^k_vu W^k h_u + b)    K heads side by side; one head and no ELU at the end           Eq. (5)

Shapes: X [N, F], W^k [F, H/K], so that hidden layers have width H → logits [N, C].
"""

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.layers import no_adjacency, proper_edges
from fedgraph_flwr.models.plain import PlainLayer
from fedgraph_flwr.models.stack import Common, Stack
from fedgraph_flwr.numerics.blocks import NO_MATRIX, NOT_READ, EdgeNeighbours, without_loops
from fedgraph_flwr.numerics.draws import Entries
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device


@dataclass
class EdgeInputs(Inputs):
    """`Inputs` with the edges as a list, ``edge_index`` [2, E], each node with exactly one loop."""

    edge_index: Tensor


@dataclass
class EdgeBatch(EdgeInputs):
    """What a layer reads of a sampled batch: drawn edges, and one loop for each of the ``targets`` first nodes."""

    targets: int


class GATNeighbours(EdgeNeighbours):
    """Neighbours of nodes other than themselves; attention weights sum to 1 over the drawn ones, which is not unbiased."""

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int, back: Entries | None = None) -> EdgeBatch:
        """Return the drawn edges and loops."""
        edges = self.edges(hop, loops=True)
        return EdgeBatch(NOT_READ, NO_MATRIX, edges, targets=len(hop.degree))


class GAT(Stack):
    """GAT of ``layers`` layers with ELU and dropout between them; attention weights have dropout too.

    Args:
        num_features: F.
        num_classes: C.
        heads: K of the hidden layers.
        common: H over all heads together, L, and the dropout of hidden features and of attention.
    """

    adjacency = staticmethod(no_adjacency)
    dense_features = True
    samples = True

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        heads: int = 8,  # attention heads of the hidden layers; hidden is their total width
        **common: Unpack[Common],
    ):
        from torch_geometric.nn import GATConv  # takes 1.5 s to import, so only if used

        if heads < 1 or common["hidden"] % heads:
            raise FedGraphError(f"model.heads must divide model.hidden ({common['hidden']}), got {heads}")
        shape = {"dropout": common["dropout"], "add_self_loops": False}
        super().__init__(
            num_features,
            num_classes,
            lambda num_in, num_out: GATConv(num_in, num_out // heads, heads, **shape),
            lambda num_in, num_out: GATConv(num_in, num_out, **shape),
            **common,
        )

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> EdgeInputs:
        """Prepare features, and edges with one loop per node."""
        base = super().prepare(graph, device, dtype)
        loops = torch.arange(graph.num_nodes).expand(2, -1)
        return EdgeInputs(base.x, base.adj, torch.cat([proper_edges(graph.edge_index), loops], dim=1).to(device))

    def neighbours(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> GATNeighbours:
        """Return the proper edges."""
        indptr, indices, _ = without_loops(*graph.in_neighbours())
        return GATNeighbours(indptr, indices, torch.device(device))

    def plain_layer(self, layer: Any) -> PlainLayer:
        """Return PyG's GATConv."""
        sizes = {"in_channels": layer.in_channels, "out_channels": layer.out_channels, "heads": layer.heads}
        return "gat", sizes, layer.state_dict()

    def plain_activation(self, index: int) -> str:
        """Name ELU."""
        return "elu"

    def convolve(self, layer: Any, h: Any, inputs: EdgeInputs) -> Tensor:
        """Apply attention over each node's edges."""
        states: Tensor = layer(h, inputs.edge_index)
        return states[: inputs.targets] if isinstance(inputs, EdgeBatch) else states

    def activate(self, h: Tensor, index: int) -> Tensor:
        """Apply ELU."""
        return functional.elu(h)
