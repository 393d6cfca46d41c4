"""Blend of exported models, in NumPy only: the weighted sum of their log-probabilities."""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def blend(logits: list, folder: Path = FOLDER) -> np.ndarray:
    """Return blended logits [V, C] of those of the members [V, C], which the ``model.py`` of each part gives, in their order.

    Trees give probabilities: pass their logarithms.
    """
    weights = json.loads((folder / "export.json").read_text())["weights"]
    total = np.array(weights["bias"], dtype=np.float64)
    for member, weight in zip(logits, weights["runs"], strict=True):
        member = np.asarray(member, dtype=np.float64)
        top = member.max(axis=1, keepdims=True)
        total = total + weight * (member - top - np.log(np.exp(member - top).sum(axis=1, keepdims=True)))
    return total
