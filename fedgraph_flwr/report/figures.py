"""Plot for notebooks and scripts, as a Matplotlib figure; pages draw their own charts."""

import io
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedgraph_flwr.report.headline import is_share
from fedgraph_flwr.report.runs import FinishedRun
from fedgraph_flwr.sweeps.palette import colour, lay_out


class Plot(Figure):
    """Matplotlib figure without pyplot that notebooks can display."""

    def png(self, dpi: int = 130) -> bytes:
        """Return the plot as a PNG image."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=dpi)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def curve(runs: Sequence[FinishedRun], metric: str) -> Plot:
    """Plot validation (thin) and test (bold) means over clients by round."""
    figure = Plot(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("round")
    axes.set_ylabel(metric.replace("_", " "))
    lay_out(axes)
    if is_share(metric):
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    for index, run in enumerate(runs):
        for split, width, alpha in (("val", 1.0, 0.5), ("test", 1.8, 1.0)):
            x, y = run.series(f"{split}_{metric}")
            axes.plot(x, y, color=colour(index), lw=width, alpha=alpha, label=f"{run.label} {split}")
        if run.summary.get("best_round"):
            axes.axvline(run.summary["best_round"], color=colour(index), lw=0.8, ls=":")
    axes.legend(fontsize=7, frameon=False)
    return figure
