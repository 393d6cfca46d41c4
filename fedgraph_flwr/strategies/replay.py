"""A method's rounds without grid and recorder, from what was opened of its requests.

The server's half of a method is a function of the configuration, of its memory and of opened sums,
so that whoever has them computes the same bits.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, Message

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import Exchange
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import GroupsFor, Round
from fedgraph_flwr.strategies.summation.plain import late_mean
from fedgraph_flwr.wire.messages import TRAIN, Arrays
from fedgraph_flwr.wire.trees import flatten, unflatten


@dataclass(frozen=True)
class Opened:
    """What was opened of one request.

    Attributes:
        phase: name of the phase.
        result: the reduced replies.
        cohort: the clients that take part in the round afterwards.
    """

    phase: str
    result: Reduced
    cohort: tuple[int, ...]


@dataclass
class MissingRequest(Exception):
    """The next request of a method, of which nothing was opened yet.

    Attributes:
        phase: name of the phase.
        clients: the receivers.
        groups: groups of arrays, for all clients or by client.
        config: further scalars.
    """

    phase: str
    clients: list[int]
    groups: GroupsFor
    config: Mapping[str, Any]


class Replay(Exchange):
    """Opened requests, in the order in which the method makes them.

    Args:
        strategy: the method's rounds.
        opened: what was opened.
    """

    __slots__ = ("_left", "_strategy")

    def __init__(self, strategy: GraphStrategy, opened: Iterable[Opened]):
        self._strategy = strategy
        self.restart(opened)

    def restart(self, opened: Iterable[Opened]) -> None:
        """Take what was opened since the start of the set-up or of a round."""
        self._left = deque(opened)

    def request(
        self, phase: str, clients: list[int], groups: GroupsFor, config: Mapping[str, Any]
    ) -> Reduced:
        """Return the next opened result.

        Raises:
            MissingRequest: there is none.
            FedGraphError: it belongs to another phase.
        """
        if not self._left:
            raise MissingRequest(phase, clients, groups, config)
        entry = self._left.popleft()
        if entry.phase != phase:
            raise FedGraphError(
                f"{self._strategy.cfg.strategy.name} requests '{phase}', but what was opened next belongs to"
                f" '{entry.phase}': pass the requests of a round in their order"
            )
        out = set(self._strategy.cohort) - set(entry.cohort)
        self._strategy.drop(out)
        result = entry.result
        rule = partial(late_mean, self._strategy)
        return Reduced(list(result.replies), result.groups, result.late, rule, phase)

    def messages(
        self,
        phase: str,
        clients: list[int],
        groups: GroupsFor,
        scalars: Mapping[str, Any],
        model: ArrayRecord | None = None,
    ) -> list[Message]:
        """Return no messages: a replay sends nothing."""
        return []


def prepared(
    cfg: RunConfig,
    clients: Mapping[int, ClientInfo],
    opened: Iterable[Opened],
    start: Arrays | None = None,
) -> GraphStrategy:
    """Return a strategy before its set-up.

    Args:
        cfg: the run's configuration.
        clients: the clients' descriptions.
        opened: what was opened in the set-up.
        start: the shared parameters with which the run begins; None: those of its seed.
    """
    strategy: GraphStrategy = locate(cfg.strategy.server)(cfg)
    strategy.bind(clients)
    strategy.connect(Replay(strategy, opened))
    strategy.adopt(start or strategy.initial_arrays())
    return strategy


def replayed_round(
    strategy: GraphStrategy, server_round: int, cohort: Sequence[int], opened: Iterable[Opened]
) -> Arrays:
    """Make one round, and return its shared parameters. If a request is missing, the state is that before the round.

    Args:
        strategy: after its set-up, or an earlier round.
        server_round: number of the round.
        cohort: the clients that the round samples.
        opened: what was opened in the round; the last is of ``train``.

    Raises:
        MissingRequest: names the first request that was not opened yet.
    """
    arrays, models = strategy.arrays, deepcopy(strategy.models)
    memory = deepcopy(unflatten(flatten(strategy.save())))
    exchange = strategy.exchange
    assert isinstance(exchange, Replay)
    exchange.restart(opened)
    strategy.round = Round(server_round, list(cohort), tuple(cohort))
    try:
        groups = strategy.groups_to_train()
        strategy.round = replace(strategy.round, sent=groups)
        up = strategy.stage().up
        trained = exchange.request(TRAIN, strategy.cohort, groups, {}) if up else Reduced([])
        after = strategy.next_arrays(trained)
    except MissingRequest:
        strategy.adopt(arrays, models)
        strategy.load(memory)
        raise
    strategy.adopt(after)
    return after
