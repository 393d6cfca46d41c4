"""The report of runs: one HTML page with everything inside it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.version import __version__


def write_report(folders: Sequence[Path], out: Path, with_map: bool = False, baselines: bool = True) -> Path:
    """Write the page; returns its path.

    Args:
        folders: of runs; those that differ in nothing but their seeds are folded, others stand side by side.
        out: the page.
        with_map: whether nodes are drawn by their hidden features.
        baselines: whether to compare with baseline runs (Local, Central) found in neighbouring folders.

    Raises:
        FedGraphError: a folder holds no run, or none of its rounds has ended.
    """
    from fedgraph_flwr.report import headline, parts, predicted, sections
    from fedgraph_flwr.report.page import Page, note, render
    from fedgraph_flwr.report.runs import beside, folds, load_run

    runs = [load_run(folder) for folder in folders]
    for run in runs:
        if not run.every_round:
            raise FedGraphError(f"{run.folder} has no round yet, so there is nothing to report")
    shown = folds(runs)
    measures = [*shown, *folds(beside(runs) if baselines else [])]
    measures = [fold for fold in measures if fold.runs[0].cfg.strategy.pooled or not fold.runs[0].cfg.strategy.shared]
    top = headline.best(shown)
    page = Page(headline.title(shown))
    when = time.strftime("%d %B %Y").lstrip("0")
    page.add(
        render(
            "heading",
            when=when,
            version=__version__,
            title=page.title,
            answers=headline.answers(shown, measures),
            tiles=headline.tiles(top),
        )
    )
    page.section(
        "compared",
        "Side by side",
        "Runs that differ in nothing but their seeds are one setting.",
        [headline.compared(page, shown, measures)],
    )
    page.section("clients", "Clients", _of(shown, "What differs between the parties."), sections.clients(page, shown))
    page.section("training", "Training", "", sections.training(page, shown))
    maps = []
    if with_map:
        try:
            maps = [predicted.hidden_map(page, top.runs[0])]
        except (FedGraphError, NotImplementedError) as error:
            maps = [note(f"No map: {error}.")]
    lead = "Test nodes of all clients together, each predicted by the model that its client is scored by."
    page.section("predictions", "Predictions", _of(shown, lead), [*predicted.shown(page, shown), *maps])
    first = top.runs[0]
    number = first.clients[0]["classes"] if first.clients else 0
    lead = f"The graphs of {first.label}: labels, degrees, and how the cut looks."
    page.section("partition", "Partition", lead, parts.drawn(page, first, parts.class_names(first, number)))
    page.section("costs", "Bytes and time", "", sections.costs(page, shown))
    page.section("trust", "Protections and failures", "", sections.trust(shown))
    page.section("repeat", "Repeat it", "", sections.repeat(shown))
    write_bytes(out, page.html().encode())
    return out


def _of(folds: Sequence[Any], lead: str) -> str:
    """The lead of a section that shows single runs."""
    several = any(len(fold.runs) > 1 for fold in folds)
    return f"{lead} Of several seeds, the first is shown." if several else lead
