"""The command ``keys``: every key of a configuration with its type, range, default and meaning."""

import argparse
from typing import Any

from fedgraph_flwr.config import group_names
from fedgraph_flwr.config.composition import GROUPS
from fedgraph_flwr.config.key_docs import Key, asked_for, keys_of, own_keys_of, part_keys


def register(commands: Any) -> None:
    """Add ``keys`` to the subparsers."""
    parser = commands.add_parser("keys", help="every key with its type, range, default and meaning")
    parser.add_argument(
        "group", nargs="?", help="train, evaluation and so on; or GROUP=NAME, such as strategy=fedspa, for a name's own"
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``keys``."""
    print(text(args.group or ""))
    return 0


def text(asked: str) -> str:
    """What is printed for a group, a GROUP=NAME, or all.

    Raises:
        FedGraphError: no such group, or no such name in it.
    """
    groups, path = asked_for(asked)
    if path:
        head = [
            line.lstrip("# ").rstrip()
            for line in path.read_text().split("\n\n")[0].splitlines()
            if line.startswith("#")
        ]
        own = own_keys_of(groups[0], path)
        return "\n".join([*head, *map(line, own), *_parts(groups[0], {key.name for key in own})])
    told = []
    for each in groups:
        told += [f"[{each}]", *map(line, keys_of(each)), *_names(each)]
    return "\n".join(told)


def _parts(group: str, own: set[str]) -> list[str]:
    """Keys of parts that a method does not choose by itself."""
    if group != "strategy":
        return []
    return ["[parts that can be added]", *(line(key) for key in part_keys() if key.name not in own)]


def _names(group: str) -> list[str]:
    if group not in GROUPS:
        return []
    names = ", ".join(group_names(group))
    return [f"  {group}=NAME brings values, and keys of its own (`fedgraph-flwr keys {group}=NAME`): {names}"]


def line(key: Key) -> str:
    """A key on one line."""
    about = f"{key.kind}, {key.accepted}" if key.accepted and " | " not in key.accepted else key.accepted or key.kind
    default = {"": "empty", "[]": "empty", "None": "null", "True": "true", "False": "false"}.get(
        str(key.default), key.default
    )
    return f"  {key.name} = {default}  ({about})" + (f"\n      {key.meaning}" if key.meaning else "")
