"""Trees of a finished run: names of their columns, the gain of each, and their export.

trees.npz         plain arrays (`numerics.forest`)
model.txt         the same as a model file of LightGBM: ``lightgbm.Booster(model_file="model.txt").predict(x, raw_score=True)``
model.py          load and predict, in NumPy only
metrics.json      scores of the run, and of each client
export.json       columns, classes and the kind of scores; schema.yaml for imported tables; MODEL_CARD.md
"""

import inspect
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.forest import empty_forest, gains, leaves
from fedgraph_flwr.party.use.card import escaped, scores, write_export
from fedgraph_flwr.party.use.predict import Predictor, as_scored
from fedgraph_flwr.tasks.trees import objective_of

PLAIN = Path(__file__).parent / "plain" / "forest.py"
OURS = f"from {leaves.__module__} import leaves\n"
"""Import of `PLAIN` in whose place an exported folder has the code."""

_OBJECTIVES = {"logistic": "binary sigmoid:1", "softmax": "multiclass num_class:{}", "square": "regression"}


def importance(predictor: Predictor) -> dict[str, float]:
    """Return the share of each column in the gain of all splits, largest first."""
    names = predictor.column_names
    column_gains = gains(predictor.forest, len(names))
    total = column_gains.sum()
    return {
        names[i]: float(column_gains[i] / total) for i in np.argsort(-column_gains, kind="stable") if column_gains[i]
    }


def export_trees(predictor: Predictor, folder: Path, run: Path | None, index: str) -> Path:
    """Write the trees to a folder, and return it.

    Args:
        predictor: the model.
        folder: new folder, or one of an earlier export.
        run: run folder with its scores; None if not available.
        index: name of the file that describes the export, written last.
    """
    forest, cfg = predictor.forest, predictor.cfg
    width = predictor.width
    objective, names = objective_of(cfg, width), predictor.column_names
    stats = predictor.target_stats.tolist() if predictor.task.capabilities.targets else []
    file = io.BytesIO()
    arrays: dict[str, Any] = dict(forest)
    np.savez(file, **arrays)
    text = lightgbm_text(forest, objective.outputs, names, _OBJECTIVES[objective.kind].format(objective.outputs))
    module = f"{PLAIN.read_text().replace(OURS, '')}\n\n{inspect.getsource(leaves)}"
    files: dict[str, str | bytes] = {"trees.npz": file.getvalue(), "model.txt": text, "model.py": module}
    summary = scores(run, predictor)
    largest = list(importance(predictor).items())[:20]
    card = [
        f"# {cfg.strategy.name} on {escaped(cfg.data_text)}",
        "",
        f"{len(forest['start'])} trees on {len(names)} columns, task={cfg.task.name}, {cfg.num_clients} clients, seed {cfg.seed},"
        f" strategy.mode={cfg.strategy.params.get('mode')}. Columns, in order, are in `{index}`.",
        "",
        "```python",
        "from model import load, predict",
        "probabilities = predict(load(), x)      # x [V, F] in the order of the columns, NaN where missing",
        "```",
        "",
        "Trees that parties fitted alone (bagging) tell of single records: split thresholds and leaf values.",
        "",
        "| column | share of the gain |",
        "|---|---|",
        *(f"| {escaped(name)} | {share:.3f} |" for name, share in largest),
        "",
        f"Scores: `metrics.json`, {summary.get('headline', 'none')}.",
        "",
    ]
    about: dict[str, Any] = {"module": "forest", "columns": names, "target_stats": stats}
    about |= {key: getattr(objective, key) for key in ("kind", "binary", "outputs")}
    spec = predictor.input_spec
    about |= {
        "step": as_scored(cfg, predictor.task).split.step,
        "neighbours": bool(cfg.strategy.params.get("neighbours")),
        "edge_columns": bool(cfg.strategy.params.get("edge_columns")),
        "inputs": cfg.strategy.params.get("inputs", "columns"),
        "num_features": spec.num_features,
        "schema": spec.schema.to_dict() if spec.schema else {},
        "undirected": spec.undirected,
    }
    return write_export(folder, predictor, files | {"MODEL_CARD.md": "\n".join(card)}, summary, index, about)


def shapley(forest: Mapping[str, NDArray], x: NDArray, background: NDArray, outputs: int) -> NDArray:
    """Return SHAP values of columns, and the mean score last, by LightGBM: [V, K, F + 1], whose sum is the raw score.

    Args:
        forest: the trees.
        x: columns of the rows to explain [V, F].
        background: columns of the rows by which nodes are weighed [V', F].
        outputs: K.

    Raises:
        FedGraphError: LightGBM is not installed.
    """
    try:
        from lightgbm import Booster
    except ImportError:
        raise FedGraphError("explain of trees needs LightGBM: pip install 'fedgraph-flwr[trees]'", "package") from None
    if not len(forest["start"]):
        return np.zeros((len(x), outputs, x.shape[1] + 1))
    names = list(map(str, range(x.shape[1])))
    kind = f"multiclass num_class:{outputs}" if outputs > 1 else "regression"
    text = lightgbm_text({**forest, "count": node_counts(forest, background)}, outputs, names, kind)
    return np.asarray(Booster(model_str=text).predict(x, pred_contrib=True)).reshape(len(x), outputs, -1)


def node_counts(forest: Mapping[str, NDArray], x: NDArray) -> NDArray[np.int64]:
    """Return how many rows reach each node [S], times a factor: the largest for which LightGBM's 32-bit counts hold them.

    One is added for each leaf below a node, so that none is empty. The factor makes it negligible.
    """
    split, size = forest["feature"] >= 0, len(forest["feature"])
    start = np.repeat(forest["start"], np.diff(np.append(forest["start"], size)))
    parent = np.full(size, -1)
    for side in ("left", "right"):
        parent[(start + forest[side])[split]] = np.flatnonzero(split)
    largest = int(np.diff(np.append(forest["start"], size)).max(initial=1))
    factor = max((2**31 - 1 - largest) // max(len(x), 1), 1)
    count = factor * np.bincount(leaves(forest, x).ravel(), minlength=size).astype(np.int64) + ~split
    at = np.flatnonzero(~split)
    rows = count[at]
    while at.size:
        inner = parent[at] >= 0
        at, rows = parent[at[inner]], rows[inner]
        np.add.at(count, at, rows)
    return count


def lightgbm_text(forest: Mapping[str, NDArray], outputs: int, names: Sequence[str], objective: str) -> str:
    """Return the forest as the text of a LightGBM model, whose iterations have one tree per output.

    Rows at each node are its ``count``, 0 without this array.
    """
    forest = {"count": np.zeros(len(forest["feature"]), np.int64), **forest}
    ends = np.append(forest["start"][1:], len(forest["feature"]))
    trees = [
        {key: forest[key][first:end] for key in forest if key not in ("start", "output")}
        for first, end in zip(forest["start"], ends, strict=True)
    ]
    of = [[tree for tree, k in zip(trees, forest["output"], strict=True) if k == output] for output in range(outputs)]
    blocks: list[str] = []
    for place in range(max(map(len, of), default=0)):
        blocks += [_block(len(blocks) + k, group[place] if place < len(group) else None) for k, group in enumerate(of)]
    head = [
        "tree",
        "version=v4",
        f"num_class={outputs if outputs > 1 else 1}",
        f"num_tree_per_iteration={outputs}",
        "label_index=0",
        f"max_feature_idx={len(names) - 1}",
        f"objective={objective}",
        "feature_names=" + " ".join(f"Column_{i}" for i in range(len(names))),
        "feature_infos=" + " ".join(["[-1e300:1e300]"] * len(names)),
        "tree_sizes=" + " ".join(str(len(block.encode())) for block in blocks),
        "",
        "",
    ]
    end = "end of trees\n\nparameters:\n\nend of parameters\n\npandas_categorical:null\n"
    return "\n".join(head) + "".join(blocks) + end


def _block(number: int, tree: Mapping[str, NDArray] | None) -> str:
    """Return one tree as LightGBM's text, splits and leaves numbered apart; None: a tree of score 0."""
    if tree is None:
        tree = {**empty_forest(), "feature": np.array([-1]), "value": np.zeros(1), "count": np.ones(1, int)}
    split = tree["feature"] >= 0
    leaf_values = tree["value"][~split]
    lines: dict[str, Sequence[Any]] = {"num_leaves": [len(leaf_values)], "num_cat": [0]}
    if split.any():
        place = np.where(split, split.cumsum() - 1, ~((~split).cumsum() - 1))
        lines |= {
            "split_feature": tree["feature"][split].tolist(),
            "split_gain": [f"{gain:.17g}" for gain in tree["value"][split]],
            "threshold": [f"{threshold:.17g}" for threshold in tree["threshold"][split]],
            "decision_type": (8 + 2 * tree["default_left"][split].astype(np.int64)).tolist(),
            "left_child": place[tree["left"][split]].tolist(),
            "right_child": place[tree["right"][split]].tolist(),
        }
    lines["leaf_value"] = [f"{value:.17g}" for value in leaf_values]
    if split.any():
        zeros, inner = [0] * len(leaf_values), [0] * int(split.sum())
        lines |= {"leaf_weight": zeros, "leaf_count": tree["count"][~split].tolist()}
        lines |= {"internal_value": inner, "internal_weight": inner, "internal_count": tree["count"][split].tolist()}
    lines |= {"is_linear": [0], "shrinkage": [1]}
    text = "\n".join(f"{key}={' '.join(map(str, values))}" for key, values in lines.items())
    return f"Tree={number}\n{text}\n\n\n"
