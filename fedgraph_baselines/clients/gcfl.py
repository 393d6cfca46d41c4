"""GCFL+ client (Xie et al., NeurIPS 2021, arXiv:2106.13423): FedAvg's client, optionally with the norm of its last gradient.

Leaves the client: FedAvg's uploads; with ``plus=true`` and ``series=gradient``, ‖∇F_i‖ over the shared parameters at its last
step.
"""

from typing import ClassVar

import torch

from fedgraph_baselines.methods import gcfl
from fedgraph_baselines.methods.gcfl import GRADIENT
from fedgraph_flwr.clients.base import GraphClient, ReplyContent
from fedgraph_flwr.config import TASKS


class GCFLClient(GraphClient, method=gcfl):
    """FedAvg's client."""

    serves: ClassVar[frozenset[str]] = frozenset(TASKS)

    def send(self) -> ReplyContent:
        """Send the norm, if the configuration requests it."""
        if not (self.params.plus and self.params.series == "gradient"):
            return {}, {}
        norms = [t.grad.norm() for t in self.shared.values() if t.grad is not None]
        return {}, {GRADIENT: float(torch.stack(norms).norm()) if norms else 0.0}
