"""Classes by the names they have in a configuration, and the keys that a class declares as its own."""

import copy
import dataclasses
import functools
import importlib
import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from fedgraph_flwr.config.schema import RunConfig, typed
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.moved import successor


@dataclasses.dataclass
class NoParams:
    """Keys of a method without its own."""


def full_name(target: str) -> str:
    """``module:name`` as it is now: see `locate`."""
    module, colon, name = target.partition(":")
    try:
        ours = module.startswith(("strategies.", "clients.")) and find_spec(f"fedgraph_flwr.{module}")
    except ModuleNotFoundError:  # of what it stands below
        ours = False
    return successor(f"fedgraph_flwr.{module}" if ours else module) + colon + name


def locate(target: str) -> Any:
    """The class named ``module:Class``, as in a strategy's YAML.

    ``strategies.`` and ``clients.`` alone, as configurations stored before version 0.1 have them, mean ours.

    Raises:
        FedGraphError: there is no such module or class.
    """
    module, _, name = full_name(target).partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise FedGraphError(
            f"'{target}' cannot be imported ({error}); expected module:name, installed or on PYTHONPATH"
        ) from error


def named_code(cfg: RunConfig) -> dict[str, str]:
    """What of a configuration names code as ``module:name`` and is loaded where a client lives, by key."""
    found = {"strategy.client": cfg.strategy.client}
    if ":" in cfg.model.name:
        found["model"] = cfg.model.name
    found |= {f"evaluation.metrics ({name})": target for name, target in cfg.evaluation.own.items()}
    return {key: full_name(target) for key, target in found.items()}


def function(target: str, key: str) -> Callable[..., Any]:
    """The function of the user's own that a key names as ``module:function``.

    Raises:
        FedGraphError: there is none, or it cannot be called.
    """
    found = locate(target)
    if not callable(found):
        raise FedGraphError(f"{key}={target} is no function")
    return found


def method_params(cls: Any, cfg: RunConfig) -> Any:
    """The ``Params`` dataclass of a strategy or client class, filled from the method's own keys."""
    names = {f.name for f in dataclasses.fields(cls.Params)}
    values = {k: v for k, v in cfg.strategy.params.items() if k in names}
    return copy.deepcopy(_filled(cls.Params, json.dumps(values), f"strategy={cfg.strategy.name}"))


@functools.lru_cache(maxsize=64)
def _filled(schema: Any, values: str, chosen: str) -> Any:
    """As `typed`, of values in JSON: to check them takes milliseconds, and every client of a process has the same."""
    return typed(schema, json.loads(values), chosen)


def own_keys(cfg: RunConfig) -> set[str]:
    """The method's own keys, of both sides."""
    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    return {f.name for side in sides for f in dataclasses.fields(side.Params)}
