"""FedDEP (Zhang et al., 2024, arXiv:2401.04336), server side: clients exchange prototypes of embeddings once.

    rounds 1..R    FedAvg: θ^R is the encoder
    prototype      the K means of each client's embeddings under θ^R, once
    mend           the other clients' means to each client, which trains its generator locally and generates neighbours, once
    afterwards     FedAvg, from θ^R on, with embedding-fused convolutions on the graphs with generated neighbours

The middle part is the paper's pseudo-FL: with prototypes a client computes locally what FedSage+ requests from peers in every
step. Written from the public parts of the paper (abstract and reviews), without its equation numbers. The authors' code
(zkzhangke/FedDEP) does not run pseudo-FL, but exchanges gradients and an embedding of every node. It also trains an encoder per
client, clusters by deep embedded clustering, and adds a linear map of generated embeddings in every layer:
``strategy=feddep_authors`` of examples/feddep_authors. Ours: the encoder is the federated model after R rounds, so all clients'
embeddings share one space. A client that is unreachable in phase ``mend`` continues without generated neighbours.
``neighbours=0``, or R of at least ``rounds``, is FedAvg of GraphSAGE.
Leaves a client: what FedAvg sends. Once: K means of hidden features, the number of nodes in each, and the number of generated
neighbours. We do not claim the paper's noise-free edge-local privacy, which relies on sampling neighbours: all neighbours are
used here, and no ε is reported.
Cost: two exchanges, once: K H numbers up, M K H and twice θ^R down.
"""

import numpy as np

from fedgraph_baselines.methods import feddep
from fedgraph_baselines.methods.feddep import ENCODER, PROTOTYPES
from fedgraph_baselines.methods.impaired import say_added
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.wire.messages import Arrays


class FedDEP(GraphStrategy, method=feddep):
    """FedAvg with one exchange of prototypes; `memory` records that it has happened."""

    @property
    def scores_first(self) -> bool:
        """Whether to score θ^R, FedAvg's model on the original graphs, before neighbours are generated."""
        return (
            bool(self.params.neighbours)
            and self.server_round > self.params.encoder_rounds
            and "mended" not in self.memory
        )

    def before_train(self, arrays: Arrays) -> Groups:
        """After R rounds, collect prototypes and let all clients generate neighbours."""
        if self.scores_first:
            everyone = sorted(self.clients)
            replies = self.request("prototype", {ENCODER: arrays}, everyone)
            prototypes = {reply.client: self.known(reply.groups[PROTOTYPES]) for reply in replies}
            groups = {
                client: {
                    ENCODER: arrays,
                    PROTOTYPES: {str(j): rows for j, rows in prototypes.items() if j != client and len(rows)},
                }
                for client in everyone
            }
            say_added(self.request("mend", groups, everyone).replies, self.cfg.strategy.name)
            self.memory["mended"] = np.array(True)
        return {}

    def known(self, group: Arrays) -> np.ndarray:
        """Return the prototypes of non-empty clusters, [K', H]."""
        return np.ascontiguousarray(group["mean"][group["count"] > 0])
