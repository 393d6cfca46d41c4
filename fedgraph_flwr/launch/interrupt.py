"""Handling of Ctrl-C during a run."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def after_the_round() -> Iterator[None]:
    """On the first Ctrl-C, finish the round and write a checkpoint; on the second, stop immediately."""
    from fedgraph_flwr.strategies.loop import STOP

    def on_signal(signum: int, frame: Any) -> None:
        if STOP.requested or not STOP.enabled:
            raise KeyboardInterrupt
        STOP.requested = True
        print(
            "\nFinishing this round and saving a checkpoint; press Ctrl-C again to stop now",
            file=sys.stderr,
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
