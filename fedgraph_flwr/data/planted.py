"""Generated graphs whose best score is known, so that a result above or far below it shows an error.

planted-regression   y_v = a z(x_v) + b z(mean x_u) + ε over the neighbours u, z standardises, var ε = var y / 4.
                     A model that reads neighbours reaches R² = 0.75, one that reads only the node 0.75 a² / (a² + b²).
planted-multilabel   T independent bits per node, each with its own feature ±d'/2 + N(0, 1).
                     The best AUC of each column is Φ(d' / √2).
planted-triples      entities 0..n-1 in a ring, relation r from h to each of h + k_r, ..., h + k_r + w - 1 modulo n.
                     RotatE ranks all held-out triples first (filtered MRR 1); w > 1 keeps the raw rank below.
cycles               two cycles of m nodes (class 0) or one of 2 m (class 1), with constant features.
                     A network that only sums over neighbours sees no difference: accuracy 1/2. Walks of m steps show it.
planted-counts       random graphs of one mean degree with constant features; targets: their numbers of edges and of triangles.
                     A sum over nodes can count edges exactly; a mean over nodes sees the degree, which says nothing.

Each client is a block of nodes without edges to others (``group``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.config import MAX_CLIENTS, DatasetConfig, number, typed
from fedgraph_flwr.data.cleaning import to_undirected
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.data.many_graphs import side_by_side
from fedgraph_flwr.errors import FedGraphError


@dataclass
class Planted:
    """Keys of every graph with planted clients."""

    clients: int | None = number(None, low=1, high=MAX_CLIENTS)  # planted clients (null: the run's num_clients)
    seed: int | None = None  # default (null): the run's seed


@dataclass
class PlantedRegression(Planted):
    """The keys of ``conf/dataset/planted-regression.yaml``."""

    nodes: int = number(400, low=2)  # nodes per client
    degree: float = number(6.0, without_low=True)  # mean number of neighbours
    features: int = number(4, low=1)  # the first has the signal, the others are noise
    own: float = 1.0  # a, weight of the node's feature
    neighbours: float = 1.0  # b, weight of the mean of its neighbours' features


@dataclass
class PlantedMultilabel(Planted):
    """The keys of ``conf/dataset/planted-multilabel.yaml``."""

    nodes: int = number(400, low=2)  # nodes per client
    degree: float = number(6.0, without_low=True)  # mean number of neighbours
    columns: int = number(5, low=1)  # T
    distance: float = 2.0  # d', distance of the two means of a column's feature, in standard deviations
    unknown: float = number(0.0, high=1, without_high=True)  # share of unknown entries


@dataclass
class PlantedTriples(Planted):
    """The keys of ``conf/dataset/planted-triples.yaml``."""

    entities: int = number(40, low=3)  # n, entities per client
    relations: int = number(8, low=1)  # R, the same at all clients
    tails: int = number(2, low=1)  # w, tails per head and relation
    ring: bool = True  # false: a line, without triples across its ends
    share: float = number(1.0, high=1, without_low=True)  # share of these triples that each client has


@dataclass
class SizedGraphs(Planted):
    """Keys of many graphs per client, whose sizes lie in a range."""

    graphs: int = number(60, low=2)  # graphs per client
    low: int = number(3, low=3)  # smallest m
    high: int = number(8, low=3)  # largest m

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise FedGraphError(f"dataset.low={self.low} must be at most dataset.high={self.high}")


@dataclass
class Cycles(SizedGraphs):
    """The keys of ``conf/dataset/cycles.yaml``; half of the graphs are of each class."""


@dataclass
class PlantedCounts(SizedGraphs):
    """The keys of ``conf/dataset/planted-counts.yaml``."""

    low: int = number(6, low=3)  # fewest nodes of a graph
    high: int = number(24, low=3)  # most nodes
    degree: float = number(3.0, without_low=True)  # expected number of neighbours, whatever the size
    unknown: float = number(0.0, high=1, without_high=True)  # share of graphs whose triangles are not counted


def spec_of(schema: Any, cfg: DatasetConfig, seed: int, num_clients: int) -> tuple[Any, int, int]:
    """Return a dataset's keys, its seed and its number of clients.

    Raises:
        FedGraphError: a key or value is not accepted.
    """
    spec = typed(schema, cfg.params, f"dataset={cfg.name}")
    return spec, seed if spec.seed is None else spec.seed, spec.clients or num_clients


def regression(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph:
    """Generate ``planted-regression``."""
    spec, seed, clients = spec_of(PlantedRegression, cfg, seed, num_clients)
    rng = np.random.default_rng([seed, 2])
    n = clients * spec.nodes
    x = rng.standard_normal((n, spec.features), dtype=np.float32)
    edges = _edges(clients, spec.nodes, spec.degree, rng)
    degree = np.bincount(edges[1], minlength=n)
    around = np.bincount(edges[1], x[edges[0], 0], n) / np.maximum(degree, 1)
    signal = spec.own * _standardised(x[:, 0].astype(np.float64)) + spec.neighbours * _standardised(around)
    y = signal + np.sqrt(signal.var() / 3) * rng.standard_normal(n)
    return _graph(cfg.name, x, edges, y[:, None], clients)


def multilabel(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph:
    """Generate ``planted-multilabel``."""
    spec, seed, clients = spec_of(PlantedMultilabel, cfg, seed, num_clients)
    rng = np.random.default_rng([seed, 3])
    n = clients * spec.nodes
    bits = rng.random((n, spec.columns)) < 0.5
    x = (bits - 0.5) * spec.distance + rng.standard_normal((n, spec.columns))
    y = np.where(rng.random(bits.shape) < spec.unknown, np.nan, bits)
    return _graph(cfg.name, x.astype(np.float32), _edges(clients, spec.nodes, spec.degree, rng), y, clients)


def triples(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph:
    """Generate ``planted-triples``.

    Raises:
        FedGraphError: more relations than distinct shifts.
    """
    spec, seed, clients = spec_of(PlantedTriples, cfg, seed, num_clients)
    n = spec.entities
    if spec.relations > n - 1:
        raise FedGraphError(f"dataset.relations={spec.relations} must be below dataset.entities={n}: change one")
    rng = np.random.default_rng([seed, 4])
    shift = rng.permutation(np.arange(1, n))[: spec.relations]
    relation, head, step, client = (
        axis.ravel() for axis in np.indices((spec.relations, n, spec.tails, clients), dtype=np.int64)
    )
    tail = head + shift[relation] + step
    kept = (rng.random(tail.size) < spec.share) & (spec.ring | (tail < n))
    rows = np.stack([client * n + head, client * n + tail % n, relation])[:, kept]
    rows = np.unique(rows, axis=1)
    count = clients * n
    return _graph(
        cfg.name,
        np.ones((count, 1), dtype=np.float32),
        rows[:2],
        np.zeros((count, 0)),
        clients,
        edge_y=torch.from_numpy(np.ascontiguousarray(rows[2])),
        num_edge_classes=spec.relations,
    )


def cycles(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph:
    """Generate ``cycles``."""
    spec, seed, clients = spec_of(Cycles, cfg, seed, num_clients)
    rng = np.random.default_rng([seed, 5])
    count = clients * spec.graphs
    m = rng.integers(spec.low, spec.high + 1, size=count)
    one = rng.permuted(np.tile(np.arange(spec.graphs) % 2, (clients, 1)), axis=1).ravel()  # whether it is one cycle
    size = 2 * m
    start = np.repeat(np.cumsum(size) - size, size)
    place, length = np.arange(size.sum()) - start, np.repeat(np.where(one == 1, size, m), size)
    after = start + place // length * length + (place + 1) % length
    ends = np.stack([np.arange(size.sum()), after])
    return _many(
        cfg.name, size, np.concatenate([ends, ends[::-1]], axis=1), clients, y=torch.from_numpy(one), num_classes=2
    )


def counts(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph:
    """Generate ``planted-counts``."""
    spec, seed, clients = spec_of(PlantedCounts, cfg, seed, num_clients)
    rng = np.random.default_rng([seed, 6])
    count, most = clients * spec.graphs, spec.high
    size = rng.integers(spec.low, most + 1, size=count)
    probability = np.minimum(spec.degree / (size - 1), 1)
    upper = np.triu(rng.random((count, most, most)) < probability[:, None, None], 1)
    within = np.arange(most) < size[:, None]
    joined = upper & within[:, None, :] & within[:, :, None]
    full = (joined | joined.swapaxes(1, 2)).astype(np.float64)
    triangles = np.einsum("gij,gjk,gki->g", full, full, full) / 6
    graph, source, target = np.nonzero(full)
    start = np.cumsum(size) - size
    targets = np.stack([joined.sum((1, 2)), np.where(rng.random(count) < spec.unknown, np.nan, triangles)], axis=1)
    edges = np.stack([start[graph] + source, start[graph] + target])
    return _many(cfg.name, size, edges, clients, targets=torch.from_numpy(targets), num_classes=1)


def _many(name: str, size: np.ndarray, edges: np.ndarray, clients: int, **more: Any) -> Graph:
    """Return graphs of ``size`` nodes [G] with constant features, as many for each client."""
    return side_by_side(
        torch.ones(int(size.sum()), 1, dtype=torch.float32),
        torch.from_numpy(np.ascontiguousarray(edges[:, np.lexsort(edges[::-1])])),
        torch.from_numpy(size),
        name=name,
        group=torch.arange(clients).repeat_interleave(size.size // clients),
        **more,
    )


def _standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def _edges(clients: int, nodes: int, degree: float, rng: np.random.Generator) -> np.ndarray:
    """Draw undirected edges within each block of nodes, in both directions, sorted and distinct [2, E]."""
    drawn = round(clients * nodes * degree / 2)
    block = rng.integers(clients, size=drawn) * nodes
    ends = rng.integers(nodes, size=(2, drawn)) + block
    return to_undirected(torch.from_numpy(ends[:, ends[0] != ends[1]]), clients * nodes).numpy()


def _graph(name: str, x: np.ndarray, edges: np.ndarray, targets: np.ndarray, clients: int, **more: Any) -> Graph:
    """Return an unsplit graph whose clients are blocks of equally many nodes."""
    values: Mapping[str, Any] = {
        "y": torch.full((len(x),), -1),
        "num_classes": 1,
        "group": torch.arange(clients).repeat_interleave(len(x) // clients),
        **more,
    }
    return Graph(
        x=torch.from_numpy(np.ascontiguousarray(x)),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges)),
        **unsplit(len(x)),
        name=name,
        targets=torch.from_numpy(targets.astype(np.float32)),
        **values,
    )
