"""Options for columns and formats of tables, of ``import``; they override the schema."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options

if TYPE_CHECKING:  # imports torch, which the parser does not need
    from fedgraph_flwr.data.schema import TableLayout

ROLES = ("id", "label", "split", "source", "target", "time", "amount", "edge-label", "graph", "edge-id")
"""Roles of columns: option ``--ROLE-column``."""

RATIO = "0.6,0.2,0.2"
"""Default shares of training, validation and test."""

_LAYOUT = """
--id-column NAME  column of node ids (default: the schema's, else id)
--label-column NAME  column of labels (default: the schema's, else label)
--split-column NAME  column with train, val or test (default: the schema's, else none)
--source-column NAME  column of edge sources (default: the schema's, else source)
--target-column NAME  column of edge targets (default: the schema's, else target)
--time-column NAME  column of edge times, seconds or dates (default: the schema's, else none)
--amount-column NAME  column of edge amounts, for --features (default: the schema's, else amount)
--edge-label-column NAME  column of edge labels (default: the schema's, else none)
--graph-column NAME  many graphs: column with the graph of each node (default: the schema's, else none)
--edge-id-column NAME  column of edge ids, which predictions list (default: the schema's, else row numbers)
--edge-ids unique  ids alone name edges, so that a row with other accounts replaces one with its id (default: the schema's, else
    id and accounts name them)
--predict-columns NAMES  columns of the node table with numbers to predict, or 0 and 1 (default: the schema's, else none)
--windows DAYS  add features that count earlier edges at both ends of an edge within DAYS, such as 2,0.5; needs --time-column
    (default: the schema's, else none)
--features RECIPE  add columns that the party computes from its own records, for edges and nodes: payments; payments,-flow_*
    leaves some out; --windows are then its windows; needs --time-column (default: the schema's, else none)
--separator SIGN  field separator of CSV files, or its name, such as tab (default: detected)
--encoding NAME  encoding of CSV files, such as cp1252 or utf-16 (default: detected)
--decimal [COLUMN=]SIGN...  decimal separator of numbers, such as ',', for one column or all (default: detected per column)
--thousands [COLUMN=]SIGN...  thousands separator of numbers, such as '.', for one column or all (default: detected per column)
--rate CODE=VALUE...  value of one unit of a currency in that of the amounts, such as USD=0.92, for amounts in several currencies
--date-format COLUMN=FORMAT...  date format such as opened=%d.%m.%Y, several separated by |; of numbers also seconds (since 1970)
    or spreadsheet (days) (default: detected per column)
--party-columns SOURCE,TARGET  columns of the edge table with the parties of source and target (default: the schema's, else none)
--party-prefix SIGN  separator after the party's name at the start of an id, such as : in A:17 (instead of --party-columns)
--day whole|before  with --features: a record reads the other records of its day, or earlier ones only (default: the schema's,
    else whole where no time of --time-column has hours)
--match-columns NAME:KIND,NAME  columns of the edge table that identify a record at both parties:
    value_date:date,amount:amount,reference
--currency NAME  unit of amounts in reasons, such as € (default: the schema's, else none)
--id-form text|number  number: parties compare ids without leading zeros (default: the schema's, else text)
"""


def add_table_arguments(group: Any) -> None:
    """Add options for column names, file formats and value formats, and those of edges between parties."""
    accepted = {"id_form": ("", "text", "number"), "day": ("", "whole", "before"), "edge_ids": ("", "unique")}
    kinds = {name: {"choices": values} for name, values in accepted.items()}
    add_options(group, _LAYOUT, features={"dest": "recipe"}, **kinds)


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

    found: dict[str, dict[str, Any]] = {"decimals": {}, "thousands": {}, "date_formats": {}}
    signs = {".": ".", ",": ","}
    for option, field, accepted in (("decimal", "decimals", signs), ("thousands", "thousands", signs | NAMED)):
        for word in getattr(args, option, ()):
            name, _, sign = word.rpartition("=")
            if sign not in {*accepted, *accepted.values()}:
                names = " ".join(accepted)
                raise FedGraphError(f"--{option} {word}: expected SIGN or COLUMN=SIGN, where SIGN is one of: {names}")
            found[field][name] = accepted.get(sign, sign)
    rates = {code: value for code, _, value in (word.rpartition("=") for word in getattr(args, "rate", ()))}
    found["rates"] = rates_of(rates, "--rate")
    for word in args.date_format:
        name, sign, form = word.partition("=")
        if not (sign and name and form):
            raise FedGraphError(f"--date-format {word}: expected COLUMN=FORMAT, such as opened=%d.%m.%Y")
        found["date_formats"][name] = form
    return found
