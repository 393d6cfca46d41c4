"""A finished run as a report needs it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.run_folder import ROUNDS, SUMMARY, read_rounds


@dataclass
class FinishedRun:
    """What a result folder holds.

    Attributes:
        folder: the result folder.
        cfg: its configuration.
        summary: see `Recorder.finish`; empty while the run has not ended.
        rounds: the records of the rounds that have scores.
        every_round: all records.
        clients: one dict a client with its edge homophily and label counts; empty where the client files are not at hand.
    """

    folder: Path
    cfg: RunConfig
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    every_round: list[dict[str, Any]]
    clients: list[dict[str, Any]] = field(default_factory=list)

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
    if not (folder / "config.yaml").is_file() or not (folder / ROUNDS).is_file():
        raise FedGraphError(
            f"{folder} holds no run: expected config.yaml and {ROUNDS}, as `fedgraph-flwr run out=DIR` writes them"
        )
    records = read_rounds(folder / ROUNDS)
    try:
        summary = json.loads((folder / SUMMARY).read_bytes()) if (folder / SUMMARY).is_file() else {}
    except ValueError as error:
        raise FedGraphError(f"{folder / SUMMARY} is no summary of a run ({error})") from error
    cfg = compose([], folder / "config.yaml")
    scored = [record for record in records if "metrics" in record]
    return FinishedRun(folder, cfg, summary, scored, records, _client_statistics(cfg))


def _client_statistics(cfg: RunConfig) -> list[dict[str, Any]]:
    from fedgraph_flwr import partition
    from fedgraph_flwr.data.statistics import describe

    try:
        return [describe(partition.load_client(cfg, index)) for index in range(partition.num_clients(cfg))]
    except FedGraphError:  # the client files of a fleet are elsewhere
        return []
