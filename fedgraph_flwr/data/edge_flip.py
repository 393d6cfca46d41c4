"""Structural noise: each edge of a client is flipped with a given probability (FedHERO, Section 4.8)."""

from dataclasses import replace

import numpy as np
import torch

from fedgraph_flwr.data.graph import AnyGraph, ClientGraph
from fedgraph_flwr.data.statistics import is_undirected
from fedgraph_flwr.errors import FedGraphError


def flip_edges(graph: AnyGraph, probability: float, seed: int) -> AnyGraph:
    """Remove each edge with ``probability`` and replace it by a random pair that was not an edge.

    The paper states only the probability. Replacing edges keeps the density, so the noise only affects their position. In an
    undirected graph the two directions flip together. Self-loops and cut edges stay.
    """
    if probability == 0 or graph.edge_index.size(1) == 0:
        return graph
    if graph.has_edge_data:
        raise FedGraphError(
            f"dataset.edge_flip={probability} replaces edges by random ones, which would have no features, times or labels: set"
            " it to 0 for a graph whose edges have such data"
        )
    client = graph.client + 1 if isinstance(graph, ClientGraph) else 0
    rng = np.random.default_rng([seed, client, 2])
    n = graph.num_nodes
    undirected = is_undirected(graph.edge_index, n)
    source, target = graph.edge_index.numpy()
    loop = source == target
    flippable = source < target if undirected else ~loop  # one entry per edge that may flip
    code = source[flippable] * n + target[flippable]
    gone = rng.random(len(code)) < probability
    # Draw distinct pairs that were not edges, as many as edges removed, or all of them if there are fewer.
    distinct = np.unique(code)
    absent = n * (n - 1) // (2 if undirected else 1) - len(distinct)
    wanted = min(int(gone.sum()), absent)
    fresh = np.empty(0, dtype=np.int64)
    while len(fresh) < wanted:
        u, v = rng.integers(n, size=(2, 2 * wanted + 16))
        first, second = (np.minimum(u, v), np.maximum(u, v)) if undirected else (u, v)
        drawn = np.concatenate([fresh, (first * n + second)[u != v]])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        fresh = drawn[~np.isin(drawn, distinct)][:wanted]
    kept = np.concatenate([code[~gone], fresh])
    pairs = np.stack([kept // n, kept % n])
    both = [pairs, pairs[::-1]] if undirected else [pairs]
    edges = np.concatenate([*both, graph.edge_index.numpy()[:, loop]], axis=1)
    edges = edges[:, np.argsort(edges[0] * n + edges[1], kind="stable")]
    return replace(graph, edge_index=torch.from_numpy(np.ascontiguousarray(edges)))
