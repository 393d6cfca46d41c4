"""Worth of federation for one party: scores of several runs on its own test items, and their differences, with intervals.

Runs are those of the party's local model, of boosting, of a federated method. All are scored on the same items. Differences to
the first run are paired: in each of 10,000 bootstrap samples, whole clusters of items are drawn with replacement
(`clusters_of`), and all runs are scored on the same draw. Thresholds stay those of the validation items.

Few clusters make a percentile interval too narrow. Deviations of the samples are widened by √(G / (G − 1)), and their quantiles
taken at Φ(±t_{G−1, 97.5 %}) instead of 2.5 and 97.5 % (the expanded percentile interval of Hesterberg, The American Statistician
2015). G is the effective number of clusters, (Σ n_g)² / Σ n_g² (Kish, 1965). Of S seeds, resampled in the same way, the
deviation is added, with Satterthwaite's degrees of freedom. `benchmarks/worth_coverage.py` measures the coverage.

Nothing leaves the party.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from fedgraph_flwr.config import bounded_metric, one_of, sign_of
from fedgraph_flwr.config.method_names import method_name
from fedgraph_flwr.data.cleaning import components
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.chance import level
from fedgraph_flwr.evaluation.curves import OF_RANKS, chances, margin, means_of_rows, ratio
from fedgraph_flwr.evaluation.verdict import MARGIN, verdict
from fedgraph_flwr.party.use.alerts import days_of, labelled
from fedgraph_flwr.party.use.blend import check_same_items, is_blend, load_blend
from fedgraph_flwr.party.use.predict import TaskPredictor, load_node, load_predictor
from fedgraph_flwr.report.runs import load_run
from fedgraph_flwr.store.checkpoint import FREE, flat_keys
from fedgraph_flwr.store.results import CONFIG, as_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Measure = Callable[[NDArray[Any]], Floats]
"""Scores [B] of bootstrap samples, as how often each cluster was drawn [B, G]; float32 sums are exact below 2^24 items."""

SAMPLES = 10_000


@dataclass(frozen=True)
class Lived:
    """Items of later days, whose classes became known.

    Attributes:
        scores: returns days and ids of the items [2, n], and their logits by a model [n, C].
        labels: class of each item by its id.
    """

    scores: Callable[[Any], tuple[NDArray[Any], Floats]]
    labels: Mapping[str, int]


MIN_CLUSTERS = 5
"""Fewest effective clusters of an interval."""

CLUSTERS = ("auto", "day", "component", "item")

_CHUNK = 4_000_000
"""Most weights of items that are held at once."""


METRICS = (*OF_RANKS, "accuracy", "balanced_accuracy", "macro_f1", metrics.AT_THRESHOLD)
"""Scores that can be recomputed in each bootstrap sample."""


def _of_counts(metric: str, tables: Floats) -> Floats:
    """Return a metric of confusion matrices [B, C, C] (rows: labels) → [B]."""
    hits, held, guessed = np.diagonal(tables, axis1=1, axis2=2), tables.sum(2), tables.sum(1)
    if metric == "accuracy":
        return ratio(hits.sum(1), held.sum(1))
    if metric == "balanced_accuracy":
        return means_of_rows(ratio(hits, held))
    f1 = ratio(2 * hits, held + guessed)
    return f1[:, 1] if metric == metrics.AT_THRESHOLD else means_of_rows(f1)


def check_metric(command: str, metric: str, *but: str) -> str:
    """Return one of `METRICS`, ``but`` some; other names are refused."""
    known = [name for name in METRICS if name not in but]
    if metric not in known:
        raise FedGraphError(f"{command} cannot recompute metric '{metric}': pass --metric, one of {', '.join(known)}")
    return metric


def measure(metric: str, logits: Floats, y: Ints, cluster: Ints, threshold: float = np.nan) -> Measure:
    """Return a function that scores bootstrap samples of items.

    Args:
        metric: one of `METRICS`.
        logits: [n, C].
        y: classes [n].
        cluster: of each item, 0..G-1 [n].
        threshold: margin from which an item is of class 1, for ``f1_at_threshold``.
    """
    if metric in OF_RANKS:
        sides = [margin(logits)] if logits.shape[1] == 2 else list(chances(logits).T)
        measures = [_ranked(metric, side, y == (c or len(sides) == 1), cluster) for c, side in enumerate(sides)]
        return lambda draws: means_of_rows(np.stack([one(draws) for one in measures], axis=1))
    guess = margin(logits) >= threshold if metric == metrics.AT_THRESHOLD else logits.argmax(1)
    groups, classes = int(cluster.max()) + 1, logits.shape[1]
    at = (cluster * classes + y) * classes + guess
    tables = np.bincount(at, minlength=groups * classes**2).reshape(groups, -1).astype(np.float64)
    return lambda draws: _of_counts(metric, (draws @ tables).reshape(-1, classes, classes))


def _ranked(metric: str, score: Floats, positive: NDArray[np.bool_], cluster: Ints) -> Measure:
    """Return average precision or AUC of one class as a `Measure`: sums over the distinct scores, as `Curves` has them."""
    order = np.argsort(-score, kind="stable")
    falling, hit = score[order], positive[order]
    ends, of = np.append(np.flatnonzero(np.diff(falling)), len(order) - 1), cluster[order]

    def found(draws: NDArray[Any]) -> Floats:
        weights = draws[:, of]
        taken = np.cumsum(weights, axis=1)[:, ends]
        hits = np.cumsum(weights * hit, axis=1)[:, ends]
        steps, positives = np.diff(hits, axis=1, prepend=0), hits[:, -1]
        negatives = taken[:, -1] - positives
        if metric == "auc":
            false = np.diff(taken - hits, axis=1, prepend=0)
            return ratio((false * (2 * hits - steps)).sum(1), 2 * positives * negatives)
        return ratio((steps * hits / np.maximum(taken, 1)).sum(1), np.where(negatives > 0, positives, 0))

    return found


def effective(metric: str, y: Ints, cluster: Ints) -> float:
    """Return the effective number of clusters; for other scores than accuracy, of the class for which it is smallest."""
    masks = [np.ones(len(y), bool)] + ([y == c for c in np.unique(y)] if metric != "accuracy" else [])
    sizes = (np.bincount(cluster[mask]).astype(np.float64) for mask in masks)
    return min(float(size.sum() ** 2 / (size**2).sum()) for size in sizes)


def interval(value: float, samples: Floats, groups: float, seeds: Floats | None = None) -> tuple[float, float]:
    """Return the 95 % interval of a value.

    Args:
        value: mean over seeds.
        samples: the same of bootstrap samples of clusters [B].
        groups: effective number of clusters.
        seeds: value of each seed [S]; None for one.
    """
    parts = [((samples - value) * np.sqrt(groups / (groups - 1)), groups - 1)]
    if seeds is not None and (count := len(seeds)) > 1:
        drawn = seeds[np.random.default_rng(1).integers(count, size=(len(samples), count))].mean(1)
        parts.append(((drawn - value) * np.sqrt(count / (count - 1)), count - 1))
    variances = [float(np.nanvar(deviation)) for deviation, _ in parts]
    if not (total := sum(variances)) > 0:
        return value, value
    freedom = total**2 / sum(variance**2 / free for variance, (_, free) in zip(variances, parts, strict=True))
    tail = float(ndtr(stdtrit(freedom, 0.025)))
    low, high = np.nanquantile(sum(deviation for deviation, _ in parts), [tail, 1 - tail])
    return value + float(low), value + float(high)


def scored(
    measures: Sequence[Sequence[Measure]], items: int, groups: int, size: float, samples: int = SAMPLES
) -> list[list[tuple[float, float, float]]]:
    """Return per run its score and its difference to the first run, each with an interval, as (value, low, high).

    Args:
        measures: of each run, one per seed.
        items: n, number of items.
        groups: G, number of clusters.
        size: effective number of clusters.
        samples: B, number of bootstrap samples.
    """
    rng, ones, parts = np.random.default_rng(0), np.ones((1, groups)), []
    for start in range(0, samples, rows := max(_CHUNK // items, 1)):
        draws = rng.multinomial(groups, np.full(groups, 1 / groups), min(rows, samples - start)).astype(np.float32)
        parts.append([np.mean([one(draws) for one in run], axis=0) for run in measures])
    drawn = np.concatenate(parts, axis=1)
    exact = [np.array([one(ones)[0] for one in run]) for run in measures]
    intervals = []
    for values, sampled in zip(exact, drawn, strict=True):
        first = exact[0] if len(values) == len(exact[0]) else exact[0].mean()  # other numbers of seeds are not paired
        pairs = (values, sampled), (values - first, sampled - drawn[0])
        intervals.append(
            [
                (float(seed_values.mean()), *interval(float(seed_values.mean()), of, size, seed_values))
                for seed_values, of in pairs
            ]
        )
    return intervals


def clusters_of(kind: str, task: Any, rows: Ints) -> tuple[str, Ints]:
    """Return what items that belong together share, and the cluster of each item 0..G-1 [n].

    ``auto`` takes the days of items with times, else the connected components of their graph if at least `MIN_CLUSTERS`
    effective ones hold items, else single items.

    Raises:
        FedGraphError: the items have no such clusters.
    """
    day = days_of(task, rows)
    if kind == "day" and day is None:
        raise FedGraphError("--clusters day needs items with times, and these have none: pass component or item")
    if day is not None and kind in ("auto", "day"):
        return "day", np.unique(day, return_inverse=True)[1]
    graph = task.graph
    if task.ITEMS == "nodes" and kind != "item" and hasattr(graph, "edge_index"):
        of = np.unique(components(graph.edge_index.numpy(), graph.num_nodes)[rows], return_inverse=True)[1]
        if kind == "component" or effective("accuracy", np.zeros(len(of), np.int64), of) >= MIN_CLUSTERS:
            return "component", of
    elif kind == "component":
        raise FedGraphError(
            f"--clusters component needs items that are nodes of a graph with one type, and these are {task.ITEMS}: pass item"
        )
    return "item", np.arange(len(rows))


Groups = dict[str, list[tuple[Path, TaskPredictor]]]
"""By method, runs that differ only in their seeds: the folder and the model of each."""


def models_below(path: Path) -> list[Path]:
    """Return the folders below a node's state folder that hold a model, the oldest first; a run folder itself."""
    if (path / CONFIG).is_file() or is_blend(path):
        return [path]
    stored = sorted(path.rglob("client_*/model_last.safetensors"), key=lambda file: file.stat().st_mtime_ns)
    return [file.parents[1] for file in stored] or [path]


def load_model(path: Path, client: int | None) -> Any:
    """Return the model of a run folder, of a blend or of a node's state folder."""
    if is_blend(path):
        return load_blend(path, client)
    return load_predictor(path, client) if (path / CONFIG).is_file() else load_node(path)


def _grouped(runs: Sequence[Path], client: int | None) -> Groups:
    """Load the model of the party by each run, and group them; of one state folder, a local model comes first.

    Raises:
        FedGraphError: a folder holds no model of the party, or a model has no classes.
    """
    names, groups = dict[str, str](), Groups()
    for path in (folder for run in runs for folder in models_below(run)):
        if (path / CONFIG).is_file() and client is None:
            raise FedGraphError(f"{path} is a run folder: pass --client I, the party that asks")
        model = load_model(path, client)
        model.check_task(model.task.capabilities.classes, "worth compares scores of classes (task=nodes or edges)")
        keys = {key: value for key, value in flat_keys(model.cfg).items() if key not in {*FREE, "seed"} - {"rounds"}}
        name = model_name(model)
        again = sum(group.partition(" (")[0] == name for group in groups)
        name = names.setdefault(repr(sorted(keys.items())), f"{name} ({again + 1})" if again else name)
        groups.setdefault(name, []).append((path, model))
    shares = {name: len(runs) == 1 and bool(of[0][1].cfg.strategy.shared) for name, of in groups.items()}
    return {name: groups[name] for name in sorted(groups, key=lambda name: shares[name])}


OWN_TREES = "own trees"
"""Name of trees that each party trains alone, on the same columns."""


def model_name(model: TaskPredictor) -> str:
    """Return the name of a model's method; of trees and of a method that shares nothing, whose data it was trained on."""
    cfg, name = model.cfg, method_name(model.cfg.strategy.name)
    if getattr(model, "forest", None):
        return "pooled trees" if cfg.strategy.pooled else "federated trees" if cfg.strategy.shared else OWN_TREES
    return name if cfg.strategy.shared or cfg.strategy.name == LOCAL else f"{name}, own"


LOCAL = "local"
"""The method whose name says that nothing is shared."""


def clipped(estimate: tuple[float, float, float], metric: str, low: float) -> tuple[float, float, float]:
    """Return a value and its interval, the ends of which stay within the range of a bounded metric.

    Args:
        estimate: value, low and high end.
        metric: its metric.
        low: the smallest possible value: 0 of a score, -1 of a difference.
    """
    if not bounded_metric(metric):
        return estimate
    return estimate[0], max(estimate[1], low), min(estimate[2], 1.0)


def worth(
    runs: Sequence[Path],
    client: int | None = None,
    metric: str = "",
    clusters: str = "auto",
    lived: Lived | None = None,
) -> Any:
    """Return a pandas table with one row per method, compared with the first run on the party's own test items.

    Columns: ``run``, ``seeds``, ``metric``, ``score`` with ``low`` and ``high``, ``difference`` to the first with its interval,
    ``verdict`` (`evaluation.verdict`), ``mcnemar`` (exact p-value of accuracy, one seed, single items), and the cost:
    ``rounds``, ``seconds``, ``megabytes`` per party in both directions, ``epsilon``; NaN where the folder does not have it.
    ``attrs`` of the table: ``items``, ``clusters`` (their number), ``by`` (what they are), ``margin``, ``chance`` (the metric's
    chance level on these items), and ``own_trees`` (whether a run is of trees that the party trains alone).

    Args:
        runs: run folders, the first of which is the one that others are compared with; or a node's state folder, whose stored
            models are compared with its local one.
        client: index of the party; None for state folders.
        metric: one of `METRICS`; default: the headline of the first run.
        clusters: one of `CLUSTERS`.
        lived: items of later days instead of test items, such as those of a book.

    Raises:
        FedGraphError: fewer than two methods, runs that score other items, an unknown metric, or too few items or clusters.
    """
    import pandas as pd

    one_of(clusters, CLUSTERS, "--clusters")
    groups = _grouped(runs, client)
    if len(groups) < 2:
        raise FedGraphError(
            f"worth compares two methods or more, got {len(groups)}: pass the run of a local model first"
        )
    first = next(iter(groups.values()))
    metric = check_metric("worth", metric or first[0][1].cfg.evaluation.headline)
    y, by, cluster, measures, right = _read(groups, metric, clusters, lived)
    number, size = int(cluster.max()) + 1, effective(metric, y, cluster)
    estimates = scored(measures, len(y), number, size)
    near = MARGIN / 100 if bounded_metric(metric) else 0.0
    width = int(y.max()) + 1
    base = float(np.bincount(y).max() / len(y)) if metric == "accuracy" else level(metric, y, width)
    listed = []
    for place, ((name, of), (value, gain)) in enumerate(zip(groups.items(), estimates, strict=True)):
        parts = {"run": name, "seeds": len(of), "metric": metric}
        score, change = clipped(value, metric, 0.0), clipped(gain, metric, -1.0)
        parts |= dict(zip(("score", "low", "high"), score, strict=True))
        parts |= dict(zip(("difference", "difference_low", "difference_high"), change, strict=True))
        parts["verdict"] = verdict(*change[1:], near, sign_of(metric)) if place else ""
        single = place and metric == "accuracy" and by == "item" and len(of) == len(first) == 1
        parts["mcnemar"] = _mcnemar(right[0], right[place]) if single else np.nan
        listed.append(parts | _cost([path for path, _ in of]))
    table = pd.DataFrame(listed)
    trees = any(name.partition(" (")[0] == OWN_TREES for name in groups)
    table.attrs |= {"own_trees": trees, "items": len(y), "clusters": number, "by": by, "margin": near, "chance": base}
    return table


def _read(
    groups: Groups, metric: str, clusters: str, lived: Lived | None
) -> tuple[Ints, str, Ints, list[list[Measure]], list[NDArray[np.bool_]]]:
    """Return the party's test items, or those of later days, and how runs score them.

    Returns:
        Classes [n], what clusters are, the cluster of each item [n], a `Measure` of each seed of each method, and for each method
        which items its first seed gets right [n].

    Raises:
        FedGraphError: runs score other items, or the items allow no interval.
    """
    path, first = next(iter(groups.values()))[0]
    what = "test items" if lived is None else "items of these days"
    known = None
    if lived is None:
        known = first.items(first.party_graph())[1]
        rows = labelled(known, "test")
        y = known.y.numpy()[rows]
    else:
        items, _ = lived.scores(first)
        y = np.array([lived.labels.get(item, -1) for item in items[1]], dtype=np.int64)
        rows = np.flatnonzero(y >= 0)
        y = y[rows]
    if len(np.unique(y)) < 2:
        raise FedGraphError(f"the party's {len(y)} labelled {what} are not of two classes: nothing to compare")
    classes = len(first.input_spec.classes)
    if metric == metrics.AT_THRESHOLD and classes != 2:
        raise FedGraphError(f"{metric} needs two classes, got {classes}: pass another --metric")
    if known is not None:
        by, cluster = clusters_of(clusters, known, rows)
    elif clusters == "component":
        raise FedGraphError("--clusters component needs test items, and these are of a book: pass day or item")
    else:
        by = "item" if clusters == "item" else "day"
        cluster = np.arange(rows.size) if by == "item" else np.unique(items[0][rows], return_inverse=True)[1]
    if (size := effective(metric, y, cluster)) < MIN_CLUSTERS:
        what = f"the {what} have {size:.1f} effective clusters ({by}), and an interval needs at least {MIN_CLUSTERS}"
        instead = "" if by == "item" else ", or pass --clusters item if items of one are independent"
        raise FedGraphError(f"{what}: score more items{instead}")
    measures: list[list[Measure]] = []
    right = []
    for runs in groups.values():
        measures.append([])
        for other, model in runs:
            cut = 0.0
            if lived is None or metric == metrics.AT_THRESHOLD:
                logits, task = model.items(model.party_graph())
                outputs = logits.numpy()
            if metric == metrics.AT_THRESHOLD:
                chance = metrics.threshold(logits, task.y, task.masks["val"])
                if chance is not None:
                    cut = float(np.log(chance) - np.log1p(-chance)) - 1e-12
            if known is not None:
                check_same_items(known, task, f"{path} and {other}")
            if lived is not None:
                model_items, outputs = lived.scores(model)
                if model_items.tolist() != items.tolist():
                    raise FedGraphError(f"{path} and {other} score other items: pass runs of one task and party")
            outputs = outputs[rows]
            measures[-1].append(measure(metric, outputs, y, cluster, cut))
            if model is runs[0][1]:
                right.append(outputs.argmax(1) == y)
    return y, by, cluster, measures, right


def _mcnemar(first: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Return the exact p-value of equal accuracy: of the items that one of two runs gets right, half are expected of each."""
    from scipy.stats import binomtest

    alone = int((first & ~other).sum()), int((other & ~first).sum())
    return float(binomtest(alone[0], sum(alone)).pvalue) if sum(alone) else 1.0


def _cost(folders: Sequence[Path]) -> dict[str, float]:
    """Return the mean cost of runs per party."""
    rows = [_cost_of(folder) for folder in folders if (folder / CONFIG).is_file()]
    names = ("rounds", "seconds", "megabytes", "epsilon")
    return dict(zip(names, np.mean(rows, axis=0).tolist() if rows else [np.nan] * len(names), strict=True))


def _cost_of(folder: Path) -> list[float]:
    """Return rounds, seconds, megabytes per party and ε of a run; of a blend the sums over its runs, NaN if one is missing."""
    parts = load_run(folder).summary.get("blend")
    if not isinstance(parts, list):
        return _spent(folder)
    places = [(Path(str(part)), folder.parent / Path(str(part)).name) for part in parts]
    runs = [next((place for place in both if (place / CONFIG).is_file()), None) for both in places]
    sums: list[float] = np.sum([_spent(run) if run else [np.nan] * 4 for run in runs], axis=0).tolist()
    return sums


def _spent(folder: Path) -> list[float]:
    """Return rounds, seconds, megabytes per party and ε of a run of its own, which no blend is."""
    run = load_run(folder)
    epsilon = as_number((run.summary.get("privacy") or {}).get("epsilon"))
    return [run.number("rounds"), run.number("total_seconds"), run.moved / 1e6 / run.cfg.num_clients, epsilon]
