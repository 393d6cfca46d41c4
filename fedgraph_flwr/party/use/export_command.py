"""Command ``export``: export a trained model to a folder that plain PyG loads.

Examples:
  fedgraph-flwr export runs/mine --out folder                   # the shared model
  fedgraph-flwr export runs/mine --client 0 --out folder        # the model of client 0
  fedgraph-flwr predict folder --nodes new.csv --edges new_edges.csv --out predictions.csv
"""

import argparse
from pathlib import Path

from fedgraph_flwr.party.options import fill


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    from fedgraph_flwr.party.use.predict_command import add_model_arguments

    add_model_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="output folder: new, or of an earlier export"
    )


def main(args: argparse.Namespace) -> int:
    """Handle ``export``."""
    from fedgraph_flwr.party.use.export import export
    from fedgraph_flwr.party.use.predict_command import load_chosen, take_state

    take_state(args)
    fill(args)
    export(load_chosen(args), args.out, args.run)
    print(f"wrote {args.out}: {', '.join(sorted(path.name for path in args.out.iterdir()))}")
    return 0
