"""FedTAD client (Zhu et al., IJCAI 2024, arXiv:2404.14061): FedAvg's client, which also reports its reliability for each class.

Leaves the client: what FedAvg sends, and once Ψ_i [C] (`fedgraph_baselines.methods.fedtad`). The entry Ψ_i[c] is the number of
training nodes of class c times their mean similarity to their neighbours. The server therefore learns roughly how many training
nodes of each class the client holds. A policy's ``min_nodes`` sets classes with fewer training nodes to 0.
"""

from functools import cached_property
from typing import Any

from fedgraph_baselines.methods import fedtad
from fedgraph_baselines.methods.fedtad import RELIABILITY, reliability
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.requirements import one_type


class FedTADClient(GraphClient, method=fedtad, requires=(one_type,)):
    """FedAvg's client with Ψ_i in its description."""

    makes_graphs = True

    def describe(self) -> dict[str, Any]:
        """Add Ψ_i."""
        return super().describe() | {RELIABILITY: self.reliability}

    @cached_property
    def reliability(self) -> list[float]:
        """Ψ_i [C]."""
        return reliability(self.graph, self.policy.min_nodes).tolist()
