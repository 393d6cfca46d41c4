"""The server's part of a run: the strategy on a grid, whatever engine the grid is of."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.checks import check_clients, check_method, remarks
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.engine import SIMULATIONS
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import adversaries
from fedgraph_flwr.lookup import locate
from fedgraph_flwr.partition import resolved
from fedgraph_flwr.records import FAILURE, Recorder

OnRound = Callable[[dict[str, Any]], None]


def serve(grid: Grid, cfg: RunConfig, on_round: OnRound | None = None) -> dict[str, Any]:
    """The server's part of a run: the strategy on a grid. Returns the summary."""
    cfg = with_folder(cfg)
    try:
        check_method(cfg)
        check_clients(cfg)
        if cfg.attack.name != "none":
            from fedgraph_flwr.evaluation import attacks

            attacks.check(cfg)
        for remark in remarks(cfg):
            log(WARNING, remark)
        recorder = Recorder(cfg, on_round)
        locate(cfg.strategy.server)(cfg, recorder).start(grid)
        studies = {}
        if cfg.attack.name != "none":
            studies["attack"] = attacks.attack(cfg, recorder.final_arrays)
        if cfg.adversary.backdoor:
            studies["adversary"] = adversaries.success(cfg, recorder.final_arrays)
        if studies:
            recorder.extra |= studies
            recorder.finish()  # once more: a failing study loses no result
    except FedGraphError as error:  # whoever started the run may sit in another process
        failure = {"error": str(error), "exit_code": error.exit_code}
        with contextlib.suppress(FedGraphError):
            write_bytes(Path(cfg.out) / FAILURE, json.dumps(failure).encode())
        raise
    return recorder.summary


def with_folder(cfg: RunConfig) -> RunConfig:
    """The configuration with its result folder named, as an absolute path."""
    if not cfg.out:
        cfg = resolved(cfg) if cfg.graph and here(cfg) else cfg  # for the dataset's name
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{cfg.strategy.name}-{cfg.dataset.name}-{cfg.seed}"
        cfg = dataclasses.replace(cfg, out=cfg.resume or str(Path("runs") / name))
    return dataclasses.replace(cfg, out=str(Path(cfg.out).absolute()))


def make_folder(cfg: RunConfig) -> None:
    """Make the result folder, before anything is started that takes time.

    Raises:
        FedGraphError: it cannot be made.
    """
    try:
        Path(cfg.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedGraphError(f"cannot make the folder out={cfg.out}: {error.strerror or error}") from error


def here(cfg: RunConfig) -> bool:
    """Whether this run is a simulation, so that the clients' files are at hand."""
    return cfg.engine in SIMULATIONS
