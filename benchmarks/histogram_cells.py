"""What boosting by histograms loses where nodes count values in cells of at least five rows, as parties' nodes do in secure sums.

    python -m benchmarks.histogram_cells               every missing cell: exact bins, and the cells of this code
    python -m benchmarks.histogram_cells --seeds 3 --only payments
    python -m benchmarks.histogram_cells --bins siblings    cells; half of the nodes are their parent minus their sibling

Until 466ff07a, nodes counted groups of five rows instead, each in the bin of its middle row, which named values. To measure these
as well, run this file with the code of that commit:

    git worktree add ../before 466ff07a
    PYTHONPATH=../before python benchmarks/histogram_cells.py --bins groups

Average precision on test items in %, at the best validation round, mean over banks, on generated payments. Rows are in
``simulations/results/histogram_cells.csv``; the means, and differences paired by seed, are printed.
"""

import argparse
import csv
import itertools
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedgraph_flwr
from fedgraph_flwr import api
from fedgraph_flwr.evaluation.intervals import interval, paired
from fedgraph_flwr.methods import boosting
from fedgraph_flwr.node import node as nodes
from fedgraph_flwr.strategies import boosting as strategy

FILE = Path(__file__).parents[1] / "simulations" / "results" / "histogram_cells.csv"
FIELDS = ["data", "bins", "seed", "test", "validation", "best_round", "rounds", "cpu_seconds", "commit", "overrides"]
EXACT, GROUPS, CELLS, SIBLINGS = "exact", "groups", "cells", "siblings"
ROWS = 5
"""Fewest rows of a cell: `min_nodes` of a party's node without a policy file."""

BANKS = ["dataset=payments", "dataset.recipe=payments", "dataset.windows=[]", "num_clients=3"]
RINGS = ["dataset.amounts=passed", "dataset.kinds=[cycle]", "dataset.cross=0.1"]
DATA = {
    "payments": [
        *("task=edges", *BANKS, "dataset.accounts=1000", "dataset.background=8000", "dataset.per_kind=30"),
        *("dataset.size=[6,10]", "dataset.window=1", "split.step=null"),
    ],
    "accounts in rings": ["task=nodes", *BANKS, *RINGS, "dataset.per_kind=100", "evaluation.metric=average_precision"],
}
TREES = ["strategy=boosting", "strategy.mode=histogram", "rounds=30", "checkpoint_every=0"]
Rows = dict[tuple[str, str, int], dict[str, Any]]
server: Any = strategy


class Siblings(boosting.Growth):
    """Growth that requests the smaller of two siblings, and takes the other's histogram as their parent's minus its own.

    Cells are merged alike for siblings, and more than in their parent, so the difference has rows in other bins than their own.
    """

    def __init__(self, outputs: int, edges: boosting.Edges, params: boosting.BoostingParams):
        super().__init__(outputs, edges, params)
        self._all = self.tree, self.node
        self._larger: dict[tuple[int, int], tuple[tuple[int, int], Any]] = {}  # sibling, and the parent's histogram

    def split(self, sums: Any) -> None:
        """Split the open nodes by their histograms, of which some follow from others."""
        known = dict(zip(zip(*map(np.ndarray.tolist, (self.tree, self.node)), strict=True), sums, strict=True))
        known |= {node: parent - known[sibling] for node, (sibling, parent) in self._larger.items()}
        places = list(zip(*map(np.ndarray.tolist, self._all), strict=True))
        (self.tree, self.node), full = self._all, np.stack([known[place] for place in places])
        splits = boosting.best_splits(full * boosting.UNIT, self.sizes, self.params)
        super().split(full)
        self._all, forest = (self.tree, self.node), self.forest()
        there, self._larger = set(zip(self.tree.tolist(), self.node.tolist(), strict=True)), {}
        for place, (tree, node) in enumerate(places):
            left = int(forest["left"][forest["start"][tree] + node])
            pair = [(tree, left), (tree, left + 1)]
            if left and there.issuperset(pair):
                larger = int(splits["left"][place, 2].round() <= splits["right"][place, 2].round())
                self._larger[pair[larger]] = pair[1 - larger], full[place]
        asked = [place not in self._larger for place in zip(self.tree.tolist(), self.node.tolist(), strict=True)]
        self.tree, self.node = self.tree[asked], self.node[asked]


def stored() -> Rows:
    """Return the rows by data, bins and seed."""
    if not FILE.is_file():
        return {}
    with FILE.open(newline="") as file:
        return {(row["data"], row["bins"], int(row["seed"])): row for row in csv.DictReader(file)}


def run(data: str, bins: str, seed: int) -> dict[str, Any]:
    """Run a cell, and return its row."""
    start = time.process_time()
    room: Any = nodes
    simulated = room.simulated

    def party() -> Any:
        policy = copy(simulated())
        policy.min_nodes = ROWS
        return policy

    secure, growth = [] if bins == EXACT else ["privacy.secagg=true"], server.Growth
    server.Growth = Siblings if bins == SIBLINGS else growth
    words = [*DATA[data], *TREES, *secure, f"seed={seed}"]
    room.simulated = simulated if bins == EXACT else party
    try:
        with tempfile.TemporaryDirectory() as folder:
            summary = api.run(*words, f"out={folder}/run", progress=False).summary
    finally:
        room.simulated, server.Growth = simulated, growth
    scores, code = summary["metrics"]["best_val"], Path(fedgraph_flwr.__file__).parent
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=code).stdout.strip()
    return {
        **{"data": data, "bins": bins, "seed": seed, "test": scores["test_average_precision"]},
        **{"validation": scores["val_average_precision"], "best_round": summary["best_round"]},
        **{"rounds": summary["rounds"], "cpu_seconds": round(time.process_time() - start, 1)},
        **{"commit": commit, "overrides": " ".join(words)},
    }


def means(rows: Rows) -> Iterator[str]:
    """Yield means over seeds, and differences from exact bins, with 95 % intervals (t)."""
    for data in DATA:
        scores = {
            bins: {seed: 100 * float(row["test"]) for (d, b, seed), row in rows.items() if (d, b) == (data, bins)}
            for bins in (EXACT, GROUPS, CELLS, SIBLINGS)
        }
        for bins, values in scores.items():
            if len(values) > 1:
                other = CELLS if bins == SIBLINGS else EXACT
                mean, beside = interval(list(values.values())), paired(values, scores[other])
                less = f", {beside.mean:+.1f} ± {beside.half:.1f} beside {other}" if bins != EXACT and beside else ""
                yield f"{data}, {bins}: {mean.mean:.1f} ± {mean.half:.1f} ({mean.n} seeds){less}"


def main() -> None:
    """Run the missing cells, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--only", default="", choices=("", *DATA), help="data (default: both)")
    parser.add_argument(
        "--bins", choices=(EXACT, CELLS, GROUPS, SIBLINGS), action="append", help="(default: exact and cells)"
    )
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    known = stored()
    if not known:
        FILE.write_text(",".join(FIELDS) + "\n")
    for seed, data, bins in itertools.product(range(args.seeds), DATA, args.bins or (EXACT, CELLS)):
        if args.only in ("", data) and (data, bins, seed) not in known:
            known[data, bins, seed] = row = run(data, bins, seed)
            with FILE.open("a", newline="") as file:
                csv.DictWriter(file, FIELDS, lineterminator="\n").writerow(row)
            print(f"{data}, {bins}, seed {seed}: {100 * row['test']:.1f} ({row['cpu_seconds']} CPU s)", file=sys.stderr)
    print("\n".join(means(known)))


if __name__ == "__main__":
    main()
