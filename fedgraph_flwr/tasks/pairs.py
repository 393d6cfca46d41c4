"""Pairs of nodes: edges for training, validation and test, and pairs without an edge."""

import numpy as np

from fedgraph_flwr.numerics.draws import GOLDEN, mix


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


def split_pairs(order: np.ndarray, shares: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split positions [P] in a given order into training, validation and test: floor(share · P) of each.

    Validation takes the rest where the shares sum to 1, as for nodes.
    """
    size = order.size
    train, val, test = (int(share * size + 1e-9) for share in shares)  # 0.29 * 100 is 28.999999999999996
    if sum(shares) > 1 - 1e-9:
        val = size - train - test
    return order[:train], order[train : train + val], order[train + val : train + val + test]


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
        return self._drawn(rng.choice(self.candidates, (2, count)), rng, [0, 1])

    def corrupted(self, sources: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw for each source [K] a uniform node that is not its neighbour: nodes [K], and which draws succeeded, bool [K]."""
        pairs = np.stack([sources, rng.choice(self.candidates, sources.size)])
        free = self._redrawn(pairs, rng, [1])
        return pairs[1], free

    def _drawn(self, pairs: np.ndarray, rng: np.random.Generator, ends: list[int]) -> np.ndarray:
        return pairs[:, self._redrawn(pairs, rng, ends)]

    def _redrawn(self, pairs: np.ndarray, rng: np.random.Generator, ends: list[int]) -> np.ndarray:
        """Draw the ends of known pairs again, in place; returns which are free in the end, bool [K]."""
        for _ in range(self.TRIES):
            (taken,) = np.nonzero(~self.is_free(pairs))
            if not taken.size:
                break
            for end in ends:
                pairs[end, taken] = rng.choice(self.candidates, taken.size)
        return self.is_free(pairs)
