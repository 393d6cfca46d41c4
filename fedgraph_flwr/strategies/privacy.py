"""Client-level differential privacy for FedAvg-like strategies: Flower's fixed-clipping wrappers, and an accountant beside them.

    Δ̄_i = Δ_i · min(1, C / ‖Δ_i‖₂),   θ^{t+1} = θ^t + (1/n) Σ_i Δ̄_i + N(0, (z C / n)² I)       McMahan et al., ICLR 2018

z is ``privacy.noise_multiplier``, C ``privacy.clipping_norm``, n the clients whose updates are averaged. The server clips
(``server_fixed``) or each client does (``client_fixed``); the server draws the noise, afresh and never from the run's seed,
from which anybody could subtract it. What is accounted is the sequence of released models, as Gaussian mechanisms composed by
Rényi differential privacy, with no amplification by sampling. Scores and training losses are not covered.

A run that dies may have released models that no record tells of, and its resumption draws other noise for the same rounds. So
a checkpoint books, ahead, every release that may come before the next one, and a resumption books its own before its first.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.messages import MODEL
from fedgraph_flwr.trees import Tree

if TYPE_CHECKING:
    from fedgraph_flwr.strategies.base import GraphStrategy


class Accounted(Strategy):
    """A wrapper of Flower's whose noise is scaled to the replies at hand, with an accountant of its own.

    Flower's accounting asks for its own FedAvg, unchanged; the strategies here average in a stable order.
    """

    noise_multiplier: float
    num_sampled_clients: int
    releases: int
    ledger: RdpAccountant

    def released(self, count: int) -> None:
        """Book models that left the server."""
        self.releases += count
        if count and self.noise_multiplier:
            population = self.ledger.config.population_size
            self.ledger.compose(GaussianPrivacyEvent(self.noise_multiplier, population, population), count)

    def spent(self) -> dict[str, Any]:
        """Releases so far, and the ε they cost at the run's δ; null where there is no noise."""
        delta, epsilon = self.ledger.config.target_delta, None
        if self.noise_multiplier:
            epsilon = self.ledger.get_epsilon(delta) if self.releases else 0.0
        return {"epsilon": epsilon, "delta": delta, "releases": self.releases}

    def state(self, ahead: int) -> Tree:
        """What a checkpoint holds: the noise, and the releases so far with those that may come ``ahead`` of the next one."""
        booked = {"releases": self.releases + ahead, "noise_multiplier": self.noise_multiplier}
        return {key: torch.tensor(value, dtype=torch.float64) for key, value in booked.items()}

    def load_state(self, state: Tree) -> None:
        """Book what `state` told, before anything else is released.

        Raises:
            FedGraphError: the checkpoint's releases had other noise, or none.
        """
        noise = float(state.get("noise_multiplier", torch.tensor(0.0)))
        if noise != self.noise_multiplier:
            raise FedGraphError(
                f"the run to resume released its models with privacy.noise_multiplier={noise:g}, this one would with"
                f" {self.noise_multiplier:g}: one ε covers one noise, so keep it"
            )
        self.released(int(state.get("releases", 0)))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip and average as the wrapper does, with the noise that as many clients need as are averaged."""
        messages = list(replies)
        if odd := [name for message in messages for name in message.content.array_records if name != MODEL]:
            raise FedGraphError(f"privacy.dp covers shared parameters only, but clients also send '{odd[0]}'")
        self.num_sampled_clients = len(messages)
        np.random.seed()  # fresh entropy, whatever was seeded before
        try:
            answer = super().aggregate_train(server_round, messages)  # type: ignore[safe-super]
        except ZeroDivisionError as error:
            raise RunFailed(f"round {server_round}: a client's update is zero, which cannot be clipped") from error
        self.released(1)
        return answer


class ServerClips(Accounted, DifferentialPrivacyServerSideFixedClipping):
    """The server sees updates as they are, clips them, and adds noise to their mean."""


class ClientsClip(Accounted, DifferentialPrivacyClientSideFixedClipping):
    """Each client clips its update; the server adds noise to their mean."""


_WRAPPERS: dict[str, type[Any]] = {"server_fixed": ServerClips, "client_fixed": ClientsClip}


def private(strategy: "GraphStrategy") -> Accounted:
    """The wrapper that ``privacy.dp`` names, in front of a connected strategy.

    Raises:
        FedGraphError: the method is not FedAvg but for its local objective, or its clients weigh differently.
    """
    cfg, privacy = strategy.cfg, strategy.cfg.privacy
    if not (strategy.plain_average and cfg.strategy.shared):
        what = "exchanges or averages more than that" if cfg.strategy.shared else "shares nothing"
        raise FedGraphError(
            f"privacy.dp={privacy.dp} covers the plain average of clipped models, and {cfg.strategy.name} {what};"
            " use fedavg or fedprox, or privacy.dp=none"
        )
    if cfg.strategy.weighting != "uniform":
        raise FedGraphError(
            f"privacy.dp={privacy.dp} bounds each client's share by 1/n: set strategy.weighting=uniform, not"
            f" {cfg.strategy.weighting}"
        )
    if cfg.resume and Path(cfg.resume).resolve() != Path(cfg.out).resolve():
        raise FedGraphError(
            f"a run with privacy.dp goes on in its own folder, where its releases are booked: out={cfg.out} is not"
            f" resume={cfg.resume}"
        )
    front: Accounted = _WRAPPERS[privacy.dp](strategy, privacy.noise_multiplier, privacy.clipping_norm, 1)
    relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    front.ledger = RdpAccountant(PrivacyConfig(privacy.delta, len(strategy.clients), relation, sampling))
    front.releases = 0
    return front
