"""Plot of a sweep: lines over numeric settings, else one point per seed with the means."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.evaluation.intervals import ended
from fedgraph_flwr.sweeps.palette import colour, lay_out, marker
from fedgraph_flwr.sweeps.summary import SweepSummary


def draw(tally: SweepSummary) -> Figure:
    """Draw the sweep's plot, by its key ``figure``."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    (_lines if isinstance(tally.sweep.figure, str) else _points)(tally, axes)
    axes.set_title(tally.sweep.title, fontsize=9, wrap=True, loc="left", fontweight="bold")
    axes.set_ylabel(f"test score{', %' if tally.in_percent else ''}; 95 % interval")
    lay_out(axes)
    if tally.in_percent:
        axes.set_ylim(0, 100)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _lines(tally: SweepSummary, axes: Any) -> None:
    """Draw means with their 95 % intervals over the settings, and the paper's points if known."""
    sweep = tally.sweep
    x = [float(setting) for setting in sweep.settings]
    for index, method in enumerate(sweep.methods):
        found = [tally.mean(setting, method) for setting in sweep.settings]
        known = [(a, each) for a, each in zip(x, found, strict=True) if each]
        means, halves = [each.mean for _, each in known], [np.nan_to_num(each.half) for _, each in known]
        style = {"color": colour(index), "marker": marker(index), "ms": 5, "capsize": 3}
        axes.errorbar([a for a, _ in known], means, halves, label=column_name(method), **style)
        published = [(a, sweep.paper.get(s, {}).get(method)) for a, s in zip(x, sweep.settings, strict=True)]
        paper = [(a, float(str(value).split(" ")[0])) for a, value in published if value is not None]
        axes.plot([a for a, _ in paper], [value for _, value in paper], "x", color=colour(index))
    steps = sorted(value for value in x if value > 0)
    if len(steps) > 2 and steps[-1] >= 100 * steps[0]:
        axes.set_xscale("symlog", linthresh=steps[0])
    axes.set_xlabel(sweep.figure)


def _points(tally: SweepSummary, axes: Any) -> None:
    """Draw each seed's score and the mean with its 95 % interval, for each column of a setting."""
    sweep, width = tally.sweep, 0.8 / len(tally.sweep.methods)
    for index, method in enumerate(sweep.methods):
        for place, setting in enumerate(sweep.settings):
            scores, at = ended(tally.shown(setting, method)).values(), place - 0.4 + width * (index + 0.5)
            axes.plot([at] * len(scores), list(scores), marker(index), ms=3, color=colour(index), alpha=0.4)
            if found := tally.mean(setting, method):
                half = [np.nan_to_num(found.half)]
                axes.errorbar([at], [found.mean], half, fmt=marker(index), ms=6, capsize=3, color=colour(index))
        axes.plot([], [], marker(index), color=colour(index), label=column_name(method))
    axes.set_xlim(-0.5, len(sweep.settings) - 0.5)
    axes.set_xticks(range(len(sweep.settings)), list(sweep.settings))
