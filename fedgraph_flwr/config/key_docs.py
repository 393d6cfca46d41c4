"""Documentation of keys, read from the comments of dataclass fields and of YAML files."""

import ast
import dataclasses
import importlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from fedgraph_flwr.config import parts
from fedgraph_flwr.config.composition import GROUPS, group_names, group_path
from fedgraph_flwr.config.config_file import dotted_keys, load
from fedgraph_flwr.config.lookup import params_of
from fedgraph_flwr.config.schema import (
    CHOICES,
    ModelConfig,
    RunConfig,
    StrategyConfig,
    accepted,
    default_of,
    is_own,
    kind_of,
    section_of,
)
from fedgraph_flwr.errors import unknown


@dataclasses.dataclass(frozen=True)
class Key:
    """Key of a configuration.

    Attributes:
        name: name with its group, such as ``train.lr``.
        kind: description of the value's type.
        accepted: description of accepted values or range; empty for any value of the type.
        default: default value.
        meaning: description.
    """

    name: str
    kind: str
    accepted: str
    default: Any
    meaning: str


def sections() -> dict[str, type]:
    """Return the dataclass of each group of keys; ``run`` has the top-level keys."""
    hints = get_type_hints(RunConfig)
    classes = {name: cls for name, cls in hints.items() if isinstance(cls, type) and is_dataclass(cls)}
    return {"run": RunConfig, **classes}


def select(selection: str) -> tuple[list[str], Path | None]:
    """Return the groups selected by a group, ``GROUP=NAME`` or "" (all), and the file of the name, if any.

    Raises:
        FedGraphError: the group, or the name in it, is unknown.
    """
    group, _, name = selection.partition("=")
    if group and group not in sections():
        raise unknown("group of keys", group, sections())
    path = group_path(group, name) if name and group in GROUPS else None
    if name and path is None:
        raise unknown(group, name, group_names(group))
    return ([group] if group else list(sections())), path


def keys_of(group: str) -> list[Key]:
    """Return the keys of a group of `sections` in order, without ``params``, the additional keys of a name."""
    aside = {"params", *(sections() if group == "run" else ())}
    declared = _declared(sections()[group], "" if group == "run" else f"{group}.")
    return [key for name, key in declared.items() if name not in aside]


def part_keys() -> list[Key]:
    """Return the keys that select parts of a method, and those of every part."""
    names = tuple(f"strategy.{part}." for part in parts.KEYS)
    choices = {f"strategy.{key}" for key in CHOICES}
    return [key for key in keys_of("strategy") if key.name in choices or key.name.startswith(names)]


def _declared(cls: type, prefix: str) -> dict[str, Key]:
    """Return the keys declared by the fields of a dataclass, by field."""
    hints, comments = get_type_hints(cls), _comments(cls)
    keys: dict[str, Key] = {}
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        if prefix and isinstance(hint, type) and is_dataclass(hint):  # the keys of a part
            keys |= {f"{f.name}.{name}": key for name, key in _declared(hint, f"{prefix}{f.name}.").items()}
            continue
        values = accepted(f, hint)
        keys[f.name] = Key(prefix + f.name, kind_of(hint), values, default_of(f), comments.get(f.name, ""))
    return keys


def own_keys_of(group: str, path: Path) -> list[Key]:
    """Return the keys set in the YAML of a name, with its comments, then those declared in a method's ``Params``.

    Types, ranges, defaults and comments of a model's additional keys come from its ``__init__``.

    Raises:
        FedGraphError: the classes of a method cannot be imported.
    """
    body, keys = load(path), []
    declared = {"strategy": _method_keys, "model": _model_keys}[group](body) if group in ("strategy", "model") else {}
    known = {key.name: key for key in keys_of(group)} | declared
    for part in parts.chosen(body) if group == "strategy" else ():
        prefix = f"{group}.{section_of(part)}."
        declared |= {name: key for name, key in known.items() if name.startswith(prefix)}
        if is_own(part):
            declared |= {key.name: key for key in _declared(parts.part(part).keys, prefix).values()}
    known |= declared
    plain = {key: value for key, value in body.items() if key != "declares"}
    for name, value in dotted_keys(plain).items():
        full = f"{group}.{name!s}"
        if name in ("name", "server", "client", "partition", "model"):
            continue
        comment = re.search(rf"^{re.escape(str(name))}:[^#\n]*#\s*(.*)", path.read_text(), re.M)
        schema = known.get(full)
        meaning = comment[1].strip() if comment else schema.meaning if schema else ""
        kind = kind_of(type(value))
        keys.append(Key(full, schema.kind if schema else kind, schema.accepted if schema else "", value, meaning))
    return keys + [key for full, key in declared.items() if full not in {key.name for key in keys}]


def _method_keys(body: Mapping[str, Any]) -> dict[str, Key]:
    """Return the keys in the ``Params`` of a method's two classes by name."""
    sides = (body.get(side) or getattr(StrategyConfig, side) for side in ("server", "client"))
    return {key.name: key for params in params_of(*sides) for key in _declared(params, "strategy.").values()}


def _model_keys(body: Mapping[str, Any]) -> dict[str, Key]:
    """Return the keys of a model's ``__init__`` by name."""
    networks = importlib.import_module("fedgraph_flwr.models")  # takes a second
    chosen = ModelConfig(str(body["name"]))
    keys, comments = _declared(networks.own_schema(chosen), "model."), keyword_comments(networks.network(chosen))
    common = _declared(ModelConfig, "model.")
    declared = {f"model.{key}": common[key] for key in networks.COMMON}
    return declared | {f"model.{n}": dataclasses.replace(key, meaning=comments.get(n, "")) for n, key in keys.items()}


@cache
def _comments(cls: type) -> dict[str, str]:
    """Return the comments above, behind and within each field, including fields of base classes."""
    return _merged(base for base in reversed(cls.__mro__) if is_dataclass(base))


def keyword_comments(cls: type) -> dict[str, str]:
    """Return the comments above and behind each keyword of a class's ``__init__`` and those of its bases."""
    made = (vars(base).get("__init__") for base in reversed(cls.__mro__))
    return _merged(function for function in made if inspect.isfunction(function))


def _merged(sources: Iterable[Any]) -> dict[str, str]:
    return {name: comment for source in sources for name, comment in _comments_in(source).items()}


def _comments_in(source_of: Any) -> dict[str, str]:
    """Return the comments of a dataclass's fields, or of a function's keywords."""
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(source_of))
    except OSError:  # created at run time
        return {}
    texts: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts[token.start[0]] = token.string.lstrip("# ")
    (tree,) = ast.parse(source).body
    function = isinstance(tree, ast.FunctionDef)
    nodes = tree.args.kwonlyargs if function else tree.body  # type: ignore[attr-defined]
    last = tree.args.args[-1].end_lineno if function else 0  # type: ignore[attr-defined]
    comments: dict[str, str] = {}
    for node in nodes:
        if function or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            name = node.arg if function else node.target.id
            lines = [texts[line] for line in range(last + 1, (node.end_lineno or 0) + 1) if line in texts]
            comments |= {name: " ".join(lines)} if lines else {}
        last = node.end_lineno
    return comments
