"""The authors' form of FedDEP: keys, deep embedded clustering, and the loss of recovered embeddings.

    q_ik ∝ 1 / (1 + ‖f(h_i) − μ_k‖²),   p_ik ∝ q_ik² / Σ_i q_ik,   L = Σ_ik p_ik log(p_ik / q_ik) / B    Xie et al., ICML 2016
    R = (1 / n P H) Σ_v Σ_{p ≤ n_v} min_t ‖z̃_vp − t‖²                                                t: targets of node v

f is the encoder of a stacked denoising autoencoder. B is the size of a batch. Shapes: h [N, H], μ [K, H'], q and p [N, K].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_baselines.methods.feddep import clustered
from fedgraph_baselines.methods.impaired import ADDED
from fedgraph_flwr.config import RunConfig, number
from fedgraph_flwr.methods.uplink import Individual, Once, Sum, Uplink, model_only
from fedgraph_flwr.models.layers import Linear
from fedgraph_flwr.numerics.optim import SGD
from fedgraph_flwr.wire.messages import METRICS
from fedgraph_flwr.wire.reply_schema import LARGEST, NumberField

GENERATOR = "generator"
"""Group, both ways: parameters of a client's predictor of counts and of its generator."""

EMBEDDINGS = "embeddings"
"""Group, both ways: inputs of a client's generator for all nodes of its impaired graph, [n, D]."""

GRADIENTS = "gradients"
"""Group. To the server: gradients for every other client's generator. To a client: their sum for its generator."""

RESTARTS = 20
"""Runs of k-means, the best of which starts the clustering."""


@dataclass
class Params:
    """Keys of the authors' form of FedDEP; (ours) where their code has another default."""

    neighbours: int = 5  # P, maximum generated neighbours per node; 0 is FedAvg
    prototypes: int = number(5, low=1)  # K, clusters of a client's embeddings
    encoder_steps: int = 50  # training steps of each client's own encoder
    encoder_lr: float = number(0.01, without_low=True)  # learning rate of the encoder
    encoder_dropout: float = number(0.5, high=1, without_high=True)  # dropout rate of the encoder
    autoencoder_widths: list[int] = number((128, 512, 128), low=1)  # widths of the layers between embeddings and codes
    autoencoder_epochs: int = 20  # epochs per layer of the autoencoder
    finetune_epochs: int = 30  # epochs of the whole autoencoder
    cluster_epochs: int = 50  # epochs of deep embedded clustering
    batch: int = number(64, low=1)  # nodes per step of the autoencoder and the clustering
    hidden_share: float = number(0.5, high=1)  # share of the nodes outside the training and test sets that is hidden
    latent: int = number(128, low=1)  # D, input width of the generator
    widths: list[int] = number((256,), low=1)  # hidden widths of the generator (ours; authors' code: 256, 2048)
    generator_dropout: float = number(0.5, high=1, without_high=True)  # dropout rate before the generator's last layer
    generator_rounds: int = 3  # exchanges of embeddings and gradients
    generator_steps: int = 1  # local training steps before the first exchange
    generator_lr: float = number(0.1, without_low=True)  # learning rate of SGD
    count_weight: float = 1.0  # a, weight of the number of missing neighbours
    embedding_weight: float = 1.0  # b, weight of their embeddings
    task_weight: float = 1.0  # c, weight of the labels


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model; before round 1, generators, embeddings of every node, and gradients for the other generators."""
    if not params.neighbours:
        return model_only(cfg, params)
    why = "the other clients compute gradients of every client's generator on its embeddings of every node"
    added = {ADDED: NumberField(0, LARGEST, whole=True)}
    return {
        **model_only(cfg, params),
        "propose": Once({GENERATOR: Individual(why=why), EMBEDDINGS: Individual(why=why)}),
        "judge": Once({GRADIENTS: Sum()}),
        "mend": Once({METRICS: Individual(added, why="how many neighbours each client generated is logged")}),
    }


# --- recovery ---------------------------------------------------------------------------------------------------------


def recovery(made: Tensor, count: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Return R, the mean over nodes and slots of the distance from the nearest target.

    Args:
        made: embeddings z̃, [n, P, H].
        count: number of slots in use of each node, the first ones, [n]; other slots count 0.
        targets: [n, T, H].
        known: which targets exist, [n, T]; a node without any counts 0.
    """
    apart = (made[:, :, None] - targets[:, None]).square().mean(3)  # [n, P, T]
    best = apart.masked_fill(~known[:, None], torch.inf).min(2).values
    used = (torch.arange(made.size(1), device=made.device) < count[:, None]) & known.any(1)[:, None]
    return torch.where(used, best, 0).sum() / max(used.numel(), 1)


# --- deep embedded clustering -----------------------------------------------------------------------------------------


def soft_assignment(z: Tensor, centres: Tensor) -> Tensor:
    """Return q of codes z [B, H'] and centres [K, H'], [B, K]."""
    near = 1 / (1 + (z[:, None] - centres).square().sum(2))
    return near / near.sum(1, keepdim=True)


def target_distribution(q: Tensor) -> Tensor:
    """Return p of q, [B, K]."""
    weight = q.square() / q.sum(0)
    return weight / weight.sum(1, keepdim=True)


class Autoencoder(nn.Module):
    """Stacked autoencoder: layers of widths H, .., H and back, ReLU between them but not after the code and the result."""

    def __init__(self, width: int, widths: list[int]):
        super().__init__()
        sizes = [width, *widths, width]
        self.encoder = nn.ModuleList([_layer(a, b) for a, b in pairwise(sizes)])
        self.decoder = nn.ModuleList([_layer(b, a) for a, b in reversed(list(pairwise(sizes)))])

    @staticmethod
    def through(layers: nn.ModuleList, h: Tensor) -> Tensor:
        """Apply the encoder's or decoder's layers."""
        for place, layer in enumerate(layers):
            h = layer(torch.relu(h) if place else h)
        return h


def _layer(a: int, b: int) -> Linear:
    layer = Linear(a, b)
    nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain("relu"))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def deep_clusters(h: Tensor, params: Params) -> Tensor:
    """Assign embeddings h [N, H] to K clusters by deep embedded clustering: the cluster of each, [N]."""
    p = params
    net = Autoencoder(h.size(1), list(p.autoencoder_widths)).to(h)
    _pretrain(net, h, p)

    def rebuilt(batch: Tensor) -> Tensor:
        return F.mse_loss(net.through(net.decoder, net.through(net.encoder, F.dropout(batch, 0.2))), batch)

    _descend(list(net.parameters()), rebuilt, h, 0.01, p.finetune_epochs, p.batch)
    with torch.no_grad():
        codes = net.through(net.encoder, h)
    centres = nn.Parameter(_centres(codes, p.prototypes))

    def divergence(batch: Tensor) -> Tensor:
        q = soft_assignment(net.through(net.encoder, batch), centres)
        return F.kl_div(q.log(), target_distribution(q).detach(), reduction="sum") / len(q)

    labels = torch.cdist(codes, centres.detach()).argmin(1)
    trained = [*net.encoder.parameters(), centres]
    optimizer = SGD(trained, 0.01, momentum=0.9)
    for _ in range(p.cluster_epochs):
        _epoch(optimizer, divergence, h, p.batch)
        with torch.no_grad():
            clusters = soft_assignment(net.through(net.encoder, h), centres).argmax(1)
        if torch.equal(clusters, labels):
            break
        labels = clusters
    return labels


def _pretrain(net: Autoencoder, h: Tensor, p: Params) -> None:
    """Train each layer of the encoder with the decoder's last layers, to rebuild what it reads."""
    for place, (encode, decode) in enumerate(zip(net.encoder, reversed(net.decoder), strict=True)):
        last = place == len(net.encoder) - 1

        def rebuilt(batch: Tensor, encode: Any = encode, decode: Any = decode, last: bool = last) -> Tensor:
            code = encode(batch)
            return F.mse_loss(decode(code if last else F.dropout(torch.relu(code), 0.2)), batch)

        _descend([*encode.parameters(), *decode.parameters()], rebuilt, h, 0.1, p.autoencoder_epochs, p.batch)
        with torch.no_grad():
            h = torch.relu(encode(h))


def _centres(codes: Tensor, k: int) -> Tensor:
    """Return the best of several runs of k-means, by the sum of squared distances, [K, H']."""
    runs = [clustered(codes, k, seed)[0] for seed in range(RESTARTS)]
    return min(runs, key=lambda centres: float(torch.cdist(codes, centres).min(1).values.square().sum()))


def _descend(
    trained: list[nn.Parameter], loss: Callable[[Tensor], Tensor], h: Tensor, lr: float, epochs: int, batch: int
) -> None:
    optimizer = SGD(trained, lr, momentum=0.9)
    for _ in range(epochs):
        _epoch(optimizer, loss, h, batch)


def _epoch(optimizer: SGD, loss: Callable[[Tensor], Tensor], h: Tensor, batch: int) -> None:
    for rows in _batches(len(h), batch):
        optimizer.zero_grad()
        loss(h[rows.to(h.device)]).backward()
        optimizer.step()


def _batches(total: int, size: int) -> Iterator[Tensor]:
    yield from torch.randperm(total).split(size)
