"""Command ``blend``: weigh the predictions of finished runs.

One weight per run is fitted on the validation items of all parties (logistic regression on the logits), and the sum is scored
on each party's test items. The new folder is a run folder: report and compare read it. blend.json has the weights.
On a fleet, each party blends the models that its node stored, with weights of its own items: the new folder has predictions.csv
and blend.json.

Examples:
  fedgraph-flwr blend runs/fedavg runs/boosting --out runs/blend
  fedgraph-flwr blend state/1203 state/1204 --out blend     # at a party; needs no server
"""

import argparse
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``blend``."""
    about = "run folders of simulations on the same data, or state folders of a party's runs; no blends"
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help=about)
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="new run folder")


def main(args: argparse.Namespace) -> int:
    """Handle ``blend``."""
    from fedgraph_flwr.party.use.blend import PREDICTIONS, blend, blend_node, is_blend
    from fedgraph_flwr.party.use.predict import finished
    from fedgraph_flwr.party.use.predict_command import is_state
    from fedgraph_flwr.store.results import headline_score

    for folder in filter(is_blend, args.runs):
        finished(folder)  # refuses it: a blend of blends is none
    states = [is_state(folder) for folder in args.runs]
    if any(states) and not all(states):
        raise FedGraphError("blend takes run folders or state folders of a party, not both: leave one out")
    if any(states):
        for name, value in blend_node(args.runs, args.out).items():
            if name.startswith("test_") and "_by_" not in name:
                print(f"{name}: {value:.4f}")
        print(f"wrote {args.out / PREDICTIONS}")
        return 0
    summary = blend(args.runs, args.out)
    print(f"headline: {summary['headline']} = {headline_score(summary):.4f} (chance level {summary['chance']:.4f})")
    print(f"results: {args.out}")
    return 0
