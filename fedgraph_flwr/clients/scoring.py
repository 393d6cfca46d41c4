"""Predictions and scores of a client's current model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.seam import seam
from fedgraph_flwr.evaluation import metrics


@seam
def infer(client: Any) -> Tensor:
    """Return the logits [N, C] of the model as it is, without dropout."""
    client.model.eval()
    with torch.no_grad():
        return client.task.predictions(client.logits, client.inputs, client.later)


@seam
def score(client: Any, logits: Tensor) -> dict[str, list[float]]:
    """Return scores of logits [N, C], by split and metric; none of a class with fewer nodes than `score_floor`."""
    evaluation = client.cfg.evaluation
    names = client.task.wanted(evaluation, client.task.width)
    return client.scorer(client.score_floor).score(logits, names, evaluation.own)


def sent_scores(client: Any, scores: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the scores that leave the client.

    With ``privacy.scores=noised`` these are its terms of the means that the server releases: values in [0, 1], 0 where undefined.
    """
    if client.protection.scores != "noised":
        return dict(scores)
    return {
        name: np.clip(np.nan_to_num(scores[name]), 0, 1).tolist() for name in metrics.released(client.cfg.evaluation)
    }
