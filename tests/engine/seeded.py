"""Clients whose noise is seeded, so that two engines give the same sums; they travel with the app to the nodes of a fleet."""

import time
from typing import Any

import numpy as np

from fedgraph_flwr.clients.base import GraphClient, ReplyContent
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.wire.messages import Arrays


class Seeded(GraphClient):
    """FedAvg's client, whose noise under ``privacy.dp=distributed`` follows from its index and the round."""

    def reply(self, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply to one message."""
        assert self.member.noise is not None
        self.member.noise.generator = np.random.default_rng([self.graph.client, self.server_round])
        return super().reply(name, groups, config)


class SeededScaffold(Seeded):
    """The same, by the name of the test of ``strategy.variates=scaffold``."""


class SeededFalling(Seeded):
    """Client 1 leaves round 2 when it is to train: on a fleet it waits to be killed, else it gives an error."""

    def train(self) -> float:
        """Falls, or trains."""
        if (self.server_round, self.graph.client) == (2, 1):
            if not self.policy.trusting:
                time.sleep(3600)
            raise RunFailed("the power is out")
        return super().train()
