"""GCFL and GCFL+: their keys, how clients are compared, and the cut that makes two clusters of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from fedgraph_flwr.config import at_least, number, one_of

GRADIENT = "gradient-norm"
"""Number, up, with ``series=gradient``: the norm of the last step's gradient."""


@dataclass
class Params:
    """Keys of GCFL."""

    plus: bool = False  # GCFL+: clusters are cut by series of norms, not by the round's updates
    eps1: float = 0.05  # ε1: a cluster is split where the norm of its mean update is below it,
    eps2: float = 0.1  # ε2: and the largest norm of a member's is above it
    mean: str = "weighted"  # weighted | uniform (the authors' program): the mean that ε1 bounds
    warmup: int = 20  # rounds before the first split
    length: int = number(5, low=2, high=1000)  # GCFL+: norms in a series
    series: str = "update"  # GCFL+: norms of a client's update | gradient (the program), of its last step's gradient
    standardize: bool = False  # GCFL+: a series is divided by its standard deviation first

    def __post_init__(self) -> None:
        for key in ("eps1", "eps2", "warmup"):
            at_least(getattr(self, key), 0, f"strategy.{key}")
        one_of(self.mean, ("weighted", "uniform"), "strategy.mean")
        one_of(self.series, ("update", "gradient"), "strategy.series")


def distances(series: np.ndarray) -> np.ndarray:
    """Dynamic time warping of all pairs of series [n, L] → [n, n]: the root of the least sum of squares along a warping path."""
    length = series.shape[1]
    unreached = np.full((len(series), len(series)), np.inf)
    above = [np.zeros_like(unreached), *[unreached] * length]
    for i in range(length):
        row = [unreached]
        for j in range(length):
            gap = np.subtract.outer(series[:, i], series[:, j]) ** 2
            row.append(gap + np.minimum(np.minimum(above[j], above[j + 1]), row[j]))
        above = row
    return np.sqrt(above[length])


def halves(likeness: np.ndarray, members: Sequence[int]) -> tuple[list[int], list[int]]:
    """The two sides, each ascending, of the minimum cut (Stoer & Wagner, 1997) between members that are this alike.

    Args:
        likeness: of each pair, none below 0, [n, n].
        members: the names of its rows, ascending.
    """
    graph = nx.Graph()
    graph.add_nodes_from(members)
    graph.add_weighted_edges_from(
        (members[i], members[j], float(likeness[i, j])) for i in range(len(members)) for j in range(i)
    )
    _, (one, other) = nx.stoer_wagner(graph)
    first, second = sorted([sorted(one), sorted(other)])
    return first, second
