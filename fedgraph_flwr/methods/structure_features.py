"""Node structure features s_u: the position of a node in the graph, without its own features.

FedStruct, section 5 and appendix A. The owner of a node knows its ``degree``. Features of kind ``graphlets`` and ``node2vec``
need the edges of other clients, so only a server that knows the graph can compute them. Vectors of ``hop2vec`` start at random
and are trained. Edges count in both directions, once per pair, without loops (except for the degree, which counts the edges
that it is given).

Letters: n nodes, E directed edges, d_s width of the features.
"""

import contextlib
import hashlib
import json
import math
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from filelock import FileLock
from numpy.typing import NDArray

from fedgraph_flwr.data.graph import read_tensors, write_tensors
from fedgraph_flwr.data.root import cache_dir
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.subgraphs import undirected
from fedgraph_flwr.wire.messages import derive_seed

Array = NDArray[Any]
_ORCA_MAX = 2**31 - 1  # orbit-count returns 32-bit numbers, which overflow silently
_KEPT_VERSION = 1  # version of the stored result of `node2vec`
WALKS, WALK_LENGTH, WINDOW, NEGATIVES, P, Q = 10, 20, 10, 1, 1.0, 1.0
"""Node2Vec's walks per node, nodes per walk, context on either side, random nodes per context node, return and in-out parameter,
all as in the authors' code."""

HOP2VEC_SCALE = 0.05  # standard deviation of the initial values, as in the authors' code


def degree_one_hot(outgoing: Array, incoming: Array, width: int) -> Array:
    """One-hot encode degrees, [n] outgoing and incoming edges → float32 [n, d_s]; higher degrees share the last column.

    In a directed graph the degree is round((in + out) / 2), with halves rounded to even, as in the authors' code; the
    paper does not say.
    """
    degree = np.rint((outgoing + incoming) / 2).astype(np.int64)
    features = np.zeros((degree.size, width), np.float32)
    features[np.arange(degree.size), degree.clip(max=width - 1)] = 1
    return features


def hop2vec(num_nodes: int, width: int, seed: int, client: int) -> Array:
    """Draw the initial s_u of one client's nodes: N(0, 0.05²), float64 [n_i, d_s], from the client's own stream."""
    rng = np.random.default_rng(derive_seed(seed, client, "hop2vec"))
    return rng.normal(0.0, HOP2VEC_SCALE, (num_nodes, width))


def graphlet_degrees(edges: Array, num_nodes: int, size: int = 0, scale: str = "standard") -> Array:
    """Compute graphlet degree vectors (Pržulj, 2007): how often a node is on each orbit of graphlets of up to ``size`` nodes.

    Shapes: edges [2, E] → float32 [n, 15] for size 4, [n, 73] for size 5. Counted by ORCA, in 32 bits. The authors'
    code counts up to five nodes and standardises each orbit over the nodes.

    Args:
        edges: [2, E].
        num_nodes: n.
        size: 4 or 5; 0: five nodes if 32 bits can count them, else four.
        scale: ``standard``: mean 0 and standard deviation 1 over the nodes, an empty orbit 0; ``log``: log(1 + count).

    Raises:
        FedGraphError: the package `orbit-count` is missing.
        FedGraphError: a node may be on more graphlets than 32 bits can count.
    """
    try:
        from orbit_count import node_orbit_counts
    except ImportError as error:
        raise _missing("graphlets", "orbit-count") from error
    import networkx as nx

    adjacency = undirected(edges[0], edges[1], num_nodes, np.float64)
    taken = size or (5 if _most(5, adjacency) <= _ORCA_MAX else 4)
    if (bound := _most(taken, adjacency)) > _ORCA_MAX:
        raise FedGraphError(
            f"strategy.graphlet_size={size} may need counts up to {bound:.1e} on this graph, the limit is {_ORCA_MAX:.1e}:"
            f" set {'strategy.graphlet_size=4 or ' if taken == 5 else ''}another strategy.features"
        )
    graph = nx.from_scipy_sparse_array(adjacency)
    counts = np.asarray(node_orbit_counts(graph, graphlet_size=taken, node_list=list(range(num_nodes))), np.float64)
    if scale == "log":
        return np.log1p(counts).astype(np.float32)
    deviation = counts.std(axis=0)
    return ((counts - counts.mean(axis=0)) / np.where(deviation > 0, deviation, 1)).astype(np.float32)


Tree = tuple[Any, ...]
"""A rooted tree: its root's subtrees, sorted."""


def _rooted_trees(size: int) -> set[Tree]:
    """Return all rooted trees of ``size`` nodes, each once: 4 of four nodes, 9 of five."""
    if size == 1:
        return {()}
    return {
        tuple(sorted((branch, *rest)))
        for part in range(1, size)
        for branch in _rooted_trees(part)
        for rest in _rooted_trees(size - part)
    }


def _most(size: int, adjacency: sp.csr_matrix) -> float:
    """Return an upper bound of how often a node is on an orbit of graphlets of ``size`` nodes."""
    return max(float(_embeddings(tree, adjacency).max()) for tree in _rooted_trees(size))


def _embeddings(tree: Tree, adjacency: sp.csr_matrix) -> Array:
    """Return an upper bound of how often each node is the root of such a tree, [n]: walks may meet, equal branches count once.

    A graphlet's orbit has a spanning tree of one shape rooted at the node, so no orbit is counted more often than its tree.
    """
    ways = np.ones(adjacency.shape[0])
    for branch in set(tree):
        repeated = tree.count(branch)
        ways *= (adjacency @ _embeddings(branch, adjacency)) ** repeated / math.factorial(repeated)
    return ways


def node2vec(edges: Array, num_nodes: int, width: int, *, seed: int, epochs: int = 50) -> Array:
    """Compute Node2Vec (Grover & Leskovec, KDD 2016): skip-gram vectors of biased random walks, float32 [n, d_s].

    Args:
        edges: [2, E].
        num_nodes: n.
        width: d_s.
        seed: seed of the walks and of the skip-gram.
        epochs: passes of the skip-gram over the walks.

    Raises:
        FedGraphError: the package `gensim` is missing.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise _missing("node2vec", "gensim") from error
    rng = np.random.default_rng(derive_seed(seed, "walks"))
    adjacency = undirected(edges[0], edges[1], num_nodes, np.float64)
    steps = random_walks(adjacency, np.tile(np.arange(num_nodes), WALKS), WALK_LENGTH, P, Q, rng)
    sentences = [list(map(str, walk)) for walk in steps[rng.permutation(len(steps))].tolist()]
    skip_gram = {"sg": 1, "window": WINDOW, "negative": NEGATIVES, "epochs": epochs, "min_count": 1}
    model = Word2Vec(sentences, vector_size=width, workers=1, seed=seed % 2**31, **skip_gram)
    return np.asarray(model.wv[list(map(str, range(num_nodes)))], np.float32)


def kept_node2vec(edges: Array, num_nodes: int, width: int, *, seed: int, epochs: int = 50) -> Array:
    """Return `node2vec` from the cache, keyed by the edges and all settings; it takes a minute on 3000 nodes."""
    settings = json.dumps([_KEPT_VERSION, num_nodes, width, seed, epochs]).encode()
    key = hashlib.sha256(settings + np.ascontiguousarray(edges, np.int64).tobytes()).hexdigest()
    path = cache_dir() / f"node2vec-{key[:24]}.safetensors"
    with FileLock(path.with_suffix(".lock")):
        with contextlib.suppress(FedGraphError):  # missing or damaged
            return np.asarray(read_tensors(path)[0]["vectors"])
        vectors = node2vec(edges, num_nodes, width, seed=seed, epochs=epochs)
        write_tensors(path, {"vectors": torch.from_numpy(vectors)}, {})
    return vectors


def random_walks(
    adjacency: sp.csr_matrix, starts: Array, length: int, p: float, q: float, rng: np.random.Generator
) -> Array:
    """Draw second-order random walks, [W, length]; a walk that starts at an isolated node stays there.

    After a step from t to v, a neighbour x of v has weight 1/p if x = t, 1 if x neighbours t, else 1/q. It is drawn uniformly
    and accepted with its weight over the largest weight.
    """
    n, degree = adjacency.shape[0], np.diff(adjacency.indptr)
    keys = np.repeat(np.arange(n), degree) * n + adjacency.indices  # sorted by row, then by column
    largest = max(1 / p, 1.0, 1 / q)
    walks = np.empty((starts.size, length), np.int64)
    walks[:, 0] = starts
    for step in range(1, length):
        at = walks[:, step - 1]
        walks[:, step] = at
        pending = np.flatnonzero(degree[at] > 0)
        while pending.size:
            here = at[pending]
            drawn = adjacency.indices[adjacency.indptr[here] + rng.integers(0, degree[here])]
            weight = np.full(pending.size, largest)
            if step > 1:
                before = walks[pending, step - 2]
                key = before * n + drawn
                joined = keys[np.searchsorted(keys, key).clip(max=keys.size - 1)] == key
                weight = np.where(drawn == before, 1 / p, np.where(joined, 1.0, 1 / q))
            accepted = rng.random(pending.size) * largest < weight
            walks[pending[accepted], step] = drawn[accepted]
            pending = pending[~accepted]
    return walks


def _missing(feature: str, package: str) -> FedGraphError:
    return FedGraphError(
        f"strategy.features={feature} needs the package {package}: pip install 'fedgraph-flwr[structure]'", "package"
    )
