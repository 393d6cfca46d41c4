"""Plots of the board, and its interactive page."""

import hashlib
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.intervals import ended
from fedgraph_flwr.evaluation.verdict import BETTER, WORSE
from fedgraph_flwr.report.page import Page, grid, render, table
from fedgraph_flwr.version import __version__
from simulations.board_rows import COSTS, FEDAVG, REFERENCES, Board, Standing, critical_difference

INK, SOFT, BEST = "black", "0.6", "C1"


# --- plots ------------------------------------------------------------------------------------------------------------


def cliques(ranks: Sequence[float], critical: float) -> list[tuple[float, float]]:
    """Return the largest groups of ranks within a critical difference, as their first and last rank."""
    order, groups = sorted(ranks), list[tuple[float, float]]()
    for first in order:
        last = max(rank for rank in order if rank - first <= critical)
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((first, last))
    return groups


def ranks_plot(ranks: dict[str, float], settings: int) -> Figure:
    """Draw mean ranks on a line, with bars over methods that are closer than the critical difference (Demšar, JMLR 2006)."""
    order = sorted(ranks, key=lambda name: ranks[name])
    critical, count = critical_difference(len(order), settings), len(order)
    left = order[: (count + 1) // 2]
    bars = cliques(list(ranks.values()), critical)
    depth = len(left) + 0.5 * len(bars) + 2
    figure = Figure(figsize=(7, 0.22 * depth + 0.3), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0.5 - 0.35 * count, count + 0.5 + 0.35 * count), ylim=(-depth, 1.5))
    axes.axis("off")
    axes.plot([1, count], [0, 0], color=INK, lw=1)
    for rank in range(1, count + 1):
        axes.plot([rank, rank], [0, 0.25], color=INK, lw=1)
        axes.text(rank, 0.4, str(rank), ha="center", fontsize=7)
    for row, (first, last) in enumerate(bars):
        axes.plot([first - 0.08, last + 0.08], [-0.5 - 0.5 * row] * 2, color=BEST, lw=3, solid_capstyle="butt")
    for place, name in enumerate(order):
        best = place < len(left)
        y = -0.5 * len(bars) - 1 - (place if best else count - 1 - place)
        edge = 0.7 if best else count + 0.3
        axes.plot([ranks[name], ranks[name], edge], [0, y, y], color=SOFT, lw=0.8)
        axes.text(
            edge, y, f" {name} ({ranks[name]:.1f}) ", ha="right" if best else "left", va="center", fontsize=7, color=INK
        )
    return figure


def pareto_plot(standings: Sequence[Standing]) -> Figure:
    """Draw points above FedAvg over CPU seconds relative to FedAvg's, and the methods that no other one beats in both."""
    known = [one for one in standings if not math.isnan(one.gain + one.ratio)]
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    front = [one for one in known if one.front]
    axes.step([one.ratio for one in front], [one.gain for one in front], where="post", color=BEST, lw=1)
    for one in known:
        axes.plot([one.ratio], [one.gain], "o", ms=5, color=BEST if one.front else SOFT)
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16, 32], ["1/4", "1/2", "1", "2", "4", "8", "16", "32"], minor=False)
    axes.minorticks_off()
    axes.set_xlim(0.8 * min(one.ratio for one in known), 1.6 * max(one.ratio for one in known))
    axes.axhline(0, color=SOFT, lw=0.8, ls=":")
    axes.set_xlabel(f"CPU seconds relative to {FEDAVG}")
    axes.set_ylabel(f"points above {FEDAVG}")
    axes.grid(alpha=0.3)
    figure.draw_without_rendering()  # fixes the layout, so that points have places in pixels
    taken = [
        Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform([(o.ratio, o.gain) for o in known])
    ]
    for one in known:
        _label(axes, one, taken)
    return figure


def _label(axes: Any, one: Standing, taken: list[Bbox]) -> None:
    """Write a method's name at the nearest place that is free, with a line to its point if it is not next to it."""
    x, y = axes.transData.transform((one.ratio, one.gain))
    text = axes.annotate(one.method, (one.ratio, one.gain), (0, 0), textcoords="offset pixels", fontsize=7, va="center")
    size = text.get_window_extent()
    for radius, turn in itertools.product(range(9, 200, 9), (0, 4, 1, 7, 3, 5, 2, 6)):
        dx, dy = radius * math.cos(turn * math.pi / 4), radius * math.sin(turn * math.pi / 4)
        left = dx - size.width * (0 if turn in (0, 1, 7) else 1 if turn in (3, 4, 5) else 0.5)
        box = Bbox.from_bounds(x + left, y + dy - size.height / 2, size.width, size.height)
        if axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1) and not box.count_overlaps(taken):
            break
    text.set_position((left, dy))
    if radius > 9:
        end = axes.transData.inverted().transform((x + dx, y + dy))
        axes.plot([one.ratio, end[0]], [one.gain, end[1]], color=SOFT, lw=0.5, zorder=0)
    taken.append(box)


def drawn_from(*content: Any) -> str:
    """Return a digest of what a plot shows, which its file stores."""
    return hashlib.sha256(json.dumps(content, default=vars).encode()).hexdigest()[:16]


def save(figure: Figure, path: Path, content: str) -> None:
    """Write a plot as PNG with the digest of its content."""
    figure.savefig(path, dpi=110, metadata={"Description": content, "Software": None})


def content_of(path: Path) -> str:
    """Return the digest that a plot stores; empty without the file."""
    if not path.is_file():
        return ""
    with Image.open(path) as image:
        return str(image.info.get("Description", ""))


# --- the interactive page ---------------------------------------------------------------------------------------------


def write_page(board: Board, finding: str, summary: Sequence[str], path: Path) -> None:
    """Write a self-contained page of one table: the finding, what its rows say, charts and sortable tables.

    Raises:
        FedGraphError: no setting has rows of two methods.
    """
    if not board.begun:
        raise FedGraphError(f"no setting of {board.sweep.name} has two methods with two seeds: run the sweep first")
    page, settings = Page(board.sweep.title), board.complete or board.begun
    when = time.strftime("%d %B %Y").lstrip("0")
    lead = render("answer", text=finding) + render("bullets", items=summary) + render("lead", text=board.sweep.source)
    page.add(render("heading", when=when, version=__version__, title=board.sweep.title, summaries=lead, tiles=""))
    overall = [grid(_plane(page, board, settings)), _methods(board, settings)]
    page.section("methods", "Methods", f"Means over {', '.join(settings)}.", overall)
    gaps = [chart for reference in REFERENCES if (chart := _differences(page, board, reference))]
    page.section("settings", "Settings", "", [grid(*gaps), _cells(board)])
    write_bytes(path, page.html().encode())


def _plane(page: Page, board: Board, settings: Sequence[str]) -> Markup:
    places = {method: place for place, method in enumerate(board.methods)}

    def series(of: Sequence[str]) -> dict[str, Any]:
        made = [
            {"name": one.method, "colour": places[one.method], "points": [[one.ratio, one.gain / 100, one.method, 12]]}
            for one in board.standings(of)
            if not math.isnan(one.ratio + one.gain)
        ]
        return {"series": made}

    views = {"all": series(settings)} if len(settings) > 1 else {}
    views |= {setting: series([setting]) for setting in board.begun}
    x, y = {"name": f"CPU seconds relative to {FEDAVG}", "log": True}, {"name": "points", "unit": "points"}
    return page.chart(
        "Points against cost", "Left and up is better.", "plane", height=420, views=views, x=x, y=y, named=True
    )


def _differences(page: Page, board: Board, reference: str) -> Markup | None:
    def rows(setting: str) -> list[dict[str, Any]]:
        gaps = {m: gap for m in board.methods if m != reference and (gap := board.difference(setting, m, reference))}
        return [
            {
                "name": m,
                "colour": board.methods.index(m),
                "mean": gap.mean / 100,
                "lo": (gap.mean - gap.half) / 100,
                "hi": (gap.mean + gap.half) / 100,
            }
            for m, gap in gaps.items()
        ]

    views = {setting: {"rows": entries} for setting in board.begun if (entries := rows(setting))}
    how = "Mean of the differences paired by seed, with its 95 % interval: one that contains 0 shows no difference."
    look: dict[str, Any] = {"height": 90 + 30 * len(board.methods), "marks": [{"name": "", "at": 0}]}
    if not views:
        return None
    return page.chart(f"Difference to {reference}", how, "dots", views=views, unit="points", name="points", **look)


def _shown(value: float, form: str) -> tuple[str, float]:
    """Return a cell with its sort key."""
    return (form.format(value).replace("-", "−"), value) if math.isfinite(value) else ("–", math.nan)


def _methods(board: Board, settings: Sequence[str]) -> Markup:
    better, worse = (
        {m: len(board.points(m, FEDAVG, what, settings)) for m in board.methods if m != FEDAVG}
        for what in (BETTER, WORSE)
    )
    rows = [
        [
            one.method,
            _shown(one.rank, "{:.1f}"),
            _shown(one.gain, "{:+.1f}"),
            _shown(better.get(one.method, math.nan), "{}"),
            _shown(worse.get(one.method, math.nan), "{}"),
            _shown(one.ratio, "{:.2f}"),
            *(_shown(one.cost[key], "{:.3g}") for key in COSTS),
            "yes" if one.front else "",
        ]
        for one in board.standings(settings)
    ]
    head = ["method", "mean rank", f"points above {FEDAVG}", "settings better", "settings worse", f"CPU / {FEDAVG}"]
    head += ["CPU seconds", "MB", "exchanges", "peak MiB", "Pareto"]
    caption = "Better and worse: significant after Holm's correction, and not level. Click on a column to sort."
    return table(head, rows, caption)


def _cells(board: Board) -> Markup:
    rows = []
    for setting, method in itertools.product(board.begun, board.methods):
        scores = board.score(setting, method)
        if not scores:
            continue
        known = list(ended(scores).values())
        row: list[Any] = [setting, method, _shown(len(known), "{}"), _shown(len(scores) - len(known), "{}")]
        row.append(_shown(fmean(known) if known else math.nan, "{:.1f}"))
        for reference in REFERENCES:
            gap = board.difference(setting, method, reference) if method != reference else None
            row += [_shown(gap.mean if gap else math.nan, "{:+.1f}"), _shown(gap.half if gap else math.nan, "± {:.1f}")]
            row.append(_shown(board.adjusted(reference).get((setting, method), math.nan), "{:.3f}"))
        rows.append([*row, *(_shown(board.cost(setting, method, key), "{:.3g}") for key in COSTS)])
    head = ["setting", "method", "seeds", "failed", "score, %"]
    head += [text for reference in REFERENCES for text in (f"to {reference}", "95 %", "p (Holm)")]
    return table([*head, "CPU seconds", "MB", "exchanges", "peak MiB"], rows, "Click on a column to sort.")
