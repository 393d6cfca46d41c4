"""The server's half of a run at its nodes, which make each round for themselves (`fedgraph_flwr.secure.verified`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.replay import (
    MissingRequest,
    Opened,
    replayed_round,
    replayed_setup,
)
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.verified import (
    Verified,
    next_state,
    state_of,
    take_state,
)
from fedgraph_flwr.wire.messages import MODEL, TRAIN, Arrays, Reply, from_record


class Replica:
    """The server's half of a run at one of its nodes.

    A state is what `state_of` returns: shared parameters and memory, by path.

    Args:
        cfg: the run's configuration.
        descriptions: of all members.
        starts: shared parameters with which the run may begin; none: those of its seed.

    Attributes:
        starts: the state after the set-up for each of them.
    """

    def __init__(
        self,
        cfg: RunConfig,
        descriptions: Mapping[int, Mapping[str, Any]],
        starts: Sequence[Arrays] = (),
    ):
        clients = {c: ClientInfo(c, c, dict(text)) for c, text in descriptions.items()}
        self.members = sorted(clients)
        self.starts = list[Arrays]()
        chosen: Sequence[Arrays | None] = starts or (None,)
        for start in chosen:
            self.strategy = replayed_setup(replace(cfg, init=""), clients, [], start)
            self.starts.append(state_of(self.strategy, self.strategy.arrays))

    def missing(
        self, state: Arrays, server_round: int, client: int
    ) -> tuple[str, dict[str, Arrays], dict[str, Any]]:
        """Return the request of a round to a client, whose sum follows: phase, groups and scalars.

        Args:
            state: that before the round.
            server_round: the round.
            client: the client.
        """
        strategy = self._at(state, server_round)
        try:
            replayed_round(strategy, server_round, self.members, [])
        except MissingRequest as request:
            given: Any = request.groups
            if given and all(isinstance(key, int) for key in given):
                given = given.get(client, {})
            groups = {
                name: from_record(group) if isinstance(group, ArrayRecord) else dict(group)
                for name, group in given.items()
            }
            if request.phase == TRAIN:
                groups[MODEL] = strategy.arrays
            return request.phase, groups, dict(request.config)
        raise AssertionError("a round of a verified run has one sum")

    def after(
        self,
        state: Arrays,
        server_round: int,
        phase: str,
        sizes: Mapping[int, np.ndarray],
        total: dict[str, Arrays],
    ) -> Arrays:
        """Return the state after a round, from the sum of all members' terms.

        Args:
            state: that before the round.
            server_round: the round.
            phase: the phase of the sum.
            sizes: the members' sizes, by which they count.
            total: Σ p_i x_i by group.
        """
        strategy, members = self._at(state, server_round), tuple(self.members)
        account = Privacy(strategy.cfg) if strategy.counting.private else None
        summed = Verified(strategy, Schemas(strategy), account)
        summed.weigh(phase, self.members, sizes)
        means = summed.values(total, self.members)
        start = strategy.arrays
        opened = Opened(phase, Reduced([Reply(c) for c in members], means), members)
        return next_state(
            strategy, replayed_round(strategy, server_round, members, [opened]), start
        )

    def _at(self, state: Arrays, server_round: int) -> Any:
        strategy = self.strategy
        strategy.adopt(take_state(strategy, state, strategy.arrays))
        strategy.round = Round(server_round, self.members, tuple(self.members))
        return strategy
