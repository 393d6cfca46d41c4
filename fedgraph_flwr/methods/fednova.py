"""FedNova: the effective number of steps of a client's training."""

from typing import Any

from fedgraph_flwr.config import RunConfig, TrainConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Mean, Uplink
from fedgraph_flwr.methods.variates import need_plain_sgd
from fedgraph_flwr.wire.messages import MODEL, TRAIN


def proximal(cfg: RunConfig) -> float:
    """μ of the proximal variant; 0: clients have no proximal term."""
    return cfg.strategy.prox.mu if "prox" in cfg.strategy.objective else 0.0


def check(cfg: RunConfig) -> None:
    """Refuse local steps whose a_i is not known.

    Raises:
        FedGraphError: with the keys to change.
    """
    train, mu = cfg.train, proximal(cfg)
    if mu:
        need_plain_sgd(f"strategy.prox.mu={mu:g} of FedNova", train, "strategy.prox.mu=0")
    if not mu * train.lr < 1:
        raise FedGraphError(
            f"strategy.prox.mu times train.lr must be below 1, got {mu * train.lr:g}: lower one of them"
        )
    if train.local_epochs:
        raise FedGraphError(
            f"FedNova weights clients by steps that the configuration sets, but train.local_epochs={train.local_epochs} depends"
            " on a client's items: set train.local_steps or train.local_steps_by_client"
        )
    if train.optimizer == "sgd" and train.momentum and train.keeps_optimizer:
        raise FedGraphError(
            f"FedNova restarts train.momentum={train.momentum:g} each round: set train.optimizer_state=reset, not keep"
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
        length = work(cfg.train.steps_of(client), cfg.train, proximal(cfg))
        return 1 / length if length else 0.0

    return {TRAIN: {MODEL: Mean(ARRAYS, origin=ARRAYS, scale=worth, trained=True)}}
