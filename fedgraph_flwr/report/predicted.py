"""What the trained models say of the clients' test nodes: confusions, curves of two classes, calibration, a map of nodes.

The models predict once more, from the run's folder and the clients' files, so this is of simulations, whose clients' graphs
belong to whoever reads the report. A run that keeps scores at its clients (``privacy.scores``) has it kept here too. Of a fleet
there are the confusions that its clients told (``evaluation.confusion``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.evaluation.metrics import confusion
from fedgraph_flwr.report.page import Page, grid, note
from fedgraph_flwr.report.parts import class_names
from fedgraph_flwr.report.runs import FinishedRun, Fold
from fedgraph_flwr.report.units import count, percent
from fedgraph_flwr.tasks import kind_of

MOST_CLIENTS, MOST_SETTINGS, MOST_DOTS = 24, 6, 1500
BINS = 10


@dataclass
class Predicted:
    """Test nodes of a run's clients.

    Attributes:
        chances: of each class, [N, C].
        y: labels [N].
        clients: whose nodes these are.
        of: clients there are.
    """

    chances: np.ndarray
    y: np.ndarray
    clients: int
    of: int


def predict(run: FinishedRun) -> Predicted:
    """What the run's models say, of at most `MOST_CLIENTS` clients.

    Raises:
        FedGraphError: why there is nothing to say.
    """
    if run.cfg.privacy.scores != "exact":
        raise FedGraphError(
            f"privacy.scores={run.cfg.privacy.scores} keeps what is known of single nodes at the clients"
        )
    if not kind_of(run.cfg).classes:
        raise FedGraphError(f"task={run.cfg.task.name} has no classes")
    if not run.summary:
        raise FedGraphError("the run has not ended")
    if not run.clients:
        raise FedGraphError("the clients' files are not on this machine")
    from fedgraph_flwr.runs.prediction import load_predictor

    of = 1 if run.cfg.strategy.pooled else len(run.clients)
    chances, labels = [], []
    for client in range(min(of, MOST_CLIENTS)):
        predictor = load_predictor(run.folder, client)
        graph = predictor.own
        if graph is None:
            raise FedGraphError("the clients' files are not on this machine")
        test = graph.test_mask & (graph.y >= 0)
        chances.append(predictor.logits(graph)[test].double().softmax(1).numpy())
        labels.append(graph.y[test].numpy())
    found = Predicted(np.concatenate(chances), np.concatenate(labels), min(of, MOST_CLIENTS), of)
    if not found.y.size:
        raise FedGraphError("no client has a labelled test node")
    return found


def shown(page: Page, folds: Sequence[Fold]) -> list[Markup]:
    """The parts of the section: of each setting, its first run."""
    known, told, missing = {}, {}, {}
    for fold in folds[:MOST_SETTINGS]:
        try:
            known[fold.name] = fold.runs[0], predict(fold.runs[0])
        except (FedGraphError, ValueError, KeyError, IndexError, RuntimeError) as error:
            if fold.runs[0].confusion:
                told[fold.name] = fold.runs[0]
            else:
                missing[fold.name] = first_line(error)
    matrices = {
        name: _matrix(run, confusion(p.chances.argmax(1), p.y, p.chances.shape[1])) for name, (run, p) in known.items()
    }
    matrices |= {
        name: _matrix(run, np.array(run.confusion), np.array(run.confusion_below)) for name, run in told.items()
    }
    parts = []
    if matrices:
        parts.append(grid(_confusions(page, matrices), *(_curves(page, known) if known else ())))
        few = [f"{name}: {p.clients} of {p.of} clients" for name, (_, p) in known.items() if p.clients < p.of]
        parts += [note(f"Predicted of some clients alone: {'; '.join(few)}.")] if few else []
    parts += [
        note(
            f"As the clients of {name} reported (evaluation.confusion). < n: a client has fewer than n such nodes, its policy's"
            " min_nodes, and reports no count; ≥: others report so many. Rows with such cells have no shares."
        )
        for name in told
    ]
    parts += [note(f"Not shown of {name}: {reason}.") for name, reason in missing.items()]
    left = [fold.name for fold in folds[MOST_SETTINGS:]]
    return parts + ([note(f"Not predicted, of {len(folds)} settings: {', '.join(left)}.")] if left else [])


def _confusions(page: Page, matrices: dict[str, dict[str, Any]]) -> Markup:
    rows = max(len(view["rows"]) for view in matrices.values())
    return page.chart(
        "Confusion matrix",
        "Of the test nodes of a class (row), which share was taken for which class (column), in %. Colour: the same share.",
        "heat",
        height=max(320, 110 + 26 * rows),
        views=matrices,
    )


def _curves(page: Page, known: dict[str, tuple[FinishedRun, Predicted]]) -> list[Markup]:
    """What needs the chances of single nodes."""
    parts = [
        page.chart(
            "Calibration",
            "How often predictions of a confidence are right. On the dashed line a chance means what it says; below it, the"
            f" model is too sure. Area: how many nodes. {_errors(known)}",
            "plane",
            height=320,
            x={"name": "confidence", "unit": "share", "min": 0, "max": 1},
            y={"name": "share that is right", "unit": "share", "min": 0, "max": 1},
            diagonal=True,
            series=[
                {"name": name, "points": _calibration(found), "colour": i}
                for i, (name, (_, found)) in enumerate(known.items())
            ],
        ),
    ]
    if all(found.chances.shape[1] == 2 for _, found in known.values()):
        parts += _of_two(page, {name: found for name, (_, found) in known.items()})
    return parts


def _matrix(run: FinishedRun, counts: np.ndarray, below: np.ndarray | None = None) -> dict[str, Any]:
    """A heat map; ``below`` [C, C]: the minimum that kept a client from reporting its count of a cell, 0 where none did."""
    names = class_names(run, len(counts))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    view = {"rows": names, "columns": names, "names": ["is", "taken for"], "values": shares, "told": counts}
    if below is None or not below.any():
        return view
    partly: np.ndarray = below.max(axis=1) > 0  # the row's sum is unknown, and so every share of it
    labels = [
        [_count(n, least) if hidden else "" for n, least in zip(row, minima, strict=True)]
        for row, minima, hidden in zip(counts, below, partly, strict=True)
    ]
    return view | {"values": np.where(partly[:, None], np.nan, shares), "labels": labels}


def _count(known: int, below: int) -> str:
    """A count of which clients below their minimum reported nothing."""
    if not below:
        return count(known)
    return f"≥ {count(known)}" if known else f"< {below}"


def bins(found: Predicted) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `BINS` equal widths of the predicted class's chance, those with nodes: mean chance, share that is right, nodes."""
    sure, right = found.chances.max(1), found.chances.argmax(1) == found.y
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    nodes = np.bincount(place, minlength=BINS)
    held = nodes > 0
    means = [np.bincount(place, weights, BINS)[held] / nodes[held] for weights in (sure, right)]
    return means[0], means[1], nodes[held]


def calibration_error(found: Predicted) -> float:
    """Σ_b (n_b / n) |share right − mean chance| over the bins (Guo et al., ICML 2017)."""
    sure, right, nodes = bins(found)
    return float((nodes * np.abs(sure - right)).sum() / nodes.sum())


def _calibration(found: Predicted) -> list[list[Any]]:
    sure, right, nodes = bins(found)
    sizes = 6 + 20 * np.sqrt(nodes / nodes.max())
    return [[s, r, f"{count(n)} nodes", size] for s, r, n, size in zip(sure, right, nodes, sizes, strict=True)]


def _errors(known: dict[str, tuple[FinishedRun, Predicted]]) -> str:
    told = ", ".join(f"{name} {percent(calibration_error(found))}" for name, (_, found) in known.items())
    return f"Expected calibration error: {told}."


def roc(chance: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At each distinct threshold, from the highest down: false positive rate, recall and precision, [K] each.

    Shapes: chances of the second class [N], which nodes are of it, bool [N].
    """
    order = np.argsort(-chance, kind="stable")
    last = np.flatnonzero(np.append(np.diff(chance[order]) != 0, True))
    hits = np.cumsum(positive[order])[last]
    taken = last + 1
    return (taken - hits) / max(int((~positive).sum()), 1), hits / max(int(positive.sum()), 1), hits / taken


def _of_two(page: Page, known: dict[str, Predicted]) -> list[Markup]:
    """ROC and precision-recall of the second class, over all test nodes together."""
    curves: dict[str, list[dict[str, Any]]] = {"roc": [], "pr": []}
    for place, (name, found) in enumerate(known.items()):
        false, recall, precision = roc(found.chances[:, 1], found.y == 1)
        some = np.unique(np.linspace(0, len(false) - 1, 200).astype(int))
        line = {"name": name, "line": True, "bare": True, "colour": place}
        curves["roc"].append(line | {"points": [[0, 0], *zip(false[some], recall[some], strict=True)]})
        curves["pr"].append(line | {"points": list(zip(recall[some], precision[some], strict=True))})
    share: dict[str, Any] = {"unit": "share", "min": 0, "max": 1}
    positives = next(iter(known.values()))
    chance = percent(float((positives.y == 1).mean()))
    return [
        page.chart(
            "ROC",
            "Found among the nodes of the second class, against false alarms among the others. Dashed: guessing.",
            "plane",
            height=320,
            x={"name": "false positive rate", **share},
            y={"name": "true positive rate", **share},
            diagonal=True,
            series=curves["roc"],
        ),
        page.chart(
            "Precision and recall",
            f"How many alarms are right, against how many of the second class are found. Guessing is right {chance} of the time.",
            "plane",
            height=320,
            x={"name": "recall", **share},
            y={"name": "precision", **share},
            series=curves["pr"],
        ),
    ]


def hidden_map(page: Page, run: FinishedRun) -> Markup:
    """Nodes where t-SNE (van der Maaten & Hinton, 2008) puts their hidden features, of all clients together.

    Raises:
        FedGraphError: the network has no hidden features, or the clients' files are not here.
    """
    import torch
    from sklearn.manifold import TSNE

    from fedgraph_flwr.runs.prediction import load_predictor

    if run.cfg.privacy.scores != "exact" or not run.clients or not run.summary:
        raise FedGraphError("a map needs a finished run whose clients' files are here and whose scores are told")
    of = 1 if run.cfg.strategy.pooled else len(run.clients)
    features, labels, owners = [], [], []
    rng = np.random.default_rng(0)
    asked = range(min(of, MOST_CLIENTS))
    for client in asked:
        predictor = load_predictor(run.folder, client)
        graph = predictor.own
        if graph is None or not hasattr(graph, "edge_index"):
            raise FedGraphError("a map is of graphs with one type of nodes, whose files are here")
        model = predictor.network(graph)
        with torch.no_grad():
            h = model.encode(model.prepare(graph)).double().numpy()
        some = np.sort(rng.permutation(len(h))[: MOST_DOTS // len(asked)])
        features.append(h[some])
        labels.append(graph.y.numpy()[some])
        owners.append(np.full(len(some), client) if not graph.part.numel() else graph.part.numpy()[some])
    h, y, owner = (np.concatenate(of) for of in (features, labels, owners))
    places = TSNE(perplexity=min(30, max(1, len(h) // 4)), random_state=0, init="pca").fit_transform(h)
    names = class_names(run, run.clients[0]["classes"])

    def view(by: np.ndarray, called: dict[int, str]) -> dict[str, Any]:
        told = [f"class {names[c] if c >= 0 else 'unknown'}, client {o}" for c, o in zip(y, owner, strict=True)]
        groups = {
            name: [[*places[i].tolist(), told[i]] for i in np.flatnonzero(by == key)] for key, name in called.items()
        }
        return {"series": [{"name": name, "points": of, "colour": i} for i, (name, of) in enumerate(groups.items())]}

    classes = {int(c): f"class {names[c]}" if c >= 0 else "unknown" for c in np.unique(y)}
    clients = {int(o): f"client {o}" for o in np.unique(owner)}
    return page.chart(
        "Map of hidden features",
        f"{len(h)} nodes by t-SNE of what the network makes of them before its last layer: near means alike, far means little.",
        "plane",
        height=520,
        wide=True,
        x={"name": "", "hide": True},
        y={"name": "", "hide": True},
        size=6,
        views={"by class": view(y, classes), "by client": view(owner, clients)},
    )
