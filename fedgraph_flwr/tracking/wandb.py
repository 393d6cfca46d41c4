"""Weights & Biases: a run of the project ``fedgraph-flwr`` (or ``WANDB_PROJECT``); ``WANDB_MODE=offline`` sends nothing."""

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.store.checkpoint import flat_keys
from fedgraph_flwr.tracking import Tracker, label


class WandB(Tracker):
    """Groups the runs of a sweep."""

    def __init__(self, cfg: RunConfig, name: str):
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedgraph-flwr"),
            id=name,
            resume="allow",
            name=label(cfg, name),
            group=Path(cfg.tracking_group).name or None,
            config=flat_keys(cfg),
            settings=wandb.Settings(console="off", silent=True),
        )

        self.place = str(self.run.url or self.run.dir)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a round."""
        self.run.log(dict(values), step=step)

    def finish(self, values: Mapping[str, float], files: list[Path]) -> None:
        """Write final values to the run's summary, and files to an artefact."""
        self.run.summary.update(dict(values))
        artefact = wandb.Artifact(f"run-{self.run.id}", type="run")
        for path in files:
            artefact.add_file(str(path))
        self.run.log_artifact(artefact)

    def close(self, failed: bool) -> None:
        """Finish with the exit code."""
        self.run.finish(exit_code=int(failed))
