"""The command ``report``: one HTML page with everything inside it, of one run, of several, or of sweeps."""

import argparse
from pathlib import Path
from typing import Any


def register(commands: Any) -> None:
    """Add ``report`` to the subparsers."""
    parser = commands.add_parser("report", help="an HTML page of one run or several, or of sweeps")
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", type=Path, help="folders of runs, side by side, or of sweeps"
    )
    parser.add_argument("--out", type=Path, help="the page; default: DIR/report.html of the first folder")
    parser.add_argument("--map", action="store_true", help="draw nodes by their hidden features too (t-SNE: seconds)")
    parser.add_argument(
        "--no-baselines",
        action="store_true",
        help="do not search the folders next to DIR for baseline runs (Local, Central)",
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``report``."""
    from fedgraph_flwr.report.tables import tables_of, write_tables
    from fedgraph_flwr.report.writing import write_report

    out = args.out or args.folders[0] / "report.html"
    tables = [tables_of(folder) for folder in args.folders]
    if all(tables):
        print(write_tables([path for found in tables for path in found], out))
        return 0
    print(write_report(args.folders, out, with_map=args.map, baselines=not args.no_baselines))
    return 0
