"""Clients whose noise is seeded, so that two engines give the same sums; they travel with the app to the nodes of a fleet."""

from typing import Any

import numpy as np

from fedgraph_flwr.clients.base import GraphClient


class Seeded(GraphClient):
    """FedAvg's client, whose noise under ``privacy.dp=distributed`` follows from its index and the round."""

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Train, and seed the noise of the reply."""
        assert self.protection.noise is not None
        self.protection.noise.generator = np.random.default_rng([self.graph.client, self.server_round])
        return super().fit(parameters, config)


class SeededScaffold(Seeded):
    """The same, by the name of the test of ``strategy.variates=scaffold``."""
