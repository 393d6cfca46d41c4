"""The command ``schema``: show what a file says of its columns, and merge the parties' statistics into one schema."""

import argparse
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.graph import read_header
from fedgraph_flwr.data.schema import Schema, agreed_schema, to_text
from fedgraph_flwr.errors import FedGraphError

_EPILOG = """\
each party:   fedgraph-flwr import --nodes customers.csv --edges payments.csv --classes ok,fraud --statistics a.json
one of them:  fedgraph-flwr schema merge a.json b.json c.json --schema schema.yaml
each party:   fedgraph-flwr import --nodes customers.csv --edges payments.csv --schema schema.yaml --client 0 --num-clients 3 \\
                  --out parts/client_0000.safetensors
"""


def register(commands: Any) -> None:
    """Add ``schema`` to the subparsers."""
    parser = commands.add_parser(
        "schema",
        help="what the columns of your tables mean: show it, or merge several parties' statistics",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="the columns of a schema, a client file or an imported dataset's file")
    show.add_argument("file", type=Path)
    show.set_defaults(func=_show)
    merged = actions.add_parser("merge", help="one schema, with statistics over all parties' tables")
    merged.add_argument("parties", type=Path, nargs="+", metavar="FILE", help="what `import --statistics FILE` wrote")
    merged.add_argument("--schema", type=Path, required=True, metavar="FILE", help="the YAML to write")
    merged.add_argument("--overwrite", action="store_true", help="replace another schema of this name")
    merged.set_defaults(func=_merge)


def _show(args: argparse.Namespace) -> int:
    schema = read(args.file)
    print(f"scaling {schema.scaling}\nclasses {', '.join(schema.classes)}")
    if tables := schema.tables.to_dict():
        print(f"tables {to_text(tables)}")
    if schema.undirected:
        print("undirected")
    for kind, columns in schema.nodes.items():
        used = {name: column for name, column in columns.items() if column.kind != "ignored"}
        for place, (name, column) in enumerate(used.items(), 1):
            told = [f"{key}: {to_text(value)}" for key, value in column.to_dict().items() if key != "kind"]
            print(f"{kind}  {place:>3}  {name}: {'; '.join([column.kind, *told])}")
    return 0


def read(path: Path) -> Schema:
    """The schema of a YAML, or the one that a graph's file keeps.

    Raises:
        FedGraphError: there is none.
    """
    if path.suffix != ".safetensors":
        return Schema.load(path)
    schema = agreed_schema(read_header(path)[1].get("schema", {}), str(path))
    if schema is None:
        raise FedGraphError(f"{path} has no schema: it was not imported from your own tables")
    return schema


def _merge(args: argparse.Namespace) -> int:
    from fedgraph_flwr.data.columns import log_warning
    from fedgraph_flwr.data.federated_statistics import merge, read_sums

    told = [(str(path), read_sums(path)) for path in args.parties]
    merged = merge(told, print, log_warning)
    if args.schema.exists() and not args.overwrite and Schema.load(args.schema) not in [t["schema"] for _, t in told]:
        raise FedGraphError(
            f"{args.schema} is another schema than the parties': choose another name, or add --overwrite"
        )
    merged.save(args.schema)
    columns = sum(column.kind != "ignored" for of in merged.nodes.values() for column in of.values())
    print(f"{len(told)} parties, {columns} columns, classes {', '.join(merged.classes)}")
    print(f"wrote {args.schema}; import with --schema {args.schema}")
    return 0
