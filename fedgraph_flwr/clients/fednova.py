"""FedNova client (Wang et al., NeurIPS 2020, arXiv:2007.07481): local training with normalised updates.

    y_i = x − η Σ_k a_{i,k} g_i^(k),   a_{i,k} = 1;   (1 − ρ^{K−k+1})/(1 − ρ) with momentum ρ;   (1 − ημ)^{K−k} with (μ/2)‖θ − x‖²

for k = 1..K. ‖a_i‖₁ is their sum. Momentum starts at zero in every round. With Adam ‖a_i‖₁ is K (ours: the paper does not use
Adam). Momentum together with the proximal term is refused: the authors' code adds their a_i, which matches neither formula.
K_i and ‖a_i‖₁ follow from the configuration.
Leaves the client: what FedAvg sends.
"""

from typing import ClassVar

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import TASKS
from fedgraph_flwr.methods import fednova


class FedNovaClient(GraphClient, method=fednova):
    """FedAvg's client, by the uplink of FedNova."""

    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    unsampled: ClassVar[str] = (
        "divides each update by the client's number of steps, which with batches depends on numbers of nodes that clients do"
        " not report"
    )
