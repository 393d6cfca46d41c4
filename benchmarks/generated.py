"""Write the files of the package that follow from its code: the types of a run's keys, and what a shell completes.

python -m benchmarks.generated          # after a change of keys, commands or options
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from fedgraph_flwr.cli.app import COMMANDS, options
from fedgraph_flwr.config.composition import GROUPS
from fedgraph_flwr.config.config_file import EXTENSIBLE
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.key_docs import keys_of, sections
from fedgraph_flwr.config.schema import RunConfig
from fedgraph_flwr.party.party_file import ACCEPTED, COLUMNS, PartyFile

PACKAGE = Path(__file__).parents[1] / "fedgraph_flwr"
TYPES, COMPLETION = PACKAGE / "config/run_keys.py", PACKAGE / "cli/completion.json"

HEAD = '''"""Types of the keys of a run, for editors and type checkers: the keyword arguments of ``fedgraph_flwr.run``.

`python -m benchmarks.generated` writes this file. ``fedgraph-flwr keys`` describes the keys. Dotted keys are not listed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

Group = str | Mapping[str, Any]
"""Name of a file of the group, or its keys."""

Code = Group | type | Callable[..., Any]
"""Likewise, or your class or function."""

Function = str | Callable[..., Any]
"""Name, or your function or class."""

Place = str | os.PathLike[str]
"""Path of a file or folder."""
'''

PLACES = ("out", "config", "resume", "init", "evaluate", "graph")
NUMBERS_TOO = ("stack", "clients")
"""Texts that may be numbers."""


def run_keys() -> str:
    """Return the text of `TYPES`."""
    hints = get_type_hints(RunConfig)
    parts, lines = [HEAD], []
    for field in dataclasses.fields(RunConfig):
        kind = hints[field.name]
        if not dataclasses.is_dataclass(kind):
            lines.append(f"    {field.name}: {_type(field, kind)}")
        elif field.name in EXTENSIBLE or field.name == "attack":
            lines.append(f"    {field.name}: Code")
        else:
            name = f"{field.name.capitalize()}Keys"
            parts.append(_class(name, f"Keys of ``{field.name}``.", _fields(kind)))
            lines.append(f"    {field.name}: {name}{' | str' if field.name in GROUPS else ''}")
    lines.insert(lines.index("    resume: Place"), "    config: Place")
    parts.append(_class("RunKeys", "Keys of a run, and ``config``.", lines))
    return "\n\n".join(parts)


def _class(name: str, about: str, lines: list[str]) -> str:
    return "\n".join([f"class {name}(TypedDict, total=False):", f'    """{about}"""', "", *lines, ""])


def _fields(kind: Any) -> list[str]:
    hints = get_type_hints(kind)
    return [f"    {field.name}: {_type(field, hints[field.name])}" for field in dataclasses.fields(kind)]


def _type(field: Any, kind: Any) -> str:
    """Return the annotation of a key."""
    if field.name in PLACES:
        return "Place"
    if field.metadata.get("targets"):
        return "Function"
    if field.name in NUMBERS_TOO and kind is str:
        return "str | int"
    if get_origin(kind) is list:
        [item] = get_args(kind)
        return f"Sequence[{'Function' if field.name == 'metrics' else item.__name__}]"
    if get_origin(kind) is dict:
        return f"Mapping[str, {get_args(kind)[1].__name__}]"
    return str(kind.__name__ if isinstance(kind, type) else kind)


def completion() -> dict[str, Any]:
    """Return the content of `COMPLETION`: commands with their options, groups, sections, keys and their values."""
    keys = [key for group in sections() for key in keys_of(group)]
    return {
        "commands": list(COMMANDS),
        "options": {command: options(command) for command in COMMANDS},
        "groups": list(GROUPS),
        "sections": list(sections()),
        "keys": [*GROUPS, *(key.name for key in keys if not key.name.endswith(".name"))],
        "values": {**dict(_values(keys)), "engine": list(SIMULATIONS)},
        "party": party(),
    }


def party() -> dict[str, list[str]]:
    """Return the words of ``import`` by keys of a party's file, and the values that a key accepts, by its first part."""
    words = []
    for field in dataclasses.fields(PartyFile):
        if field.name == "columns":
            words += [f"columns.{role}=" for role in COLUMNS]
        elif field.name not in ("share", "agreement"):
            words.append(f"{field.name}{'.' if get_origin(get_type_hints(PartyFile)[field.name]) is dict else '='}")
    values = {key: list(accepted) for key, accepted in ACCEPTED.items()}
    return {"words": words, **values, "features": ["payments"], "undirected": ["true", "false"]}


def _values(keys: Any) -> Iterator[tuple[str, list[str]]]:
    for key in keys:
        accepted = key.accepted.split(" | ") if " | " in key.accepted else []
        if choices := [*accepted, *(["true", "false"] if isinstance(key.default, bool) else [])]:
            yield key.name, choices


def as_text(content: Mapping[str, Any]) -> str:
    """Return JSON with one entry a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Write the files."""
    TYPES.write_text(run_keys())
    COMPLETION.write_text(as_text(completion()))


if __name__ == "__main__":
    main()
