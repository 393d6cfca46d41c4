"""The server's part of a run: the strategy on a grid, whatever engine the grid is of."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping
from itertools import chain, count
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.engine import SIMULATIONS
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line
from fedgraph_flwr.evaluation import adversaries, chance
from fedgraph_flwr.partition import client_files, content, files, load, meaning, resolved
from fedgraph_flwr.runs.checks import check_clients, check_memory, check_method, remarks
from fedgraph_flwr.runs.folder import FAILURE, MEANING, InUse, check_resumable, headline_score, owned, read_checkpoint
from fedgraph_flwr.runs.progress import OnRound
from fedgraph_flwr.runs.recorder import Recorder
from fedgraph_flwr.tracking import Trackers
from fedgraph_flwr.tracking import check as check_tracking


def serve(grid: Grid, cfg: RunConfig, on_round: OnRound | None = None) -> dict[str, Any]:
    """The server's part of a run: the strategy on a grid. Returns the summary."""
    cfg = with_folder(cfg)
    out = Path(cfg.out)
    trackers, failed = Trackers(cfg), True

    def tell(record: dict[str, Any]) -> None:
        trackers.round(record)
        if on_round:
            on_round(record)

    try:
        check_method(cfg)
        check_tracking(cfg)
        check_clients(cfg)
        if here(cfg) and not cfg.ray.address:
            check_memory(cfg, lambda: map(load, files(client_files(cfg))))
        if cfg.attack.name != "none":
            from fedgraph_flwr.evaluation import attacks

            attacks.check(cfg)
        for remark in remarks(cfg):
            log(WARNING, remark)
        data = fingerprint_of_data(cfg)
        check_resume(cfg, data)
        with owned(out):
            recorder = Recorder(cfg, tell, data)
            if cfg.at_once:
                recorder.extra["stacked"] = getattr(grid, "stack", 0)
            if cfg.ray.aggregate:
                recorder.extra["aggregated"] = "actors"
            trackers.begin(recorder.run_name)
            known = meaning(cfg) if here(cfg) else {}
            recorder.extra |= {"classes": known["classes"]} if known else {}
            strategy = locate(cfg.strategy.server)(cfg, recorder)
            strategy.start(grid)
            names = [str(number) for number in range(strategy.agreed("num_classes"))]
            plain = {
                "classes": names,
                "num_features": strategy.agreed("num_features"),
                "schema": {},
                "undirected": False,
            }
            write_bytes(out / MEANING, json.dumps(plain | known, indent=1).encode())
            studies = {}
            if cfg.attack.name != "none":
                studies["attack"] = attacks.attack(cfg, recorder.final_arrays)
            if cfg.adversary.backdoor:
                studies["adversary"] = adversaries.success(cfg, recorder.final_arrays)
            if studies:
                recorder.extra |= studies
                recorder.finish()  # once more: a failing study loses no result
            if note := below_chance(recorder.summary, cfg.evaluation.headline):
                log(WARNING, note)
            trackers.finish(recorder.summary, out)
            failed = False
    except InUse:  # the folder is another's
        raise
    except (FedGraphError, OSError) as error:  # whoever started the run may sit in another process
        told = error if isinstance(error, FedGraphError) else RunFailed(f"the run could not go on: {first_line(error)}")
        with contextlib.suppress(FedGraphError):
            write_bytes(out / FAILURE, json.dumps({"error": str(told), "exit_code": told.exit_code}).encode())
        raise told from error
    finally:
        trackers.close(failed)
    return recorder.summary


def below_chance(summary: Mapping[str, Any], metric: str) -> str:
    """A warning that the headline lies below its chance level; empty where it does not, or where one of them is unknown."""
    score, level = headline_score(summary), float(summary["chance"])
    if not score < level:
        return ""
    return (
        f"{summary['headline']} = {score:.4f} lies below its chance level {level:.4f}, that of {chance.predictor(metric)}:"
        " the model has learnt nothing that this metric rewards"
    )


def fingerprint_of_data(cfg: RunConfig) -> list[str] | None:
    """Hashes of the files behind the clients' graphs; None where the clients are elsewhere."""
    return content(cfg) if here(cfg) else None


def check_resume(cfg: RunConfig, data: list[str] | None) -> None:
    """Refuse to go on with a run that this configuration does not fit, before anything is written.

    Raises:
        FedGraphError: one sentence with what differs.
    """
    if cfg.resume:
        check_resumable(cfg, read_checkpoint(Path(cfg.resume)), data)


def with_folder(cfg: RunConfig) -> RunConfig:
    """The configuration with its result folder named, as an absolute path."""
    if not cfg.out:
        cfg = resolved(cfg) if cfg.graph and here(cfg) else cfg  # for the dataset's name
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{cfg.strategy.name}-{cfg.dataset.name}-{cfg.seed}"
        cfg = dataclasses.replace(cfg, out=cfg.resume or str(_unused(Path("runs") / name)))
    return dataclasses.replace(cfg, out=str(Path(cfg.out).absolute()))


def _unused(folder: Path) -> Path:
    """The folder, with a number behind its name where there is one of this name already."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], others) if not path.exists())


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
