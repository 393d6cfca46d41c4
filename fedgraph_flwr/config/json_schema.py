"""JSON Schema of a user's configuration file, for editors that complete and check YAML."""

import dataclasses
import math
from types import UnionType
from typing import Any, Union, get_args, get_origin

from fedgraph_flwr.config.composition import GROUPS, group_names, group_path
from fedgraph_flwr.config.config_file import EXTENSIBLE
from fedgraph_flwr.config.key_docs import Key, keys_of, own_keys_of, sections
from fedgraph_flwr.config.schema import Range, default_of, key_field
from fedgraph_flwr.errors import FedGraphError

_TYPES = {bool: "boolean", int: "integer", float: "number", str: ["string", "number"]}


def json_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12): every key with type, range, default and meaning, and the names of each group.

    A group such as ``strategy`` is a name, or keys with values. Keys of a name only are listed, but not checked.
    """
    top = {key.name: _key(key) for key in keys_of("run")}
    for section in sections().keys() - {"run"}:
        top[section] = _section(section)
    top["protocol"]["anyOf"] = [{"enum": [*group_names("protocol"), "none"]}, {"type": "string"}]
    files = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    top["extends"] = {**files, "description": "configuration file, or files, whose keys these ones override"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of fedgraph-flwr",
        "type": "object",
        "properties": top,
        "patternProperties": {r"\.": {}},  # dotted keys, such as train.lr
        "additionalProperties": False,
    }


def _section(section: str) -> dict[str, Any]:
    """Return the schema of a section; a section of which a name is chosen may be the name only."""
    keys = {key.name.removeprefix(f"{section}."): _key(key) for key in keys_of(section)}
    for name in [name for name in keys if "." in name]:  # keys of a part, such as adam.tau
        part, _, own = name.partition(".")
        keys.setdefault(part, {"type": "object", "properties": {}, "additionalProperties": False})
        keys[part]["properties"][own] = keys.pop(name)
    body = {"type": "object", "properties": keys, "additionalProperties": section in EXTENSIBLE}
    if section == "attack":
        return {"anyOf": [{"type": "string"}, body | {"additionalProperties": True}]}
    if section not in GROUPS:
        return body
    names = group_names(section)
    for name in names if section in EXTENSIBLE else ():
        for key in _own(section, name):
            keys.setdefault(key.name.removeprefix(f"{section}."), {"description": f"{name}: {key.meaning}"})
    about = f"one of `fedgraph-flwr keys {section}`"
    keys["name"] = {"anyOf": [{"enum": names}, {"type": "string"}], "description": about}
    return {"anyOf": [keys["name"], body]}


def _own(section: str, name: str) -> list[Key]:
    """Return the keys of a name; none if its code cannot be imported."""
    path = group_path(section, name)
    try:
        return own_keys_of(section, path) if path else []
    except FedGraphError:
        return []


def _key(key: Key) -> dict[str, Any]:
    """Return the schema of one key."""
    found, hint = key_field(key.name)
    if found is None:
        return {"description": key.meaning}
    about = {"description": key.meaning} if key.meaning else {}
    return _value(hint, found) | about | {"default": default_of(found)}


def _value(hint: Any, found: "dataclasses.Field[Any]") -> dict[str, Any]:
    """Return the schema of a value of a type, with the field's choices or range."""
    inner, origin = get_args(hint), get_origin(hint) or hint
    if origin in (Union, UnionType):
        return {"anyOf": [_value(inner[0], found), {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _value(inner[0], found)}
    if origin is dict or dataclasses.is_dataclass(origin):
        return {"type": "object"}
    choices = found.metadata.get("choices", found.metadata.get("listed"))
    if choices and not found.metadata.get("own"):
        return {"enum": list(choices)}
    span = found.metadata.get("range", Range())
    limits: dict[str, Any] = {}
    if hint in (int, float) and span.low > -math.inf:
        limits["exclusiveMinimum" if span.without_low else "minimum"] = span.low
    if hint in (int, float) and span.high < math.inf:
        limits["exclusiveMaximum" if span.without_high else "maximum"] = span.high
    return {"type": _TYPES.get(hint, ["string", "number", "boolean", "null"]), **limits}
