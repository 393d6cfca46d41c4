"""Scores that clients send, and the part of a round's record that they fill."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedgraph_flwr.config import UNBOUNDED, RunConfig, bounded_metric
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.tasks import kind_of
from fedgraph_flwr.wire.messages import Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, Axis, NumberField

KEYS = ("count", "loss")
"""Values that a client sends per split in addition to metrics."""


def score_fields(
    cfg: RunConfig, classes: int, prefix: str, parts: Axis
) -> dict[str, NumberField]:
    """Return the numbers of a reply with scores: one entry per part of the client's graph, NaN for a part without nodes."""
    fields = {
        "count": NumberField(0, LARGEST, length=parts),
        "loss": NumberField(0, length=parts, nan=True),
    }
    task = kind_of(cfg)
    own_metrics = cfg.evaluation.own
    share = NumberField(0, 1, length=parts, nan=True)
    named = {**fields, **dict.fromkeys(task.wanted(cfg.evaluation, classes), share)}
    free = [name for name in cfg.evaluation.points if not bounded_metric(name)]
    unbounded = [
        name
        for metric in (*own_metrics, *UNBOUNDED, *free)
        for name in (metric, chance.name_of(metric))
    ]
    named |= {name: NumberField(length=parts, nan=True) for name in unbounded if name in named}
    return {
        f"{prefix}{split}-{key}": wanted
        for split in metrics.SPLITS
        for key, wanted in named.items()
    }


def check_scores(
    scores: Mapping[str, Any], counted: Mapping[str, list[float]], who: str
) -> None:
    """Refuse scores without nodes, or of other nodes than before, which no range of a single number can express.

    Args:
        scores: numbers of a reply.
        counted: number of nodes per split when the client was first scored.
        who: start of the error message: the client and its phase.

    Raises:
        FedGraphError: names the score, its value, and what is expected.
    """
    cells = scores.get(metrics.CONFUSION, [])
    nodes = sum(cell for cell in cells if cell > 0)
    if cells and (
        nodes > (most := sum(scores.get("test-count", [])))
        or any(cell != int(cell) for cell in cells)
    ):
        raise FedGraphError(
            f"{who} with a confusion matrix of {nodes:g} nodes, expected counts of at most {most:g}"
        )
    for name, split, others in _counted(tuple(scores)):
        counts = scores[name]
        if not isinstance(counts, list):
            continue
        if counts != counted.get(split, counts) or any(count != int(count) for count in counts):
            raise FedGraphError(
                f"{who} with {name}={sanitize(counts, 60)}, expected {counted.get(split, 'whole numbers')}"
            )
        for other, defined in others:
            values = scores[other]
            if len(values) != len(counts):
                raise FedGraphError(
                    f"{who} with {len(values)} values of {other} for {len(counts)} of {name}"
                )
            for value, count in zip(values, counts, strict=True):
                if value != value and count and defined:
                    raise FedGraphError(
                        f"{who} with {other}=nan for {count:g} nodes, expected a number"
                    )


@lru_cache(maxsize=64)
def _counted(names: tuple[str, ...]) -> list[tuple[str, str, list[tuple[str, bool]]]]:
    """Return the counts among a reply's numbers, with the split and the other numbers of the same nodes.

    Each of those comes with whether it must be a number where there are nodes.
    """
    parts = {name: name.rpartition("-") for name in names}
    of = {name: prefix for name, (prefix, _, key) in parts.items() if key == KEYS[0]}
    return [
        (
            name,
            prefix.rpartition("-")[2],
            [
                (other, key in metrics.DEFINED)
                for other, (owner, _, key) in parts.items()
                if owner == prefix
            ],
        )
        for name, prefix in of.items()
    ]


def scores_of(
    replies: Iterable[Reply],
    cfg: RunConfig,
    classes: Sequence[int],
    prefix: str = "",
    nodes: list[float] | None = None,
) -> dict[str, Any]:
    """Return scores by client, and their means.

    Args:
        replies: replies with scores, in client order.
        cfg: the run's configuration.
        classes: C of the clients, on which some metrics depend: those that all of them have.
        prefix: prefix of the scores' names (``trained-`` for each client's model after local
            training).
        nodes: number of nodes per part, if they weight the means.
    """
    scored = list(replies)
    wanted = [kind_of(cfg).wanted(cfg.evaluation, count) for count in classes]
    common = [name for name in wanted[0] if all(name in names for names in wanted)]
    per_client = {
        f"{split}-{key}": [
            v for r in scored for v in as_list(r.metrics.get(f"{prefix}{split}-{key}", []))
        ]
        for split in metrics.SPLITS
        for key in (*KEYS, *common)
    }
    return {"metrics": metrics.averages(per_client, nodes), "clients": per_client}


def terms_of(replies: Iterable[Reply], cfg: RunConfig) -> dict[str, Any]:
    """Return the terms of the means that ``privacy.scores=noised`` releases, as `scores_of` returns scores."""
    terms = {
        name: [v for reply in replies for v in as_list(reply.metrics[name])]
        for name in metrics.released(cfg.evaluation)
    }
    return {"metrics": {}, "clients": terms}


def scorers(replies: Sequence[Reply], pooled: bool) -> list[int]:
    """Return the client of each entry of the scores; the only reply of a pooled run has one entry per client."""
    if not pooled:
        return [reply.client for reply in replies]
    counts = [as_list(reply.metrics.get("test-count", [])) for reply in replies]
    return list(range(max(map(len, counts), default=0)))


def confusion_of(replies: Iterable[Reply], classes: int) -> dict[str, list[list[int]]]:
    """Return the sum of reported counts, [C, C], and per cell the largest minimum that kept a client from reporting.

    A client sends -n for a count below its minimum n.
    """
    sent = [reply.metrics[metrics.CONFUSION] for reply in replies]
    cells = np.array(sent, dtype=int).reshape(-1, classes, classes)
    below = -np.minimum(cells, 0).min(axis=0)
    known: dict[str, list[list[int]]] = {}
    known["confusion"] = np.maximum(cells, 0).sum(axis=0).tolist()
    if below.any():
        known["confusion_below"] = below.tolist()
    return known


def training_record(
    replies: Iterable[Reply], prefixes: Iterable[str], cfg: RunConfig, classes: Sequence[int]
) -> dict[str, Any]:
    """Return the mean training loss, and means of further scores under their prefix, such as ``trained_test_accuracy``."""
    trained = list(replies)
    losses = [
        float(reply.metrics["train-loss"]) for reply in trained if "train-loss" in reply.metrics
    ]
    record: dict[str, Any] = {"train_loss": float(np.mean(losses))} if losses else {}
    for prefix in prefixes:
        record |= {
            f"{prefix[:-1]}_{k}": v
            for k, v in scores_of(trained, cfg, classes, prefix)["metrics"].items()
        }
    return record


def statistics_of(replies: Sequence[Reply], fields: Any) -> dict[str, float]:
    """Return the mean over clients of each single number that a method declares in the replies to ``train``."""
    names = (
        [name for name, field in fields.items() if field.length is None]
        if isinstance(fields, Mapping)
        else []
    )
    sent = {
        name: [float(reply.metrics[name]) for reply in replies if name in reply.metrics]
        for name in names
    }
    return {name: float(np.mean(values)) for name, values in sent.items() if values}


def as_list(value: Any) -> list[float]:
    """Return a number, or a list of numbers, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]
