"""Runs told to TensorBoard, MLflow or Weights & Biases while they last; the run's folder stays the source of truth.

A tracker is told in a thread of its own, so that a run waits for none, and one that fails is dropped with a warning. A run that
is resumed goes on under the name it had.
"""

import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, first_line, unknown
from fedgraph_flwr.runs.folder import CONFIG, MEANING, MODELS, ROUNDS, SUMMARY

TRACKERS = {
    "tensorboard": ("tensorboard", "fedgraph_flwr.tracking.tensorboard:TensorBoard"),
    "mlflow": ("mlflow", "fedgraph_flwr.tracking.mlflow:MLflow"),
    "wandb": ("wandb", "fedgraph_flwr.tracking.wandb:WandB"),
}
"""What ``tracking=`` names: the package that it needs, which is also the extra that brings it, and the class."""

PATIENCE = 60.0
"""Seconds that the end of a run waits for a tracker."""


class Tracker(ABC):
    """One run at one tracker; every method is called in the same thread.

    Args:
        cfg: the run's configuration.
        name: of the run, the same when it is resumed.
    """

    @abstractmethod
    def __init__(self, cfg: RunConfig, name: str):
        """Open the run, or the one of that name."""

    @abstractmethod
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Finite figures of a round."""

    @abstractmethod
    def finish(self, values: Mapping[str, float], files: list[Path]) -> None:
        """Final figures, and the files of the run's folder."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """The run is over."""


def check(cfg: RunConfig) -> None:
    """Refuse trackers that are not known or not installed, before anything is computed.

    Raises:
        FedGraphError: one sentence.
    """
    for name in cfg.tracking:
        if name not in TRACKERS:
            raise unknown("tracking", name, TRACKERS)
        if find_spec(TRACKERS[name][0]) is None:
            raise FedGraphError(f"tracking={name} is not installed: pip install 'fedgraph-flwr[{name}]'")


class Trackers:
    """All trackers of a run."""

    def __init__(self, cfg: RunConfig):
        self.cfg = cfg
        self._told: dict[str, _Teller] = {}

    def begin(self, name: str) -> None:
        """The run begins, or goes on."""
        self._told = {key: _Teller(key, self.cfg, name) for key in self.cfg.tracking}

    def round(self, record: Mapping[str, Any]) -> None:
        """A round's record."""
        values = scalars(record, self.cfg.tracking_clients)
        for teller in self._told.values():
            teller.tell("scalars", values, record["round"])

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        """The run has ended with a summary."""
        files = [folder / name for name in (CONFIG, ROUNDS, SUMMARY, MEANING, *MODELS)]
        at = summary.get("metrics", {}).get(self.cfg.evaluation.select, {})
        values = finite({f"final/{key}": value for key, value in {**at, **summary}.items()})
        for teller in self._told.values():
            teller.tell("finish", values, [path for path in files if path.is_file()])

    def close(self, failed: bool) -> None:
        """Nothing more comes; waits for what is still to be told, but not for ever."""
        for teller in self._told.values():
            teller.tell("close", failed)
            teller.end()


class _Teller:
    """A tracker in a thread of its own, until it fails."""

    def __init__(self, tracker: str, cfg: RunConfig, name: str):
        self.name = tracker
        self._waiting: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(cfg, name), name=f"tracking-{tracker}", daemon=True)
        self._thread.start()

    def tell(self, what: str, *about: Any) -> None:
        """Call a method of the tracker, some time."""
        self._waiting.put((what, about))

    def end(self) -> None:
        """Let it come to an end."""
        self._waiting.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            log(
                WARNING,
                "tracking=%s: no answer for %.0f s, so the run ends without it; its folder has all",
                self.name,
                PATIENCE,
            )

    def _serve(self, cfg: RunConfig, name: str) -> None:
        try:
            tracker: Tracker = locate(TRACKERS[self.name][1])(cfg, name)
            while told := self._waiting.get():
                getattr(tracker, told[0])(*told[1])
        except (Exception, SystemExit) as error:  # whatever a tracker does, the run goes on
            reason = f"{type(error).__name__}: {first_line(error)}"
            log(
                WARNING, "tracking=%s fails (%s) and is told no more of this run; its folder has all", self.name, reason
            )


def scalars(record: Mapping[str, Any], by_client: bool = False) -> dict[str, float]:
    """The figures of a round's record, by name; those that are not finite are left out.

    ``scores/`` means over clients, ``train/`` losses, ``bytes/`` and ``seconds/`` of the round and of each phase, ``clients/``
    how many were asked and failed, ``privacy/`` ε and releases; with ``by_client`` also ``client/I/`` each client's scores.
    """
    phases = record["phases"]
    told = {f"scores/{key}": value for key, value in record.get("metrics", {}).items()}
    told |= {f"train/{key}": value for key, value in record.get("train", {}).items()}
    told |= {f"bytes/{way}": sum(phase[f"bytes_{way}"] for phase in phases.values()) for way in ("up", "down")}
    told |= {f"bytes/{name}/{way}": phase[f"bytes_{way}"] for name, phase in phases.items() for way in ("up", "down")}
    told |= {"seconds/round": record["seconds"]} | {
        f"seconds/{name}": phase["seconds"] for name, phase in phases.items()
    }
    told |= {"clients/asked": len(record["cohort"]), "clients/failed": len(record["failed"])}
    told |= {f"privacy/{key}": value for key, value in record.get("privacy", {}).items()}
    if by_client:
        for key, values in record.get("clients", {}).items():
            told |= {f"client/{client}/{key.replace('-', '_')}": value for client, value in enumerate(values)}
    return finite(told)


def label(cfg: RunConfig, name: str) -> str:
    """What a run is called among others: what it is of, and enough of its name to tell it from its like."""
    return f"{cfg.strategy.name}-{cfg.data_name}-{cfg.seed}-{name[:8]}"


def finite(told: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among values."""
    numbers = {
        key: value for key, value in told.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}
