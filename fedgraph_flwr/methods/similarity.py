"""How alike clients are, by vectors that they tell."""

import numpy as np


def cosines(vectors: np.ndarray) -> np.ndarray:
    """S_ij = ⟨a_i, a_j⟩ / (‖a_i‖ ‖a_j‖) of rows [n, D] → [n, n], symmetric, diagonal 1; a zero row is like itself alone."""
    rows = vectors.astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    found = np.clip(rows @ rows.T, -1, 1)
    np.fill_diagonal(found, 1)
    return found
