"""Execution of a run on its engine."""

from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.engines import FLEET, SIMULATIONS
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.runs.folder import LAUNCHER, owned
from fedgraph_flwr.runs.prepare import check_unused, prepare
from fedgraph_flwr.runs.progress import OnRound, OnWait


def run(cfg: RunConfig, on_round: OnRound | None = None, on_wait: OnWait | None = None) -> dict[str, Any]:
    """Run a configuration on its engine and return the summary.

    Args:
        cfg: the run's configuration.
        on_round: called with each finished round's record.
        on_wait: called with a message while the run waits.

    Raises:
        FedGraphError: wrong input.
        RunFailed: the run could not continue.
    """
    prepared = prepare(cfg)
    out = Path(prepared.cfg.out)
    with owned(out, LAUNCHER):
        with owned(out):  # no server is running there, such as one whose launcher died
            check_unused(prepared.cfg)  # again: another run may have finished there while this one prepared
        summary: dict[str, Any] = locate(SIMULATIONS.get(cfg.engine, FLEET))(prepared, on_round, on_wait)
    return summary
