"""Execution of a run on its engine."""

from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.engines import GRIDS
from fedgraph_flwr.launch.prepare import check_unused, prepare
from fedgraph_flwr.launch.simulations import simulate
from fedgraph_flwr.store.events import OnRound, OnWait
from fedgraph_flwr.store.folder import LAUNCHER, owned


def run(
    cfg: RunConfig, on_round: OnRound | None = None, on_wait: OnWait | None = None
) -> dict[str, Any]:
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
            # again: another run may have finished there while this one prepared
            check_unused(prepared.cfg)
        if cfg.engine in GRIDS:
            return simulate(cfg.engine, prepared, on_round, on_wait)
        from fedgraph_flwr.engine.flower import run_flower

        return run_flower(prepared.cfg, on_round, on_wait)
