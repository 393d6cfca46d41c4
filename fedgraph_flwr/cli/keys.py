"""Command ``keys``: list configuration keys with type, range, default and meaning."""

import argparse

from fedgraph_flwr.config import group_names
from fedgraph_flwr.config.composition import GROUPS, about
from fedgraph_flwr.config.key_docs import Key, keys_of, own_keys_of, part_keys, select


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``keys``."""
    about = "section such as train, or GROUP=NAME such as strategy=fedspa for its additional keys (default: all)"
    parser.add_argument("group", nargs="?", default="", help=about)
    parser.add_argument("--all", action="store_true", help="of a strategy, also keys of parts that it does not use")


def main(args: argparse.Namespace) -> int:
    """Handle ``keys``."""
    print(text(args.group, args.all))
    return 0


def text(requested: str, parts: bool = False) -> str:
    """Return the listing of a group, of GROUP=NAME, or of all groups.

    Args:
        requested: the group, GROUP=NAME, or empty.
        parts: with a strategy, whether to list keys of parts that it does not use.

    Raises:
        FedGraphError: the group, or the name in it, is unknown.
    """
    groups, path = select(requested)
    if path:
        above = path.read_text().split("\n\n")[0].splitlines()
        head = [line.lstrip("# ").rstrip() for line in above if line.startswith("#")]
        keys = own_keys_of(groups[0], path)
        known = {key.name for key in keys}
        others = [key for key in part_keys() if key.name not in known] if groups[0] == "strategy" else []
        hint = f"{len(others)} more keys of parts that it does not use: fedgraph-flwr keys {requested} --all"
        more = ["[optional parts]", *map(line, others)] if parts else [hint]
        return "\n".join([*head, *map(line, keys), *(more if others else [])])
    lines = []
    for group in groups:
        lines += [f"[{group}]", *map(line, keys_of(group)), *_names(group)]
    return "\n".join(lines)


def _names(group: str) -> list[str]:
    """Return a line for each name of a group, with the first line of its file."""
    if group not in GROUPS:
        return []
    lines = [f"{group}=NAME sets values and may add keys (`fedgraph-flwr keys {group}=NAME`):"]
    for name in group_names(group):
        lines.append(f"  {name:<22}{about(group, name)}".rstrip())
    return lines


def line(key: Key) -> str:
    """Format a key."""
    about = f"{key.kind}, {key.accepted}" if key.accepted and " | " not in key.accepted else key.accepted or key.kind
    shown = {"": "empty", "[]": "empty", "None": "null", "True": "true", "False": "false"}
    default = shown.get(str(key.default), key.default)
    return f"  {key.name} = {default}  ({about})" + (f"\n      {key.meaning}" if key.meaning else "")
