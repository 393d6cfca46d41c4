"""The server's half of a run at its nodes, which make each round for themselves (`fedgraph_flwr.secure.verified`)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.replay import (
    MissingRequest,
    Opened,
    replayed_round,
    replayed_setup,
)
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.verified import Verified, bounded, state_of, take_state
from fedgraph_flwr.wire.messages import MODEL, TRAIN, Arrays, Reply, from_record

Sums = Sequence[tuple[str, dict[str, Arrays]]]
"""Phases, and the means and sums that were opened of each, by group."""


class Replica:
    """The server's half of a run at one of its nodes.

    A state is what `state_of` returns: shared parameters and memory, by path.

    Args:
        cfg: the run's configuration.
        descriptions: of all members.

    Attributes:
        start: the state after the set-up.
    """

    def __init__(self, cfg: RunConfig, descriptions: Mapping[int, Mapping[str, Any]]):
        clients = {c: ClientInfo(c, c, dict(text)) for c, text in descriptions.items()}
        self.members = sorted(clients)
        self.strategy = replayed_setup(cfg, clients, [])
        self.start = state_of(self.strategy, self.strategy.arrays)

    def missing(
        self, state: Arrays, server_round: int, opened: Sums, client: int
    ) -> tuple[str, dict[str, Arrays], dict[str, Any]] | None:
        """Return the next request of a round to a client: phase, groups and scalars; None: nothing is left to request.

        Args:
            state: that before the round.
            server_round: the round.
            opened: what was opened in it.
            client: the client.
        """
        try:
            self.after(state, server_round, opened)
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
            return request.phase, groups, dict(request.config)
        return None

    def after(self, state: Arrays, server_round: int, opened: Sums) -> Arrays:
        """Return the state after a round.

        Raises:
            MissingRequest: names the first request that was not opened yet.
        """
        strategy, members = self._at(state, server_round), tuple(self.members)
        entries = [
            Opened(phase, Reduced([Reply(c) for c in members], deepcopy(groups)), members)
            for phase, groups in opened
        ]
        start = strategy.arrays
        found = replayed_round(strategy, server_round, members, entries)
        return state_of(strategy, bounded(strategy, found, start))

    def opened(
        self,
        state: Arrays,
        server_round: int,
        phase: str,
        sizes: Mapping[int, np.ndarray],
        total: dict[str, Arrays],
    ) -> dict[str, Arrays]:
        """Return means and sums, from the sum of all members' terms.

        Args:
            state: that before the round.
            server_round: the round.
            phase: the phase.
            sizes: the members' sizes, by which they count.
            total: Σ p_i x_i by group.
        """
        strategy = self._at(state, server_round)
        summed = Verified(strategy, Schemas(strategy))
        summed.weigh(phase, self.members, sizes)
        return summed.values(total, self.members)

    def _at(self, state: Arrays, server_round: int) -> Any:
        strategy = self.strategy
        strategy.adopt(take_state(strategy, state, strategy.arrays))
        strategy.round = Round(server_round, self.members, tuple(self.members))
        return strategy
