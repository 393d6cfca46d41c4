"""FedSage-true's client (Aliakbari, Östman & Graell i Amat, 2024, section 7): a graph extended by its true external neighbours.

The client adds the node at the other end of each cut edge, with that node's features, and the cut edge. New nodes are in no mask
and are not scored; edges between them stay unknown.
Leaves the client, in the clear: the ids of its external neighbours, and X of its nodes that have neighbours in other clients.
Then what gradient averaging sends.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_baselines.methods.owners import external_nodes
from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.clients.model_inputs import replace_inputs
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedgrad
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check
from fedgraph_flwr.wire.trees import Tree


class FedSageTrueClient(FedGradClient):
    """Predicts its own nodes on the graph with external neighbours.

    Attributes:
        external: global ids of the B neighbours in other clients, ascending.
        external_x: their features, [B, F].
    """

    makes_graphs = True

    uplink = staticmethod(fedgrad.true_features)
    downlink = staticmethod(fedgrad.true_downlink)

    predicts_with: ClassVar[tuple[str, ...]] = ("external_x",)

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "its graph contains features of other clients' nodes"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        ends = torch.cat([self.graph.cut_out[1], self.graph.cut_in[1]])
        owners = torch.cat([self.graph.cut_out_owner, self.graph.cut_in_owner])
        nodes, owner, _ = external_nodes(ends.cpu().numpy(), owners.cpu().numpy())
        self.external, self.owner = torch.from_numpy(nodes), torch.from_numpy(owner)
        self.external_x = torch.zeros(0, self.graph.num_features)

    @phase
    def wanted(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Request the external neighbours: return their ids by owner."""
        owners = self.owner.unique().tolist()
        return {"wanted": {str(k): to_numpy(self.external[self.owner == k].int()) for k in owners}}, {}

    @phase
    def features(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return X of the requested own nodes [b, F], by requesting client.

        Raises:
            FedGraphError: the policy requires more than one node in every statistic, or a node has no edge to that client.
        """
        if self.policy.min_nodes > 1:
            raise FedGraphError(
                f"client {self.graph.client} refuses to send features of single nodes: its node's policy requires at least"
                f" min_nodes={self.policy.min_nodes} nodes in every statistic; set min_nodes: 1 in the policy, or use another"
                " strategy"
            )
        return {"features": {k: self.features_of(ids, k) for k, ids in groups.get("wanted", {}).items()}}, {}

    def features_of(self, ids: np.ndarray, requested_by: str) -> np.ndarray:
        """Return X of own nodes, given by global ids."""
        places = torch.searchsorted(self.graph.node_id, torch.from_numpy(ids).long()).clamp(
            max=self.graph.num_nodes - 1
        )
        if not torch.equal(self.graph.node_id[places], torch.from_numpy(ids).long()):
            what = f"nodes that client {self.graph.client} does not have"
            raise FedGraphError(f"client {requested_by} requested {what}: distribute the client files again")
        graph, who = self.graph, int(requested_by)
        ends = graph.cut_out[0][graph.cut_out_owner == who], graph.cut_in[0][graph.cut_in_owner == who]
        # In a simulation with shared nodes, cut edges name a node's owner only, but other holders request it too.
        if not (self.policy.trusting or torch.isin(places, torch.cat(ends)).all()):
            what = f"nodes of client {graph.client} that have no edge to it"
            raise FedGraphError(f"client {requested_by} requested features of {what}: expected neighbours only")
        return to_numpy(self.graph.x[places])

    @phase
    def mend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Store the neighbours' features, and add these nodes to the graph.

        Raises:
            FedGraphError: features of an owner are missing or have the wrong shape.
        """
        x = torch.zeros(self.external.numel(), self.graph.num_features)
        for owner in self.owner.unique().tolist():
            rows, wanted = groups.get("features", {}).get(str(owner)), self.owner == owner
            if rows is None or rows.shape != x[wanted].shape:
                needs = f"client {self.graph.client} needs features {list(x[wanted].shape)} of nodes of client {owner}"
                raise FedGraphError(f"{needs}, got {'none' if rows is None else list(rows.shape)}")
            check(
                {"x": rows},
                {"x": ArrayField(tuple(rows.shape), "float32")},
                f"the server sent features of client {owner}",
            )
            x[wanted] = torch.from_numpy(rows)
        self.extend(x)
        return {}, {}

    def extend(self, external_x: Tensor) -> None:
        """Prepare inputs of the extended graph: own nodes first, then the B external nodes."""
        graph, count = self.graph, self.graph.num_nodes
        outgoing = torch.stack([graph.cut_out[0], count + torch.searchsorted(self.external, graph.cut_out[1])])
        incoming = torch.stack([count + torch.searchsorted(self.external, graph.cut_in[1]), graph.cut_in[0]])
        extended = Graph(
            x=torch.cat([graph.x, external_x]),
            edge_index=torch.cat([graph.edge_index, outgoing, incoming], dim=1),
            y=torch.cat([graph.y, graph.y.new_full((external_x.size(0),), -1)]),
            **unsplit(count + external_x.size(0)),
            num_classes=graph.num_classes,
        )
        self.external_x = external_x
        replace_inputs(self, self.model.prepare(extended, self.device, self.dtype))

    def predict(self) -> Tensor:
        """Return logits [N, C] of own nodes."""
        return super().predict()[: self.graph.num_nodes]

    def save(self) -> Tree:
        """Return the neighbours' features."""
        return {"external_x": self.external_x}

    def load(self, tree: Tree) -> None:
        """Restore the neighbours and the extended graph."""
        if tree["external_x"].size(0):
            self.extend(tree["external_x"])
