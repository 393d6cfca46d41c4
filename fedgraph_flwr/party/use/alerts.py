"""Alerts: a threshold and a calibration that a party chooses on its validation items, and the items of a file above it.

    s = z_1 − z_0, the margin of the second class;   p = P(second class | s), calibrated
    budget k       the lowest threshold with at most k alerts per day
    precision ρ    the lowest threshold at which a share of at least ρ of the alerts is right
    cost (m, a)    the threshold with the least  m · (positives below) + a · (items above)

The choice is stored beside the model that it was made for. Intervals are 95 % percentiles of 2,000 bootstrap samples: of days if
items carry time, since items of a day resemble each other, else of items. Nothing leaves the party.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.value_formats import time_texts
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line
from fedgraph_flwr.evaluation import curves
from fedgraph_flwr.party.outcomes import FALSE, OPEN, TRUE, Outcomes
from fedgraph_flwr.party.use.predict import digest_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FILE = "alerts.json"
DAY = 86_400
SAMPLES, BINS = 2000, 10
RATIOS = ("precision", "recall", "alerts_per_day")
"""The `figures` with an interval."""

CERTAIN = 1e-6
"""Probabilities are at least this far from 0 and 1."""

JUDGES = 10
"""Fewest items of each class that judge a calibration."""

ISOTONIC_FROM = 100
"""Positive validation items from which the calibration is isotonic; a temperature has one parameter and needs fewer."""


@dataclass(frozen=True)
class Calibration:
    """Probabilities of margins: σ(s / t), or by linear interpolation between points (isotonic regression).

    Attributes:
        temperature: t; 0 for isotonic.
        margins: points, ascending.
        chances: their probabilities, ascending.
    """

    temperature: float = 1.0
    margins: tuple[float, ...] = ()
    chances: tuple[float, ...] = ()

    def apply(self, margin: Floats) -> Floats:
        """Return probabilities [V] of margins [V]."""
        if self.temperature:
            return np.asarray(expit(margin / self.temperature).clip(CERTAIN, 1 - CERTAIN))
        return np.interp(margin, self.margins, self.chances)


def calibrate(margin: Floats, y: Ints, kind: str = "auto") -> Calibration:
    """Fit a calibration on validation items.

    Args:
        margin: s [V].
        y: 1 for the second class, else 0, [V].
        kind: ``temperature``, ``isotonic``, or ``auto``: isotonic from `ISOTONIC_FROM` positive items on.

    Raises:
        FedGraphError: all items are of one class.
    """
    if not 0 < y.sum() < len(y):
        what = f"{int(y.sum())} of {len(y)} positive"
        raise FedGraphError(
            f"a calibration needs validation items of both classes, got {what}; --budget K alone needs no positive"
        )
    if kind == "isotonic" or (kind == "auto" and min(y.sum(), len(y) - y.sum()) >= ISOTONIC_FROM):
        from sklearn.isotonic import IsotonicRegression

        least = 1 / (len(y) + 2)  # a share of 0 or all of n items is no certainty
        fitted = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(margin, y)
        return Calibration(0.0, tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist()))

    from scipy.optimize import minimize_scalar

    def loss(log_t: float) -> float:
        scaled = margin / np.exp(log_t)
        return float(np.mean(np.logaddexp(0, scaled) - y * scaled))

    return Calibration(float(np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded").x)))


def brier(chance: Floats, y: Ints) -> float:
    """Return the Brier score of probabilities [V]."""
    return float(np.mean((chance - y) ** 2))


def kept_calibration(
    val: tuple[Floats, Ints], judges: tuple[Floats, Ints], kind: str
) -> tuple[Calibration, Calibration | None]:
    """Return the calibration in force, and the one that was tried; None if it could not be.

    One is in force only if it has a smaller Brier score than the model's own probabilities, on items that chose nothing: those
    of the test, else the last third of the validation items, of which the first two thirds then fit it. By ``kind``, the user may
    insist on one.

    Args:
        val: margins and classes of validation items, by time.
        judges: of labelled test items.
        kind: as of `calibrate`.
    """
    if kind != "auto":
        calibration = calibrate(*val, kind)
        return calibration, calibration
    fitting = val
    if min(judges[1].sum(), (1 - judges[1]).sum()) < JUDGES:
        cut = 2 * len(val[1]) // 3
        fitting, judges = (val[0][:cut], val[1][:cut]), (val[0][cut:], val[1][cut:])
    if min(judges[1].sum(), (1 - judges[1]).sum()) < JUDGES or not 0 < fitting[1].sum() < len(fitting[1]):
        return Calibration(), None
    plain, tried = brier(Calibration().apply(judges[0]), judges[1]), calibrate(*val)
    for name in ("auto", "temperature"):
        if brier(calibrate(*fitting, name).apply(judges[0]), judges[1]) < plain:
            calibration = calibrate(*val, name)
            return calibration, calibration
    return Calibration(), tried


@dataclass(frozen=True)
class Rule:
    """How a threshold is chosen: exactly one is set.

    Attributes:
        budget: alerts per day.
        precision: share of the alerts that are right, at least.
        cost: cost of a missed positive, and of an alert.
    """

    budget: float = 0.0
    precision: float = 0.0
    cost: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if bool(self.budget) + bool(self.precision) + any(self.cost) != 1:
            raise FedGraphError("alerts need one rule: pass --budget K, --precision P or --cost MISS,ALERT")
        if not (0 <= self.budget < np.inf and 0 <= self.precision <= 1):
            got = f"{self.budget:g} and {self.precision:g}"
            raise FedGraphError(f"--budget must be alerts per day above 0 and --precision in (0, 1], got {got}")
        if any(self.cost) and not all(0 < cost < np.inf for cost in self.cost):
            raise FedGraphError(f"--cost must be two numbers above 0, a miss and an alert, got {self.cost}")

    def threshold(self, margin: Floats, y: Ints, days: int) -> float:
        """Return the lowest margin of an alert.

        Args:
            margin: s of validation items [V].
            y: 1 for the second class, else 0, [V].
            days: number of days of these items; 0 if unknown.

        Raises:
            FedGraphError: a budget without days, or a precision that no threshold reaches.
        """
        curve = curves.Curves(margin, y == 1)  # equal scores are alerts together
        count, hits = curve.taken, curve.hits
        if self.cost != (0.0, 0.0):
            miss, alert = self.cost
            cost = miss * (y.sum() - hits) + alert * count
            return float(curve.scores[cost.argmin()]) if cost.min() < miss * y.sum() else float("inf")
        if self.budget and not days:
            raise FedGraphError("--budget counts alerts per day, and these items carry no time: pass another rule")
        kept = count <= self.budget * days if self.budget else hits / count >= self.precision - 1e-12
        if self.precision and not kept.any():
            what = f"no threshold reaches a precision of {self.precision:g} on the validation items"
            raise FedGraphError(f"{what}: the best is {(hits / count).max():.3g}")
        return float(curve.scores[kept].min(initial=np.inf))


def figures(margin: Floats, y: Ints, day: Ints | None, threshold: float) -> dict[str, Any]:
    """Return precision, recall (with positives) and alerts per day of items, each with a 95 % interval.

    Args:
        margin: s [V].
        y: 1 for the second class, else 0, [V].
        day: day of each item [V], or None.
        threshold: lowest margin of an alert.
    """
    alert = (margin >= threshold).astype(np.int64)
    counts = np.stack([alert, alert * y, y], axis=1)
    days = 0 if day is None else int(day.max() - day.min()) + 1
    if day is None:
        kinds, sizes = np.unique(counts, axis=0, return_counts=True)
        drawn = np.random.default_rng(0).multinomial(len(y), sizes / max(len(y), 1), SAMPLES) @ kinds
    else:
        by_day = np.zeros((days, 3), np.int64)
        np.add.at(by_day, day - day.min(), counts)
        drawn = np.random.default_rng(0).multinomial(days, np.full(days, 1 / days), SAMPLES) @ by_day
    summary: dict[str, Any] = {"items": len(y), "positives": int(y.sum()), "days": days}
    whole, sampled = (_ratios(totals, days) for totals in (counts.sum(0)[None], drawn))
    for name, values in sampled.items():
        low, high = np.nanpercentile(values, [2.5, 97.5])
        summary[name] = [float(value) for value in (whole[name][0], low, high)]
    if not summary["positives"]:
        del summary["recall"]
    return summary


def _ratios(counts: Ints, days: int) -> dict[str, Floats]:
    """Return precision and recall, and alerts per day if there are days, of alerts, right ones and positives [n, 3]."""
    alerts, right, positives = counts.T
    ratios = {"precision": curves.ratio(right, alerts), "recall": curves.ratio(right, positives)}
    ratios = {name: np.nan_to_num(values) for name, values in ratios.items()}  # 0 of nothing
    return ratios | ({"alerts_per_day": alerts / days} if days else {})


def ranges(summary: Mapping[str, Any], form: Callable[[Any], str]) -> list[str]:
    """Return each of `figures` with its interval as text."""
    ends = {name: list(map(form, value)) for name, value in summary.items() if isinstance(value, list | tuple)}
    return [f"{name.replace('_', ' ')} {value} [{low}, {high}]" for name, (value, low, high) in ends.items()]


def reliability(chance: Floats, y: Ints) -> dict[str, Any]:
    """Return the Brier score, and mean probability, share of positives and number of items of `BINS` equal bins that hold any."""
    at = np.minimum((chance * BINS).astype(np.int64), BINS - 1)
    rows = [[float(chance[at == b].mean()), float(y[at == b].mean()), int((at == b).sum())] for b in np.unique(at)]
    return {"brier": brier(chance, y), "curve": rows}


@dataclass(frozen=True)
class Choice:
    """A party's threshold and calibration for one model.

    Attributes:
        model: digest of the model's parameters.
        client: index of the party.
        positive: name of the second class.
        rule: how the threshold was chosen.
        threshold: lowest margin of an alert.
        calibration: of its probabilities; the model's own (temperature 1) where none was shown to be better.
        validation: `figures` of the items that it was chosen on.
        test: `figures` of test items; empty without any.
        calibrated: `reliability` on test items before and after the calibration that was tried.
    """

    model: str
    client: int
    positive: str
    rule: Rule
    threshold: float
    calibration: Calibration
    validation: Mapping[str, Any]
    test: Mapping[str, Any]
    calibrated: Mapping[str, Any]

    @property
    def is_calibrated(self) -> bool:
        """Whether a calibration is in force."""
        return self.calibration != Calibration()

    @property
    def rates(self) -> tuple[float, float] | None:
        """Shares of positives among validation and test items, if they differ by more than chance; else None."""
        if not self.test or not self.validation["positives"]:
            return None
        (first, of), (second, among) = (
            (summary["positives"], summary["items"]) for summary in (self.validation, self.test)
        )
        share = (first + second) / (of + among)
        spread = np.sqrt(max(share * (1 - share), 0) * (1 / of + 1 / among))
        return (first / of, second / among) if abs(first / of - second / among) > 2.58 * spread else None

    @property
    def probability(self) -> float:
        """Calibrated probability of an item at the threshold; 1 if no item is above it."""
        return float(self.calibration.apply(np.array([self.threshold]))[0]) if np.isfinite(self.threshold) else 1.0

    def save(self, folder: Path) -> None:
        """Write it beside the model."""
        write_bytes(folder / name_of(self.client), json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, folder: Path, predictor: Any) -> "Choice":
        """Read the choice of a party for a model.

        Raises:
            FedGraphError: there is none, it is damaged, or it was made for another model.
        """
        path = folder / name_of(predictor.client)
        try:
            choice = cls.read(json.loads(path.read_bytes()))
        except FileNotFoundError:
            rules = "--budget K, --precision P or --cost MISS,ALERT"
            raise FedGraphError(f"{path.parent} has no threshold for alerts: choose one by {rules}") from None
        except (OSError, FedGraphError, *MALFORMED) as error:
            raise FedGraphError(f"{path} is damaged ({first_line(error)}): choose the threshold again") from error
        if (choice.model, choice.client) != (digest_of(predictor), predictor.client):
            raise FedGraphError(f"{path} was chosen for another model: choose the threshold again for this one")
        return choice

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Choice":
        """Return the choice that was stored as these values.

        Raises:
            One of `MALFORMED`, or FedGraphError: they are no choice.
        """
        rule, calibration = values["rule"], values["calibration"]
        miss, alert = _floats(rule["cost"], 2)
        chosen = Rule(float(rule["budget"]), float(rule["precision"]), (miss, alert))
        points = {key: _floats(calibration[key]) for key in ("margins", "chances")}
        fitted = Calibration(float(calibration["temperature"]), **points)
        ascend = all(list(numbers) == sorted(numbers) and np.isfinite(numbers).all() for numbers in points.values())
        if not (ascend and len(fitted.margins) == len(fitted.chances) >= (not fitted.temperature)):
            raise ValueError("its calibration is not one point per margin, in ascending order")
        if not 0 <= fitted.temperature < np.inf or np.isnan(threshold := float(values["threshold"])):
            raise ValueError("its temperature or threshold is not valid")
        return cls(
            model=str(values["model"]),
            client=int(values["client"]),
            positive=str(values["positive"]),
            rule=chosen,
            threshold=threshold,
            calibration=fitted,
            validation=_as_figures(values["validation"]),
            test=_as_figures(values["test"]) if values["test"] else {},
            calibrated={when: _as_reliability(values["calibrated"][when]) for when in ("before", "after")}
            if values["calibrated"]
            else {},
        )


def _floats(values: Any, length: int = 0) -> tuple[float, ...]:
    """Return a stored list of numbers, of this length if it is not 0.

    Raises:
        ValueError: another length.
    """
    numbers = tuple(map(float, values))
    if length and len(numbers) != length:
        raise ValueError(f"expected {length} numbers, got {len(numbers)}")
    return numbers


def _as_figures(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored `figures`."""
    counts = {key: int(values[key]) for key in ("items", "positives", "days")}
    return {**counts, **{key: list(_floats(values[key], 3)) for key in RATIOS if key in values}}


def _as_reliability(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored `reliability`."""
    return {"brier": float(values["brier"]), "curve": [list(_floats(row, 3)) for row in values["curve"]]}


def name_of(client: int) -> str:
    """Return the name of a party's file."""
    return FILE.replace(".", f"_{client}.")


def margins(predictor: Any, graph: Any) -> tuple[Floats, Any]:
    """Return the margin of each item of a graph [V], and the task.

    Raises:
        FedGraphError: the model does not predict two classes.
    """
    count = len(predictor.input_spec.classes) if predictor.task.capabilities.classes else 0
    predictor.check_task(count == 2, f"alerts need items of two classes, and it has {count}")
    logits, task = predictor.items(graph)
    return curves.margin(logits.numpy()), task


def days_of(task: Any, rows: NDArray[Any]) -> Ints | None:
    """Return the day of items, as days since 1970; None if they carry no time."""
    time = getattr(task, "time", None)
    return time.numpy()[rows] // DAY if time is not None and time.numel() else None


def labelled(task: Any, split: str) -> Ints:
    """Return the places of the labelled items of a split."""
    return np.flatnonzero((task.masks[split] & (task.y >= 0)).numpy())


def choose(predictor: Any, rule: Rule, kind: str = "auto") -> Choice:
    """Choose a threshold and a calibration on the validation items of a party's own graph, and measure them on its test items.

    Raises:
        FedGraphError: no graph, no labelled validation items (of both classes, for another rule than a budget), or a rule that
            cannot be met.
    """
    margin, task = margins(predictor, predictor.party_graph())
    y = task.y.numpy()
    val, test = labelled(task, "val"), labelled(task, "test")
    if not val.size:
        raise FedGraphError("a threshold needs labelled validation items, got none: import some with labels")
    # a party without a positive chooses by numbers of alerts alone, and keeps the model's probabilities
    one_class = bool(rule.budget) and len(np.unique(y[val])) < 2
    if not one_class and not 0 < y[val].sum() < val.size:
        calibrate(margin[val], y[val])  # names the missing class
    time = getattr(task, "time", None)
    by_time = val[np.argsort(time.numpy()[val], kind="stable")] if time is not None and time.numel() else val
    parts = [(margin[rows_of], y[rows_of]) for rows_of in (by_time, test)]
    calibration, tried = (Calibration(), None) if one_class else kept_calibration(parts[0], parts[1], kind)
    day = days_of(task, val)
    days = 0 if day is None else int(day.max() - day.min()) + 1
    threshold = rule.threshold(margin[val], y[val], days)
    calibrated = {}
    if test.size and tried is not None:
        plain, fitted = Calibration().apply(margin[test]), tried.apply(margin[test])
        calibrated = {"before": reliability(plain, y[test]), "after": reliability(fitted, y[test])}
    return Choice(
        model=digest_of(predictor),
        client=predictor.client,
        positive=predictor.input_spec.classes[1],
        rule=rule,
        threshold=threshold,
        calibration=calibration,
        validation=figures(margin[val], y[val], day, threshold),
        test=figures(margin[test], y[test], days_of(task, test), threshold) if test.size else {},
        calibrated=calibrated,
    )


def lived(choice: Choice, outcomes: Outcomes) -> dict[str, Any]:
    """Return the precision of the decided alerts with its 95 % interval (Wilson), and numbers of decisions.

    Items with a score below the threshold are no alerts, and do not count.

    Raises:
        FedGraphError: the decisions are about alerts of another model.
    """
    if others := [model for model in outcomes.models if model != choice.model]:
        raise FedGraphError(
            f"{outcomes.where} has alerts of model {others[0]}, and the threshold is that of {choice.model}: pass their decisions"
            " with the run of that model"
        )
    alert = ~(outcomes.score < choice.threshold)
    right, wrong, left = (int((alert & (outcomes.state == state)).sum()) for state in (TRUE, FALSE, OPEN))
    decisions: dict[str, Any] = {"right": right, "wrong": wrong, "open": left, "below": int((~alert).sum())}
    if right + wrong:
        from scipy.stats import binomtest

        ends = binomtest(right, right + wrong).proportion_ci(method="wilson")
        decisions["precision"] = [right / (right + wrong), float(ends.low), float(ends.high)]
    return decisions


def lived_text(choice: Choice, outcomes: Outcomes) -> list[str]:
    """Return lines on the precision of decided alerts and on the expected one."""
    decisions = lived(choice, outcomes)
    right, decided = decisions["right"], decisions["right"] + decisions["wrong"]
    below = f", {decisions['below']} below the threshold do not count" if decisions["below"] else ""
    lines = [f"decided: {decided} alerts, {right} true and {decisions['wrong']} false; {decisions['open']} open{below}"]
    figures = choice.test or choice.validation
    if "precision" not in decisions or "precision" not in figures:
        return [
            *lines,
            "precision: unknown, no alert is decided" if not decided else "expected precision: unknown",
        ]
    (value, low, high), (promised, least, most) = decisions["precision"], figures["precision"]
    lines.append(f"precision: {value:.3g} [{low:.3g}, {high:.3g}], {right} of {decided}")
    where = "test" if choice.test else "validation"
    lines.append(f"expected precision: {promised:.3g} [{least:.3g}, {most:.3g}], of {where} items")
    apart = "below" if high < least else "above" if low > most else ""
    lines.append(
        f"it is {apart} what was expected: compare the items by `drift`, and choose the threshold again"
        if apart
        else "the intervals overlap: the precision is as expected, as far as these decisions show"
    )
    return lines


def alerts(choice: Choice, predictions: Any, dated: bool = False) -> Any:
    """Return a pandas table of the predictions above the threshold, highest first.

    Columns: ``rank``, those that name the item, ``time``, ``score`` (the margin), ``probability`` (calibrated), ``model``.

    Args:
        choice: the party's.
        predictions: `Predictions` of the items.
        dated: whether their times are those of tables.
    """
    frame = predictions.to_frame()
    named = frame[[name for name in ("day", "id", "edge", "source", "target") if name in frame]].copy()
    score = curves.margin(predictions.logits.numpy())
    time = getattr(predictions, "time", np.zeros(0))
    if time.size:
        named["time"] = time_texts(time.astype(np.int64), dated)
    named["score"], named["probability"], named["model"] = score, choice.calibration.apply(score), choice.model
    rows = np.flatnonzero(score >= choice.threshold)
    rows = rows[np.argsort(-score[rows], kind="stable")]
    listed = named.iloc[rows].reset_index(drop=True)
    listed.insert(0, "rank", np.arange(1, len(listed) + 1))
    return listed
