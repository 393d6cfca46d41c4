"""Command ``init-party``: write a party's file (party.yaml) by guessing from its two tables.

KEY=VALUE corrects a guess, by the keys of the file. Check it, then run `fedgraph-flwr import PARTY.YAML`.

Examples:
  fedgraph-flwr init-party accounts.csv payments.csv
  fedgraph-flwr init-party accounts.csv payments.csv party=a client=0 schema=../schema.yaml columns.label=fraud
"""

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options

_OUTPUT = """
--out FILE  output (default: party.yaml next to the first table)
--overwrite  replace an existing output
"""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``init-party``."""
    about = "the table of nodes, that of edges, and keys of the file, such as columns.label=fraud"
    parser.add_argument("words", nargs="+", metavar="TABLE or KEY=VALUE", help=about)
    add_options(parser, _OUTPUT)


def main(args: argparse.Namespace) -> int:
    """Handle ``init-party``."""
    from fedgraph_flwr.data.files import write_bytes
    from fedgraph_flwr.data.schema import TableLayout, flow
    from fedgraph_flwr.party.party_file import given_keys, is_key, read_party
    from fedgraph_flwr.party.tables.guessing import OF_NODES, first_edge, guess, without_role
    from fedgraph_flwr.party.tables.reading import read_table

    paths = [Path(word) for word in args.words if not is_key(word)]
    given = given_keys([word for word in args.words if is_key(word)])
    if len(paths) != 2:
        raise FedGraphError(f"init-party reads two tables, that of nodes and that of edges, got {len(paths)}")
    out = args.out or paths[0].with_name("party.yaml")
    if out.exists() and not args.overwrite:
        raise FedGraphError(f"{out} exists: edit it, pass another --out, or --overwrite to replace it")
    files = {os.path.relpath(path, out.parent): path for path in paths}
    layout = TableLayout(separator=given.get("separator", ""), encoding=given.get("encoding", ""))
    tables = {name: read_table(path, layout) for name, path in files.items()}
    client = given.pop("client", 0)
    for key in {"schema", "out"} & given.keys():
        given[key] = os.path.relpath(given[key], out.parent)
    proposal = guess(tables, given)
    proposal.add("party", out.absolute().parent.name or "party", "no table names it: the folder's name")
    proposal.add("schema", "schema.yaml", "shared by all parties; the first import writes it")
    proposal.add("out", f"client_{client:04d}.safetensors", "the client file")
    proposal.values["client"] = client
    write_bytes(out, _text(proposal.values, proposal.reasons).encode())
    read_party(out)
    for key, reason in proposal.reasons.items():
        section, _, role = key.partition(".")
        value = proposal.values[section][role] if role else proposal.values[section]
        print(f"{key}: {flow(value)}  ({reason})")
    columns = proposal.values["columns"]
    missing = [] if {"label", "edge_label"} & {*columns} else ["label", "edge_label"]
    missing += [role for role in ("time", "amount") if role not in columns]
    if missing:
        keys = ", ".join(f"columns.{role}=NAME" for role in missing)
        print(f"no column found for {', '.join(missing)}: if there is one, pass {keys}")
    of_edges = [role for role in columns if role not in OF_NODES]
    for key, roles, use in (
        ("nodes", OF_NODES, "that become inputs, unless `kinds` ignores them"),
        ("edges", of_edges, "without a role, which are not read"),
    ):
        if rest := without_role(tables[proposal.values[key]], proposal.values, roles):
            print(f"columns of {proposal.values[key]} {use}: {', '.join(rest)}")
    print(
        f"first row: {first_edge(tables[proposal.values['edges']], columns)}; if the direction is wrong, pass columns.source=NAME"
    )
    for question in proposal.questions:
        print(f"question: {question}")
    print(f"wrote {out}: check it, then run `fedgraph-flwr import {out}`")
    return 0


def _text(values: dict[str, Any], reasons: dict[str, str]) -> str:
    """Return the file: one line per key, with the reason of its guess as a comment."""
    from fedgraph_flwr.data.schema import flow
    from fedgraph_flwr.party.party_file import PartyFile

    lines = ["# This party's tables, for `fedgraph-flwr import`, `link`, `predict` and others. Check the guesses."]
    for key in [field.name for field in fields(PartyFile) if field.name in values]:
        if key == "columns":
            lines.append(f"{key}:")
            columns = values[key].items()
            lines += [f"  {role}: {flow(name)}{_comment(reasons.get(f'{key}.{role}', ''))}" for role, name in columns]
        else:
            lines.append(f"{key}: {flow(values[key])}{_comment(reasons.get(key, ''))}")
    return "\n".join(lines) + "\n"


def _comment(reason: str) -> str:
    return f"   # {reason}" if reason else ""
