"""Execute a sweep: run the missing cells, append their rows, write table and plot."""

import contextlib
import dataclasses
import io
import math
import os
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps import workers
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import COUNTED, Row, append, number, write
from fedgraph_flwr.sweeps.runs import Keep
from fedgraph_flwr.sweeps.spec import Cell, Sweep
from fedgraph_flwr.sweeps.summary import SweepSummary
from fedgraph_flwr.sweeps.table import MADE, markdown

OnRow = Callable[[Cell, Row, int, float | None], None]
"""Callback for each finished run: its cell and row, the number of remaining runs, and their estimated seconds, if known."""


@dataclass(frozen=True)
class How:
    """Options of execution: parallel processes (0: in this process), filter, and folder that keeps the run folders."""

    jobs: int
    only: str = ""
    keep: Keep | None = None


def default_jobs(configs: Sequence[RunConfig]) -> int:
    """Return the number of parallel runs that uses each core once; one if a run's engine uses all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if any(cfg.engine != "inline" for cfg in configs):
        return 1
    return max(1, cores // max((cfg.threads for cfg in configs), default=1))


def execute(book: ResultsIndex, how: How, on_row: OnRow, on_share: workers.OnShare = lambda cell, share: None) -> None:
    """Run the missing cells and append each row when its run ends. The caller holds the lock of the file (`alone`)."""
    path = book.sweep.results
    waiting = deque(book.missing(how.only))
    seen = {cell.identity for cell in waiting}
    write(path, book.kept())
    with contextlib.closing(workers.rows(waiting, how.jobs, how.keep, on_share)) as ended:
        left = len(waiting)
        for cell, row in ended:
            append(path, book.add(cell, row))
            if book.sweep.unfolds:
                more = [new for new in book.missing(how.only) if new.identity not in seen]
                seen |= {new.identity for new in more}
                waiting.extend(more)
                left += len(more)
            left -= 1
            seconds = book.seconds(waiting)
            on_row(cell, row, left, None if seconds is None else seconds / max(how.jobs, 1))


def probe(cells: Sequence[Cell], configs: Sequence[RunConfig]) -> float | None:
    """Estimate the seconds of running cells sequentially, from two rounds of the first that trains; None if these fail."""
    running = [cell for cell in cells if cell.method not in COUNTED]
    if not running:
        return None
    cell = dataclasses.replace(running[0], overrides=(*running[0].overrides, "rounds=2"))
    [(_, row)] = workers.rows(deque([cell]), 1)
    pace, rounds = number(row, "seconds_per_round"), statistics.mean(cfg.rounds for cfg in configs)
    return None if math.isnan(pace) else len(running) * (number(row, "seconds") + pace * (rounds - 2))


def present(book: ResultsIndex) -> SweepSummary:
    """Write table and plot of the stored rows, and return their summary.

    Raises:
        FedGraphError: the table's path is a file of another origin.
    """
    tally, path = SweepSummary(book.sweep, book.finished), book.sweep.results.with_suffix(".md")
    check_free(book.sweep)
    write_bytes(path, markdown(tally).encode())
    if isinstance(book.sweep.figure, str) and tally.values:
        from fedgraph_flwr.sweeps.plot import draw

        picture = io.BytesIO()
        draw(tally).savefig(picture, format="png", dpi=130)
        write_bytes(path.with_suffix(".png"), picture.getvalue())
    return tally


def check_free(sweep: Sweep) -> None:
    """Refuse to overwrite a file of another origin with a table.

    Raises:
        FedGraphError: there is such a file.
    """
    path = sweep.results.with_suffix(".md")
    if path.is_file() and MADE not in path.read_text(errors="replace"):
        raise FedGraphError(f"{path} is not a sweep's table: move it, rename the sweep's file, or pass another --out")
