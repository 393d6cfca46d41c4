"""Run on nodes that this process calls: in itself, or in Ray actors."""

from functools import partial
from typing import Any

from fedgraph_flwr.config.engines import GRIDS
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.launch.checks import at_once, client_class
from fedgraph_flwr.launch.prepare import Runnable, prepare
from fedgraph_flwr.launch.serving import serve
from fedgraph_flwr.store.events import OnRound, OnWait


def simulate(
    engine: str, run: Runnable, on_round: OnRound | None = None, on_wait: OnWait | None = None
) -> dict[str, Any]:
    """Run a configuration on the grid of an engine, whichever the configuration names, and return the summary."""
    prepared = prepare(run)
    cfg = prepared.cfg
    open_grid = locate(GRIDS[engine])
    with open_grid(cfg, client_class(cfg), at_once(cfg), on_wait) as grid:
        return serve(grid, prepared, on_round)


run_inline = partial(simulate, "inline")
"""Runs a configuration in this process and returns the summary."""

run_ray = partial(simulate, "ray")
"""Runs a configuration with its clients in Ray actors and returns the summary."""
