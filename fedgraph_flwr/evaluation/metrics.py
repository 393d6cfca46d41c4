"""Scores of a model on a client's nodes, and their means over clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fedgraph_flwr.config import AVERAGES, METRICS, EvaluationConfig

SPLITS = ("val", "test")


def accuracy(logits: ArrayLike, y: ArrayLike) -> float:
    """Share of rows whose largest logit is the label; logits [N, C], y [N]."""
    return float((np.asarray(logits).argmax(axis=1) == np.asarray(y)).mean())


def macro_f1(logits: ArrayLike, y: ArrayLike) -> float:
    """Unweighted mean over the classes that occur, in labels or predictions, of 2 TP / (2 TP + FP + FN)."""
    labels, guess, c = np.asarray(y), np.asarray(logits).argmax(axis=1), np.shape(logits)[1]
    hits = np.bincount(labels[guess == labels], minlength=c)
    either = np.bincount(labels, minlength=c) + np.bincount(guess, minlength=c)
    seen = either > 0
    return float((2 * hits[seen] / either[seen]).mean())


def auc(logits: ArrayLike, y: ArrayLike) -> float:
    """Area under the ROC curve (Mann-Whitney, ties count half); for C > 2 the mean over classes against the rest.

    NaN where only one class occurs.
    """
    from scipy.special import softmax
    from scipy.stats import rankdata

    scores, labels = softmax(np.asarray(logits, dtype=np.float64), axis=1), np.asarray(y)
    columns = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    areas = [_area(rankdata(scores[:, c]), labels == c) for c in columns]
    known = [a for a in areas if not np.isnan(a)]
    return float(np.mean(known)) if known else float("nan")


def _area(rank: np.ndarray, positive: np.ndarray) -> float:
    p, n = int(positive.sum()), int((~positive).sum())
    if p == 0 or n == 0:
        return float("nan")
    return float((rank[positive].sum() - p * (p + 1) / 2) / (p * n))


def _cross_entropy(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-ln softmax of each row [N] at its label, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(y.size), y]


_FUNCTIONS = {"accuracy": accuracy, "macro_f1": macro_f1, "auc": auc}


def score(
    logits: Tensor, y: Tensor, masks: dict[str, Tensor], metrics: Sequence[str], part: Tensor | None = None
) -> dict[str, list[float]]:
    """Scores of one model on one client's nodes.

    Args:
        logits: [N, C].
        y: labels [N].
        masks: bool [N] for each split, ``val`` and ``test``.
        metrics: names out of `METRICS`.
        part: the client each node belongs to [N], for the pooled graph of Central: one score a client.

    Returns:
        ``{split}-{metric}``, ``{split}-loss`` and ``{split}-count``, each a list with one entry a part; NaN where a part
        has no node of the split.
    """
    # In NumPy: on a graph of a few hundred nodes, torch's calls would cost more than the prediction itself.
    outputs, labels = logits.detach().cpu().numpy(), y.cpu().numpy()
    owner = part.cpu().numpy() if part is not None and part.numel() else None
    loss = _cross_entropy(outputs, labels)
    scores: dict[str, list[float]] = {}
    for split, mask in masks.items():
        chosen = mask.cpu().numpy()
        parts = [chosen] if owner is None else [chosen & (owner == p) for p in range(int(owner.max()) + 1)]
        rows: list[list[float]] = []
        for nodes in map(np.flatnonzero, parts):
            if nodes.size == 0:
                rows.append([0.0] + [float("nan")] * (1 + len(metrics)))
                continue
            told = [_FUNCTIONS[m](outputs[nodes], labels[nodes]) for m in metrics]
            rows.append([float(nodes.size), float(loss[nodes].mean()), *told])
        for key, column in zip(("count", "loss", *metrics), zip(*rows, strict=True), strict=True):
            scores[f"{split}-{key}"] = list(column)
    return scores


def wanted(cfg: EvaluationConfig) -> tuple[str, ...]:
    """Accuracy and macro-F1 always; AUC, which sorts, where it is the headline."""
    return METRICS if cfg.metric == "auc" else METRICS[:2]


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
