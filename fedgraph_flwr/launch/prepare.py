"""Preparation of a run: name its folder, resolve its configuration, and reject invalid runs before anything starts.

Each process of a run prepares it once: the launcher, and the server if that is another process.
"""

import dataclasses
import time
from dataclasses import dataclass
from itertools import chain, count
from logging import WARNING
from pathlib import Path
from typing import Any

from fedgraph_flwr import models
from fedgraph_flwr.config import ModelConfig, RunConfig
from fedgraph_flwr.data.graph import read_header
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.metrics import own_metric
from fedgraph_flwr.launch.checks import check_clients, check_memory, check_method
from fedgraph_flwr.logs import log
from fedgraph_flwr.partition import client_files, content, files, load, resolved
from fedgraph_flwr.store.checkpoint import check_resumable, read_checkpoint
from fedgraph_flwr.store.earlier import headline_model, keeps_models
from fedgraph_flwr.store.folder import InUse
from fedgraph_flwr.store.results import SUMMARY
from fedgraph_flwr.tasks import kind_of
from fedgraph_flwr.tracking import check as check_tracking


@dataclass(frozen=True)
class Prepared:
    """Run that passed every check.

    Attributes:
        cfg: the configuration, with its folder named and the number of clients resolved.
        data: hashes of the files behind the clients' graphs; None on a fleet.
    """

    cfg: RunConfig
    data: list[str] | None


Runnable = RunConfig | Prepared


def prepare(run: Runnable) -> Prepared:
    """Check a run; an already prepared one is returned unchanged.

    Raises:
        FedGraphError: a key, value, method, model, tracker, attack or checkpoint does not fit this
            run.
    """
    if isinstance(run, Prepared):
        return run
    cfg = with_folder(run)
    if cfg.parties and not cfg.on_fleet:
        raise FedGraphError(
            f"parties= chooses nodes of a fleet, and engine={cfg.engine} is none: leave it out"
        )
    check_unused(cfg)
    check_method(cfg)
    for target in () if cfg.on_fleet else cfg.evaluation.own.values():
        own_metric(target)
    check_tracking(cfg)
    if not cfg.on_fleet:
        cfg = resolved(cfg)
    check_clients(cfg)
    if note := unread_edge_features(cfg):
        log(WARNING, "%s", note)
    if not cfg.on_fleet and not cfg.ray.address:
        check_memory(cfg, lambda: map(load, files(client_files(cfg))))
    if cfg.attack.name != "none":
        from fedgraph_flwr.evaluation import attacks

        attacks.check(cfg)
    data = None if cfg.on_fleet else content(cfg)
    check_resume(cfg, data)
    return Prepared(cfg, data)


def unread_edge_features(cfg: RunConfig) -> str:
    """Return a warning if the clients' edges have features that the model does not read; "" otherwise."""
    network = models.network(cfg.model)
    # a task may read the columns of edges beside a model that reads none
    by_task = network.capabilities.row_wise and kind_of(cfg).capabilities.reads_edges
    by_task |= bool(cfg.strategy.params.get("edge_columns"))
    if cfg.on_fleet or network.capabilities.reads_edges or by_task:
        return ""
    shapes, values = read_header(files(client_files(cfg))[0])
    summed = values.get("own_columns", {}).get("edges", 0)  # columns whose totals nodes have
    if not (count := shapes.get("edge_attr", (0, 0))[1] - summed):
        return ""
    readers = [
        name for name in models.MODELS if models.network(ModelConfig(name)).capabilities.reads_edges
    ]
    return (
        f"model={cfg.model.name} does not read the {count} features of each edge: parallel edges count as weights. Models"
        f" that read them: {', '.join(readers)}"
    )


def check_resume(cfg: RunConfig, data: list[str] | None) -> None:
    """Check that this configuration can resume the run, before anything is written.

    Raises:
        FedGraphError: it cannot; the message has the differences.
    """
    if cfg.resume:
        check_resumable(cfg, read_checkpoint(Path(cfg.resume)), data)


def check_unused(cfg: RunConfig) -> None:
    """Refuse to replace a finished run without ``overwrite``.

    Raises:
        InUse: the folder holds a finished run, or the one that this run reads; nothing is written
            there.
    """
    for key, run in (("evaluate", cfg.evaluate), ("init", "" if cfg.resume else cfg.init)):
        if not run:
            continue
        if Path(run).resolve() == Path(cfg.out).resolve():
            raise InUse(f"{key}={run} reads the folder that out= would replace: pass another out=")
        path = headline_model(Path(run), key)  # refuses a folder without a finished run
        if key == "init" and keeps_models(path):
            what = f"its server kept parameters of each client, the state of strategy={cfg.strategy.name}"
            fix = "start from a run of another strategy, or train from the beginning"
            raise FedGraphError(f"init={run}: {what}: {fix}")
    if not cfg.resume and not cfg.overwrite and (Path(cfg.out) / SUMMARY).is_file():
        what = f"out={cfg.out} holds a finished run, whose model and report would be lost"
        raise InUse(f"{what}: pass another out=, or overwrite=true to replace it")


def with_folder(cfg: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths of folders, as a fleet's server and later commands run in other folders."""
    if not cfg.out:
        cfg = resolved(cfg) if cfg.graph and not cfg.on_fleet else cfg  # for the dataset's name
        data = cfg.engine if cfg.on_fleet else cfg.dataset.name
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{cfg.strategy.name}-{data}-{cfg.seed}"
        cfg = dataclasses.replace(cfg, out=cfg.resume or str(_unused(Path("runs") / name)))
    keys = ("out", "resume", "evaluate", "init", *(["graph"] if not cfg.on_fleet else []))
    given = {key: getattr(cfg, key) for key in keys}
    paths: dict[str, Any] = {
        key: str(Path(path).expanduser().absolute()) for key, path in given.items() if path
    }
    return dataclasses.replace(cfg, **paths)


def _unused(folder: Path) -> Path:
    """Return the folder, with a number appended if it exists."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], others) if not path.exists())
