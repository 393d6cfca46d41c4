"""Options for files of tables, of ``import`` and of commands that predict."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options

RATIO = "0.6,0.2,0.2"
"""Default shares of training, validation and test."""


def add_tables(group: Any, text: str) -> None:
    """Add ``--nodes`` and ``--edges``, with their help as of `add_options`."""
    given = {"type": str, "action": _Table}
    add_options(group, text, nodes={**given, "default": None}, edges={**given, "default": []})
    group.set_defaults(node_table=[], edge_table=[])


class _Table(argparse.Action):
    """Set the file of a table, or add ``TYPE=FILE`` to those by type: ``node_table``, ``edge_table``."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, sign, _ = values.partition("=")
        held = getattr(namespace, self.dest)
        if sign and not {*name} & {*"/\\."} and not Path(values).exists():
            by_type = f"{self.dest.removesuffix('s')}_table"
            setattr(namespace, by_type, [*getattr(namespace, by_type), values])
        elif isinstance(held, list):
            setattr(namespace, self.dest, [*held, Path(values)])
        elif held is not None:
            raise FedGraphError(
                f"{option_string} is given twice, as '{held}' and '{values}', but takes one value: leave one out"
            )
        else:
            setattr(namespace, self.dest, Path(values))


def check_outputs(args: argparse.Namespace, outputs: Sequence[str], inputs: Sequence[str]) -> None:
    """Check that no output is the file of an input, or of another output, also under another name.

    Args:
        args: the options.
        outputs: names of options for output files.
        inputs: names of options for input files, besides the tables of types.

    Raises:
        FedGraphError: names both options.
    """
    files = {name: getattr(args, name) for name in inputs}
    for option in ("node_table", "edge_table"):
        files |= {f"{option} {word}": Path(word.rpartition("=")[2]) for word in getattr(args, option)}
    for name in outputs:
        path: Path | None = getattr(args, name)
        for other, held in files.items():
            if any(path and one and _same_file(path, one) for one in (held if isinstance(held, list) else [held])):
                lost = f"--{other.replace('_', '-')}: choose another path, or it would be lost"
                raise FedGraphError(f"--{name} {path} is the file of {lost}")
        files[name] = path


def _same_file(a: Path, b: Path) -> bool:
    """Return whether two paths are of one file, which need not exist."""
    return a.absolute() == b.absolute() or (a.exists() and b.exists() and a.samefile(b))
