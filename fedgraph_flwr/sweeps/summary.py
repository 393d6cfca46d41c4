"""What the rows of a sweep add up to: a figure of every row and column by seed, what was chosen, and intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedgraph_flwr.evaluation.intervals import BySeed, Interval, ended, interval, paired
from fedgraph_flwr.sweeps.rows import COUNTED, Found, failure, number
from fedgraph_flwr.sweeps.spec import Cell, Sweep


@dataclass
class SweepSummary:
    """The figures of a sweep, in percent, by setting and by a row's method; NaN for a run that failed.

    Attributes:
        chosen: which choice each setting and column shows, by the name that its rows have.
        choices: names of all choices of a setting and column.
        failures: runs without a figure, and why.
        missed: runs with one, in which clients failed, and why the first did.
    """

    sweep: Sweep
    found: Found
    values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    validation: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    success: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    failures: list[tuple[Cell, str]] = field(default_factory=list)
    missed: list[tuple[Cell, str]] = field(default_factory=list)
    choices: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)
    headlines: set[str] = field(default_factory=set)
    asked: int = 0

    def __post_init__(self) -> None:
        for cell in self.sweep.cells(self.found):
            self.asked += 1
            row = self.found.get(cell.identity)
            if row is None:
                continue
            at = cell.setting, cell.method
            self.values.setdefault(at, {})[cell.seed] = 100 * number(row, "value")
            if sentence := failure(row):
                self.failures.append((cell, sentence))
            elif row.get("headline"):
                self.headlines.add(str(row["headline"]))
                if row.get("missed"):
                    self.missed.append((cell, str(row["missed"])))
            for key in ("validation", "success"):
                if row.get(key):
                    getattr(self, key).setdefault(at, {})[cell.seed] = 100 * number(row, key)
        for setting in self.sweep.settings:
            for method in self.sweep.methods:
                names = list(self.sweep.choices(setting, method, self.found))
                self.choices[setting, method] = names
                self.chosen[setting, method] = self._best(setting, names)

    def _best(self, setting: str, names: Sequence[str]) -> str:
        """The choice of the highest mean validation figure; only those that no seed failed with count."""
        means = {
            name: statistics.mean(told.values())
            for name in names
            if len(told := self.validation.get((setting, name), {})) == len(self.values.get((setting, name), {})) > 0
            and not any(map(math.isnan, told.values()))
        }
        return max(means, key=means.__getitem__) if means else names[0]

    def shown(self, setting: str, method: str) -> BySeed:
        """The figures that a cell shows, by seed."""
        return self.values.get((setting, self.chosen[setting, method]), {})

    def reached(self, setting: str, method: str) -> BySeed:
        """Of a backdoor, how often it opens, by seed."""
        return self.success.get((setting, self.chosen[setting, method]), {})

    def mean(self, setting: str, method: str) -> Interval | None:
        """The mean over the seeds that gave a figure; None where none did."""
        known = ended(self.shown(setting, method))
        return interval(list(known.values())) if known else None

    def difference(self, setting: str, method: str) -> Interval | None:
        """The mean difference to the sweep's reference over the seeds that both have; None where there is none."""
        reference = self.sweep.reference
        if method == reference or not reference:
            return None
        return paired(self.shown(setting, method), self.shown(setting, reference))

    @property
    def running(self) -> list[str]:
        """The columns that run something."""
        return [method for method in self.sweep.methods if method not in COUNTED]
