"""Short names of keys: ``lr`` for ``train.lr``, ``data`` for ``dataset``, where exactly one key has the name.

Only the command line and calls from Python take them, and print the full key. Files and stored runs have full keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from logging import INFO
from typing import Any

from fedgraph_flwr.config.composition import GROUPS, group_path
from fedgraph_flwr.config.config_file import EXTENSIBLE, flat
from fedgraph_flwr.config.key_docs import own_keys_of
from fedgraph_flwr.config.schema import RunConfig
from fedgraph_flwr.errors import KEY_ALIASES, FedGraphError
from fedgraph_flwr.logs import log

LISTED = 4
"""Most keys of one name that an error lists."""

TOP = frozenset({"config", "tune", *GROUPS, *(f.name for f in fields(RunConfig))})
"""Keys without a section."""

NESTED = frozenset(name for name in flat(asdict(RunConfig())) if name.count(".") == 1)
"""Keys of sections, without those of names and parts."""


def full_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the full key of each given key; the same key where it is full already, or where none has the name.

    Args:
        given: values by key; a text or list with several values chooses several methods.

    Raises:
        FedGraphError: several keys have the name, or a key is given under two names.
    """
    names = {}
    for key in given:
        alias = KEY_ALIASES.get(key.lower().replace("-", "_"), "")
        names[key] = alias if alias in GROUPS and key not in TOP and "." not in key else key
    short = [key for key, name in names.items() if "." not in name and name not in TOP]
    sections = {name.partition(".")[0] for name in names.values()}
    unused, own = {"task", "adversary"} - sections, set[str]()  # whose keys need a choice first
    for group, value in ((names[key], value) for key, value in given.items() if short and names[key] in EXTENSIBLE):
        for name in value if isinstance(value, list | tuple) else str(value).split(","):
            if path := group_path(group, str(name).lower()):
                own |= {each.name for each in own_keys_of(group, path)}
    for key in short:
        word = key.lower().replace("-", "_")
        found = {name for name in NESTED if name.partition(".")[2] == word and name.partition(".")[0] not in unused}
        found |= {name for name in own if word in name.split(".")[1:]}
        found |= {alias} if (alias := KEY_ALIASES.get(word, "")) in NESTED | TOP else set()
        if 1 < len(found) <= LISTED:
            raise FedGraphError(f"key '{key}' could be {' or '.join(sorted(found))}: pass one of them")
        if len(found) == 1:
            [names[key]] = found
    for key, name in names.items():
        if key != name:
            if twice := [other for other in names if other != key and names[other] == name]:
                raise FedGraphError(f"{key} and {twice[0]} are both {name}: pass one of them")
            log(INFO, "%s is %s", key, name)
    return names


def lengthened(overrides: Sequence[str], keys: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return ``key=value`` overrides, and values by key, with full keys, also in ``tune=key,key``; other words stay."""
    keys = {key.replace("__", "."): value for key, value in keys.items()}
    texts = [word.partition("=") for word in overrides]
    names = full_names({key: value for key, sign, value in texts if key and sign} | keys)

    def tuned(value: Any) -> Any:
        return ",".join(names.get(key, key) for key in value.split(",")) if isinstance(value, str) else value

    longer = [f"{names.get(key, key)}{sign}{tuned(value) if key == 'tune' else value}" for key, sign, value in texts]
    return longer, {names[key]: tuned(value) if key == "tune" else value for key, value in keys.items()}
