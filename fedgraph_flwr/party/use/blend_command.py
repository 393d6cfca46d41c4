"""Command ``blend``: weigh the predictions of finished runs.

One weight per run is fitted on the validation items of all parties (logistic regression on the logits), and the sum is scored
on each party's test items. The new folder is a run folder: report and compare read it. blend.json has the weights.
On a fleet, each party blends the models that its node stored, with weights of its own items: the new folder has predictions.csv
and blend.json.

Examples:
  fedgraph-flwr blend runs/fedavg runs/boosting --out runs/blend
  fedgraph-flwr blend --node state/1203 state/1204 --out blend     # at a party; needs no server
"""

import argparse
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``blend``."""
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders of simulations on the same data")
    parser.add_argument(
        "--node", nargs="+", type=Path, metavar="DIR", help="state folders of a party's runs, instead of RUN"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="new run folder")


def main(args: argparse.Namespace) -> int:
    """Handle ``blend``."""
    from fedgraph_flwr.party.use.blend import PREDICTIONS, blend, blend_node
    from fedgraph_flwr.store.results import headline_score

    if args.node and args.runs:
        raise FedGraphError("blend takes run folders or --node, not both: leave one out")
    if args.node:
        for name, value in blend_node(args.node, args.out).items():
            if name.startswith("test_") and "_by_" not in name:
                print(f"{name}: {value:.4f}")
        print(f"wrote {args.out / PREDICTIONS}")
        return 0
    summary = blend(args.runs, args.out)
    print(f"headline: {summary['headline']} = {headline_score(summary):.4f} (chance level {summary['chance']:.4f})")
    print(f"results: {args.out}")
    return 0
