"""Pairs of nodes: edges for training, validation and test, and pairs without an edge."""

import numpy as np

from fedgraph_flwr.config import SplitConfig
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.split import in_order
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.draws import GOLDEN, mix

STAGED = {
    "temporal": "import the tables with columns.time=NAME and --split temporal",
    "public": "choose a dataset that assigns edges to stages",
}
"""Remedy for edges without stages by ``split.kind``."""

MAX_DRAWN = 2**26
"""Pairs without an edge, or wrong ends of triples, that a client holds at once."""


def mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014): uint64 [n] to uint64 [n], one to one."""
    return mix(values.astype(np.uint64))


def keyed(pairs: np.ndarray, key: int) -> np.ndarray:
    """A keyed hash of pairs of ids [2, P], uint64 [P], which depends on nothing else."""
    first = mixed(pairs[0].astype(np.uint64) + np.uint64(key))
    return mixed(first + pairs[1].astype(np.uint64) * np.uint64(GOLDEN))


def undirected(edge_index: np.ndarray) -> np.ndarray:
    """The distinct pairs that edges [2, E] join in either direction, without loops: [2, P], smaller end first, ascending."""
    low, high = edge_index.min(0), edge_index.max(0)
    pairs = np.stack([low, high])[:, low < high]
    return np.unique(pairs, axis=1)


def codes(pairs: np.ndarray, num_nodes: int) -> np.ndarray:
    """One number per pair [2, P] in either direction, int64 [P]."""
    return np.asarray(pairs.min(0) * num_nodes + pairs.max(0))


def split_by_owner(order: np.ndarray, owner: np.ndarray, shares: tuple[float, float, float]) -> list[np.ndarray]:
    """Return the positions of training, validation and test items, by owner, each owner's split by `in_order`.

    Args:
        order: positions of all items, in the order of their split [P].
        owner: of each item [P].
        shares: as of `in_order`.
    """
    order = order[np.argsort(owner[order], kind="stable")]
    owners = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    return [np.concatenate(rows) for rows in zip(*(in_order(one, shares) for one in owners), strict=True)]


def check_drawn(client: int, items: int, count: int, named: str, key: str, most: int) -> None:
    """Refuse to draw more than `MAX_DRAWN` wrong ones at once.

    Args:
        client: index of the client.
        items: number of true ones.
        count: wrong ones for each.
        named: what they are, for the error.
        key: the key to lower.
        most: what to lower it to.

    Raises:
        FedGraphError: they do not fit in memory.
    """
    if items * count > MAX_DRAWN:
        raise FedGraphError(
            f"client {client} would draw {items * count} {named} for {items} items, at most {MAX_DRAWN} fit: set {key} to at"
            f" most {most}"
        )


def check_one_way(graph: Graph, task: str) -> None:
    """Refuse tables that list each edge twice.

    Raises:
        FedGraphError: they were imported with ``--undirected``.
    """
    if graph.schema.get("undirected"):
        raise FedGraphError(
            f"task={task} reads each edge once, but these tables were imported with --undirected, which lists it twice: import"
            " them without it, and set model.reverse=true for messages in both directions"
        )


def check_stages(graph: Graph, cfg: SplitConfig) -> None:
    """Check that edges have the stages that a split by time or by the data needs.

    Raises:
        FedGraphError: they have none.
    """
    if cfg.kind in STAGED and not graph.edge_split.numel():
        raise FedGraphError(
            f"split.kind={cfg.kind} needs a stage for each edge, which '{graph.name}' does not have: {STAGED[cfg.kind]}, or set"
            " split.kind=ratio"
        )


def classes_of_edges(graph: Graph, task: str, example: str) -> int:
    """Return the number of classes of a graph's edges, which all clients share.

    Args:
        graph: a graph.
        task: the task, for the error.
        example: a data set with classes, likewise.

    Raises:
        FedGraphError: the edges have no labels.
    """
    count = graph.num_edge_classes or len(graph.schema.get("agreed", {}).get("edge_classes", ()))
    if not count:
        where = f"dataset '{graph.name}'" if graph.name else "the graph"
        raise FedGraphError(
            f"task={task} needs a label for each edge, which {where} does not have: import the tables with"
            f" columns.edge_label=NAME, or choose dataset={example}"
        )
    return int(count)


class NonEdges:
    """Draws pairs of nodes that no known edge joins.

    Args:
        pairs: known pairs [2, P], which are not drawn.
        candidates: nodes that may be drawn.
        num_nodes: N.
    """

    TRIES = 32
    """Redraws of pairs that turn out to be edges; what is an edge even then counts as no pair."""

    def __init__(self, pairs: np.ndarray, candidates: np.ndarray, num_nodes: int):
        self.known = np.sort(codes(pairs, num_nodes))
        self.candidates = candidates
        self.num_nodes = num_nodes

    def is_free(self, pairs: np.ndarray) -> np.ndarray:
        """Whether pairs [2, K] join different nodes that no known edge joins, bool [K]."""
        code = codes(pairs, self.num_nodes)
        place = np.searchsorted(self.known, code)
        hit = (place < self.known.size) & (self.known[np.minimum(place, self.known.size - 1)] == code)
        return np.asarray(~hit & (pairs[0] != pairs[1]))

    def uniform(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Up to ``count`` pairs [2, K], uniform over pairs without an edge."""
        pairs = rng.choice(self.candidates, (2, count))
        return pairs[:, self._redrawn(pairs, rng, [0, 1])]

    def corrupted(self, sources: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw for each source [K] a uniform node that is not its neighbour: nodes [K], and which draws succeeded, bool [K]."""
        pairs = np.stack([sources, rng.choice(self.candidates, sources.size)])
        free = self._redrawn(pairs, rng, [1])
        return pairs[1], free

    def _redrawn(self, pairs: np.ndarray, rng: np.random.Generator, ends: list[int]) -> np.ndarray:
        """Draw the ends of known pairs again, in place; returns which are free in the end, bool [K]."""
        for _ in range(self.TRIES):
            (taken,) = np.nonzero(~self.is_free(pairs))
            if not taken.size:
                break
            for end in ends:
                pairs[end, taken] = rng.choice(self.candidates, taken.size)
        return self.is_free(pairs)
