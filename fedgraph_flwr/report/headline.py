"""Headline of a report: the score with its uncertainty, next to baselines and the chance level."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from fedgraph_flwr.config import SHARES, RunConfig
from fedgraph_flwr.config.method_names import method_name
from fedgraph_flwr.config.operating_points import point
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.evaluation.best_round import failed_replies
from fedgraph_flwr.evaluation.intervals import Interval, ended, over, paired
from fedgraph_flwr.evaluation.verdict import MARGIN
from fedgraph_flwr.report.page import Page, grid, note, render
from fedgraph_flwr.report.runs import FinishedRun, RunGroup, alike, beside, cut_of, group_runs
from fedgraph_flwr.report.side_by_side import SideBySide
from fedgraph_flwr.report.units import duration, percent, size
from fedgraph_flwr.store.results import as_number, headline_score
from fedgraph_flwr.sweeps import outcome

_NAMES = {
    "auc": "AUC",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "mrr": "MRR",
    "mr": "MR",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    **{f"hits_{k}": f"hits@{k}" for k in (1, 3, 10)},
}

MAX_NAMED = 5
"""Maximum number of clients listed by name."""

_AVERAGED = {
    "clients": "the mean of its clients",
    "test_nodes": "the mean of its clients, each weighted by its test nodes",
    "nodes": "the mean of its clients, each weighted by its nodes",
}
_WHEN = {
    "best_val": "at the best validation round",
    "own_best_val": "at each client's best validation round",
    "last": "after the last round",
    "last5": "over the last five rounds",
}


def is_share(metric: str) -> bool:
    """Return whether a metric is built in and thus a share; custom metrics may have any range."""
    base = metric.removeprefix(chance.PREFIX)
    at = point(base)
    return at.bounded if at else base in SHARES or base.startswith("f1_") or base == chance.MAJORITY


def score_text(value: float, metric: str) -> str:
    """Format a score."""
    if math.isnan(value):
        return "–"
    return percent(value) if is_share(metric) else f"{value:.4g}"


def spread(value: float, metric: str) -> str:
    """Format half an interval."""
    return f"{100 * value:.1f}" if is_share(metric) else f"{value:.2g}"


def metric_of(run: FinishedRun) -> str:
    """Return the name of the headline metric."""
    return run.cfg.evaluation.headline


def display_name(metric: str) -> str:
    """Return a metric's name for display."""
    return _NAMES.get(metric, metric.replace("_", " "))


def headline_text(headline: str) -> str:
    """Return a summary's ``headline`` as a phrase: ``test accuracy at the best validation round``."""
    score, _, when = headline.partition(" at ")
    when = _WHEN.get(when, f"at {when}") if when else ""
    return f"test {display_name(score.removeprefix('test_'))} {when}".rstrip()


def title(groups: Sequence[RunGroup]) -> str:
    """Return the title of the page."""
    data = dict.fromkeys(group.runs[0].cfg.data_text for group in groups)
    methods = list(dict.fromkeys(method_name(group.runs[0].cfg.strategy.name) for group in groups))
    named = listed(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{named} on {listed(list(data))}"


def listed(items: Sequence[str]) -> str:
    """Join items as ``a, b and c``."""
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else "".join(items)


def best(groups: Sequence[RunGroup]) -> RunGroup:
    """Return the group with the best mean, else the first; baselines (Local, Central) count only if all are baselines."""
    federated = [group for group in groups if not group.is_baseline] or list(groups)
    sign = chance.sign_of(metric_of(groups[0].runs[0]))
    return max(federated, key=lambda group: sign * group.mean.mean if group.mean.n else -math.inf)


def summaries(groups: Sequence[RunGroup], baselines: Sequence[RunGroup], whole: bool = True) -> Markup:
    """Return one headline sentence per dataset and partition; ``whole``: they say if training alone is missing."""
    firsts = {cut_of(group.runs[0]): group for group in reversed(groups)}
    return Markup("").join(
        _summary(alike(groups, first), alike(baselines, first), whole) for first in reversed(firsts.values())
    )


def _summary(groups: Sequence[RunGroup], baselines: Sequence[RunGroup], whole: bool) -> Markup:
    top = best(groups)
    run, metric = top.runs[0], metric_of(top.runs[0])
    if not top.mean.n:
        kept = f"privacy.scores={run.cfg.privacy.scores}"
        return render("no_scores", name=top.name, data=run.cfg.data_text, setting=kept)
    where = f"test {display_name(metric)} on {run.cfg.data_text} over {run.cfg.num_clients} clients"
    others = f", the best of {len(groups)} settings," if len(groups) > 1 else ""
    more = f"{_trust(top, metric)}. The score is {_AVERAGED[run.cfg.evaluation.average]}, {_WHEN[run.cfg.evaluation.select]}."
    more += _without(run) + (_not_alone([*groups, *baselines]) if whole else "")
    more += f" The run {text}." if (text := start_text(run.summary, run.cfg)) else ""
    if not run.summary:
        more = f"The run is not finished: this is round {run.shown_round} of {run.cfg.rounds}. {more}"
    score, compared = _with_spread(top, metric), _beside(top, baselines, metric)
    return render("summary", name=top.name, others=others, score=score, where=where, compared=compared, lead=more)


def in_words(run: FinishedRun) -> str:
    """Return the headline sentence of a finished run, beside baselines in the newest folders next to it."""
    groups, baselines = group_runs([run]), group_runs(beside([run], most=50))
    sentence = Markup(str(summaries(groups, baselines)).partition("</p>")[0]).striptags()
    return f"{sentence}{_not_alone([*groups, *baselines])}"


def _not_alone(groups: Sequence[RunGroup]) -> str:
    """Return that no client's training alone is among the runs, and how to add it; empty if it is."""
    if any(group.is_baseline and not group.runs[0].cfg.strategy.pooled for group in groups):
        return ""
    return " It is not compared with training alone: repeat the command with strategy=local, then write the page again."


def _without(run: FinishedRun) -> str:
    """Return a note on clients excluded from the mean, if any."""
    if run.unnamed:
        return " The run's version did not record which clients scored a round, so its best round may be one of few clients."
    left_out = run.left_out
    if not left_out:
        return f" It covers {who}." if (who := run.coverage) and run.cfg.evaluation.clients != "all" else ""
    clients = len(run.per_client["test-count"])
    reasons = "; ".join(f"{run.client_name(c)}: {why}" for c, why in list(left_out.items())[:MAX_NAMED])
    more = f"; and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
    return f" It covers {clients - len(left_out)} of {clients} clients ({reasons}{more})."


def start_text(summary: Mapping[str, Any], cfg: RunConfig) -> str:
    """Return where a run with ``init=`` starts: its score before round 1, and both ε; empty for other runs."""
    start = summary.get("start")
    if not isinstance(start, dict):
        return ""
    scores = start.get("metrics")
    score = as_number(scores.get(metrics.headline(cfg.evaluation, "test"))) if isinstance(scores, dict) else math.nan
    now = headline_score(summary)
    known = f", {score_text(score, cfg.evaluation.headline)} before round 1" if not math.isnan(score) else ""
    known += f" and {score_text(now, cfg.evaluation.headline)} now" if known and not math.isnan(now) else ""
    there, here = (entry if isinstance(entry, dict) else {} for entry in (start.get("privacy"), summary.get("privacy")))
    spent = [("there", there.get("epsilon")), ("in this run", here.get("own_epsilon", here.get("epsilon")))]
    spent += [("in all", here.get("epsilon"))] if here.get("earlier") else []
    epsilon = [f"ε ≤ {value:.3g} {where}" for where, entry in spent if not math.isnan(value := as_number(entry))]
    return f"starts with the model of {start.get('run', '?')}{known}{''.join(f'; {text}' for text in epsilon)}"


def _with_spread(group: RunGroup, metric: str) -> str:
    """Format ``84.1 ± 0.6 %`` over seeds, or the score of a single run."""
    interval = group.mean
    if interval.n < 2:
        return score_text(interval.mean, metric)
    if is_share(metric):
        return f"{100 * interval.mean:.1f} ± {spread(interval.half, metric)} %"
    return f"{interval.mean:.4g} ± {spread(interval.half, metric)}"


def _trust(group: RunGroup, metric: str) -> str:
    """Describe the uncertainty of the score: over seeds, or over clients for one seed."""
    if group.mean.n > 1:
        return f"Mean of {group.mean.n} seeds ± half of its 95 % interval (Student's t)"
    values = [v for v in group.runs[0].per_client.get(f"test-{metric}", []) if not math.isnan(v)]
    if len(values) < 2:
        return "One seed"
    low, high = (score_text(end, metric) for end in (min(values), max(values)))
    return f"One seed; its clients are between {low} and {high}"


def _beside(top: RunGroup, baselines: Sequence[RunGroup], metric: str) -> str:
    """Return the differences from the chance level and from the baselines, each with its verdict (`evaluation.verdict`)."""
    comparisons = []
    if not math.isnan(top.chance):
        level, apart = score_text(top.chance, metric), _apart(top.mean.mean - top.chance, metric)
        comparisons.append(f"{apart} {chance.predictor(metric)} ({level})")
    scale, margin, unit = (100.0, MARGIN, " points") if is_share(metric) else (1.0, 0.0, "")

    def scaled(group: RunGroup) -> dict[int, float]:
        return {seed: scale * value for seed, value in group.by_seed.items()}

    scores, sign = scaled(top), chance.sign_of(metric)
    for group in baselines:
        if group is not top and (
            comparison := outcome.compared(top.name, scores, group.name, scaled(group), sign, margin, unit)
        ):
            pooled = group.runs[0].cfg.strategy.pooled
            kind = "one model on the whole graph" if pooled else "each client on its own graph"
            comparisons.append(comparison.against(f"{group.name} ({kind}, {score_text(group.mean.mean, metric)})"))
    return listed(comparisons)


def _apart(difference: float, metric: str) -> str:
    """Format a difference as ``3.1 points above``."""
    size = f"{100 * abs(difference):.1f} points" if is_share(metric) else f"{abs(difference):.3g}"
    return f"{size} {'above' if difference >= 0 else 'below'}"


def tiles(group: RunGroup) -> Markup:
    """Return the tiles with the main numbers."""
    run, summary = group.runs[0], group.runs[0].summary
    done = run.every_round[-1]["round"] if run.every_round else 0
    total, pace = (duration(_mean(group, key)) for key in ("total_seconds", "seconds_per_round"))
    failed = sum(len(failed_replies(record)) for run in group.runs for record in run.every_round)
    cells = [
        ("rounds", str(done), f"best {run.shown_round}" if run.shown_round else "none scored"),
        ("time", total, f"{pace} per round (median)"),
        ("sent by clients", size(_mean(group, "bytes_up")), "whole run"),
        ("sent to clients", size(_mean(group, "bytes_down")), "whole run"),
        ("clients", str(run.cfg.num_clients), f"{failed} replies failed" if failed else "no reply failed"),
    ]
    spent = summary.get("privacy")
    spent = spent if isinstance(spent, dict) else {}
    epsilon = spent.get("epsilon")
    if isinstance(epsilon, int | float):
        of = ", with earlier runs" if spent.get("earlier") else ""
        cells.append(("privacy spent", f"ε ≤ {epsilon:.3g}", f"at δ = {run.cfg.privacy.delta:g}{of}"))
    else:
        unbounded = "unbounded", "an earlier run has no ε that adds up"
        value, why = (
            unbounded if spent.get("unbounded") else ("no noise was added", "so no ε bounds what replies reveal")
        )
        cells.append(("privacy", value, why))
    return render("tiles", cells=cells)


def _mean(group: RunGroup, key: str) -> float:
    return statistics.fmean(run.number(key) for run in group.runs)


# --- several settings side by side -----------------------------------------------------------------------------------


def compared(page: Page, groups: Sequence[RunGroup], baselines: Sequence[RunGroup]) -> Markup:
    """Compare settings, with differences paired by seed; empty for a single setting."""
    shown = [*groups, *(group for group in baselines if group not in groups)]
    if len(shown) < 2:
        return Markup("")
    metric = metric_of(groups[0].runs[0])
    first, percent = reference(shown), is_share(metric)
    same = [group for group in alike(shown, first) if group is not first]
    cells = [_cell(group, first if group in same else None, 100 if percent else 1) for group in shown]
    level = statistics.fmean(group.chance for group in groups)
    if not math.isnan(level):
        mean = asdict(Interval(100 * level if percent else level, math.nan, len(groups[0].runs)))
        cells.append({"setting": "", "method": "Chance", "scores": {}, "difference": None, **mean})
    methods = SideBySide(cells, f"test {display_name(metric)}", percent, first.name)
    how = (
        "Mean of the differences paired by seed, with its 95 % interval: one that contains 0 decides nothing, unless it lies"
        f" within {MARGIN:g} point (level)."
    )
    body = grid(methods.scores(page), methods.differences(page, how)) + methods.table({})
    names = ", ".join(run.folder.name for group in shown if group not in groups for run in group.runs)
    return body + note(f"Found next to the runs of this page, with the same data: {names}.") if names else body


def _cell(group: RunGroup, first: RunGroup | None, scale: float) -> dict[str, Any]:
    """Return a setting as a cell of `SideBySide`, with its difference to another one."""
    scores = {seed: scale * value for seed, value in ended(group.by_seed).items()}
    others = {seed: scale * value for seed, value in first.by_seed.items()} if first else {}
    difference = paired(scores, others)
    return {
        "setting": "",
        "method": group.name,
        "scores": scores,
        **asdict(over(scores) or Interval(math.nan, math.nan, 0)),
        "difference": difference and asdict(difference),
        "seconds_per_round": _mean(group, "seconds_per_round"),
        "bytes": _mean(group, "bytes_up") + _mean(group, "bytes_down"),
    }


def reference(groups: Sequence[RunGroup]) -> RunGroup:
    """Return the group that others are compared with: local training on the data of the first, else the first."""
    local = [group for group in alike(groups, groups[0]) if group.is_baseline and not group.runs[0].cfg.strategy.pooled]
    return (local or list(groups))[0]
