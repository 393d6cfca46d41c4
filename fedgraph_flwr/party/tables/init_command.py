"""Command ``init-party``: write a party's file (party.yaml) by guessing from its two tables.

Options correct a guess. Edit the file for other keys, then run `fedgraph-flwr import PARTY.YAML`.

Examples:
  fedgraph-flwr init-party accounts.csv payments.csv
  fedgraph-flwr init-party accounts.csv payments.csv --party a --client 0 --schema ../schema.yaml --label-column fraud
"""

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.party.tables.options import add_table_arguments, formats_of

_PARTY = """
--party NAME  this party's name, as the edge table writes it (default: guessed)
--client I  this party's number in runs, from 0 (default: 0)
--schema FILE  schema file shared by all parties (default: schema.yaml next to the output)
--file FILE  client file that `import` writes (default: client_000I.safetensors next to the output)
--out FILE  output (default: party.yaml next to the first table)
--overwrite  replace an existing output
"""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``init-party``."""
    parser.add_argument("tables", nargs=2, type=Path, metavar="TABLE", help="the table of nodes and that of edges")
    add_options(parser, _PARTY, client={"default": 0})
    corrected = [*(f"{role}-column" for role in _COLUMNS), *_FORMS]
    add_table_arguments(parser.add_argument_group("corrections"), parties=True, only=corrected)


def main(args: argparse.Namespace) -> int:
    """Handle ``init-party``."""
    from fedgraph_flwr.data.files import write_bytes
    from fedgraph_flwr.data.schema import TableLayout, flow
    from fedgraph_flwr.party.party_file import read_party
    from fedgraph_flwr.party.tables.guessing import OF_NODES, first_edge, guess, without_role
    from fedgraph_flwr.party.tables.reading import read_table

    out = args.out or args.tables[0].with_name("party.yaml")
    if out.exists() and not args.overwrite:
        raise FedGraphError(f"{out} exists: edit it, pass another --out, or --overwrite to replace it")
    files = {os.path.relpath(path, out.parent): path for path in args.tables}
    layout = TableLayout(separator=args.separator, encoding=args.encoding)
    tables = {name: read_table(path, layout) for name, path in files.items()}
    found = guess(tables, _given(args))
    schema = args.schema or out.with_name("schema.yaml")
    file = args.file or out.with_name(f"client_{args.client:04d}.safetensors")
    found.add("party", out.absolute().parent.name or "party", "no table names it: the folder's name")
    found.add("schema", os.path.relpath(schema, out.parent), "shared by all parties; the first import writes it")
    found.add("out", os.path.relpath(file, out.parent), "the client file")
    found.values["client"] = args.client
    write_bytes(out, _text(found.values, found.reasons).encode())
    read_party(out)
    for key, reason in found.reasons.items():
        section, _, role = key.partition(".")
        value = found.values[section][role] if role else found.values[section]
        print(f"{key}: {flow(value)}  ({reason})")
    columns = found.values["columns"]
    missing = [] if {"label", "edge_label"} & {*columns} else ["label", "edge-label"]
    missing += [role for role in ("time", "amount") if role not in columns]
    if missing:
        options = ", ".join(f"--{role}-column" for role in missing)
        print(f"no column found for {', '.join(missing)}: if there is one, pass {options}")
    of_edges = [role for role in columns if role not in OF_NODES]
    for key, roles, use in (
        ("nodes", OF_NODES, "that become inputs, unless `kinds` ignores them"),
        ("edges", of_edges, "without a role, which are not read"),
    ):
        if rest := without_role(tables[found.values[key]], found.values, roles):
            print(f"columns of {found.values[key]} {use}: {', '.join(rest)}")
    print(
        f"first row: {first_edge(tables[found.values['edges']], columns)}; if the direction is wrong, pass --source-column"
    )
    for question in found.questions:
        print(f"question: {question}")
    print(f"wrote {out}: check it, then run `fedgraph-flwr import {out}`")
    return 0


_COLUMNS = ("id", "label", "source", "target", "time", "amount", "edge-label", "edge-id")
"""Roles that an option corrects."""

_FORMS = ("separator", "encoding", "date-format", "party-columns", "party-prefix", "day")
"""Further options: what the tables must have to be read, and what names the parties."""


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keys that the options set."""
    roles = [role.replace("-", "_") for role in _COLUMNS]
    found: dict[str, Any] = {"columns": {role: name for role in roles if (name := getattr(args, f"{role}_column"))}}
    keys = ("party", "party_prefix", "separator", "encoding", "day")
    found |= {key: value for key in keys if (value := getattr(args, key))}
    if args.party_columns:
        found["party_columns"] = [name.strip() for name in args.party_columns.split(",")]
    if formats := formats_of(args)["date_formats"]:
        found["date_formats"] = formats
    return found


def _text(values: dict[str, Any], reasons: dict[str, str]) -> str:
    """Return the file: one line per key, with the reason of its guess as a comment."""
    from fedgraph_flwr.data.schema import flow
    from fedgraph_flwr.party.party_file import PartyFile

    lines = ["# This party's tables, for `fedgraph-flwr import`, `link`, `predict` and others. Check the guesses."]
    for key in [each.name for each in fields(PartyFile) if each.name in values]:
        if key == "columns":
            lines.append(f"{key}:")
            own = values[key].items()
            lines += [f"  {role}: {flow(name)}{_comment(reasons.get(f'{key}.{role}', ''))}" for role, name in own]
        else:
            lines.append(f"{key}: {flow(values[key])}{_comment(reasons.get(key, ''))}")
    return "\n".join(lines) + "\n"


def _comment(reason: str) -> str:
    return f"   # {reason}" if reason else ""
