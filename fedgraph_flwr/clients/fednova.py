"""FedNova client (Wang et al., NeurIPS 2020, arXiv:2007.07481): tells how many steps' worth its way is.

    y_i = x − η Σ_k a_{i,k} g_i^(k),   a_{i,k} = 1;   (1 − ρ^{K−k+1})/(1 − ρ) with momentum ρ;   (1 − ημ)^{K−k} with (μ/2)‖θ − x‖²

for k = 1..K. ‖a_i‖₁ is their sum. Momentum begins at zero in every round. Of Adam's steps it is taken as K (ours: the paper has
no such optimiser). Momentum beside the proximal term is refused: the authors' program adds their a_i, which is neither.
K_i and ‖a_i‖₁ follow from the configuration. Leaves the client: what FedAvg sends.
"""

from typing import ClassVar

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import TASKS
from fedgraph_flwr.methods import fednova


class FedNovaClient(GraphClient):
    """FedAvg's client, by the uplink of FedNova."""

    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    uplink = staticmethod(fednova.uplink)
