"""Flower's entry point on the server."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from logging import INFO, WARNING, LogRecord
from math import nan
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation.best_round import coverage, trained
from fedgraph_flwr.fleet.run_folders import RUNS, run_folder
from fedgraph_flwr.logs import log, logger

FLEET = "fleet"
"""Name of the connection of runs that `flwr run` started: that which `fedgraph-flwr server` writes."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Compose the configuration and run it on the grid."""
    from fedgraph_flwr.config import from_run_config
    from fedgraph_flwr.fleet import flower_patches
    from fedgraph_flwr.fleet.audit_chain import operator_of
    from fedgraph_flwr.fleet.packing import PackingGrid
    from fedgraph_flwr.fleet.status import RunStatus, WatchedGrid, read_status
    from fedgraph_flwr.launch.prepare import with_folder
    from fedgraph_flwr.launch.serving import serve
    from fedgraph_flwr.store.folder import InUse, owned

    cfg = from_run_config(context.run_config)
    if type(grid).__name__ != "HttpGrid":  # a simulation
        cfg = with_folder(cfg)
        _log_end(serve(grid, cfg, _log_round), cfg)
        return
    # `flwr run` names no connection in the configuration, but the nodes have their own graphs
    cfg = with_folder(cfg if cfg.on_fleet else dataclasses.replace(cfg, engine=FLEET))
    if runs := os.environ.get(RUNS):
        cfg = in_folder_of_runs(cfg, Path(runs))
    who = operator_of(Path(cfg.out).parent, context.run_id, "start")
    status = RunStatus(Path(cfg.out), context.run_id, strategy=cfg.strategy.name, rounds=cfg.rounds, operator=who)
    if cfg.resume:
        status.add_up(read_status(Path(cfg.resume)))

    def name_parties(line: LogRecord) -> bool:
        line.msg, line.args = status.named(line.getMessage()), ()
        return True

    logger.addFilter(name_parties)

    def on_round(record: dict[str, Any]) -> None:
        status.took_round(record)
        _log_round(record)

    limit_pull: Callable[[float], None] | None = None
    if not flower_patches.unmodified(lambda text: log(WARNING, text)):
        limit_pull = flower_patches.quicken_pulls
        limit_pull(cfg.strategy.timeout)
        grid = PackingGrid(grid)
    try:
        summary = serve(WatchedGrid(grid, status, limit_pull, cfg.parties), cfg, on_round)
    except InUse:  # the folder belongs to another run
        raise
    except FedGraphError as error:
        with contextlib.suppress(FedGraphError), owned(Path(cfg.out)):  # another run may write there
            status.write(state="failed", reason=str(error))
        raise
    status.write(state="finished", phase="", waiting=[], seconds_left=0.0)
    _log_end(summary, cfg)


def in_folder_of_runs(cfg: RunConfig, runs: Path) -> RunConfig:
    """Return the configuration with run folders of the server instead of those of the operator's machine, of the same names.

    Raises:
        FedGraphError: a name begins with a dot.
        InUse: the folder has a run, perhaps of another operator, that has not finished or has another configuration.
    """
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.config.schema import DATA
    from fedgraph_flwr.store.checkpoint import flat_keys
    from fedgraph_flwr.store.folder import CHECKPOINT, InUse
    from fedgraph_flwr.store.results import CONFIG, SUMMARY

    paths = {key: getattr(cfg, key) for key in ("out", "resume", "evaluate", "init")}
    places: dict[str, Any] = {key: str(run_folder(runs, Path(path).name)) for key, path in paths.items() if path}
    cfg = dataclasses.replace(cfg, **places)
    out = Path(cfg.out)
    stopped = (out / CHECKPOINT).is_file() and not (out / SUMMARY).is_file()
    if stopped and not cfg.resume and not cfg.overwrite:
        what = f"the server's folder {out.name} has a run that can be resumed, perhaps of another operator"
        raise InUse(f"{what}: pass another out=, resume= to continue it, or overwrite=true to replace it")
    if cfg.overwrite and not cfg.resume and (out / CONFIG).is_file():
        before, now = flat_keys(compose([], out / CONFIG)), flat_keys(cfg)
        free = {"out", "overwrite", "resume", "tracking", "tracking_clients", "tracking_group", *DATA}
        differ = [key for key in sorted(now) if key.partition(".")[0] not in free and before.get(key) != now[key]]
        if differ:
            had = f"{differ[0]}={before.get(differ[0])}"
            what = f"the server's folder {out.name} has a run with {had}, perhaps of another operator"
            fix = "overwrite=true replaces a run by its repetition; pass another out=, or remove it on the server"
            raise InUse(f"{what}, and this one has {now[differ[0]]}: {fix}")
    return cfg


def _log_end(summary: dict[str, Any], cfg: RunConfig) -> None:
    """Log test scores, cost, failures and the run folder."""
    from fedgraph_flwr.report.runs import score_table
    from fedgraph_flwr.report.units import duration, size
    from fedgraph_flwr.secure.accounting import spent_text
    from fedgraph_flwr.store.results import headline_score

    if "last" in summary["metrics"]:
        for key, values in score_table(summary, cfg).items():
            scores = ", ".join(f"{value:.4f} ({when})" for when, value in values.items())
            log(INFO, "%s: %s", key.replace("_", " "), scores)
        over = f", over {who}" if (who := coverage(summary)) else ""
        headline = summary["headline"], headline_score(summary), summary.get("chance", nan)
        log(INFO, "headline: %s = %.4f (chance level %.4f)%s", *headline, over)
    cost = f"{size(summary['bytes_up'])} from clients, {size(summary['bytes_down'])} to them"
    log(INFO, "%d rounds in %s, %s", summary["rounds"], duration(summary["total_seconds"]), cost)
    if "privacy" in summary:
        log(INFO, "%s", spent_text(summary["privacy"], cfg.privacy.scores))
    for who, reason in summary["failures"].items():
        log(WARNING, "failed: client %s: %s", sanitize(who), sanitize(reason, 1000))
    log(INFO, "results: %s; for a report, run: fedgraph-flwr report %s", cfg.out, cfg.out)


def _log_round(record: dict[str, Any]) -> None:
    metrics = record.get("metrics", {})
    scores = [f"{key} {metrics[key]:.4f}" for key in ("val_accuracy", "test_accuracy") if key in metrics]
    scores += [f"scored by {who}"] if (who := coverage(record)) else []
    sizes = record["round"], trained(record), len(record["cohort"]), record["seconds"]
    log(INFO, "round %d: %d of %d clients replied, %.2f s, %s", *sizes, ", ".join(scores))
