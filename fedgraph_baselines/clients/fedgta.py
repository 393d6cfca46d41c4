"""FedGTA client (Li et al., VLDB 2024, arXiv:2401.11755): statistics by which the server compares and weights clients.

    Y^0_v = one-hot y_v at training nodes, softmax of the trained model's logits elsewhere
    Y^{l+1} = α Y^0 + (1 − α) Â Y^l,   l < k                               non-parametric label propagation
    M = (mean_v (Y^k_v)^p, mean_v (Y^k_v − mean Y^k)^p),   p = 1..K            mixed moments, by class
    H = Σ_v d̃_v Σ_c (1/e + Y^k_vc log Y^k_vc)                               local smoothing confidence

Â = D̃^{-1/2} (A + I) D̃^{-1/2}, d̃ its degrees. y log y >= −1/e, so H >= 0. H grows with a client's nodes and edges, and with
the certainty of their labels. Uniform labels give a node d̃_v (C/e − log C). The equations are from memory of the paper,
therefore without numbers, and from the authors' code. With ``labels=program``, three details follow that code. Each step adds
Y^0 once more at training nodes. M is of softmax(Y^k) and H of softmax(Y^k / 20), both with the true labels at training nodes.
The degree d̃ is without the loop. (Its α is the neighbours' share, 1/2 too.) The code uses the true labels of nodes in neither
the validation nor the test set; here only labels of training nodes are read. Training is FedAvg's. The products are sparse, in
float64: k E C of them. Leaves the client: FedAvg's uploads, M [1 or 2, K, C], and H.

On a fleet, labels of classes with fewer training nodes than the policy's ``min_nodes`` count as unknown, and a client with
fewer nodes sends zeros. Otherwise, M of a client with one node is that node's propagated label.
"""

from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.methods import fedgta
from fedgraph_baselines.methods.fedgta import CONFIDENCE, SMOOTHED
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.clients.requirements import one_type
from fedgraph_flwr.methods.labels import large_enough
from fedgraph_flwr.models.layers import adjacency, gcn_adjacency
from fedgraph_flwr.numerics.sparse import SparseMatrix

TEMPERATURE = 20.0  # as in the authors' code
LARGE = 1e15  # bound of moments of labels above 1, which hubs have; replies must be finite


def moments(y: Tensor, orders: int, hybrid: bool) -> Tensor:
    """Compute moments of orders 1..K of each column of y [N, C], raw and, if ``hybrid``, central: [1 or 2, K, C]."""
    kinds = [y, y - y.mean(0)] if hybrid else [y]
    return torch.stack([torch.stack([z.pow(p).mean(0) for p in range(1, orders + 1)]) for z in kinds])


def confidence(y: Tensor, degree: Tensor) -> float:
    """Compute H from labels [N, C] and degrees [N]."""
    bracket = (torch.e**-1 + torch.xlogy(y, y)).sum(1)
    return max(float(degree @ bracket), 0.0)


class FedGTAClient(GraphClient, method=fedgta, requires=(one_type,)):
    """FedAvg's client, which sends statistics of its labels smoothed along edges."""

    samples: ClassVar[str] = "blocks"

    @cached_property
    def smoother(self) -> SparseMatrix:
        """Â [N, N]."""
        adj = gcn_adjacency(self.graph.edge_index, self.graph.num_nodes)
        return SparseMatrix(adj, torch.float64).to(self.device)

    @cached_property
    def degree(self) -> Tensor:
        """d̃ [N]; without the loop for ``labels=program``."""
        adj = adjacency(self.graph.edge_index, self.graph.num_nodes, self_loops=self.params.labels == "paper")
        return torch.from_numpy(adj.sum(axis=1)).view(-1).to(self.device)

    def send(self) -> ReplyContent:
        """Send M and H of the trained model; zeros for a graph that is too small."""
        if self.graph.num_nodes < self.least:
            shape = self.params.kinds, self.params.orders, self.graph.num_classes
            return {SMOOTHED: {"moments": np.zeros(shape)}}, {CONFIDENCE: 0.0}
        for_moments, for_confidence = self.smoothed()
        mixed_moments = moments(for_moments, self.params.orders, self.params.kinds == 2)
        if (largest := mixed_moments.abs().max()) > LARGE:  # the server reads only the direction
            mixed_moments = mixed_moments / largest
        return {SMOOTHED: {"moments": to_numpy(mixed_moments)}}, {CONFIDENCE: confidence(for_confidence, self.degree)}

    @cached_property
    def labelled(self) -> tuple[Tensor, Tensor]:
        """The training nodes whose labels are read, and their one-hot labels [n, C]."""
        count = self.batch.y.bincount(minlength=self.graph.num_classes).cpu().numpy()
        known = torch.from_numpy(large_enough(count, self.least)).to(self.device)[self.batch.y]
        return self.train_nodes[known], F.one_hot(self.batch.y[known], self.graph.num_classes).double()

    def smoothed(self) -> tuple[Tensor, Tensor]:
        """Compute Y^k for M and for H, [N, C] each."""
        first = self.predict().double().softmax(1)
        labelled, first_labels = self.labelled
        first[labelled] = first_labels
        alpha, program = self.params.alpha, self.params.labels == "program"
        y = first
        for _ in range(self.params.steps):
            y = alpha * first + (1 - alpha) * (self.smoother @ y)
            if program:
                y[labelled] += first_labels
        if not program:
            return y, y
        pair = y.softmax(1), (y / TEMPERATURE).softmax(1)
        for labels in pair:
            labels[labelled] = first_labels
        return pair
