"""GraphSAINT's edge sampler (Zeng et al., ICLR 2020, arXiv:1907.04931, Section 3.2), with exact probabilities.

Each of m draws, with replacement, takes an edge {u, v} of the undirected simple graph with probability

    q_uv = (1/d_u + 1/d_v) / N,     Q_v = Σ_u q_uv = (1 + Σ_u 1/d_u) / N     u over the neighbours of v

which is a uniform node and one of its neighbours; a node without neighbours comes alone (ours). The batch holds the nodes of
these edges and all edges between them, so

    p_v = 1 − (1 − Q_v)^m,          p_uv = p_u + p_v − (1 − (1 − Q_u − Q_v + q_uv)^m)

The paper counts how often nodes and edges occur in draws before training; these are the limits of its counts.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.numerics.draws import Entries, Ints


class EdgeSampler:
    """Draws nodes by edges.

    Args:
        pattern: of the undirected simple graph, SciPy CSR [N, N], as of `undirected`.
        draws: m.
    """

    def __init__(self, pattern: Any, draws: int):
        self.indptr, self.indices, self.draws = pattern.indptr.astype(np.int64), pattern.indices, draws
        self.degree = np.diff(self.indptr)
        self.share = 1 / np.maximum(self.degree, 1) / len(self.degree)
        self.mass = pattern.astype(np.float64) @ self.share + 1 / len(self.degree)

    def sample(self, key: int) -> NDArray[np.int64]:
        """Return the nodes of a draw, ascending; the key is below 2^64."""
        random = np.random.default_rng(key)
        first = random.integers(len(self.degree), size=self.draws)
        degree = self.degree[first]
        rank = random.integers(np.maximum(degree, 1))
        joined = degree > 0
        second = self.indices[self.indptr[first[joined]] + rank[joined]]
        return np.unique(np.concatenate([first, second.astype(np.int64)]))

    def nodes(self, nodes: Ints) -> NDArray[np.float64]:
        """Return p_v of some nodes [n]."""
        return self._held(self.mass[nodes])

    def pairs(self, one: Ints, other: Ints) -> NDArray[np.float64]:
        """Return p_uv of pairs of different neighbours, [e] each."""
        apart = self.mass[one] + self.mass[other] - self.share[one] - self.share[other]
        return self.nodes(one) + self.nodes(other) - self._held(apart)

    def _held(self, mass: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that one of m draws takes something of probability ``mass``."""
        with np.errstate(divide="ignore"):  # of 1
            return -np.expm1(self.draws * np.log1p(-np.minimum(mass, 1)))


class ScaledEntries(Entries):
    """Entries whose factors are given."""

    factor: NDArray[np.float64]

    @classmethod
    def of(cls, entries: Entries, factor: NDArray[np.float64]) -> "ScaledEntries":
        """Return entries with factors [e]."""
        made = cls(*entries)
        made.factor = factor
        return made

    @property
    def scale(self) -> NDArray[np.float64]:
        """Factor of each entry [e]."""
        return self.factor
