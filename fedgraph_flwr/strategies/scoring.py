"""Scores that clients send, and what the record of a round says of them."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fedgraph_flwr.config import EvaluationConfig
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.wire.messages import Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, Axis, NumberField

KEYS = ("count", "loss")
"""What is told of a split beside its metrics."""


def score_fields(cfg: EvaluationConfig, classes: int, prefix: str, parts: Axis) -> dict[str, NumberField]:
    """The numbers of an answer that holds scores: one entry a part of the client's graph, NaN for one without nodes."""
    fields = {"count": NumberField(0, LARGEST, length=parts), "loss": NumberField(0, length=parts, nan=True)}
    share = NumberField(0, 1, length=parts, nan=True)
    named = {**fields, **dict.fromkeys(metrics.wanted(cfg, classes), share)}
    unbounded = (*cfg.own, *map(chance.name_of, cfg.own))
    named |= {name: NumberField(length=parts, nan=True) for name in unbounded if name in named}
    return {f"{prefix}{split}-{key}": wanted for split in metrics.SPLITS for key, wanted in named.items()}


def check_scores(told: Mapping[str, Any], counted: Mapping[str, list[float]], who: str) -> None:
    """Refuse scores that belong to no nodes, or to other nodes than before: what no range of a single number says.

    Args:
        told: numbers of an answer.
        counted: how many nodes each split had when the client was first scored.
        who: answered what.

    Raises:
        FedGraphError: one sentence.
    """
    cells = told.get(metrics.CONFUSION, [])
    nodes = sum(cell for cell in cells if cell > 0)
    if cells and (nodes > (most := sum(told.get("test-count", []))) or any(cell != int(cell) for cell in cells)):
        raise FedGraphError(f"{who} with a confusion matrix of {nodes:g} nodes, expected counts of at most {most:g}")
    for name, split, others in _counted(tuple(told)):
        counts = told[name]
        if not isinstance(counts, list):
            continue
        if counts != counted.get(split, counts) or any(count != int(count) for count in counts):
            raise FedGraphError(
                f"{who} with {name}={sanitize(counts, 60)}, expected {counted.get(split, 'whole numbers')}"
            )
        for other, defined in others:
            values = told[other]
            if len(values) != len(counts):
                raise FedGraphError(f"{who} with {len(values)} values of {other} for {len(counts)} of {name}")
            for value, count in zip(values, counts, strict=True):
                if value != value and count and defined:
                    raise FedGraphError(f"{who} with {other}=nan of {count:g} nodes")


@lru_cache(maxsize=64)
def _counted(names: tuple[str, ...]) -> list[tuple[str, str, list[tuple[str, bool]]]]:
    """Of the names of an answer's numbers those of counts, with the split, and what is told of the same nodes.

    Of that, whether it must be a number where there are nodes.
    """
    parts = {name: name.rpartition("-") for name in names}
    of = {name: prefix for name, (prefix, _, key) in parts.items() if key == KEYS[0]}
    return [
        (
            name,
            prefix.rpartition("-")[2],
            [(other, key in metrics.DEFINED) for other, (owner, _, key) in parts.items() if owner == prefix],
        )
        for name, prefix in of.items()
    ]


def counts_of(told: Mapping[str, Any]) -> dict[str, list[float]]:
    """How many nodes each split has."""
    return {split: list(told[f"{split}-count"]) for split in metrics.SPLITS if f"{split}-count" in told}


def scores_of(
    replies: Iterable[Reply], cfg: EvaluationConfig, classes: int, prefix: str = "", nodes: list[float] | None = None
) -> dict[str, Any]:
    """Scores by client, and their means.

    Args:
        replies: that hold scores, in the order of the clients.
        cfg: which metrics.
        classes: C, on which some metrics depend.
        prefix: of the names of the scores (``trained-``: of each client's model after local training).
        nodes: of each part, where means are weighted by them.
    """
    answers = list(replies)
    per_client = {
        f"{split}-{key}": [v for r in answers for v in as_list(r.metrics.get(f"{prefix}{split}-{key}", []))]
        for split in metrics.SPLITS
        for key in (*KEYS, *metrics.wanted(cfg, classes))
    }
    return {"metrics": metrics.averages(per_client, nodes), "clients": per_client}


def confusion_of(replies: Iterable[Reply], classes: int) -> dict[str, list[list[int]]]:
    """The sum of the counts that clients report, [C, C], and per cell the largest minimum that kept a client from reporting.

    A client sends -n for a count below its minimum n.
    """
    told = np.array([reply.metrics[metrics.CONFUSION] for reply in replies], dtype=int).reshape(-1, classes, classes)
    below = -np.minimum(told, 0).min(axis=0)
    known: dict[str, list[list[int]]] = {"confusion": np.maximum(told, 0).sum(axis=0).tolist()}
    return known | ({"confusion_below": below.tolist()} if below.any() else {})


def training_record(
    replies: Iterable[Reply], prefixes: Iterable[str], cfg: EvaluationConfig, classes: int
) -> dict[str, Any]:
    """The mean training loss, and the means of further scores under their prefix, ``trained_test_accuracy``."""
    answers = list(replies)
    losses = [float(reply.metrics["train-loss"]) for reply in answers if "train-loss" in reply.metrics]
    told: dict[str, Any] = {"train_loss": float(np.mean(losses))} if losses else {}
    for prefix in prefixes:
        told |= {f"{prefix[:-1]}_{k}": v for k, v in scores_of(answers, cfg, classes, prefix)["metrics"].items()}
    return told


def as_list(value: Any) -> list[float]:
    """A number, or a list of numbers, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]
