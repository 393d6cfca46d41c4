"""FedNova client (Wang et al., NeurIPS 2020, arXiv:2007.07481): tells how many steps' worth its way is.

    y_i = x − η Σ_k a_{i,k} g_i^(k),   a_{i,k} = 1;   (1 − ρ^{K−k+1})/(1 − ρ) with momentum ρ;   (1 − ημ)^{K−k} with (μ/2)‖θ − x‖²

for k = 1..K. ‖a_i‖₁ is their sum. Momentum begins at zero in every round. Of Adam's steps it is taken as K (ours: the paper has
no such optimiser). Momentum beside the proximal term is refused: the authors' program adds their a_i, which is neither.
Leaves the client: beside what FedAvg sends, K_i and ‖a_i‖₁.
"""

from typing import ClassVar

from fedgraph_flwr.clients.base import Answer
from fedgraph_flwr.clients.fedprox import FedProxClient
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.fednova import STEPS, WORK, Params, work


class FedNovaClient(FedProxClient):
    """FedProx's client (μ = 0: FedAvg's) that counts."""

    Params: ClassVar[type] = Params

    @classmethod
    def remark(cls, cfg: RunConfig) -> str:
        """The server's side says it."""
        return ""

    def send(self) -> Answer:
        """K_i and ‖a_i‖₁."""
        return {}, {STEPS: self.steps, WORK: work(self.steps, self.cfg.train, self.params.mu)}
