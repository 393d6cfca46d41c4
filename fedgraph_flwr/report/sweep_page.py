"""Page of a sweep: verdicts as sentences, scores with intervals, costs, curves and links of kept runs."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError, counted
from fedgraph_flwr.report.as_json import as_json
from fedgraph_flwr.report.headline import headline_text, summaries, tiles
from fedgraph_flwr.report.page import Page, grid, note, render
from fedgraph_flwr.report.runs import RunGroup, group_runs, load_run
from fedgraph_flwr.report.sections import repeat, training
from fedgraph_flwr.report.side_by_side import SideBySide, looks
from fedgraph_flwr.store.results import CONFIG
from fedgraph_flwr.sweeps.rows import ours

CHOSEN = (
    "Mean differences paired by seed, ± half of their 95 % interval (Student's t). Better, worse: the interval excludes 0."
    " Level: it lies within {margin}. Not decided: else, too few seeds to tell. The first method is chosen by these test"
    " scores, so with many methods its lead is optimistic."
)

MAX_CURVES = 6
"""Maximum number of rows of a sweep whose curves are drawn."""


def write_sweep(outcome: Mapping[str, Any], results: Path) -> Path:
    """Write a sweep's outcome next to its results, as JSON and as a page, and return the path of the page."""
    text = as_json(outcome)
    write_bytes(results.with_suffix(".json"), text.encode())
    for folder in [results.parent / run for cell in outcome["cells"] for run in cell["runs"]]:
        if not (folder / REPORT).exists():
            with suppress(FedGraphError):  # removed or damaged since
                _write_small(folder)
    page = Page(outcome["title"])
    add_sweep(page, json.loads(text), results.parent)
    return page.write(results.with_suffix(".html"))


REPORT = "report.html"


def _write_small(folder: Path) -> None:
    """Write a page of a kept run without charts: its score and its configuration."""
    run = load_run(folder)
    groups, page = group_runs([run]), Page(run.label)
    page.heading(summaries(groups, [], whole=False), tiles(groups[0]))
    page.section("repeat", "Repeat it", "", repeat(groups))
    page.write(folder / REPORT)


def outcomes_of(folder: Path) -> list[Path]:
    """Return the stored outcomes of the sweeps in a folder; none for a run folder."""
    if (folder / CONFIG).is_file():
        return []
    paths = [path.with_suffix(".json") for path in sorted(folder.glob("*.csv")) if ours(path)]
    return [path for path in paths if path.is_file()]


def write_sweeps(outcomes: Sequence[Path], out: Path) -> Path:
    """Write a page of sweeps and return its path."""
    page = Page("Sweeps")
    for place, path in enumerate(outcomes):
        add_sweep(page, json.loads(path.read_bytes()), path.parent, f"-{place}" if place else "")
    return page.write(out)


def add_sweep(page: Page, outcome: Mapping[str, Any], folder: Path, more: str = "") -> None:
    """Add the sections of a sweep to a page.

    Args:
        page: the page.
        outcome: content of the sweep's JSON file (`fedgraph_flwr.sweeps.outcome`).
        folder: folder of the sweep's results, which relative paths start from.
        more: suffix of section names, which differ between the sweeps of one page.
    """
    cells = [
        cell | {"method": column_name(cell["method"])} for cell in outcome["cells"] if cell.get("mean") is not None
    ]
    methods = SideBySide(cells, _metric(outcome), outcome["percent"], column_name(outcome["reference"]))
    answers = Markup("").join(render("answer", text=f"{text}.") for text in outcome["verdicts"])
    equal = [f"{text}." for text in outcome.get("equal", [])]  # older outcomes have none
    lead = render("lead", text=" ".join(filter(None, [outcome["source"], _chosen(outcome) if answers else "", *equal])))
    page.heading(answers + lead, title=outcome["title"])
    headlines = filter(None, outcome["headline"].split(", "))
    name = "; ".join(map(headline_text, headlines)) or "score"
    kept = any(cell["runs"] for cell in cells)
    how = "Mean of the differences paired by seed, with its 95 % interval."
    parts = [
        grid(methods.scores(page), methods.differences(page, how)),
        methods.table({"runs": lambda cell: _links(cell["runs"], folder)} if kept else {}),
        *([] if kept else [note("Curves and links of single runs: run the sweep without --keep none.")]),
        grid(methods.costs(page)),
    ]
    page.section(f"scores{more}", "Scores", f"{name[0].upper()}{name[1:]}, over seeds.", parts)
    about = "Means over clients by round, of the kept runs."
    page.section(f"curves{more}", "Curves", about, _kept(page, cells, folder))
    failures = [f"{one['run']}: {one['reason']}" for one in outcome["failures"]]
    page.section(f"failures{more}", "Failures", "", [render("bullets", items=failures)] if failures else [])
    page.section(f"again{more}", "Repeat it", "", [render("preformatted", content=outcome["command"])])


def _chosen(outcome: Mapping[str, Any]) -> str:
    """Return how the verdicts come about; outcomes of older versions have no margin."""
    margin = outcome.get("margin", 0)
    return CHOSEN.format(margin=counted(margin, "point") if margin else "0")


def _metric(outcome: Mapping[str, Any]) -> str:
    """Return the name of the score: ``test accuracy``; ``score`` if rows have different ones."""
    names = {headline_text(text.partition(" at ")[0]) for text in outcome["headline"].split(", ") if text}
    return names.pop() if len(names) == 1 else "score"


def _links(runs: Sequence[str], folder: Path) -> Markup:
    pages = {run: f"{run}/{REPORT}" if (folder / run / REPORT).is_file() else run for run in runs}
    return Markup(" ").join(render("link", to=page, text=run.rpartition("-")[2]) for run, page in pages.items())


def _kept(page: Page, cells: Sequence[Any], folder: Path) -> list[Markup]:
    """Draw the curves of the kept runs, for each setting."""
    parts: list[Markup] = []
    for setting in dict.fromkeys(cell["setting"] for cell in cells if cell["runs"]):
        if len(parts) >= 2 * MAX_CURVES:
            break
        groups: list[RunGroup] = []
        of = [cell for cell in cells if cell["setting"] == setting]
        for cell, look in zip(of, looks(of), strict=True):
            runs = []
            for path in (folder / run for run in cell["runs"]):
                with suppress(FedGraphError):  # removed or damaged since
                    runs.append(load_run(path))
            groups += [replace(group, name=cell["method"], place=look["colour"]) for group in group_runs(runs)[:1]]
        if groups:
            several = len({cell["setting"] for cell in cells}) > 1
            parts += [*([render("subtitle", title=setting)] if several else []), *training(page, groups)]
    return parts
