"""Classes by the names they have in a configuration, and the keys that a class declares as its own."""

import dataclasses
import importlib
from importlib.util import find_spec
from typing import Any

from fedgraph_flwr.config.schema import RunConfig, typed
from fedgraph_flwr.errors import FedGraphError


def locate(target: str) -> Any:
    """The class named ``module:Class``, as in a strategy's YAML.

    ``strategies.`` and ``clients.`` alone, as configurations stored before version 0.1 have them, mean ours.

    Raises:
        FedGraphError: there is no such module or class.
    """
    module, _, name = target.partition(":")
    if module.startswith(("strategies.", "clients.")) and find_spec(f"{__package__}.{module}"):
        module = f"{__package__}.{module}"
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FedGraphError(f"'{target}' cannot be imported ({error}); expected module:Class") from error


def method_params(cls: Any, cfg: RunConfig) -> Any:
    """The ``Params`` dataclass of a strategy or client class, filled from the method's own keys."""
    names = {f.name for f in dataclasses.fields(cls.Params)}
    values = {k: v for k, v in cfg.strategy.params.items() if k in names}
    return typed(cls.Params, values, f"strategy={cfg.strategy.name}")


def own_keys(cfg: RunConfig) -> set[str]:
    """The method's own keys, of both sides."""
    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    return {f.name for side in sides for f in dataclasses.fields(side.Params)}
