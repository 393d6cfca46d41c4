"""Stages of a run whose training differs from round to round."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """What a round's training is.

    Attributes:
        name: for the client, whose training may differ by it; empty for a method that has one stage.
        down: whether clients are sent the shared parameters; else they go on with their own.
        up: whether they answer with theirs; else the server's stay as they are.
    """

    name: str = ""
    down: bool = True
    up: bool = True

    def config(self) -> dict[str, Any]:
        """What a message tells of it; nothing of the ordinary stage."""
        return ({"stage": self.name} if self.name else {}) | ({} if self.up else {"keep_model": True})
