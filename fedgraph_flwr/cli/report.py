"""Command ``report``: write one self-contained HTML page about runs or sweeps."""

import argparse
import sys
import time
from collections.abc import Callable
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
--watch  write the page again after each round, until the run ends; the browser follows
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
    if args.watch and (len(args.folders) > 1 or not (first / CONFIG).is_file()):
        raise FedGraphError(
            "--watch follows one run: pass its folder, which has a config.yaml once the run has started"
        )
    if len({folder.resolve() for folder in args.folders}) > 1 and not args.page:
        count = len(args.folders)
        raise FedGraphError(f"a page of {count} folders would replace {first}'s own report: pass --page FILE")
    out = args.page or first / "report.html"
    sweeps = [outcomes_of(folder) for folder in args.folders]
    if all(sweeps):
        page = write_sweeps([path for paths in sweeps for path in paths], out)
    elif len(args.folders) == 1 and not (first / CONFIG).is_file() and first.is_dir() and listed(first):
        page = write_listing(first, out)
    else:
        if args.watch:
            _watch(first, lambda: write_report([first], out, load=load_predictor, baselines=False, refresh=EVERY), out)
        page = write_report(args.folders, out, load=load_predictor, baselines=not args.no_baselines)
    print(page)
    return 0


EVERY = 5
"""Seconds between two looks at a run."""


def _watch(folder: Path, write: Callable[[], Path], out: Path) -> None:
    """Write the page after each new round, until the run has ended or failed."""
    from fedgraph_flwr.store.results import FAILURE, ROUNDS, SUMMARY, read_rounds

    seen = 0
    while not any((folder / name).is_file() for name in (SUMMARY, FAILURE)):
        rounds = read_rounds(folder / ROUNDS) if (folder / ROUNDS).is_file() else []
        if len(rounds) > seen:
            if not seen:
                print(f"{out}: open it in a browser", file=sys.stderr)
            write()
            seen = len(rounds)
        time.sleep(EVERY)
