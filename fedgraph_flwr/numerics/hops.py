"""Weights of hops, and the adjacency whose powers they combine: Ã = A + I, Â = D̃⁻¹ Ã, Ā = Σ_l β_l Â^l."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.sparse import row_sums

Array = NDArray[Any]


def hop_weights(beta: str | Sequence[float], hops: int) -> Array:
    """Return the weights of the hops in each combination, [J, L].

    ``last`` is Â^L, ``uniform`` the mean of the powers, a list sets β_1..β_L, and ``learned`` keeps every power (J = L).

    Raises:
        FedGraphError: an unknown value, or a list whose length is not L.
    """
    named = {"last": np.eye(hops)[-1:], "uniform": np.full((1, hops), 1 / hops), "learned": np.eye(hops)}
    if isinstance(beta, str):
        if beta not in named:
            raise FedGraphError(f"model.beta must be last, uniform, learned or a list of numbers, got '{beta}'")
        return named[beta]
    if len(beta) != hops:
        raise FedGraphError(f"model.beta has {len(beta)} weights for {hops} hops: expected one per hop")
    return np.asarray(beta, dtype=np.float64)[None]


def pattern(rows: Array, columns: Array, shape: tuple[int, int], dtype: Any = np.float64) -> sp.csr_matrix:
    """Return ones at the given entries, each once, with the columns of a row in order."""
    matrix = sp.csr_matrix((np.ones(rows.size, dtype), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def with_loops(
    rows: Array, columns: Array, diagonal: Array, shape: tuple[int, int], dtype: Any = np.float64
) -> sp.csr_matrix:
    """Return Ã of the given edges: ones at their entries, and at (row v, column ``diagonal[v]``) for each row."""
    loops = np.arange(shape[0])
    return pattern(np.concatenate([rows, loops]), np.concatenate([columns, diagonal]), shape, dtype)


def row_normalized(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return D⁻¹ M for a matrix without empty rows."""
    scale = 1 / row_sums(matrix)
    return sp.csr_matrix(
        (matrix.data * np.repeat(scale, np.diff(matrix.indptr)), matrix.indices, matrix.indptr), matrix.shape
    )
