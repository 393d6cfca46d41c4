"""Predictions on the clients' test nodes: confusion matrices, curves for two classes, calibration.

The models predict again from the run folder and the client files, so this covers simulations only. It respects
``privacy.scores``. For a fleet, it shows the confusion matrices that clients reported (``evaluation.confusion``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.evaluation.curves import Curves
from fedgraph_flwr.evaluation.metrics import confusion
from fedgraph_flwr.numerics.forest import gains
from fedgraph_flwr.report.page import SHARE, Page, grid, note, table
from fedgraph_flwr.report.pieces import class_names
from fedgraph_flwr.report.runs import FinishedRun, RunGroup
from fedgraph_flwr.report.units import count, percent
from fedgraph_flwr.tasks import kind_of

MAX_CLIENTS, MAX_SETTINGS, MAX_COLUMNS = 24, 6, 15
BINS = 10
REPORTED = (
    "(evaluation.confusion). < n: a client has fewer than n such nodes, its policy's min_nodes, and reports no count; ≥: sum of"
    " the other clients. Rows with such cells have no shares."
)


@dataclass
class Predicted:
    """Predictions on the test nodes of a run's clients.

    Attributes:
        chances: probability of each class, [N, C].
        y: labels [N].
        clients: number of clients included.
        of: number of all clients.
    """

    chances: np.ndarray
    y: np.ndarray
    clients: int
    of: int


def predict(run: FinishedRun, load: Callable[[Path, int], Any]) -> Predicted:
    """Predict with the run's models for at most `MAX_CLIENTS` clients; ``load`` returns each one's predictor.

    Raises:
        FedGraphError: predictions are not available; the message has the reason.
    """
    kept, no_files = run.cfg.privacy.scores, "the client files are not on this machine"
    reasons = [
        (kept == "exact", f"privacy.scores={kept} keeps predictions of single nodes at the clients"),
        (kind_of(run.cfg).capabilities.classes, f"task={run.cfg.task.name} does not predict classes"),
        (run.summary, "the run is not finished"),
        (run.clients, no_files),
    ]
    if missing := [reason for holds, reason in reasons if not holds]:
        raise FedGraphError(missing[0])
    of = 1 if run.cfg.strategy.pooled else len(run.clients)
    chances, labels = [], []
    for client in range(min(of, MAX_CLIENTS)):
        predictor = load(run.folder, client)
        graph = predictor.client_graph
        if graph is None:
            raise FedGraphError(no_files)
        logits, task = predictor.items(graph)
        test = task.masks["test"] & (task.y >= 0)
        chances.append(logits[test].double().softmax(1).numpy())
        labels.append(task.y[test].numpy())
    predictions = Predicted(np.concatenate(chances), np.concatenate(labels), min(of, MAX_CLIENTS), of)
    if not predictions.y.size:
        raise FedGraphError("no client has a labelled test node")
    return predictions


def shown(page: Page, groups: Sequence[RunGroup], load: Callable[[Path, int], Any]) -> list[Markup]:
    """Return the parts of the section, for the first run of each setting."""
    known, reported, missing = {}, {}, {}
    for group in groups[:MAX_SETTINGS]:
        try:
            known[group.name] = group.runs[0], predict(group.runs[0], load)
        except (FedGraphError, ValueError, KeyError, IndexError, RuntimeError) as error:
            if group.runs[0].confusion:
                reported[group.name] = group.runs[0]
            else:
                missing[group.name] = first_line(error)
    matrices = {
        name: _matrix(run, confusion(p.chances.argmax(1), p.y, p.chances.shape[1])) for name, (run, p) in known.items()
    }
    matrices |= {
        name: _matrix(run, np.array(run.confusion), np.array(run.confusion_below)) for name, run in reported.items()
    }
    parts = []
    if matrices:
        parts.append(grid(_confusions(page, matrices), *(_curves(page, known) if known else ())))
        few = [f"{name}: {p.clients} of {p.of} clients" for name, (_, p) in known.items() if p.clients < p.of]
        parts += [note(f"Only some clients are included: {'; '.join(few)}.")] if few else []
    parts += [note(f"As reported by the clients of {name} {REPORTED}") for name in reported]
    parts += [note(f"Not shown for {name}: {reason}.") for name, reason in missing.items()]
    parts += [part for group in groups[:MAX_SETTINGS] if (part := _columns(group, load))]
    left = [group.name for group in groups[MAX_SETTINGS:]]
    return parts + ([note(f"Not shown, of {len(groups)} settings: {', '.join(left)}.")] if left else [])


def _columns(group: RunGroup, load: Callable[[Path, int], Any]) -> Markup | None:
    """Return a table of the columns that trees gain most by; None for a network."""
    try:
        predictor = load(group.runs[0].folder, 0)
        if not (forest := getattr(predictor, "forest", {})):
            return None
        names = predictor.column_names
    except FedGraphError:
        return None
    gain = gains(forest, len(names))
    order = np.argsort(-gain, kind="stable")[:MAX_COLUMNS]
    rows = [[(names[i], float(-gain[i])), (percent(gain[i] / gain.sum()), gain[i])] for i in order if gain[i]]
    whose = "" if group.runs[0].cfg.strategy.shared else " of client 0"
    about = f"Columns that the trees{whose} of {group.name} gain most by: share of the gain of all splits."
    return table(["column", "gain"], rows, about)


def _confusions(page: Page, matrices: dict[str, dict[str, Any]]) -> Markup:
    rows = max(len(view["rows"]) for view in matrices.values())
    how = "Share of a class's test nodes (row) by predicted class (column), in %. The colour shows the same share."
    return page.chart("Confusion matrix", how, "heat", height=max(320, 110 + 26 * rows), views=matrices)


def _curves(page: Page, known: dict[str, tuple[FinishedRun, Predicted]]) -> list[Markup]:
    """Return the charts that need probabilities of single nodes."""
    every = {name: predictions for name, (_, predictions) in known.items()}
    errors = ", ".join(f"{name} {percent(calibration_error(predictions))}" for name, predictions in every.items())
    how = (
        "Accuracy of predictions by confidence. The dotted line is perfect calibration; below it, the model is"
        f" overconfident. Area: number of nodes. Expected calibration error: {errors}."
    )
    series = [{"name": name, "points": _calibration(of), "colour": i} for i, (name, of) in enumerate(every.items())]
    x, y = {"name": "confidence", **SHARE}, {"name": "accuracy", **SHARE}
    chart = page.chart("Calibration", how, "plane", height=320, x=x, y=y, diagonal=True, series=series)
    of_two = all(predictions.chances.shape[1] == 2 for predictions in every.values())
    return [chart, *(_of_two(page, every) if of_two else ())]


def _matrix(run: FinishedRun, counts: np.ndarray, below: np.ndarray | None = None) -> dict[str, Any]:
    """Return a heat map; ``below`` [C, C] is the minimum below which a client did not report a cell, 0 if all did."""
    names = class_names(run, len(counts))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    view = {"rows": names, "columns": names, "names": ["class", "predicted"], "values": shares, "counts": counts}
    if below is None or not below.any():
        return view
    partly: np.ndarray = below.max(axis=1) > 0  # the row's sum and thus its shares are unknown
    labels = [
        [_count(n, least) if hidden else "" for n, least in zip(row, minima, strict=True)]
        for row, minima, hidden in zip(counts, below, partly, strict=True)
    ]
    return view | {"values": np.where(partly[:, None], np.nan, shares), "labels": labels}


def _count(known: int, below: int) -> str:
    """Format a count without that of clients below their minimum."""
    if not below:
        return count(known)
    return f"≥ {count(known)}" if known else f"< {below}"


def bins(predictions: Predicted) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bin nodes by confidence into `BINS` equal widths; return mean confidence, accuracy and nodes of non-empty bins."""
    sure, right = predictions.chances.max(1), predictions.chances.argmax(1) == predictions.y
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    nodes = np.bincount(place, minlength=BINS)
    held = nodes > 0
    means = [np.bincount(place, weights, BINS)[held] / nodes[held] for weights in (sure, right)]
    return means[0], means[1], nodes[held]


def calibration_error(predictions: Predicted) -> float:
    """Return Σ_b (n_b / n) |accuracy − mean confidence| over the bins (Guo et al., ICML 2017)."""
    sure, right, nodes = bins(predictions)
    return float((nodes * np.abs(sure - right)).sum() / nodes.sum())


def _calibration(predictions: Predicted) -> list[list[Any]]:
    sure, right, nodes = bins(predictions)
    sizes = 6 + 20 * np.sqrt(nodes / nodes.max())
    return [[s, r, f"{count(n)} nodes", size] for s, r, n, size in zip(sure, right, nodes, sizes, strict=True)]


def roc(chance: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return false positive rate, recall and precision at each distinct threshold, from the highest, [K] each.

    Shapes: probabilities of the second class [N], mask of its nodes, bool [N].
    """
    curve, positives = Curves(chance, positive), int(positive.sum())
    false = (curve.taken - curve.hits) / max(positive.size - positives, 1)
    return false, curve.hits / max(positives, 1), curve.hits / curve.taken


def _of_two(page: Page, known: dict[str, Predicted]) -> list[Markup]:
    """Plot ROC and precision-recall curves of the second class over all test nodes."""
    curves: dict[str, list[dict[str, Any]]] = {"roc": [], "pr": []}
    for place, (name, predictions) in enumerate(known.items()):
        false, recall, precision = roc(predictions.chances[:, 1], predictions.y == 1)
        some = np.unique(np.linspace(0, len(false) - 1, 200).astype(int))
        line = {"name": name, "line": True, "bare": True, "colour": place}
        curves["roc"].append(line | {"points": [[0, 0], *zip(false[some], recall[some], strict=True)]})
        curves["pr"].append(line | {"points": list(zip(recall[some], precision[some], strict=True))})
    chance = percent(float((next(iter(known.values())).y == 1).mean()))
    how = "True positive rate of the second class against the false positive rate. Dotted: random guessing."
    x, y = {"name": "false positive rate", **SHARE}, {"name": "true positive rate", **SHARE}
    first = page.chart("ROC", how, "plane", height=320, x=x, y=y, diagonal=True, series=curves["roc"])
    how = f"Precision against recall of the second class. Random guessing has a precision of {chance}."
    x, y = {"name": "recall", **SHARE}, {"name": "precision", **SHARE}
    return [first, page.chart("Precision and recall", how, "plane", height=320, x=x, y=y, series=curves["pr"])]
