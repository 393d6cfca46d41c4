"""Runs as reports need them: what a folder holds, a table of scores, several runs folded over their seeds."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.run_folder import CONFIG, FREE, ROUNDS, SUMMARY, fingerprint, read_rounds


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
        from fedgraph_flwr.data.statistics import describe

        try:
            return [describe(partition.load_client(self.cfg, i)) for i in range(partition.num_clients(self.cfg))]
        except FedGraphError:  # the client files of a fleet are elsewhere
            return []

    @property
    def label(self) -> str:
        """Short name for legends."""
        return f"{self.cfg.strategy.name} · {self.cfg.dataset.name} · seed {self.cfg.seed}"

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Round numbers and values of one mean, such as ``test_accuracy``."""
        points = [(r["round"], r["metrics"][key]) for r in self.rounds if key in r["metrics"]]
        return [x for x, _ in points], [y for _, y in points]


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
    return FinishedRun(folder, compose([], folder / CONFIG), summary, scored, records)


WHEN = {"best_val": "best validation round", "last": "last round", "last5": "mean of last five"}
"""When the scores are from that a table shows, beside each other."""


def score_table(summary: dict[str, Any], cfg: RunConfig) -> dict[str, dict[str, float]]:
    """Test scores of a finished run by name, such as ``test_accuracy``, and by the words of `WHEN`."""
    at = summary["metrics"]
    names = metrics.shown(at.get("last", {}), cfg.evaluation)
    return {key: {words: at[when].get(key, float("nan")) for when, words in WHEN.items()} for key in names}


def folded(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Runs that differ in nothing but their seeds as one row each, in the order of the first of them; a seed counts once.

    A row holds ``strategy``, ``dataset``, every other key by which rows differ that neither of the two decides, ``seeds`` (how
    many), ``headline`` (which figure), its ``mean`` and ``deviation`` (of a sample; NaN of one run) over the seeds, the
    ``majority`` beside it (what always saying a client's most frequent training class scores), ``seconds`` a round and
    ``megabytes`` of the whole run, both ways, as means.

    Raises:
        FedGraphError: a run has not ended.
    """
    groups: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        if not run.summary:
            raise FedGraphError(
                f"{run.folder} has not ended, so it cannot be compared: go on with it by resume={run.folder}"
            )
        groups.setdefault(json.dumps(_settings(run), sort_keys=True), {}).setdefault(run.cfg.seed, run)
    folds = [list(of.values()) for of in groups.values()]
    settings = [_settings(of[0]) for of in folds]
    told = _told_apart(settings)
    rows = []
    for setting, of in zip(settings, folds, strict=True):
        values = [run.summary["test_accuracy"] for run in of]
        rows.append(
            {
                **{key.removesuffix(".name"): setting.get(key) for key in told},
                "seeds": len(of),
                "headline": of[0].summary["headline"],
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(of) > 1 else float("nan"),
                "majority": statistics.fmean(map(_majority, of)),
                "seconds": statistics.fmean(run.summary["seconds_per_round"] for run in of),
                "megabytes": statistics.fmean((r.summary["bytes_up"] + r.summary["bytes_down"]) / 1e6 for r in of),
            }
        )
    return rows


def _settings(run: FinishedRun) -> dict[str, Any]:
    """What decides a run's results, without its seed."""
    keys = fingerprint(run.cfg, None) | {"rounds": run.cfg.rounds}
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


def _majority(run: FinishedRun) -> float:
    """What stands beside the headline, at the same rounds and by the same means."""
    key = metrics.headline(run.cfg.evaluation, "test").replace(run.cfg.evaluation.headline, metrics.MAJORITY, 1)
    return float(run.summary["metrics"].get(run.cfg.evaluation.select, {}).get(key, float("nan")))
