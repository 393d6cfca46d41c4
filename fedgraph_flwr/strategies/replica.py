"""The server's half of a run at its nodes, which make each round for themselves (`fedgraph_flwr.secure.verified`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import Refusal
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.replay import MissingRequest, Opened, prepared, replayed_round
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.verified import (
    Verified,
    next_state,
    state_of,
    take_state,
)
from fedgraph_flwr.wire.messages import MODEL, TRAIN, Arrays, Reply, from_record

Values = tuple[str, dict[str, Arrays]]
"""A phase, and what was opened of it: means and sums by group."""


@dataclass(frozen=True)
class Wanted:
    """The request to a client whose sum comes next.

    Attributes:
        phase: its phase.
        groups: its groups of arrays.
        scalars: its further scalars.
    """

    phase: str
    groups: dict[str, Arrays]
    scalars: dict[str, Any]


class Replica:
    """The server's half of a run at one of its nodes.

    A state is what `state_of` returns: shared parameters and memory, by path.

    Args:
        cfg: the run's configuration.
        descriptions: of all members.
        starts: shared parameters with which the run may begin; None, or no list: those of its seed.
    """

    def __init__(
        self,
        cfg: RunConfig,
        descriptions: Mapping[int, Mapping[str, Any]],
        starts: Sequence[Arrays | None] = (),
    ):
        self.cfg, self.starts = cfg, starts
        self.clients = {c: ClientInfo(c, c, dict(text)) for c, text in descriptions.items()}
        self.members = tuple(sorted(self.clients))
        self.strategy: Any = None

    def follow(
        self, server_round: int, before: Arrays | None, sums: Sequence[Values], client: int
    ) -> Wanted | list[Arrays]:
        """Return the request that comes next in a round to a client, or the states with which the round may end.

        Args:
            server_round: the round; 0: the set-up.
            before: the state before it; None: none is known, in the set-up.
            sums: what was opened in the round, in order.
            client: the client.
        """
        members = self.members
        replies = [Reply(one) for one in members]
        opened = [Opened(phase, Reduced(replies, means), members) for phase, means in sums]
        if before is not None and self.strategy is None:
            self.strategy = prepared(self.cfg, self.clients, ())
        try:
            return self._ends(server_round, before, opened)
        except MissingRequest as request:
            given: Any = request.groups
            if given and all(isinstance(key, int) for key in given):
                given = given.get(client, {})
            groups = {
                name: from_record(group) if isinstance(group, ArrayRecord) else dict(group)
                for name, group in given.items()
            }
            if request.phase == TRAIN:
                groups[MODEL] = self.strategy.arrays
            if weights := self.strategy.class_weights:
                groups[CLASS_WEIGHTS] = weights
            earlier = sum(phase == request.phase for phase, _ in sums)
            return Wanted(request.phase, groups, {**request.config, "exchange": earlier})

    def _ends(
        self, server_round: int, before: Arrays | None, opened: list[Opened]
    ) -> list[Arrays]:
        if before is not None:
            strategy = self.strategy
            start = take_state(strategy, before, strategy.arrays)
            strategy.adopt(start)
            strategy.round = Round(server_round - 1)
            if strategy.finished:
                raise Refusal(
                    f"the server requests round {server_round}, and strategy={self.cfg.strategy.name} has nothing more to train"
                )
            after = replayed_round(strategy, server_round, self.members, opened)
            return [next_state(strategy, after, start)]
        states = []
        for first in self.starts or (None,):
            self.strategy = prepared(self.cfg, self.clients, opened, first)
            self.strategy.set_up()
            states.append(state_of(self.strategy, self.strategy.arrays))
        return states

    def opened(
        self, phase: str, sizes: Mapping[int, np.ndarray], total: dict[str, Arrays]
    ) -> Values:
        """Return what the sum over all members opens of the request that `follow` returned last.

        Args:
            phase: its phase.
            sizes: the members' sizes, by which they count.
            total: Σ p_i x_i by group.
        """
        strategy, members = self.strategy, list(self.members)
        account = Privacy(replace(self.cfg, init="")) if strategy.counting.private else None
        summed = Verified(strategy, Schemas(strategy), account)
        summed.weigh(phase, members, sizes)
        return phase, summed.values(total, members)
