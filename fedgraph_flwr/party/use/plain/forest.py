"""Gradient-boosted trees, in NumPy only."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.numerics.forest import leaves

FOLDER = Path(__file__).parent
Floats = NDArray[np.float64]


def load(folder: Path = FOLDER) -> dict:
    """Return the arrays of ``trees.npz`` and the entries of ``export.json``."""
    with np.load(folder / "trees.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays | {"about": json.loads((folder / "export.json").read_text())}


def raw_scores(model: Mapping, x: Floats) -> Floats:
    """Return raw scores [V, K] of columns [V, F], NaN where missing, in the order of ``columns`` of ``export.json``."""
    reached = model["value"][leaves(model, np.asarray(x, dtype=np.float64))]
    outputs = model["about"]["outputs"]
    return np.stack([reached[model["output"] == k].sum(axis=0) for k in range(outputs)], axis=1)


def predict(model: Mapping, x: Floats) -> Floats:
    """Return probabilities of the classes [V, C], or targets [V, K] in the unit of the data."""
    raw, about = raw_scores(model, x), model["about"]
    if about["kind"] == "square":
        return raw * np.array(about["target_stats"][1]) + np.array(about["target_stats"][0])
    if about["kind"] == "logistic":
        p = 0.5 * (1 + np.tanh(raw / 2))
        return np.concatenate([1 - p, p], axis=1) if about["binary"] else p
    p = np.exp(raw - raw.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)
