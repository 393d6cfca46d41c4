"""Gradient-boosted trees, in NumPy only."""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def load(folder: Path = FOLDER) -> dict:
    """Return the arrays of ``trees.npz`` and the entries of ``export.json``."""
    with np.load(folder / "trees.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays | {"about": json.loads((folder / "export.json").read_text())}


def raw_scores(model: dict, x: np.ndarray) -> np.ndarray:
    """Return raw scores [V, K] of columns [V, F], NaN where missing, in the order of ``columns`` of ``export.json``."""
    x = np.asarray(x, dtype=np.float64)
    start, feature = model["start"].astype(np.int64), model["feature"]
    at = np.repeat(start[:, None], len(x), axis=1)
    tree, row = (feature[at] >= 0).nonzero()
    while tree.size:
        node = at[tree, row]
        value = x[row, feature[node]]
        left = np.where(np.isnan(value), model["default_left"][node], value <= model["threshold"][node])
        node = start[tree] + np.where(left, model["left"][node], model["right"][node])
        at[tree, row] = node
        inner = feature[node] >= 0
        tree, row = tree[inner], row[inner]
    reached = model["value"][at]
    outputs = model["about"]["outputs"]
    return np.stack([reached[model["output"] == k].sum(axis=0) for k in range(outputs)], axis=1)


def predict(model: dict, x: np.ndarray) -> np.ndarray:
    """Return probabilities of the classes [V, C], or targets [V, K] in the unit of the data."""
    raw, about = raw_scores(model, x), model["about"]
    if about["kind"] == "square":
        return raw * np.array(about["target_stats"][1]) + np.array(about["target_stats"][0])
    if about["kind"] == "logistic":
        p = 0.5 * (1 + np.tanh(raw / 2))
        return np.concatenate([1 - p, p], axis=1) if about["binary"] else p
    p = np.exp(raw - raw.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)
