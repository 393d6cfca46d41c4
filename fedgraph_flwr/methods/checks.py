"""What is asked of a method, its network and their keys before any client starts."""

import dataclasses

from fedgraph_flwr import models
from fedgraph_flwr.config.composition import group_file, group_names
from fedgraph_flwr.config.schema import RunConfig, StrategyConfig
from fedgraph_flwr.errors import unknown
from fedgraph_flwr.lookup import locate, method_params
from fedgraph_flwr.models.base import HEAD


def check_method(cfg: RunConfig) -> None:
    """Check the method's own keys against its server and client ``Params``, then the network's, and that the two go together.

    Raises:
        FedGraphError: a key that nobody knows, a wrong type or value, a prefix that fits no parameter, or a network that the
            method cannot train.
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
    model = models.probe(cfg.model)
    for side in sides:
        side.check(cfg, model)
    _check_prefixes(cfg, model)


def _check_prefixes(cfg: RunConfig, model: models.Model) -> None:
    """Refuse a prefix that fits no parameter, unless the method's own file has it: it may serve several forms of a network."""
    if model.heterogeneous:  # the names depend on the types of a graph
        return
    known = cfg.strategy.name in group_names("strategy")
    own = group_file("strategy", cfg.strategy.name) if known else {}
    for key in ("shared", "private"):
        for prefix in getattr(cfg.strategy, key):
            if prefix not in (own.get(key) or []) and not model.shared([prefix]):
                raise unknown(f"strategy.{key}", prefix, ["", HEAD, *model.shared([""])], f"model={cfg.model.name}")
