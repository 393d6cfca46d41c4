"""What a report says first: the headline figure with what it can be trusted, beside what it is measured against."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedgraph_flwr.config import SHARES
from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.evaluation.intervals import Interval, paired
from fedgraph_flwr.report.page import Page, grid, note, render, table
from fedgraph_flwr.report.runs import FinishedRun, Fold, alike, cut_of, method_name
from fedgraph_flwr.report.units import duration, percent, points, size

_NAMES = {"auc": "AUC", "macro_f1": "macro F1", "mrr": "MRR", **{f"hits_{k}": f"hits@{k}" for k in (1, 3, 10)}}

MAX_NAMED = 5
"""Clients that a sentence names."""

_AVERAGED = {
    "clients": "the mean of its clients",
    "test_nodes": "the mean of its clients, each weighted by its test nodes",
    "nodes": "the mean of its clients, each weighted by its nodes",
}
_WHEN = {
    "best_val": "at the best validation round",
    "own_best_val": "at each client's own best validation round",
    "last": "after the last round",
    "last5": "over the last five rounds",
}


def is_share(metric: str) -> bool:
    """Whether a metric is of ours, and so told in percent; one of the user's own may be anything."""
    base = metric.removeprefix(chance.PREFIX)
    return base in SHARES or base.startswith("f1_") or base == chance.MAJORITY


def figure(value: float, metric: str) -> str:
    """A score in words."""
    if math.isnan(value):
        return "–"
    return percent(value) if is_share(metric) else f"{value:.4g}"


def spread(value: float, metric: str) -> str:
    """A deviation, or half an interval, in words."""
    return f"{100 * value:.1f}" if is_share(metric) else f"{value:.2g}"


def metric_of(run: FinishedRun) -> str:
    """The headline metric's name."""
    return run.cfg.evaluation.headline


def words_of(metric: str) -> str:
    """A metric's name in words."""
    return _NAMES.get(metric, metric.replace("_", " "))


def title(folds: Sequence[Fold]) -> str:
    """Of the page."""
    data = dict.fromkeys(fold.runs[0].data_text for fold in folds)
    methods = list(dict.fromkeys(method_name(fold.runs[0].cfg.strategy.name) for fold in folds))
    named = listed(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{named} on {listed(list(data))}"


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def best(folds: Sequence[Fold]) -> Fold:
    """The fold of the highest mean, the first where none has one; clients alone and one graph of all only among themselves."""
    federated = [fold for fold in folds if not _is_measure(fold)] or list(folds)
    return max(federated, key=lambda fold: fold.mean.mean if fold.mean else -math.inf)


def answers(folds: Sequence[Fold], measures: Sequence[Fold]) -> Markup:
    """The answer: one of each data."""
    firsts = {cut_of(fold.runs[0]): fold for fold in reversed(folds)}
    return Markup("").join(
        _sentence(alike(folds, first), alike(measures, first)) for first in reversed(firsts.values())
    )


def _sentence(folds: Sequence[Fold], measures: Sequence[Fold]) -> Markup:
    top = best(folds)
    run, metric = top.runs[0], metric_of(top.runs[0])
    if top.mean is None:
        kept = f"privacy.scores={run.cfg.privacy.scores}"
        return render("no_scores", name=top.name, data=run.data_text, setting=kept)
    where = f"test {words_of(metric)} on {run.data_text} over {run.cfg.num_clients} clients"
    others = f", the best of {len(folds)} settings," if len(folds) > 1 else ""
    more = f"{_trust(top, metric)}. The figure is {_AVERAGED[run.cfg.evaluation.average]}, {_WHEN[run.cfg.evaluation.select]}."
    more += _without(run)
    if not run.summary:
        more = f"The run has not ended: this is its round {run.shown_round} of {run.cfg.rounds}. {more}"
    score, compared = _with_spread(top, metric), _beside(top, measures, metric)
    return render("answer", name=top.name, others=others, score=score, where=where, compared=compared, lead=more)


def _without(run: FinishedRun) -> str:
    """How many clients are in the mean, where some are not."""
    left_out = run.left_out
    if not left_out:
        return ""
    clients = len(run.per_client["test-count"])
    reasons = "; ".join(f"client {c}: {why}" for c, why in list(left_out.items())[:MAX_NAMED])
    more = f"; and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
    return f" It is over {clients - len(left_out)} of {clients} clients ({reasons}{more})."


def _with_spread(fold: Fold, metric: str) -> str:
    """``84.1 ± 0.6 %`` over seeds; of one run its figure alone."""
    found = fold.mean
    if found is None or found.n < 2:
        return figure(found.mean if found else math.nan, metric)
    if is_share(metric):
        return f"{100 * found.mean:.1f} ± {spread(fold.deviation, metric)} %"
    return f"{found.mean:.4g} ± {spread(fold.deviation, metric)}"


def _trust(fold: Fold, metric: str) -> str:
    """How far the figure may be trusted: over seeds, or, of one, over clients."""
    found = fold.mean
    if found and found.n > 1:
        low, high = found.mean - found.half, found.mean + found.half
        interval = f"{figure(low, metric)} to {figure(high, metric)}"
        return f"Mean ± standard deviation of {found.n} seeds; 95 % interval of the mean (Student's t): {interval}"
    values = [v for v in fold.runs[0].per_client.get(f"test-{metric}", []) if not math.isnan(v)]
    if len(values) < 2:
        return "One seed"
    between = f"One seed; its clients lie between {figure(min(values), metric)} and {figure(max(values), metric)}"
    return f"{between}, standard deviation {spread(statistics.stdev(values), metric)}"


def _beside(top: Fold, measures: Sequence[Fold], metric: str) -> str:
    """What the figure is measured against."""
    value = top.mean.mean if top.mean else math.nan
    told = []
    for fold in measures:
        if fold is not top and (difference := paired(top.by_seed, fold.by_seed)) and fold.mean:
            kind = "one model on the whole graph" if fold.runs[0].cfg.strategy.pooled else "each client for itself"
            told.append(f"{_apart(difference.mean, metric)} {fold.name} ({kind}, {figure(fold.mean.mean, metric)})")
    if not math.isnan(top.chance):
        level = figure(top.chance, metric)
        told.append(f"{_apart(value - top.chance, metric)} {chance.predictor(metric)} ({level})")
    return listed(told)


def _apart(difference: float, metric: str) -> str:
    """``3.1 points above``."""
    size = f"{100 * abs(difference):.1f} points" if is_share(metric) else f"{abs(difference):.3g}"
    return f"{size} {'above' if difference >= 0 else 'below'}"


def _is_measure(fold: Fold) -> bool:
    rules = fold.runs[0].cfg.strategy
    return rules.pooled or not rules.shared


def tiles(fold: Fold) -> Markup:
    """The figures that one looks for first."""
    run, summary = fold.runs[0], fold.runs[0].summary
    up, down = (_mean(fold, key) for key in ("bytes_up", "bytes_down"))
    done = run.every_round[-1]["round"] if run.every_round else 0
    told = [
        ("rounds", str(done), f"best {run.shown_round}" if run.shown_round else "none scored"),
        (
            "time",
            duration(_mean(fold, "total_seconds")),
            f"{duration(_mean(fold, 'seconds_per_round'))} a round (median)",
        ),
        ("sent by clients", size(up), "whole run"),
        ("sent to clients", size(down), "whole run"),
        ("clients", str(run.cfg.num_clients), _failed(fold)),
    ]
    spent = summary.get("privacy")
    epsilon = spent.get("epsilon") if isinstance(spent, dict) else None
    if isinstance(epsilon, int | float):
        told.append(("privacy spent", f"ε = {epsilon:.3g}", f"at δ = {run.cfg.privacy.delta:g}"))
    else:
        told.append(("privacy spent", "no ε", "no noise was added"))
    return render("tiles", cells=told)


def _failed(fold: Fold) -> str:
    failed = sum(len(record["failed"]) for run in fold.runs for record in run.every_round)
    return f"{failed} answers failed" if failed else "no answer failed"


def _mean(fold: Fold, key: str) -> float:
    values = [run.number(key) for run in fold.runs]
    return statistics.fmean(values) if values else math.nan


# --- several settings side by side -----------------------------------------------------------------------------------


def compared(page: Page, folds: Sequence[Fold], measures: Sequence[Fold]) -> Markup:
    """Settings beside each other, with differences paired by seed; nothing where there is one alone."""
    shown = [*folds, *(fold for fold in measures if fold not in folds)]
    if len(shown) < 2:
        return Markup("")
    metric = metric_of(folds[0].runs[0])
    unit = "share" if is_share(metric) else "plain"
    rows = [_row(fold, place) for place, fold in enumerate(shown)]
    several = any(len(fold.runs) > 1 for fold in shown)
    level = statistics.fmean(fold.chance for fold in folds)
    if not math.isnan(level):
        rows.append({"name": "Chance", "mean": level, "lo": math.nan, "hi": math.nan, "colour": 6})
    dots = page.chart(
        f"Test {words_of(metric)}",
        ("Large: mean over seeds, with its 95 % interval (Student's t). Small: single seeds. " if several else "")
        + f"Chance: {chance.predictor(metric)}.",
        "dots",
        height=90 + 46 * len(rows),
        rows=rows,
        unit=unit,
        name="",
    )
    found = [run.folder.name for fold in shown if fold not in folds for run in fold.runs]
    told = (
        note(f"Found beside the runs of this page, and of the same data: {', '.join(found)}.") if found else Markup("")
    )
    return grid(dots, _differences(page, shown, unit, metric)) + _table(shown, metric) + told


def _row(fold: Fold, place: int) -> dict[str, Any]:
    found = fold.mean or Interval(math.nan, math.nan, 0)
    each = [[value, f"seed {seed}"] for seed, value in fold.by_seed.items()] if found.n > 1 else []
    lo, hi = found.mean - found.half, found.mean + found.half
    return {"name": fold.name, "mean": found.mean, "lo": lo, "hi": hi, "each": each, "colour": place}


def _differences(page: Page, folds: Sequence[Fold], unit: str, metric: str) -> Markup:
    """To the first setting, paired by seed."""
    first, same = folds[0], alike(folds, folds[0])
    rows = []
    for place, fold in enumerate(folds):
        if fold is not first and fold in same and (found := paired(fold.by_seed, first.by_seed)):
            lo, hi = found.mean - found.half, found.mean + found.half
            rows.append({"name": fold.name, "mean": found.mean, "lo": lo, "hi": hi, "colour": place})
    if not rows:
        return Markup("")
    crosses = ", with its 95 % interval: one that crosses 0 tells no difference"
    return page.chart(
        f"Difference to {first.name}",
        f"Mean of the differences paired by seed{crosses if any(len(fold.runs) > 1 for fold in folds) else ''}.",
        "dots",
        height=90 + 46 * len(rows),
        rows=rows,
        unit="points" if unit == "share" else unit,
        name="points" if unit == "share" else "",
        marks=[{"name": "", "at": 0}],
    )


def _table(folds: Sequence[Fold], metric: str) -> Markup:
    def half(found: Interval | None) -> tuple[str, float]:
        return (f"± {spread(found.half, metric)}", found.half) if found and found.n > 1 else ("–", math.nan)

    rows, same = [], alike(folds, folds[0])[1:]
    for fold in folds:
        found, difference = fold.mean, paired(fold.by_seed, folds[0].by_seed) if fold in same else None
        mean = found.mean if found else math.nan
        told = f"{points(difference.mean) if is_share(metric) else f'{difference.mean:+.3g}'}" if difference else "–"
        rows.append(
            [
                fold.name,
                (str(len(fold.runs)), float(len(fold.runs))),
                (figure(mean, metric), mean),
                (spread(fold.deviation, metric) if len(fold.runs) > 1 else "–", fold.deviation),
                half(found),
                (told, difference.mean if difference else math.nan),
                half(difference),
                (figure(fold.chance, metric), fold.chance),
                (duration(_mean(fold, "seconds_per_round")), _mean(fold, "seconds_per_round")),
                (size(_moved(fold)), _moved(fold)),
            ]
        )
    head = [
        "setting",
        "seeds",
        f"test {words_of(metric)}",
        "deviation",
        "95 % interval",
        f"to {folds[0].name}",
        "95 % interval",
    ]
    return table(
        [*head, "chance", "a round", "moved"],
        rows,
        "Means over seeds; differences are paired by seed. A click on a column sorts.",
    )


def _moved(fold: Fold) -> float:
    return _mean(fold, "bytes_up") + _mean(fold, "bytes_down")
