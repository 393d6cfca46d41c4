"""FedSage-true (Aliakbari, Östman & Graell i Amat, 2024, section 7): an upper bound of methods that in-paint neighbours.

    wanted, features, mend     each client is given the true features of its external 1-hop neighbours      once
    train                      gradient averaging over the mended graphs (`fedgraph_flwr.strategies.fedgrad`)

It gives up privacy on purpose: raw features cross clients, and pass the server in the clear.
Leaves the client: ids of external neighbours, X of nodes with external neighbours, gradients, |V~_i|, scores.
"""

from typing import ClassVar

from fedgraph_flwr.strategies.base import Answers
from fedgraph_flwr.strategies.fedgrad import FedGrad, relayed


class FedSageTrue(FedGrad):
    """Relays features once, then averages gradients."""

    answers: ClassVar[Answers] = {"mend": ("done",)}

    def setup(self) -> None:
        """Each client's wishes to the owners, their features back to the client."""
        wishes = self.ask_all("wanted")
        features = self.ask_all("features", relayed(wishes, "wanted"))
        self.ask_all("mend", relayed(features, "features"))
