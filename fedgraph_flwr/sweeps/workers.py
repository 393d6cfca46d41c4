"""Runs side by side, each in a process of its own that a dead run takes along, and that does not outlive this one."""

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedgraph_flwr.sweeps.rows import DIED
from fedgraph_flwr.sweeps.spec import Cell

_SPAWN = multiprocessing.get_context("spawn")
_GRACE = 10.0
"""Seconds that a run has to end what it has started."""


def rows(
    waiting: deque[Cell], processes: int, keep: Path | None = None
) -> Generator[tuple[Cell, dict[str, Any]], None, None]:
    """Run what waits; cells with their rows as they end, between which the caller may let more wait.

    Args:
        waiting: what is to be run, first come first served.
        processes: how many at a time; 0: one, in this process.
        keep: see `fedgraph_flwr.sweeps.runs.run_cell`.
    """
    if not processes:
        from fedgraph_flwr.sweeps import runs

        while waiting:
            cell = waiting.popleft()
            yield cell, runs.run_cell(cell, keep)
        return
    pool: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in pool):
            while waiting and (len(pool) < processes or any(not worker.cell for worker in pool)):
                worker = next((worker for worker in pool if not worker.cell), None)
                if not worker:
                    pool.append(worker := _Worker(keep))
                worker.take(waiting.popleft())
            ready = wait([worker.pipe for worker in pool if worker.cell])
            ended = [(worker, worker.cell) for worker in pool if worker.cell and worker.pipe in ready]
            for worker, cell in ended:
                worker.cell = None
                yield cell, worker.give(cell)
                if not worker.process.is_alive():
                    pool.remove(worker)
    finally:
        for worker in pool:
            worker.process.terminate()
        for worker in pool:
            worker.process.join(_GRACE)
            worker.process.kill()


class _Worker:
    """A process and what it is at."""

    def __init__(self, keep: Path | None):
        self.pipe, theirs = _SPAWN.Pipe()
        self.cell: Cell | None = None
        self.process = _SPAWN.Process(target=_serve, args=(theirs, keep), daemon=False)
        with _one_thread():
            self.process.start()
        theirs.close()

    def take(self, cell: Cell) -> None:
        """Begin with a cell."""
        self.cell = cell
        with contextlib.suppress(OSError):  # it has died: `give` tells
            self.pipe.send(cell)

    def give(self, cell: Cell) -> dict[str, Any]:
        """The row of the cell that has ended, with its process perhaps."""
        try:
            row: dict[str, Any] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_GRACE)
            code = self.process.exitcode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            if code == -signal.SIGKILL:
                how += ", as of a system that runs out of memory (fewer --jobs)"
            row = {**cell.row, "value": math.nan, "headline": f"{DIED}its process ended by {how}"}
        return row


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start here use one thread in numerical libraries; Torch's follow ``threads=``."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _serve(pipe: Connection, keep: Path | None) -> None:
    """A worker's life: a cell in, a row out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the sweep's own process ends the others
    signal.signal(signal.SIGTERM, _as_interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.getLogger("flwr").addFilter(_Once())
    from fedgraph_flwr.sweeps.runs import run_cell

    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            pipe.send(run_cell(pipe.recv(), keep))


class _Once(logging.Filter):
    """Lets each sentence through once: a hundred runs warn of the same."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is new."""
        text, before = record.getMessage(), len(self.seen)
        self.seen.add(text)
        return len(self.seen) > before


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _as_interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt
