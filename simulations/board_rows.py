"""Rows of the board, and the statistics over them.

Differences are paired by seed, and Holm's correction covers all comparisons with one reference. Across settings, the Bayesian
signed-rank test has a region of practical equivalence.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import stdtr
from scipy.stats import rankdata, studentized_range

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.evaluation.intervals import BySeed, Interval, ended, paired
from fedgraph_flwr.evaluation.verdict import BETTER, NOT_DECIDED, WORSE, verdict
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import Row, number
from fedgraph_flwr.sweeps.spec import Sweep, load
from fedgraph_flwr.sweeps.summary import SweepSummary

FEDAVG, LOCAL = REFERENCES = ("FedAvg", "Local")
ROPE = 1.0
"""Half-width of the region of practical equivalence, in points."""
DRAWS = 20_000
SIGNIFICANCE = 0.05
"""Significance level after Holm's correction."""
COSTS = ("cpu", "bytes", "exchanges", "memory")


# --- statistics -------------------------------------------------------------------------------------------------------


def signed_rank(differences: Sequence[float], rope: float = ROPE, draws: int = DRAWS) -> tuple[float, float, float]:
    """Return the probabilities that a method is practically worse, equivalent and better (Benavoli et al., JMLR 2017).

    Weights of the differences and of a prior difference of 0 with strength 1/2 are drawn from a Dirichlet distribution. A draw
    favours the region that has most weight among the Walsh averages.
    """
    z = np.array([0.0, *differences])
    weights = np.random.default_rng(0).dirichlet([0.5, *np.ones(len(z) - 1)], draws)  # [draws, q + 1]
    averages = (z[:, None] + z) / 2
    regions = np.stack([averages < -rope, np.abs(averages) <= rope, averages > rope])
    shares = np.einsum("di,rij,dj->dr", weights, regions, weights, optimize=True)
    worse, level, better = (np.bincount(shares.argmax(1), minlength=3) / draws).tolist()
    return worse, level, better


def p_value(scores: BySeed, others: BySeed) -> float:
    """Return the two-sided p-value of a paired t-test; NaN below two common seeds."""
    difference = paired(scores, others)
    if difference is None or difference.n < 2:
        return math.nan
    first, second = ended(scores), ended(others)
    error = float(np.std([first[s] - second[s] for s in first.keys() & second.keys()], ddof=1)) / math.sqrt(
        difference.n
    )
    if error == 0:
        return 1.0 if difference.mean == 0 else 0.0
    return float(2 * stdtr(difference.n - 1, -abs(difference.mean) / error))


def holm(values: Mapping[Any, float]) -> dict[Any, float]:
    """Return p-values adjusted by Holm's step-down method; NaN stays NaN and is not counted."""
    order = sorted((key for key in values if not math.isnan(values[key])), key=lambda key: values[key])
    adjusted, highest = dict(values), 0.0
    for place, key in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * values[key]))
        adjusted[key] = highest
    return adjusted


def critical_difference(methods: int, settings: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 5 % (Demšar, JMLR 2006)."""
    q = studentized_range.ppf(0.95, methods, math.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * settings)))


def pareto(points: Mapping[str, tuple[float, float]]) -> set[str]:
    """Return the names that no other point beats: less cost and at least the score, or the same cost and more score."""
    return {
        name
        for name, (cost, score) in points.items()
        if not any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values())
    }


# --- the stored rows --------------------------------------------------------------------------------------------------


def runs_of(sweep: Sweep, setting: str, method: str) -> int:
    """Return the number of runs of a row and column of a sweep when all are done."""
    choices, tried = len(sweep.choices(setting, method, {})), len(sweep.tuning_seeds)
    choices = sweep.search.trials_each if sweep.search and choices > 1 else choices
    return choices * tried + len(sweep.seeds) - tried


@dataclass(frozen=True)
class Standing:
    """A method over several settings.

    Attributes:
        gain: mean points above FedAvg; NaN if it has no score in one of the settings.
        rank: mean rank by score; NaN for one setting.
        ratio: geometric mean of its CPU seconds relative to FedAvg's.
        cost: mean CPU seconds, megabytes, exchanges and peak memory in MiB (`COSTS`).
        front: whether no other method that a party could run has a higher gain at no higher ratio.
    """

    method: str
    gain: float
    rank: float
    ratio: float
    cost: Mapping[str, float]
    front: bool


class Board:
    """The available rows of one table."""

    def __init__(self, path: Path):
        index = ResultsIndex(load(path))
        index.missing()
        self.sweep, self.finished = index.sweep, index.finished
        self.tally = SweepSummary(self.sweep, self.finished)
        self.methods = self.sweep.running

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """Rows of the selected choice of each setting and method."""
        rows: dict[tuple[str, str], list[Row]] = {}
        names = {(s, chosen): (s, m) for (s, m), chosen in self.tally.chosen.items()}
        for cell in self.sweep.cells(self.finished):
            if (key := names.get((cell.setting, cell.method))) and (row := self.finished.get(cell.identity)):
                rows.setdefault(key, []).append(row)
        return rows

    @property
    def total(self) -> int:
        """Number of cells of the whole table; a search has all of its trials."""
        return sum(runs_of(self.sweep, s, m) for s in self.sweep.settings for m in self.sweep.methods)

    @property
    def done(self) -> int:
        """Number of cells with a row."""
        return sum(cell.identity in self.finished for cell in self.sweep.cells(self.finished))

    @cached_property
    def begun(self) -> list[str]:
        """Settings in which two methods have two seeds in common."""
        return [s for s in self.sweep.settings if sum(len(self.score(s, m)) > 1 for m in self.methods) > 1]

    @cached_property
    def complete(self) -> list[str]:
        """Settings in which every method has every seed, failed or not."""
        seeds = len(self.sweep.seeds)
        return [s for s in self.sweep.settings if all(len(self.score(s, m)) == seeds for m in self.methods)]

    def score(self, setting: str, method: str) -> BySeed:
        """Return scores by seed, in percent if they are shares, higher is better."""
        scores = self.tally.shown(setting, method)
        if self.sweep.unfolds and len(scores) < len(self.sweep.seeds):  # a trial
            return {}
        return {seed: self.tally.sign * value for seed, value in scores.items()}

    def difference(self, setting: str, method: str, reference: str) -> Interval | None:
        """Return the paired difference; None without a common seed."""
        return paired(self.score(setting, method), self.score(setting, reference))

    def cost(self, setting: str, method: str, key: str) -> float:
        """Return a mean cost of the finished runs; NaN without any."""
        known = [value for row in self.rows.get((setting, method), []) if not math.isnan(value := spent(row, key))]
        return fmean(known) if known else math.nan

    def own_model(self, method: str) -> bool:
        """Whether a method runs on another model than FedAvg."""
        first = next(iter(self.sweep.settings.values()))
        models = [
            compose([*self.sweep.common, *first, *self.sweep.methods[name]]).model.name for name in (FEDAVG, method)
        ]
        return models[0] != models[1]

    def pools(self, method: str) -> bool:
        """Whether a method trains on the pooled graphs, which no party could do."""
        names = [word.partition("=")[2] for word in self.sweep.methods[method] if word.startswith("strategy=")]
        return any(group_file("strategy", name).get("pooled") for name in names)

    @cache  # noqa: B019 - boards are few
    def adjusted(self, reference: str) -> dict[tuple[str, str], float]:
        """Return the p-values of all differences to a reference, by setting and method, after Holm's correction."""
        pairs = itertools.product(self.begun, (m for m in self.methods if m != reference))
        return holm({(s, m): p_value(self.score(s, m), self.score(s, reference)) for s, m in pairs})

    def verdicts(self, method: str, reference: str, settings: Sequence[str]) -> dict[str, str]:
        """Return the verdict on a method against a reference by setting, with `ROPE` as margin.

        Better and worse also need significance after Holm's correction; a difference without it is not decided.
        """
        adjusted, verdicts = self.adjusted(reference), {}
        for setting in settings:
            gap = self.difference(setting, method, reference)
            verdicts[setting] = verdict(*gap.ends[1:], margin=ROPE) if gap else NOT_DECIDED
            if verdicts[setting] in (BETTER, WORSE) and not adjusted[setting, method] < SIGNIFICANCE:
                verdicts[setting] = NOT_DECIDED
        return verdicts

    def points(self, method: str, reference: str, wanted: str, settings: Sequence[str]) -> dict[str, float]:
        """Return the mean differences in points of the settings with the wanted verdict."""
        verdicts = self.verdicts(method, reference, settings)
        gaps = {s: self.difference(s, method, reference) for s in settings if verdicts[s] == wanted}
        return {s: gap.mean for s, gap in gaps.items() if gap}

    def standings(self, settings: Sequence[str]) -> list[Standing]:
        """Return all methods over settings, cheapest first."""
        means = [[fmean(ended(self.score(s, m)).values() or [-math.inf]) for m in self.methods] for s in settings]
        ranks = np.mean([rankdata([-x for x in row]) for row in means], axis=0) if len(settings) > 1 else None
        gains = {m: self.gain(m, settings) for m in self.methods}
        ratios = {m: math.exp(fmean(self._log_ratio(s, m) for s in settings)) for m in self.methods}
        known = [m for m in self.methods if not math.isnan(gains[m] + ratios[m]) and not self.pools(m)]
        points = {m: (ratios[m], gains[m]) for m in known}
        front = pareto(points)
        standings = [
            Standing(
                m,
                gains[m],
                math.nan if ranks is None else float(ranks[i]),
                ratios[m],
                {key: fmean(self.cost(s, m, key) for s in settings) for key in COSTS},
                m in front,
            )
            for i, m in enumerate(self.methods)
        ]
        return sorted(standings, key=lambda one: (math.isnan(one.ratio), one.ratio))

    def gain(self, method: str, settings: Sequence[str]) -> float:
        """Return the mean points above FedAvg; NaN if a setting has none."""
        gaps = [self.difference(s, method, FEDAVG) for s in settings]
        return fmean(gap.mean if gap else math.nan for gap in gaps)

    def _log_ratio(self, setting: str, method: str) -> float:
        return math.log(self.cost(setting, method, "cpu") / self.cost(setting, FEDAVG, "cpu"))

    @cached_property
    def ratios(self) -> dict[str, float]:
        """Mean ratio of each method's CPU seconds to FedAvg's, over the settings that have both."""
        ratios: dict[str, list[float]] = {}
        for s, m in itertools.product(self.sweep.settings, self.methods):
            if not math.isnan(ratio := self.cost(s, m, "cpu") / self.cost(s, FEDAVG, "cpu")):
                ratios.setdefault(m, []).append(ratio)
        return {m: fmean(values) for m, values in ratios.items()}

    def seconds(self, setting: str, method: str) -> float:
        """Return a run's mean CPU seconds; without a run, FedAvg's there times the method's ratio elsewhere; NaN if unknown."""
        cost = self.cost(setting, method, "cpu")
        return self.cost(setting, FEDAVG, "cpu") * self.ratios.get(method, math.nan) if math.isnan(cost) else cost

    def hours_spent(self, settings: Sequence[str]) -> float:
        """Return the core hours of all runs of some settings."""
        rows = {
            c.identity: self.finished[c.identity]
            for c in self.sweep.cells(self.finished)
            if c.setting in settings and c.identity in self.finished
        }
        return total([spent(row, "cpu") for row in rows.values()])[0] / 3600

    def hours(self, known: "Board | None" = None) -> dict[str, tuple[int, float, bool]]:
        """Return each setting's missing runs, their core hours by the means of a known table, and whether all are known."""
        left = {s: {m: n for m in self.methods if (n := self._left(s, m))} for s in self.sweep.settings}
        return {
            s: (sum(counts.values()), *total([n * (known or self).seconds(s, m) / 3600 for m, n in counts.items()]))
            for s, counts in left.items()
            if counts
        }

    def _left(self, setting: str, method: str) -> int:
        """Return the number of missing runs of a setting and method."""
        names = self.tally.choices[setting, method]
        return runs_of(self.sweep, setting, method) - sum(
            len(self.tally.values.get((setting, name), {})) for name in names
        )


def total(values: Sequence[float]) -> tuple[float, bool]:
    """Return the sum of the known values, and whether all are known."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known), len(known) == len(values)


def spent(row: Row, key: str) -> float:
    """Return a row's CPU seconds, megabytes in both directions, exchanges, or peak memory in MiB."""
    if key == "bytes":
        return (number(row, "bytes_up") + number(row, "bytes_down")) / 1e6
    return number(row, {"cpu": "cpu_seconds", "exchanges": "exchanges", "memory": "peak_rss_mb"}[key])
