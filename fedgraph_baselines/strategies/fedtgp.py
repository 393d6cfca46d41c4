"""FedTGP (Zhang et al., AAAI 2024, arXiv:2401.03230), server side.

    P̂^c = F(P̊^c; θ_F),   F two linear layers with ReLU between                                       trainable: P̊ [C, D], θ_F
    L = Σ_c Σ_i −log ( e^{−(φ(P_i^c, P̂^c) + δ)} / (e^{−(φ(P_i^c, P̂^c) + δ)} + Σ_{c' ≠ c} e^{−φ(P_i^c, P̂^{c'})}) )    Eq. (10)
    δ(t) = min(max_{c ≠ c'} φ(Q^c, Q^{c'}), τ),   Q^c the plain mean of the cohort's P_i^c                  Eq. (9)

P_i^c is client i's prototype of class c, φ the Euclidean distance. Eq. (10) is minimised for S epochs of SGD over the cohort's
prototypes, in shuffled batches and by the mean of a batch, as in the authors' code. That code takes the largest of each class's
smallest distance for the maximum of Eq. (9). For a single class, δ is 0 (ours). P̂ covers all classes, also those without a
client. Leaves a client: see `fedgraph_baselines.clients.fedtgp`.
"""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_baselines.methods import prototypes
from fedgraph_baselines.methods.prototypes import PROTOTYPES, FedTGPParams, distances
from fedgraph_baselines.strategies.fedproto import FedProto
from fedgraph_flwr.numerics.optim import SGD
from fedgraph_flwr.numerics.streams import own_stream, seeded
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import as_arrays

GENERATOR = "generator"
"""Name of P̊ and θ_F in `memory`."""

THRESHOLD = 100.0
"""τ of Eq. (9)."""

BATCH = 10
"""Prototypes per step of the server (the authors' code)."""


class Generator(nn.Module):
    """P̊ and F; its output is P̂ [C, D]."""

    def __init__(self, num_classes: int, width: int):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(num_classes, width))
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self) -> Tensor:
        """Compute P̂ [C, D]."""
        return self.outer(torch.relu(self.inner(self.vectors)))


class FedTGP(FedProto):
    """FedProto with prototypes that are trained to separate classes."""

    Params: ClassVar[type] = FedTGPParams
    uplink = staticmethod(prototypes.single_uplink)

    def setup(self) -> None:
        """Draw P̊ ~ N(0, 1) and θ_F, from the server's own stream."""
        super().setup()
        with seeded(derive_seed(self.cfg.seed, GENERATOR)):
            self.generator = Generator(*self.shape).to(getattr(torch, self.cfg.dtype))
        self.memory[GENERATOR] = as_arrays(self.generator.state_dict())

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Train on the cohort's prototypes; no parameters are shared."""
        groups = reduced.each(PROTOTYPES)
        count = np.stack([group["count"] for group in groups])
        if count.any():
            self.learn(np.stack([group["mean"] for group in groups]), count)
        return arrays

    def learn(self, means: np.ndarray, count: np.ndarray) -> None:
        """Solve Eqs. (9) and (10) for prototypes [M, C, D] and whether they exist [M, C], and store the result in `memory`."""
        p, (rows, classes) = self.params, np.nonzero(count)
        sent, y = torch.from_numpy(means[rows, classes]), torch.from_numpy(classes)
        delta = F.one_hot(y, self.shape[0]).to(sent.dtype) * margin(sent, y, THRESHOLD)
        generator = self.generator
        generator.load_state_dict({name: torch.from_numpy(value) for name, value in self.memory[GENERATOR].items()})
        optimizer = SGD(generator.parameters(), p.server_lr)
        stream = own_stream(self.cfg.seed, GENERATOR, self.server_round)
        for _ in range(p.server_epochs):
            for batch in torch.randperm(len(y), generator=stream).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(-distances(sent[batch], generator()) - delta[batch], y[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            group = {"mean": generator().numpy(), "known": np.ones(self.shape[0], bool)}
        state = {name: value.copy() for name, value in as_arrays(generator.state_dict()).items()}
        self.memory = {PROTOTYPES: group, GENERATOR: state}


def margin(sent: Tensor, y: Tensor, threshold: float) -> float:
    """Compute δ of prototypes [R, D] of classes [R], Eq. (9)."""
    centres = torch.stack([sent[y == c].mean(0) for c in y.unique()])
    return min(float(distances(centres, centres).max()), threshold)
