"""FedTAD client (Zhu et al., IJCAI 2024, arXiv:2404.14061): FedAvg's, which says how reliable it is for each class.

Leaves the client: what FedAvg sends, and once Φ_i [C], which tells of each class how many training nodes it has and how like
their neighbours they are, relative to the others (`fedgraph_flwr.methods.fedtad`).
"""

from functools import cached_property
from typing import Any, ClassVar

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedtad
from fedgraph_flwr.methods.fedtad import RELIABILITY, Params, reliability
from fedgraph_flwr.models import Model


class FedTADClient(GraphClient):
    """FedAvg's client with Φ_i in its description."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(fedtad.uplink)

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Nodes and edges of one type."""
        if model.heterogeneous:
            raise FedGraphError(
                f"strategy={cfg.strategy.name} generates nodes of one type; model={cfg.model.name} is for typed ones"
            )

    def describe(self) -> dict[str, Any]:
        """Also Φ_i."""
        return super().describe() | {RELIABILITY: self.reliability}

    @cached_property
    def reliability(self) -> list[float]:
        """Φ_i."""
        return reliability(self.graph, self.params.walks, self.policy.min_nodes).tolist()
