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
from fedgraph_flwr.errors import FedGraphError, located
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
    except Exception as error:
        what = error if isinstance(error, ImportError | AttributeError) else located(error)
        raise FedGraphError(
            f"'{target}' cannot be imported ({what}); expected module:name, installed or on PYTHONPATH"
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


def params_of(server: str, client: str) -> list[type]:
    """The ``Params`` dataclasses of a method's two classes, the server's first.

    Raises:
        FedGraphError: there is no such class.
    """
    sides = (getattr(locate(side), "Params", NoParams) for side in (server, client))
    return list(dict.fromkeys(sides))


def own_keys(cfg: RunConfig) -> set[str]:
    """The method's own keys, of both sides."""
    return {
        f.name for params in params_of(cfg.strategy.server, cfg.strategy.client) for f in dataclasses.fields(params)
    }


def default_of(f: "dataclasses.Field[Any]") -> Any:
    """A field's value where nothing is said."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def own_defaults(server: str, client: str) -> dict[str, Any]:
    """The method's own keys with their defaults, which nothing but its ``Params`` holds.

    Raises:
        FedGraphError: there is no such class.
    """
    return {f.name: default_of(f) for params in params_of(server, client) for f in dataclasses.fields(params)}
