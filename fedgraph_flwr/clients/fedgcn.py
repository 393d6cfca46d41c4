"""FedGCN client (Yao et al., NeurIPS 2023, arXiv:2201.12433): a GCN whose first propagation crosses clients, before training.

    s_v^i = Σ_{u ∈ V_i, u → v} x_u / √d_u                   client i sends it to the owner of v                     phase `sums`
    z_v = (x_v / √d_v + Σ_i s_v^i) / √d_v                   = (Â X)_v, at the owner; i over all clients             phase `smooth`
    z_u, d_u of nodes u with edges into client k            their owner sends them to k                             phase `extend`
    H_v = ReLU(z_v W^0 + b^0),   v owned, and with two hops v external with an edge into the client
    logits_v = Σ_u H_u W^1 / √(d_v d_u) + b^1               over the u whose H_u the client has

d counts the edges that arrive at a node, in whatever client they begin, and its loop: its owner knows it, so no degree is
gathered. With ``hops=2`` a GCN of two layers gives the logits of Central; with ``hops=1`` cut edges are missing from its second
layer (from all layers after the second, with ``hops=2``); ``hops=0`` is FedAvg. The equations are Kipf & Welling's, split by
who owns what, the order of the exchanges the paper's, from memory. Where the paper and programs differ: in the paper the server
adds up the s_v^i of all clients, if need be under homomorphic encryption, and hands on totals; here the owner of v adds them
up, as no server needs to know v. fedgraph's program normalises by the degrees that a client sees, which is not exact at cut
edges, or not at all. Leaves the client, by way of the server and in the clear: s_v^i [F] for each node of another client that
its nodes have edges to; with two hops z_u [F] and d_u of each of its nodes with an edge to another client; then what FedAvg
sends. A sum of one node is that node's
features: ``min_nodes=g`` (or that of the node's policy, 5 on a fleet, where it is more) leaves out a sum s_v^i over fewer than
g nodes, and a row z_u where fewer than g nodes that are not the receiver's stand behind it. The difference of two sums over
almost the same nodes can still tell of one.
Cost: setup moves 4 F bytes (8 in float64) a pair of a client's boundary node and another client, up and down, with two hops
twice; a round moves nothing beyond FedAvg's. A client keeps Â X of its nodes and of its external neighbours.
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedgcn
from fedgraph_flwr.methods.fedgcn import DEGREES, ROWS, SUMS, Boundary, Params, incoming, outgoing
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.gcn import GCN, SmoothInputs
from fedgraph_flwr.models.layers import adjacency
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree


class FedGCNClient(GraphClient):
    """FedAvg's client on propagated features; `memory` holds z of its nodes, then of the external ones, and d of the latter."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(fedgcn.uplink)
    needs_others: ClassVar[str] = "it propagates features of other clients' nodes"

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """The first layer must be a graph convolution of Â, and each node one client's."""
        if not (hops := method_params(cls, cfg).hops):
            return
        if not isinstance(model, GCN):
            raise FedGraphError(
                f"strategy={cfg.strategy.name} with strategy.hops={hops} computes GCN's first layer, got model={cfg.model.name}:"
                " take model=gcn"
            )
        if cfg.partition.name == "overlapping":
            raise FedGraphError(
                f"strategy={cfg.strategy.name} needs one owner for each node, got partition=overlapping"
            )

    @cached_property
    def outgoing(self) -> Boundary:
        """External nodes that own ones have edges to."""
        return outgoing(self.graph)

    @cached_property
    def incoming(self) -> Boundary:
        """External nodes that have edges to own ones."""
        return incoming(self.graph)

    @cached_property
    def inner(self) -> sp.csr_matrix:
        """Ã of the own nodes, [N, N]."""
        return adjacency(self.graph.edge_index, self.graph.num_nodes, self_loops=True)

    @cached_property
    def degree(self) -> np.ndarray:
        """D of the own nodes over the whole graph, [N]."""
        return np.asarray(self.inner.sum(axis=1)).ravel() + np.asarray(self.incoming.edges.sum(axis=0)).ravel()

    @property
    def scaled(self) -> np.ndarray:
        """x_u / √d_u of the own nodes, [N, F]."""
        return self.graph.x.numpy().astype(np.float64) / np.sqrt(self.degree)[:, None]

    @phase
    def sums(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """s_v^i of external nodes, by their owner; zeros for those of too few nodes."""
        x = self.scaled
        told = {}
        for peer in self.outgoing.peers:
            edges = self.outgoing.of_peer(peer)
            enough = np.diff(edges.tocsr().indptr) >= self.least
            told[str(peer)] = self.packed((edges @ x) * enough[:, None])
        return {SUMS: told}, {}

    @phase
    def smooth(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the sums in; with two hops, answer with z and d of the own nodes at cut edges, by who needs them.

        ``behind`` counts the nodes in each z; of a client whose sum is left out, and so zero, there are none.
        """
        total, behind = self.inner @ self.scaled, self.inner.getnnz(axis=1)
        places = {peer: self.incoming.own(peer) for peer in self.incoming.peers}
        theirs = {peer: np.zeros(self.graph.num_nodes, np.int64) for peer in self.outgoing.peers}
        for peer, rows in self.from_peers(groups, SUMS, places).items():
            total[places[peer]] += rows
            sources = np.zeros(self.graph.num_nodes, np.int64)
            sources[places[peer]] = self.incoming.of_peer(peer).getnnz(axis=0)[places[peer]] * rows.any(axis=1)
            behind, theirs[peer] = behind + sources, sources
        z = total / np.sqrt(self.degree)[:, None]
        self.take(z, np.zeros(0))
        if self.params.hops < 2:
            return {}, {}
        sent: dict[str, Arrays] = {ROWS: {}, DEGREES: {}}
        for peer in self.outgoing.peers:
            own = self.outgoing.own(peer)
            told = (behind - theirs[peer])[own] >= self.least
            sent[ROWS][str(peer)] = self.packed(z[own] * told[:, None])
            sent[DEGREES][str(peer)] = (self.degree[own] * told).astype(np.int64)
        return sent, {}

    @phase
    def extend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take in z and d of the external neighbours; one that its owner does not tell of has d = 0."""
        external = {k: np.flatnonzero(self.incoming.owner == k) for k in self.incoming.peers}
        z = np.zeros((self.incoming.nodes.size, self.graph.num_features))
        degree = np.zeros(self.incoming.nodes.size)
        for peer, rows in self.from_peers(groups, ROWS, external).items():
            z[external[peer]] = rows
        for peer, told in self.from_peers(groups, DEGREES, external).items():
            degree[external[peer]] = told
        own = self.memory["z"][: self.graph.num_nodes].cpu().numpy()
        self.take(np.concatenate([own, z]), degree)
        return {}, {}

    def from_peers(self, groups: dict[str, Arrays], group: str, places: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """What each client sent, a row for each of these places.

        Raises:
            FedGraphError: a client sent nothing or has sent what is not expected, or another number of rows.
        """
        sent: dict[int, np.ndarray] = {int(k): rows for k, rows in groups.get(group, {}).items()}
        for peer in sorted(sent.keys() | places.keys()):
            found, wanted = (len(of.get(peer, ())) for of in (sent, places))
            if found != wanted:
                raise FedGraphError(
                    f"client {peer} sent client {self.graph.client} {found} rows of {group}, expected {wanted}: "
                    "their graphs differ in the edges between them"
                )
        return sent

    def packed(self, rows: np.ndarray) -> np.ndarray:
        """In the precision of the run."""
        return rows.astype(self.cfg.dtype)

    def take(self, z: np.ndarray, degree: np.ndarray) -> None:
        """Propagate z [N + B, F] and go on; B external nodes have degrees ``degree`` [B], of which there may be none yet."""
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
        self.inputs = SmoothInputs(self.model.features(self.memory["z"], self.dtype), adj).to(self.device)
        self.batch = self.batch._replace(inputs=self.inputs)

    def logits(self, inputs: Any) -> Tensor:
        """Of the own nodes, [N, C]."""
        return super().logits(inputs)[: self.graph.num_nodes]

    def load(self, tree: Tree) -> None:
        """Propagate as before."""
        if "z" in tree:
            self.take(tree["z"].numpy(), tree["degree"].numpy())
