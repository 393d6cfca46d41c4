"""FedSage-true's client (Aliakbari, Östman & Graell i Amat, 2024, section 7): its graph mended with its true neighbours.

The client's graph grows by every node at the other end of a cut edge, with that node's own features, and by the cut edges.
The new nodes are in no mask and not scored; edges between them stay unknown.
Leaves the client, in the clear: the ids of its external neighbours, and X of its nodes that other clients neighbour. Then as
gradient averaging.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedgrad
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree


class FedSageTrueClient(FedGradClient):
    """Predicts its own nodes on the mended graph.

    Attributes:
        external: global ids of the B neighbours in other clients, ascending.
        external_x: their features, [B, F].
    """

    makes_graphs = True

    uplink = staticmethod(fedgrad.true_features)

    needs_others: ClassVar[str] = "its graph is mended with features of other clients' nodes"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        ends = torch.cat([self.graph.cut_out[1], self.graph.cut_in[1]])
        owners = torch.cat([self.graph.cut_out_owner, self.graph.cut_in_owner])
        self.external = ends.unique()
        self.owner = torch.empty_like(self.external)
        self.owner[torch.searchsorted(self.external, ends)] = owners
        self.external_x = torch.zeros(0, self.graph.num_features)

    @phase
    def wanted(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Ask for the external neighbours: their ids, by owner."""
        owners = self.owner.unique().tolist()
        return {"wanted": {str(k): to_numpy(self.external[self.owner == k].int()) for k in owners}}, {}

    @phase
    def features(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Hand out X of own nodes [b, F], by the client that asked.

        Raises:
            FedGraphError: the policy wants more nodes than one behind what is sent, or a node has no edge to that client.
        """
        if self.policy.min_nodes > 1:
            raise FedGraphError(
                f"client {self.graph.client} is asked for features of single nodes, its node's policy wants at least"
                f" {self.policy.min_nodes} behind what it sends (min_nodes): expected min_nodes: 1 there"
            )
        return {"features": {k: self.features_of(ids, k) for k, ids in groups.get("wanted", {}).items()}}, {}

    def features_of(self, ids: np.ndarray, asked_by: str) -> np.ndarray:
        """X of own nodes, given by global ids."""
        places = torch.searchsorted(self.graph.node_id, torch.from_numpy(ids).long()).clamp(
            max=self.graph.num_nodes - 1
        )
        if not torch.equal(self.graph.node_id[places], torch.from_numpy(ids).long()):
            raise FedGraphError(f"client {asked_by} wants nodes of client {self.graph.client} that are not its own")
        graph, who = self.graph, int(asked_by)
        ends = graph.cut_out[0][graph.cut_out_owner == who], graph.cut_in[0][graph.cut_in_owner == who]
        # In a simulation of parts that share nodes, edges name the owner of a node and others that hold it ask too.
        if not (self.policy.trusting or torch.isin(places, torch.cat(ends)).all()):
            raise FedGraphError(f"client {asked_by} wants nodes of client {graph.client} that have no edge to it")
        return to_numpy(self.graph.x[places])

    @phase
    def mend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the neighbours' features, by owner, and prepare the mended graph.

        Raises:
            FedGraphError: an owner sent none, or of another shape.
        """
        x = torch.zeros(self.external.numel(), self.graph.num_features)
        for owner in self.owner.unique().tolist():
            rows, wanted = groups.get("features", {}).get(str(owner)), self.owner == owner
            if rows is None or rows.shape != x[wanted].shape:
                raise FedGraphError(
                    f"client {self.graph.client} was sent no features of client {owner}'s nodes, or of another shape"
                )
            x[wanted] = torch.from_numpy(rows)
        self.mend_with(x)
        return {}, {}

    def mend_with(self, external_x: Tensor) -> None:
        """The constants of the mended graph: own nodes first, then the B external ones."""
        graph, own = self.graph, self.graph.num_nodes
        outgoing = torch.stack([graph.cut_out[0], own + torch.searchsorted(self.external, graph.cut_out[1])])
        incoming = torch.stack([own + torch.searchsorted(self.external, graph.cut_in[1]), graph.cut_in[0]])
        nothing = torch.zeros(own + external_x.size(0), dtype=torch.bool)
        mended = Graph(
            x=torch.cat([graph.x, external_x]),
            edge_index=torch.cat([graph.edge_index, outgoing, incoming], dim=1),
            y=torch.cat([graph.y, graph.y.new_full((external_x.size(0),), -1)]),
            train_mask=nothing,
            val_mask=nothing,
            test_mask=nothing,
            num_classes=graph.num_classes,
        )
        self.external_x = external_x
        self.inputs = self.model.prepare(mended, self.device, self.dtype)
        self.batch = self.batch._replace(inputs=self.inputs)

    def predict(self) -> Tensor:
        """Logits [N, C] of the own nodes."""
        return super().predict()[: self.graph.num_nodes]

    def save(self) -> Tree:
        """The neighbours' features."""
        return {"external_x": self.external_x}

    def load(self, tree: Tree) -> None:
        """Mend the graph with them again."""
        if tree["external_x"].size(0):
            self.mend_with(tree["external_x"])
