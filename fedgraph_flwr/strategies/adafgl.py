"""AdaFGL (Li et al., ICDE 2024, arXiv:2401.11750), server side: FedAvg for a while, then every client for itself.

    rounds 1..R      FedAvg: θ is the knowledge extractor                                                       stage 1
    once             θ to each client, which answers with nothing
    rounds R + 1..   clients train networks of their own (`fedgraph_flwr.clients.adafgl`)                       stage 2

In stage 2 no array travels: what remains of a message are scores and numbers of nodes. R is ``extractor_rounds``. A client that
could not be reached when θ was handed out is asked again in the first round it takes part in. Leaves a client: what FedAvg
sends, in stage 1 alone.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.methods import adafgl
from fedgraph_flwr.methods.adafgl import EXTRACTOR, STAGE, Params
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.loop import Stage
from fedgraph_flwr.wire.messages import Arrays


class AdaFGL(GraphStrategy):
    """FedAvg that ends; `memory` knows who holds the extractor."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(adafgl.uplink)

    @property
    def holds(self) -> np.ndarray:
        """Which clients, ascending, have the extractor, [M]."""
        return self.memory.setdefault("holds", np.zeros(len(self.clients), bool))

    def stage(self) -> Stage:
        """FedAvg's, or none of which a model travels; between them θ may still be scored."""
        if self.server_round <= self.params.extractor_rounds:
            return Stage()
        return Stage(STAGE, down=not self.holds.any(), up=False)

    def before_train(self, arrays: Arrays) -> Groups:
        """Hand out θ, once: to all, and later to those who were not reached."""
        if self.server_round > self.params.extractor_rounds:
            due = self.cohort if self.holds.any() else sorted(self.clients)
            if lacking := [client for client in due if not self.holds[self.places[client]]]:
                for reply in self.request(EXTRACTOR, {EXTRACTOR: arrays}, lacking):
                    self.holds[self.places[reply.client]] = True
            self.drop(client for client in self.cohort if not self.holds[self.places[client]])
        return {}
