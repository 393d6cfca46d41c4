"""Phases of a client: the methods that reply to a request of the same name."""

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, TypeVar

from fedgraph_flwr.errors import FedGraphError, sanitize, unknown
from fedgraph_flwr.methods.labels import LABELS
from fedgraph_flwr.methods.uplink import Exchanges, Once, Uplink, sums
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


def messages_of(kind: type, uplink: Uplink, around: Collection[str]) -> dict[str, int]:
    """Return the most messages per round that a client accepts of each phase.

    They follow from the uplink. The exchanges around a secure sum come once for each sum.

    Args:
        kind: class of the client, whose `repeats` has phases that come more often than the uplink says.
        uplink: the client's uplink.
        around: the exchanges around a sum of the run's protection.
    """
    times = {phase: groups.times for phase, groups in uplink.items() if isinstance(groups, Exchanges)}
    counts: dict[str, int] = {**REPEATS, **times, **getattr(kind, "repeats", {})}
    summed = {phase for phase, groups in uplink.items() if phase == TRAIN or sums(groups)}
    before = {phase for phase in summed if isinstance(uplink[phase], Once)}
    of_sums = max(sum(counts.get(phase, 1) for phase in part) for part in (before, summed - before))
    limits = {phase: counts.get(phase, 1) for phase in (DESCRIBE, LABELS, TRAIN, EVALUATE, *phases(kind))}
    return limits | dict.fromkeys(around, of_sums)


def unknown_phase(client: Any, name: str) -> FedGraphError:
    """Return the error of a request for a phase that a client does not serve."""
    return unknown("phase", sanitize(name, 60), [*client.messages], f"requested from {type(client).__name__}")
