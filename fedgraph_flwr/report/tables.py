"""Self-contained page with the tables and plots of sweeps."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from markupsafe import Markup, escape

from fedgraph_flwr.report.page import Page, render, table
from fedgraph_flwr.report.sweep_page import add_sweep
from fedgraph_flwr.store.results import CONFIG
from fedgraph_flwr.sweeps.rows import ours


def tables_of(folder: Path) -> list[Path]:
    """Return the tables of the sweeps in a folder; none for a run folder."""
    if (folder / CONFIG).is_file():
        return []
    found = [path.with_suffix(".md") for path in sorted(folder.glob("*.csv")) if ours(path)]
    return [path for path in found if path.is_file()]


def write_tables(tables: Sequence[Path], out: Path) -> Path:
    """Write a page of sweeps and return its path; those without a stored outcome are shown as in their Markdown."""
    page = Page("Sweeps")
    for place, path in enumerate(tables):
        if (stored := path.with_suffix(".json")).is_file():
            add_sweep(page, json.loads(stored.read_bytes()), path.parent, f"-{place}" if place else "")
        else:
            page.add(body([path]))
    return page.write(out)


def body(tables: Sequence[Path]) -> Markup:
    """Return the HTML of tables, each followed by its plot."""
    parts: list[Markup] = []
    for path in tables:
        parts += _html(path.read_text().splitlines())
        if path.with_suffix(".png").is_file():
            data = base64.b64encode(path.with_suffix(".png").read_bytes()).decode()
            parts.append(render("image", name=path.stem, data=data))
    return Markup("\n").join(parts)


def _html(lines: Iterable[str]) -> Iterator[Markup]:
    """Convert the Markdown of `fedgraph_flwr.sweeps.table`: headings, tables, lists and paragraphs."""
    for kind, group in groupby(lines, key=lambda line: line[:2].strip()[:1] if line[:1] in "|-#" else bool(line)):
        block = list(group)
        if kind == "#":
            yield from (render("subtitle", title=_text(line[2:])) for line in block)
        elif kind == "|":
            rows = [line.strip("|").split("|") for line in block if not line.startswith("|---")]
            head, *cells = ([_text(cell.strip()) for cell in row] for row in rows)
            yield table(head, cells)
        elif kind == "-":
            yield render("bullets", items=[_text(line[2:]) for line in block])
        elif kind:
            yield render("paragraph", content=_text(" ".join(block)))


def _text(text: str) -> Markup:
    """Convert code and bold text of a line."""
    return Markup(re.sub(r"`(.*?)`", r"<code>\1</code>", re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", str(escape(text)))))
