"""Report runs to TensorBoard, MLflow or Weights & Biases; the run folder stays the source of truth.

Each tracker runs in a separate thread, so that a run never waits for it. A tracker that fails is disabled with a warning. A
resumed run continues under its name.
"""

import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, check_names, first_line
from fedgraph_flwr.evaluation.best_round import SCORED_BY, failed_replies
from fedgraph_flwr.logs import log
from fedgraph_flwr.store.folder import INPUT_SPEC, MODELS
from fedgraph_flwr.store.results import CONFIG, ROUNDS, SUMMARY, as_number

TRACKERS = {
    "tensorboard": ("tensorboard", "fedgraph_flwr.tracking.tensorboard:TensorBoard"),
    "mlflow": ("mlflow", "fedgraph_flwr.tracking.mlflow:MLflow"),
    "wandb": ("wandb", "fedgraph_flwr.tracking.wandb:WandB"),
}
"""Tracker names → the required package, which is also the name of the extra, and the class."""

PATIENCE = 60.0
"""Maximum seconds that the end of a run waits for a tracker."""


class Tracker(ABC):
    """One run in one tracker; all methods are called in the same thread.

    Args:
        cfg: the run's configuration.
        name: name of the run, unchanged when it is resumed.

    Attributes:
        place: where the tracker writes, for the reader of the log.
    """

    place = ""

    @abstractmethod
    def __init__(self, cfg: RunConfig, name: str):
        """Open the run, or the existing one of that name."""

    @abstractmethod
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the finite values of a round."""

    @abstractmethod
    def finish(self, values: Mapping[str, float], files: list[Path]) -> None:
        """Log final values, and the files of the run folder."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """Close the run."""


def check(cfg: RunConfig) -> None:
    """Reject unknown trackers and missing packages before the run starts.

    Raises:
        FedGraphError: a tracker is unknown or not installed.
    """
    check_names(cfg.tracking, TRACKERS, "tracking")
    for name in cfg.tracking:
        if find_spec(TRACKERS[name][0]) is None:
            raise FedGraphError(f"tracking={name} is not installed: pip install 'fedgraph-flwr[{name}]'", "package")


class Trackers:
    """Trackers of a run."""

    def __init__(self, cfg: RunConfig):
        self.cfg = cfg
        self._told: dict[str, _Teller] = {}

    def begin(self, name: str) -> None:
        """Start or resume the run."""
        self._told = {key: _Teller(key, self.cfg, name) for key in self.cfg.tracking}

    def round(self, record: Mapping[str, Any]) -> None:
        """Log a round's record."""
        values = scalars(record, self.cfg.tracking_clients)
        for teller in self._told.values():
            teller.tell("scalars", values, record["round"])

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        """Log the summary of a finished run."""
        files = [folder / name for name in (CONFIG, ROUNDS, SUMMARY, INPUT_SPEC, *MODELS)]
        at = summary.get("metrics", {}).get(self.cfg.evaluation.select, {})
        values = finite({f"final/{key}": value for key, value in {**at, **summary}.items()})
        for teller in self._told.values():
            teller.tell("finish", values, [path for path in files if path.is_file()])

    def close(self, failed: bool) -> None:
        """Close the trackers, waiting for pending calls for a limited time."""
        for teller in self._told.values():
            teller.tell("close", failed)
            teller.end()


class _Teller:
    """A tracker in a separate thread, until it fails."""

    def __init__(self, tracker: str, cfg: RunConfig, name: str):
        self.name = tracker
        self._waiting: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(cfg, name), name=f"tracking-{tracker}", daemon=True)
        self._thread.start()

    def tell(self, what: str, *about: Any) -> None:
        """Queue a call of a tracker's method."""
        self._waiting.put((what, about))

    def end(self) -> None:
        """Stop after the pending calls."""
        self._waiting.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            text = "tracking=%s did not respond for %.0f s; the run ends without it, and the run folder is complete"
            log(WARNING, text, self.name, PATIENCE)

    def _serve(self, cfg: RunConfig, name: str) -> None:
        try:
            tracker: Tracker = locate(TRACKERS[self.name][1])(cfg, name)
            if tracker.place and not cfg.tracking_group:  # a sweep's runs would each say it
                log(INFO, "tracking=%s writes to %s", self.name, tracker.place)
            while call := self._waiting.get():
                getattr(tracker, call[0])(*call[1])
        except (Exception, SystemExit) as error:  # a tracker must not affect the run
            reason = f"{type(error).__name__}: {first_line(error)}"
            text = "tracking=%s failed (%s) and is disabled for this run; the run folder is complete"
            log(WARNING, text, self.name, reason)


def scalars(record: Mapping[str, Any], by_client: bool = False) -> dict[str, float]:
    """Return the finite values of a round's record by name.

    ``scores/`` means over clients, ``train/`` losses, ``bytes/`` and ``seconds/`` of the round and of each phase, ``clients/``
    numbers of selected and failed clients, ``privacy/`` ε and releases. ``by_client`` adds ``client/I/``, each client's scores.
    """
    phases = record["phases"]
    numbers = {f"scores/{key}": value for key, value in record.get("metrics", {}).items()}
    numbers |= {f"train/{key}": value for key, value in record.get("train", {}).items()}
    numbers |= {f"bytes/{way}": sum(phase[f"bytes_{way}"] for phase in phases.values()) for way in ("up", "down")}
    numbers |= {
        f"bytes/{name}/{way}": phase[f"bytes_{way}"] for name, phase in phases.items() for way in ("up", "down")
    }
    numbers |= {"seconds/round": record["seconds"]}
    numbers |= {f"seconds/{name}": phase["seconds"] for name, phase in phases.items()}
    numbers |= {"clients/asked": len(record["cohort"]), "clients/failed": len(failed_replies(record))}
    numbers |= {f"privacy/{key}": value for key, value in record.get("privacy", {}).items()}
    if by_client:
        for key, values in record.get("clients", {}).items():
            clients = record.get(SCORED_BY, range(len(values)))
            numbers |= {
                f"client/{client}/{key.replace('-', '_')}": v for client, v in zip(clients, values, strict=False)
            }
    return finite(numbers)


def label(cfg: RunConfig, name: str) -> str:
    """Return the display name of a run: method, data, and a distinguishing part of its folder name."""
    return f"{cfg.strategy.name}-{cfg.data_name}-{cfg.seed}-{name[:8]}"


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among values."""
    numbers = {key: as_number(value) for key, value in values.items()}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}
