"""A sweep from what it asks for to its table: runs what is missing, row by row, and writes what there is."""

import contextlib
import dataclasses
import io
import math
import os
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps import workers
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import COUNTED, Row, append, number, write
from fedgraph_flwr.sweeps.spec import Cell, Sweep
from fedgraph_flwr.sweeps.summary import SweepSummary
from fedgraph_flwr.sweeps.table import MADE, markdown

Told = Callable[[Cell, Row, int, float | None], None]
"""Called with each run that ended: its cell and row, how many are still to be made, and how long those take, if that is known."""


@dataclass(frozen=True)
class How:
    """How runs are made: processes side by side (0: in this one), which of them, and where their folders stay."""

    jobs: int
    only: str = ""
    keep: Path | None = None


def default_jobs(configs: Sequence[RunConfig]) -> int:
    """Runs side by side that use each core once: one, where a run's engine takes all cores itself."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if any(cfg.engine != "inline" for cfg in configs):
        return 1
    return max(1, cores // max((cfg.threads for cfg in configs), default=1))


def execute(book: ResultsIndex, how: How, told: Told) -> None:
    """Run what is missing; each row is on disk as soon as its run has ended. The caller is `alone` with the file."""
    path = book.sweep.results
    waiting = deque(book.missing(how.only))
    seen = {cell.identity for cell in waiting}
    write(path, book.kept())
    with contextlib.closing(workers.rows(waiting, how.jobs, how.keep)) as ended:
        left = len(waiting)
        for cell, row in ended:
            append(path, book.add(cell, row))
            if book.sweep.search:
                more = [new for new in book.missing(how.only) if new.identity not in seen]
                seen |= {new.identity for new in more}
                waiting.extend(more)
                left += len(more)
            left -= 1
            seconds = book.seconds(waiting)
            told(cell, row, left, None if seconds is None else seconds / max(how.jobs, 1))


def probe(cells: Sequence[Cell], configs: Sequence[RunConfig]) -> float | None:
    """Seconds that cells take one after another, by two rounds of the first that trains; None where these fail."""
    running = [cell for cell in cells if cell.method not in COUNTED]
    if not running:
        return None
    cell = dataclasses.replace(running[0], words=(*running[0].words, "rounds=2"))
    [(_, row)] = workers.rows(deque([cell]), 1)
    each, rounds = number(row, "seconds_per_round"), statistics.mean(cfg.rounds for cfg in configs)
    return None if math.isnan(each) else len(running) * (number(row, "seconds") + each * (rounds - 2))


def present(book: ResultsIndex) -> SweepSummary:
    """Write table and plot of what there is; returns what it adds up to.

    Raises:
        FedGraphError: a file of another's lies where the table is to go.
    """
    tally, path = SweepSummary(book.sweep, book.found), book.sweep.results.with_suffix(".md")
    check_free(book.sweep)
    write_bytes(path, markdown(tally).encode())
    if book.sweep.figure and tally.values:
        from fedgraph_flwr.sweeps.plot import draw

        picture = io.BytesIO()
        draw(tally).savefig(picture, format="png", dpi=130)
        write_bytes(path.with_suffix(".png"), picture.getvalue())
    return tally


def check_free(sweep: Sweep) -> None:
    """Refuse to write a table over what somebody else wrote.

    Raises:
        FedGraphError: there is such a file.
    """
    path = sweep.results.with_suffix(".md")
    if path.is_file() and MADE not in path.read_text(errors="replace"):
        raise FedGraphError(f"{path} is no table of a sweep: move it, rename the sweep's file, or give another --out")
