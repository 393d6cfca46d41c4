"""FedDEP: keys, names of message groups, and prototypes of a client's embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.methods.impaired import MENDED
from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import ARRAYS, Once, Relay, Uplink, model_only
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField

ENCODER = "encoder"
"""Group sent to clients, once: the model whose hidden features are generated."""

WIDTHS = (256,)
"""(ours) Widths of the generator's hidden layers."""

BLOCK = 2**22
"""Maximum number of distances to prototypes computed at once."""

PROTOTYPES = "prototypes"
"""Group. To the server, once: ``mean`` [K, H] and ``count`` [K]; to clients: those of each other client, by its index."""


@dataclass
class Params:
    """Keys of FedDEP."""

    encoder_rounds: int = 20  # R, rounds of FedAvg before neighbours are generated
    neighbours: int = 5  # P, maximum generated neighbours per node; 0 is FedAvg
    prototypes: int = number(10, low=1)  # K, prototypes per client
    min_nodes: int = number(1, low=1)  # minimum nodes in a cluster of embeddings whose mean is sent
    generator_steps: int = 50  # training steps of the generator
    generator_lr: float = number(1e-3, without_low=True)  # learning rate of the generator


@dataclass(frozen=True)
class Peers:
    """Prototypes of the other clients in one matrix.

    Attributes:
        mean: all prototypes, [T, H].
        place: rows of each client's prototypes, [M, K]; T where it has fewer.
    """

    mean: Tensor
    place: Tensor

    @classmethod
    def of(cls, prototypes: Sequence[Tensor]) -> "Peers":
        """Join the prototypes [K, H] of each client."""
        if not prototypes:
            return cls(torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.int64))
        mean, sizes = torch.cat(list(prototypes)), torch.tensor([len(rows) for rows in prototypes])
        column = torch.arange(int(sizes.max()))
        place = torch.where(column < sizes[:, None], (sizes.cumsum(0) - sizes)[:, None] + column, len(mean))
        return cls(mean, place.to(mean.device))

    def apart(self, rows: Tensor) -> Tensor:
        """Return Σ_r Σ_j min_k ‖r − c_jk‖² over rows [R, H] and clients j, computed from the mean of the nearest prototypes."""
        clients, width = self.place.shape
        if not clients:
            return rows.new_zeros(())
        with torch.no_grad():
            best = torch.cat([self.nearest(some) for some in rows.split(max(BLOCK // (clients * width), 1))])
            centre = F.embedding_bag(best, self.mean, mode="sum") / clients
            within = self.mean.square().sum(1)[best].sum() - clients * centre.square().sum()
        return clients * (rows - centre).square().sum() + within

    def nearest(self, rows: Tensor) -> Tensor:
        """Return the row of each client's nearest prototype, [R, M]."""
        away = F.pad(torch.cdist(rows, self.mean), (0, 1), value=torch.inf)[:, self.place]
        return self.place.expand(len(rows), -1, -1).gather(2, away.argmin(2, keepdim=True)).squeeze(2)


def clustered(h: Tensor, k: int, seed: int, steps: int = 10) -> tuple[Tensor, Tensor]:
    """Cluster embeddings [N, H] by Lloyd's k-means, started from k rows drawn by ``seed``: means [k, H] and sizes [k]."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(h), generator=rng)
    centres = h[order[torch.arange(k) % len(h)].to(h.device)]
    count = torch.zeros(k, dtype=torch.int64, device=h.device)
    for _ in range(steps):
        nearest = torch.cdist(h, centres).argmin(1)
        count = nearest.bincount(minlength=k)
        total = torch.zeros_like(centres).index_add(0, nearest, h)
        centres = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], centres)
    return centres, count


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, and once prototypes for the other clients and the number of generated neighbours."""
    if not params.neighbours or params.encoder_rounds >= cfg.rounds:
        return model_only(cfg, params)
    fields = {
        "mean": ArrayField((params.prototypes, cfg.model.hidden), cfg.dtype),
        "count": ArrayField((params.prototypes,), "int64", 0, LARGEST),
    }
    return {
        **model_only(cfg, params),
        "prototype": Once({PROTOTYPES: Relay(fields, why="the other clients generate neighbours from them")}),
        "mend": MENDED,
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the encoder, and prototypes of the other clients."""
    encoder = {ENCODER: Input("the shared parameters, as an encoder", ARRAYS)}
    return {"prototype": encoder, "mend": {**encoder, PROTOTYPES: Input("prototypes of the other clients, by client")}}
