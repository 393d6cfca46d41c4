"""Random walks on a graph, counted exactly without a power of its matrix."""

from logging import WARNING

import numpy as np
import scipy.sparse as sp
from flwr.common.logger import log
from numpy.typing import NDArray

BLOCK = 256
LONG = 30
"""Seconds that are told beforehand."""
PRODUCTS = 1e9
"""Of a sparse entry and a number, a second: of one core, about."""


def return_probabilities(adjacency: sp.csr_matrix, steps: int, block: int = BLOCK) -> NDArray[np.float64]:
    """How likely a walk from each node is back after 1..steps steps, diag((A D^{-1})^k): [N, steps].

    D holds the edges that leave a node; a walk at a node without any ends. ``block`` columns of the identity are propagated at
    a time: N x block numbers at once, steps · E · N products in all (4,000 nodes of degree 10 and 16 steps: 2 s; four times the
    nodes: 16 times that), and no power of A, which fills up within a few steps.

    Args:
        adjacency: A [N, N], entry (v, u) counts the edges u → v.
        steps: k at most.
        block: columns at a time.
    """
    n = adjacency.shape[0]
    if (seconds := n * adjacency.nnz * steps / PRODUCTS) > LONG:
        log(
            WARNING,
            "walks of %d steps from %d nodes over %d edges take about %d minutes, once",
            steps,
            n,
            adjacency.nnz,
            seconds / 60 + 1,
        )
    leaving = np.asarray(adjacency.sum(axis=0)).ravel()
    walk = sp.csr_matrix(adjacency @ sp.diags(np.divide(1, leaving, out=np.zeros(n), where=leaving > 0)))
    found = np.zeros((n, steps))
    for start in range(0, n, block):
        nodes = np.arange(start, min(start + block, n))
        at = np.zeros((n, nodes.size))
        at[nodes, nodes - start] = 1
        for step in range(steps):
            at = walk @ at
            found[nodes, step] = at[nodes, nodes - start]
    return found
