"""FedTGP client (Zhang et al., AAAI 2024, arXiv:2401.03230): FedProto's client, with prototypes that the server trains.

    L_i = ℓ + λ E_{c ∈ C_i} φ(P_i^c, P̂^c)                                                             Eq. (11)

φ is the Euclidean distance; the authors' code uses ``distance=nodes``, like FedProto's. With ``distance=prototypes`` the sum
over classes replaces their mean: λ times the number of the client's classes. λ = 0 is Local. Leaves the client: for each class
the mean embedding of its training nodes (for one node, that node's embedding; see ``min_nodes``). The server learns whether the
client has the class, but not its number of nodes.
"""

from typing import ClassVar

import numpy as np

from fedgraph_baselines.clients.fedproto import FedProtoClient
from fedgraph_baselines.methods import prototypes
from fedgraph_baselines.methods.prototypes import PROTOTYPES, FedTGPParams
from fedgraph_flwr.clients.base import ReplyContent


class FedTGPClient(FedProtoClient):
    """FedProto's client, which keeps its numbers of nodes private."""

    Params: ClassVar[type] = FedTGPParams
    uplink = staticmethod(prototypes.single_uplink)

    def send(self) -> ReplyContent:
        """Send the client's prototypes; a count of 1 marks an existing one."""
        mean, count = self.own_prototypes()
        return {PROTOTYPES: {"mean": mean, "count": np.minimum(count, 1)}}, {}
