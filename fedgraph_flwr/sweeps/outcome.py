"""Outcome of a sweep as plain values: verdicts in words, scores with intervals, costs. NAME.json stores it for the page."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fedgraph_flwr.config.composition import group_file, group_path
from fedgraph_flwr.errors import sanitize
from fedgraph_flwr.evaluation.intervals import BySeed, Interval, ended, over, paired
from fedgraph_flwr.sweeps.rows import COUNTED, Row, number
from fedgraph_flwr.sweeps.runs import run_name
from fedgraph_flwr.sweeps.spec import Cell
from fedgraph_flwr.sweeps.summary import SweepSummary


def outcome(summary: SweepSummary) -> dict[str, Any]:
    """Return a sweep's outcome: ``verdicts``, one entry of ``cells`` per row and column, and ``failures``."""
    sweep = summary.sweep
    kept = sweep.folder / f"{sweep.name}-runs"
    rows: dict[tuple[str, str], list[tuple[Cell, Row]]] = {}
    for cell in sweep.cells(summary.found):
        if row := summary.found.get(cell.identity):
            rows.setdefault((cell.setting, cell.method), []).append((cell, row))
    cells = []
    for setting in sweep.settings:
        for method in sweep.methods:
            chosen = summary.chosen[setting, method]
            ran = rows.get((setting, chosen), [])
            costs = {} if method in COUNTED else _costs([row for _, row in ran])
            folders = [kept / run_name(cell) for cell, _ in ran]
            cells.append(
                {
                    "setting": setting,
                    "method": method,
                    "choice": chosen.removeprefix(method).removeprefix(", "),
                    "scores": dict(summary.shown(setting, method)),
                    **_interval(summary.mean(setting, method)),
                    "difference": _interval(summary.difference(setting, method)) or None,
                    **costs,
                    "runs": [str(path.relative_to(sweep.folder)) for path in folders if path.is_dir()],
                }
            )
    failed = [*summary.failures, *summary.missed]
    return {
        "name": sweep.name,
        "title": sweep.title,
        "source": sweep.source,
        "command": sweep.made,
        "headline": ", ".join(sorted(summary.headlines)),
        "percent": summary.in_percent,
        "reference": sweep.reference,
        "verdicts": list(verdicts(summary)),
        "cells": cells,
        "failures": [{"run": cell.label, "reason": sanitize(reason, 1000)} for cell, reason in failed],
    }


def _costs(rows: Sequence[Row]) -> dict[str, float]:
    """Return mean costs over the seeds that have them; NaN without any."""
    values = {key: [number(row, key) for row in rows] for key in ("seconds_per_round", "seconds")}
    values["bytes"] = [number(row, "bytes_up") + number(row, "bytes_down") for row in rows]
    means = {key: over(dict(enumerate(each))) for key, each in values.items()}
    return {key: found.mean if found else math.nan for key, found in means.items()}


def _interval(found: Interval | None) -> dict[str, Any]:
    return {"mean": found.mean, "half": found.half, "n": found.n} if found else {}


def verdicts(summary: SweepSummary) -> Iterator[str]:
    """Yield one sentence per comparison of each row's best method: with the reference, the next best, and pooled training.

    The best is chosen by its test scores, so with many methods its lead is optimistic.
    """
    sweep = summary.sweep
    for setting in sweep.settings:
        means = {m: found.mean for m in summary.running if (found := summary.mean(setting, m))}
        order = sorted(means, key=lambda method: -summary.sign * means[method])
        pooled = [method for method in order if _pooled(sweep.methods[method])]
        compete = [method for method in order if method not in (*pooled, sweep.reference)]
        if not compete:
            continue
        best, *others = compete
        names = [*([sweep.reference] if sweep.reference in means else []), *others[:1], *pooled[:1]]
        for other in names:
            sentence = compared(best, summary.shown(setting, best), other, summary.shown(setting, other), summary.sign)
            if sentence:
                yield f"{setting}: {sentence}" if len(sweep.settings) > 1 else sentence


def compared(name: str, scores: BySeed, other: str, others: BySeed, sign: float = 1) -> str:
    """Compare two methods in words, by the mean difference over common seeds and its 95 % interval; empty without any.

    Args:
        name: the first method.
        scores: its scores by seed.
        other: the second method.
        others: its scores by seed.
        sign: -1 if a lower score is better.
    """
    found = paired(scores, others)
    if not found:
        return ""
    first, second = ended(scores), ended(others)
    wins = sum(sign * (first[seed] - second[seed]) > 0 for seed in first.keys() & second.keys())
    lead, size = sign * found.mean, f"{abs(found.mean):.1f}" if abs(found.mean) >= 0.05 else f"{abs(found.mean):.2g}"
    ahead, behind = (name, other) if lead >= 0 else (other, name)
    if found.n < 2 and not lead:
        return f"{name} and {other} score the same (one seed)"
    if found.n < 2:
        return f"{ahead} ahead of {behind} by {size} (one seed)"
    half = f"{found.half:.1f}" if found.half >= 0.05 else f"{found.half:.2g}"
    if abs(found.mean) > found.half:
        won = wins if lead >= 0 else found.n - wins
        return f"{ahead} ahead of {behind} by {size} ± {half}, {won} of {found.n} seeds"
    signed = f"{'+' if found.mean >= 0 else '−'}{size}"
    return f"{name} and {other} are level: {signed} ± {half}, {name} better in {wins} of {found.n} seeds"


def _pooled(overrides: list[str]) -> bool:
    """Return whether a method trains on the pooled graphs, which no party could do."""
    named = [word.partition("=")[2] for word in overrides if word.startswith("strategy=")][-1:]
    return any(group_path("strategy", name) and group_file("strategy", name).get("pooled") for name in named)
