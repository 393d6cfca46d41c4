"""What is asked of a method, its network and their keys before any client starts."""

import dataclasses

from fedgraph_flwr import models
from fedgraph_flwr.config.schema import RunConfig, StrategyConfig
from fedgraph_flwr.errors import unknown
from fedgraph_flwr.lookup import locate, method_params, own_keys


def check_method(cfg: RunConfig) -> None:
    """Check the method's own keys against its server and client ``Params``, then the network's, and that the two go together.

    Raises:
        FedGraphError: a key that nobody knows, a wrong type or value, or a network that the method cannot train.
    """
    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    accepted = own_keys(cfg)
    for key in cfg.strategy.params:
        if key not in accepted:
            raise unknown(
                f"strategy {cfg.strategy.name}: key",
                key,
                accepted | {f.name for f in dataclasses.fields(StrategyConfig)},
            )
    for side in sides:
        method_params(side, cfg)
    model = models.probe(cfg.model)
    for side in sides:
        side.check(cfg, model)


def remarks(cfg: RunConfig) -> list[str]:
    """What the user is told at the start: sentences of the method's two sides on what this configuration makes of it."""
    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    return [remark for side in sides if (remark := side.remark(cfg))]
