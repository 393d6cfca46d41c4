"""Self-contained page: text, tables, charts with their data, style, and the script that draws them.

Charts are drawn by Apache ECharts (`assets/README.md` has its build, size and licence). The page needs no network, and its
content security policy forbids access.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedgraph_flwr.data.files import packaged, write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.report import ASSETS
from fedgraph_flwr.report.as_json import finite
from fedgraph_flwr.version import __version__

SHARE = {"unit": "share", "min": 0, "max": 1}
"""An axis of shares from 0 to 1."""


CHANCE: dict[str, Any] = {"colour": 6, "symbol": "rect", "size": [3, 14]}
"""Look of a chance level among the points of `Page.dots`: a grey stroke."""


class Page:
    """Page under construction: sections and their charts.

    Attributes:
        charts: data of each chart, by element id.
        refresh: seconds after which a browser loads the page again; 0: never.
    """

    def __init__(self, title: str):
        self.title = title
        self.refresh = 0
        self.charts: dict[str, dict[str, Any]] = {}
        self._parts: list[Markup] = []
        self._links: list[tuple[str, str]] = []

    def add(self, part: Markup) -> None:
        """Add markup without a heading."""
        self._parts.append(part)

    def heading(self, summaries: Markup, tiles: Markup | str = "", title: str = "") -> None:
        """Add a title, by default the page's, with the date and the version, sentences, and tiles of numbers."""
        when, title = time.strftime("%d %B %Y").lstrip("0"), title or self.title
        self.add(render("heading", when=when, version=__version__, title=title, summaries=summaries, tiles=tiles))

    def section(self, name: str, title: str, lead: str, parts: Iterable[Markup]) -> None:
        """Add a section linked from the top bar; skip it without parts."""
        body = Markup("").join(parts)
        if body:
            self._links.append((name, title))
            self._parts.append(render("section", name=name, title=title, lead=lead, body=body))

    def chart(self, title: str, how: str, kind: str, height: int = 300, wide: bool = False, **data: Any) -> Markup:
        """Add a chart and return its element.

        Args:
            title: title of the chart.
            how: how to read it, also used as text alternative.
            kind: function of the script that draws it.
            height: height in pixels.
            wide: whether it spans the page's width.
            data: data of the chart; NaN becomes null. Without series, rows or views there is no chart.
        """
        if not all(data.get(key, True) for key in ("series", "rows", "views")):
            return Markup("")
        name = f"chart{len(self.charts)}"
        self.charts[name] = {"kind": kind, **finite(data, digits=6)}
        return render("chart", name=name, title=title, how=how, height=height, wide=wide)

    def dots(self, title: str, how: str, rows: Sequence[dict[str, Any]], row: int = 46, **data: Any) -> Markup:
        """Add a chart of points with intervals, ``row`` pixels high each, and return its element."""
        return self.chart(title, how, "dots", height=90 + row * len(rows), rows=rows, **data)

    def html(self) -> str:
        """Return the whole page."""
        style, library, script = (Markup(packaged(ASSETS / name)) for name in ("page.css", "echarts.min.js", "page.js"))
        library = library if self.charts else Markup("")
        shown = {
            "title": self.title,
            "refresh": self.refresh,
            "links": self._links,
            "body": Markup("\n").join(self._parts),
            "charts": self.charts,
        }
        return _templates().get_template("page.html").render(style=style, library=library, script=script, **shown)

    def write(self, out: Path) -> Path:
        """Write the page and return its path.

        Raises:
            FedGraphError: the suffix is not .html, or the folder is not writable.
        """
        if out.suffix != ".html":
            raise FedGraphError(f"page {out} has another suffix than .html: pass {out.with_suffix('.html')}")
        write_bytes(out, self.html().encode())
        return out


@cache
def _templates() -> Environment:
    packaged(ASSETS / "page.css")  # else Jinja would only say which of its templates is missing
    templates = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return templates


def render(part: str, **values: Any) -> Markup:
    """Render a macro of `templates/parts.html`; values are escaped unless they are markup."""
    macro = getattr(_templates().get_template("parts.html").module, part)
    return Markup(macro(**values))


def grid(*parts: Markup) -> Markup:
    """Arrange cards in a responsive grid."""
    return render("grid", cards=Markup("").join(parts)) if any(parts) else Markup("")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", stacked: bool = False) -> Markup:
    """Return a sortable table; a cell is text, or a pair of text and sort key.

    Args:
        head: names of the columns.
        rows: rows of cells.
        caption: text above the table.
        stacked: whether a phone shows the cells of a row one below the other.
    """
    return render("table", head=head, rows=rows, caption=caption, stacked=stacked)


def number(form: Callable[[float], str], value: float | None) -> tuple[str, float]:
    """Return a number of a table, formatted and as its sort key; a dash for None and NaN."""
    return ("–", math.nan) if value is None or math.isnan(value) else (form(value), value)


def dot(name: str, values: Sequence[float | None], colour: Any, **more: Any) -> dict[str, Any]:
    """Return a row of `Page.dots`: a value and the ends of its interval, None or NaN without one."""
    return {"name": name, **dict(zip(("mean", "lo", "hi"), values, strict=True)), **more, "colour": colour}


def pairs(terms: Iterable[tuple[str, str]]) -> Markup:
    """Return a list of terms with descriptions."""
    return render("pairs", terms=terms)


def of_change(unit: str) -> dict[str, Any]:
    """Return the axis of differences of scores: points for shares, and a mark at 0, which the axis includes."""
    share = unit == "share"
    marks = [{"name": "", "at": 0}]
    return {"unit": "points" if share else unit, "name": "points" if share else "", "marks": marks, "zero": True}


def note(content: str) -> Markup:
    """Return a note."""
    return render("note", content=content)


def coloured(named: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the series of a chart, each with its name and the next colour."""
    return [{"name": name, "colour": i, **data} for i, (name, data) in enumerate(named.items())]
