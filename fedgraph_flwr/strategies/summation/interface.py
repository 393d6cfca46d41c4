"""What a summation offers a run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer, Sum
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.round import Outcome
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.wire.messages import METRICS, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ReplySchema
from fedgraph_flwr.wire.trees import Tree

PARTS = frozenset({"account", "grid", "inner", "schemas", "server", "store"})
"""Members of a summation that are chosen once per run."""


class Summation:
    """Means and sums of what clients send. The defaults are those of a run without protection.

    No member can be added or replaced.

    Args:
        server: the run's server.
        inner: a summation that it contains, whose exchanges these are; None: there is none.
    """

    __slots__ = ("inner", "server")

    def __init__(self, server: GraphStrategy, inner: "Summation | None" = None):
        self.server = server
        self.inner = inner

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what changes between exchanges; the parts of a summation are chosen once.

        Raises:
            FedGraphError: it is a part, which a method replaces.
        """
        if name in PARTS and hasattr(self, name):
            protection = self.server.counting.protection.key or "no protection"
            raise FedGraphError(
                f"a method replaces '{name}' of the sums of a run with {protection}: define Mean"
                " and Sum in uplink, whose sums the run protects"
            )
        super().__setattr__(name, value)

    def check_places(self) -> None:
        """Check that clients are numbered from 0, if rounds draw among ``range(num_clients)``.

        Raises:
            FedGraphError: names a client with another number.
        """
        expected = self.server.cfg.num_clients
        last = max(self.server.clients)
        protection = self.server.counting.protection.key
        if protection and last >= expected:
            raise FedGraphError(
                f"{protection} draws among clients 0 to {expected - 1}, but a node is client"
                f" {last}: number the graph files from 0, or raise num_clients"
            )

    def min_clients(self, requested: int) -> int:
        """Return the fewest of the requested clients with which a sum can start."""
        return self.inner.min_clients(requested) if self.inner else 0

    # --- one exchange -----------------------------------------------------------------------------

    def begin(self, phase: str, clients: list[int]) -> dict[int, dict[str, Any]] | None:
        """Prepare a sum over the replies of clients to a phase.

        Returns:
            The members of the sum, with further groups that each receives; None: all, without any.
        """
        return self.inner.begin(phase, clients) if self.inner else None

    def shared_groups(self, phase: str) -> Mapping[str, Arrays]:
        """Return further groups that all clients receive with the request of a phase."""
        return self.inner.shared_groups(phase) if self.inner else {}

    def sending(self, phase: str) -> None:
        """Note that the requests of a phase are about to be sent."""
        if self.inner:
            self.inner.sending(phase)

    def received(self, phase: str, outcome: Outcome) -> None:
        """Note the outcome of an exchange, before it is recorded."""
        if self.inner:
            self.inner.received(phase, outcome)

    def schema(self, phase: str, declared: Callable[[], ReplySchema]) -> ReplySchema:
        """Return the schema of what arrives.

        Args:
            phase: name of the phase, which may be of the summation's own exchanges.
            declared: returns what the method declares of a phase.
        """
        return self.inner.schema(phase, declared) if self.inner else declared()

    def readable(self, phase: str, reply: Reply) -> Reply:
        """Return the part of a reply that can be checked before its sum is known."""
        return self.inner.readable(phase, reply) if self.inner else reply

    def verify(self, phase: str, reply: Reply) -> None:
        """Refuse a reply that breaks the rules of the summation.

        Raises:
            FedGraphError: names the client.
        """

    # --- the result -------------------------------------------------------------------------------

    def open_sums(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the mean or sum of each group that a phase declares as one.

        Args:
            phase: name of the phase.
            replies: the valid replies, in client order; at least one.
        """
        raise NotImplementedError

    def shown(self, phase: str, reply: Reply) -> Reply:
        """Return what a method sees of a single reply, whose summed groups were removed.

        Under protection these are the groups and numbers that its uplink declares, and no others.
        """
        if not self.server.counting.protection.key:
            return reply
        declared = self.server.uplink_of.get(phase, {}).get(METRICS)
        fields = declared.fields if declared else None
        names = set(fields) if isinstance(fields, Mapping) else set[str]()
        numbers = {name: value for name, value in reply.metrics.items() if name in names}
        return Reply(reply.client, reply.groups, numbers)

    def certified(self, arrays: Arrays) -> Arrays:
        """Return the shared parameters after a round, or the set-up, on which all members agree."""
        return self.inner.certified(arrays) if self.inner else arrays

    def sets_up(self) -> bool:
        """Return whether the run makes its set-up."""
        return self.inner.sets_up() if self.inner else True

    def closed(self) -> None:
        """Let members know on what they agreed last."""
        if self.inner:
            self.inner.closed()

    def scores(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Return the scores that may be recorded, from the clients' scores and their means."""
        return scores

    # --- the budget, and what a checkpoint keeps --------------------------------------------------

    def allows_round(self, pending: bool, ahead: Iterable[int]) -> bool:
        """Return whether the privacy budget covers one more round.

        Args:
            pending: whether the previous round still has to be scored.
            ahead: number of exchanges of the round that release something.
        """
        return True

    def spent(self) -> dict[str, Any]:
        """Return the record of the privacy budget; empty without one."""
        return {}

    def save(self, ahead: Iterable[int]) -> Tree:
        """Return the part of a checkpoint that belongs to the summation.

        Args:
            ahead: releases in each round before the next checkpoint.
        """
        return {}

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned, from a checkpoint's tree."""

    def forget(self, server_round: int) -> None:
        """Delete what a checkpoint of this round covers."""
        if self.inner:
            self.inner.forget(server_round)


def origin_of(server: Server, reducer: Reducer, like: Arrays) -> Arrays:
    """Return the start of a group's updates: the shared parameters, or 0."""
    from_model = getattr(reducer, "origin", "") == ARRAYS
    return (
        server.arrays
        if from_model
        else {name: np.zeros_like(array) for name, array in like.items()}
    )


def divisor_of(reducer: Reducer, factors: Mapping[int, float], clients: int) -> float:
    """Return the divisor of a clipped sum: as many clients of mean weight; 1 for a sum.

    Args:
        reducer: the declaration.
        factors: weight of each client of the run, relative to the largest.
        clients: number of clients for which the exchange is meant.
    """
    if isinstance(reducer, Sum):
        return 1.0
    return clients * sum(factors.values()) / len(factors)
