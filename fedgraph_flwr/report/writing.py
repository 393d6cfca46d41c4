"""Report of runs: one self-contained HTML page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError

LoadPredictor = Callable[[Path, int], Any]
"""Returns the predictor of a client, from a run's folder and the client's index."""


def write_report(
    folders: Sequence[Path], out: Path, *, load: LoadPredictor, baselines: bool = True, refresh: int = 0
) -> Path:
    """Write the page and return its path.

    Args:
        folders: run folders; runs that differ only in their seeds are grouped, others are compared.
        out: output file.
        load: predictor of one client of a run folder (`party.use.predict.load_predictor`).
        baselines: whether to compare with baseline runs (Local, Central) found in neighbouring folders.

        refresh: seconds after which a browser loads the page again, as while a run trains; 0: never.

    Raises:
        FedGraphError: a folder holds no run, or no finished round.
    """
    from fedgraph_flwr.report import headline, pieces, predicted, sections
    from fedgraph_flwr.report.page import Page
    from fedgraph_flwr.report.runs import beside, group_runs, load_run

    runs = [load_run(folder) for folder in folders]
    if empty := [run.folder for run in runs if not run.every_round]:
        raise FedGraphError(f"{empty[0]} has no finished round yet, so there is nothing to report")
    shown = group_runs(runs)
    compared = [*shown, *group_runs(beside(runs) if baselines else [])]
    compared = [group for group in compared if group.is_baseline]
    top = headline.best(shown)
    page = Page(headline.title(shown))
    page.refresh = refresh
    page.heading(headline.summaries(shown, compared), headline.tiles(top))
    lead = "Runs that differ only in their seeds are one setting."
    page.section("compared", "Comparison", lead, [headline.compared(page, shown, compared)])
    page.section("clients", "Clients", _of(shown, "Differences between the parties."), sections.clients(page, shown))
    page.section("training", "Training", "", sections.training(page, shown))
    lead = "Test nodes of all clients, each predicted by the model with which its client is scored."
    page.section("predictions", "Predictions", _of(shown, lead), predicted.shown(page, shown, load))
    first = top.runs[0]
    number = first.clients[0]["classes"] if first.clients else 0
    lead = f"The graphs of {first.label}: labels and degrees."
    page.section("partition", "Partition", lead, pieces.drawn(page, first, pieces.class_names(first, number)))
    page.section("costs", "Traffic and time", "", sections.costs(page, shown))
    page.section("trust", "Protections and failures", "", sections.trust(shown))
    page.section("repeat", "Repeat it", "", sections.repeat(shown))
    return page.write(out)


def _of(groups: Sequence[Any], lead: str) -> str:
    """Return the lead of a section that shows single runs."""
    several = any(len(group.runs) > 1 for group in groups)
    return f"{lead} For several seeds, the first is shown." if several else lead
