"""Methods side by side: scores with intervals, differences to a reference, costs and a table, of runs and of sweeps."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedgraph_flwr.report.page import CHANCE, Page, dot, number, of_change, table
from fedgraph_flwr.report.units import duration, size

Cell = Mapping[str, Any]


@dataclass
class SideBySide:
    """Cells of a table with a row per setting and method.

    Attributes:
        cells: with ``setting``, ``method``, ``scores`` by seed, ``mean``, ``half`` and ``n`` (`intervals.Interval`),
            ``difference`` to the reference with the same keys or None, and ``seconds_per_round`` and ``bytes`` unless computed
            without a run.
        score: name of the score.
        percent: whether scores are in percent.
        reference: method that differences are to.
    """

    cells: Sequence[Cell]
    score: str
    percent: bool
    reference: str

    @property
    def settings(self) -> list[str]:
        """Settings, in order."""
        return list(dict.fromkeys(cell["setting"] for cell in self.cells))

    def scores(self, page: Page) -> Markup:
        """Plot means with intervals, and single seeds."""

        def rows(of: Sequence[Cell]) -> list[dict[str, Any]]:
            made = []
            for cell, look in zip(of, looks(of), strict=True):
                points = [[self._factor * v, f"seed {seed}"] for seed, v in cell["scores"].items() if v is not None]
                made.append(self._row(cell, look, cell) | {"each": points if len(points) > 1 else []})
            return made

        how = "Large: mean over seeds, with its 95 % interval (Student's t). Small: single seeds."
        title = f"{self.score[:1].upper()}{self.score[1:]}"
        return self._chart(page, title, how, "dots", "rows", rows, height=self._height, unit=self._unit, name="")

    def differences(self, page: Page, how: str) -> Markup:
        """Plot the differences to the reference, as high as the chart of scores next to it."""

        def rows(of: Sequence[Cell]) -> list[dict[str, Any]]:
            looked = [pair for pair in zip(of, looks(of), strict=True) if "seconds_per_round" in pair[0]]
            return [self._row(cell, look, cell["difference"]) for cell, look in looked if cell["difference"]]

        title = f"Difference to {self.reference}"
        return self._chart(page, title, how, "dots", "rows", rows, height=self._height, **of_change(self._unit))

    def costs(self, page: Page) -> Markup:
        """Plot scores against the time of a round, of settings with several methods that ran."""

        def series(of: Sequence[Cell]) -> list[dict[str, Any]]:
            made = []
            for cell, look in zip(of, looks(of), strict=True):
                if (seconds := cell.get("seconds_per_round")) is not None:
                    points = [[seconds, self._factor * cell["mean"], cell["method"], 12]]
                    made.append({"name": cell["method"], "points": points, **look})
            return made if len(made) > 1 else []

        axes = {"x": {"name": "time per round", "unit": "seconds"}, "y": {"name": self.score, "unit": self._unit}}
        how = "Means over seeds; left and up is better."
        return self._chart(page, "Score against cost", how, "plane", "series", series, **axes, named=True)

    def table(self, more: Mapping[str, Callable[[Cell], Any]]) -> Markup:
        """Tabulate all cells.

        Args:
            more: further columns: name → their entry of a cell.
        """
        unit, digits = (" %", ".1f") if self.percent else ("", ".4g")
        score, half = f"{{:{digits}}}{unit}".format, f"± {{:{digits}}}".format

        def change(value: float) -> str:
            return f"{value:+{digits}}".replace("-", "−")

        points = " (points)" if self.percent else ""
        columns: dict[str, Callable[[Cell], Any]] = {
            "setting": lambda cell: cell["setting"],
            "method": lambda cell: cell["method"],
            "choice": lambda cell: cell.get("choice", ""),
            "seeds": lambda cell: (str(cell["n"]), cell["n"]),
            self.score: lambda cell: number(score, cell["mean"]),
            f"95 % interval{points}": lambda cell: number(half, cell["half"]),
            f"to {self.reference or '–'}{points}": lambda cell: number(change, (cell["difference"] or {}).get("mean")),
            f"its 95 % interval{points}": lambda cell: number(half, (cell["difference"] or {}).get("half")),
            "time per round": lambda cell: number(duration, cell.get("seconds_per_round")),
            "traffic": lambda cell: number(size, cell.get("bytes")),
            **more,
        }
        if len(self.settings) < 2:
            del columns["setting"]
        if not any(map(columns["choice"], self.cells)):
            del columns["choice"]
        rows = [[entry(cell) for entry in columns.values()] for cell in self.cells]
        about = "Means over seeds; differences are paired by seed. Click on a column to sort."
        return table(list(columns), rows, about)

    @property
    def _factor(self) -> float:
        """Factor from scores to those of charts, where shares are not in percent."""
        return 0.01 if self.percent else 1

    @property
    def _unit(self) -> str:
        return "share" if self.percent else "plain"

    @property
    def _height(self) -> int:
        """Height of a chart with a row per method of the largest setting."""
        return 90 + 46 * max(map(len, self._by_setting.values()), default=0)

    @property
    def _by_setting(self) -> dict[str, list[Cell]]:
        return {setting: [cell for cell in self.cells if cell["setting"] == setting] for setting in self.settings}

    def _row(self, cell: Cell, look: Mapping[str, Any], interval: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a method in a chart, with a mean and half of its interval."""
        mean, half = (
            self._factor * interval["mean"],
            math.nan if interval["half"] is None else self._factor * interval["half"],
        )
        return dot(cell["method"], (mean, mean - half, mean + half), **look)

    def _chart(
        self,
        page: Page,
        title: str,
        how: str,
        kind: str,
        key: str,
        content: Callable[[Sequence[Cell]], Any],
        **more: Any,
    ) -> Markup:
        """Add a chart with a view for each setting that has any content."""
        views = {setting: {key: data} for setting, of in self._by_setting.items() if (data := content(of))}
        data = next(iter(views.values())) if len(views) == 1 else {"views": views}
        return page.chart(title, how, kind, **more, **data)


def looks(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the look of each cell of a setting: that of chance if it is computed without a run, else its colour's number."""
    ran = [cell["method"] for cell in cells if "seconds_per_round" in cell]
    return [{"colour": ran.index(cell["method"])} if cell["method"] in ran else CHANCE for cell in cells]
