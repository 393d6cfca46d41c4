"""Command ``blend``: weigh the predictions of finished runs."""

import argparse
from pathlib import Path
from typing import Any

_EPILOG = """\
Each party fits one weight per run on its validation items (logistic regression on the logits) and scores the sum on its test
items. The new folder is a run folder: report and compare read it. blend.json has the weights of each party.
example:
  fedgraph-flwr blend runs/fedavg runs/boosting --out runs/blend
"""


def register(commands: Any) -> None:
    """Add ``blend`` to the subparsers."""
    parser = commands.add_parser(
        "blend",
        help="weigh the predictions of finished runs, such as a network and boosting",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders of simulations on the same data")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="new run folder")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``blend``."""
    from fedgraph_flwr.party.use.blend import blend
    from fedgraph_flwr.runs.folder import headline_score

    summary = blend(args.runs, args.out)
    print(f"headline: {summary['headline']} = {headline_score(summary):.4f} (chance level {summary['chance']:.4f})")
    print(f"results: {args.out}")
    return 0
