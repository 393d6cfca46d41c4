"""Options of a command from the text that describes them."""

import argparse
import contextlib
import functools
import inspect
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_TYPES: dict[str, Any] = {"FILE": Path, "DIR": Path, "N": int, "M": int, "I": int, "P": float}


def add_options(group: Any, text: str, **more: Mapping[str, Any]) -> None:
    """Add options to a parser or to a group of it.

    Args:
        group: an argparse parser or group.
        text: ``--name METAVAR  help`` for each option (``--name/-n``: with a short name); its further lines are indented. Two
            spaces end the METAVAR, which decides the type: FILE and DIR are paths, N, M and I whole numbers, P a number, others
            texts with the default "". An option without one is a flag. ``...`` at the end: the option can be repeated, and its
            values are a list.
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
        flag, *short = flag.split("/")
        group.add_argument(*short, flag, **given | dict(more.get(flag[2:].replace("-", "_"), {})))


JSON = "--json  print JSON; what else the command says goes to stderr"


def answered(run: Callable[[argparse.Namespace], tuple[int, Any]]) -> Callable[[argparse.Namespace], int]:
    """Make a command of a function that prints and returns an exit code and its answer, which ``--json`` prints instead.

    An answer is a value that `as_json` takes, or a pandas table: its ``rows``, and its attributes.
    """

    @functools.wraps(run)
    def main(args: argparse.Namespace) -> int:
        if not args.json:
            return run(args)[0]
        from fedgraph_flwr.report.as_json import as_json

        with contextlib.redirect_stdout(sys.stderr):
            code, answer = run(args)
        print(as_json({"rows": answer.to_dict("records"), **answer.attrs} if hasattr(answer, "attrs") else answer))
        return code

    return main


def run_quietly(command: Any, words: Sequence[str]) -> int:
    """Run the command of a module with these words without what it prints, and return its exit code."""
    parser = argparse.ArgumentParser()
    command.register(parser)
    with contextlib.redirect_stdout(io.StringIO()):
        return int(command.main(parser.parse_args(words)))


def fill(args: argparse.Namespace) -> None:
    """Set options that the command line leaves out from a party's file, if one is given (`party_file.complete`)."""
    if args.party_file is not None:
        from fedgraph_flwr.party.party_file import complete

        complete(args)
