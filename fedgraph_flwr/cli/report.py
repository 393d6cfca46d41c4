"""Command ``report``: write one self-contained HTML page about runs or sweeps."""

import argparse
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    about = "runs to compare, folders of sweeps, or one folder of runs"
    parser.add_argument("folders", nargs="+", metavar="DIR", type=Path, help=about)
    add_options(parser, _OPTIONS)


_OPTIONS = """
--page FILE  output file (default: report.html in the folder; of several folders, required)
--no-baselines  do not search the folders next to DIR for baseline runs (Local, Central)
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``report``."""
    from fedgraph_flwr.party.use.predict import load_predictor
    from fedgraph_flwr.report.listing import listed, write_listing
    from fedgraph_flwr.report.sweep_page import outcomes_of, write_sweeps
    from fedgraph_flwr.report.writing import write_report
    from fedgraph_flwr.store.results import CONFIG

    first = args.folders[0]
    if len({folder.resolve() for folder in args.folders}) > 1 and not args.page:
        count = len(args.folders)
        raise FedGraphError(f"a page of {count} folders would replace {first}'s own report: pass --page FILE")
    out = args.page or first / "report.html"
    sweeps = [outcomes_of(folder) for folder in args.folders]
    if all(sweeps):
        page = write_sweeps([path for found in sweeps for path in found], out)
    elif len(args.folders) == 1 and not (first / CONFIG).is_file() and first.is_dir() and listed(first):
        page = write_listing(first, out)
    else:
        page = write_report(args.folders, out, load=load_predictor, baselines=not args.no_baselines)
    print(page)
    return 0
