"""CSBM: the contextual stochastic block model with one block of nodes and one homophily level per client.

Source: Deshpande et al., NeurIPS 2018, as used by FedSPA (CVPR 2025), Section 5.3 and Appendix C. A client has N nodes with
homophily h, mean degree d and label signs y_u ∈ {−1, +1}. All clients share one centroid ξ ~ N(0, I/F):

    x_u = √(μ/N) y_u ξ + g_u / √F,   g_u ~ N(0, I)                                           (16)
    P(u ~ v | y_u = y_v) = (d + σ√d) / N,   P(u ~ v | y_u ≠ y_v) = (d − σ√d) / N             (17)
    σ = √d (2h − 1)

Hence a pair within one class is linked with probability 2dh/N, and a pair across classes with 2d(1−h)/N. For C classes
these become C·d·h/N and C·d·(1−h)/((C−1)N), and ±ξ become C centred centroids of the same distribution. C = 2 is the
paper's model.
"""

from dataclasses import dataclass

import numpy as np
import psutil
import torch

from fedgraph_flwr.config import DatasetConfig, number
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.data.planted import Planted, spec_of
from fedgraph_flwr.errors import FedGraphError, TooManyClients


@dataclass
class Csbm(Planted):
    """The keys of ``conf/dataset/csbm.yaml``."""

    nodes: int | None = None  # N over all clients (null: as drawn by nodes_per_client)
    nodes_per_client: list[int] | None = number(
        [1000, 5000]
    )  # drawn uniformly, then scaled to `nodes`; null: see `_bounds`
    features: int = number(64, low=1)  # F
    classes: int = number(2, low=2)  # C
    degree: float = 10.0  # d, within a client
    mu: float = 50.0  # μ, weight of the features
    homophily: float = 0.75  # mean over clients
    gap: float = 0.4  # clients' levels are uniform in homophily ± gap/2
    cut_degree: float = 0.0  # mean number of a node's neighbours at other clients

    def __post_init__(self) -> None:
        bounds = [1, 1] if self.nodes_per_client is None else self.nodes_per_client
        low, high = bounds if len(bounds) == 2 else (0, 0)
        if not 1 <= low <= high:
            key = f"dataset.nodes_per_client={bounds}"
            raise FedGraphError(f"{key} must be [low, high] with 1 <= low <= high")
        if not abs(self.homophily - 0.5) + self.gap / 2 <= 0.5 + 1e-9:
            given = f"dataset.homophily {self.homophily} ± dataset.gap {self.gap} / 2"
            raise FedGraphError(f"{given} must stay within [0, 1]")


def load(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph:
    """Generate the graph that ``cfg.params`` describes.

    Raises:
        FedGraphError: a key or value is not accepted, or the degree is too high for the smallest client.
    """
    spec, seed, clients = spec_of(Csbm, cfg, seed, num_clients)
    return generate(spec, seed=seed, num_clients=clients, name=cfg.name)


def generate(spec: Csbm, *, seed: int, num_clients: int, name: str = "csbm") -> Graph:
    """Draw one graph: M blocks (``group``), undirected edges listed in both directions, sorted, no self-loops.

    No N x N matrix is built: for each pair of classes, draw the number of edges, then that many distinct pairs.
    """
    rng = np.random.default_rng([seed, 0])
    sizes = _sizes(spec, num_clients, rng)
    levels = client_homophily(spec, num_clients, rng)
    centroid = rng.standard_normal((spec.classes, spec.features), dtype=np.float32) / np.sqrt(spec.features)
    centroid = (centroid - centroid.mean(0)) * np.sqrt(spec.classes / (spec.classes - 1))  # [C, F]; C = 2: ±ξ

    total = int(sizes.sum())
    _check_memory(total, spec, num_clients)
    x = np.empty((total, spec.features), dtype=np.float32)
    y = np.empty(total, dtype=np.int64)
    edges = []
    for client, (start, n) in enumerate(zip(np.cumsum(sizes) - sizes, sizes, strict=True)):
        block = slice(start, start + n)
        client_rng = np.random.default_rng([seed, 1, client])
        y[block] = client_rng.permutation(np.arange(n) % spec.classes)
        client_rng.standard_normal(dtype=np.float32, out=x[block])
        x[block] /= np.sqrt(spec.features)
        x[block] += np.sqrt(spec.mu / n) * centroid[y[block]]  # Eq. (16)
        edges.append(_block_edges(y[block], spec, levels[client], client_rng, num_clients - 1) + start)
    group = np.repeat(np.arange(num_clients), sizes)
    if spec.cut_degree and num_clients > 1:
        edges.append(_cut_edges(y, group, spec, rng))

    pairs = np.concatenate(edges, axis=1)
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    both = both[:, np.argsort(both[0] * total + both[1])]
    return Graph(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(np.ascontiguousarray(both)),
        y=torch.from_numpy(y),
        **unsplit(total),
        num_classes=spec.classes,
        name=name,
        group=torch.from_numpy(group),
    )


def _check_memory(total: int, spec: Csbm, num_clients: int) -> None:
    """Raise an error if N nodes with features and edges exceed this machine's memory."""
    edges = 64 * (spec.degree + spec.cut_degree)  # both directions, and their order
    wanted, there = total * (4 * spec.features + edges) / 2**30, psutil.virtual_memory().total / 2**30
    if wanted > there:
        raise FedGraphError(
            f"dataset=csbm with {num_clients} clients has {total} nodes, about {wanted:.0f} GiB, but this machine has"
            f" {there:.0f} GiB: lower num_clients, dataset.nodes_per_client or dataset.nodes"
        )


def client_homophily(spec: Csbm, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Return the planned homophily of each client, uniform in ``homophily ± gap/2`` (FedSPA 5.3) [M]."""
    return np.clip(spec.homophily + spec.gap * (rng.random(num_clients) - 0.5), 0.0, 1.0)


def _bounds(num_clients: int) -> list[int]:
    """Return the bounds of a client's nodes in ``dataset=demo``: three times as many where a fleet is tried with a few nodes.

    5 % of 600 are the 30 training nodes of which a node without a policy file accepts ``model.dropout=0.5``.
    """
    return [600, 1200] if num_clients < 10 else [200, 400]


def _sizes(spec: Csbm, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Return the number of nodes of each client [M]."""
    low, high = spec.nodes_per_client or _bounds(num_clients)
    sizes = rng.integers(low, high + 1, num_clients)
    if spec.nodes is not None:
        exact = sizes * (spec.nodes / sizes.sum())
        sizes = np.floor(exact).astype(np.int64)
        leftover = spec.nodes - int(sizes.sum())
        sizes[np.argsort(sizes - exact, kind="stable")[:leftover]] += 1
    if sizes.min() < spec.classes:
        fix = "raise dataset.nodes or dataset.nodes_per_client, or lower the number of clients"
        raise TooManyClients(
            f"a client would get {sizes.min()} nodes for {spec.classes} classes: {fix}", num_clients - 1
        )
    return sizes


def _block_edges(y: np.ndarray, spec: Csbm, homophily: float, rng: np.random.Generator, fewer: int) -> np.ndarray:
    """Draw one client's edges by Eq. (17): distinct pairs of its nodes, each pair once [2, E/2]."""
    n, classes = len(y), spec.classes
    same = classes * spec.degree * homophily / n
    different = classes * spec.degree * (1 - homophily) / ((classes - 1) * n)
    if max(same, different) > 1:
        fix = "lower it, or raise dataset.nodes or dataset.nodes_per_client"
        raise TooManyClients(f"dataset.degree {spec.degree:g} is too high for a client of {n} nodes: {fix}", fewer)
    members = [np.flatnonzero(y == c) for c in range(classes)]
    pairs = []
    for a in range(classes):
        count = len(members[a])
        first, second = _triangle(_draw(count * (count - 1) // 2, same, rng))
        pairs.append(np.stack([members[a][first], members[a][second]]))
        for b in range(a):
            code = _draw(count * len(members[b]), different, rng)
            pairs.append(np.stack([members[a][code // len(members[b])], members[b][code % len(members[b])]]))
    return np.concatenate(pairs, axis=1)


def _draw(pairs: int, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the successes among ``pairs`` independent Bernoulli trials, in time linear in the number of successes."""
    return rng.choice(pairs, rng.binomial(pairs, probability), replace=False, shuffle=False).astype(np.int64)


def _triangle(code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pair (i, j), i > j, with code = i(i−1)/2 + j (row by row); exact below 2⁵⁰ pairs."""
    i = ((1 + np.sqrt(1 + 8.0 * code)) / 2).astype(np.int64)
    return i, code - i * (i - 1) // 2


def _cut_edges(y: np.ndarray, group: np.ndarray, spec: Csbm, rng: np.random.Generator) -> np.ndarray:
    """Draw cut edges: distinct pairs across clients, within one class with probability homophily [2, E_cut]."""
    n = len(y)
    wanted = round(n * spec.cut_degree / 2)
    order = np.argsort(y, kind="stable")
    count = np.bincount(y, minlength=spec.classes)
    first = np.cumsum(count) - count
    code = np.empty(0, dtype=np.int64)
    for _ in range(100):
        u = rng.integers(n, size=wanted + 16)
        other = (y[u] + rng.integers(1, spec.classes, size=u.size)) % spec.classes
        target = np.where(rng.random(u.size) < spec.homophily, y[u], other)
        v = order[first[target] + rng.integers(count[target])]
        new = (np.minimum(u, v) * n + np.maximum(u, v))[group[u] != group[v]]
        merged = np.concatenate([code, new])
        code = merged[np.sort(np.unique(merged, return_index=True)[1])][:wanted]  # distinct, in the order drawn
        if len(code) == wanted:
            return np.stack([code // n, code % n])
    raise FedGraphError(
        f"dataset.cut_degree {spec.cut_degree:g} needs more pairs of clients' nodes than exist: lower it"
    )
