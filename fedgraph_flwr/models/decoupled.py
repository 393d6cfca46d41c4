"""Decoupled GCN: an MLP, then propagation without weights (FedStruct, arXiv:2402.19163, the feature branch of Eq. 20).

    logits = Σ_{l=1}^{L} β_l P^l f(X)

f is `mlp.MLP`, optionally after layer normalisation of X; P = D̃^{-1} Ã (`layers.random_walk_adjacency`). The sum has no term
l = 0. Powers are applied one after the other, never formed.

Shapes: X [N, F], f(X) [N, C], P [N, N] → logits [N, C].
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from fedgraph_flwr.config import Range
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.in_blocks import Step
from fedgraph_flwr.models.layers import propagate, random_walk_adjacency
from fedgraph_flwr.models.mlp import MLP
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.models.stack import Common
from fedgraph_flwr.numerics.blocks import BatchInputs
from fedgraph_flwr.numerics.hops import hop_weights
from fedgraph_flwr.numerics.inputs import Inputs


class DecoupledGCN(MLP):
    """An MLP followed by propagation.

    Args:
        num_features: F.
        num_classes: C.
        hops: L.
        beta: ``last`` (β_L = 1, others 0), ``uniform`` (1 / L) or β_1..β_L.
        input_norm: whether layer normalisation is applied to X first.
        common: keywords of the MLP.
    """

    samples = True
    adjacency = staticmethod(random_walk_adjacency)

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hops: Annotated[int, Range(1)] = 2,  # L
        beta: str | Sequence[float] = "last",  # last | uniform | a list of L numbers
        input_norm: bool = False,
        **common: Unpack[Common],
    ):
        super().__init__(num_features, num_classes, input_norm=input_norm, **common)
        if beta == "learned":
            raise FedGraphError(
                "model.beta must be last, uniform or a list of numbers for model=decoupled, got 'learned'"
            )
        self.weights = hop_weights(beta, hops)

    @property
    def sampled_hops(self) -> int | None:
        """L, unless batch normalisation or `after_hidden` may read all nodes."""
        hops = super().sampled_hops
        return None if hops is None else self.weights.shape[1]

    def plain(self) -> Plain:
        """Export f, followed by the mean over a node and its in-neighbours."""
        f = super().plain()
        widths = [arguments["in_features"] for _, arguments in f.arguments["layers"]] + [self.head.weight.size(1)]
        arguments = {
            "widths": widths,
            "weights": self.weights[0].tolist(),
            "input_norm": bool(f.arguments["input_norm"]),
        }
        return Plain("decoupled", arguments, f.weights)

    def classify(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Compute logits [N, C]: the last linear layer of f, then propagation."""
        logits = super().classify(h, inputs)
        if isinstance(inputs, BatchInputs):
            return propagate_batch(inputs, self.weights[0], logits)
        return propagate(inputs.adj, self.weights, logits)[0]

    def passes(self) -> list[Step]:
        """The layers of f, then L hops, whose rows are M^l f(X) next to the sum so far."""
        width, weights = self.head.weight.size(1), self.weights[0].tolist()

        def hop(z: Tensor, inputs: Inputs, weight: float, last: bool) -> Tensor:
            h = inputs.adj @ z[:, :width].contiguous()
            total = weight * h
            if z.size(1) > width:
                total = z[: len(h), width:] + total
            return total if last else torch.cat([h, total], dim=1)

        hops = [partial(hop, weight=weight, last=i + 1 == len(weights)) for i, weight in enumerate(weights)]
        return [*super().passes(), *(Step(True, apply) for apply in hops)]


def propagate_batch(inputs: BatchInputs, weights: Any, h: Tensor) -> Tensor:
    """Compute Σ_l weights[l] M^l H at the seeds of a batch, each M of a sampled hop: H [n, C] → [B, C]."""
    seeds, total = inputs.layers[-1].adj.shape[0], None
    for layer, weight in zip(inputs.layers, weights.tolist(), strict=True):
        h = layer.adj @ h
        term = weight * h[:seeds]
        total = term if total is None else total + term
    assert total is not None
    return total
