"""Parts that a configuration combines into a method.

A part has a name and keys below it (``strategy.adam.tau``), a field of `StrategyConfig` each. A key's short form leaves out the
part's name (``strategy.tau``).
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedgraph_flwr.config.config_file import flat
from fedgraph_flwr.config.schema import StrategyConfig

KEYS: dict[str, Any] = {f.name: f.type for f in fields(StrategyConfig) if is_dataclass(f.type)}
"""The dataclass of keys of each part."""

CHOICES = ("objective", "variates", "personalization", "server_optimizer")
"""Keys of `StrategyConfig` that choose parts."""

METHOD = {"server", "client", "shared", "private", "personal", "pooled", "private_schema", *CHOICES, *KEYS}
"""Keys of `StrategyConfig` that say what a method is: another method starts without them."""


def chosen(strategy: Mapping[str, Any]) -> list[str]:
    """The parts with keys that a strategy's section chooses."""
    found: list[str] = []
    for key in CHOICES:
        value = strategy.get(key) or ()
        found += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [name for name in found if isinstance(name, str) and name in KEYS]


def lengthen(body: dict[str, Any], below: Mapping[str, Any]) -> None:
    """Move short keys of chosen parts, such as ``mu``, from ``params`` to the part, unless the method has a key of that name.

    Args:
        body: the strategy's section of one layer, which is changed.
        below: the section of all layers below it.
    """
    params, held = body.get("params") or {}, flat(body)
    for part in chosen({**below, **body}):
        for f in fields(KEYS[part]):
            if f.name in params and f.name not in (below.get("params") or {}) and f"{part}.{f.name}" not in held:
                body[part] = {**(body.get(part) or {}), f.name: params.pop(f.name)}


def defaults(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Default of each key of the chosen parts, by ``part.key``."""
    return {f"{part}.{name}": value for part in chosen(strategy) for name, value in vars(KEYS[part]()).items()}


def key_names(strategy: Mapping[str, Any]) -> set[str]:
    """Keys of the chosen parts, as ``part.key`` and in the short form ``key``."""
    full = set(defaults(strategy))
    return full | {key.partition(".")[2] for key in full}
