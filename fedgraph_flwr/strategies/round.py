"""A round of a run, as a value: who takes part, what is due, what is sent and lost; and the outcome of one exchange."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fedgraph_flwr.wire.messages import Reply

Groups = Mapping[str, Any]
"""Groups that travel: name → named arrays, or a record of them."""

GroupsFor = Groups | Mapping[int, Groups]
"""The same groups for all clients, or groups by client index."""


class Kind(StrEnum):
    """Kind of a failure, as monitors count it."""

    NO_REPLY = "no_reply"
    DECLINED = "refused"
    """The node refuses the request."""
    INVALID = "invalid"
    """The server excludes the reply."""
    ERROR = "error"


@dataclass
class Outcome:
    """Result of one exchange.

    Attributes:
        replies: the valid replies, in client order.
        failures: for each other client (or node, if its client index is not known yet), why it has
            none.
        kinds: the kind of each failure.
        silent: failed clients whose node did not respond at all, and may be gone.
        down: bytes sent.
        groups: bytes received, by group of the uplink.
        seconds: time from the first message to the last reply.
    """

    replies: list[Reply] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, Kind] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    down: int = 0
    groups: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def fail(self, who: int, reason: str, kind: Kind) -> None:
        """Note why a client has no valid reply."""
        self.failures[who] = reason
        self.kinds[who] = kind
        if kind is Kind.NO_REPLY:
            self.silent.add(who)


@dataclass(frozen=True)
class Stage:
    """The training of one round, in a run whose rounds differ.

    Attributes:
        name: name of the stage, on which the client's training may depend; empty for a method with
            one stage.
        down: whether clients receive the shared parameters; else they continue with their own.
        up: whether clients reply with their parameters. Else the server's stay unchanged and the
            configured parts send nothing, so clients train without their parts.
    """

    name: str = ""
    down: bool = True
    up: bool = True


@dataclass(frozen=True)
class Round:
    """One round. The loop makes a new one for each; what is decided during a round makes a changed copy.

    Failures and exchanges are noted in place, since every copy of a round has them.

    Attributes:
        number: number of the round; 0 during the set-up.
        drawn: the clients that were drawn, ascending.
        cohort: those that still take part, ascending; the same in all phases.
        judges: the clients that score a model in a separate exchange.
        sent: groups that travel with the model.
        scores_due: whether the training replies also score the model that was sent.
        checkpoint_due: whether the round ends with a checkpoint.
        failed: clients that failed in this round, with the reason.
        silent: failed clients whose node did not respond at all.
        exchanges: number of exchanges, by phase.
        involved: clients that received more than the request for their description.
    """

    number: int = 0
    cohort: list[int] = field(default_factory=list)
    drawn: tuple[int, ...] = ()
    judges: list[int] = field(default_factory=list)
    sent: GroupsFor = field(default_factory=dict)
    scores_due: bool = False
    checkpoint_due: bool = False
    failed: dict[int, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    exchanges: Counter[str] = field(default_factory=Counter)
    involved: set[int] = field(default_factory=set)

    def without(self, clients: Iterable[int]) -> "Round":
        """Return a copy whose cohort has none of these clients."""
        out = set(clients)
        return replace(self, cohort=[client for client in self.cohort if client not in out])

    def without_failures(self) -> "Round":
        """Return a copy that knows no failures."""
        return replace(self, failed={}, silent=set())
