"""A page of the tables and plots of sweeps, with everything inside it."""

import base64
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.report.page import Page
from fedgraph_flwr.runs.folder import CONFIG
from fedgraph_flwr.sweeps.rows import ours


def tables_of(folder: Path) -> list[Path]:
    """The tables of the sweeps whose results lie in a folder; none where it is a run's."""
    if (folder / CONFIG).is_file():
        return []
    return [
        path.with_suffix(".md")
        for path in sorted(folder.glob("*.csv"))
        if ours(path) and path.with_suffix(".md").is_file()
    ]


def write_tables(tables: Sequence[Path], out: Path) -> Path:
    """Write a page of tables; returns its path."""
    page = Page("Sweeps")
    page.add(f"<h1>{page.title}</h1>{body(tables)}")
    write_bytes(out, page.html().encode())
    return out


def body(tables: Sequence[Path]) -> str:
    """The HTML of tables, each with its plot behind it."""
    parts: list[str] = []
    for path in tables:
        parts += _html(path.read_text().splitlines())
        if path.with_suffix(".png").is_file():
            data = base64.b64encode(path.with_suffix(".png").read_bytes()).decode()
            parts.append(f'<figure><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}"></figure>')
    return "\n".join(parts)


def _html(lines: Iterable[str]) -> Iterator[str]:
    """The Markdown that `fedgraph_flwr.sweeps.table` writes: headings, tables, lists and paragraphs."""
    for kind, group in groupby(lines, key=lambda line: line[:2].strip()[:1] if line[:1] in "|-#" else bool(line)):
        block = list(group)
        if kind == "#":
            yield from (f"<h2>{_text(line[2:])}</h2>" for line in block)
        elif kind == "|":
            rows = [line.strip("|").split("|") for line in block if not line.startswith("|---")]
            head = "".join(
                f'<th scope="col"><button type="button">{_text(cell.strip())}</button></th>' for cell in rows[0]
            )
            filled = ["".join(f"<td>{_text(cell.strip())}</td>" for cell in row) for row in rows[1:]]
            cells = "".join(f"<tr>{row}</tr>" for row in filled)
            inside = f"<thead><tr>{head}</tr></thead><tbody>{cells}</tbody>"
            yield f'<div class="scroll"><table class="sortable">{inside}</table></div>'
        elif kind == "-":
            yield f"<ul>{''.join(f'<li>{_text(line[2:])}</li>' for line in block)}</ul>"
        elif kind:
            yield f"<p>{_text(' '.join(block))}</p>"


def _text(text: str) -> str:
    return re.sub(r"`(.*?)`", r"<code>\1</code>", re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", html.escape(text)))
