"""FedFA client (Zhou & Konukoglu, ICLR 2023, arXiv:2301.12995), on graphs.

With probability p, a training pass treats the features X of a hidden layer as K instances. It draws new statistics of each
channel from Gaussians around those of the instances (Section 3):

    μ_k, σ_k = mean, √(variance + ε) of X over instance k                                             [K, H]
    μ̄ ← α μ̄ + (1 − α) mean_k μ_k,   σ̄ ← α σ̄ + (1 − α) mean_k σ_k                                   running, [H]
    v_μ = Var_k(μ_k) + ε,   v_σ = Var_k(σ_k) + ε                                                      the client's own, [H]
    γ_j = H w_j / Σ_h w_h,   w_j = 1 / (1 + 1 / (S_j + ε)),   S the variance of μ̄ (of σ̄) over clients
    β_k ~ N(μ_k, (1 + γ_μ) v_μ),   g_k ~ N(σ_k, (1 + γ_σ) v_σ),   X ← g_k (X − μ_k) / σ_k + β_k

An image has its own statistics over its pixels; a node has one vector. Here (ours) an instance is a random group of the
client's nodes. Each time, K new groups are drawn, of equal size up to one node and at least two nodes. If a client has nodes
for only one group, v is its squared distance to μ̄ (σ̄) before that step. Hidden features are those after the activation.
Scoring changes nothing. Leaves the client: the model, and for each hidden layer the running mean and standard deviation [H] of
features over all its nodes.
"""

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.methods import fedfa
from fedgraph_baselines.methods.fedfa import EPS, GAPS, GROUPS, MOMENTUM, RUNNING, SPREAD, STATISTICS
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.clients.replies import Received
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.stack import Stack
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check


class FedFAClient(GraphClient, method=fedfa):
    """FedAvg's client with augmented hidden features in training.

    Attributes:
        running: μ̄ and σ̄ of each hidden layer, [L-1, H], as received and updated since.
        spread: S of each, [L-1, H].
        received: μ̄ and σ̄ as received.
    """

    stacks: ClassVar[tuple[str, ...] | None] = None  # its model draws more than dropout's masks
    model: Stack

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.running: dict[str, Tensor] = Received({}, "running statistics")
        self.spread: dict[str, Tensor] = {}
        self.received: Arrays = {}
        if self.params.p:  # at 0 nothing is drawn, so that dropout is FedAvg's
            self.model.after_hidden = self.augment

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require hidden layers whose features can be changed."""
        if not isinstance(model, Stack) or not len(model.layers):
            got = f"model={cfg.model.name} with model.layers={cfg.model.layers}"
            raise unfit(cfg, "a stack of at least 2 layers", got, "set model=gcn, say, and model.layers=2")
        if set(model.widths) != {cfg.model.hidden}:
            width = f"hidden layers of width model.hidden={cfg.model.hidden}"
            raise unfit(cfg, width, f"model.widths={model.widths}", "leave model.widths empty")

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the running statistics and their spread; a model that is only scored comes without them."""
        if RUNNING in groups:
            shape = len(self.model.layers), self.cfg.model.hidden
            field = ArrayField(shape, self.cfg.dtype), ArrayField(shape, self.cfg.dtype, low=0)
            for group, spec in zip((RUNNING, SPREAD), field, strict=True):
                check(groups[group], dict.fromkeys(STATISTICS, spec), f"the server sent {group} statistics")
            self.running, self.spread = (
                {key: torch.from_numpy(groups[group][key]).to(self.device) for key in STATISTICS}
                for group in (RUNNING, SPREAD)
            )
            self.received = {key: groups[RUNNING][key].astype(np.float64) for key in STATISTICS}

    def send(self) -> ReplyContent:
        """Send the running statistics, and their differences from those received."""
        if not self.running:
            return {}, {}
        now = {key: to_numpy(value) for key, value in self.running.items()}
        gaps = {key: now[key].astype(np.float64) - self.received[key] for key in STATISTICS}
        moved = {f"gap {key}": gap for key, gap in gaps.items()} | {
            f"square {key}": gap**2 for key, gap in gaps.items()
        }
        return {RUNNING: now, GAPS: moved}, {}

    def augment(self, h: Tensor, layer: int) -> Tensor:
        """Return features [N, H] of a hidden layer, augmented in training with probability p."""
        n = h.size(0)
        # Drawn on the CPU, so that a run on a GPU uses the same numbers.
        if not self.model.training or n < 2 or float(torch.rand(())) >= self.params.p:
            return h
        groups = max(min(GROUPS, n // 2), 1)
        member = (torch.randperm(n) % groups).to(h.device)
        noise = torch.randn(2, groups, h.size(1), dtype=h.dtype).to(h.device)
        size = member.bincount(minlength=groups).to(h.dtype)[:, None]
        among = F.one_hot(member, groups).to(h.dtype).T  # [K, N]
        mean = among @ h / size
        centred = h - mean[member]
        std = (among @ centred.square() / (size - 1) + EPS).sqrt()
        drawn = []
        for key, statistic, draw in zip(STATISTICS, (mean, std), noise, strict=True):
            running = self.running[key][layer]
            variance = EPS + (statistic.var(0) if groups > 1 else (statistic[0] - running).square())
            drawn.append(statistic + draw * ((1 + sharing(self.spread[key][layer], EPS)) * variance).sqrt())
            if n < self.least:  # keep the received values: a mean over so few nodes is not sent
                continue
            with torch.no_grad():
                running.mul_(MOMENTUM).add_(statistic.mean(0), alpha=1 - MOMENTUM)
        return drawn[1][member] * centred / std[member] + drawn[0][member]


def sharing(spread: Tensor, eps: float) -> Tensor:
    """Compute γ [H] from the variances over clients [H]: positive, with mean 1."""
    w = 1 / (1 + 1 / (spread + eps))
    return w.numel() * w / w.sum()
