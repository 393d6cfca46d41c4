"""A page with everything inside it: text, tables, charts with their data, style, and the script that draws them.

Charts are drawn by Apache ECharts (`assets/README.md` says which build, how large, under which licence). The page asks nothing
of a network, and its own policy forbids it to.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


class Page:
    """Collects sections and their charts.

    Attributes:
        charts: what each chart shows, by the id of its place.
    """

    def __init__(self, title: str):
        self.title = title
        self.charts: dict[str, dict[str, Any]] = {}
        self._parts: list[Markup] = []
        self._links: list[tuple[str, str]] = []

    def add(self, part: Markup) -> None:
        """Add markup without a heading of its own."""
        self._parts.append(part)

    def section(self, name: str, title: str, lead: str, parts: Iterable[Markup]) -> None:
        """Add a section that the bar at the top links to; without parts there is none."""
        body = Markup("").join(parts)
        if body:
            self._links.append((name, title))
            self._parts.append(render("section", name=name, title=title, lead=lead, body=body))

    def chart(self, title: str, how: str, kind: str, height: int = 300, wide: bool = False, **data: Any) -> Markup:
        """The place of a chart.

        Args:
            title: what it shows.
            how: to read it, in a sentence; read out where there is no picture.
            kind: which function of the script draws it.
            height: in pixels.
            wide: over the page's whole width.
            data: what is drawn; NaN becomes null.
        """
        name = f"chart{len(self.charts)}"
        self.charts[name] = {"kind": kind, **_plain(data)}
        return render("chart", name=name, title=title, how=how, height=height, wide=wide)

    def html(self) -> str:
        """The whole file."""
        assets = resources.files(__package__) / "assets"
        style, library, script = (
            Markup((assets / name).read_text(encoding="utf-8")) for name in ("page.css", "echarts.min.js", "page.js")
        )
        return (
            _templates()
            .get_template("page.html")
            .render(
                title=self.title,
                style=style,
                links=self._links,
                body=Markup("\n").join(self._parts),
                charts=self.charts,
                library=library,
                script=script,
            )
        )


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return templates


def render(part: str, **values: Any) -> Markup:
    """A part of `templates/parts.html`, by its macro's name; values are escaped unless they are markup."""
    macro = getattr(_templates().get_template("parts.html").module, part)
    return Markup(macro(**values))


def grid(*parts: Markup) -> Markup:
    """Cards side by side, where there is room."""
    return render("grid", cards=Markup("").join(parts)) if any(parts) else Markup("")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
    """A table whose columns can be sorted; a cell is text, or what is shown together with what it is sorted by."""
    return render("table", head=head, rows=rows, caption=caption)


def pairs(terms: Iterable[tuple[str, str]]) -> Markup:
    """Terms with what is said of them."""
    return render("pairs", terms=terms)


def note(content: str) -> Markup:
    """An aside."""
    return render("note", content=content)


def _plain(value: Any) -> Any:
    """What JSON can hold: numbers of at most six digits, null for NaN."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)
