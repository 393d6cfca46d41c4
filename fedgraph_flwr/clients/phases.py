"""Phases of a client: the methods that reply to a request of the same name."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, Arrays

Answer = tuple[dict[str, Arrays], dict[str, Any]]
"""Groups of named arrays, and numbers: the reply of a phase."""

REPEATS = {DESCRIBE: 16, EVALUATE: 4}
"""Messages of a phase per round: servers lose track of nodes; models are scored before, after and without training."""

PhaseMethod = TypeVar("PhaseMethod", bound=Callable[..., Answer])


def phase(method: PhaseMethod) -> PhaseMethod:
    """Mark a client method as the reply to the phase of the same name: ``(groups, config) -> (groups, numbers)``."""
    method.is_phase = True  # type: ignore[attr-defined]
    return method


@cache
def phases(kind: type) -> tuple[str, ...]:
    """The names of a class's own phases."""
    return tuple(name for name in dir(kind) if getattr(getattr(kind, name), "is_phase", False))
