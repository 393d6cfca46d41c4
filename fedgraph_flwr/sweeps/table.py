"""Markdown of a sweep: scores next to published ones, selected choices, intervals, failures."""

import math
import statistics
from collections.abc import Iterable

from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.errors import sanitize
from fedgraph_flwr.evaluation.intervals import Interval, ended, interval
from fedgraph_flwr.sweeps.rows import COUNTED
from fedgraph_flwr.sweeps.spec import Cell
from fedgraph_flwr.sweeps.summary import SweepSummary

MADE = "Made by `"
"""Text before the command of a table; a file without it has another origin."""


def markdown(tally: SweepSummary) -> str:
    """Return the complete Markdown."""
    sweep = tally.sweep
    lines = [f"# {sweep.title}", "", *([sweep.source, ""] if sweep.source else [])]
    lines += main_table(tally, intervals=not sweep.paper)
    lines += ["", _footer(tally)]
    over = f" of {sweep.tuned_on} seeds" if sweep.tuned_on else ""
    best = "Each cell above shows the best of"
    if sweep.grid:
        lead = f"{best} these choices on validation nodes{over}. Mean validation / test score:"
        lines += ["", lead, "", *_grid(tally)]
    if sweep.search:
        lead = f"{best} {sweep.search.trials_each} trials on validation nodes{over}:"
        lines += ["", lead, "", *_trials(tally)]
    lines += _intervals(tally)
    if tally.failures:
        lines += ["", "Runs without a score:", "", *failures(tally.failures)]
    if tally.missed:
        lines += ["", "Runs in which clients failed, with the first reason:", "", *failures(tally.missed)]
    if sweep.notes:
        lines += ["", sweep.notes.strip()]
    return "\n".join(lines) + "\n"


def main_table(tally: SweepSummary, intervals: bool) -> list[str]:
    """Return the mean of every row and column with its spread.

    Args:
        tally: results of a sweep.
        intervals: half of the 95 % interval, instead of the standard deviation, which published scores beside it have.
    """
    sweep = tally.sweep
    known = {method for cells in sweep.paper.values() for method in cells}
    columns = [(m, paper) for m in sweep.methods for paper in (False, True) if m in known or not paper]
    lines = _head(("paper" if paper else column_name(method) for method, paper in columns), _corner(tally))
    for setting in sweep.settings:
        theirs = sweep.paper.get(setting, {})
        cells = (str(theirs.get(m, "")) if paper else _cell(tally, setting, m, intervals) for m, paper in columns)
        lines.append(_line(setting, cells))
    for name, row in sweep.beside.items():
        lines.append(_line(name, ["" if paper else str(row.get(method, "")) for method, paper in columns]))
    return lines


def _footer(tally: SweepSummary) -> str:
    seeds = {len(values) for values in tally.values.values()}
    span = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(next(iter(seeds), 0))
    of = f" of {next(iter(tally.headlines))}" if len(tally.headlines) == 1 else ""
    unit = " in %" if tally.in_percent else ""
    seeds_text = f"{span} of {len(tally.sweep.seeds)} seeds"
    spread = " (standard deviation)" if tally.sweep.paper else " ± half of its 95 % interval (t)"
    text = f"Mean{spread if max(seeds, default=0) > 1 else ''}{of}{unit} over {seeds_text}. {MADE}{tally.sweep.made}`."
    if any(not tally.values.get((setting, name)) for (setting, _), names in tally.choices.items() for name in names):
        text += " An empty cell has not been run yet."
    if tally.partly:
        text += " †: a score that does not cover all clients; the runs are listed below."
    return text


def _grid(tally: SweepSummary) -> list[str]:
    """Return a row per setting and method and a column per choice; the selected one is bold."""
    lines = _head(tally.sweep.grid)
    for (setting, method), taken in tally.chosen.items():
        if method not in COUNTED:
            names = [f"{method}, {choice}" for choice in tally.sweep.grid]
            texts = {name: _both(tally, setting, name) for name in names}
            if texts.get(taken, "failed") not in ("", "failed"):
                texts[taken] = f"**{texts[taken]}**"
            lines.append(_line(f"{setting}, {method}", texts.values()))
    return lines


def _both(tally: SweepSummary, setting: str, name: str) -> str:
    test, val = tally.values.get((setting, name), {}), tally.validation.get((setting, name), {})
    if any(map(math.isnan, test.values())):
        return "failed"
    if not len(test) == len(val) > 0:
        return ""
    return f"{statistics.mean(val.values()):.2f} / {statistics.mean(test.values()):.2f}"


def _trials(tally: SweepSummary) -> list[str]:
    """Return a row per setting and method with the result of its search."""
    lines = _head(["trials", "taken", "validation / test"])
    for (setting, method), taken in tally.chosen.items():
        if method not in COUNTED:
            done = sum((setting, name) in tally.values for name in tally.choices[setting, method])
            texts = [taken.removeprefix(f"{method}, "), _both(tally, setting, taken)] if done else ["", ""]
            lines.append(_line(f"{setting}, {method}", [str(done), *texts]))
    return lines


def _intervals(tally: SweepSummary) -> list[str]:
    """Return the intervals of every difference to the reference, and of every mean that is not in the main table."""
    sweep, columns = tally.sweep, tally.sweep.running
    means = {(s, m): tally.mean(s, m) for s in sweep.settings for m in columns}
    gaps = {(s, m): tally.difference(s, m) for s in sweep.settings for m in columns}
    lines = []
    blocks = [(gaps, f"of the difference to {sweep.reference}, paired by seed")]
    if sweep.paper:
        blocks.insert(0, (means, "of the mean"))
    for intervals, what in blocks:
        known = [estimate for estimate in intervals.values() if estimate and estimate.n > 1]
        if known:
            sizes = {estimate.n for estimate in known}
            over = f"n = {next(iter(sizes))} seeds" if len(sizes) == 1 else "n seeds, listed per cell"
            lines += ["", f"95 % interval {what} (t, {over}):", ""]
            shown = [m for m in columns if intervals is means or m != sweep.reference]
            lines += _head(map(column_name, shown), _corner(tally))
            for s in sweep.settings:
                lines.append(_line(s, (_range(intervals[s, m], intervals is gaps, len(sizes) > 1) for m in shown)))
    return lines


def _range(estimate: Interval | None, signed: bool, with_n: bool) -> str:
    """Format ``mean ± half``; empty for a single seed."""
    if not estimate or estimate.n < 2:
        return ""
    mean = f"{estimate.mean:+.2f}".replace("-", "−") if signed else f"{estimate.mean:.2f}"
    return f"{mean} ± {estimate.half:.2f}{f' (n = {estimate.n})' if with_n else ''}"


def failures(messages: Iterable[tuple[Cell, str]]) -> list[str]:
    """Return a line per error message with its cells and seeds."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for cell, sentence in messages:
        grouped.setdefault((cell.setting, cell.method, sentence), []).append(cell.seed)
    return [
        f"- {setting}, {method}, seed {', '.join(map(str, seeds))}: {sanitize(sentence, 1000)}"
        for (setting, method, sentence), seeds in grouped.items()
    ]


def _cell(tally: SweepSummary, setting: str, method: str, intervals: bool) -> str:
    """Format the mean of the finished runs with its spread, the number of failed ones, and the success of a backdoor.

    The spread is half of its 95 % interval, or in parentheses the standard deviation.
    """
    values = tally.shown(setting, method)
    known = ended(values).values()
    parts = [f"{statistics.mean(known):.2f}"] if known else []
    if len(known) > 1:
        half = interval(list(known)).half
        parts.append(f"± {half:.2f}" if intervals else f"({statistics.stdev(known):.2f})")
    if len(known) < len(values):
        parts.append(f"{len(values) - len(known)} of {len(values)} failed")
    reached = tally.reached(setting, method).values()
    if (setting, tally.chosen[setting, method]) in tally.partly:
        parts.append("†")
    return " ".join(parts) + (f"; {statistics.mean(reached):.0f}" if reached else "")


def _corner(tally: SweepSummary) -> str:
    """Return the name of numeric settings; empty otherwise."""
    return tally.sweep.figure if isinstance(tally.sweep.figure, str) else ""


def _head(columns: Iterable[str], corner: str = "") -> list[str]:
    names = list(columns)
    first = f"| {corner} |" if corner else "| |"
    return [f"{first} {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]


def _line(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"
