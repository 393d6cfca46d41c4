"""The options that say how tables are written, shared by ``import`` and ``predict``; each goes before the schema's value."""

import argparse
from typing import TYPE_CHECKING, Any

from fedgraph_flwr.errors import FedGraphError

if TYPE_CHECKING:  # what reads tables imports torch, which a parser can do without
    from fedgraph_flwr.data.tables import TableLayout

_ROLES = {
    "id": "nodes' ids; default: the schema's, else id",
    "label": "labels; default: the schema's, else label",
    "split": "column with train, val or test; default: the schema's, else none",
    "source": "source of each edge; default: the schema's, else source",
    "target": "target of each edge; default: the schema's, else target",
    "time": "time of each edge, seconds or a date; default: the schema's, else none",
    "edge-label": "labels of edges; default: the schema's, else none",
}


def add_table_arguments(group: Any) -> None:
    """Add the names of columns and the formats of files and values."""
    for role, text in _ROLES.items():
        group.add_argument(f"--{role}-column", metavar="NAME", help=text)
    group.add_argument(
        "--separator", metavar="SIGN", help="between a CSV's fields, or its name, such as tab; default: detected"
    )
    group.add_argument("--encoding", metavar="NAME", help="of a CSV, such as cp1252 or utf-16; default: detected")
    for option, example in (("decimal", "','"), ("thousands", "'.'")):
        group.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar="[COLUMN=]SIGN",
            help=f"{option} sign of numbers, such as {example}, of one column or all; default: detected by column",
        )
    group.add_argument(
        "--date-format",
        action="append",
        default=[],
        metavar="COLUMN=FORMAT",
        help="of dates, such as opened=%%d.%%m.%%Y; several separated by |; default: detected by column",
    )


def layout_of(args: argparse.Namespace) -> "TableLayout":
    """The layout that the options state."""
    from fedgraph_flwr.data.tables import TableLayout

    roles = [role.replace("-", "_") for role in (*_ROLES, "client")]
    given = {role: getattr(args, f"{role}_column", None) or "" for role in roles}
    return TableLayout(separator=args.separator or "", encoding=args.encoding or "", **given)


def formats_of(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    """The formats of values that the options state, as fields of a `Treatment`.

    Raises:
        FedGraphError: a sign or an option of another form.
    """
    from fedgraph_flwr.data.value_formats import NAMED

    found: dict[str, dict[str, str]] = {"decimals": {}, "thousands": {}, "date_formats": {}}
    accepted = {"decimal": (".", ","), "thousands": (",", ".", " ", "'", "")}
    for option, signs in accepted.items():
        for word in getattr(args, option):
            name, _, sign = word.rpartition("=")
            sign = NAMED.get(sign, sign)
            if sign not in signs:
                raise FedGraphError(
                    f"--{option} {word}: expected a sign, or COLUMN=SIGN, of: "
                    + ", ".join(repr(s) for s in signs if s)
                    + (f"; or {', '.join(NAMED)}" if option == "thousands" else "")
                )
            found["thousands" if option == "thousands" else "decimals"][name] = sign
    for word in args.date_format:
        name, sign, form = word.partition("=")
        if not (sign and name and form):
            raise FedGraphError(f"--date-format {word}: expected COLUMN=FORMAT, such as opened=%d.%m.%Y")
        found["date_formats"][name] = form
    return found
