"""FedLIT client (Xie, Xiong & Yang, WWW 2023): clusters links into types and trains a branch for each.

    types        t_e = argmax_r cos([z_u ‖ z_v], c_r)             expectation, z the projection without dropout
    centroids    c_r = mean_{e: t_e = r} [z_u ‖ z_v]       maximisation; ``em_steps`` of both a round, from the server's centres
    training     CE of the network of `fedgraph_flwr.models.fedlit`, types fixed through the round's steps

In its first round a client begins from the embeddings of k of its links, drawn by the run's seed. A type without links keeps
its centroid. The client is scored by the centres that it was sent, with its own links typed by them. Leaves the client: what
FedAvg sends, k centroids [2H] each, and of each type how many training nodes its links touch. A centroid is a mean over links:
that of a single one is the features of two nodes, projected; where a type's links touch fewer nodes than the node's policy asks
for (5 on a fleet), the server gets back the centre that it sent, and 0 in the first round.
Cost: k branches to train and to send, and 2H k numbers; E k products to type E links, never E x 2H.
"""

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedlit
from fedgraph_flwr.methods.fedlit import LINKS, Params, assigned, means
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.fedlit import FedLIT
from fedgraph_flwr.wire.messages import Arrays, check_arrays, derive_seed

CENTROIDS = "centroids"


class FedLITClient(GraphClient):
    """FedAvg's client on typed links; the centroids at hand stand in `memory`.

    Attributes:
        centres: as the server sent them last.
    """

    Params: ClassVar[type] = Params
    uplink = staticmethod(fedlit.uplink)
    predicts_with: ClassVar[tuple[str, ...]] = (CENTROIDS,)
    model: FedLIT
    centres: Tensor | None = None
    behind: Tensor

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """The network must have a branch a type."""
        if not isinstance(model, FedLIT):
            raise FedGraphError(f"strategy={cfg.strategy.name} needs model=fedlit, got {cfg.model.name}")

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Links {u, v}, u ≤ v, once each [2, E]; and the link of each edge of the graph. A loop that is stored is a link."""
        ends = self.graph.edge_index.sort(dim=0).values
        unique, link = ends.unique(dim=1, return_inverse=True)
        return unique.to(self.device), link

    def receive(self, groups: dict[str, Arrays]) -> None:
        """The server's centres, if there are any."""
        self.centres = None
        if told := groups.get(LINKS):
            check_arrays(told, {CENTROIDS: (self.model.types, 2 * self.model.width)}, "the server")
            self.memory[CENTROIDS] = self.centres = torch.from_numpy(told[CENTROIDS]).to(self.device)

    @torch.no_grad()
    def embedded(self) -> Tensor:
        """Z [N, H]."""
        return self.model.projection(self.inputs.x)

    def centroids(self, z: Tensor) -> Tensor:
        """Those at hand, or the first ones, [k, 2H]."""
        if CENTROIDS in self.memory:
            return self.memory[CENTROIDS]
        pairs, k = self.pairs[0], self.model.types
        if not pairs.size(1):
            return z.new_zeros(k, 2 * z.size(1))
        rng = torch.Generator().manual_seed(derive_seed(self.cfg.seed, self.graph.client, LINKS))
        order = torch.randperm(pairs.size(1), generator=rng)
        chosen = pairs[:, order[torch.arange(k) % order.numel()].to(self.device)]
        return torch.cat([z[chosen[0]], z[chosen[1]]], 1)

    def type_links(self, types: Tensor) -> None:
        """Train and predict on links of these types, [E]."""
        edges = self.graph.edge_index
        adj = self.model.typed_adjacency(edges, types.cpu()[self.pairs[1]], self.graph.num_nodes, self.dtype)
        self.inputs = replace(self.inputs, adj=adj.to(self.device))
        self.batch = self.batch._replace(inputs=self.inputs)

    def train(self) -> float:
        """Cluster, then train on the types found."""
        z = self.embedded()
        pairs, centroids = self.pairs[0], self.centroids(z)
        types = assigned(z, pairs, centroids)
        self.behind = torch.zeros(self.model.types, dtype=torch.int64, device=self.device)
        for _ in range(self.params.em_steps):
            self.behind = self.ends(types).sum(2).min(0).values
            centroids = means(z, pairs, types, centroids)
            types = assigned(z, pairs, centroids)
        self.memory[CENTROIDS] = centroids
        self.type_links(types)
        self.types = types
        return super().train()

    def ends(self, types: Tensor) -> Tensor:
        """Which nodes the first and the second ends of each type's links are, bool [2, k, N]."""
        found = torch.zeros(2, self.model.types, self.graph.num_nodes, dtype=torch.bool, device=self.device)
        for touched, end in zip(found, self.pairs[0], strict=True):
            touched[types, end] = True
        return found

    def send(self) -> ReplyContent:
        """Centroids, and how many training nodes each type has.

        A centroid is a mean over first ends beside one over second ends: there must be enough nodes behind both, in the step
        that made it. The first centroids are single links.
        """
        z = self.embedded()
        centroids = self.centroids(z)
        types = self.types if self.num_train else assigned(z, self.pairs[0], centroids)
        touched = self.ends(types).any(0)
        behind = self.behind if self.num_train else torch.zeros_like(touched.sum(1))
        hidden = torch.minimum(touched.sum(1), behind) < self.least
        count = torch.where(hidden, 0, touched[:, self.train_nodes].sum(1))
        known = torch.zeros_like(centroids) if self.centres is None else self.centres
        centroids = torch.where(hidden[:, None], known, centroids)
        return {LINKS: {CENTROIDS: to_numpy(centroids), "count": to_numpy(count)}}, {}

    def predict(self) -> Tensor:
        """Logits [N, C], links typed by the centroids at hand."""
        z = self.embedded()
        self.type_links(assigned(z, self.pairs[0], self.centroids(z)))
        return super().predict()
