"""Runs as reports need them: what a folder holds, a table of scores, several runs folded over their seeds."""

import contextlib
import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedgraph_flwr.clients.saved_models import BY_VALIDATION
from fedgraph_flwr.config import DatasetConfig, RunConfig, compose
from fedgraph_flwr.config.composition import group_file, group_path
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.intervals import Interval, deviation, ended, interval
from fedgraph_flwr.runs.folder import CONFIG, FREE, ROUNDS, SUMMARY, fingerprint, headline_score, read_rounds
from fedgraph_flwr.secure.policy import Policy


@dataclass
class FinishedRun:
    """What a result folder holds.

    Attributes:
        folder: the result folder.
        cfg: its configuration.
        summary: see `Recorder.finish`; empty while the run has not ended.
        rounds: the records of the rounds that have scores.
        every_round: all records.
    """

    folder: Path
    cfg: RunConfig
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    every_round: list[dict[str, Any]]

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """Statistics of each client's graph (`describe`); empty where the client files are not at hand."""
        from fedgraph_flwr import partition

        if self.cfg.on_fleet and not self.cfg.graph:
            return []
        try:
            return [_described(partition.load_client(self.cfg, i)) for i in range(partition.num_clients(self.cfg))]
        except FedGraphError:  # the client files of a fleet are elsewhere
            return []

    @property
    def reported(self) -> list[dict[str, Any]]:
        """Of a fleet, the sizes that each client reported, by index; empty where none are known."""
        told = self.summary.get("clients")
        sizes = list(told.values()) if isinstance(told, dict) else []
        return sizes if all(isinstance(one, dict) for one in sizes) else []

    @property
    def data_text(self) -> str:
        """The data, for people."""
        return "the graphs of a fleet" if self.cfg.on_fleet else self.cfg.dataset.name

    @property
    def label(self) -> str:
        """Short name for legends."""
        return f"{self.cfg.strategy.name} · {self.data_text} · seed {self.cfg.seed}"

    @property
    def value(self) -> float:
        """The headline figure; of a run that has not ended, its last one; NaN where none was told."""
        if self.summary:
            return headline_score(self.summary)
        key = metrics.headline(self.cfg.evaluation, "test")
        return as_number(self.rounds[-1]["metrics"].get(key)) if self.rounds else math.nan

    @property
    def chance(self) -> float:
        """Chance level of the headline, at the same rounds and by the same means; NaN where it is unknown."""
        at = self.summary.get("metrics", {}).get(self.cfg.evaluation.select, {})
        return as_number(at.get(metrics.chance_key(self.cfg.evaluation, "test")))

    @property
    def left_out(self) -> dict[int, str]:
        """Clients that the headline's mean leaves out, and why."""
        return metrics.left_out(self.cfg.evaluation, self.per_client)

    @property
    def shown_round(self) -> int:
        """The round whose scores of single clients stand for the run, and whose model does; 0 where none was scored."""
        last = self.rounds[-1]["round"] if self.rounds else 0
        best = self.summary.get("best_round")
        return best if self.cfg.evaluation.select in BY_VALIDATION and isinstance(best, int) and best else last

    @property
    def per_client(self) -> dict[str, list[float]]:
        """Each client's scores at `shown_round`, such as ``test-accuracy``; empty where none, or not all, are told."""
        return {} if "scored_by" in self._shown else dict(self._shown.get("clients", {}))

    @property
    def confusion(self) -> list[list[int]]:
        """How many test nodes of each class (row) were taken for which at `shown_round`; empty where clients did not tell."""
        return list(self._shown.get("confusion", []))

    @property
    def confusion_below(self) -> list[list[int]]:
        """Per cell of `confusion`, the number n where a client had fewer than n nodes and did not report them; else 0."""
        known = self._shown.get("confusion_below")
        if known is None and self.cfg.on_fleet:  # recorded before clients said so: a 0 was any count below the minimum
            return [[0 if count else Policy().min_nodes for count in row] for row in self.confusion]
        return list(known or [])

    @property
    def _shown(self) -> dict[str, Any]:
        return next((record for record in self.rounds if record["round"] == self.shown_round), {})

    def number(self, key: str) -> float:
        """A figure of the summary; NaN where it has none."""
        return as_number(self.summary.get(key))

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Round numbers and values of one mean, such as ``test_accuracy``."""
        points = [(r["round"], r["metrics"][key]) for r in self.rounds if key in r["metrics"]]
        return [x for x, _ in points], [y for _, y in points]


def _described(graph: Any) -> dict[str, Any]:
    """`describe` of a client's graph, and of one with one type of nodes the share of them by degree."""
    from fedgraph_flwr.data.statistics import degree_shares, describe

    if not hasattr(graph, "edge_index"):
        return describe(graph)
    degrees = graph.edge_index[1].bincount(minlength=graph.num_nodes).numpy()
    return describe(graph) | {"degrees": degree_shares(degrees)[1]}


def load_run(folder: Path) -> FinishedRun:
    """Read a result folder.

    Raises:
        FedGraphError: it holds no run.
    """
    if not (folder / CONFIG).is_file() or not (folder / ROUNDS).is_file():
        raise FedGraphError(
            f"{folder} holds no run: expected {CONFIG} and {ROUNDS}, as `fedgraph-flwr run out=DIR` writes them"
        )
    records = read_rounds(folder / ROUNDS)
    try:
        summary = json.loads((folder / SUMMARY).read_bytes()) if (folder / SUMMARY).is_file() else {}
    except ValueError as error:
        raise FedGraphError(f"{folder / SUMMARY} is no summary of a run ({error})") from error
    scored = [record for record in records if "metrics" in record]
    cfg = compose([], folder / CONFIG)
    if cfg.on_fleet:  # whose parties bring their own graphs, whatever the configuration says
        cfg = replace(cfg, dataset=DatasetConfig(name=cfg.data_name))
    return FinishedRun(folder, cfg, summary, scored, records)


def as_number(value: Any) -> float:
    """A figure of a file, which somebody else may have written; NaN where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


WHEN = {"best_val": "best validation round", "last": "last round", "last5": "mean of last five"}
"""When the scores are from that a table shows, beside each other."""


def score_table(summary: dict[str, Any], cfg: RunConfig) -> dict[str, dict[str, float]]:
    """Test scores of a finished run by name, such as ``test_accuracy``, and by the words of `WHEN`."""
    at = summary["metrics"]
    names = metrics.shown(at.get("last", {}), cfg.evaluation)
    return {key: {words: at[when].get(key, float("nan")) for when, words in WHEN.items()} for key in names}


@dataclass
class Fold:
    """Runs that differ in nothing but their seeds.

    Attributes:
        name: short, for legends: the method, and by what else it differs from the others.
        told: the keys that tell the fold apart from the others, and its values of them: strategy, dataset, and what else differs.
        runs: one a seed, in the order they were given.
    """

    name: str
    told: dict[str, Any]
    runs: list[FinishedRun]

    @property
    def by_seed(self) -> dict[int, float]:
        """The headline figure of each run that has one."""
        return {run.cfg.seed: run.value for run in self.runs}

    @property
    def mean(self) -> Interval | None:
        """Over the seeds, with its interval; None where no run told a figure."""
        known = ended(self.by_seed)
        return interval(list(known.values())) if known else None

    @property
    def deviation(self) -> float:
        """Over the seeds, of a sample; NaN of one run."""
        return deviation(list(ended(self.by_seed).values()))

    @property
    def chance(self) -> float:
        """Chance level of the headline, over the seeds."""
        return statistics.fmean(run.chance for run in self.runs)


def folds(runs: Sequence[FinishedRun]) -> list[Fold]:
    """Runs by what decides their results but the seed, in the order of the first of each; a seed counts once."""
    groups: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_settings(run), sort_keys=True), {}).setdefault(run.cfg.seed, run)
    found = [list(of.values()) for of in groups.values()]
    settings = [_settings(of[0]) for of in found]
    keys = _told_apart(settings)
    told = [{key: setting.get(key) for key in keys} for setting in settings]
    return [Fold(*each) for each in zip(_names(told), told, found, strict=True)]


def _names(told: Sequence[dict[str, Any]]) -> list[str]:
    """A short name for each of several settings, by the keys that tell it from others of its method and data."""
    several = len({setting["dataset.name"] for setting in told}) > 1
    names: list[str] = []
    for setting in told:
        method, data = setting["strategy.name"], setting["dataset.name"]
        rivals = [other for other in told if (other["strategy.name"], other["dataset.name"]) == (method, data)]
        keys = [key for key in setting if any(other[key] != setting[key] for other in rivals)]
        words = [f"{key.rpartition('.')[2]}={setting[key]}" for key in keys]
        name = " · ".join([method_name(method), *([data] if several else []), *words[:3]])
        names.append(f"{name} ({names.count(name) + 1})" if name in names else name)
    return names


def folded(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Folds as one row each.

    A row holds ``strategy``, ``dataset``, every other key by which rows differ that neither of the two decides, ``seeds`` (how
    many), ``headline`` (which figure), its ``mean`` and ``deviation`` (of a sample; NaN of one run) over the seeds, its
    ``chance`` level (`evaluation.chance`), ``seconds`` a round and ``megabytes`` of the whole run, both ways, as means.

    Raises:
        FedGraphError: a run has not ended.
    """
    for run in runs:
        if not run.summary:
            raise FedGraphError(
                f"{run.folder} has not ended, so it cannot be compared: go on with it by resume={run.folder}"
            )
    return [
        {
            **{key.removesuffix(".name"): value for key, value in fold.told.items()},
            "seeds": len(fold.runs),
            "headline": fold.runs[0].summary["headline"],
            "mean": fold.mean.mean if fold.mean else math.nan,
            "deviation": fold.deviation,
            "chance": fold.chance,
            "seconds": statistics.fmean(run.summary["seconds_per_round"] for run in fold.runs),
            "megabytes": statistics.fmean(
                (run.summary["bytes_up"] + run.summary["bytes_down"]) / 1e6 for run in fold.runs
            ),
        }
        for fold in folds(runs)
    ]


def beside(runs: Sequence[FinishedRun], most: int = 500) -> list[FinishedRun]:
    """Finished runs in folders beside these that answer what a federation is measured against: clients alone, and one graph.

    Those of the same data, cut, seeds and scoring, whose method shares nothing or pools the graphs. Only the ``most`` newest
    folders are looked at.
    """
    places = {run.folder.absolute().parent for run in runs}
    theirs = {run.folder.absolute() for run in runs}
    found = [path for place in places for path in place.glob(f"*/{SUMMARY}") if path.parent not in theirs]
    seeds, data, cuts = (
        {run.cfg.seed for run in runs},
        {run.cfg.dataset.name for run in runs},
        {cut_of(run) for run in runs},
    )
    kept = []
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:most]:
        with contextlib.suppress(FedGraphError, OSError, ValueError):
            told = json.loads(path.read_bytes())
            if told["seed"] in seeds and told["dataset"] in data and _is_measure(told["strategy"]):
                run = load_run(path.parent)
                if run.summary and cut_of(run) in cuts:
                    kept.append(run)
    return kept


@cache
def _is_measure(strategy: str) -> bool:
    """Whether a method stands for clients alone, or for one graph of all."""
    body = group_file("strategy", strategy)
    return bool(body.get("pooled")) or body.get("shared") == []


def alike(folds: Sequence[Fold], like: Fold) -> list[Fold]:
    """Those whose figures can stand beside one's: of the same data, cut, split and scoring."""
    return [fold for fold in folds if cut_of(fold.runs[0]) == cut_of(like.runs[0])]


def cut_of(run: FinishedRun) -> str:
    """What two runs must agree in for their figures to stand beside each other: data, cut, split and scoring."""
    same = ("dataset.", "split.", "partition.", "evaluation.", "num_clients")
    free = {f"evaluation.{key}" for key in ("every", "patience", "full", "trained", "confusion")}
    settings = {key: value for key, value in _settings(run).items() if key.startswith(same) and key not in free}
    return json.dumps(settings | {"graph": run.cfg.graph, "reported": run.reported}, sort_keys=True)


@cache
def method_name(strategy: str) -> str:
    """As its paper writes it, where our file of it begins with that, else as the configuration does."""
    with contextlib.suppress(FedGraphError):
        path = group_path("strategy", strategy)
        first = path.read_text().partition("\n")[0].lstrip("# ").split() if path else []
        written = first[0].rstrip(":,.") if first else ""
        if re.sub(r"\W", "", written).lower() == strategy:
            return written
    return strategy


def _settings(run: FinishedRun) -> dict[str, Any]:
    """What decides a run's results, without its seed."""
    keys = fingerprint(run.cfg, None) | {"rounds": run.cfg.rounds, "dataset.name": run.cfg.dataset.name}
    if run.reported:
        keys["parties"] = ", ".join(f"{one.get('num_train')}" for one in run.reported) + " training nodes"
    return {key: value for key, value in keys.items() if key not in FREE - {"rounds"} and key != "seed"}


def _told_apart(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys of columns: strategy and dataset, and by what else rows differ that these two do not decide."""
    choices = ("strategy.name", "dataset.name")

    def varied(key: str, among: Sequence[dict[str, Any]]) -> bool:
        return len({json.dumps(setting.get(key)) for setting in among}) > 1

    alike: dict[Any, list[dict[str, Any]]] = {}
    for setting in settings:
        alike.setdefault(tuple(setting.get(key) for key in choices), []).append(setting)
    decided = ("strategy.", "dataset.", "model.", "partition.")
    others = [
        key
        for key in sorted({key for setting in settings for key in setting} - set(choices))
        if any(varied(key, group) for group in alike.values())
        or (not key.startswith(decided) and varied(key, settings))
    ]
    return [*choices, *others]
