"""Partition by a stream of nodes, for graphs that may be larger than memory.

Fennel (Tsourakakis et al., WSDM 2014, doi:10.1145/2556195.2556213): with m edges, n nodes, k parts of sizes s_i and γ = 3/2,
node v goes to the part that maximises

    |N(v) ∩ P_i| − α γ s_i^(γ−1),    α = √k m / n^(3/2),    among parts with s_i < slack · n / k

Ours: a block of nodes is assigned at once, by the state before it. A node without assigned neighbours goes to the smallest part.
Further passes (restreaming, Nishimura and Ugander, KDD 2013) see the parts of all neighbours.
"""

import numpy as np

from fedgraph_flwr.config import PartitionConfig
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError

GAMMA = 1.5

EDGES_AT_ONCE = 1 << 22
"""Edges that are read at once; larger blocks follow from no result."""


def stream(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> list[np.ndarray]:
    """Return the nodes of each of M parts, ascending; the order of nodes decides, the seed does not."""
    indptr, indices = graph.rows()
    passes, slack = _chosen(cfg)
    nodes = len(indptr) - 1
    label: np.ndarray = np.full(nodes, -1, np.int16 if num_clients < 2**15 else np.int32)
    sizes = np.zeros(num_clients, np.int64)
    weight = GAMMA * np.sqrt(num_clients) * len(indices) / max(nodes, 1) ** 1.5
    most = int(np.ceil(slack * nodes / num_clients))
    for _ in range(passes):
        for first, end in blocks(indptr, max(nodes // (8 * num_clients), 1)):
            old = label[first:end].astype(np.int64)
            sizes -= np.bincount(old[old >= 0], minlength=num_clients)
            votes = _votes(indptr, indices, label, first, end, num_clients)
            label[first:end] = _assigned(votes, sizes, weight, most)
    order = np.argsort(label, kind="stable")
    return [part.astype(np.int64) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _chosen(cfg: PartitionConfig) -> tuple[int, float]:
    passes, slack = cfg.params.get("passes", 3), cfg.params.get("slack", 1.1)
    if type(passes) is not int or not 1 <= passes <= 1000:
        raise FedGraphError(f"partition.passes must be an integer from 1 to 1000, got {passes}")
    if type(slack) not in (int, float) or not 1 <= slack < float("inf"):
        raise FedGraphError(f"partition.slack must be a number >= 1, got {slack}")
    return passes, float(slack)


def blocks(indptr: np.ndarray, most: int = 2**62, edges: int = EDGES_AT_ONCE) -> list[tuple[int, int]]:
    """Return ranges of rows with at most so many rows and edges each, at least one row."""
    ranges, first, nodes = [], 0, len(indptr) - 1
    while first < nodes:
        fitting = int(np.searchsorted(indptr, indptr[first] + edges, side="right")) - 1
        end = min(max(fitting, first + 1), first + most, nodes)
        ranges.append((first, end))
        first = end
    return ranges


def _votes(indptr: np.ndarray, indices: np.ndarray, label: np.ndarray, first: int, end: int, parts: int) -> np.ndarray:
    """Count the neighbours of each node of a block in each part: [end - first, k]."""
    near = label[indices[indptr[first] : indptr[end]]].astype(np.int64)
    row = np.repeat(np.arange(end - first), np.diff(indptr[first : end + 1]))
    known = near >= 0
    return np.bincount(row[known] * parts + near[known], minlength=(end - first) * parts).reshape(-1, parts)


def _assigned(votes: np.ndarray, sizes: np.ndarray, weight: float, most: int) -> np.ndarray:
    """Return the part of each node of a block, and add them to the sizes.

    Where more nodes choose a part than it has room for, those with fewest neighbours in it go to the parts with most room.
    """
    room = np.maximum(most - sizes, 0)
    score = np.where(room > 0, votes - weight * np.sqrt(sizes), -np.inf)
    label = score.argmax(axis=1)
    label[votes.max(axis=1) == 0] = -1
    for part in np.flatnonzero(np.bincount(label[label >= 0], minlength=len(sizes)) > room):
        chosen = np.flatnonzero(label == part)
        by_votes = chosen[np.argsort(-votes[chosen, part], kind="stable")]
        label[by_votes[room[part] :]] = -1
    sizes += np.bincount(label[label >= 0], minlength=len(sizes))
    for node in np.flatnonzero(label < 0):
        label[node] = smallest = int(sizes.argmin())
        sizes[smallest] += 1
    return label
