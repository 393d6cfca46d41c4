"""FedLIT client (Xie, Xiong & Yang, WWW 2023): clusters links into types and trains a branch for each.

    types        t_e = argmax_r cos([z_u ‖ z_v], c_r)             expectation, z the projection without dropout
    centroids    c_r = mean_{e: t_e = r} [z_u ‖ z_v]       maximisation; one step of both per round, from the server's centres
    training     CE of the model in `fedgraph_flwr.models.fedlit`, with types fixed during the round's steps

In its first round a client starts from the embeddings of k of its links, drawn by its own seed. A type without links keeps its
centroid. For scoring, the client types its links by the centres that it received.
Leaves the client: what FedAvg sends, k centroids [2H] each, and the number of training nodes that the links of each type touch.
A centroid of one link would reveal the projected features of two nodes. If a type's links touch fewer nodes than the policy
requires (5 on a fleet), the client returns the received centre, or 0 in the first round.
Cost: k branches to train and send, and 2H k numbers; E k products to type E links, without a matrix E x 2H.
"""

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph_baselines.methods import fedlit
from fedgraph_baselines.methods.fedlit import LINKS, assigned, link_counts, means
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.clients.model_inputs import replace_inputs
from fedgraph_flwr.clients.requirements import network
from fedgraph_flwr.models.fedlit import FedLIT
from fedgraph_flwr.numerics.streams import own_stream
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check

CENTROIDS = "centroids"


class FedLITClient(GraphClient, method=fedlit, requires=(network(FedLIT, "fedlit"),)):
    """FedAvg's client on typed links; `memory` contains the current centroids.

    Attributes:
        centres: centres that the server sent last.
    """

    calls_base: ClassVar[frozenset[str]] = frozenset({"train"})
    predicts_with: ClassVar[tuple[str, ...]] = (CENTROIDS,)
    model: FedLIT
    centres: Tensor | None = None
    behind: Tensor

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Links {u, v}, u ≤ v, once each [2, E], and the link of each edge of the graph; a stored loop is a link."""
        ends = self.graph.edge_index.sort(dim=0).values
        unique, link = ends.unique(dim=1, return_inverse=True)
        return unique.to(self.device), link

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Store the server's centres, if it sent any."""
        self.centres = None
        if arrays := groups.get(LINKS):
            field = ArrayField((self.model.types, 2 * self.model.width), self.cfg.dtype)
            check(arrays, {CENTROIDS: field}, "the server sent centroids")
            self.memory[CENTROIDS] = self.centres = torch.from_numpy(arrays[CENTROIDS]).to(self.device)

    @torch.no_grad()
    def embedded(self) -> Tensor:
        """Return the projection z [N, H]."""
        return self.model.projection(self.inputs.x)

    def centroids(self, z: Tensor) -> Tensor:
        """Return the current centroids, or the initial ones, [k, 2H]."""
        if CENTROIDS in self.memory:
            return self.memory[CENTROIDS]
        pairs, k = self.pairs[0], self.model.types
        if not pairs.size(1):
            return z.new_zeros(k, 2 * z.size(1))
        rng = own_stream(self.cfg.own_seed, self.graph.client, LINKS)
        order = torch.randperm(pairs.size(1), generator=rng)
        chosen = pairs[:, order[torch.arange(k) % order.numel()].to(self.device)]
        return torch.cat([z[chosen[0]], z[chosen[1]]], 1)

    def type_links(self, types: Tensor) -> None:
        """Set the links that each branch reads, for training and prediction; types [E] of the clusters."""
        edges, k = self.graph.edge_index, self.model.types
        if self.params.links == "random":
            rng = own_stream(self.cfg.own_seed, self.graph.client, "types")
            types = torch.randint(k, types.shape, generator=rng)
        of_edges = types.cpu()[self.pairs[1]]
        if self.params.links == "all":
            of_edges = torch.arange(k).repeat_interleave(edges.size(1))
            edges = edges.repeat(1, k)
        adj = self.model.typed_adjacency(edges, of_edges, self.graph.num_nodes, self.dtype)
        replace_inputs(self, replace(self.inputs, adj=adj.to(self.device)))

    def train(self) -> float:
        """Cluster the links, then train on the types found."""
        z = self.embedded()
        pairs, centroids = self.pairs[0], self.centroids(z)
        types = assigned(z, pairs, centroids)
        self.behind = self.nodes_behind(types)
        centroids = means(z, pairs, types, centroids)
        types = assigned(z, pairs, centroids)
        self.memory[CENTROIDS] = centroids
        self.type_links(types)
        self.types = types
        return super().train()

    def links(self, types: Tensor) -> Tensor:
        """Return how many links of each type have each node as their first and as their second end, [2, k, N]."""
        return link_counts(types, self.pairs[0], self.model.types, self.graph.num_nodes)

    def nodes_behind(self, types: Tensor) -> Tensor:
        """Return how many nodes each type's means cover, [k]: 1 / Σ w², so that a hub with most of the links counts as one."""
        links = self.links(types).double()
        total, squares = links.sum(2), links.square().sum(2)
        return torch.where(squares > 0, (total**2 / squares + 1e-9), 0).long().min(0).values

    def send(self) -> ReplyContent:
        """Return centroids and the number of training nodes per type.

        A centroid joins a mean over first ends and a mean over second ends. Both must cover enough nodes, in the step that
        computed them. The first centroids are single links.
        """
        z = self.embedded()
        centroids = self.centroids(z)
        types = self.types if self.num_train else assigned(z, self.pairs[0], centroids)
        touched = self.links(types).any(0)
        behind = self.behind if self.num_train else torch.zeros_like(touched.sum(1))
        hidden = torch.minimum(touched.sum(1), behind) < self.least
        count = torch.where(hidden, 0, touched[:, self.train_nodes].sum(1))
        known = torch.zeros_like(centroids) if self.centres is None else self.centres
        centroids = torch.where(hidden[:, None], known, centroids)
        return {LINKS: {CENTROIDS: to_numpy(centroids), "count": to_numpy(count)}}, {}

    def predict(self) -> Tensor:
        """Return logits [N, C], with links typed by the current centroids."""
        z = self.embedded()
        self.type_links(assigned(z, self.pairs[0], self.centroids(z)))
        return super().predict()
