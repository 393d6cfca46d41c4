"""GCN between a projection and a classifier: the baselines' network in FedHERO (arXiv 2504.21206, Section 4.1).

    Z^0 = ReLU(X W_0 + b_0),   Z^l = ReLU(Â Z^{l-1} W^l + b^l),   logits = Z^L W_c + b_c

Shapes: X [N, F], Â [N, N] (`layers.gcn_adjacency`), W_0 [F, H], W^l [H, H], W_c [H, C]. It is the local channel of
FedHERO's network without the concatenation.
"""

import torch
from torch import Tensor, nn

from fedgraph_flwr.models.base import Inputs, Model
from fedgraph_flwr.models.layers import Linear, dropout


class ProjectedGCN(Model):
    """A linear projection, ``layers`` graph convolutions, a linear classifier; ReLU and dropout between them."""

    def __init__(self, num_features: int, num_classes: int, *, hidden: int, layers: int, dropout: float):
        super().__init__()
        self.projection = Linear(num_features, hidden)
        self.convs = nn.ModuleList([Linear(hidden, hidden) for _ in range(layers)])
        self.classifier = Linear(hidden, num_classes)
        self.dropout = dropout

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [N, C]."""
        z = self._activate(self.projection(inputs.x))
        for conv in self.convs:
            z = self._activate(conv(inputs.adj @ z))
        return self.classifier(z)

    def _activate(self, z: Tensor) -> Tensor:
        return dropout(torch.relu(z), self.dropout, self.training)
