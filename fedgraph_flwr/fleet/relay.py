"""Grid in front of Flower's: the base of those that change, or record, what passes."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class Relay(Grid):
    """Grid that hands everything on; a subclass overrides its part.

    Args:
        grid: sends the messages.
    """

    def __init__(self, grid: Grid):
        self.grid = grid

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
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See Flower's grid."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See Flower's grid."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not offered: a run pushes messages, and pulls their replies."""
        raise NotImplementedError
