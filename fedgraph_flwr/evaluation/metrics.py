"""Scores of a model on a client's nodes, and their means over clients."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fedgraph_flwr.config import AVERAGES, EvaluationConfig
from fedgraph_flwr.config.lookup import function
from fedgraph_flwr.config.operating_points import OF_TWO, Point, point
from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.evaluation import chance, operating_points
from fedgraph_flwr.evaluation.chance import MAJORITY
from fedgraph_flwr.evaluation.curves import OF_RANKS, Curves, chances, margin, mean_known, ratio, surprise

DEFINED = ("loss", "accuracy", "macro_f1", "balanced_accuracy")
"""Scores that are always defined; others may not be (AUC of one class, majority without training nodes)."""

SPLITS = ("val", "test")

CONFUSION = "confusion"
"""Name of the `confusion` counts of a client's test nodes, row by row."""


def confusion(guess: ArrayLike, y: ArrayLike, num_classes: int) -> np.ndarray:
    """Count the nodes of each class (row) by predicted class (column): [C, C] from labels and predictions [N]."""
    pairs = np.asarray(y) * num_classes + np.asarray(guess)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def counts_of(logits: Tensor, y: Tensor, num_classes: int, floor: int) -> list[float]:
    """`confusion` of logits [n, C] row after row; -floor for a count below the floor, if that is above 1."""
    counts = confusion(logits.argmax(1).cpu(), y.cpu(), num_classes).ravel()
    least = floor if floor > 1 else 0
    return np.where(counts >= least, counts, -least).astype(float).tolist()


def without_small_classes(masks: Mapping[str, Tensor], y: Tensor, num_classes: int, floor: int) -> dict[str, Tensor]:
    """Masks [N] by split, without nodes of classes that have fewer than ``floor`` nodes in the split."""
    rest = {}
    for split, mask in masks.items():
        known = mask & (y >= 0)
        small = y[known].bincount(minlength=num_classes) < floor
        rest[split] = mask & ~(known & small[y.clamp(min=0)]) if floor else mask
    return rest


def _class_f1(table: np.ndarray) -> np.ndarray:
    """2 TP / (2 TP + FP + FN) of each class [C]; NaN for one that occurs neither in labels nor in predictions."""
    either = np.add.reduce(table, axis=0) + np.add.reduce(table, axis=1)
    return ratio(2 * table.diagonal(), either)


def auc(logits: ArrayLike, y: ArrayLike) -> float:
    """Area under the ROC curve (Mann-Whitney, ties count half); for C > 2 the mean over classes against the rest.

    NaN where only one class occurs.
    """
    return _ranked(Curves.area, logits, y)


def average_precision(logits: ArrayLike, y: ArrayLike) -> float:
    """Σ_k (R_k − R_{k−1}) P_k over the thresholds k; for C > 2 the mean over classes against the rest.

    NaN where only one class occurs. A predictor that knows nothing has the share of class 1.
    """
    return _ranked(Curves.precision, logits, y)


def _ranked(measure: Callable[[Curves], np.ndarray], logits: ArrayLike, y: ArrayLike) -> float:
    """Return a score of class 1 of two classes, else its mean over classes."""
    outputs, labels = np.asarray(logits), np.asarray(y)
    if outputs.shape[1] == 2:
        return float(measure(Curves(margin(outputs), labels == 1))[0])
    of_class = chances(outputs).T
    return mean_known(np.array([measure(Curves(of, labels == c))[0] for c, of in enumerate(of_class)]))


def score(metric: str, logits: np.ndarray, y: np.ndarray, targets: Mapping[str, str] | None = None) -> float:
    """Return one score of nodes from their logits [n, C] and classes [n].

    Args:
        metric: its name.
        logits: of the nodes.
        y: their classes.
        targets: custom metrics: name → ``module:function``.

    Raises:
        FedGraphError: a score that needs more than logits, such as one at an operating point.
    """
    if target := (targets or {}).get(metric):
        return _own(target, logits, y)
    if metric in OF_RANKS:
        return _ranked(OF_RANKS[metric], logits, y)
    values = _values(logits, y, [metric], None, np.empty(0))
    if metric not in values:
        raise FedGraphError(f"evaluation.metric={metric} cannot be computed here: expected one of {', '.join(values)}")
    return values[metric]


def threshold(logits: Tensor, y: Tensor, nodes: Tensor) -> float | None:
    """Return the probability threshold of class 1 with the best F1, the highest of equals; None without a known positive.

    Shapes: logits [N, 2], labels y [N], mask of the nodes that decide [N].
    """
    chosen = nodes.numpy()
    (best,) = Curves(margin(logits.numpy()[chosen]), y.numpy()[chosen] == 1).best()
    return None if np.isnan(best) else float(1 / (1 + np.exp(-best)))


AT_THRESHOLD = "f1_at_threshold"
OF_CLASS = "f1_class_"


class _Nodes(NamedTuple):
    """Nodes of a split of one part, their labels, the share of the majority class of its training nodes, and their days."""

    rows: np.ndarray
    y: np.ndarray
    majority: float
    day: np.ndarray | None = None


def released(cfg: EvaluationConfig) -> list[str]:
    """Return the scores that a client sends with ``privacy.scores=noised``: the headline's metric on both splits."""
    return [f"{split}-{cfg.headline}" for split in SPLITS]


class Scored:
    """Scored nodes of a client, prepared once for all models.

    Args:
        y: labels [N].
        masks: bool [N] for each split, ``val`` and ``test``.
        part: the client each node belongs to [N], for the pooled graph of Central: one score per client.
        train: the training nodes, int64 [n]; ``majority`` predicts their most frequent class.
        day: day of each node, int64 [N], if nodes carry time.
        floor: fewest alerts behind a score of K alerts.
    """

    def __init__(
        self,
        y: Tensor,
        masks: Mapping[str, Tensor],
        part: Tensor | None = None,
        train: Tensor | None = None,
        day: Tensor | None = None,
        floor: int = 0,
    ):
        labels = y.cpu().numpy()
        owner = part.cpu().numpy() if part is not None and part.numel() else np.zeros(labels.size, dtype=np.int64)
        known = train.cpu().numpy() if train is not None else np.zeros(0, dtype=np.int64)
        chosen = {split: mask.cpu().numpy() for split, mask in masks.items()}
        self.splits, self.floor = tuple(masks), floor
        days = None if day is None else day.cpu().numpy()
        self._chances: dict[tuple[int, str, str], float] = {}  # they depend on no model
        self.parts: list[dict[str, _Nodes]] = []
        for p in range(int(owner.max()) + 1 if owner.size else 1):
            own_rows = owner == p
            of_training = labels[known[own_rows[known]]]
            most = int(np.bincount(of_training).argmax()) if of_training.size else None
            nodes = {}
            for split, mask in chosen.items():
                rows = np.flatnonzero(mask & own_rows)
                day_of = None if days is None else days[rows]
                majority = float(np.mean(labels[rows] == most)) if rows.size and most is not None else float("nan")
                nodes[split] = _Nodes(rows, labels[rows], majority, day_of)
            self.parts.append(nodes)

    def score(
        self, logits: Tensor, metrics: Sequence[str], targets: Mapping[str, str] | None = None
    ) -> dict[str, list[float]]:
        """Return the scores of one model.

        Args:
            logits: [N, C].
            metrics: names from `wanted`.
            targets: the user's metrics among them, ``module:function`` by name: ``(logits [n, C], y [n]) -> float``, in NumPy.

        Returns:
            ``{split}-{metric}``, ``{split}-loss`` and ``{split}-count``, each a list with one entry per part; NaN if a part has
            no node of the split, or the metric is not defined.
        """
        # In NumPy: on a graph of a few hundred nodes, torch's calls would cost more than the prediction itself.
        outputs = logits.detach().cpu().numpy()
        scores: dict[str, list[float]] = {
            f"{split}-{m}": [] for split in self.splits for m in ("count", "loss", *metrics)
        }
        ranked = logits.size(1) == 2 and any(m in metrics for m in (*OF_RANKS, AT_THRESHOLD))
        levels = [m for m in metrics if m.startswith(chance.PREFIX)]
        points = {m: at for m in metrics if (at := point(m)) is not None}
        for part, nodes in enumerate(self.parts):
            of_split = {split: outputs[nodes_of.rows] for split, nodes_of in nodes.items() if nodes_of.rows.size}
            curves = {s: Curves(margin(given), nodes[s].y == 1) for s, given in of_split.items()} if ranked else {}
            threshold = curves["val"].best() if "val" in curves else np.array([np.nan])
            for split, nodes_of in nodes.items():
                values = {m: self.chance(part, split, m, outputs.shape[1], targets) for m in levels}
                if (given := of_split.get(split)) is not None:
                    values |= _values(given, nodes_of.y, metrics, curves.get(split), threshold)
                    values |= self._further(given, nodes_of, points, targets or {})
                scores[f"{split}-count"].append(float(nodes_of.y.size))
                for m in ("loss", *metrics):
                    scores[f"{split}-{m}"].append(values.get(m, float("nan")))
        return scores

    def _further(
        self, given: np.ndarray, nodes: _Nodes, points: Mapping[str, Point], targets: Mapping[str, str]
    ) -> dict[str, float]:
        """Return the majority class's score, the user's own scores, those at operating points, and the loss."""
        values = {MAJORITY: nodes.majority} | {m: _own(target, given, nodes.y) for m, target in targets.items()}
        values |= {m: operating_points.value(at, given, nodes.y, nodes.day, self.floor) for m, at in points.items()}
        loss = surprise(given, nodes.y)
        return values | {"loss": float(np.add.reduce(loss) / loss.size)}  # a third of the time of `loss.mean()`

    def chance(
        self, part: int, split: str, name: str, num_classes: int, targets: Mapping[str, str] | None = None
    ) -> float:
        """Return a chance level, by its name among the scores, on the nodes of a split of one part."""
        if (key := (part, split, name)) not in self._chances:
            metric, nodes = name.removeprefix(chance.PREFIX), self.parts[part][split]
            if at := point(metric):
                level = operating_points.level(at, nodes.y, num_classes, nodes.day)
            else:
                target = (targets or {}).get(metric)
                level = chance.level(metric, nodes.y, num_classes, partial(_own_or_nan, target) if target else None)
            self._chances[key] = level
        return self._chances[key]


def _values(
    logits: np.ndarray, y: np.ndarray, metrics: Sequence[str], curve: Curves | None, threshold: np.ndarray
) -> dict[str, float]:
    """Return the metrics of one split's nodes from their logits; for two classes, from their curve."""
    table = confusion(logits.argmax(axis=1), y, logits.shape[1])
    of_class = _class_f1(table)
    values = {
        "accuracy": float(np.add.reduce(table.diagonal()) / np.add.reduce(table, axis=None)),
        "macro_f1": mean_known(of_class),
        "balanced_accuracy": mean_known(ratio(table.diagonal(), np.add.reduce(table, axis=1))),
    }
    if curve:
        values |= {m: float(measure(curve)[0]) for m, measure in OF_RANKS.items()}
        values[AT_THRESHOLD] = float(curve.f1(threshold)[0])
    for m in metrics:
        if m in OF_RANKS and m not in values:
            values[m] = _ranked(OF_RANKS[m], logits, y)
        elif m.startswith(OF_CLASS):
            values[m] = float(of_class[int(m.removeprefix(OF_CLASS))])
    return values


def own_metric(target: str) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return the user's metric as a function of logits [n, C] and labels [n].

    One with scikit-learn's arguments (``y_true``, ``y_pred``) gets labels and predicted classes, and with ``y_score``
    probabilities, of two classes that of the second.

    Raises:
        FedGraphError: it cannot be imported, or does not take two arguments.
    """
    metric = function(target, "evaluation.metrics")
    try:
        signature = inspect.signature(metric)
        signature.bind(None, None)
    except TypeError as error:
        takes = "take logits [n, C] and labels [n], or y_true and y_pred as in scikit-learn"
        raise FedGraphError(f"evaluation.metrics: {target} must {takes} ({first_line(error)})") from None
    except ValueError:  # a function of C without a signature
        return metric
    names = [*signature.parameters][:2]
    if names[0] != "y_true":
        return metric
    if names[1] == "y_score":
        return lambda logits, y: metric(y, _scores(logits))
    return lambda logits, y: metric(y, logits.argmax(1))


def _scores(logits: np.ndarray) -> np.ndarray:
    """Return probabilities [n, C], of two classes that of the second [n]."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    return shares[:, 1] if shares.shape[1] == 2 else shares


def _own(target: str, logits: np.ndarray, y: np.ndarray) -> float:
    """Compute a custom metric."""
    try:
        return float(own_metric(target)(logits, y))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        what = f"evaluation.metrics: {target} failed ({first_line(error)})"
        raise FedGraphError(f"{what}: it must accept logits [n, C] and labels [n]") from error


def _own_or_nan(target: str, logits: np.ndarray, y: np.ndarray) -> float:
    """Compute a custom metric; NaN if the function rejects a prediction of one class."""
    try:
        return _own(target, logits, y)
    except FedGraphError:
        return float("nan")


def wanted(cfg: EvaluationConfig, num_classes: int) -> tuple[str, ...]:
    """Return the names of the computed metrics.

    Two classes: all. More classes: AUC and average precision only as headline, or with ``evaluation.full``.
    """
    names = ["accuracy", "macro_f1", "balanced_accuracy", MAJORITY]
    if cfg.full or num_classes == 2:
        names += [*OF_RANKS, *(f"{OF_CLASS}{c}" for c in range(num_classes))]
    elif cfg.metric in OF_RANKS:
        names.append(cfg.metric)
    level = chance.name_of(cfg.headline)
    return (
        *names,
        *([AT_THRESHOLD] if num_classes == 2 else []),
        *cfg.own,
        *points_of(cfg, num_classes),
        *([level] if level not in names and not point(cfg.headline) else []),
    )


def points_of(cfg: EvaluationConfig, num_classes: int) -> list[str]:
    """Return the names of the scores at operating points, each with its chance level.

    Raises:
        FedGraphError: one needs two classes.
    """
    of_two = [name for name in cfg.points if (at := point(name)) and at.kind in OF_TWO]
    if of_two and num_classes != 2:
        what = f"evaluation.metrics={of_two[0]} needs two classes, and this data has {num_classes}"
        raise FedGraphError(f"{what}: leave it out, or list brier or log_loss")
    return [key for name in cfg.points for key in (name, chance.name_of(name))]


def averages(per_client: dict[str, list[float]], nodes: list[float] | None = None) -> dict[str, float]:
    """Average every score over clients.

    Args:
        per_client: what `score` gives, concatenated over clients.
        nodes: nodes of each client, for the mean weighted by all nodes.

    Returns:
        ``{split}_{metric}`` (plain mean), ``..._by_test_nodes`` (weighted by the split's nodes) and ``..._by_nodes``.
        Clients without a node of the split do not count.
    """
    result: dict[str, float] = {}
    for key, values in per_client.items():
        split, _, metric = key.partition("-")
        if metric == "count":
            continue
        value = np.asarray(values, dtype=np.float64)
        known = ~np.isnan(value)
        weights = {"": np.ones_like(value), "_by_test_nodes": per_client[f"{split}-count"], "_by_nodes": nodes}
        for suffix, given in weights.items():
            if given is not None:
                weight = np.asarray(given, dtype=np.float64)
                total, numerator = weight[known].sum(), (weight * value)[known].sum()
                result[f"{split}_{metric}{suffix}"] = float(numerator / total) if total else float("nan")
    return result


_SUFFIX = dict(zip(AVERAGES, ("", "_by_test_nodes", "_by_nodes"), strict=True))


def headline(cfg: EvaluationConfig, split: str) -> str:
    """Return the key of the headline score among those of `averages`."""
    return f"{split}_{cfg.headline}{_SUFFIX[cfg.average]}"


def chance_key(cfg: EvaluationConfig, split: str) -> str:
    """Return the key of the headline's chance level among those of `averages`."""
    return f"{split}_{chance.name_of(cfg.headline)}{_SUFFIX[cfg.average]}"


def left_out(
    cfg: EvaluationConfig, per_client: Mapping[str, Sequence[float]], clients: Sequence[int] | None = None
) -> dict[int, str]:
    """Return the clients that the headline's mean leaves out, with the reason.

    ``clients`` are those of the entries, by default all from 0.
    """
    values, counts = per_client.get(f"test-{cfg.headline}", ()), per_client.get("test-count", ())
    entries = zip(range(len(values)) if clients is None else clients, values, counts, strict=False)
    return {client: _undefined(cfg.headline, count) for client, value, count in entries if np.isnan(value)}


def _undefined(metric: str, count: float) -> str:
    if not count:
        return "no scored test items"
    return "one class among its scored test items" if metric in OF_RANKS else "not defined on its test items"


def watched(cfg: EvaluationConfig, averages: Mapping[str, float]) -> float:
    """Return the score that selects the round, from the mean validation scores: more is better; NaN if not reported."""
    name, sign = cfg.watched
    return sign * averages.get(f"val_{name}{_SUFFIX[cfg.average]}", float("nan"))


_ORDER = ("accuracy", MAJORITY, "balanced_accuracy", "macro_f1", AT_THRESHOLD, "auc", "average_precision")


def shown(averaged: Iterable[str], cfg: EvaluationConfig) -> list[str]:
    """Return keys of `averages` for a table of test scores: plain means, and the headline's mean."""
    ranks = {metric: place for place, metric in enumerate(_ORDER)}
    plain = [key for key in averaged if key.startswith("test_") and key != "test_loss" and "_by_" not in key]
    suffix = _SUFFIX[cfg.average]
    also = [headline(cfg, "test"), chance_key(cfg, "test")] if suffix else []

    def place(key: str) -> tuple[int, str, bool]:
        metric = key.removeprefix("test_")
        base = metric.removeprefix(chance.PREFIX)
        return ranks.get(base, len(ranks)), base, base != metric  # a chance level follows its metric

    ordered = sorted(plain, key=place)
    return [*(key for key in also if key in set(averaged)), *ordered]


class OwnRounds:
    """Scores of each client at its own best validation round, for methods whose clients stop separately (Local).

    A client stops after ``evaluation.patience`` rounds without a better score. Later scores do not count.

    Attributes:
        scores: named as in `score`, one entry per client, NaN for a client that never replied; empty before the first round.
    """

    def __init__(self, cfg: EvaluationConfig):
        self.cfg = cfg
        self.scores: dict[str, np.ndarray] = {}
        self._best = np.empty(0)
        self._since = np.empty(0, dtype=np.int64)  # round of the best score; 0 for a client without a score

    def take(
        self, server_round: int, per_client: Mapping[str, Sequence[float]], clients: Sequence[int] | None = None
    ) -> None:
        """Add the scores of a round.

        Args:
            server_round: number of the round.
            per_client: scores as in `score`, one entry per client; empty if clients send none.
            clients: the clients of the entries. None for records of older versions, whose entries have no clients: those of a
                round with fewer or more clients than before are skipped.
        """
        if not per_client or self.cfg.clients == "cohort":
            return
        name, sign = self.cfg.watched
        value = sign * np.asarray(per_client[f"val-{name}"], dtype=np.float64)
        if clients is None and self.scores and value.size != self._best.size:
            return
        at = np.arange(value.size) if clients is None else np.asarray(clients, dtype=np.int64)
        if not at.size:
            return
        self._make_room(int(at.max()) + 1, per_client)
        value = np.where(np.isnan(value), -np.inf, value)
        first = self._since[at] == 0
        better = first | (self._waiting(server_round - 1)[at] & (value > self._best[at] + self.cfg.min_delta))
        chosen = at[better]
        self._best[chosen], self._since[chosen] = value[better], server_round
        for key, column in per_client.items():
            self.scores[key][chosen] = np.asarray(column, dtype=np.float64)[better]

    @property
    def clients(self) -> list[int]:
        """The clients with a score."""
        return np.flatnonzero(self._since).tolist()

    def all_stopped(self, server_round: int) -> bool:
        """Return whether all clients with a score have stopped."""
        return bool(self.scores) and not self._waiting(server_round)[self._since > 0].any()

    def _make_room(self, clients: int, names: Iterable[str]) -> None:
        """Extend all columns to this many clients."""
        more = max(clients - self._best.size, 0)
        self._best = np.append(self._best, np.full(more, -np.inf))
        self._since = np.append(self._since, np.zeros(more, dtype=np.int64))
        blank = np.full(self._best.size, np.nan)
        self.scores = {
            name: np.append(self.scores.get(name, blank[: self._best.size - more]), blank[:more])
            for name in dict.fromkeys([*self.scores, *names])
        }

    def _waiting(self, server_round: int) -> np.ndarray:
        return np.logical_or(not self.cfg.patience, server_round - self._since < self.cfg.patience)


def reports_best(run: Path) -> bool:
    """Return whether the headline score of a finished run is that of its best model, and not of the last one."""
    summary = json.loads((run / "summary.json").read_bytes())
    scored = " at best_val" in summary["headline"] and summary.get("best_round", 1) > 0
    return scored and (run / "model_best.safetensors").is_file()
