"""MLflow: a run of the experiment ``fedgraph-flwr`` (or ``MLFLOW_EXPERIMENT_NAME``) where ``MLFLOW_TRACKING_URI`` says."""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.runs.folder import flat_keys
from fedgraph_flwr.tracking import Tracker

_MOST = 100
"""Parameters, and half the metrics, that one request may carry."""
_LONGEST = 6000


class MLflow(Tracker):
    """By MLflow's client alone: nothing of it is global, so runs may go side by side."""

    def __init__(self, cfg: RunConfig, name: str):
        self.client = MlflowClient()
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedgraph-flwr")
        with FileLock(
            Path(tempfile.gettempdir()) / "fedgraph-flwr-mlflow.lock"
        ):  # runs side by side make neither twice
            found = self.client.get_experiment_by_name(title)
            self.experiment = found.experiment_id if found else self.client.create_experiment(title)
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
        """In requests of bounded size."""
        now = int(1000 * time.time())
        metrics = [Metric(key, value, now, step) for key, value in values.items()]
        for start in range(0, len(metrics), 5 * _MOST):
            self.client.log_batch(self.run, metrics=metrics[start : start + 5 * _MOST])

    def finish(self, values: Mapping[str, float], files: list[Path]) -> None:
        """The files as artefacts."""
        self.scalars(values, 0)
        for path in files:
            self.client.log_artifact(self.run, str(path))

    def close(self, failed: bool) -> None:
        """With its end's state."""
        self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")

    def _group(self, group: str) -> str:
        """The run that a sweep's are shown below, made by whichever comes first."""
        if found := self._find("fedgraph.group", group):
            return found
        made: Any = self.client.create_run(self.experiment, tags={"fedgraph.group": group}, run_name=Path(group).name)
        self.client.set_terminated(made.info.run_id)
        return str(made.info.run_id)

    def _find(self, tag: str, value: str) -> str:
        """The run that a tag names; empty where there is none."""
        found = self.client.search_runs([self.experiment], f"tags.`{tag}` = '{value}'", max_results=1)
        return str(found[0].info.run_id) if found else ""
