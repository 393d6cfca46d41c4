"""Group nodes: the first step of a partition, before groups are merged into clients (see `merges`).

Every function takes the graph, its configuration, the number of clients M and a seed below 2^31. It returns groups of
global node ids, each ascending, in an order that depends on nothing else. Edges count as undirected and once.
"""

from collections.abc import Callable

import numpy as np
from scipy import sparse

from fedgraph_flwr.config import PartitionConfig
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics import subgraphs
from fedgraph_flwr.numerics.subgraphs import undirected
from fedgraph_flwr.partition.stream import stream

Groups = list[np.ndarray]
"""Global node ids of each group, int64, ascending."""


def louvain(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """Communities by modularity (Blondel et al., 2008), through python-louvain; ordered by their lowest node.

    ``isolated_together`` in ``cfg.params`` puts the nodes without an edge into one group (FedStruct); else each is a group.
    """
    import community
    import networkx as nx

    adjacency = simple_adjacency(graph)
    upper = sparse.triu(adjacency, format="coo")
    network = nx.Graph()
    network.add_nodes_from(range(graph.num_nodes))
    network.add_edges_from(zip(upper.row.tolist(), upper.col.tolist(), strict=True))
    communities = community.best_partition(network, resolution=cfg.resolution, random_state=seed)
    label = np.fromiter((communities[node] for node in range(graph.num_nodes)), np.int64, graph.num_nodes)
    if cfg.params.get("isolated_together"):
        label[np.diff(adjacency.indptr) == 0] = graph.num_nodes
    groups = _by_label(label)
    return sorted(groups, key=lambda group: int(group[0]))


def metis(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """M balanced parts with few cut edges (Karypis & Kumar, 1998), through pymetis."""
    return _by_label(_metis(graph, num_clients, seed))


def random(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """Each node goes to one of M clients, uniformly and independently (FedStruct)."""
    return _by_label(np.random.default_rng(seed).integers(num_clients, size=graph.num_nodes))


def dirichlet(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """Label skew (NIID-Bench: Li et al., ICDE 2022, Section IV; arXiv:2102.02079).

        p_c ~ Dir(α 1_M),   client i holds a share p_ci of the nodes of class c, unlabelled nodes being one class more

    The draw is repeated until every client holds ``min_size`` nodes.

    Raises:
        FedGraphError: a thousand draws failed.
    """
    return _by_label(skewed(graph.y.numpy(), cfg, num_clients, seed, f"nodes of '{graph.name}'"))


def skewed(y: np.ndarray, cfg: PartitionConfig, num_clients: int, seed: int, items: str) -> np.ndarray:
    """Return the client of each item, int64, by Dirichlet shares of each label.

    Args:
        y: labels of the items.
        cfg: the concentration ``alpha``, and ``min_size`` items of each client.
        num_clients: M.
        seed: of the draws.
        items: what they are, for errors.

    Raises:
        FedGraphError: a thousand draws failed.
    """
    rng, label = np.random.default_rng(seed), np.empty(len(y), np.int64)
    for _ in range(1000 if len(y) >= num_clients * cfg.min_size else 0):
        for c in np.unique(y):
            nodes = rng.permutation(np.flatnonzero(y == c))
            ends = np.cumsum(rng.dirichlet(np.full(num_clients, cfg.alpha))) * len(nodes)
            label[nodes] = np.searchsorted(ends[:-1], np.arange(len(nodes)), side="right")
        if np.bincount(label, minlength=num_clients).min() >= max(cfg.min_size, 1):
            return label
    raise FedGraphError(
        f"partition={cfg.name} found no shares that give each of {num_clients} clients {cfg.min_size} of the {len(y)} {items}:"
        f" raise partition.alpha={cfg.alpha:g}, or lower num_clients or partition.min_size"
    )


def chunks(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """Consecutive items to each client, ``size`` in ``cfg.params`` or N / M if fewer, and the rest at random (GCFL).

    Files sorted by class so give each client mostly one class. Of many graphs, the items are graphs.

    Raises:
        FedGraphError: the size is no positive integer.
    """
    most = cfg.params.get("size")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise FedGraphError(
            f"partition.size={most} must be a positive integer, the number of items that are consecutive"
        )
    size = min(most, graph.num_nodes // num_clients)
    label = np.arange(graph.num_nodes) // max(size, 1)
    rest = np.flatnonzero(label >= num_clients)
    label[rest] = np.random.default_rng(seed).integers(num_clients, size=rest.size)
    return _by_label(label)


def kmeans(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """M clusters of the features by K-means (FedStruct; scikit-learn with its automatic number of starts)."""
    from sklearn.cluster import KMeans

    x = graph.x.numpy()
    return _by_label(KMeans(num_clients, n_init="auto", random_state=seed).fit_predict(x))


def overlapping(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """Clients that share nodes (Baek et al., ICML 2023): each draws a share of the nodes of one METIS part.

    M / ``clients_per_part`` parts; the client draws ``overlap`` of its part's nodes without replacement, independently of
    the part's other clients. A node without a draw belongs to no client.
    """
    share, per_part = cfg.overlap, cfg.clients_per_part
    if not 0 < share <= 1:
        raise FedGraphError(f"partition.overlap must be in (0, 1] for partition=overlapping, got {share}")
    if per_part < 1 or num_clients % per_part:
        raise FedGraphError(
            f"num_clients={num_clients} is not a multiple of partition.clients_per_part={per_part}: change one of them"
        )
    parts = _by_label(_metis(graph, num_clients // per_part, seed))
    rng = np.random.default_rng(seed)
    return [
        np.sort(rng.choice(part, size=max(int(share * len(part)), 1), replace=False))
        for part in parts
        for _ in range(per_part)
    ]


def planted(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> Groups:
    """Return the groups of the graph's source (``graph.group``), in the order of their numbers."""
    if not graph.group.numel():
        raise FedGraphError(
            f"partition=planted needs a dataset that assigns nodes to clients, such as csbm; '{graph.name}' does not"
        )
    return _by_label(graph.group.numpy())


GROUPINGS: dict[str, Callable[[Graph, PartitionConfig, int, int], Groups]] = {
    "louvain": louvain,
    "metis": metis,
    "random": random,
    "dirichlet": dirichlet,
    "chunks": chunks,
    "kmeans": kmeans,
    "overlapping": overlapping,
    "planted": planted,
    "stream": stream,
}

FREE = ("louvain", "planted")
"""Groupings that do not depend on the number of clients."""


def simple_adjacency(graph: Graph) -> sparse.csr_matrix:
    """Return the pattern of the undirected simple graph, CSR [N, N]; see `undirected`."""
    source, target = graph.edge_index.numpy()
    return undirected(source, target, graph.num_nodes)


def _metis(graph: Graph, num_parts: int, seed: int) -> np.ndarray:
    """Return the METIS part of each node [N]."""
    return subgraphs.metis(simple_adjacency(graph), num_parts, seed)


def _by_label(label: np.ndarray) -> Groups:
    """Convert labels [N] to groups, ascending by label."""
    order = np.argsort(label, kind="stable").astype(np.int64)
    starts = np.flatnonzero(np.diff(label[order])) + 1
    return list(np.split(order, starts))
