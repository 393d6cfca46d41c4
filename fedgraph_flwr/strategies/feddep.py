"""FedDEP (Zhang et al., 2024, arXiv:2401.04336), server side: clients exchange prototypes of embeddings once.

    rounds 1..R    FedAvg: θ^R is the encoder
    prototype      the K means of each client's embeddings under θ^R, once
    mend           to each client those of the others; it trains its generator alone, and mends its graph, once
    afterwards     FedAvg, from θ^R on, with embedding-fused convolutions on the mended graphs

The middle is the paper's pseudo-FL: prototypes answer at the client what FedSage+ asks peers in every step. Written from what is
public of the paper (its abstract and reviews), without its numbers of equations. The authors' code (zkzhangke/FedDEP) does not
run pseudo-FL, but exchanges an embedding of every node and gradients. It also trains an encoder per client, clusters by deep
embedded clustering, and adds a linear map of generated embeddings in every layer: ``strategy=feddep_authors``. Ours: the encoder
is the federated model itself after R rounds, which puts all clients' embeddings in one space.
A client that cannot
be reached when graphs are mended goes on without generated neighbours. ``neighbours=0``, or R of at least ``rounds``, is FedAvg
of GraphSAGE. Leaves a client: what FedAvg sends, and once K means of hidden features, how many nodes each is of, and how many
neighbours it generated. The paper's noise-free edge-local privacy, which rests on sampling neighbours, is not claimed: all
neighbours are read, and no ε is told.
Cost: two exchanges, once: K H numbers up, M K H and twice θ^R down.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.methods import feddep
from fedgraph_flwr.methods.feddep import ENCODER, PROTOTYPES, Params
from fedgraph_flwr.methods.impaired import say_added
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.wire.messages import Arrays


class FedDEP(GraphStrategy):
    """FedAvg that hands prototypes around once; `memory` says that it has."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(feddep.uplink)

    @property
    def scores_first(self) -> bool:
        """θ^R is FedAvg's, of graphs as they are."""
        return (
            bool(self.params.neighbours)
            and self.server_round > self.params.encoder_rounds
            and "mended" not in self.memory
        )

    def before_train(self, arrays: Arrays) -> Groups:
        """After R rounds: collect prototypes, and let all clients mend."""
        if self.scores_first:
            everyone = sorted(self.clients)
            replies = self.request("prototype", {ENCODER: arrays}, everyone)
            told = {reply.client: self.known(reply.groups[PROTOTYPES]) for reply in replies}
            groups = {
                client: {
                    ENCODER: arrays,
                    PROTOTYPES: {str(j): own for j, own in told.items() if j != client and len(own)},
                }
                for client in everyone
            }
            say_added(self.request("mend", groups, everyone).replies, self.cfg.strategy.name)
            self.memory["mended"] = np.array(True)
        return {}

    def known(self, told: Arrays) -> np.ndarray:
        """The prototypes that are of some nodes, [K', H]."""
        return np.ascontiguousarray(told["mean"][told["count"] > 0])
