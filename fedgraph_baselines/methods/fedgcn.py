"""FedGCN: its keys, names on the wire, and a client's cut edges as both of their ends see them.

Edges i → k join nodes of client i with nodes of client k. Arrays from i to k follow the order of k's nodes (sums) or of i's nodes
(rows) at these edges, ascending by global id. Both clients know this order, so no id travels between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from fedgraph_baselines.methods.owners import external_nodes
from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Individual, Once, Relay, Uplink, model_only

SUMS, ROWS, DEGREES = "sums", "rows", "degrees"
"""Groups, up by receiver and down by sender: partial sums [b, F]; rows of Â X [b, F] and degrees [b] of those nodes."""

OWNED = "owned"
"""Group, up: global ids of the client's nodes, by which the server finds nodes that two clients have."""

SPANS = "spans"
"""Group, down: first and last global id of each client, by client, if the ids of each are consecutive as in linked files."""


@dataclass
class Params:
    """Keys of FedGCN."""

    hops: int = number(2, high=2)  # 0 (FedAvg) | 1 | 2, which gives a GCN of two layers the logits of Central
    # (ours) sums over fewer nodes are left out. 1 is exact, but a sum over one node is its features; on a fleet the
    # node's policy requires more
    min_nodes: int = number(1, low=1)


@dataclass(frozen=True)
class Boundary:
    """Nodes of other clients at cut edges of one direction, and those edges.

    Attributes:
        nodes: their global ids, ascending [B].
        owner: their clients [B].
        edges: number of edges between each of them and each own node, CSR [B, N].
    """

    nodes: np.ndarray
    owner: np.ndarray
    edges: sp.csr_matrix

    @classmethod
    def of(cls, cut: Tensor, owner: Tensor, num_nodes: int) -> "Boundary":
        """Build from ``cut_out`` or ``cut_in`` of a graph [2, E], and the owner of each edge's other end [E]."""
        column, other = cut.cpu().numpy()
        nodes, owners, row = external_nodes(other, owner.cpu().numpy())
        edges = sp.csr_matrix((np.ones(row.size), (row, column)), shape=(nodes.size, num_nodes))
        return cls(nodes, owners, edges)

    @property
    def peers(self) -> list[int]:
        """The clients that own these nodes."""
        return np.unique(self.owner).tolist()

    def of_peer(self, peer: int) -> sp.csr_matrix:
        """Return the edges with nodes of one client, [b, N]."""
        return self.edges[self.owner == peer]

    def own(self, peer: int) -> np.ndarray:
        """Return own nodes at edges with nodes of one client, ascending [b]."""
        return np.unique(self.of_peer(peer).indices)


def outgoing(graph: ClientGraph) -> Boundary:
    """Return the targets of cut edges from this client's nodes."""
    return Boundary.of(graph.cut_out, graph.cut_out_owner, graph.num_nodes)


def incoming(graph: ClientGraph) -> Boundary:
    """Return the sources of cut edges to this client's nodes."""
    return Boundary.of(graph.cut_in, graph.cut_in_owner, graph.num_nodes)


def spans_of(nodes: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the first and last id of each client's nodes; nothing if those of one are not consecutive."""
    spans = {str(client): np.array([ids.min(), ids.max()]) for client, ids in nodes.items()}
    whole = all(np.ptp(spans[str(client)]) + 1 == ids.size for client, ids in nodes.items())
    return spans if whole else {}


def check_spans(boundary: Boundary, spans: Mapping[str, np.ndarray], client: int) -> None:
    """Check that a client's file names the right owners of external nodes.

    Raises:
        FedGraphError: an owner did not announce a node. Its rows would count as those of another node.
    """
    for peer in boundary.peers:
        nodes, (first, last) = boundary.nodes[boundary.owner == peer], spans.get(str(peer), (0, -1))
        wrong = nodes[(nodes < first) | (nodes > last)]
        if wrong.size:
            raise FedGraphError(
                f"the file of client {client} says that node {wrong[0]} belongs to client {peer}, which announced nodes {first}"
                f" to {last}: link all parties again"
            )


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model; once, sums over neighbours for the clients that own or neighbour them."""
    if not params.hops:
        return model_only(cfg, params)
    ids = "the server refuses a node that two clients have"
    why = "the server forwards them to the clients at the other end of cut edges"
    smooth = {ROWS: Relay(why=why), DEGREES: Relay(why=why)} if params.hops == 2 else {}
    extend = {"extend": Once()} if params.hops == 2 else {}
    return {
        **model_only(cfg, params),
        "sums": Once({SUMS: Relay(why=why), OWNED: Individual(why=ids)}),
        "smooth": Once(smooth),
        **extend,
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare what the other ends of cut edges computed, once."""
    if not params.hops:
        return {}
    sums = Input("sums over neighbours at other clients, by client")
    spans = Input("smallest and largest id of each client's nodes, by client")
    rows = Input("rows of neighbours at other clients, by client")
    return {
        "smooth": {SUMS: sums, SPANS: spans},
        "extend": {ROWS: rows, DEGREES: Input("degrees of these neighbours, by client")},
    }
