"""Parts that a configuration combines into a method, and their older spellings.

A part has a name and keys below it (``strategy.adam.tau``), a field of `StrategyConfig` each. Before there were parts, methods
had classes and keys of their own: `modernise` reads both.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedgraph_flwr.config.schema import Section, StrategyConfig
from fedgraph_flwr.moved import RETIRED, current

KEYS: dict[str, type] = {
    f.name: f.type for f in fields(StrategyConfig) if isinstance(f.type, type) and issubclass(f.type, Section)
}
"""The dataclass of keys of each part."""

CHOICES = ("objective", "personalization", "server_optimizer")
"""Keys of `StrategyConfig` that choose parts."""

METHOD = {"server", "client", "shared", "private", "personal", "pooled", "private_schema", *CHOICES, *KEYS}
"""Keys of `StrategyConfig` that say what a method is: another method starts without them."""


def chosen(strategy: Mapping[str, Any]) -> list[str]:
    """The parts with keys that a strategy's section chooses."""
    found: list[str] = []
    for key in CHOICES:
        value = strategy.get(key) or ()
        found += [value] if isinstance(value, str) else list(value)
    return [name for name in found if name in KEYS]


def modernise(body: dict[str, Any], below: Mapping[str, Any], own: bool) -> None:
    """Replace classes and keys of before there were parts, in a strategy's section.

    Args:
        body: the section of one layer, which is changed; keys of no field are below ``params``.
        below: the section of all layers below it.
        own: whether the layer is a user's overrides, whose parts have no older keys.
    """
    retired: dict[str, Any] = {}
    for side in ("server", "client"):
        target = current(str(body.get(side, "")))
        if target in RETIRED:
            replaced, parts = RETIRED[target]
            body[side] = replaced
            retired |= parts
    for key, value in retired.items():
        body.setdefault(key, value)
    named = {**below, **retired} if own else {**below, **body}
    params = body.get("params") or {}
    for part in chosen(named):
        for f in fields(KEYS[part]):
            if f.name in params:
                body[part] = {**(body.get(part) or {}), f.name: params.pop(f.name)}


def defaults(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Default of each key of the chosen parts, by ``part.key``."""
    return {f"{part}.{name}": value for part in chosen(strategy) for name, value in vars(KEYS[part]()).items()}


def key_names(strategy: Mapping[str, Any]) -> set[str]:
    """Keys of the chosen parts, as ``part.key`` and in the older form ``key``."""
    full = set(defaults(strategy))
    return full | {key.partition(".")[2] for key in full}
