"""Mean of a score over seeds, its 95 % interval, and differences paired by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scipy  # loads `scipy.special` on its first use

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Interval:
    """Mean and half-width of its 95 % interval by Student's t over ``n`` seeds; the half-width is NaN for one seed."""

    mean: float
    half: float
    n: int

    @property
    def ends(self) -> tuple[float, float, float]:
        """The mean, and the lower and the upper end."""
        return self.mean, self.mean - self.half, self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """Compute mean ± t(0.975, n − 1) s / √n, where s is the sample's standard deviation."""
    n = len(values)
    half = float(scipy.special.stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
    return Interval(statistics.fmean(values), half, n)


def ended(values: BySeed) -> dict[int, float]:
    """Return the seeds with a score."""
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def over(values: BySeed) -> Interval | None:
    """Return the mean over the seeds with a score; None without any."""
    known = ended(values)
    return interval(list(known.values())) if known else None


def paired(scores: BySeed, others: BySeed) -> Interval | None:
    """Return the mean difference over the seeds with both scores; None without any."""
    scores, others = ended(scores), ended(others)
    pairs = [scores[seed] - others[seed] for seed in scores if seed in others]
    return interval(pairs) if pairs else None


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample; NaN for one value."""
    return statistics.stdev(values) if len(values) > 1 else math.nan
