"""Base of clients whose description has the width of what they send about hidden features."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedgraph_baselines.methods.prototypes import WIDTH
from fedgraph_flwr.clients.base import GraphClient


class EmbeddingClient(GraphClient):
    """Client with embeddings of its nodes, the hidden features of its model."""

    @cached_property
    def width(self) -> int:
        """D, the width of the embeddings."""
        return self.embeddings().size(1)

    def describe(self) -> dict[str, Any]:
        """Add D, which determines the shapes of messages, to the description."""
        return super().describe() | {WIDTH: self.width}

    @torch.no_grad()
    def embeddings(self) -> Tensor:
        """Compute the embeddings of all nodes without dropout, [N, D]."""
        self.model.eval()
        return self.model.encode(self.inputs)
