"""FedGL (Chen et al., Information Sciences 2024, arXiv:2105.03170), server side: pseudo labels and edges from all clients.

    Z̄_v = Σ_i p_i max(Z_iv over the threshold, 0) / Σ_i p_i,   H̄_v = Σ_i p_i H_iv / Σ_i p_i        over clients that have node v
    pseudo label of v:  argmax Z̄_v, if any of it is above the threshold
    pseudo graph:       a node's k largest H̄_u · H̄_v above 0, each by their sum
    θ = Σ_i p_i θ_i                                                                                  FedAvg

Each client receives the labels of its nodes and the entries among them, every ``every`` rounds. Written from memory of the
paper, hence without its numbers of equations, and from OpenFGL's code. That code leaves the pseudo graph out by default, and
uses logits as embeddings; here they are hidden features, as in the paper. No N x N matrix: products are computed in blocks of
rows, of which the k largest entries are kept. Leaves a client: FedAvg's uploads and once, unprotected, the global ids of its
nodes. After each training, also the class probabilities and hidden features of every node, which reveal labels and likely edges
to the server. The method is for parties that share nodes and trust the server. They hold parts of one graph
(partition=overlapping), or graphs with equal ``node_id`` for equal nodes. On a fleet, a node's policy withholds the rows of
nodes with fewer than ``min_nodes`` in-neighbours, itself included. A row of few neighbours is nearly that of the node. A model
of the server's choice reads single neighbours from rows of more hops, so no useful rule shows more. With the default of 5,
sparse graphs show little. On Cora in 5 overlapping parts, 88 % of the rows are zero, and FedGL has 90.2 % instead of 91.9
(FedAvg 90.0; 20 rounds, seed 0).
Cost: N (C + D) numbers up a round, N and up to N k down. The server computes U² D products, for U nodes in all.
"""

from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np

from fedgraph_baselines.methods import fedgl
from fedgraph_baselines.methods.fedgl import IDS, NODES, PSEUDO, THRESHOLD, among, fused, pseudo_graph, pseudo_labels
from fedgraph_baselines.methods.prototypes import WIDTH
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.logs import log
from fedgraph_flwr.strategies.base import GraphStrategy, GroupsFor
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField


class FedGL(GraphStrategy, method=fedgl):
    """FedAvg that fuses clients' predictions for shared nodes; `memory` holds their ids, and each client's pseudo labels."""

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """Warn about nodes' default policy on a fleet."""
        if cfg.engine in SIMULATIONS:
            return ""
        return (
            f"strategy={cfg.strategy.name}: by the default policy, parties send zeros for nodes with fewer than 5 in-neighbours,"
            " which are most nodes of a sparse graph; ask parties that trust the server to set min_nodes in their policies"
        )

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField] | None:
        """Return the fields of predictions, in rounds that request them."""
        if not self.params.due(self.server_round):
            return None
        n = self.ids(client).size if client is not None else range(1, LARGEST)
        z = ArrayField((n, self.agreed("num_classes")), self.cfg.dtype, 0, 1)
        return {"z": z, "h": ArrayField((n, self.agreed(WIDTH)), self.cfg.dtype)}

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse a node that is named twice."""
        if phase == "identify" and (np.diff(reply.groups[IDS]["node"]) <= 0).any():
            raise FedGraphError(f"client {reply.client} replied to phase 'identify' with ids that are not ascending")

    def ids(self, client: int) -> np.ndarray:
        """Return the global ids of a client's nodes."""
        return np.asarray(self.memory[IDS][str(client)])

    def setup(self) -> None:
        """Request the ids of all clients' nodes."""
        if self.params.discovers:
            self.memory[IDS] = {str(reply.client): reply.groups[IDS]["node"] for reply in self.request_all("identify")}
            self._check_ids(list(self.memory[IDS].values()))

    @staticmethod
    def _check_ids(ids: list[np.ndarray]) -> None:
        """Refuse graphs that number their nodes separately: node 0 of one is not node 0 of another.

        Raises:
            RunFailed: every client counts its nodes from 0, and their numbers of nodes differ.
        """
        counted = all(node.size and node[-1] == node.size - 1 for node in ids) and len(ids) > 1
        if counted and len({node.size for node in ids}) > 1:
            raise RunFailed(
                "each client numbers its nodes from 0, so the server cannot match them: give graphs with common ids"
                " (node_id of a PyG Data, or parts of one graph, partition=overlapping)"
            )
        if counted:
            log(WARNING, "all clients have nodes 0 to %d, which the server treats as the same nodes", ids[0].size - 1)

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send each client the pseudo labels and graph of its nodes."""
        return {int(client): {PSEUDO: group} for client, group in self.memory.get(PSEUDO, {}).items()}

    before_evaluate = before_train  # predictions use the pseudo graph

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return θ, and update pseudo labels and graph."""
        if self.params.due(self.server_round):
            self.discover(reduced.replies)
        return super().step(arrays, reduced)

    def discover(self, replies: list[Reply]) -> None:
        """Compute pseudo labels and the pseudo graph for the clients that replied; others keep theirs."""
        ids, weights = [self.ids(reply.client) for reply in replies], self.weights([reply.client for reply in replies])
        z = [np.where((array := r.groups[NODES]["z"]) < THRESHOLD, 0, array) for r in replies]
        nodes, fused_z = fused(ids, z, weights)
        _, h = fused(ids, [reply.groups[NODES]["h"] for reply in replies], weights)
        label, entries = pseudo_labels(fused_z), pseudo_graph(h, self.params.neighbours)
        groups = self.memory.setdefault(PSEUDO, {})
        for reply, array in zip(replies, ids, strict=True):
            groups[str(reply.client)] = {"label": label[np.searchsorted(nodes, array)], **among(nodes, array, entries)}
