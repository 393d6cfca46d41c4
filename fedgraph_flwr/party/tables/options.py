"""Options and keys for columns and formats of tables, of ``import``; they override the schema."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options

if TYPE_CHECKING:  # imports torch, which the parser does not need
    from fedgraph_flwr.data.schema import TableLayout

ROLES = ("id", "label", "split", "source", "target", "time", "amount", "edge-label", "graph", "edge-id")
"""Roles of columns: keys ``columns.ROLE`` of a party's file, with ``_`` for ``-``."""

RATIO = "0.6,0.2,0.2"
"""Default shares of training, validation and test."""

_LAYOUT = """
--predict-columns NAMES  columns of the node table with numbers to predict, or 0 and 1 (default: the schema's, else none)
--decimal [COLUMN=]SIGN...  decimal separator of numbers, such as ',', for one column or all (default: detected per column)
--thousands [COLUMN=]SIGN...  thousands separator of numbers, such as '.', for one column or all (default: detected per column)
--match-columns NAME:KIND,NAME  columns of the edge table that identify a record at both parties:
    value_date:date,amount:amount,reference
"""

_TEXTS = ("windows", "recipe", "separator", "encoding", "party_columns", "party_prefix", "day", "currency")
_MORE_TEXTS = ("id_form", "edge_ids", "edge_classes", "feature_columns", "edge_columns")
_LISTS = ("date_format", "rate", "input", "kind", "scale", "edge_kind", "edge_scale")


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for columns and formats, and defaults of those that keys of a party's file set."""
    add_options(parser.add_argument_group("columns and formats of the tables (stored in the schema)"), _LAYOUT)
    roles = (f"{role.replace('-', '_')}_column" for role in ROLES)
    parser.set_defaults(**dict.fromkeys([*roles, *_TEXTS, *_MORE_TEXTS], ""), **{name: [] for name in _LISTS})


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


def layout_of(args: argparse.Namespace) -> "TableLayout":
    """Return the layout given by the options."""
    from fedgraph_flwr.data.schema import TableLayout

    roles = [role.replace("-", "_") for role in (*ROLES, "client")]
    given = {role: getattr(args, f"{role}_column", None) or "" for role in roles}
    named = ("party_columns", "party_prefix", "match_columns", "id_form", "edge_ids", "day", "currency")
    given |= {name: getattr(args, name, "") for name in named}
    given |= {"predict": args.predict_columns or "", "windows": args.windows or "", "recipe": args.recipe or ""}
    return TableLayout(separator=args.separator or "", encoding=args.encoding or "", **given)


def formats_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the value formats given by the options, as fields of a `Treatment`.

    Raises:
        FedGraphError: a separator is not accepted, or an option has a wrong form.
    """
    from fedgraph_flwr.data.value_formats import NAMED
    from fedgraph_flwr.party.tables.columns import rates_of

    formats: dict[str, dict[str, Any]] = {"decimals": {}, "thousands": {}, "date_formats": {}}
    signs = {".": ".", ",": ","}
    for option, field, accepted in (("decimal", "decimals", signs), ("thousands", "thousands", signs | NAMED)):
        for word in getattr(args, option, ()):
            name, _, sign = word.rpartition("=")
            if sign not in {*accepted, *accepted.values()}:
                names = " ".join(accepted)
                raise FedGraphError(f"--{option} {word}: expected SIGN or COLUMN=SIGN, where SIGN is one of: {names}")
            formats[field][name] = accepted.get(sign, sign)
    rates = {code: value for code, _, value in (word.rpartition("=") for word in getattr(args, "rate", ()))}
    formats["rates"] = rates_of(rates)
    for word in args.date_format:
        name, sign, form = word.partition("=")
        if not (sign and name and form):
            raise FedGraphError(
                f"date_formats.{word}: expected date_formats.COLUMN=FORMAT, such as date_formats.opened=%d.%m.%Y"
            )
        formats["date_formats"][name] = form
    return formats
