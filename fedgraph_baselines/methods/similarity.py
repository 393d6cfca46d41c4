"""Similarity of clients, by vectors that they send."""

import numpy as np


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Compute S_ij = ⟨a_i, a_j⟩ / (‖a_i‖ ‖a_j‖) of rows [n, D] → [n, n], symmetric, diagonal 1; 0 for a zero row and others."""
    rows = unit_rows(vectors)
    matrix = np.clip(rows @ rows.T, -1, 1)
    np.fill_diagonal(matrix, 1)
    return matrix


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Divide rows [n, D] by their lengths, in float64; a zero row stays zero."""
    rows = vectors.astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
