"""SIGN: an MLP on features propagated once (Frasca et al., 2020, arXiv:2004.11198, with Â as its only operator).

    H^0 = [X ‖ Â X ‖ … ‖ Â^K X],   H^{l+1} = ReLU(H^l W^l + b^l),   logits = H^{L-1} W^{L-1} + b^{L-1}

Â as of `layers.gcn_adjacency`. The paper's first layer transforms each hop separately and concatenates; W^0 here is Σ_k of one
matrix per hop, which is the more general first layer. H^0 is computed once per graph and cached next to the client's file; it
never leaves the client. So a step reads only the rows of its nodes, and batches need no neighbours.

Shapes: X [N, F], Â [N, N], W^0 [(K + 1) F, H], hidden W^l [H, H], last W [H, C] → logits [N, C].
"""

from dataclasses import replace
from typing import Annotated, Any, Unpack

import torch

from fedgraph_flwr.config import Range
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.layers import gcn_adjacency
from fedgraph_flwr.models.mlp import MLP
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.models.stack import Normed
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device, SparseMatrix


class SIGN(MLP):
    """An MLP of ``layers`` layers on X and K propagated copies of it.

    Args:
        num_features: F.
        num_classes: C.
        hops: K.
        common: keywords of `MLP`.
    """

    stacks = True
    samples = True
    prepares_features = True
    row_wise = property(lambda self: self.powers == 0)

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hops: Annotated[int, Range(0, 32)] = 2,  # K; 0: the features alone
        input_norm: bool = False,
        **common: Unpack[Normed],
    ):
        super().__init__((hops + 1) * num_features, num_classes, input_norm=input_norm, **common)
        self.powers = hops

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """Prepare H^0 [N, (K + 1) F]."""
        adj = SparseMatrix(gcn_adjacency(graph.edge_index, graph.num_nodes), dtype)
        features = [graph.x.to(dtype)]
        for _ in range(self.powers):
            features.append(adj @ features[-1])
        return super().prepare(replace(graph, x=torch.cat(features, dim=1)), device, dtype)

    def with_edges(self, inputs: Any, graph: Graph, device: Device, dtype: torch.dtype) -> Inputs:
        """Prepare H^0 again, which depends on the edges."""
        return self.prepare(graph, device, dtype)

    @property
    def subgraphs(self) -> bool:
        """Never: what a step reads is already propagated over the whole graph."""
        return False

    def plain(self) -> Plain:
        """Refuse: exported code does not propagate features before the first layer."""
        raise FedGraphError(
            "a SIGN cannot be exported: exported models do not propagate features before the first layer yet; use"
            " `fedgraph-flwr predict`"
        )
