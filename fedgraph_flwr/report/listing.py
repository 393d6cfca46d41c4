"""List of run folders: their settings, state and score, as values, and as a page with links."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from fedgraph_flwr.config.config_file import dotted_keys, parse_yaml
from fedgraph_flwr.config.method_names import method_name
from fedgraph_flwr.config.schema import UNKNOWN_DATA
from fedgraph_flwr.errors import MALFORMED, FedGraphError, unknown
from fedgraph_flwr.evaluation.chance import metric_of
from fedgraph_flwr.report.headline import headline_text, score_text
from fedgraph_flwr.report.page import Page, number, render, table
from fedgraph_flwr.report.units import duration
from fedgraph_flwr.store.results import (
    CONFIG,
    FAILURE,
    ROUNDS,
    SUMMARY,
    as_number,
    headline_score,
    read_rounds,
    read_summary,
)

STATES = ("finished", "unfinished", "stopped", "failed")
"""States of runs."""

Listed = dict[str, Any]
"""One run: ``run`` (its folder), method, data, seed, state, rounds, score, ``config`` (its keys, dotted)."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAMED = ("strategy", "dataset", "partition", "model", "task")
"""Groups that a filter may name without ``.name``."""


def listed(folder: Path, filters: Mapping[str, str] | None = None) -> list[Listed]:
    """List the runs in a folder and in its subfolders, such as those of kept sweeps, newest last.

    Args:
        folder: the folder.
        filters: key → value of the runs to list: a dotted key of the configuration, or ``state``.

    Raises:
        FedGraphError: the folder does not exist, no run has a filter's key, or there is no such state.
    """
    if not folder.is_dir():
        raise FedGraphError(f"{folder} does not exist: pass the folder that holds your runs, such as runs")
    candidates = [_read(path.parent) for deep in ("*", "*/*") for path in folder.glob(f"{deep}/{CONFIG}")]
    runs = sorted((run for run in candidates if run), key=lambda run: str(run["ended"]))
    for given, value in (filters or {}).items():
        if given == "state" and value not in STATES:
            raise unknown("state", value, STATES)
        key = f"{given}.name" if given in _NAMED else given
        known = {"state"}.union(*(run["config"] for run in runs))
        if runs and key not in known:
            raise unknown("key", given, known)
        runs = [run for run in runs if str(run["state"] if key == "state" else run["config"].get(key)) == value]
    return runs


def _read(folder: Path) -> Listed | None:
    """Return one run; None if its files cannot be read as a run's."""
    try:
        keys = dict(dotted_keys(parse_yaml((folder / CONFIG).read_text(), _LOADER)))
        records = read_rounds(folder / ROUNDS)
        summary = read_summary(folder) if (folder / SUMMARY).is_file() else {}
        failure = dict(json.loads((folder / FAILURE).read_bytes())) if (folder / FAILURE).is_file() else {}
        reason = str(failure.get("error", ""))
        ended = "stopped" if failure.get("state") == "stopped" else "failed"
    except (OSError, *MALFORMED, yaml.YAMLError, FedGraphError):
        return None
    last = next(folder / name for name in (SUMMARY, FAILURE, ROUNDS, CONFIG) if (folder / name).is_file())
    return {
        "run": str(folder),
        "strategy": keys.get("strategy.name"),
        "dataset": keys.get("dataset.name", UNKNOWN_DATA),
        "seed": keys.get("seed"),
        "state": "finished" if summary else ended if reason else "unfinished",
        "reason": reason,
        "round": records[-1].get("round", 0) if records else 0,
        "rounds": keys.get("rounds"),
        "headline": summary.get("headline", ""),
        "score": headline_score(summary),
        "seconds": summary.get("total_seconds"),
        "ended": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.stat().st_mtime)),
        "config": keys,
    }


def write_listing(folder: Path, out: Path) -> Path:
    """Write a page that lists the runs of a folder, with links to their reports, and return its path."""
    runs = listed(folder)
    page = Page(f"Runs in {folder.name or folder}")
    counts = {state: sum(run["state"] == state for run in runs) for state in STATES}
    text = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    lead = render("lead", text=f"{text}. A name links to the run's report, if it has one, else to its folder.")
    page.heading(lead)
    rows = [_row(run, out.parent) for run in reversed(runs)]
    page.section("runs", "Runs", "", [table(list(_COLUMNS), rows, stacked=True)])
    return page.write(out)


_COLUMNS = ("run", "method", "data", "seed", "state", "score", "score is", "time", "ended")


def _row(run: Listed, base: Path) -> Sequence[Any]:
    folder = Path(run["run"])
    target = folder / "report.html" if (folder / "report.html").is_file() else folder
    with contextlib.suppress(ValueError):
        target = target.absolute().relative_to(base.absolute())
    name: Markup = render("link", to=str(target), text=folder.name)
    done = f"round {run['round']} of {run['rounds']}"
    return [
        name,
        method_name(str(run["strategy"])),
        str(run["dataset"]),
        (str(run["seed"]), run["seed"]),
        run["state"] if run["state"] == "finished" else f"{run['state']}, {done}",
        number(partial(score_text, metric=metric_of(run["headline"])), run["score"]),
        headline_text(run["headline"]) if run["headline"] else "–",
        number(duration, as_number(run["seconds"])),
        run["ended"],
    ]
