"""Summary of a sweep's rows: scores of every row and column by seed, selected choices, and intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedgraph_flwr.config import bounded_metric
from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.evaluation.intervals import BySeed, Interval, over, paired
from fedgraph_flwr.sweeps.rows import COUNTED, PARTLY, Finished, failure, in_percent, number
from fedgraph_flwr.sweeps.spec import Cell, Sweep


@dataclass
class SweepSummary:
    """Scores of a sweep, in percent if they are shares, by setting and by a row's method; NaN for a failed run.

    Attributes:
        chosen: selected choice of each setting and column, by the name of its rows.
        partly: settings and columns with a score that does not cover all clients that were to score it.
        choices: names of all choices of a setting and column.
        failures: runs without a score, with the reason.
        missed: runs with a score in which clients failed, with the first reason.
    """

    sweep: Sweep
    finished: Finished
    values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    validation: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    success: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    failures: list[tuple[Cell, str]] = field(default_factory=list)
    missed: list[tuple[Cell, str]] = field(default_factory=list)
    partly: set[tuple[str, str]] = field(default_factory=set)
    choices: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)
    headlines: set[str] = field(default_factory=set)
    asked: int = 0

    def __post_init__(self) -> None:
        for cell in self.sweep.cells(self.finished):
            self.asked += 1
            row = self.finished.get(cell.identity)
            if row is None:
                continue
            at = cell.setting, cell.method
            scale = 100 if in_percent(row) else 1
            self.values.setdefault(at, {})[cell.seed] = scale * number(row, "value")
            if sentence := failure(row):
                self.failures.append((cell, sentence))
            elif row.get("headline") and cell.method not in COUNTED:
                self.headlines.add(str(row["headline"]))
                if row.get("missed"):
                    self.missed.append((cell, str(row["missed"])))
                    if str(row["missed"]).startswith(PARTLY):
                        self.partly.add(at)
            for key in ("validation", "success"):
                if not math.isnan(known := number(row, key)):
                    getattr(self, key).setdefault(at, {})[cell.seed] = scale * known
        for setting in self.sweep.settings:
            for method in self.sweep.methods:
                names = list(self.sweep.choices(setting, method, self.finished))
                self.choices[setting, method] = names
                self.chosen[setting, method] = self._best(setting, names)

    @property
    def sign(self) -> float:
        """1 if a higher score is better, else -1."""
        return chance.sign_of(chance.metric_of(next(iter(self.headlines), "")))

    @property
    def in_percent(self) -> bool:
        """Whether the scores are shares."""
        return all(bounded_metric(chance.metric_of(headline)) for headline in self.headlines)

    def _best(self, setting: str, names: Sequence[str]) -> str:
        """Return the choice with the best mean validation score over the tuning seeds, among those without a failed one."""

        def tuned(scores: dict[tuple[str, str], dict[int, float]], name: str) -> list[float]:
            return [value for seed, value in scores.get((setting, name), {}).items() if seed in self.sweep.tuning_seeds]

        means = {
            name: statistics.mean(known)
            for name in names
            if len(known := tuned(self.validation, name)) == len(tuned(self.values, name)) > 0
            and not any(map(math.isnan, known))
        }
        return max(means, key=lambda name: self.sign * means[name]) if means else names[0]

    def shown(self, setting: str, method: str) -> BySeed:
        """Return the scores of a cell by seed."""
        return self.values.get((setting, self.chosen[setting, method]), {})

    def reached(self, setting: str, method: str) -> BySeed:
        """Return the success rates of a backdoor by seed."""
        return self.success.get((setting, self.chosen[setting, method]), {})

    def mean(self, setting: str, method: str) -> Interval | None:
        """Return the mean over the seeds with a score; None without any."""
        return over(self.shown(setting, method))

    def difference(self, setting: str, method: str) -> Interval | None:
        """Return the mean difference to the reference over common seeds; None without any."""
        reference = self.sweep.reference
        if method == reference or not reference:
            return None
        return paired(self.shown(setting, method), self.shown(setting, reference))

    @property
    def margin(self) -> float:
        """Points within which an interval counts as level; 0 for scores that are no shares."""
        return self.sweep.margin if self.in_percent else 0.0
