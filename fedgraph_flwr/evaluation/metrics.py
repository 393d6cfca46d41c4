"""Scores of a model on a client's nodes, and their means over clients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fedgraph_flwr.config import AVERAGES, EvaluationConfig

SPLITS = ("val", "test")


def confusion(guess: ArrayLike, y: ArrayLike, num_classes: int) -> np.ndarray:
    """How many nodes of each class (row) are taken for which (column): [C, C] of labels and predictions [N]."""
    pairs = np.asarray(y) * num_classes + np.asarray(guess)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def accuracy(logits: ArrayLike, y: ArrayLike) -> float:
    """Share of rows whose largest logit is the label; logits [N, C], y [N]."""
    return _accuracy(_confusion(logits, y))


def macro_f1(logits: ArrayLike, y: ArrayLike) -> float:
    """Unweighted mean of `class_f1` over the classes that occur, in labels or predictions."""
    return _macro_f1(_confusion(logits, y))


def balanced_accuracy(logits: ArrayLike, y: ArrayLike) -> float:
    """Unweighted mean over the classes that occur in the labels of the share that is found."""
    return _balanced_accuracy(_confusion(logits, y))


def class_f1(logits: ArrayLike, y: ArrayLike) -> np.ndarray:
    """2 TP / (2 TP + FP + FN) of each class [C]; NaN for one that occurs neither in labels nor in predictions."""
    return _class_f1(_confusion(logits, y))


def _confusion(logits: ArrayLike, y: ArrayLike) -> np.ndarray:
    return confusion(np.asarray(logits).argmax(axis=1), y, np.shape(logits)[1])


def _accuracy(table: np.ndarray) -> float:
    return float(table.trace() / table.sum())


def _macro_f1(table: np.ndarray) -> float:
    of_class = _class_f1(table)
    return float(of_class[~np.isnan(of_class)].mean())


def _balanced_accuracy(table: np.ndarray) -> float:
    held = table.sum(axis=1)
    return float((table.diagonal()[held > 0] / held[held > 0]).mean())


def _class_f1(table: np.ndarray) -> np.ndarray:
    either = table.sum(axis=0) + table.sum(axis=1)
    return np.divide(2 * table.diagonal(), either, out=np.full(len(table), np.nan), where=either > 0)


def auc(logits: ArrayLike, y: ArrayLike) -> float:
    """Area under the ROC curve (Mann-Whitney, ties count half); for C > 2 the mean over classes against the rest.

    NaN where only one class occurs.
    """
    return _ranked(_area, logits, y)


def average_precision(logits: ArrayLike, y: ArrayLike) -> float:
    """Σ_k (R_k − R_{k−1}) P_k over the thresholds k; for C > 2 the mean over classes against the rest.

    NaN where only one class occurs. A predictor that knows nothing has the share of class 1.
    """
    return _ranked(_precision, logits, y)


def _ranked(measure: Callable[[np.ndarray, np.ndarray], float], logits: ArrayLike, y: ArrayLike) -> float:
    """A measure of (scores [N], positives bool [N]): of class 1 of two, else the mean over classes."""
    scores, labels = _chances(np.asarray(logits)), np.asarray(y)
    columns = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    known = [measure(scores[:, c], labels == c) for c in columns if 0 < np.count_nonzero(labels == c) < labels.size]
    return float(np.mean(known)) if known else float("nan")


def _chances(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row [N, C], in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    from scipy.stats import rankdata

    p, n = int(positive.sum()), int((~positive).sum())
    return float((rankdata(scores)[positive].sum() - p * (p + 1) / 2) / (p * n))


def _precision(scores: np.ndarray, positive: np.ndarray) -> float:
    _, hits, taken = _thresholds(scores, positive)
    return float((np.diff(hits, prepend=0) * hits / taken).sum() / hits[-1])


def _thresholds(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct scores, falling, and how many positives and how many nodes lie at each or above: each [K]."""
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    last = np.flatnonzero(np.r_[falling[1:] != falling[:-1], True])
    return falling[last], np.cumsum(positive[order])[last], last + 1


def best_threshold(logits: ArrayLike, y: ArrayLike) -> float:
    """The chance of class 1 from which on taking a node for it has the best F1, the highest of equals; C = 2.

    NaN where the class does not occur in ``y`` [N].
    """
    scores, hits, taken = _thresholds(_chances(np.asarray(logits))[:, 1], np.asarray(y) == 1)
    positives = int(hits[-1])
    return float(scores[(2 * hits / (taken + positives)).argmax()]) if positives else float("nan")


def f1_at(threshold: float, logits: ArrayLike, y: ArrayLike) -> float:
    """F1 of class 1 of two where a node is taken for it from this chance on; NaN without a threshold."""
    if np.isnan(threshold):
        return float("nan")
    guess = _chances(np.asarray(logits))[:, 1] >= threshold
    return float(_class_f1(confusion(guess.astype(np.int64), y, 2))[1])


def _cross_entropy(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-ln softmax of each row [N] at its label, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(y.size), y]


_OF_CONFUSION = {"accuracy": _accuracy, "macro_f1": _macro_f1, "balanced_accuracy": _balanced_accuracy}
_OF_RANKS = {"auc": auc, "average_precision": average_precision}
AT_THRESHOLD = "f1_at_threshold"
MAJORITY = "majority"


def score(
    logits: Tensor,
    y: Tensor,
    masks: dict[str, Tensor],
    metrics: Sequence[str],
    part: Tensor | None = None,
    train: Tensor | None = None,
) -> dict[str, list[float]]:
    """Scores of one model on one client's nodes.

    Args:
        logits: [N, C].
        y: labels [N].
        masks: bool [N] for each split, ``val`` and ``test``.
        metrics: names that `wanted` gives.
        part: the client each node belongs to [N], for the pooled graph of Central: one score a client.
        train: the training nodes, int64 [n]: their most frequent class is what ``majority`` always says.

    Returns:
        ``{split}-{metric}``, ``{split}-loss`` and ``{split}-count``, each a list with one entry a part; NaN where a part
        has no node of the split, or what the metric needs is not there.
    """
    # In NumPy: on a graph of a few hundred nodes, torch's calls would cost more than the prediction itself.
    outputs, labels = logits.detach().cpu().numpy(), y.cpu().numpy()
    owner = part.cpu().numpy() if part is not None and part.numel() else np.zeros(labels.size, dtype=np.int64)
    known = train.cpu().numpy() if train is not None else np.zeros(0, dtype=np.int64)
    loss = _cross_entropy(outputs, labels)
    chosen = {split: mask.cpu().numpy() for split, mask in masks.items()}
    told: dict[str, list[float]] = {f"{split}-{m}": [] for split in masks for m in ("count", "loss", *metrics)}
    for p in range(int(owner.max()) + 1 if owner.size else 1):
        mine = owner == p
        nodes = {split: np.flatnonzero(mask & mine) for split, mask in chosen.items()}
        of_training = labels[known[mine[known]]]
        majority = int(np.bincount(of_training).argmax()) if of_training.size else -1
        threshold = float("nan")
        if AT_THRESHOLD in metrics and nodes.get("val", known[:0]).size:
            threshold = best_threshold(outputs[nodes["val"]], labels[nodes["val"]])
        for split, held in nodes.items():
            values = {m: float("nan") for m in ("loss", *metrics)}
            if held.size:
                values = _values(outputs[held], labels[held], metrics, majority, threshold)
                values["loss"] = float(loss[held].mean())
            for m, value in {"count": float(held.size), **values}.items():
                told[f"{split}-{m}"].append(value)
    return told


def _values(
    logits: np.ndarray, y: np.ndarray, metrics: Sequence[str], majority: int, threshold: float
) -> dict[str, float]:
    """The metrics of one split's nodes."""
    table = _confusion(logits, y)
    of_class = _class_f1(table)
    values: dict[str, float] = {}
    for m in metrics:
        if m in _OF_CONFUSION:
            values[m] = _OF_CONFUSION[m](table)
        elif m in _OF_RANKS:
            values[m] = _OF_RANKS[m](logits, y)
        elif m == MAJORITY:
            values[m] = float((y == majority).mean()) if majority >= 0 else float("nan")
        elif m == AT_THRESHOLD:
            values[m] = f1_at(threshold, logits, y)
        else:  # f1_class_{c}
            values[m] = float(of_class[int(m.rpartition("_")[2])])
    return values


def wanted(cfg: EvaluationConfig, num_classes: int) -> tuple[str, ...]:
    """What is scored: what one look at the predictions tells, always; what sorts them, and each class, where it costs little.

    Of two classes everything; of more, AUC and average precision where they are the headline, and with ``evaluation.full``.
    """
    names = [*_OF_CONFUSION, MAJORITY]
    if cfg.full or num_classes == 2:
        names += [*_OF_RANKS, *(f"f1_class_{c}" for c in range(num_classes))]
    elif cfg.metric in _OF_RANKS:
        names.append(cfg.metric)
    return (*names, AT_THRESHOLD) if num_classes == 2 else tuple(names)


def averages(per_client: dict[str, list[float]], nodes: list[float] | None = None) -> dict[str, float]:
    """Means over clients of every score.

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
        weights: dict[str, Any] = {
            "": np.ones_like(value),
            "_by_test_nodes": np.asarray(per_client[f"{split}-count"], dtype=np.float64),
        }
        if nodes is not None:
            weights["_by_nodes"] = np.asarray(nodes, dtype=np.float64)
        for suffix, weight in weights.items():
            total = weight[known].sum()
            result[f"{split}_{metric}{suffix}"] = (
                float((weight * value)[known].sum() / total) if total else float("nan")
            )
    return result


_SUFFIX = dict(zip(AVERAGES, ("", "_by_test_nodes", "_by_nodes"), strict=True))


def headline(cfg: EvaluationConfig, split: str) -> str:
    """Key, among those of `averages`, of the protocol's figure."""
    return f"{split}_{cfg.metric}{_SUFFIX[cfg.average]}"


_ORDER = ("accuracy", MAJORITY, "balanced_accuracy", "macro_f1", AT_THRESHOLD, "auc", "average_precision")


def shown(averaged: Iterable[str], cfg: EvaluationConfig) -> list[str]:
    """Keys of `averages` for a table of test scores, what belongs together side by side: plain means, and the protocol's."""
    ranks = {f"test_{metric}": place for place, metric in enumerate(_ORDER)}
    plain = [key for key in averaged if key.startswith("test_") and "loss" not in key and "_by_" not in key]
    own = _SUFFIX[cfg.average]
    also = [f"{key}{own}" for key in (headline(cfg, "test").removesuffix(own), f"test_{MAJORITY}") if own]
    ordered = sorted(plain, key=lambda key: (ranks.get(key, len(ranks)), key))
    return [*(key for key in also if key in set(averaged)), *ordered]


class OwnRounds:
    """Each client's scores at the best validation round of its own, for methods whose clients stop by themselves (Local).

    A client stops after ``evaluation.patience`` rounds without a better figure; what it scores later does not count.

    Attributes:
        scores: as `score` names them, one entry a client; empty before the first round.
    """

    def __init__(self, cfg: EvaluationConfig):
        self.cfg = cfg
        self.scores: dict[str, np.ndarray] = {}
        self._best = self._since = np.empty(0)  # best figure, and the round it is from

    def take(self, server_round: int, per_client: dict[str, list[float]]) -> None:
        """A round's scores of all clients; a round that misses some is passed over."""
        value = np.asarray(per_client[f"val-{self.cfg.metric}"])
        if not self.scores:
            self.scores = {key: np.array(column) for key, column in per_client.items()}
            self._best, self._since = np.where(np.isnan(value), -np.inf, value), np.full(value.size, server_round)
        elif value.size == self._best.size:
            better = self._waiting(server_round - 1) & (value > self._best + self.cfg.min_delta)
            self._best[better], self._since[better] = value[better], server_round
            for key, column in per_client.items():
                self.scores[key][better] = np.asarray(column)[better]

    def all_stopped(self, server_round: int) -> bool:
        """Whether no client waits for a better round any more."""
        return bool(self.scores) and not self._waiting(server_round).any()

    def _waiting(self, server_round: int) -> np.ndarray:
        return np.logical_or(not self.cfg.patience, server_round - self._since < self.cfg.patience)
