"""AdaFGL (Li et al., ICDE 2024, arXiv:2401.11750), server side: FedAvg first, then local training only.

    rounds 1..R      FedAvg: θ is the knowledge extractor                                                       stage 1
    once             the server sends θ to each client; the reply is empty
    rounds R + 1..   clients train their own branches (`fedgraph_baselines.clients.adafgl`)                          stage 2

In stage 2 messages contain scores and numbers of nodes, no arrays. R is ``extractor_rounds``. A client that was unreachable when
θ was sent receives it in the next round it takes part in. Parts that the configuration adds act in stage 1 only.
Leaves a client: what FedAvg sends, only in stage 1.
"""

import numpy as np

from fedgraph_baselines.methods import adafgl
from fedgraph_baselines.methods.adafgl import EXTRACTOR, STAGE
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.round import Stage
from fedgraph_flwr.wire.messages import Arrays


class AdaFGL(GraphStrategy, method=adafgl):
    """FedAvg for R rounds, then no aggregation; `memory` records which clients have the extractor."""

    @property
    def holds(self) -> np.ndarray:
        """Mask of the clients that have the extractor, in ascending order [M]."""
        return self.memory.setdefault("holds", np.zeros(len(self.clients), bool))

    def stage(self) -> Stage:
        """Return FedAvg's stage, then a stage without model transfer; at the change θ is sent once more to be scored."""
        if self.server_round <= self.params.extractor_rounds:
            return Stage()
        return Stage(STAGE, down=not self.holds.any(), up=False)

    def before_train(self, arrays: Arrays) -> Groups:
        """Send θ once to all clients, and later to those that were unreachable."""
        if self.server_round > self.params.extractor_rounds:
            due = self.cohort if self.holds.any() else sorted(self.clients)
            if missing := [client for client in due if not self.holds[self.places[client]]]:
                for reply in self.request(EXTRACTOR, {EXTRACTOR: arrays}, missing):
                    self.holds[self.places[reply.client]] = True
            self.drop(client for client in self.cohort if not self.holds[self.places[client]])
        return {}
