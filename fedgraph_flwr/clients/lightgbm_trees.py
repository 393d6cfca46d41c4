"""Trees of one party by LightGBM, as plain arrays (`numerics.forest`). Only the party's own model text is read.

The same rows give the same trees on every machine: one thread, row-wise histograms, no sampling of rows or columns.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.boosting import BoostingParams, Objective
from fedgraph_flwr.numerics.forest import LARGEST, Floats, empty_forest, joined
from fedgraph_flwr.numerics.gathered import AT_ONCE, Gathered
from fedgraph_flwr.wire.messages import Arrays

_NAMES = {"logistic": "binary", "softmax": "multiclass", "square": "regression"}


def lightgbm() -> Any:
    """Import LightGBM.

    Raises:
        FedGraphError: it is not installed.
    """
    try:
        import lightgbm as module
    except ImportError as error:
        raise FedGraphError(
            f"strategy=boosting with strategy.mode=bagging needs LightGBM ({error}): install fedgraph-flwr[trees], or set"
            " strategy.mode=histogram"
        ) from error
    return module


class LabelledRows:
    """Rows to fit trees to, or to stop by.

    Args:
        x: columns [V, F], of which LightGBM reads some rows at a time and keeps bins, a byte each.
        targets: [V, K], NaN where unknown.
        weights: [V].
        start: raw scores to start from [V, K].
    """

    def __init__(self, x: Gathered, targets: Floats, weights: Floats, start: Floats):
        self.x, self.targets, self.weights, self.start = x, targets, weights, start

    def of(self, output: int) -> "LabelledRows":
        """Return the rows with a known target of one output."""
        kept = ~np.isnan(self.targets[:, output])
        one = slice(output, output + 1)
        return LabelledRows(self.x.at(kept), self.targets[kept, one], self.weights[kept], self.start[kept, one])

    def data(self, softmax: bool, params: dict[str, Any], reference: Any = None) -> Any:
        """Return LightGBM's data set."""
        label = self.targets.argmax(axis=1) if softmax else self.targets[:, 0]
        start = self.start if softmax else self.start[:, 0]
        held = {"weight": self.weights, "init_score": start, "params": params, "reference": reference}
        return _data(self.x, label, **held)


def _data(x: Gathered, label: NDArray[Any], **held: Any) -> Any:
    """Return LightGBM's data set of rows that it reads some at a time: the same bins as of a matrix, without the matrix."""

    class RowSequence(lightgbm().Sequence):  # type: ignore[misc]
        batch_size = max(AT_ONCE // max(x.shape[1], 1), 1)

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, rows: Any) -> Floats:
            return x[rows]

    class Data(lightgbm().Dataset):  # type: ignore[misc]
        def get_params(self) -> dict[str, Any]:
            """Return all parameters: the class leaves out the seed and the fewest rows of a leaf, which bins of a matrix heed."""
            return dict(self.params)

    return Data(RowSequence(), label, **held)


def fit(
    objective: Objective,
    train: LabelledRows,
    val: LabelledRows,
    params: BoostingParams,
    iterations: int,
    trained: NDArray[np.bool_],
    seed: int,
) -> tuple[Arrays, bool]:
    """Fit trees, and return them with whether further ones would not help.

    Args:
        objective: the loss.
        train: training rows.
        val: validation rows, by which the number of iterations is chosen if ``params.patience`` is set; may be empty.
        params: keys of the method.
        iterations: maximum number of boosting iterations.
        trained: outputs that get trees [K].
        seed: seed of LightGBM, which draws nothing with these settings.
    """
    softmax = objective.kind == "softmax"
    rules: dict[str, Any] = {
        "objective": _NAMES[objective.kind],
        "learning_rate": params.learning_rate,
        "num_leaves": params.leaves,
        "max_depth": params.depth,
        "lambda_l2": params.l2,
        "min_data_in_leaf": params.min_data_in_leaf,
        "max_bin": params.bins,
        "boost_from_average": False,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "seed": seed % 2**31,
        "verbosity": -1,
        **({"num_class": objective.width} if softmax else {}),
    }
    if softmax:
        trees, ended = _fitted(rules, train, val, params.patience, iterations)
        return _without(trees, trained), ended
    forests, ended = [], True
    for output in np.flatnonzero(trained).tolist():
        trees, done = _fitted(rules, train.of(output), val.of(output), params.patience, iterations)
        forests.append(trees | {"output": np.full(len(trees["output"]), output, np.int32)})
        ended = ended and done
    return joined(forests), ended


def _fitted(
    rules: dict[str, Any], train: LabelledRows, val: LabelledRows, patience: int, iterations: int
) -> tuple[Arrays, bool]:
    """Fit one model of LightGBM by its parameters."""
    softmax = "num_class" in rules
    data = train.data(softmax, rules)
    stops = bool(patience) and len(val.x) > 0
    booster = lightgbm().train(
        rules,
        data,
        iterations,
        valid_sets=[val.data(softmax, rules, data)] if stops else None,
        callbacks=[lightgbm().early_stopping(patience, verbose=False)] if stops else None,
    )
    kept = booster.best_iteration if stops and booster.best_iteration > 0 else booster.current_iteration()
    return parsed(booster.model_to_string(num_iteration=kept), rules.get("num_class", 1)), kept < iterations


def parsed(text: str, outputs: int) -> Arrays:
    """Return the trees in the text of LightGBM's model, in turn those of each output; trees without a split are left out."""
    trees = []
    for number, block in enumerate(text.split("\nend of trees")[0].split("\nTree=")[1:]):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if int(values["num_leaves"]) > 1:
            trees.append(_tree(values) | {"output": np.array([number % outputs], np.int32)})
    return joined(trees) if trees else empty_forest()


def _tree(values: dict[str, str]) -> Arrays:
    """Return one tree: splits first, in LightGBM's order, then leaves."""
    read = {key: np.array(values[key].split(), np.float64) for key in ("threshold", "split_gain", "leaf_value")}
    whole = {
        key: np.array(values[key].split(), np.int64)
        for key in ("split_feature", "decision_type", "left_child", "right_child")
    }
    splits, count = len(whole["split_feature"]), len(read["leaf_value"])
    kind = whole["decision_type"]
    if (kind & 1).any():
        raise FedGraphError("LightGBM split a column by categories: expected numbers only")
    # Bits 2 and 3: how missing values are found; without any in training, LightGBM reads them as 0.
    default = np.where((kind >> 2) & 3 == 2, (kind & 2) > 0, read["threshold"] >= 0)
    children = (
        np.where(indices < 0, splits + ~indices, indices) for indices in (whole["left_child"], whole["right_child"])
    )
    left, right = (np.concatenate([indices, np.zeros(count, np.int64)]).astype(np.int32) for indices in children)
    return {
        "start": np.zeros(1, np.int32),
        "feature": np.concatenate([whole["split_feature"], np.full(count, -1)]).astype(np.int32),
        "threshold": np.concatenate([np.clip(read["threshold"], -LARGEST, LARGEST), np.zeros(count)]),
        "left": left,
        "right": right,
        "value": np.concatenate([np.maximum(read["split_gain"], 0), read["leaf_value"]]),
        "default_left": np.concatenate([default, np.zeros(count, bool)]),
    }


def _without(forest: Arrays, trained: NDArray[np.bool_]) -> Arrays:
    """Return the forest without the trees of outputs that are not trained."""
    kept = trained[forest["output"]]
    if kept.all():
        return forest
    ends = np.append(forest["start"][1:], len(forest["feature"]))
    size = ends - forest["start"]
    nodes = np.repeat(kept, size)
    arrays = {name: array[kept if name in ("start", "output") else nodes] for name, array in forest.items()}
    return arrays | {"start": (size[kept].cumsum() - size[kept]).astype(np.int32)}
