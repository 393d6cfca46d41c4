"""FedTGP client (Zhang et al., AAAI 2024, arXiv:2401.03230): FedProto's, towards prototypes that the server trained.

    L_i = ℓ + λ E_{c ∈ C_i} φ(P_i^c, P̂^c)                                                             Eq. (11)

φ is the Euclidean distance; the authors' program has ``distance=nodes`` for it, as FedProto's. With ``distance=prototypes`` the
sum over classes stands for their mean: λ times the number of the client's classes. λ = 0 is Local. Leaves the client: of each
class the mean embedding of its training nodes, which of one node is that node's (``min_nodes``), and whether it has the class,
not of how many nodes.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.clients.base import ReplyContent
from fedgraph_flwr.clients.fedproto import FedProtoClient
from fedgraph_flwr.methods import prototypes
from fedgraph_flwr.methods.prototypes import PROTOTYPES, FedTGPParams


class FedTGPClient(FedProtoClient):
    """FedProto's client, who keeps its numbers of nodes to itself."""

    Params: ClassVar[type] = FedTGPParams
    uplink = staticmethod(prototypes.single_uplink)

    def send(self) -> ReplyContent:
        """The client's prototypes; a count of 1 says that there is one."""
        mean, count = self.prototypes_told()
        return {PROTOTYPES: {"mean": mean, "count": np.minimum(count, 1)}}, {}
