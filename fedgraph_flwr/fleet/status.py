"""State of a run on a fleet's server, in its folder: the file ``status.json``, for operators and monitors."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedgraph_flwr.data.graph import write_bytes

STATUS = "status.json"


class RunStatus:
    """Writer of a run's ``status.json``.

    Args:
        folder: the run's folder.
        run_id: Flower's number of the run.
    """

    def __init__(self, folder: Path, run_id: int):
        self.path = folder / STATUS
        self.values: dict[str, Any] = {"run_id": str(run_id), "state": "running", "started": time.time()}

    def write(self, **values: Any) -> None:
        """Store values, besides those before."""
        self.values |= {**values, "updated": time.time()}
        write_bytes(self.path, json.dumps(self.values).encode())


class WatchedGrid(Grid):
    """Grid that notes in a run's status what is exchanged.

    Args:
        grid: sends the messages.
        status: the run's status; first written by the first call, when this run owns the folder.
    """

    def __init__(self, grid: Grid, status: RunStatus):
        self.grid, self.status, self.begun = grid, status, False
        self.blocks = bool(getattr(grid, "blocks", False))

    def set_run(self, run: Run) -> None:
        """See Flower's grid."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """See Flower's grid."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """See Flower's grid."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """See Flower's grid."""
        if not self.begun:
            self.begun = True
            self.status.write()
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See Flower's grid."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See Flower's grid."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """See Flower's grid."""
        return self.grid.send_and_receive(messages, timeout=timeout)
