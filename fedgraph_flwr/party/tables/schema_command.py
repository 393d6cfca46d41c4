r"""Command ``schema``: show the columns of a file, or merge the parties' statistics into one schema.

each party:   fedgraph-flwr import --nodes customers.csv --edges payments.csv --classes ok,fraud --statistics a.json
one of them:  fedgraph-flwr schema merge a.json b.json c.json --out schema.yaml
each party:   fedgraph-flwr import --nodes customers.csv --edges payments.csv --schema schema.yaml --client 0 --num-clients 3 \
                  --out parts/client_0000.safetensors
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraph_flwr.errors import FedGraphError, counted

if TYPE_CHECKING:  # imports torch, which `--help` does not need
    from fedgraph_flwr.data.schema import Schema


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``schema``."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="show the columns of a schema, a client file or an imported dataset")
    show.add_argument("file", type=Path)
    show.set_defaults(func=_show)
    merged = actions.add_parser("merge", help="write one schema with statistics over all parties' tables")
    merged.add_argument(
        "parties", type=Path, nargs="+", metavar="FILE", help="files written by `import --statistics FILE`"
    )
    merged.add_argument("--out", type=Path, required=True, metavar="FILE", help="output YAML file")
    merged.add_argument("--overwrite", action="store_true", help="replace an existing schema")
    merged.set_defaults(func=_merge)


def _show(args: argparse.Namespace) -> int:
    from fedgraph_flwr.data.schema import to_text

    schema = read(args.file)
    print(f"scaling {schema.scaling}\nclasses {', '.join(schema.classes)}")
    if tables := schema.tables.to_dict():
        print(f"tables {to_text(tables)}")
    if schema.undirected:
        print("undirected")
    for kind, columns in schema.nodes.items():
        used = {name: column for name, column in columns.items() if column.kind != "ignored"}
        for place, (name, column) in enumerate(used.items(), 1):
            details = [f"{key}: {to_text(value)}" for key, value in column.to_dict().items() if key != "kind"]
            print(f"{kind}  {place:>3}  {name}: {'; '.join([column.kind, *details])}")
    return 0


def read(path: Path) -> "Schema":
    """Read the schema of a YAML file or of a graph file.

    Raises:
        FedGraphError: the file has no schema.
    """
    from fedgraph_flwr.data.graph import read_header
    from fedgraph_flwr.data.schema import Schema, agreed_schema

    if path.suffix != ".safetensors":
        return Schema.load(path)
    schema = agreed_schema(read_header(path)[1].get("schema", {}), str(path))
    if schema is None:
        raise FedGraphError(f"{path} has no schema: only graphs written by `fedgraph-flwr import` have one")
    return schema


def _merge(args: argparse.Namespace) -> int:
    from fedgraph_flwr.data.schema import Schema
    from fedgraph_flwr.party.tables.columns import log_warning
    from fedgraph_flwr.party.tables.statistics import merge, read_sums

    if len({path.resolve() for path in args.parties}) < len(args.parties):
        raise FedGraphError(f"{' '.join(map(str, args.parties))}: a party's file is named twice: name each once")
    reports = [(str(path), read_sums(path)) for path in args.parties]
    merged = merge(reports, print, log_warning)
    if args.out.exists() and not args.overwrite and Schema.load(args.out) not in [t["schema"] for _, t in reports]:
        raise FedGraphError(f"{args.out} holds a schema of other parties: choose another name, or pass --overwrite")
    merged.save(args.out)
    columns = sum(column.kind != "ignored" for of in merged.nodes.values() for column in of.values())
    print(f"{counted(len(reports), 'party')}, {counted(columns, 'column')}, classes {', '.join(merged.classes)}")
    print(f"wrote {args.out}; import with --schema {args.out}")
    return 0
