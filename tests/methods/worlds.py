"""Whole graphs, cut into clients that know of each other's nodes: what methods over interconnected graphs are tested on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedgraph_flwr.data.graph import ClientGraph
from tests.support import Finished

N, C, F = 60, 3, 5
WORDS = ["dtype=float64", "model.dropout=0", "train.lr=0.05", "train.weight_decay=0.01"]
NETWORK = ["model.structure_width=6", "model.structure_layers=[7]", "model.hops=2", "model.structure_hops=3"]


def edges_of(kind: str, seed: int = 0) -> np.ndarray:
    """Edges [2, E] of a graph with three isolated nodes; `directed` has parallel edges and self-loops too."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, N - 3, size=(2, 90))
    if kind == "directed":
        return np.concatenate([pairs, pairs[:, :10], np.array([[5, 6], [5, 6]])], axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)


def partition_of(kind: str, edges: np.ndarray, num_clients: int = 4) -> np.ndarray:
    """Owner of each node [N]."""
    rng = np.random.default_rng(1)
    if kind == "random":
        return rng.integers(0, num_clients, N)
    if kind == "kmeans":
        from sklearn.cluster import KMeans

        return KMeans(num_clients, n_init=1, random_state=0).fit_predict(rng.normal(size=(N, 5)))
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(N))
    graph.add_edges_from(edges.T.tolist())
    owner = np.empty(N, np.int64)
    for group, nodes in enumerate(nx.community.louvain_communities(graph, seed=0)):
        owner[list(nodes)] = group % num_clients
    return owner


def clients_of(edges: np.ndarray, owner: np.ndarray) -> list[ClientGraph]:
    graphs = []
    for client in range(int(owner.max()) + 1):
        nodes = np.flatnonzero(owner == client)
        local = np.full(owner.size, -1)
        local[nodes] = np.arange(nodes.size)
        source, target = edges
        inside = (owner[source] == client) & (owner[target] == client)
        leaves = (owner[source] == client) & (owner[target] != client)
        arrives = (owner[source] != client) & (owner[target] == client)
        empty = torch.zeros(nodes.size, dtype=torch.bool)
        graphs.append(
            ClientGraph(
                x=torch.zeros(nodes.size, 1),
                edge_index=torch.from_numpy(local[edges[:, inside]]),
                y=torch.zeros(nodes.size, dtype=torch.int64),
                train_mask=empty,
                val_mask=empty,
                test_mask=empty,
                num_classes=2,
                node_id=torch.from_numpy(nodes),
                cut_out=torch.from_numpy(np.stack([local[source[leaves]], target[leaves]])),
                cut_in=torch.from_numpy(np.stack([local[target[arrives]], source[arrives]])),
                cut_out_owner=torch.from_numpy(owner[target[leaves]]),
                cut_in_owner=torch.from_numpy(owner[source[arrives]]),
                client=client,
                num_clients=int(owner.max()) + 1,
                num_global_nodes=owner.size,
            )
        )
    return graphs


def dense_step(edges: np.ndarray) -> np.ndarray:
    """Â = D̃⁻¹ (A + I) by hand."""
    a = np.zeros((N, N))
    a[edges[0], edges[1]] = 1
    np.fill_diagonal(a, 1)
    return a / a.sum(1, keepdims=True)


def world(kind: str = "undirected", partition: str = "random") -> list[ClientGraph]:
    """Client graphs of a whole graph with features and labels that do not depend on the partition."""
    edges = edges_of(kind)
    rng = np.random.default_rng(7)
    y = rng.integers(0, C, N)
    x = rng.normal(size=(N, F)).astype(np.float32) + np.eye(F, dtype=np.float32)[y]
    role = rng.permutation(N) % 3
    graphs = clients_of(edges, np.zeros(N, int) if partition == "one" else partition_of(partition, edges))
    for graph in graphs:
        ids = graph.node_id.numpy()
        graph.x, graph.y, graph.num_classes = torch.from_numpy(x[ids]), torch.from_numpy(y[ids]), C
        graph.train_mask, graph.val_mask, graph.test_mask = (torch.from_numpy(role[ids] == r) for r in range(3))
    return graphs


def trainer(run: Callable[..., Finished], folder: Path) -> Callable[..., Finished]:
    """``train("strategy=...", kind=, partition=)``: a run on the clients of `world`; FedStruct-B by default."""
    count = iter(range(100))

    def go(*overrides: str, kind: str = "undirected", partition: str = "random") -> Finished:
        place = folder / f"world{next(count)}"
        graphs = world(kind, partition)
        for graph in graphs:
            graph.save(place / f"client_{graph.client:04d}.safetensors")
        network = [] if any(word.startswith("model=") for word in overrides) else NETWORK
        return run(f"graph={place}", "strategy=fedstruct", f"num_clients={len(graphs)}", *WORDS, *network, *overrides)

    return go
