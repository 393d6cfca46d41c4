"""MLflow: a run of the experiment ``fedgraph-flwr`` (or ``MLFLOW_EXPERIMENT_NAME``) at ``MLFLOW_TRACKING_URI``."""

import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.store.checkpoint import flat_keys
from fedgraph_flwr.tracking import Tracker

_MOST = 100
"""Maximum parameters per request, and half the maximum metrics."""
_LONGEST = 6000

_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow accepts in no name of a metric."""


class MLflow(Tracker):
    """Uses only MLflow's client, which has no global state, so that runs can be parallel."""

    def __init__(self, cfg: RunConfig, name: str):
        self.client = MlflowClient()
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedgraph-flwr")
        self.place = f"experiment {title} at {self.client.tracking_uri}"
        with FileLock(Path(tempfile.gettempdir()) / "fedgraph-flwr-mlflow.lock"):  # parallel runs create neither twice
            experiment = self.client.get_experiment_by_name(title)
            self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(title)
            parent = self._group(cfg.tracking_group) if cfg.tracking_group else ""
        self.run = self._find("fedgraph.run", name)
        if self.run:
            self.client.update_run(self.run, status="RUNNING")
            return
        tags = {"fedgraph.run": name} | ({"mlflow.parentRunId": parent} if parent else {})
        called = f"{cfg.strategy.name} {cfg.data_name} {cfg.seed}"
        self.run = self.client.create_run(self.experiment, tags=tags, run_name=called).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in flat_keys(cfg).items()]
        for start in range(0, len(params), _MOST):
            self.client.log_batch(self.run, params=params[start : start + _MOST])

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics in requests of bounded size."""
        now = int(1000 * time.time())
        metrics = [Metric(_FORBIDDEN.sub("_", key), value, now, step) for key, value in values.items()]
        for start in range(0, len(metrics), 5 * _MOST):
            self.client.log_batch(self.run, metrics=metrics[start : start + 5 * _MOST])

    def finish(self, values: Mapping[str, float], files: list[Path]) -> None:
        """Log final values, and the files as artefacts."""
        self.scalars(values, 0)
        for path in files:
            self.client.log_artifact(self.run, str(path))

    def close(self, failed: bool) -> None:
        """End the run with its status."""
        self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")

    def _group(self, group: str) -> str:
        """Return the parent run of a sweep; the first run creates it."""
        if parent := self._find("fedgraph.group", group):
            return parent
        made: Any = self.client.create_run(self.experiment, tags={"fedgraph.group": group}, run_name=Path(group).name)
        self.client.set_terminated(made.info.run_id)
        return str(made.info.run_id)

    def _find(self, tag: str, value: str) -> str:
        """Return the id of the run with a tag; empty without one."""
        runs = self.client.search_runs([self.experiment], f"tags.`{tag}` = '{value}'", max_results=1)
        return str(runs[0].info.run_id) if runs else ""
