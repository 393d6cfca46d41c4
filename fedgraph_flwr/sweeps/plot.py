"""Plot of a sweep over numeric settings: lines; the page draws those of others."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.sweeps.palette import colour, lay_out, marker
from fedgraph_flwr.sweeps.summary import SweepSummary


def draw(tally: SweepSummary) -> Figure:
    """Draw the means of each column with their 95 % intervals over the settings, and the paper's points if known."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    _lines(tally, axes)
    axes.set_title(tally.sweep.title, fontsize=9, wrap=True, loc="left", fontweight="bold")
    axes.set_ylabel(f"test score{', %' if tally.in_percent else ''}; 95 % interval")
    lay_out(axes)
    if tally.in_percent:
        axes.set_ylim(0, 100)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _lines(tally: SweepSummary, axes: Any) -> None:
    sweep = tally.sweep
    x = [float(setting) for setting in sweep.settings]
    for index, method in enumerate(sweep.methods):
        intervals = [tally.mean(setting, method) for setting in sweep.settings]
        known = [(a, interval) for a, interval in zip(x, intervals, strict=True) if interval]
        means, halves = (
            [interval.mean for _, interval in known],
            [np.nan_to_num(interval.half) for _, interval in known],
        )
        style = {"color": colour(index), "marker": marker(index), "ms": 5, "capsize": 3}
        axes.errorbar([a for a, _ in known], means, halves, label=column_name(method), **style)
        published = [(a, sweep.paper.get(s, {}).get(method)) for a, s in zip(x, sweep.settings, strict=True)]
        paper = [(a, float(str(value).split(" ")[0])) for a, value in published if value is not None]
        axes.plot([a for a, _ in paper], [value for _, value in paper], "x", color=colour(index))
    steps = sorted(value for value in x if value > 0)
    if len(steps) > 2 and steps[-1] >= 100 * steps[0]:
        axes.set_xscale("symlog", linthresh=steps[0])
    axes.set_xlabel(sweep.figure)
