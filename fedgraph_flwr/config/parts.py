"""Parts that a configuration combines into a method.

A part has a name, keys below it (``strategy.adam.tau``), and up to two halves. The built-in ones are in
`fedgraph_flwr.methods.parts`; ``module:NAME`` names another `Part`, whose keys are below ``strategy.NAME``. The short form of a
built-in key leaves out the part's name (``strategy.tau``).
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

from fedgraph_flwr.config.config_file import dotted_keys
from fedgraph_flwr.config.lookup import NoParams, locate
from fedgraph_flwr.config.schema import CHOICES, StrategyConfig, default_of, is_own, section_of, typed
from fedgraph_flwr.errors import FedGraphError

KEYS: dict[str, Any] = {f.name: f.type for f in fields(StrategyConfig) if is_dataclass(f.type)}
"""The dataclass of keys of each built-in part."""

METHOD = {"server", "client", "shared", "private", "personal", "pooled", "private_schema", *CHOICES, *KEYS}
"""Keys of `StrategyConfig` that say what a method is: another method starts without them."""


@dataclass(frozen=True)
class Part:
    """A part: its keys, its halves, what travels, and what it needs of the method.

    Attributes:
        choice: the key of `CHOICES` that it is a value of.
        keys: dataclass of its keys.
        client: its half at the client as ``module:Class``, a `fedgraph_flwr.clients.client_part.ClientPart`; empty: none.
        server: its half at the server, a `fedgraph_flwr.strategies.server_part.ServerPart`; empty: none.
        uplink: reducers of the groups that leave a client with the trained model.
        downlink: inputs that come with a model to train.
        hooks: members that the method's client must have from `GraphClient`.
        shared: what it does to the shared parameters, if it needs some, as a verb.
        mean: whether it needs the mean of the clients' models.
        step: why the next model must be that mean; empty: it need not.
    """

    choice: str
    keys: type = NoParams
    client: str = ""
    server: str = ""
    uplink: Mapping[str, Any] = field(default_factory=dict)
    downlink: Mapping[str, Any] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    shared: str = ""
    mean: bool = False
    step: str = ""

    def __post_init__(self) -> None:
        halves = [half for half in (self.client, self.server) if half]
        for what, fits in {
            f"choice={self.choice!r}, expected one of: {', '.join(CHOICES)}": self.choice in CHOICES,
            f"keys={self.keys!r}, expected a dataclass with a default for each field": isinstance(self.keys, type)
            and is_dataclass(self.keys)
            and all(default_of(f) is not MISSING for f in fields(self.keys)),
            f"client={self.client!r} and server={self.server!r}, expected one or both as 'module:Class'": halves
            and all(map(is_own, halves)),
        }.items():
            if not fits:
                raise FedGraphError(f"Part with {what}", "own-code")


def chosen(strategy: Mapping[str, Any]) -> list[str]:
    """The parts that a strategy's section chooses, in the order of `CHOICES`."""
    listed: list[Any] = []
    for key in CHOICES:
        value = strategy.get(key) or ()
        listed += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [name for name in listed if isinstance(name, str) and (name in KEYS or is_own(name))]


def part(name: str) -> Part:
    """Return a part by its name in a configuration.

    Raises:
        FedGraphError: the name is not that of a `Part`, or that of a key.
    """
    made = locate(name if is_own(name) else f"fedgraph_flwr.methods.parts:{name.upper()}")
    if not isinstance(made, Part):
        raise FedGraphError(f"'{name}' is a {type(made).__name__}, expected a Part of fedgraph_flwr.plugin")
    if is_own(name) and section_of(name) in {f.name for f in fields(StrategyConfig)}:
        raise FedGraphError(f"'{name}': strategy.{section_of(name)} is a built-in key: give the part another name")
    return made


def parts_of(rules: StrategyConfig) -> dict[str, Part]:
    """Return the chosen parts by name.

    Raises:
        FedGraphError: a name is not that of a part, belongs to another key, or has the section of another part.
    """
    made = {name: part(name) for name in chosen(vars(rules))}
    for name, one in made.items():
        given = getattr(rules, one.choice, None)
        if name != given and name not in (given or ()):
            value = f"[{name}]" if isinstance(given, list) else name
            raise FedGraphError(f"'{name}' is a part for strategy.{one.choice}: set strategy.{one.choice}={value}")
    sections = {section_of(name): name for name in made}
    for name in made:
        if (other := sections[section_of(name)]) != name:
            keys = f"strategy.{section_of(name)}"
            raise FedGraphError(
                f"'{name}' and '{other}' would both have the keys {keys}: give one of them another name"
            )
    return made


def halves(rules: StrategyConfig, side: str, base: type) -> dict[str, Any]:
    """Create the halves of the chosen parts at one side, by the part's name.

    Raises:
        FedGraphError: one cannot be imported, or is not a subclass of ``base``.
    """
    made = {}
    for name, target in ((name, getattr(part, side)) for name, part in parts_of(rules).items()):
        if target:
            kind = locate(target)
            fits = isinstance(kind, type) and issubclass(kind, base)
            if not fits:
                raise FedGraphError(f"'{name}': {side}='{target}', expected a subclass of {base.__name__}", "own-code")
            made[name] = kind(name, rules)
    return made


def values(rules: StrategyConfig, name: str) -> Any:
    """Return the values of a part's keys.

    Raises:
        FedGraphError: a key is unknown, or has a wrong value.
    """
    if not is_own(name):
        return getattr(rules, name)
    section = section_of(name)
    return typed(part(name).keys, rules.params.get(section, {}), f"strategy.{section}")


def lengthen(body: dict[str, Any], below: Mapping[str, Any]) -> None:
    """Move short keys of chosen parts, such as ``mu``, from ``params`` to the part, unless the method has a key of that name.

    Args:
        body: the strategy's section of one layer, which is changed.
        below: the section of all layers below it.
    """
    params, held = body.get("params") or {}, dotted_keys(body)
    for name in chosen({**below, **body}):
        for f in fields(KEYS[name]) if name in KEYS else ():
            if f.name in params and f.name not in (below.get("params") or {}) and f"{name}.{f.name}" not in held:
                body[name] = {**(body.get(name) or {}), f.name: params.pop(f.name)}


def defaults(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Default of each key of the chosen built-in parts, by ``part.key``."""
    names = [name for name in chosen(strategy) if name in KEYS]
    return {f"{name}.{key}": value for name in names for key, value in vars(KEYS[name]()).items()}


def key_names(strategy: Mapping[str, Any]) -> set[str]:
    """Keys of the chosen built-in parts, as ``part.key`` and in the short form ``key``."""
    full = set(defaults(strategy))
    return full | {key.partition(".")[2] for key in full}
