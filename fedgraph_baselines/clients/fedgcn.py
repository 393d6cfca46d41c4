"""FedGCN client (Yao et al., NeurIPS 2023, arXiv:2201.12433): a GCN whose first propagation, before training, crosses clients.

    s_v^i = Σ_{u ∈ V_i, u → v} x_u / √d_u                   client i sends it to the owner of v                     phase `sums`
    z_v = (x_v / √d_v + Σ_i s_v^i) / √d_v                   = (Â X)_v, at the owner; i over all clients             phase
    `smooth`
    z_u, d_u of nodes u with edges into client k            their owner sends them to k                             phase `extend`
    H_v = ReLU(z_v W^0 + b^0),   v owned, and with two hops v external with an edge into the client
    logits_v = Σ_u H_u W^1 / √(d_v d_u) + b^1               over the u whose H_u the client has

d counts the edges into a node, from all clients, and its loop. The owner knows it, so degrees need no exchange. With ``hops=2``
a GCN of two layers gives the logits of Central. With ``hops=1`` cut edges are missing from its second layer (with ``hops=2``
from all layers after the second); ``hops=0`` is FedAvg. The equations are Kipf & Welling's, split by the owners of nodes; the
order of exchanges is the paper's, from memory. Where paper and code differ: in the paper the server sums the s_v^i of all
clients, optionally under homomorphic encryption, and forwards totals. Here the owner of v sums them, because no server needs to
know v. The code of fedgraph normalises by the degrees that a client sees, which is not exact at cut edges, or not at all.

Leaves the client, unprotected through the server: s_v^i [F] for each node of another client that its nodes have edges to. With
two hops also z_u [F] and d_u of each of its nodes with an edge to another client. Then FedAvg's uploads. A sum of one node is
that node's features. With ``min_nodes=g`` (or the policy's value, 5 on a fleet, if larger), sums s_v^i over fewer than g nodes
are left out. So are rows z_u computed from fewer than g nodes that the receiver does not own. The difference of two sums over
almost the same nodes can still reveal one node. The ids of its nodes also leave, so that the server can refuse a node of two
clients.

Cost: setup moves 4 F bytes (8 in float64) per pair of a client's boundary node and another client, up and down. With two hops
it does so twice. It sends 4 bytes per node. A round moves the same as FedAvg's. A client stores Â X of its nodes and of its
external neighbours.
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedgraph_baselines.methods import fedgcn
from fedgraph_baselines.methods.fedgcn import (
    DEGREES,
    OWNED,
    ROWS,
    SPANS,
    SUMS,
    Boundary,
    check_spans,
    incoming,
    outgoing,
)
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase
from fedgraph_flwr.clients.model_inputs import replace_inputs
from fedgraph_flwr.clients.replies import by_client
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.gcn import GCN, SmoothInputs
from fedgraph_flwr.models.layers import adjacency
from fedgraph_flwr.numerics.sparse import SparseMatrix, row_sums
from fedgraph_flwr.wire.messages import Arrays, check_arrays
from fedgraph_flwr.wire.reply_schema import check_shapes
from fedgraph_flwr.wire.trees import Tree


class FedGCNClient(GraphClient, method=fedgcn):
    """FedAvg's client on propagated features; `memory` contains z of own and external nodes, and d of the external ones."""

    predicts_with: ClassVar[tuple[str, ...]] = ("z", "degree")

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Without hops it is FedAvg."""
        return "it propagates features of other clients' nodes" if method_params(cls, cfg).hops else ""

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require a first layer that convolves with Â, and one owner for each node."""
        if not (hops := method_params(cls, cfg).hops):
            return
        if not isinstance(model, GCN):
            raise unfit(cfg, f"GCN's first layer for strategy.hops={hops}", f"model={cfg.model.name}", "set model=gcn")
        if cfg.partition.name == "overlapping":
            raise unfit(cfg, "one owner for each node", "partition=overlapping", "set another partition")

    def __init__(self, cfg: RunConfig, graph: Any, *args: Any, **options: Any):
        super().__init__(cfg, graph, *args, **options)
        if self.params.hops and graph.schema and graph.own_columns.get("nodes"):
            raise FedGraphError(
                f"strategy=fedgcn averages the columns of an account with those of all accounts that it trades with, which hides"
                f" the {graph.own_columns['nodes']} columns of own records in this file: on such columns it finds half of what"
                " FedAvg finds, as its GCN does without a federation. Set strategy=fedavg model=sage, or strategy=boosting and"
                " `fedgraph-flwr blend`, or import without features=payments"
            )

    @cached_property
    def outgoing(self) -> Boundary:
        """External nodes at edges from own nodes."""
        return outgoing(self.graph)

    @cached_property
    def incoming(self) -> Boundary:
        """External nodes at edges into own nodes."""
        return incoming(self.graph)

    @cached_property
    def inner(self) -> sp.csr_matrix:
        """Ã of the own nodes, [N, N]."""
        return adjacency(self.graph.edge_index, self.graph.num_nodes, self_loops=True)

    @cached_property
    def degree(self) -> np.ndarray:
        """D of the own nodes over the whole graph, [N]."""
        return row_sums(self.inner) + row_sums(self.incoming.edges.T)

    @property
    def scaled(self) -> np.ndarray:
        """x_u / √d_u of the own nodes, [N, F]."""
        return self.graph.x.numpy().astype(np.float64) / np.sqrt(self.degree)[:, None]

    @phase
    def sums(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply with s_v^i of external nodes, by owner, zeros for sums over too few nodes; and with the ids of own nodes."""
        x = self.scaled
        sent = {}
        for peer in self.outgoing.peers:
            edges = self.outgoing.of_peer(peer)
            enough = np.diff(edges.tocsr().indptr) >= self.least
            sent[str(peer)] = self.packed((edges @ x) * enough[:, None])
        return {SUMS: sent, OWNED: {"ids": self.graph.node_id.numpy().astype(np.int32)}}, {}

    @phase
    def smooth(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the sums; with two hops, reply with z and d of own nodes at cut edges, by receiver.

        ``behind`` counts the nodes in each z; a sum that was left out is zero and adds none.
        """
        if spans := groups.get(SPANS):
            check_arrays(spans, dict.fromkeys(spans, (2,)), "the server")
            for boundary in (self.incoming, self.outgoing):
                check_spans(boundary, spans, self.graph.client)
        total, behind = self.inner @ self.scaled, self.inner.getnnz(axis=1)
        places = {peer: self.incoming.own(peer) for peer in self.incoming.peers}
        of_peer = {peer: np.zeros(self.graph.num_nodes, np.int64) for peer in self.outgoing.peers}
        for peer, rows in self.from_peers(groups, SUMS, places).items():
            total[places[peer]] += rows
            sources = np.zeros(self.graph.num_nodes, np.int64)
            sources[places[peer]] = self.incoming.of_peer(peer).getnnz(axis=0)[places[peer]] * rows.any(axis=1)
            behind, of_peer[peer] = behind + sources, sources
        z = total / np.sqrt(self.degree)[:, None]
        self.take(z, np.zeros(0))
        if self.params.hops < 2:
            return {}, {}
        sent: dict[str, Arrays] = {ROWS: {}, DEGREES: {}}
        for peer in self.outgoing.peers:
            nodes = self.outgoing.own(peer)
            # The server relays the peers' rows and could invent them, so enough of this client's own nodes must be behind z.
            enough = ((behind - of_peer[peer]) >= self.least) & (self.inner.getnnz(axis=1) >= self.policy.min_nodes)
            enough = enough[nodes]
            sent[ROWS][str(peer)] = self.packed(z[nodes] * enough[:, None])
            sent[DEGREES][str(peer)] = (self.degree[nodes] * enough).astype(np.int64)
        return sent, {}

    @phase
    def extend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take z and d of external neighbours; a neighbour that its owner left out has d = 0."""
        external = {k: np.flatnonzero(self.incoming.owner == k) for k in self.incoming.peers}
        z = np.zeros((self.incoming.nodes.size, self.graph.num_features))
        degree = np.zeros(self.incoming.nodes.size)
        for peer, rows in self.from_peers(groups, ROWS, external).items():
            z[external[peer]] = rows
        for peer, degrees in self.from_peers(groups, DEGREES, external).items():
            degree[external[peer]] = degrees
        if "z" not in self.memory:
            raise FedGraphError("the server requested phase 'extend' before phase 'smooth': repeat the run")
        own_z = self.memory["z"][: self.graph.num_nodes].cpu().numpy()
        self.take(np.concatenate([own_z, z]), degree)
        return {}, {}

    def from_peers(self, groups: dict[str, Arrays], group: str, places: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Return each client's rows, one for each of the given places.

        Raises:
            FedGraphError: a client sent nothing, an unexpected array, or another number of rows.
        """
        sent: dict[int, np.ndarray] = by_client(groups.get(group, {}), f"of group '{group}'")
        for peer in sorted(sent.keys() | places.keys()):
            count, expected = (len(np.atleast_1d(of.get(peer, ()))) for of in (sent, places))
            if count != expected:
                sent_ = f"client {peer} sent client {self.graph.client} {count} rows of {group}, expected {expected}"
                raise FedGraphError(f"{sent_}: their graphs differ in the edges between them; link all parties again")
        for peer, rows in sent.items():
            axes = () if group == DEGREES else (self.graph.num_features,)
            shape = len(np.atleast_1d(rows)), *axes
            check_shapes({group: rows}, {group: shape}, f"the server sent rows of client {peer}", whole=not axes)
        return sent

    def packed(self, rows: np.ndarray) -> np.ndarray:
        """Convert to the precision of the run."""
        return rows.astype(self.cfg.dtype)

    def take(self, z: np.ndarray, degree: np.ndarray) -> None:
        """Store z [N + B, F] and prepare inputs from it; B external nodes have degrees ``degree`` [B], initially none."""
        self.memory = {"z": torch.from_numpy(self.packed(z)), "degree": torch.from_numpy(degree)}
        blocks = [[self.inner]]
        if external := degree.size:
            into, out = self.incoming, self.outgoing
            both, row, place = np.intersect1d(into.nodes, out.nodes, return_indices=True)
            chosen = sp.csr_matrix((np.ones(both.size), (row, place)), shape=(external, out.nodes.size))
            blocks = [[self.inner, into.edges.T], [chosen @ out.edges, sp.identity(external)]]
        d = np.concatenate([self.degree, degree])
        scale = sp.diags(np.divide(1, np.sqrt(d), out=np.zeros(d.size), where=d > 0))
        adj = SparseMatrix(scale @ sp.bmat(blocks, format="csr") @ scale, self.dtype)
        replace_inputs(self, SmoothInputs(self.model.features(self.memory["z"], self.dtype), adj).to(self.device))

    def logits(self, inputs: Any) -> Tensor:
        """Compute logits of own nodes, [N, C]."""
        return super().logits(inputs)[: self.graph.num_nodes]

    def load(self, tree: Tree) -> None:
        """Restore the state, and prepare inputs from it."""
        if "z" in tree:
            self.take(tree["z"].numpy(), tree["degree"].numpy())
