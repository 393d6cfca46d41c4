"""What Ctrl-C does to a run of this process."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def after_the_round() -> Iterator[None]:
    """The first Ctrl-C lets a run in this process finish its round and write a checkpoint; the second one ends it at once."""
    from fedgraph_flwr.strategies.loop import STOP

    def asked(signum: int, frame: Any) -> None:
        if STOP.requested or not STOP.enabled:
            raise KeyboardInterrupt
        STOP.requested = True
        print("\nfinishing this round, to go on from it later; Ctrl-C again ends at once", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
