"""Do linking and federating pay? Methods that a bank has alone against columns that only several banks together can compute.

    python -m benchmarks.consortium_columns                 # about 40 CPU minutes; resumes where it stopped
    python -m benchmarks.consortium_columns --seeds 2 --only accounts/hours
    python -m benchmarks.consortium_columns --write         # write the stored rows into results/links-worth.md

Books of `benchmarks.dates_and_hours`, and harder ones with decoys. Average precision on test items, mean over banks, at the best
validation round, with default hyper-parameters. Hand-made columns are those of `benchmarks.dates_and_hours`. The best own method
is that with the highest mean among those that a bank has without others. Seeds 0 to 3 served to choose the columns, 10 to 19 are
measured.
"""

import argparse
import csv
import itertools
import logging
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from benchmarks.dates_and_hours import BOOKS, NETWORKS, RECIPE, TASKS, TIMES, TRAINED, own
from fedgraph_flwr import api
from fedgraph_flwr.evaluation.intervals import Interval, interval, paired

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "simulations" / "results"
RESULTS, PAGE = FOLDER / "consortium_columns.csv", FOLDER / "links-worth.md"
MARKS = "<!-- consortium: made by python -m benchmarks.consortium_columns --write -->", "<!-- end -->"
FIRST = 10
"""First seed that is measured."""

SEEDS = 10
"""Number of seeds; a cell of fewer states their number."""

DATA = {
    "hours": TIMES["hours"],
    "dates": TIMES["dates"],
    "hours, whole days": TIMES["hours, whole days"],
    "hours, decoys": [*TIMES["hours"], "dataset.decoy_dir=1", "dataset.decoy_time=1"],
}
SHARED = ["partition.share=['edges.*']", "partition.min_records=5"]
OF_EDGES = ["strategy.edge_columns=true"]
OWN, ALL = ["strategy=boosting", "strategy.shared=[]"], ["dataset.counts=all", "strategy.pooled=true"]
HAND, OWN_TREES, OWN_EDGES, LINKED, FEDERATED, BOTH, POOLED, *OF_NETWORKS = METHODS = (
    "own trees, hand-made columns",
    "own trees on the recipe",
    "own trees, with columns of payments",
    "own trees, with far-end columns",
    "federated trees",
    "federated trees, with far-end columns",
    "pooled trees, columns of all books",
    *NETWORKS,
)
ALONE = (HAND, OWN_TREES, OWN_EDGES, "Local")
BEST = "best own method"
WORDS = {
    OWN_TREES: OWN,
    OWN_EDGES: OWN,
    LINKED: [*OWN, *SHARED],
    FEDERATED: ["strategy=boosting"],
    BOTH: ["strategy=boosting", *SHARED],
    POOLED: ["strategy=boosting", *ALL],
    **NETWORKS,
}
DIFFERENCES = [
    (OWN_EDGES, OWN_TREES),
    (LINKED, OWN_TREES),
    (FEDERATED, OWN_TREES),
    (BOTH, OWN_TREES),
    (BOTH, FEDERATED),
    (BOTH, OWN_EDGES),
    (POOLED, BOTH),
    (FEDERATED, BEST),
    (BOTH, BEST),
    ("FedAvg", BEST),
]
"""Compared methods."""


class Cell(NamedTuple):
    """One score: task, data, method and seed."""

    task: str
    data: str
    method: str
    seed: int

    @property
    def words(self) -> list[str]:
        """Keys of its run."""
        if self.method in OF_NETWORKS:
            return [*self.books, *TRAINED[self.task], *WORDS[self.method]]
        reads = self.task == "accounts" and self.method not in (OWN_TREES, FEDERATED)
        return [*self.books, *WORDS[self.method], *(OF_EDGES if reads else [])]

    @property
    def books(self) -> list[str]:
        """Keys of its books."""
        return [*TASKS[self.task], *BOOKS, *RECIPE, *DATA[self.data], f"seed={self.seed}"]

    @property
    def asked(self) -> bool:
        """Whether its row is in the table: a payment's columns are those of payments anyway, and networks read earlier hours."""
        if self.method in OF_NETWORKS:
            return self.data in ("hours", "dates")
        return self.task == "accounts" or self.method != OWN_EDGES


def cells(seeds: int, only: str) -> Iterator[Cell]:
    """Yield the cells whose TASK/DATA/METHOD/SEED has the text, networks last."""
    groups = [[method for method in METHODS if (method in OF_NETWORKS) == slow] for slow in (False, True)]
    for methods, seed in itertools.product(groups, range(FIRST, FIRST + seeds)):
        for cell in itertools.starmap(Cell, itertools.product(TASKS, DATA, methods, [seed])):
            if cell.asked and only in "/".join(map(str, cell)):
                yield cell


def stored(path: Path) -> dict[Cell, float]:
    """Return the scores of a file."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        return {Cell(r["task"], r["data"], r["method"], int(r["seed"])): float(r["test"]) for r in rows}


def run(seeds: int, only: str, path: Path) -> None:
    """Run the missing cells, and append each row when its run ends."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    known = stored(path)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    for cell in cells(seeds, only):
        if cell in known:
            continue
        start = time.process_time()
        scores: dict[str, Any] = (
            {"test": own(cell.task, cell.books, cell.seed), "validation": ""} if cell.method == HAND else trained(cell)
        )
        row = cell._asdict() | scores
        row |= {"cpu_seconds": round(time.process_time() - start, 1), "commit": commit}
        fresh = not path.is_file()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*row], lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        print(f"{' / '.join(map(str, cell))}: {100 * float(row['test']):.1f}", flush=True)


def trained(cell: Cell) -> dict[str, float]:
    """Run a cell, and return its scores."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["checkpoint_every=0", f"out={folder}/run"]
        scores = api.run(*cell.words, *options, progress=False).summary["metrics"]["best_val"]
    return {"test": scores["test_average_precision"], "validation": scores["val_average_precision"]}


def tables(scores: dict[Cell, float]) -> str:
    """Return the Markdown tables in %: means and 95 % intervals over seeds, and differences paired by seed."""
    held: dict[tuple[str, str, str], dict[int, float]] = {}
    for cell, value in scores.items():
        held.setdefault((cell.task, cell.data, cell.method), {})[cell.seed] = 100 * value
    heads = [(task, data) for task in TASKS for data in DATA if (task, data, OWN_TREES) in held]

    def shown(estimate: Interval | None, sign: str = "") -> str:
        fewer = f" ({estimate.n})" if estimate is not None and estimate.n < SEEDS else ""
        return f"{estimate.mean:{sign}.1f} ± {estimate.half:.1f}{fewer}" if estimate is not None else ""

    def line(name: str, texts: list[str]) -> str:
        return f"| {name} | {' | '.join(texts)} |"

    names = [f"{task}, {data}" for task, data in heads]
    rows = [line("average precision", names), line("---", ["---"] * len(heads))]
    for method in [method for method in METHODS if any((*head, method) in held for head in heads)]:
        of = [held.get((*head, method), {}) for head in heads]
        rows.append(line(method, [shown(interval([*values.values()]) if values else None) for values in of]))
    rows += ["", line("paired by seed", names), line("---", ["---"] * len(heads))]
    for head in heads:
        alone = [seed_scores for method in ALONE if len(seed_scores := held.get((*head, method), {})) > 1]
        held[*head, BEST] = max(alone, key=lambda seed_scores: fmean(seed_scores.values()), default={})
    for first, second in DIFFERENCES:
        pairs = [paired(held.get((*head, first), {}), held.get((*head, second), {})) for head in heads]
        if any(pairs):
            rows.append(line(f"{first} − {second}", [shown(difference, "+") for difference in pairs]))
    return "\n".join(rows)


def write_page(scores: dict[Cell, float]) -> None:
    """Put the tables between the marks of the page."""
    before, mark, rest = PAGE.read_text().partition(MARKS[0])
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARKS[0]}: put it where the tables belong, and {MARKS[1]} after it")
    PAGE.write_text(f"{before}{MARKS[0]}\n{tables(scores)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def main() -> None:
    """Run the missing cells, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds (default: {SEEDS})")
    parser.add_argument("--only", default="", help="run only cells whose TASK/DATA/METHOD/SEED contains this text")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"CSV of the rows (default: {RESULTS.name})")
    parser.add_argument("--write", action="store_true", help="put the tables of the stored rows into the page")
    args = parser.parse_args()
    if not args.write:
        run(args.seeds, args.only, args.out)
    scores = stored(args.out)
    print(tables(scores))
    if args.write:
        write_page(scores)


if __name__ == "__main__":
    main()
