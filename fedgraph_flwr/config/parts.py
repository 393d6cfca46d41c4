"""Parts that a configuration combines into a method, and their older spellings.

A part has a name and keys below it (``strategy.adam.tau``), a field of `StrategyConfig` each. Earlier releases had one class and
separate keys per method; `modernise` reads both forms.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedgraph_flwr.config.config_file import flat
from fedgraph_flwr.config.schema import Section, StrategyConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.moved import RETIRED, current

KEYS: dict[str, type] = {
    f.name: f.type for f in fields(StrategyConfig) if isinstance(f.type, type) and issubclass(f.type, Section)
}
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
    _check_sides(body, below)
    for side in ("server", "client"):
        target = current(str(body.get(side, "")))
        if target in RETIRED:
            replaced, parts = RETIRED[target]
            body[side] = replaced
            retired |= parts
    for key, value in retired.items():
        body.setdefault(key, value)
    named = {**below, **retired} if own else {**below, **body}
    params, held = body.get("params") or {}, flat(body)
    for part in chosen(named):
        for f in fields(KEYS[part]):
            methods = f.name in (below.get("params") or {}) if own else f"{part}.{f.name}" in held
            if f.name in params and not methods:  # a method may have an own key of the same name
                body[part] = {**(body.get(part) or {}), f.name: params.pop(f.name)}


def modernise_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of a stored configuration, with classes and keys of before there were parts replaced."""
    own = {key.partition(".")[2]: value for key, value in keys.items() if key.startswith("strategy.")}
    params = {key.partition(".")[2]: value for key, value in own.items() if key.startswith("params.")}
    body = {key: value for key, value in own.items() if not key.startswith("params.")} | {"params": params}
    modernise(body, {}, own=False)
    rest = {key: value for key, value in keys.items() if not key.startswith("strategy.")}
    return rest | {f"strategy.{key}": value for key, value in flat(body).items()}


def _check_sides(body: Mapping[str, Any], below: Mapping[str, Any]) -> None:
    """Refuse an older class that is one side of variates, next to a class that is not the other side.

    Raises:
        FedGraphError: names both.
    """
    for side, other in (("server", "client"), ("client", "server")):
        found = RETIRED.get(current(str(body.get(side, ""))), ("", {}))[1].get("variates")
        if not found:
            continue
        if other in body:
            matches = RETIRED.get(current(str(body[other])), ("", {}))[1].get("variates") == found
        else:
            matches = below.get("variates") == found
        if not matches:
            target = body.get(other) or below.get(other) or getattr(StrategyConfig, other)
            raise FedGraphError(
                f"strategy.{side}={body[side]} is one side of strategy.variates={found}, and strategy.{other}={target} is not"
                f" the other: set strategy.variates={found}, which chooses both sides"
            )


def defaults(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Default of each key of the chosen parts, by ``part.key``."""
    return {f"{part}.{name}": value for part in chosen(strategy) for name, value in vars(KEYS[part]()).items()}


def key_names(strategy: Mapping[str, Any]) -> set[str]:
    """Keys of the chosen parts, as ``part.key`` and in the older form ``key``."""
    full = set(defaults(strategy))
    return full | {key.partition(".")[2] for key in full}
