"""FED-PUB client (Baek et al., ICML 2023, arXiv:2206.10206): a mask selects the received weights that suit its graph.

    L_i(θ, μ) = F_i(θ ⊙ μ) + λ1 ‖μ‖₁ + λ2 ‖θ − θ̄_i‖²                        the local objective, from memory of Section 3
    e_i = mean over the nodes of the random graph of the hidden features                    the functional embedding

The mask μ has the shape of the weight matrices θ (vectors, such as biases, have no mask). It starts as ones, is trained with θ
by the same optimiser, and stays at the client between rounds. The received model is θ̄_i. Outside of training, entries of μ
below ``threshold`` count as 0. The embedding e_i is computed by the trained, masked model without dropout, after the last
hidden activation. The authors' code takes it before that. The authors' code computes both regularisers from detached tensors.
They add a number to the loss and nothing to its gradient: ``lam1=0``, ``lam2=0`` trains in the same way. (It also takes the
norm, not its square, and none in the first round.) Leaves the client: FedAvg's uploads, θ without its mask, and e_i [D].
Running statistics of ``model.norm=batch`` are sent and mixed like weights.
Cost: a stored mask with its two moments of Adam, and a pass over 500 nodes with F dense features per round.
"""

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgraph_baselines.clients.embeddings import EmbeddingClient
from fedgraph_baselines.methods import fedpub
from fedgraph_baselines.methods.fedpub import EMBEDDING, random_graph
from fedgraph_flwr.clients.base import ReplyContent, to_numpy
from fedgraph_flwr.clients.client_part import with_parameters
from fedgraph_flwr.clients.fedprox import anchored, proximal_term
from fedgraph_flwr.clients.requirements import hidden_features

THRESHOLD = 1e-3
"""Entries of a mask below it count as 0 outside of training; λ1 in the authors' code."""


class FedPUBClient(EmbeddingClient, method=fedpub, requires=(hidden_features,)):
    """A client with a model whose weight matrices are masked.

    Attributes:
        mu: μ by the weights' names; empty with ``masks=false``.
        received: θ̄_i during training.
    """

    calls_base: ClassVar[frozenset[str]] = frozenset({"train"})
    makes_graphs = True
    predicts_with: ClassVar[tuple[str, ...]] = ("masks",)
    received: dict[str, Tensor]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        matrices = {name: p for name, p in self.model.named_parameters() if p.dim() > 1 and self.params.masks}
        self.mu = {name: nn.Parameter(torch.ones_like(p)) for name, p in matrices.items()}

    @cached_property
    def width(self) -> int:
        """D, the width of the functional embedding."""
        return self.embedding().numel()

    def extra_parameters(self) -> dict[str, nn.Parameter]:
        """Return μ."""
        return {f"masks/{name}": mask for name, mask in self.mu.items()}

    def masked(self) -> dict[str, Tensor]:
        """Return θ ⊙ μ by the weights' names; outside of training mode, small entries of μ are 0."""
        least, weights = 0 if self.model.training else THRESHOLD, dict(self.model.named_parameters())
        kept = {n: torch.where(mask.abs() < least, 0, mask) if least else mask for n, mask in self.mu.items()}
        return {name: weights[name] * mask for name, mask in kept.items()}

    def logits(self, inputs: Any) -> Tensor:
        """Compute logits [N, C] of θ ⊙ μ."""
        return functional_call(self.model, self.masked(), (inputs,))

    def personal_parameters(self) -> dict[str, Tensor]:
        """Return θ ⊙ μ as `predict` uses it."""
        self.model.eval()
        return {name: tensor.detach() for name, tensor in self.masked().items()}

    def train(self) -> float:
        """Store θ̄_i, then train θ and μ."""
        self.received = anchored(self.shared)
        return super().train()

    def loss(self) -> Tensor:
        """Compute L_i."""
        loss = super().loss()
        if self.params.lam1:
            loss = loss + self.params.lam1 * sum(mask.abs().sum() for mask in self.mu.values())
        if self.params.lam2:
            loss = loss + proximal_term(self.shared, self.received, 2 * self.params.lam2)
        return loss

    def send(self) -> ReplyContent:
        """Send e_i."""
        return {EMBEDDING: {"mean": to_numpy(self.embedding())}}, {}

    @cached_property
    def probe(self) -> Any:
        """The model's inputs for the random graph."""
        graph = random_graph(self.cfg.seed, self.graph.num_features, self.graph.num_classes)
        return self.model.prepare(graph, self.device, self.dtype)

    @torch.no_grad()
    def embedding(self) -> Tensor:
        """Compute e_i [D]."""
        self.model.eval()
        with with_parameters(self, self.masked()):
            return self.model.encode(self.probe).mean(0)
