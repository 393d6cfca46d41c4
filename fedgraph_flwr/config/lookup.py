"""Lookup of classes named in a configuration, and of the keys that a class declares."""

import copy
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgraph_flwr.config.schema import RunConfig, default_of, is_own, section_of, typed
from fedgraph_flwr.data.plugins import BASELINES
from fedgraph_flwr.errors import FedGraphError, located


@dataclasses.dataclass
class NoParams:
    """Params of a method without additional keys."""


def locate(target: str) -> Any:
    """Import the class named ``module:Class``, as in a strategy's YAML.

    Raises:
        FedGraphError: the module or class cannot be imported.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        why = error if isinstance(error, ImportError | AttributeError) else located(error)
        what = f"'{target}' cannot be imported ({why})"
        fix = "; expected module:name, installed or on PYTHONPATH (PYTHONPATH=. for this folder)"
        raise FedGraphError(what if isinstance(error, FedGraphError) else f"{what}{fix}") from error


def named_code(cfg: RunConfig) -> dict[str, str]:
    """Return the values of a configuration that name code loaded by clients as ``module:name``, by key."""
    targets = {"strategy.client": cfg.strategy.client}
    if ":" in cfg.model.name:
        targets["model"] = cfg.model.name
    targets |= {f"strategy part {section_of(target)}": target for target in _own_parts(cfg)}
    return targets | {f"evaluation.metrics ({name})": target for name, target in cfg.evaluation.own.items()}


def _own_parts(cfg: RunConfig) -> list[str]:
    """Return the parts of a method that are not built in, as ``module:NAME``."""
    rules = cfg.strategy
    named = (*rules.objective, rules.variates, rules.personalization, rules.server_optimizer)
    return [name for name in named if is_own(name)]


def function(target: str, key: str) -> Callable[..., Any]:
    """Import the user's function that a key names as ``module:function``.

    Raises:
        FedGraphError: it cannot be imported or called.
    """
    member = locate(target)
    if not callable(member):
        raise FedGraphError(f"{key}={target} is not callable: expected module:function")
    return member


def maker(target: str, key: str) -> Callable[..., Any]:
    """Import the user's function that a key names and that is called with values of the configuration.

    A run folder of someone else has a configuration, too, so functions of the standard library, of this package and of packages
    that do not depend on it are refused: `subprocess:run` would execute a command.

    Raises:
        FedGraphError: it cannot be imported or called, or is not the user's.
    """
    factory = function(target, key)
    for name in {target.partition(":")[0], str(getattr(factory, "__module__", None) or "builtins")}:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in (__name__.partition(".")[0], BASELINES) or _is_library(name, top):
            raise FedGraphError(
                f"{key}={target} is a function of {top}, which is not written for this package: pass one of your own module,"
                " on PYTHONPATH or in a package that depends on fedgraph-flwr"
            )
    return factory


_ON_US = re.compile(r"fedgraph[-_]flwr\b", re.IGNORECASE)


@functools.cache
def _is_library(name: str, top: str) -> bool:
    """Return whether an imported module belongs to an installed distribution that does not depend on this one."""
    if not {"site-packages", "dist-packages"} & {*Path(getattr(sys.modules.get(name), "__file__", None) or "").parts}:
        return False
    dists = importlib.metadata.packages_distributions().get(top, [])
    return not all(any(_ON_US.match(line) for line in importlib.metadata.requires(dist) or ()) for dist in dists)


def method_params(cls: Any, cfg: RunConfig) -> Any:
    """Return the ``Params`` dataclass of a strategy or client class, filled from the method's keys."""
    names = {f.name for f in dataclasses.fields(cls.Params)}
    values = {k: v for k, v in cfg.strategy.params.items() if k in names}
    return copy.deepcopy(_filled(cls.Params, json.dumps(values), f"strategy={cfg.strategy.name}"))


@functools.lru_cache(maxsize=64)
def _filled(schema: Any, values: str, chosen: str) -> Any:
    """Call `typed` on JSON values; cached, since checks take milliseconds and clients of a process share values."""
    return typed(schema, json.loads(values), chosen)


def params_of(server: str, client: str) -> list[type]:
    """Return the ``Params`` dataclasses of a method's two classes, the server's first.

    Raises:
        FedGraphError: a class cannot be imported.
    """
    sides = (getattr(locate(side), "Params", NoParams) for side in (server, client))
    return list(dict.fromkeys(sides))


def own_keys(cfg: RunConfig) -> set[str]:
    """Return the method's keys, of both sides, and the sections of parts that are not built in."""
    return {*own_defaults(cfg.strategy.server, cfg.strategy.client), *map(section_of, _own_parts(cfg))}


def own_defaults(server: str, client: str) -> dict[str, Any]:
    """Return the method's keys with the defaults of its ``Params``.

    Raises:
        FedGraphError: a class cannot be imported.
    """
    return {f.name: default_of(f) for params in params_of(server, client) for f in dataclasses.fields(params)}
