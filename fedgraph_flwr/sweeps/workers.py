"""Parallel runs in child processes, which end with this process; a crash affects only its run."""

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from fedgraph_flwr.sweeps.rows import DIED
from fedgraph_flwr.sweeps.runs import Keep
from fedgraph_flwr.sweeps.spec import Cell

OnShare = Callable[[Cell, float], None]
"""Callback for progress within a run: its cell, and the share of its rounds that are done."""

_SPAWN = multiprocessing.get_context("spawn")
_GRACE = 10.0
"""Seconds until a stopped run is killed."""


def rows(
    waiting: deque[Cell], processes: int, keep: Keep | None = None, on_share: OnShare = lambda cell, share: None
) -> Generator[tuple[Cell, dict[str, Any]], None, None]:
    """Run the waiting cells and yield each with its row; the caller may add cells between yields.

    Args:
        waiting: queue of cells to run.
        processes: number of parallel processes; 0: run in this process.
        keep: see `fedgraph_flwr.sweeps.runs.run_cell`.
        on_share: called with a cell when it starts, then, with processes, with the share of its rounds that are done.
    """
    if not processes:
        from fedgraph_flwr.sweeps import runs

        while waiting:
            cell = waiting.popleft()
            on_share(cell, 0.0)
            yield cell, runs.run_cell(cell, keep)
        return
    pool: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in pool):
            while waiting and (worker := _idle(pool, processes, keep)):
                worker.take(cell := waiting.popleft())
                on_share(cell, 0.0)
            ready = wait([worker.pipe for worker in pool if worker.cell])
            ended = [(worker, worker.cell) for worker in pool if worker.cell and worker.pipe in ready]
            for worker, cell in ended:
                row = worker.give(cell)
                if isinstance(row, float):
                    on_share(cell, row)
                    continue
                worker.cell = None
                yield cell, row
                if not worker.process.is_alive():
                    pool.remove(worker)
    finally:
        for worker in pool:
            worker.process.terminate()
        for worker in pool:
            worker.process.join(_GRACE)
            worker.process.kill()


def _idle(pool: "list[_Worker]", processes: int, keep: Keep | None) -> "_Worker | None":
    """Return a worker without a cell, a new one if there may be more; None if all are busy."""
    if idle := next((worker for worker in pool if not worker.cell), None):
        return idle
    if len(pool) >= processes:
        return None
    pool.append(_Worker(keep))
    return pool[-1]


class _Worker:
    """A child process and its current cell."""

    def __init__(self, keep: Keep | None):
        self.pipe, theirs = _SPAWN.Pipe()
        self.cell: Cell | None = None
        self.process = _SPAWN.Process(target=_serve, args=(theirs, keep), daemon=False)
        with _one_thread():
            self.process.start()
        theirs.close()

    def take(self, cell: Cell) -> None:
        """Start a cell."""
        self.cell = cell
        with contextlib.suppress(OSError):  # it has died: `give` reports it
            self.pipe.send(cell)

    def give(self, cell: Cell) -> dict[str, Any] | float:
        """Return the finished share of a running cell, or the row of a finished one, also if its process died."""
        try:
            row: dict[str, Any] | float = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_GRACE)
            code = self.process.exitcode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            if code == -signal.SIGKILL:
                how += ", probably out of memory: pass fewer --jobs"
            row = {**cell.row, "value": math.nan, "headline": f"{DIED}its process ended by {how}"}
        return row


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit numerical libraries of new processes to one thread; torch's threads follow ``threads=``."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _serve(pipe: Connection, keep: Keep | None) -> None:
    """Main loop of a worker: receive a cell, send its row."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep's main process handles Ctrl-C
    signal.signal(signal.SIGTERM, _as_interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name in ("flwr", "fedgraph_flwr"):
        logging.getLogger(name).addFilter(_Once())
    from fedgraph_flwr.sweeps.runs import run_cell

    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            pipe.send(run_cell(pipe.recv(), keep, pipe.send))


class _Once(logging.Filter):
    """Log filter that passes each message once, because many runs log the same."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
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
