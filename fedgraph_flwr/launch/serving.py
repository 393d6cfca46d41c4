"""Server side of a run: the strategy on a grid of any engine."""

import contextlib
import json
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.payment_names import payment_names
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line
from fedgraph_flwr.evaluation import adversaries, chance
from fedgraph_flwr.launch.checks import startup_notes
from fedgraph_flwr.launch.prepare import Prepared, Runnable, check_unused, prepare, with_folder
from fedgraph_flwr.logs import log
from fedgraph_flwr.partition import input_spec, parties
from fedgraph_flwr.store.events import OnRound
from fedgraph_flwr.store.folder import INPUT_SPEC, InUse, owned
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.store.results import FAILURE, headline_score
from fedgraph_flwr.strategies.loop import Loop
from fedgraph_flwr.tasks import kind_of
from fedgraph_flwr.tracking import Trackers


def serve(grid: Grid, run: Runnable, on_round: OnRound | None = None) -> dict[str, Any]:
    """Run the strategy on a grid and return the summary."""
    cfg = run.cfg if isinstance(run, Prepared) else with_folder(run)
    out = Path(cfg.out)
    trackers = Trackers(cfg)
    failed = True

    def tell(record: dict[str, Any]) -> None:
        trackers.round(record)
        if on_round:
            on_round(record)

    try:
        prepared = run if isinstance(run, Prepared) else prepare(cfg)
        cfg = prepared.cfg
        data = prepared.data
        for line in startup_notes(cfg):
            log(WARNING, line)
        with owned(out):
            check_unused(cfg)  # again: another run may have finished there while this one prepared
            recorder = Recorder(cfg, tell if cfg.tracking else on_round, data)
            if cfg.at_once:
                recorder.extra["stacked"] = getattr(grid, "stack", 0)
            if cfg.ray.aggregate:
                recorder.extra["aggregated"] = "actors"
            trackers.begin(recorder.run_name)
            known = input_spec(cfg) if not cfg.on_fleet else {}
            named = not cfg.on_fleet and not cfg.graph and kind_of(cfg).capabilities.classes
            built_in = payment_names(cfg.dataset).classes if named else ()
            if known or built_in:
                recorder.extra["classes"] = known["classes"] if known else list(built_in)
            recorder.extra |= (
                {"parties": names} if not cfg.on_fleet and (names := parties(cfg)) else {}
            )
            strategy = locate(cfg.strategy.server)(cfg)
            Loop(strategy, grid, recorder).run()
            names = [str(number) for number in range(strategy.described.size("num_classes"))]
            plain = {
                "classes": list(built_in) if len(built_in) == len(names) else names,
                "num_features": strategy.described.size("num_features"),
                "schema": {},
                "undirected": False,
                "fingerprint": list(
                    next(iter(strategy.clients.values())).description.get("schema", [0])
                ),
            }
            write_bytes(out / INPUT_SPEC, json.dumps(plain | known, indent=1).encode())
            studies = {}
            if cfg.attack.name != "none":
                from fedgraph_flwr.evaluation import attacks

                studies["attack"] = attacks.attack(cfg, recorder.final_arrays)
            if cfg.adversary.backdoor:
                studies["adversary"] = adversaries.success(cfg, recorder.final_arrays)
            if studies:
                recorder.extra |= studies
                recorder.finish()  # repeated, so that a failing study loses no result
            if note := below_chance(recorder.summary, cfg.evaluation.headline):
                log(WARNING, note)
            trackers.finish(recorder.summary, out)
            failed = False
    except InUse:  # the folder belongs to another process
        raise
    except (FedGraphError, OSError) as error:  # the launcher may be another process
        failure = (
            error
            if isinstance(error, FedGraphError)
            else RunFailed(f"the run failed: {first_line(error)}")
        )
        if named := getattr(grid, "named", None):  # a fleet, whose parties have names
            failure.args = (named(str(failure)),)
        with contextlib.suppress(FedGraphError), owned(out):  # another run may write there
            write_bytes(
                out / FAILURE,
                json.dumps({"error": str(failure), "exit_code": failure.exit_code}).encode(),
            )
        raise failure from error
    finally:
        trackers.close(failed)
    return recorder.summary


def below_chance(summary: Mapping[str, Any], metric: str) -> str:
    """Return a warning if the headline score is worse than its chance level; empty otherwise or if one is unknown."""
    score = headline_score(summary)
    level = float(summary["chance"])
    sign = chance.sign_of(metric)
    if not sign * score < sign * level:
        return ""
    side = "below" if sign > 0 else "above"
    return (
        f"{summary['headline']} = {score:.4f} is {side} its chance level {level:.4f} ({chance.predictor(metric)}):"
        " by this metric, the model has learnt nothing"
    )
