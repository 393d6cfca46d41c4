"""Runs for reports: content of a run folder, table of scores, runs grouped over their seeds."""

import contextlib
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedgraph_flwr.clients.saved_models import BY_VALIDATION
from fedgraph_flwr.config import DatasetConfig, RunConfig, compose
from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.config.method_names import method_name
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.evaluation.best_round import MISSING, SCORED_BY, coverage
from fedgraph_flwr.evaluation.intervals import Interval, ended, over
from fedgraph_flwr.evaluation.intervals import deviation as standard_deviation
from fedgraph_flwr.store.checkpoint import FREE, fingerprint
from fedgraph_flwr.store.results import CONFIG, ROUNDS, SUMMARY, as_number, headline_score, read_rounds, read_summary


@dataclass
class FinishedRun:
    """Content of a run folder.

    Attributes:
        folder: the run folder.
        cfg: its configuration.
        summary: see `Recorder.finish`; empty until the run is finished.
        rounds: records of the rounds with scores.
        every_round: records of all rounds.
    """

    folder: Path
    cfg: RunConfig
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    every_round: list[dict[str, Any]]

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """Statistics of each client's graph (`describe`); empty if the client files are not available."""
        from fedgraph_flwr import partition

        if self.cfg.on_fleet and not self.cfg.graph:
            return []
        try:
            return [_described(partition.load_client(self.cfg, i)) for i in range(partition.num_clients(self.cfg))]
        except FedGraphError:  # a fleet's client files are on other machines
            return []

    @property
    def reported(self) -> list[dict[str, Any]]:
        """Sizes reported by each client of a fleet, by index; empty if unknown."""
        clients = self.summary.get("clients")
        sizes = list(clients.values()) if isinstance(clients, dict) else []
        return sizes if all(isinstance(one, dict) for one in sizes) else []

    def client_name(self, client: int | str) -> str:
        """Return the name of a client: that of its party, if the run lists its parties."""
        parties = self.summary.get("parties") or []
        known = str(client).isdecimal() and int(client) < len(parties)
        return sanitize(parties[int(client)], 40) if known else f"client {client}"

    @property
    def label(self) -> str:
        """Short name for legends."""
        return f"{method_name(self.cfg.strategy.name)} · {self.cfg.data_text} · seed {self.cfg.seed}"

    @property
    def value(self) -> float:
        """Headline score, or the last score of an unfinished run; NaN if there is none."""
        if self.summary:
            return headline_score(self.summary)
        key = metrics.headline(self.cfg.evaluation, "test")
        return as_number(self.rounds[-1]["metrics"].get(key)) if self.rounds else math.nan

    @property
    def chance(self) -> float:
        """Chance level of the headline score, for the same rounds and means; NaN if unknown."""
        at = self.summary.get("metrics", {}).get(self.cfg.evaluation.select, {})
        return as_number(at.get(metrics.chance_key(self.cfg.evaluation, "test")))

    @property
    def left_out(self) -> dict[int, str]:
        """Clients excluded from the headline score, with the reason."""
        clients = self._shown.get(SCORED_BY)
        reasons = (
            metrics.left_out(self.cfg.evaluation, self._shown.get("clients", {}), clients) if self.per_client else {}
        )
        return dict(
            sorted({**reasons, **{int(client): "did not reply" for client in self._shown.get(MISSING, {})}}.items())
        )

    @property
    def coverage(self) -> str:
        """Whose scores the headline covers; empty if unknown."""
        return coverage(self.summary or self._shown)

    @property
    def unnamed(self) -> bool:
        """Whether clients failed in a run of an older version, whose records do not name the clients behind each score."""
        return any(record["failed"] and SCORED_BY not in record for record in self.rounds)

    @property
    def shown_round(self) -> int:
        """Round whose client scores and model represent the run; 0 if no round was scored."""
        last = self.rounds[-1]["round"] if self.rounds else 0
        best = self.summary.get("best_round")
        return best if self.cfg.evaluation.select in BY_VALIDATION and isinstance(best, int) and best else last

    @property
    def per_client(self) -> dict[str, list[float]]:
        """Scores at `shown_round` by client, such as ``test-accuracy``, NaN for a client that did not reply.

        Empty if clients send none, or if not all were to score the model.
        """
        scores, clients = self._shown.get("clients", {}), self._shown.get(SCORED_BY)
        if self.cfg.evaluation.clients != "all":
            return {}
        return {key: _placed(values, clients, self._shown.get(MISSING, {})) for key, values in scores.items()}

    @property
    def confusion(self) -> list[list[int]]:
        """Confusion matrix of test nodes (rows: classes) at `shown_round`; empty if clients did not report it."""
        return list(self._shown.get("confusion", []))

    @property
    def confusion_below(self) -> list[list[int]]:
        """Minimum n per cell of `confusion` below which a client did not report its count; 0 if all did."""
        return list(self._shown.get("confusion_below") or [])

    @property
    def _shown(self) -> dict[str, Any]:
        return next((record for record in self.rounds if record["round"] == self.shown_round), {})

    def number(self, key: str) -> float:
        """Return a number of the summary; NaN if missing."""
        return as_number(self.summary.get(key))

    @property
    def moved(self) -> float:
        """Bytes sent in both directions; NaN if unknown."""
        return self.number("bytes_up") + self.number("bytes_down")

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Return round numbers and values of one mean, such as ``test_accuracy``."""
        points = [(r["round"], r["metrics"][key]) for r in self.rounds if key in r["metrics"]]
        return [x for x, _ in points], [y for _, y in points]


def _placed(values: Sequence[float], clients: Sequence[int] | None, missing: Iterable[str]) -> list[float]:
    """Return values by client; NaN for missing clients. Records of older versions name no clients: theirs come in order."""
    if clients is None:
        return list(values)
    named = {**dict.fromkeys(map(int, missing), math.nan), **dict(zip(clients, values, strict=True))}
    return [named.get(client, math.nan) for client in range(max(named, default=-1) + 1)]


def _described(graph: Any) -> dict[str, Any]:
    """Describe a client's graph; for a homogeneous one, also the share of nodes by degree."""
    from fedgraph_flwr.data.statistics import degree_shares, describe

    if not hasattr(graph, "edge_index"):
        return describe(graph)
    degrees = graph.edge_index[1].bincount(minlength=graph.num_nodes).numpy()
    return describe(graph) | {"degrees": degree_shares(degrees)[1]}


def load_run(folder: Path) -> FinishedRun:
    """Read a run folder.

    Raises:
        FedGraphError: the folder holds no run.
    """
    if not (folder / CONFIG).is_file() or not (folder / ROUNDS).is_file():
        raise FedGraphError(
            f"{folder} holds no run: expected {CONFIG} and {ROUNDS}, as `fedgraph-flwr run` writes them"
        )
    records = read_rounds(folder / ROUNDS)
    summary = read_summary(folder) if (folder / SUMMARY).is_file() else {}
    if any(not {"failed", "phases"} <= record.keys() for record in records):
        raise FedGraphError(f"{folder / ROUNDS} has rounds without 'failed' or 'phases': restore it, or repeat the run")
    scored = [record for record in records if "metrics" in record]
    cfg = compose([], folder / CONFIG)
    if cfg.on_fleet:  # parties have their own graphs, whatever the configuration says
        cfg = replace(cfg, dataset=DatasetConfig(name=cfg.data_name))
    return FinishedRun(folder, cfg, summary, scored, records)


WHEN = {"best_val": "best validation round", "last": "last round", "last5": "mean of last five"}
"""Columns of a table of scores, by selection of the round."""


def score_table(summary: dict[str, Any], cfg: RunConfig) -> dict[str, dict[str, float]]:
    """Return test scores of a finished run by name, such as ``test_accuracy``, and by column of `WHEN`."""
    at = summary["metrics"]
    names = metrics.shown(at.get("last", {}), cfg.evaluation)
    return {key: {column: at[when].get(key, float("nan")) for when, column in WHEN.items()} for key in names}


@dataclass
class RunGroup:
    """Runs that differ only in their seeds.

    Attributes:
        name: short name for legends: the method and other differences from the other groups.
        differing: values of the keys that distinguish groups: strategy, dataset, and other differences.
        runs: one run per seed, in the given order.
        place: number of its colour; None: its place among the groups.
    """

    name: str
    differing: dict[str, Any]
    runs: list[FinishedRun]
    place: int | None = None

    @property
    def by_seed(self) -> dict[int, float]:
        """Headline score of each run, by seed."""
        return {run.cfg.seed: run.value for run in self.runs}

    @property
    def mean(self) -> Interval:
        """Mean over the seeds with its interval; NaN of 0 seeds without scores."""
        return over(self.by_seed) or Interval(math.nan, math.nan, 0)

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds; NaN for one run."""
        return standard_deviation(list(ended(self.by_seed).values()))

    @property
    def chance(self) -> float:
        """Mean chance level of the headline score over the seeds."""
        return statistics.fmean(run.chance for run in self.runs)

    @property
    def is_baseline(self) -> bool:
        """Whether the method is a baseline: local training, or training on the whole graph."""
        return self.runs[0].cfg.strategy.pooled or not self.runs[0].cfg.strategy.shared


def group_runs(runs: Sequence[FinishedRun]) -> list[RunGroup]:
    """Group runs by settings except the seed, in order of first occurrence; a repeated seed counts once."""
    by_settings: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        by_settings.setdefault(json.dumps(_settings(run), sort_keys=True), {}).setdefault(run.cfg.seed, run)
    groups = [list(of.values()) for of in by_settings.values()]
    settings = [_settings(of[0]) for of in groups]
    keys = _varying(settings)
    differing = [{key: setting.get(key) for key in keys} for setting in settings]
    return [RunGroup(*parts) for parts in zip(_names(differing), differing, groups, strict=True)]


def _names(differing: Sequence[dict[str, Any]]) -> list[str]:
    """Return a short name per setting from the keys that distinguish it from others with its method and data."""
    several = len({setting["dataset.name"] for setting in differing}) > 1
    names: list[str] = []
    for setting in differing:
        method, data = setting["strategy.name"], setting["dataset.name"]
        rivals = [other for other in differing if (other["strategy.name"], other["dataset.name"]) == (method, data)]
        keys = [key for key in setting if any(other[key] != setting[key] for other in rivals)]
        parts = [f"{key.rpartition('.')[2]}={setting[key]}" for key in keys]
        name = " · ".join([method_name(method), *([data] if several else []), *parts[:3]])
        names.append(f"{name} ({names.count(name) + 1})" if name in names else name)
    return names


def comparison(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return one row per group of runs.

    A row has ``strategy``, ``dataset``, other distinguishing keys, and ``seeds`` (their number). ``headline`` names the score,
    with ``mean``, ``deviation`` (sample standard deviation, NaN for one run) and ``chance`` level (`evaluation.chance`). Further
    scores at operating points have a column each, with that of their chance level.
    ``seconds`` per round and ``megabytes`` per run, in both directions, are means.

    Raises:
        FedGraphError: a run is not finished.
    """
    if unfinished := [run.folder for run in runs if not run.summary]:
        raise FedGraphError(f"{unfinished[0]} is not finished and cannot be compared: run resume={unfinished[0]}")
    return [
        {
            **{key.removesuffix(".name"): value for key, value in group.differing.items()},
            "seeds": len(group.runs),
            "headline": group.runs[0].summary["headline"],
            "mean": group.mean.mean,
            "deviation": group.std,
            "chance": group.chance,
            **_points(group.runs),
            "seconds": statistics.fmean(run.summary["seconds_per_round"] for run in group.runs),
            "megabytes": statistics.fmean(run.moved / 1e6 for run in group.runs),
        }
        for group in group_runs(runs)
    ]


def _points(runs: Sequence[FinishedRun]) -> dict[str, float]:
    """Return the means of the further scores at operating points and of their chance levels, at the headline's round."""
    rules = runs[0].cfg.evaluation
    names = [key for name in rules.points if name != rules.headline for key in (name, chance.name_of(name))]
    scores = [run.summary["metrics"].get(rules.select, {}) for run in runs]
    return {key: statistics.fmean(values.get(f"test_{key}", math.nan) for values in scores) for key in names}


def beside(runs: Sequence[FinishedRun], most: int = 500) -> list[FinishedRun]:
    """Find finished baseline runs in neighbouring folders: local training and training on the whole graph.

    They have the same data, partition, seeds and evaluation, and a method that shares nothing or pools the graphs. Only the
    ``most`` newest folders are searched.
    """
    places = {run.folder.absolute().parent for run in runs}
    given = {run.folder.absolute() for run in runs}
    paths = [path for place in places for path in place.glob(f"*/{SUMMARY}") if path.parent not in given]
    seeds, cuts = {run.cfg.seed for run in runs}, {cut_of(run) for run in runs}
    data, kept = {run.cfg.dataset.name for run in runs}, []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)[:most]:
        with contextlib.suppress(FedGraphError, OSError, ValueError):
            summary = read_summary(path.parent, ["seed", "strategy", "dataset"])
            if summary["seed"] in seeds and summary["dataset"] in data and _is_baseline(summary["strategy"]):
                run = load_run(path.parent)
                if run.summary and cut_of(run) in cuts:
                    kept.append(run)
    return kept


@cache
def _is_baseline(strategy: str) -> bool:
    """Return whether a method is a baseline: local training, or training on the whole graph."""
    body = group_file("strategy", strategy)
    return bool(body.get("pooled")) or body.get("shared") == []


def alike(groups: Sequence[RunGroup], like: RunGroup) -> list[RunGroup]:
    """Return the groups comparable to ``like``: same data, partition, split and evaluation."""
    return [group for group in groups if cut_of(group.runs[0]) == cut_of(like.runs[0])]


def cut_of(run: FinishedRun) -> str:
    """Return the settings that comparable runs share: data, partition, split and evaluation."""
    same = ("dataset.", "split.", "partition.", "evaluation.", "num_clients")
    free = {f"evaluation.{key}" for key in ("every", "patience", "full", "trained", "confusion")}
    settings = {key: value for key, value in _settings(run).items() if key.startswith(same) and key not in free}
    return json.dumps(settings | {"graph": run.cfg.graph, "reported": run.reported}, sort_keys=True)


def _settings(run: FinishedRun) -> dict[str, Any]:
    """Return the settings that determine a run's results, without the seed."""
    keys = fingerprint(run.cfg, None) | {"rounds": run.cfg.rounds, "dataset.name": run.cfg.dataset.name}
    if run.reported:
        keys["parties"] = ", ".join(f"{one.get('num_train')}" for one in run.reported) + " training nodes"
    return {key: value for key, value in keys.items() if key not in FREE - {"rounds"} and key != "seed"}


def _varying(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys of columns: strategy, dataset, and other differing keys that these two do not determine."""
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
