"""Outcome of a sweep as plain values: verdicts in words, scores with intervals, costs. NAME.json stores it for the page."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedgraph_flwr.config.composition import group_file, group_path
from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.errors import counted, sanitize
from fedgraph_flwr.evaluation.intervals import BySeed, Interval, deviation, ended, over, paired
from fedgraph_flwr.evaluation.verdict import BETTER, LEVEL, MARGIN, NOT_DECIDED, WORSE, verdict
from fedgraph_flwr.sweeps.rows import COUNTED, MAJORITY, Row, number
from fedgraph_flwr.sweeps.runs import run_name
from fedgraph_flwr.sweeps.spec import LOCAL, Cell, Sweep
from fedgraph_flwr.sweeps.summary import SweepSummary


def outcome(summary: SweepSummary) -> dict[str, Any]:
    """Return a sweep's outcome.

    It has ``verdicts``, ``equal`` methods, ``comparisons``, one entry of ``cells`` per row and column, and ``failures``.
    """
    sweep = summary.sweep
    kept = sweep.folder / f"{sweep.name}-runs"
    rows: dict[tuple[str, str], list[tuple[Cell, Row]]] = {}
    for cell in sweep.cells(summary.finished):
        if row := summary.finished.get(cell.identity):
            rows.setdefault((cell.setting, cell.method), []).append((cell, row))
    cells = []
    for setting in sweep.settings:
        best = _best(summary, setting)
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
                    "deviation": deviation(list(ended(summary.shown(setting, method)).values())),
                    "difference": _interval(summary.difference(setting, method)) or None,
                    "best": method in best,
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
        "margin": summary.margin,
        "verdicts": list(verdicts(summary)),
        "equal": list(equal_methods(summary)),
        "comparisons": [
            {"setting": setting} | asdict(comparison)
            for setting in sweep.settings
            for comparison in comparisons(summary, setting)
        ],
        "cells": cells,
        "failures": [{"run": cell.label, "reason": sanitize(reason, 1000)} for cell, reason in failed],
    }


def _best(summary: SweepSummary, setting: str) -> set[str]:
    """Return the method of a row with the best mean, and those that are level with it."""
    order = _ranked(summary, setting)
    pairs = _pairs(summary, setting, order[0], order[1:]) if order else []
    return {*order[:1], *(pair.other for pair in pairs if pair.verdict == LEVEL)}


def _ranked(summary: SweepSummary, setting: str) -> list[str]:
    """Return the methods of a row that have a score, the best first."""
    means = {m: mean.mean for m in summary.sweep.running if (mean := summary.mean(setting, m))}
    return sorted(means, key=lambda method: -summary.sign * means[method])


def _pairs(summary: SweepSummary, setting: str, best: str, others: Sequence[str]) -> "list[Comparison]":
    """Compare a method of a row with others, as far as they have common seeds."""
    scores, how = summary.shown(setting, best), (summary.sign, summary.margin, " points" if summary.in_percent else "")
    pairs = (compared(best, scores, other, summary.shown(setting, other), *how) for other in others)
    return [pair for pair in pairs if pair]


def _costs(rows: Sequence[Row]) -> dict[str, float]:
    """Return mean costs over the seeds that have them; NaN without any."""
    values = {key: [number(row, key) for row in rows] for key in ("seconds_per_round", "seconds")}
    values["bytes"] = [number(row, "bytes_up") + number(row, "bytes_down") for row in rows]
    means = {key: over(dict(enumerate(costs))) for key, costs in values.items()}
    return {key: mean.mean if mean else math.nan for key, mean in means.items()}


def _interval(interval: Interval | None) -> dict[str, Any]:
    return {"mean": interval.mean, "half": interval.half, "n": interval.n} if interval else {}


@dataclass(frozen=True)
class Comparison:
    """Two methods of a setting, compared over their common seeds.

    Attributes:
        name: the first method.
        other: the second method.
        mean: mean difference, first minus second.
        half: half of its 95 % interval; NaN for one seed.
        seeds: number of common seeds.
        wins: number of seeds in which the first is better.
        verdict: what the interval decides about the first (`evaluation.verdict`).
        margin: largest difference that counts as none.
        unit: unit of the difference, with a space before it; empty if it has none.
    """

    name: str
    other: str
    mean: float
    half: float
    seeds: int
    wins: int
    verdict: str
    margin: float
    unit: str

    @property
    def size(self) -> str:
        """The size of the difference with its interval."""
        half = "" if math.isnan(self.half) else f" ± {_digits(self.half, self.unit)}"
        return f"{_digits(abs(self.mean), self.unit)}{half}{self.unit}"

    @property
    def signed(self) -> str:
        """The difference with its sign and its interval."""
        return f"{'+' if self.mean >= 0 else '−'}{self.size}"

    @property
    def over(self) -> str:
        """The number of seeds."""
        return counted(self.seeds, "seed")

    def against(self, other: str) -> str:
        """Return the comparison without its first method, such as ``better than Local by 4.4 ± 1.0 points``."""
        if self.verdict in (BETTER, WORSE):
            return f"{self.verdict} than {other} by {self.size}"
        if self.verdict == LEVEL:
            within = f" within {self.margin:g}{_one(self.unit, self.margin)}" if self.margin else ""
            return f"level with {other}{within} ({self.signed})"
        return f"too few seeds to tell it from {other} ({self.signed})"

    @property
    def text(self) -> str:
        """The comparison as a sentence without its period."""
        name = column_name(self.name)
        won = f", {name} better in {self.wins}" if self.seeds > 1 else ""
        other = column_name(self.other)
        if self.verdict == NOT_DECIDED:
            return f"Too few seeds to tell {name} from {other} ({self.signed}), {self.over}{won}"
        return f"{name} is {self.against(other)}, {self.over}{won}"


def _digits(value: float, unit: str) -> str:
    return f"{value:.1f}" if unit and (value >= 0.05 or not value) else f"{value:.3g}"


def _one(unit: str, value: float) -> str:
    return unit.removesuffix("s") if value == 1 else unit


def compared(
    name: str,
    scores: BySeed,
    other: str,
    others: BySeed,
    sign: float = 1,
    margin: float = MARGIN,
    unit: str = " points",
) -> Comparison | None:
    """Compare two methods by the mean difference over common seeds and its 95 % interval; None without any.

    Args:
        name: the first method.
        scores: its scores by seed.
        other: the second method.
        others: its scores by seed.
        sign: -1 if a lower score is better.
        margin: largest difference that counts as none.
        unit: unit of the difference.
    """
    difference = paired(scores, others)
    if not difference:
        return None
    first, second = ended(scores), ended(others)
    wins = sum(sign * (first[seed] - second[seed]) > 0 for seed in first.keys() & second.keys())
    _, low, high = difference.ends
    decided = verdict(low, high, margin, sign)
    return Comparison(name, other, difference.mean, difference.half, difference.n, wins, decided, margin, unit)


def comparisons(summary: SweepSummary, setting: str) -> list[Comparison]:
    """Compare the best method of a row with the reference, pooled training, and the next best; empty without methods to compare.

    The best is chosen by its test scores, so with many methods its lead is optimistic.
    """
    sweep = summary.sweep
    order = _ranked(summary, setting)
    pooled = [method for method in order if _pooled(sweep.methods[method])]
    compete = [method for method in order if method not in (*pooled, sweep.reference)]
    if not compete:
        return []
    best, *others = compete
    names = [*([sweep.reference] if sweep.reference in order else []), *pooled[:1], *others[:1]]
    return _pairs(summary, setting, best, names)


def verdicts(summary: SweepSummary) -> Iterator[str]:
    """Yield the finding of each row, and how its best method compares with the next best."""
    sweep = summary.sweep
    for setting in sweep.settings:
        pairs = comparisons(summary, setting)
        if not pairs:
            continue
        prefix = f"{setting}: " if len(sweep.settings) > 1 else ""
        known = [pair for pair in pairs if pair.other == sweep.reference or _pooled(sweep.methods[pair.other])]
        yield prefix + _finding(summary, setting, pairs[0].name, known)
        yield from (prefix + pair.text for pair in pairs if pair not in known)


def equal_methods(summary: SweepSummary) -> Iterator[str]:
    """Yield a text for each group of methods with equal scores in every run."""
    alike: dict[tuple[tuple[tuple[int, float], ...], ...], list[str]] = {}
    for method in summary.sweep.running:
        shown = (ended(summary.shown(setting, method)) for setting in summary.sweep.settings)
        scores = tuple(tuple(sorted(by_seed.items())) for by_seed in shown)
        if any(scores):
            alike.setdefault(scores, []).append(method)
    for *methods, last in alike.values():
        if methods:
            first, table = ", ".join(map(column_name, methods)), summary.sweep.results.name
            fact = f"{first} and {column_name(last)} have equal scores in every run"
            yield f"{fact}; the column parameters of {table} shows whether their models are equal, too"


def _finding(summary: SweepSummary, setting: str, best: str, known: Sequence[Comparison]) -> str:
    """Return the best method's score next to chance, training alone and training on all data."""
    sweep, mean = summary.sweep, summary.mean(setting, best)
    if mean is None:
        return ""
    form = "{:.1f} %".format if summary.in_percent else "{:.4g}".format
    metric = next(iter(summary.headlines), "").partition(" at ")[0].replace("_", " ")
    level = summary.mean(setting, MAJORITY) if MAJORITY in sweep.methods else None
    chance = f" (chance {form(level.mean)})" if level else ""
    parts = [pair.against(_described(sweep, pair.other)) for pair in known]
    lead = f"{column_name(best)} has {form(mean.mean)} {metric}{chance}, over {counted(mean.n, 'seed')}"
    return f"{lead}: {'; '.join(parts)}" if parts else lead


def _described(sweep: Sweep, method: str) -> str:
    """Return what a baseline does, for readers who do not know its name."""
    name = column_name(method)
    if _pooled(sweep.methods[method]):
        return f"one model on all data ({name})"
    return f"training alone ({name})" if name == LOCAL else name


def _pooled(overrides: list[str]) -> bool:
    """Return whether a method trains on the pooled graphs, which no party could do."""
    named = [word.partition("=")[2] for word in overrides if word.startswith("strategy=")][-1:]
    return any(group_path("strategy", name) and group_file("strategy", name).get("pooled") for name in named)
