"""GCFL and GCFL+: their keys, the comparison of clients, and the cut that splits a cluster in two."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, Reducer, Uplink
from fedgraph_flwr.wire.messages import METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import NumberField

GRADIENT = "gradient-norm"
"""Number, up, with ``series=gradient``: the norm of the last step's gradient."""


@dataclass
class Params:
    """Keys of GCFL."""

    plus: bool = False  # GCFL+: clusters are cut by series of norms instead of the round's updates
    eps1: float = 0.05  # ε1: a cluster is split if the norm of its mean update is below it; 0 is FedAvg
    eps2: float = 0.1  # ε2: and if the largest norm of a member's update is above it
    # weighted, by `weighting` | uniform (the authors' code): the mean that eps1 bounds
    mean: str = choice("weighted", ("weighted", "uniform"))
    warmup: int = 20  # rounds before the first split
    length: int = number(5, low=2, high=1000)  # GCFL+: norms in a series (10 for some datasets)
    # GCFL+: norms of updates | gradient (the authors' code): norms of the last step's gradient
    series: str = choice("update", ("update", "gradient"))


def distances(series: np.ndarray) -> np.ndarray:
    """Compute dynamic time warping distances of series [n, L] → [n, n]: the least root of summed squares over paths."""
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


def halves(similarity: np.ndarray, members: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split members by the minimum cut of their similarities (Stoer & Wagner, 1997) into two sides, each ascending.

    Args:
        similarity: similarity of each pair, at least 0, [n, n].
        members: the names of its rows, ascending.
    """
    graph = nx.Graph()
    graph.add_nodes_from(members)
    graph.add_weighted_edges_from(
        (members[i], members[j], float(similarity[i, j])) for i in range(len(members)) for j in range(i)
    )
    _, (one, other) = nx.stoer_wagner(graph)
    first, second = sorted([sorted(one), sorted(other)])
    return first, second


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, and with ``series=gradient`` the norm of a gradient."""
    norms = params.plus and params.series == "gradient"
    reducers: dict[str, Reducer] = {MODEL: Individual(ARRAYS, why="every update is compared with every other")}
    if norms:
        reducers[METRICS] = Individual({GRADIENT: NumberField(0)}, why="clients are clustered by these norms")
    return {TRAIN: reducers}
