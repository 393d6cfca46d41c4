"""What is asked of a method, its network and their keys before any client starts."""

import dataclasses

from fedgraph_flwr import models
from fedgraph_flwr.config.schema import RunConfig, StrategyConfig
from fedgraph_flwr.errors import unknown
from fedgraph_flwr.evaluation import adversaries
from fedgraph_flwr.lookup import locate, method_params
from fedgraph_flwr.strategies import aggregators, privacy


def check_method(cfg: RunConfig) -> None:
    """Check the method's own keys against its server and client ``Params``, then the network's, and that the two go together.

    Raises:
        FedGraphError: a key that nobody knows, a wrong type or value, or a network that the method cannot train.
    """
    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    accepted = {f.name for side in sides for f in dataclasses.fields(side.Params)}
    for key in cfg.strategy.params:
        if key not in accepted:
            raise unknown(
                f"strategy {cfg.strategy.name}: key",
                key,
                accepted | {f.name for f in dataclasses.fields(StrategyConfig)},
            )
    for side in sides:
        method_params(side, cfg)
    aggregators.check(cfg, sides[0].averages)
    privacy.check(cfg, sides[0].plain_average)
    adversaries.check(cfg, sides[0].averages)
    model = models.probe(cfg.model)
    for side in sides:
        side.check(cfg, model)


def check_clients(cfg: RunConfig) -> None:
    """Check what depends on how many clients there are, once that is settled.

    Raises:
        FedGraphError: too few of them, one that is not there, or a δ or budget that does not suit them.
    """
    aggregators.check_cohort(cfg)
    privacy.check_clients(cfg)
    adversaries.check_clients(cfg)
