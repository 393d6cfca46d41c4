"""FedProto client (Tan et al., AAAI 2022, arXiv:2105.00243).

    L_i = L_S + λ L_R                                                                                  Eq. (7)
    L_R = Σ_j ‖C_i^j − C̄^j‖₂, over the client's classes                    ``distance=prototypes``     Eq. (8)
    L_R = mean over training nodes v and channels of (f_i(v) − C̄^{y_v})²    ``distance=nodes``           the authors' code
    ŷ_v = argmin_j ‖f_i(v) − C̄^j‖₂                                                                    Eq. (4)

f_i are hidden features, the input of the head (`Model.encode`). C̄ is constant through a round's steps; a class without a
prototype adds nothing. A client keeps its own model and is scored with it. The global scores are those of Eq. (4), or of the
client's model until the first prototypes arrive. λ = 0 is Local.
Leaves the client: for each class the mean embedding of its training nodes, in the trained model without dropout, and their
number. The prototype of a class with one training node is that node's embedding; ``min_nodes`` leaves out classes with fewer
nodes. No part of the model leaves the client.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.clients.embeddings import EmbeddingClient
from fedgraph_baselines.methods import prototypes
from fedgraph_baselines.methods.prototypes import PROTOTYPES, class_means, distances
from fedgraph_flwr.clients.base import ReplyContent, to_numpy
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check


def no_hidden(cfg: RunConfig) -> FedGraphError:
    """Return the error of a model without hidden features, whose means are what a client shares."""
    got = f"model={cfg.model.name} with model.layers={cfg.model.layers}"
    return unfit(cfg, "hidden features", got, "set model.layers to at least 2")


class FedProtoClient(EmbeddingClient, method=prototypes):
    """Local's client, trained towards the global prototypes.

    Attributes:
        prototypes: C̄ [C, D] as last received; None: none yet.
        known: which classes have one, [C].
    """

    prototypes: Tensor | None = None
    known: Tensor

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require hidden features."""
        if cfg.model.layers < 2:
            raise no_hidden(cfg)

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the global prototypes, if there are any."""
        self.prototypes = None
        if received := groups.get(PROTOTYPES):
            classes = self.graph.num_classes
            mean = ArrayField((classes, self.width), self.cfg.dtype)
            check(received, {"mean": mean, "known": ArrayField((classes,), "bool")}, "the server sent prototypes")
            self.prototypes = torch.from_numpy(received["mean"]).to(self.device)
            self.known = torch.from_numpy(received["known"].astype(bool)).to(self.device)

    def loss(self) -> Tensor:
        """Compute Eq. (7)."""
        if not self.params.lam or self.prototypes is None:
            return super().loss()
        inputs, nodes = self.batch.inputs, self.batch.nodes
        h = self.model.encode(inputs)
        loss = self.task_loss(self.model.classify(h, inputs))
        return loss + self.params.lam * self.pull(h if nodes is None else h[nodes], self.prototypes)

    def pull(self, h: Tensor, goal: Tensor) -> Tensor:
        """Compute L_R of the batch's embeddings [V, D] towards prototypes [C, D]."""
        y = self.batch.y
        if self.params.distance == "nodes":
            return F.mse_loss(h, torch.where(self.known[y, None], goal[y], h.detach()))
        means, count = class_means(h, y, len(self.known))
        return torch.linalg.vector_norm((means - goal)[self.known & (count > 0)], dim=1).sum()

    def send(self) -> ReplyContent:
        """Send per class the sum of its nodes' embeddings, in float64, and their number."""
        mean, count = self.own_prototypes()
        return {PROTOTYPES: {"sum": mean.astype(np.float64) * count[:, None], "count": count.astype(np.float64)}}, {}

    def own_prototypes(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute the client's prototypes [C, D], and their numbers of nodes [C]; 0 for a class with too few nodes."""
        mean, count = class_means(self.embeddings()[self.train_nodes], self.y[self.train_nodes], self.graph.num_classes)
        count = torch.where(count < self.least, 0, count)
        mean = torch.where(count[:, None] > 0, mean, 0)
        return to_numpy(mean), to_numpy(count)

    def predict_shared(self) -> Tensor:
        """Return negative distances [N, C] to the prototypes; a class without one is farthest."""
        if self.prototypes is None:
            return super().predict_shared()
        distance = distances(self.embeddings(), self.prototypes)
        return -distance.masked_fill(~self.known, 2 * float(distance.max()) + 1)

    def embeddings(self) -> Tensor:
        """Compute f_i of every node without dropout, [N, D].

        Raises:
            FedGraphError: the model has no hidden features, so that means of X itself would be sent.
        """
        h = super().embeddings()
        if h is getattr(self.inputs, "x", None):
            raise no_hidden(self.cfg)
        return h
