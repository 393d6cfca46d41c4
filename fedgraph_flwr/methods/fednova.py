"""FedNova: its keys, and the effective number of steps of a client's training."""

from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, TrainConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Mean, Uplink
from fedgraph_flwr.wire.messages import MODEL, TRAIN


@dataclass
class Params:
    """Keys of FedNova."""

    mu: float = 0.0  # μ of the proximal variant; 0: none, as in most of the paper's runs

    def check(self, cfg: RunConfig) -> None:
        """Refuse a configuration for whose steps a_i is not known.

        Raises:
            FedGraphError: names the keys.
        """
        train = cfg.train
        if self.mu and not train.plain_sgd:
            raise FedGraphError(
                f"strategy.mu={self.mu:g} of FedNova needs train.optimizer=sgd and train.momentum=0, got"
                f" train.optimizer={train.optimizer} and train.momentum={train.momentum:g}: set them or strategy.mu=0"
            )
        if not self.mu * train.lr < 1:
            raise FedGraphError(
                f"strategy.mu times train.lr must be below 1, got {self.mu * train.lr:g}: lower one of them"
            )
        if train.optimizer == "sgd" and train.momentum and train.keeps_optimizer:
            raise FedGraphError(
                "FedNova restarts the momentum each round: set train.optimizer_state=reset, got keep with"
                f" train.momentum={train.momentum:g}"
            )


def work(steps: int, train: TrainConfig, mu: float) -> float:
    """Compute ‖a‖₁ of K steps: K; with momentum ρ, [K − ρ(1 − ρ^K)/(1 − ρ)]/(1 − ρ); proximal, [1 − (1 − ημ)^K]/(ημ)."""
    if mu:
        pull = train.lr * mu
        return (1 - (1 - pull) ** steps) / pull
    if train.optimizer == "sgd" and (rho := train.momentum):
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    return float(steps)


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, weighted by p_i/‖a_i‖₁, where K_i and so a_i follow from the configuration."""

    def worth(client: int) -> float:
        length = work(cfg.train.steps_of(client), cfg.train, params.mu)
        return 1 / length if length else 0.0

    return {TRAIN: {MODEL: Mean(ARRAYS, origin=ARRAYS, scale=worth, trained=True)}}
