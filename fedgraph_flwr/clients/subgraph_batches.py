"""Batches that are parts of a client's graph (``train.sampler=clusters``, ``saint``)."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.clients.epochs import Epochs, Places, refuse_above
from fedgraph_flwr.data.graph import ClientGraph, rows_of
from fedgraph_flwr.data.many_graphs import MASKS
from fedgraph_flwr.models.readout import items_of
from fedgraph_flwr.numerics.blocks import BatchInputs, FeatureRows
from fedgraph_flwr.numerics.draws import row_pointer
from fedgraph_flwr.numerics.prepared import derived
from fedgraph_flwr.numerics.saint import EdgeSampler, ScaledEntries
from fedgraph_flwr.numerics.subgraphs import Subgraphs, metis, undirected
from fedgraph_flwr.tasks import Batch
from fedgraph_flwr.wire.messages import derive_seed


class TrainingRows:
    """Training nodes of a client among the nodes of a batch."""

    def __init__(self, client: Any):
        self.y, self.device = client.batch.y, client.device
        self.place = np.full(client.graph.num_nodes, -1)
        self.place[client.train_nodes.cpu().numpy()] = np.arange(client.num_train)

    def among(self, nodes: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return which of some nodes [n] train, as places among them, and their labels."""
        places = self.place[nodes]
        rows = np.flatnonzero(places >= 0)
        return torch.from_numpy(rows).to(self.device), self.y[torch.from_numpy(places[rows]).to(self.device)]


class ClusterBatches(Epochs):
    """Unions of METIS parts of a client's graph, with the edges between their nodes (Chiang et al., KDD 2019, arXiv:1905.07953).

    An epoch deals all parts to batches of at most ``train.clusters_per_batch``, by a permutation of its own; parts with training
    nodes are dealt first, so that every batch has some. The model prepares the subgraph of a batch like a graph of its own: its
    adjacency is normalised by the degrees within the batch, as in the paper. If a batch holds all parts, its inputs are those of
    the whole graph.

    Args:
        client: with its graph, its model and its training items; its parts are cached next to the graph's file.

    Raises:
        FedGraphError: there are more parts than nodes.
    """

    def __init__(self, client: Any):
        cfg, graph = client.cfg, client.graph
        refuse_above("train.clusters", cfg.train.clusters, graph.num_nodes, f"nodes of client {graph.client}")
        self.graph, self.model, self.device, self.dtype = graph, client.model, client.device, client.dtype
        label = parts_of(client).numpy()
        held, trained = np.unique(label), self.open(client, label)
        self.members = {part: np.flatnonzero(label == part) for part in held.tolist()}
        self.trained, self.others = trained, np.setdiff1d(held, trained)
        batches = -(-len(held) // cfg.train.clusters_per_batch)
        super().__init__(cfg, graph.client, max(min(batches, len(trained)), 1))
        self.rows = FeatureRows(client.inputs.x, torch.device("cpu"), self.dtype)
        source, target = graph.edge_index.numpy()
        self.order = np.argsort(target, kind="stable")
        self.edges = Subgraphs(row_pointer(target, graph.num_nodes), source[self.order])

    def open(self, client: Any, label: NDArray[np.int32]) -> NDArray[np.int32]:
        """Take the training items, and return the parts that hold some, ascending; ``label`` is the part of each node [N]."""
        self.training = TrainingRows(client)
        return np.unique(label[client.train_nodes.cpu().numpy()])

    def deal(self, random: np.random.Generator) -> Places:
        """Return the parts of each batch."""
        order = np.concatenate([random.permutation(self.trained), random.permutation(self.others)])
        return [order[place :: self.per_epoch] for place in range(self.per_epoch)]

    def step(self, server_round: int, exchange: int, index: int) -> Batch:
        """Return the batch of a step, by the arguments of `key`; its features are valid until the next batch."""
        parts = self.part(server_round, index)
        nodes = np.sort(np.concatenate([self.members[part] for part in parts.tolist()]))
        graph, edges = self.subgraph(nodes)
        return self.batch(self.model.prepare(graph, self.device, self.dtype), graph, nodes, edges)

    def batch(self, inputs: Any, graph: ClientGraph, nodes: NDArray[np.int64], edges: NDArray[np.int64]) -> Batch:
        """Return the batch of the subgraph of some nodes, with the place of each of its edges among all."""
        return Batch(inputs, *self.training.among(nodes))

    def subgraph(self, nodes: NDArray[np.int64]) -> tuple[ClientGraph, NDArray[np.int64]]:
        """Return the graph of some nodes, ascending, with their edges in the order of the whole graph's, and these edges."""
        entries = self.edges.between(nodes)
        position = self.order[entries.position]
        kept = np.argsort(position)
        edge_index = torch.from_numpy(np.stack([entries.col[kept], entries.rows[kept]]))
        graph = self.graph.with_edges(edge_index, torch.from_numpy(position[kept]))
        held = torch.from_numpy(nodes)
        fields = {key: rows_of(getattr(graph, key), held) for key in ("y", *MASKS)}
        return replace(graph, x=self.rows.take(nodes), **fields), position[kept]


class EdgeClusterBatches(ClusterBatches):
    """The same for items that are edges: a batch predicts the training edges that its subgraph has.

    An edge between two parts is predicted only where a batch holds both.
    """

    def open(self, client: Any, label: NDArray[np.int32]) -> NDArray[np.int32]:
        """Take the training edges, with their features for the readout [V, D]; parts hold those between their own nodes."""
        edges, self.attr = client.task.train_items
        self.y, self.item = client.batch.y, np.full(client.graph.num_edges, -1)
        self.item[edges.numpy()] = np.arange(len(edges))
        source, target = label[client.graph.edge_index[:, edges].numpy()]
        return np.unique(source[source == target])

    def batch(self, inputs: Any, graph: ClientGraph, nodes: NDArray[np.int64], edges: NDArray[np.int64]) -> Batch:
        """With the training edges of the subgraph as items, in their order."""
        item = self.item[edges]
        held = np.flatnonzero(item >= 0)
        rows = torch.from_numpy(held[np.argsort(item[held])])
        chosen = torch.from_numpy(item)[rows]
        inputs = replace(
            inputs, **items_of(graph.edge_index[:, rows], rows_of(self.attr, chosen), self.device, self.dtype)
        )
        return Batch(inputs, None, self.y[chosen.to(self.device)])


def parts_of(client: Any) -> Tensor:
    """Return the METIS part of each node of a client, int32 [N], computed once per client, seed and number of parts."""
    cfg, graph, file = client.cfg, client.graph, client.file

    def make() -> Tensor:
        source, target = graph.edge_index.numpy()
        seed = derive_seed(cfg.own_seed, graph.client, "clusters") % 2**31
        label = metis(undirected(source, target, graph.num_nodes), cfg.train.clusters, seed)
        return torch.from_numpy(label.astype(np.int32))

    settings = {"task": cfg.task.name, "seed": cfg.own_seed, "clusters": cfg.train.clusters, "nodes": graph.num_nodes}
    return make() if file is None else derived(file, "clusters", settings, make)


class SaintBatches(Epochs):
    """Nodes of sampled edges with all edges between them, by GraphSAINT (Zeng et al., ICLR 2020, arXiv:1907.04931).

        loss = (1/V) Σ_v L_v / p_v,        (S H)_v = S_vv h_v + Σ_u S_vu (p_v / p_uv) h_u

    v over the training nodes of the batch, S and V those of the whole graph, p as in `numerics.saint`. So the loss is an unbiased
    estimate of the whole graph's where logits are given, and so is a layer's aggregate of given features, for a node in the
    batch. An epoch has ceil(N / 2m) steps, as in the authors' code.

    Args:
        client: with its graph, its model and its training nodes; ``train.batch_size`` is m.

    Raises:
        FedGraphError: m is larger than the number of edges.
    """

    def __init__(self, client: Any):
        cfg, graph, self.device, self.dtype = client.cfg, client.graph, client.device, client.dtype
        self.neighbours = client.model.neighbours(graph, self.device, self.dtype)
        indptr, indices, draws = self.neighbours.indptr, self.neighbours.indices, cfg.train.batch_size
        count = len(indptr) - 1
        pattern = undirected(indices.astype(np.int64), np.repeat(np.arange(count), np.diff(indptr)), count)
        refuse_above("train.batch_size", draws, max(pattern.nnz // 2, 1), f"edges of client {graph.client}")
        super().__init__(cfg, graph.client, -(-count // (2 * draws)))
        self.hops = client.model.sampled_hops or 0  # `batches.check_model` refuses none
        self.sampler, self.edges = EdgeSampler(pattern, draws), Subgraphs(indptr, indices)
        self.training = TrainingRows(client)
        self.rows = FeatureRows(client.inputs.x, self.device, self.dtype)

    def step(self, server_round: int, exchange: int, index: int) -> Batch:
        """Return the batch of a step, by the arguments of `key`; its features are valid until the next batch."""
        nodes = self.sampler.sample(self.key(server_round, exchange, index))
        held = self.sampler.nodes(nodes)
        entries = self.edges.between(nodes)
        target, source = entries.rows, entries.col
        factor = np.ones(len(source))
        proper = target != source
        pairs = self.sampler.pairs(nodes[target[proper]], nodes[source[proper]])
        factor[proper] = held[target[proper]] / pairs
        layer = self.neighbours.layer(nodes, ScaledEntries.of(entries, factor), len(nodes))
        rows, y = self.training.among(nodes)
        shares = torch.from_numpy(1 / held).to(self.device, self.dtype)[rows] / max(len(self.training.y), 1)
        return Batch(BatchInputs(self.rows.take(nodes), (layer,) * self.hops), rows, y, shares)
