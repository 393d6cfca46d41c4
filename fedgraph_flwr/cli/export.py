"""The command ``export``: a trained network as a folder that plain PyG loads."""

import argparse
from pathlib import Path
from typing import Any

_EPILOG = """\
examples:
  fedgraph-flwr export runs/mine --out folder                   # the shared network
  fedgraph-flwr export runs/mine --client 0 --out folder        # client 0's own
  fedgraph-flwr predict folder --nodes new.csv --edges new_edges.csv --out predictions.csv
"""


def register(commands: Any) -> None:
    """Add ``export`` to the subparsers."""
    from fedgraph_flwr.cli.predict import add_model_arguments

    parser = commands.add_parser(
        "export",
        help="a trained network as a folder that plain PyG loads",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new one, or of an earlier export")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``export``."""
    from fedgraph_flwr.cli.predict import chosen
    from fedgraph_flwr.export.writing import export

    export(chosen(args), args.out, args.run)
    print(f"wrote {args.out}: {', '.join(sorted(path.name for path in args.out.iterdir()))}")
    return 0
