"""Scores of rankings: the rank of a positive among its own negatives, and what follows from ranks."""

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.tasks.base import Task
from fedgraph_flwr.wire.messages import derive_seed

HITS = (1, 3, 10)
"""Ranks up to which positives count, each a score of its own."""


class Ranking(Task):
    """Base of tasks that rank true items among wrong ones.

    Attributes:
        items: the true items by split, each [R, V].
    """

    items: dict[str, np.ndarray]

    def take(self, items: dict[str, np.ndarray]) -> None:
        """Take the true items; all of those for training train, with target 1."""
        self.items = items
        self.y = torch.ones(items["train"].shape[1])
        self.masks = {"train": torch.ones(len(self.y), dtype=torch.bool)}

    def steps_on(self, y: Tensor) -> int:
        """Return only true items: wrong ones reveal nothing about the client."""
        return int((y > 0).sum())

    def draws(self, *stream: int | str) -> np.random.Generator:
        """Return a random stream of the client for training."""
        return np.random.default_rng(derive_seed(self.cfg.own_seed, self.graph.client, *stream))


def ranks(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Rank of each positive [P] among its own negatives [P, K], ties at their mean place: 1 + (#{s⁻ > s⁺} + #{s⁻ ≥ s⁺}) / 2.

    A constant scorer has rank 1 + K/2, not 1. NaN among the negatives means a missing pair; a NaN positive ranks last.
    """
    unknown = np.isnan(positive)[:, None] & ~np.isnan(negative)
    above = ((negative > positive[:, None]) | unknown).sum(1)
    equal = (negative == positive[:, None]).sum(1)
    return np.asarray(1 + above + equal / 2)


def among(
    scores: Tensor, place: np.ndarray, out: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank one candidate per query among all others but those left out, ties at their mean place as in `ranks`.

    Args:
        scores: scores of all candidates, by query [Q, K]; overwritten.
        place: the ranked candidate of each query [Q].
        out: query and candidate of those left out, [L] each; a ranked one among them stays.

    Returns:
        rank, number of other candidates, and cross entropy of the softmax over the remaining ones, each [Q].
    """
    rows = torch.arange(len(place))
    ranked_scores = scores[rows, torch.from_numpy(place)]
    scores[torch.from_numpy(out[0]), torch.from_numpy(out[1])] = torch.nan
    scores[rows, torch.from_numpy(place)] = torch.nan
    count = np.bincount(out[0][out[1] != place[out[0]]], minlength=len(place))
    wrong = scores.size(1) - 1 - count
    above, equal = (compare(scores, ranked_scores[:, None]).sum(1).numpy() for compare in (torch.gt, torch.eq))
    rank = np.where(ranked_scores.isnan().numpy(), 1 + wrong, 1 + above + equal / 2)
    scores[rows, torch.from_numpy(place)] = ranked_scores
    losses = scores.nan_to_num_(nan=-torch.inf).logsumexp(1) - ranked_scores
    return rank, wrong, losses.numpy()


def scores(ranks: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Return mean reciprocal rank and hits of ranks among ``wrong`` other candidates, both [P], with their chance levels."""
    measures = {"mrr": float(np.mean(1 / ranks)), chance.name_of("mrr"): random_reciprocal_rank(wrong)}
    for k in HITS:
        measures[f"hits_{k}"] = float(np.mean(ranks <= k))
        measures[chance.name_of(f"hits_{k}")] = float(np.mean(np.minimum(k / (wrong + 1), 1)))
    return measures


def random_reciprocal_rank(candidates: np.ndarray) -> float:
    """Mean reciprocal rank of a random order without ties: E[1/rank] = H(K+1) / (K+1), of K negatives each [P]."""
    size = candidates + 1
    most = int(size.max(initial=1))
    harmonic = np.cumsum(1 / np.arange(1, most + 1))
    return float(np.mean(harmonic[size - 1] / size))
