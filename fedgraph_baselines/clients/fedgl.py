"""FedGL client (Chen et al., Information Sciences 2024, arXiv:2105.03170): trains on pseudo labels and a pseudo graph.

    L = CE(training nodes, labels) + a CE(other nodes with a pseudo label, pseudo labels)
    propagation: S + b P̂,   P̂ = D^{-1/2} (P + Pᵀ)/2 D^{-1/2},  D its row sums; S the model's matrix, P the pseudo graph

a is ``label_weight``, b ``graph_weight``; with both 0 it is FedAvg. Symmetry of P̂ is ours (the authors' code transposes it).
The server computes pseudo labels and graph in `fedgraph_baselines.strategies.fedgl`. Leaves the client: FedAvg's uploads, and
once the global ids of its nodes. Every ``every`` rounds, also softmax and hidden features of every node by the trained model. On
a fleet, a node with fewer in-neighbours (itself included) than the policy's ``min_nodes`` sends zeros, and no row of the pseudo
graph mixes fewer.
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.clients.embeddings import EmbeddingClient
from fedgraph_baselines.methods import fedgl
from fedgraph_baselines.methods.fedgl import IDS, NODES, PSEUDO
from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.model_inputs import replace_inputs
from fedgraph_flwr.clients.requirements import hidden_features, one_adjacency
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.sparse import SparseMatrix, row_sums
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, check, check_shapes, up_to
from fedgraph_flwr.wire.trees import Tree


class FedGLClient(EmbeddingClient, method=fedgl, requires=(partial(hidden_features, does="shares"),)):
    """FedAvg's client with pseudo labels and a pseudo graph, stored in `memory`."""

    predicts_with: ClassVar[tuple[str, ...]] = ("row", "col", "weight")

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "edges of its graph were found from all clients' predictions"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        one_adjacency(self.cfg, self.inputs)
        self.plain = self.inputs

    @phase
    def identify(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply with global ids, ascending."""
        return {IDS: {"node": np.sort(to_numpy(self.graph.node_id))}}, {}

    @property
    def order(self) -> Tensor:
        """Own nodes by ascending global id, [N]: the order of all arrays about them."""
        return self.graph.node_id.argsort()

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take pseudo labels, and the pseudo graph.

        Raises:
            FedGraphError: they do not match the client's nodes.
        """
        received = groups.get(PSEUDO)
        if received is None:
            return
        n, who = self.graph.num_nodes, f"the server sent {PSEUDO}"
        entry = (up_to(LARGEST),)
        check({"label": received["label"]}, {"label": ArrayField((n,), "int64")}, who)
        check_shapes({key: received[key] for key in ("row", "col")}, {"row": entry, "col": entry}, who, whole=True)
        check_shapes({"weight": received["weight"]}, {"weight": entry}, who)
        sizes = {received[name].size for name in ("row", "col", "weight")}
        ends = np.concatenate([received["row"], received["col"]])
        label, weight = received["label"], received["weight"]
        fits = label.shape == (n,) and len(sizes) == 1 and (not ends.size or 0 <= ends.min() <= ends.max() < n)
        if not (fits and label.max(initial=-1) < self.graph.num_classes and ((weight >= 0) & (weight <= 1)).all()):
            raise FedGraphError(
                f"the server sent {PSEUDO} that does not match the {n} nodes of client {self.graph.client}, its classes, or"
                " weights from 0 to 1"
            )
        self.memory |= {name: torch.from_numpy(array) for name, array in received.items()}
        self.take()

    def take(self) -> None:
        """Propagate over the pseudo graph, too."""
        n, b, order = self.graph.num_nodes, self.params.graph_weight, self.order.numpy()
        row, col = (order[self.memory[name].cpu().numpy()] for name in ("row", "col"))
        inputs = self.plain
        if b and row.size:
            entries = sp.csr_matrix((self.memory["weight"].cpu().numpy(), (row, col)), shape=(n, n))
            entries = self.mixing_enough(entries)
            both = (entries + entries.T) / 2
            degree = row_sums(both)
            scale = sp.diags(np.power(degree, -0.5, out=np.zeros(n), where=degree > 0))
            mixed = self.model.adjacency(self.graph.edge_index, n) + b * (scale @ both @ scale)
            inputs = replace(self.plain, adj=SparseMatrix(mixed, self.dtype).to(self.device), propagated=None)
        replace_inputs(self, inputs)

    def mixing_enough(self, entries: sp.csr_matrix) -> sp.csr_matrix:
        """Remove nodes whose rows mix too few nodes: 1 / Σ w² nodes, for weights w that sum to 1.

        A self-loop chosen by a malicious server would reveal a node's features.
        """
        if not self.policy.min_nodes:
            return entries
        entries = entries.tocsr()
        while True:
            both = ((entries + entries.T) / 2).tocsr()
            total = row_sums(both)
            share = sp.diags(np.divide(1, total, out=np.zeros_like(total), where=total > 0)) @ both
            few = row_sums(share.multiply(share)) * self.policy.min_nodes > 1 + 1e-9
            if not few.any():
                return entries
            keep = sp.diags((~few).astype(entries.dtype))
            entries = (keep @ entries @ keep).tocsr()
            entries.eliminate_zeros()

    def task_loss(self, logits: Tensor) -> Tensor:
        """Compute L."""
        loss = super().task_loss(logits)
        if not self.params.label_weight or "label" not in self.memory:
            return loss
        label = torch.empty_like(self.y)
        label[self.order.to(self.device)] = self.memory["label"].to(self.device)
        label[self.train_nodes] = -1
        if not (label >= 0).any():
            return loss
        return loss + self.params.label_weight * F.cross_entropy(logits, label, ignore_index=-1)

    @torch.no_grad()
    def send(self) -> ReplyContent:
        """Send predictions and hidden features of the client's nodes."""
        if not self.params.due(self.server_round):
            return {}, {}
        h = self.embeddings()
        z, order = self.model.classify(h, self.inputs).softmax(1), self.order.to(self.device)
        if self.policy.min_nodes:
            degree = np.diff(self.model.adjacency(self.graph.edge_index, self.graph.num_nodes).tocsr().indptr)
            few = torch.from_numpy(degree < self.policy.min_nodes).to(self.device)[:, None]
            h, z = h.masked_fill(few, 0), z.masked_fill(few, 0)
        return {NODES: {"z": to_numpy(z[order]), "h": to_numpy(h[order])}}, {}

    def load(self, tree: Tree) -> None:
        """Restore the state, and propagate over the stored pseudo graph."""
        super().load(tree)
        if "row" in tree:
            self.take()
