"""What a summation offers a run, and what it needs of the run's server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods import weighting
from fedgraph_flwr.methods.uplink import ARRAYS, Groups, Reducer
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.reducing import Weights, averaged
from fedgraph_flwr.strategies.round import Outcome
from fedgraph_flwr.wire.messages import METRICS, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ReplySchema
from fedgraph_flwr.wire.trees import Tree


class Replies(Protocol):
    """The replies to one exchange, in client order."""

    @property
    def replies(self) -> list[Reply]:
        """The single replies."""

    def __iter__(self) -> Iterator[Reply]: ...


class SchemaOfReplies(Protocol):
    """The reader of a server's replies."""

    def schema(self, phase: str, client: int | None) -> ReplySchema:
        """Return what a method declares for a phase."""


class Federation(Protocol):
    """What a summation asks of the server: `fedgraph_flwr.strategies.base.GraphStrategy`."""

    cfg: RunConfig
    uplink_of: dict[str, Groups]
    clients: dict[int, ClientInfo]
    arrays: Arrays
    models: dict[int, Arrays]
    recorder: Recorder

    @property
    def grid(self) -> Any:
        """Joins the server with its nodes."""

    @property
    def reader(self) -> SchemaOfReplies:
        """The reader of replies."""

    @property
    def buffers(self) -> set[str]:
        """Names of shared tensors that no gradient trains."""

    @property
    def server_round(self) -> int:
        """The current round; 0 during the set-up."""

    @property
    def failed(self) -> Mapping[int, str]:
        """Clients that failed in this round, with the reason."""

    def request(
        self, phase: str, groups: Any = None, clients: Iterable[int] | None = None
    ) -> Replies:
        """Send a phase to clients and return the valid replies."""

    def drop(self, clients: Iterable[int]) -> None:
        """Remove clients from this round."""

    def weights(self, clients: list[int]) -> list[float]:
        """Return aggregation weights by ``strategy.weighting``."""

    def counts(self, key: str, clients: list[int]) -> list[float]:
        """Return a number from the clients' descriptions."""


PARTS = frozenset({"account", "divisor", "inner", "protection", "server", "store"})
"""Members of a summation that are chosen once per run."""


class Summation:
    """Means and sums of what clients send. The defaults are those of a run without protection.

    A method may ask how clients count (`counted`, `sizes`, `items`, `share`, `weights_of`). The
    other members are for the framework. No member can be added or replaced.

    Args:
        server: the run's server.
    """

    __slots__ = ("server",)

    protection = ""
    """The key that protects single values, with its value; empty: none does."""

    def __init__(self, server: Federation):
        self.server = server

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what changes between exchanges; the parts of a summation are chosen once.

        Raises:
            FedGraphError: it is a part, which a method replaces.
        """
        if name in PARTS and hasattr(self, name):
            protection = self.protection or "no protection"
            raise FedGraphError(
                f"a method replaces '{name}' of the sums of a run with {protection}: define Mean"
                " and Sum in uplink, whose sums the run protects"
            )
        super().__setattr__(name, value)

    @property
    def hidden(self) -> Set[str]:
        """Numbers that clients do not report, since differential privacy hides them."""
        private = self.server.cfg.privacy.dp != "none"
        return frozenset({"num_train"}) if private else frozenset()

    # --- who takes part ---------------------------------------------------------------------------

    def check_places(self) -> None:
        """Check that clients are numbered from 0, if rounds draw among ``range(num_clients)``.

        Raises:
            FedGraphError: names a client with another number.
        """
        expected = self.server.cfg.num_clients
        last = max(self.server.clients)
        if self.protection and last >= expected:
            raise FedGraphError(
                f"{self.protection} draws among clients 0 to {expected - 1}, but a node is client"
                f" {last}: number the graph files from 0, or raise num_clients"
            )

    def places(self, server_round: int, present: Sequence[int]) -> Sequence[int]:
        """Return the clients among which a round draws, whether or not they are there.

        Args:
            server_round: the round; 0: for purposes other than training.
            present: the clients that are there.
        """
        return present

    def cohort_size(self, server_round: int) -> int:
        """Return the number of places that a round draws."""
        places = self.places(server_round, sorted(self.server.clients))
        return self.server.cfg.strategy.cohort_size(len(places))

    def min_clients(self, requested: int) -> int:
        """Return the fewest of the requested clients with which a sum can start."""
        return 0

    # --- one exchange -----------------------------------------------------------------------------

    def begin(self, phase: str, clients: list[int]) -> dict[int, dict[str, Any]] | None:
        """Prepare a sum over the replies of clients to a phase.

        Returns:
            The members of the sum, with further groups that each receives; None: all, without any.
        """
        return None

    def shared_groups(self, phase: str) -> Mapping[str, Arrays]:
        """Return further groups that all clients receive with the request of a phase."""
        return {}

    def sending(self, phase: str) -> None:
        """Note that the requests of a phase are about to be sent."""

    def received(self, phase: str, outcome: Outcome) -> None:
        """Note the outcome of an exchange, before it is recorded."""

    def own_schema(self, phase: str) -> ReplySchema | None:
        """Return the schema of the summation's own exchanges; None for those of a method."""
        return None

    def schema(self, phase: str, wanted: ReplySchema) -> ReplySchema:
        """Return the schema of what arrives, from what the method declares."""
        return wanted

    def readable(self, phase: str, reply: Reply) -> Reply:
        """Return the part of a reply that can be checked before its sum is known."""
        return reply

    def verify(self, phase: str, reply: Reply) -> None:
        """Refuse a reply that breaks the rules of the summation.

        Raises:
            FedGraphError: names the client.
        """

    # --- the result -------------------------------------------------------------------------------

    def reveal(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
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
        if not self.protection:
            return reply
        declared = self.server.uplink_of.get(phase, {}).get(METRICS)
        fields = declared.fields if declared else None
        names = set(fields) if isinstance(fields, Mapping) else set[str]()
        numbers = {name: value for name, value in reply.metrics.items() if name in names}
        return Reply(reply.client, reply.groups, numbers)

    def late_mean(
        self, values: list[Arrays], weights: Weights, origin: Arrays | None, clients: list[int]
    ) -> Arrays:
        """Return a mean by weights that the method computes from other uploads.

        Args:
            values: arrays per client.
            weights: weights per client.
            origin: start of the updates that the values are; None: the shared parameters.
            clients: the clients.
        """
        start = self.server.arrays if origin is None else origin
        return averaged(values, weights, start, self.server.cfg.strategy)

    def scores(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Return the scores that may be recorded, from the clients' scores and their means."""
        return scores

    # --- how clients count ------------------------------------------------------------------------

    def weights(self, clients: list[int]) -> list[float]:
        """Return the weights that `GraphStrategy.weights` documents."""
        rules = self.server.cfg.strategy
        return weighting.by_rule(rules, bool(self.hidden), self.server.counts, clients)

    def weights_of(self, reducer: Reducer, clients: list[int]) -> list[float]:
        """Return unnormalised weights in a declared mean or sum, known before the exchange."""
        server = self.server
        everyone = sorted(self.server.clients)
        private = bool(self.hidden)
        return weighting.in_reducer(
            reducer, clients, server.weights, private, server.counts, everyone
        )

    def counted(self, sampled: list[int], replied: list[int]) -> list[int]:
        """Return the clients by which a mean divides: those that replied."""
        return replied

    def sizes(self, key: str, clients: list[int]) -> list[float]:
        """Return a number of the clients' descriptions; 1 for each where it is private."""
        return self.server.counts(key, clients)

    def items(self, clients: list[int]) -> float:
        """Return the number of training items of clients; a public number where it is private.

        Raises:
            RunFailed: no client has a training node.
        """
        total = sum(self.server.counts("num_train", clients))
        if not total:
            raise RunFailed(
                f"round {self.server.server_round}: none of the clients that replied has a training"
                " node: raise strategy.fraction"
            )
        return total

    def share(self, clients: list[int]) -> float:
        """Return the weight of clients among all clients, at most 1.

        ``strategy.max_share`` caps the weights over all clients.
        """
        everyone = sorted(self.server.clients)
        weights = dict(zip(everyone, self.server.weights(everyone), strict=True))
        return sum(weights[client] for client in clients) / (sum(weights.values()) or 1.0)

    # --- the budget, and what a checkpoint keeps --------------------------------------------------

    def allows_round(self, pending: bool, releases: int) -> bool:
        """Return whether the privacy budget covers one more round.

        Args:
            pending: whether the previous round still has to be scored.
            releases: number of exchanges of the round that release something.
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


def origin_of(server: Federation, reducer: Reducer, like: Arrays) -> Arrays:
    """Return the start of a group's updates: the shared parameters, or 0."""
    from_model = getattr(reducer, "origin", "") == ARRAYS
    return (
        server.arrays
        if from_model
        else {name: np.zeros_like(array) for name, array in like.items()}
    )
