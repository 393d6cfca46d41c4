"""The plots of a report, each a function from runs to a Matplotlib figure."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedgraph_flwr.report.runs import FinishedRun

_SIZE = (6.4, 3.6)


class Plot(Figure):
    """A figure that knows nothing of pyplot, and that a notebook shows all the same."""

    def png(self) -> bytes:
        """As an image."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=130)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def curve(runs: Sequence[FinishedRun], metric: str) -> Plot:
    """Validation (thin) and test (bold) means over clients by round."""
    figure, axes = _axes("round", metric.replace("_", " "))
    for index, run in enumerate(runs):
        for split, width, alpha in (("val", 1.0, 0.5), ("test", 1.8, 1.0)):
            x, y = run.series(f"{split}_{metric}")
            axes.plot(x, y, color=f"C{index}", lw=width, alpha=alpha, label=f"{run.label} {split}")
        if run.summary.get("best_round"):
            axes.axvline(run.summary["best_round"], color=f"C{index}", lw=0.8, ls=":")
    axes.legend(fontsize=7)
    return figure


def accuracy(runs: Sequence[FinishedRun]) -> Plot:
    """Accuracy by round; dotted: the best validation round."""
    return curve(runs, "accuracy")


def loss(runs: Sequence[FinishedRun]) -> Plot:
    """Cross-entropy by round."""
    return curve(runs, "loss")


def per_client(runs: Sequence[FinishedRun]) -> Plot:
    """Each client's test accuracy at the best validation round."""
    figure, axes = _axes("client", "test accuracy")
    width = 0.8 / len(runs)
    for index, run in enumerate(runs):
        best = run.summary.get("best_round", run.rounds[-1]["round"])
        record = next((r for r in run.rounds if r["round"] == best), run.rounds[-1])
        values = record["clients"].get("test-accuracy", [])
        axes.bar(np.arange(len(values)) + index * width, values, width, color=f"C{index}", label=run.label)
    axes.legend(fontsize=7)
    return figure


def homophily(runs: Sequence[FinishedRun]) -> Plot:
    """Edge homophily of each client's graph."""
    figure, axes = _axes("client", "edge homophily")
    for index, run in enumerate(runs):
        axes.plot([c["edge_homophily"] for c in run.clients], "o-", color=f"C{index}", lw=0.5, label=run.label)
    axes.set_ylim(0, 1)
    axes.legend(fontsize=7)
    return figure


def labels(runs: Sequence[FinishedRun]) -> Plot:
    """Label distribution of the clients of the first run: share of each class."""
    figure, axes = _axes("client", "share of labels")
    counts = np.array([c["labels"] for c in runs[0].clients], dtype=float)  # [M, C]
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    below = np.zeros(len(share))
    for label in range(share.shape[1]):
        axes.bar(range(len(share)), share[:, label], bottom=below, label=f"class {label}", color=f"C{label % 10}")
        below += share[:, label]
    if share.shape[1] <= 15:
        axes.legend(fontsize=6, ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def bytes_by_phase(runs: Sequence[FinishedRun]) -> Plot:
    """Bytes of the whole run by phase, down and up."""
    return _stacked(runs, "MB", lambda entry: (entry["bytes_down"] + entry["bytes_up"]) / 1e6)


def seconds_by_phase(runs: Sequence[FinishedRun]) -> Plot:
    """Seconds of the rounds by phase."""
    return _stacked(runs, "seconds", lambda entry: entry["seconds"])


def _stacked(runs: Sequence[FinishedRun], unit: str, value: Callable[[dict[str, Any]], float]) -> Plot:
    figure, axes = _axes("", unit)
    phases = sorted({phase for run in runs for record in run.every_round for phase in record["phases"]})
    below = np.zeros(len(runs))
    for phase in phases:
        entries = [[r["phases"][phase] for r in run.every_round if phase in r["phases"]] for run in runs]
        total = np.array([sum(map(value, phase_entries)) for phase_entries in entries])
        axes.bar(range(len(runs)), total, 0.6, bottom=below, label=phase)
        below += total
    axes.set_xticks(range(len(runs)), [run.label for run in runs], fontsize=7, rotation=15)
    axes.legend(fontsize=7)
    return figure


def _axes(x: str, y: str) -> tuple[Plot, Any]:
    figure = Plot(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


FIGURES: dict[str, tuple[str, Callable[[Sequence[FinishedRun]], Plot]]] = {
    "accuracy": ("Accuracy by round", accuracy),
    "loss": ("Loss by round", loss),
    "clients": ("Test accuracy of each client", per_client),
    "homophily": ("Homophily of the clients", homophily),
    "labels": ("Labels of the clients (first run)", labels),
    "bytes": ("Bytes by phase", bytes_by_phase),
    "seconds": ("Time by phase", seconds_by_phase),
}
NEED_CLIENT_FILES = {"homophily", "labels"}
