"""Page of a sweep: verdicts as sentences, scores with intervals, costs, curves and links of kept runs."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.report.as_json import as_json
from fedgraph_flwr.report.headline import display_name, headline_text, score_text, summaries, tiles
from fedgraph_flwr.report.page import CHANCE, Page, dot, grid, note, number, of_change, render, table
from fedgraph_flwr.report.runs import RunGroup, group_runs, load_run
from fedgraph_flwr.report.sections import repeat, training
from fedgraph_flwr.report.units import duration, size
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
    """Write a page of a kept run without charts: its score, its rounds and its configuration."""
    run = load_run(folder)
    groups, metric = group_runs([run]), run.cfg.evaluation.headline
    page = Page(run.label)
    page.heading(summaries(groups, [], whole=False), tiles(groups[0]))
    scores = {split: dict(zip(*run.series(f"{split}_{metric}"), strict=True)) for split in ("val", "test")}
    shown = partial(score_text, metric=metric)
    rows = [
        [(str(server_round), server_round), *(number(shown, each.get(server_round)) for each in scores.values())]
        for server_round in sorted({*scores["val"], *scores["test"]})
    ]
    names = ["round", f"validation {display_name(metric)}", f"test {display_name(metric)}"]
    page.section("rounds", "Rounds", "Means over clients.", [table(names, rows)] if rows else [])
    page.section("repeat", "Repeat it", "", repeat(groups))
    page.write(folder / REPORT)


def outcomes_of(folder: Path) -> list[Path]:
    """Return the stored outcomes of the sweeps in a folder; none for a run folder."""
    if (folder / CONFIG).is_file():
        return []
    found = [path.with_suffix(".json") for path in sorted(folder.glob("*.csv")) if ours(path)]
    return [path for path in found if path.is_file()]


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
    settings = list(dict.fromkeys(cell["setting"] for cell in cells))
    answers = Markup("").join(render("answer", text=f"{text}.") for text in outcome["verdicts"])
    equal = [f"{text}." for text in outcome.get("equal", [])]  # older outcomes have none
    lead = render("lead", text=" ".join(filter(None, [outcome["source"], _chosen(outcome) if answers else "", *equal])))
    page.heading(answers + lead, title=outcome["title"])
    charts = [_scores(page, outcome, cells, settings), _differences(page, outcome, cells, settings)]
    headlines = filter(None, outcome["headline"].split(", "))
    name = "; ".join(map(headline_text, headlines)) or "score"
    parts = [
        grid(*charts),
        _table(outcome, cells, len(settings) > 1, folder),
        grid(_costs(page, outcome, cells, settings)),
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
    return CHOSEN.format(margin=f"{margin:g} point{'' if margin == 1 else 's'}" if margin else "0")


def _scale(outcome: Mapping[str, Any]) -> float:
    """Return the factor from stored scores, in percent if they are shares, to those of charts."""
    return 0.01 if outcome["percent"] else 1


def _metric(outcome: Mapping[str, Any]) -> str:
    """Return the name of the score: ``test accuracy``; ``score`` if rows have different ones."""
    names = {headline_text(each.partition(" at ")[0]) for each in outcome["headline"].split(", ") if each}
    return names.pop() if len(names) == 1 else "score"


def _views(cells: Sequence[Mapping[str, Any]], settings: Sequence[str], of: Any) -> dict[str, Any]:
    """Return the data of a chart for each setting that has any."""
    found = {setting: of([cell for cell in cells if cell["setting"] == setting]) for setting in settings}
    return {setting: data for setting, data in found.items() if data}


def _scores(page: Page, outcome: Mapping[str, Any], cells: Sequence[Any], settings: Sequence[str]) -> Markup:
    factor, unit = _scale(outcome), "share" if outcome["percent"] else "plain"

    def rows(of: Sequence[Any]) -> dict[str, Any]:
        made = []
        for cell, look in zip(of, looks(of), strict=True):
            each = [[factor * v, f"seed {seed}"] for seed, v in cell["scores"].items() if v is not None]
            made.append(_row(cell, look, cell, factor) | {"each": each})
        return {"rows": made}

    views = _views(cells, settings, rows)
    how = "Large: mean over seeds, with its 95 % interval. Small: single seeds."
    return page.chart("Score", how, "dots", height=_height(views), views=views, unit=unit, name="")


def _height(views: Mapping[str, Any]) -> int:
    return 90 + 46 * max((len(view["rows"]) for view in views.values()), default=0)


def looks(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the look of each cell of a setting: that of chance if it is counted without a run, else its colour's number."""
    ran = [cell["method"] for cell in cells if not _is_counted(cell)]
    return [CHANCE if _is_counted(cell) else {"colour": ran.index(cell["method"])} for cell in cells]


def _is_counted(cell: Mapping[str, Any]) -> bool:
    return "seconds_per_round" not in cell


def _row(cell: Mapping[str, Any], look: Mapping[str, Any], found: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return the row of a method in a chart, with a mean and half of its interval."""
    mean, half = factor * found["mean"], math.nan if found["half"] is None else factor * found["half"]
    return dot(cell["method"], (mean, mean - half, mean + half), **look)


def _differences(page: Page, outcome: Mapping[str, Any], cells: Sequence[Any], settings: Sequence[str]) -> Markup:
    factor = _scale(outcome)

    def rows(of: Sequence[Any]) -> dict[str, Any]:
        made = [
            _row(cell, look, cell["difference"], factor)
            for cell, look in zip(of, looks(of), strict=True)
            if cell["difference"] and not _is_counted(cell)
        ]
        return {"rows": made} if made else {}

    views = _views(cells, settings, rows)
    how = "Mean of the differences paired by seed, with its 95 % interval."
    axis = of_change("share" if outcome["percent"] else "plain")
    height = _height(_views(cells, settings, lambda of: {"rows": of}))  # of the chart next to it
    title = f"Difference to {column_name(outcome['reference'])}"
    return page.chart(title, how, "dots", height=height, views=views, **axis)


def _costs(page: Page, outcome: Mapping[str, Any], cells: Sequence[Any], settings: Sequence[str]) -> Markup:
    factor, unit = _scale(outcome), "share" if outcome["percent"] else "plain"

    def series(of: Sequence[Any]) -> dict[str, Any]:
        made = []
        for row, look in zip(of, looks(of), strict=True):
            if (seconds := row.get("seconds_per_round")) is not None:
                points = [[seconds, factor * row["mean"], row["method"], 12]]
                made.append({"name": row["method"], "points": points, **look})
        return {"series": made} if len(made) > 1 else {}

    views = _views(cells, settings, series)
    x, y = {"name": "time per round", "unit": "seconds"}, {"name": _metric(outcome), "unit": unit}
    how = "Means over seeds; left and up is better."
    return page.chart("Score against cost", how, "plane", views=views, x=x, y=y, named=True)


def _table(outcome: Mapping[str, Any], cells: Sequence[Any], several: bool, folder: Path) -> Markup:
    unit, digits = (" %", ".1f") if outcome["percent"] else ("", ".4g")
    score, half = f"{{:{digits}}}{unit}".format, f"± {{:{digits}}}".format

    def change(value: float) -> str:
        return f"{value:+{digits}}".replace("-", "−")

    tuned, kept = any(row["choice"] for row in cells), any(row["runs"] for row in cells)
    rows = []
    for row in cells:
        gap = row["difference"] or {}
        rows.append(
            [
                *([row["setting"]] if several else []),
                row["method"],
                *([row["choice"]] if tuned else []),
                (str(row["n"]), row["n"]),
                number(score, row["mean"]),
                number(half, row["half"]),
                number(change, gap.get("mean")),
                number(half, gap.get("half")),
                number(duration, row.get("seconds_per_round")),
                number(size, row.get("bytes")),
                *([_links(row["runs"], folder)] if kept else []),
            ]
        )
    head = [*(["setting"] if several else []), "method", *(["choice"] if tuned else []), "seeds", _metric(outcome)]
    points = " (points)" if outcome["percent"] else ""
    head += [
        f"95 % interval{points}",
        f"to {column_name(outcome['reference']) or '–'}{points}",
        f"95 % interval{points}",
    ]
    head += ["time per round", "traffic"]
    head += ["runs"] if kept else []
    left = "" if kept else note("Curves and links of single runs: run the sweep without --keep none.")
    return table(head, rows, "Means over seeds; differences are paired by seed. Click on a column to sort.") + left


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
            found = []
            for path in (folder / run for run in cell["runs"]):
                with suppress(FedGraphError):  # removed or damaged since
                    found.append(load_run(path))
            groups += [replace(group, name=cell["method"], place=look["colour"]) for group in group_runs(found)[:1]]
        if groups:
            several = len({cell["setting"] for cell in cells}) > 1
            parts += [*([render("subtitle", title=setting)] if several else []), *training(page, groups)]
    return parts
