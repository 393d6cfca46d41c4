"""Options of a command from the text that describes them."""

import argparse
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TYPES: dict[str, Any] = {"FILE": Path, "DIR": Path, "N": int, "M": int, "I": int, "P": float}


def add_options(group: Any, text: str, **more: Mapping[str, Any]) -> None:
    """Add options to a parser or to a group of it.

    Args:
        group: an argparse parser or group.
        text: ``--name METAVAR  help`` for each option; its further lines are indented. Two spaces end the METAVAR, which decides
            the type: FILE and DIR are paths, N, M and I whole numbers, P a number, others texts with the default "". An option
            without one is a flag. ``...`` at the end: the option can be repeated, and its values are a list.
        more: further arguments of ``add_argument``, by option, such as a default.
    """
    for part in re.split(r"\n(?=--)", inspect.cleandoc(text)):
        head, _, about = part.partition("  ")
        flag, _, metavar = head.partition(" ")
        given: dict[str, Any] = {"help": " ".join(about.split()).replace("%", "%%")}
        if metavar.endswith("..."):
            given |= {"action": "append", "default": [], "metavar": metavar.removesuffix("...")}
        elif metavar:
            given |= {"metavar": metavar} | ({"type": _TYPES[metavar]} if metavar in _TYPES else {"default": ""})
        else:
            given["action"] = "store_true"
        group.add_argument(flag, **given | dict(more.get(flag[2:].replace("-", "_"), {})))


def fill(args: argparse.Namespace) -> None:
    """Set options that the command line leaves out from a party's file, if one is given (`party_file.complete`)."""
    if args.party_file is not None:
        from fedgraph_flwr.party.party_file import complete

        complete(args)
