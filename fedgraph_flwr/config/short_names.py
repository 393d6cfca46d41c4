"""Short names of keys, where exactly one key has the name: ``lr`` for ``train.lr``, ``data`` for ``dataset``.

Likewise names of values elsewhere: ``model=GraphSAGE`` is ``model=sage``.

Only the command line and calls from Python take them, and print the full key. Files and stored runs have full keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from logging import INFO
from typing import Any

from fedgraph_flwr.config.composition import GROUPS, group_names, group_path
from fedgraph_flwr.config.config_file import EXTENSIBLE, dotted_keys
from fedgraph_flwr.config.key_docs import own_keys_of
from fedgraph_flwr.config.schema import RunConfig, key_field
from fedgraph_flwr.errors import KEY_ALIASES, VALUE_ALIASES, FedGraphError
from fedgraph_flwr.logs import log

LISTED = 4
"""Most keys of one name that an error lists."""

TOP = frozenset({"config", "tune", *GROUPS, *(f.name for f in fields(RunConfig))})
"""Keys without a section."""

NESTED = frozenset(name for name in dotted_keys(asdict(RunConfig())) if name.count(".") == 1)
"""Keys of sections, without those of names and parts."""

SECTIONS = dict.fromkeys(("optim", "optimizer", "trainer", "training"), "train") | {"metrics": "evaluation"}
"""Names of sections elsewhere."""

WHOLE = {
    ("wandb", "true"): ("tracking", "wandb"),
    ("use_wandb", "true"): ("tracking", "wandb"),
    ("class_weight", "balanced"): ("train.loss", "weighted"),
}
"""Keys elsewhere that with one value are another key here."""

EXACT = VALUE_ALIASES.keys() - {"simulation", "local-simulation", "noniid"}
"""Names of values elsewhere that are the same here, not only alike."""


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
        names[key] = alias if alias in GROUPS and key not in TOP and "." not in key else _in_section(key)
    short = [key for key, name in names.items() if "." not in name and name not in TOP]
    sections = {name.partition(".")[0] for name in names.values()}
    unused, extras = {"task", "adversary"} - sections, set[str]()  # whose keys need a choice first
    for group, value in ((names[key], value) for key, value in given.items() if short and names[key] in EXTENSIBLE):
        for name in value if isinstance(value, list | tuple) else str(value).split(","):
            if path := group_path(group, str(name).lower()):
                extras |= {entry.name for entry in own_keys_of(group, path)}
    for key in short:
        word = key.lower().replace("-", "_")
        candidates = {
            name for name in NESTED if name.partition(".")[2] == word and name.partition(".")[0] not in unused
        }
        candidates |= {name for name in extras if word in name.split(".")[1:]}
        candidates |= {KEY_ALIASES.get(word, "").partition(",")[0]} & (NESTED | TOP | extras)
        if 1 < len(candidates) <= LISTED:
            raise FedGraphError(f"key '{key}' could be {' or '.join(sorted(candidates))}: pass one of them")
        if len(candidates) == 1:
            [names[key]] = candidates
    for key, name in names.items():
        if key != name:
            if twice := [other for other in names if other != key and names[other] == name]:
                raise FedGraphError(f"{key} and {twice[0]} are both {name}: pass one of them")
            log(INFO, "%s is %s", key, name)
    return names


def _in_section(key: str) -> str:
    """Return the full key of one whose section, or name in it, is another elsewhere: ``optimizer.lr``, ``model.hidden_dim``."""
    section, _, word = key.rpartition(".")
    if not section or key in NESTED:
        return key
    full = KEY_ALIASES.get(key, f"{SECTIONS.get(section, section)}.{word}")
    top = full.partition(".")[0]
    return next(
        (name for name in (full, KEY_ALIASES.get(word, "")) if name in NESTED | TOP and name.partition(".")[0] == top),
        key,
    )


def _value(key: str, value: Any, text: bool) -> Any:
    """Return a value, or the name that it has here if only that is accepted, also in a text with several.

    One word of a key that takes a list is a list, as ``text`` of the command line or not.
    """
    entry, hint = key_field(key)
    if hint == list[str] and isinstance(value, str) and value.isidentifier():
        return f"[{value}]" if text else [value]
    names = group_names(key) if key in GROUPS else entry.metadata.get("choices", ()) if entry else ()
    if not names or not isinstance(value, str):
        return value

    def here(one: str) -> str:
        low = one.lower()
        return next((name for name in (one, low, VALUE_ALIASES[low] if low in EXACT else "") if name in names), one)

    other = ",".join(map(here, value.split(",")))
    if other != value and key != "dataset":  # an imported one may have the name
        log(INFO, "%s=%s is %s=%s", key, value, key, other)
        return other
    return value


def _whole(key: str, value: Any) -> tuple[str, Any]:
    """Return a key and its value, or those of `WHOLE`."""
    other = WHOLE.get((key, str(value).lower()), (key, value))
    if other[0] != key:
        log(INFO, "%s=%s is %s=%s", key, value, *other)
    return other


def lengthened(overrides: Sequence[str], keys: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return ``key=value`` overrides, and values by key, with full keys, also in ``tune=key,key``; other words stay."""
    keys = dict(_whole(key.replace("__", "."), value) for key, value in keys.items())
    signs = [word.partition("=") for word in overrides]
    texts = [(*_whole(key, value), sign) for key, sign, value in signs]
    names = full_names({key: value for key, value, sign in texts if key and sign} | keys)

    def read(key: str, value: Any, text: bool) -> Any:
        if key != "tune" or not isinstance(value, str):
            return _value(key, value, text)
        return ",".join(names.get(entry, entry) for entry in value.split(","))

    full = {key: names.get(key, key) for key, _, _ in texts} | {key: names[key] for key in keys}
    longer = [f"{full[key]}{sign}{read(full[key], value, True)}" for key, value, sign in texts]
    return longer, {full[key]: read(full[key], value, False) for key, value in keys.items()}
