"""Phases of a client: the methods that reply to a request of the same name."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from fedgraph_flwr.errors import sanitize, unknown
from fedgraph_flwr.methods.labels import LABELS
from fedgraph_flwr.secure.secagg import PUBLISH, STEPS
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, TRAIN, Arrays

ReplyContent = tuple[dict[str, Arrays], dict[str, Any]]
"""Groups of named arrays, and numbers: the reply of a phase."""

REPEATS = {DESCRIBE: 16, EVALUATE: 4}
"""Most messages of a phase per round: servers lose track of nodes; models are scored before, after and without training."""

PhaseMethod = TypeVar("PhaseMethod", bound=Callable[..., ReplyContent])


def phase(method: PhaseMethod) -> PhaseMethod:
    """Mark a client method as the reply to the phase of the same name: ``(groups, config) -> (groups, numbers)``."""
    method.is_phase = True  # type: ignore[attr-defined]
    return method


@cache
def phases(kind: type) -> tuple[str, ...]:
    """Return the names of a class's own phases."""
    return tuple(name for name in dir(kind) if getattr(getattr(kind, name), "is_phase", False))


def messages_of(kind: type, name: str) -> int:
    """Return the most messages of a phase that a client of this class accepts per round.

    Raises:
        FedGraphError: no such phase.
    """
    if name not in (known := [DESCRIBE, LABELS, TRAIN, EVALUATE, *STEPS, *phases(kind)]):
        raise unknown("phase", sanitize(name, 60), known, f"requested from {kind.__name__}")
    counts = {**REPEATS, **getattr(kind, "repeats", {})}
    return int(counts.get(PUBLISH if name in STEPS else name, 1))
