"""Plot of a sweep: lines over numeric settings, else one point per seed with the means."""

import statistics
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedgraph_flwr.evaluation.intervals import deviation, ended
from fedgraph_flwr.sweeps.summary import SweepSummary


def draw(tally: SweepSummary) -> Figure:
    """Draw the sweep's plot, by its key ``figure``."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    (_lines if isinstance(tally.sweep.figure, str) else _points)(tally, axes)
    axes.set_title(tally.sweep.title, fontsize=9, wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def _lines(tally: SweepSummary, axes: Any) -> None:
    """Draw mean and standard deviation over the settings, with the paper's points if known."""
    sweep = tally.sweep
    x = [float(setting) for setting in sweep.settings]
    for index, method in enumerate(sweep.methods):
        groups = [list(ended(tally.shown(setting, method)).values()) for setting in sweep.settings]
        known = [(a, g) for a, g in zip(x, groups, strict=True) if g]
        means, spread = [statistics.mean(g) for _, g in known], [np.nan_to_num(deviation(g)) for _, g in known]
        axes.errorbar([a for a, _ in known], means, spread, capsize=3, label=method, color=f"C{index}")
        published = [(a, sweep.paper.get(s, {}).get(method)) for a, s in zip(x, sweep.settings, strict=True)]
        paper = [(a, float(str(value).split(" ")[0])) for a, value in published if value is not None]
        axes.plot([a for a, _ in paper], [value for _, value in paper], "x", color=f"C{index}")
    steps = sorted(value for value in x if value > 0)
    if len(steps) > 2 and steps[-1] >= 100 * steps[0]:
        axes.set_xscale("symlog", linthresh=steps[0])
    axes.set_xlabel(sweep.figure)
    axes.set_ylabel("test score, %")


def _points(tally: SweepSummary, axes: Any) -> None:
    """Draw each seed's score and the mean with its 95 % interval, for each column of a setting."""
    sweep, width = tally.sweep, 0.8 / len(tally.sweep.methods)
    for index, method in enumerate(sweep.methods):
        for place, setting in enumerate(sweep.settings):
            scores, at = ended(tally.shown(setting, method)).values(), place - 0.4 + width * (index + 0.5)
            axes.plot([at] * len(scores), list(scores), ".", color=f"C{index}", alpha=0.4)
            if found := tally.mean(setting, method):
                half = [np.nan_to_num(found.half)]
                axes.errorbar([at], [found.mean], half, fmt="o", ms=4, capsize=3, color=f"C{index}")
        axes.plot([], [], "o", color=f"C{index}", label=method)
    axes.set_xlim(-0.5, len(sweep.settings) - 0.5)
    axes.set_xticks(range(len(sweep.settings)), list(sweep.settings), fontsize=7)
    axes.set_ylabel("test score, %; 95 % interval")
