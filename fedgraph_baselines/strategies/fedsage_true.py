"""FedSage-true (Aliakbari, Östman & Graell i Amat, 2024, section 7): an upper bound of methods that generate neighbours.

    wanted, features, mend     each client receives the true features of its external 1-hop neighbours     once
        train                      gradient averaging over the extended graphs (`fedgraph_flwr.strategies.fedgrad`)

It gives up privacy on purpose: raw features cross clients, and pass the server unprotected.
Leaves the client: ids of external neighbours, X of nodes with external neighbours, gradients, |V~_i|, scores.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedgrad
from fedgraph_flwr.strategies.fedgrad import FedGrad, relayed
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to


class FedSageTrue(FedGrad):
    """Relays features once, then averages gradients.

    Attributes:
        requested: ids of each client's nodes that others request, by owner and by requesting client.
    """

    requested: dict[int, Arrays]

    uplink = staticmethod(fedgrad.true_features)

    @classmethod
    def rebuilds(cls, cfg: RunConfig) -> bool:
        """The features are exchanged again."""
        return True

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Return requested ids, by owner; or features [b, F], by requesting client."""
        if phase == "wanted":
            ids = ArrayField((up_to(LARGEST),), "int32", 0, LARGEST, optional=True)
            return {str(other): ids for other in self.clients}
        width = self.agreed("num_features")
        sizes = {str(other): len(ids) for other, ids in self.requested.get(client or 0, {}).items()}
        return {k: ArrayField((size, width)) for k, size in sizes.items()}

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse ids that are requested twice."""
        if any((np.diff(ids) <= 0).any() for ids in reply.groups.get("wanted", {}).values()):
            raise FedGraphError(f"client {reply.client} replied to phase 'wanted' with ids that are not ascending")

    def setup(self) -> None:
        """Relay each client's requests to the owners, and the features back to the client."""
        replies = self.request_all("wanted")
        inbox = relayed(replies, "wanted")
        self.requested = {client: groups["wanted"] for client, groups in inbox.items()}
        features = self.request_all("features", inbox)
        self.request_all("mend", relayed(features, "features"))
