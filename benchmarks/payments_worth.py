"""What columns of own records, trees and a federation are worth on payments, over data seeds.

    python -m benchmarks.payments_worth run                     every missing cell, complete seeds first; resumes where it stopped
    python -m benchmarks.payments_worth run --only Boosting --seeds 5
    python -m benchmarks.payments_worth run --only Blend --runs DIR    keep the runs in DIR, where later blends find them
    python -m benchmarks.payments_worth table                   write the table of the stored cells

Average precision on test items in %, at the best validation round, mean over banks. ``Blend`` weighs FedAvg and Boosting by
validation items. Rows are in ``simulations/results/payments_worth.csv``, the table in ``payments_worth.md`` beside it, its
means in ``simulations/results/trees-worth.md``.
"""

import argparse
import csv
import itertools
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from fedgraph_flwr import api
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.intervals import Interval, interval, paired
from fedgraph_flwr.party.use.blend import blend

RESULTS = Path(__file__).parents[1] / "simulations" / "results"
PAGE = RESULTS / "trees-worth.md"
MARKS = "<!-- worth: made by python -m benchmarks.payments_worth table -->", "<!-- end -->"
FIELDS = [
    "data",
    "columns",
    "method",
    "seed",
    "test",
    "validation",
    "best_round",
    "rounds",
    "cpu_seconds",
    "commit",
    "overrides",
]
RINGS = [
    "dataset=payments",
    "dataset.amounts=passed",
    "dataset.kinds=[cycle]",
    "dataset.per_kind=100",
    "dataset.cross=0.1",
]
DATA = {
    "payments": [
        *("task=edges", "dataset=payments", "dataset.accounts=1000", "dataset.background=8000", "dataset.per_kind=30"),
        *("dataset.size=[6,10]", "dataset.window=1", "num_clients=5", "split.step=null"),
    ],
    "payments in rings": ["task=edges", *RINGS, "num_clients=3", "split.step=null"],
    "accounts in rings": ["task=nodes", *RINGS, "num_clients=3", "evaluation.metric=average_precision"],
    "few payments in rings": [
        *("task=edges", "dataset=payments", "dataset.amounts=passed", "dataset.kinds=[cycle]", "dataset.accounts=1000"),
        *("dataset.background=8000", "dataset.per_kind=10", "dataset.size=[6,10]", "dataset.window=1", "num_clients=3"),
        *("split.step=null", "evaluation.average=test_nodes"),
    ],
}
"""Those of `simulations/payments_edges.yaml`, whose amounts ignore the label; rings that pass on 90 to 99 %; few of them."""

FEW, FEW_SEEDS = "few payments in rings", 5
"""Data and its number of seeds: with some later ones, a bank has no positives to test on. Means of fewer are not on the page."""

WITHIN_A_DAY = ("payments", FEW)
SHORT = ["dataset.windows=[1,0.25]"]
"""Windows of the recipe where patterns take a day, as those of the counts; else they are the default ones."""

RECIPE = ["dataset.recipe=payments", "dataset.windows=[]"]
COLUMNS = {
    "raw": ["dataset.windows=[]"],
    "counts": ["dataset.windows=[1,0.25]"],
    "counts, looking ahead": ["dataset.windows=[1,0.25]", "dataset.causal=false"],
    "recipe": RECIPE,
    "recipe without flow": [*RECIPE, "dataset.without=[flow_*]"],
}
BY_DATA = {
    "payments": ["counts", "recipe", "recipe without flow", "counts, looking ahead"],
    "payments in rings": ["raw", "recipe", "recipe without flow"],
    "accounts in rings": ["raw", "recipe", "recipe without flow"],
    FEW: ["recipe"],
}
TREES = {
    "Boosting, each bank": ["strategy=boosting", "strategy.shared=[]"],
    "Boosting": ["strategy=boosting"],
    "Boosting, leaves of 10": ["strategy=boosting", "strategy.min_data_in_leaf=10"],
    "Boosting, histogram": ["strategy=boosting", "strategy.mode=histogram", "rounds=60"],
    "Boosting, pooled": ["strategy=boosting", "strategy.pooled=true"],
}
NETWORKS = {"FedAvg": ["strategy=fedavg"], "Local": ["strategy=local"], "Central": ["strategy=central"]}
NETWORKS |= {"FedAvg, GCN": ["strategy=fedavg", "model=gcn"]}
TRAINED = {
    "nodes": ["model=sage", "rounds=60", "evaluation.every=5", "train.weight_decay=0.01"],
    "edges": ["rounds=150", "train.lr=0.02", "model.hidden=32", "evaluation.every=5"],
}
BLENDS = {"Blend": "", "Blend, trees on the recipe": "recipe"}
"""Name of a blend of FedAvg and Boosting, and the columns of its trees; empty: those of the row."""

SLOW, LEAVES = "Boosting, histogram", "Boosting, leaves of 10"
"""Not run on all data: 15 CPU seconds per run, for nearly the trees of the pooled fit; and trees for few items of a class."""

METHODS = ("Local", "FedAvg", "FedAvg, GCN", "Central", *TREES, *BLENDS)
DIFFERENCES = (
    ("FedAvg", "Local"),
    ("Central", "FedAvg"),
    ("Boosting", "Boosting, each bank"),
    ("Boosting, pooled", "Boosting"),
    ("Boosting, leaves of 10", "Boosting"),
    ("Blend", "FedAvg"),
    ("Blend", "Boosting"),
    ("FedAvg", "Boosting"),
    ("Blend, trees on the recipe", "FedAvg"),
    ("FedAvg", "FedAvg, GCN"),
)
Rows = dict[tuple[str, str, str, int], dict[str, str]]


class Cell(NamedTuple):
    """One run: its data, its columns, its method and the seed of data and model."""

    data: str
    columns: str
    method: str
    seed: int

    def overrides(self, method: str) -> list[str]:
        """Return the overrides of a run of a method in this cell."""
        data = DATA[self.data]
        network = TRAINED[data[0].removeprefix("task=")] if method in NETWORKS else []
        decay = ["train.weight_decay=0.001"] if network and self.data == "payments" and "recipe" in self.columns else []
        columns = [*COLUMNS[self.columns], *(SHORT if self.data in WITHIN_A_DAY and "recipe" in self.columns else [])]
        return [*data, *columns, *network, *decay, *(NETWORKS | TREES)[method], f"seed={self.seed}"]


def cells(seeds: int, only: str) -> Iterator[Cell]:
    """Yield the cells: trees, which take a second each, then what FedAvg and blends reach, then their references."""
    quick = itertools.product(range(seeds), BY_DATA, [method for method in TREES if method not in (SLOW, LEAVES)])
    known = [(seed, data, columns, method) for seed, data, method in quick for columns in BY_DATA[data]]
    rings = "accounts in rings"
    known += itertools.product(range(seeds), ["payments", rings, FEW], ["recipe"], [LEAVES])
    known += itertools.product(range(seeds), [rings], BY_DATA[rings], ["FedAvg", "FedAvg, GCN"])
    known += itertools.product(range(seeds), [rings], ["recipe"], ["Local", "Central"])
    known += itertools.product(range(seeds), ["payments in rings", FEW], ["recipe"], ["FedAvg", "Blend"])
    for columns, methods in itertools.product(
        ("counts", "recipe"), (("FedAvg", *BLENDS), ("Local",), ("Central",), (SLOW,))
    ):
        known += [(seed, "payments", columns, method) for seed in range(seeds) for method in methods]
    for seed, data, columns, method in known:
        cell = Cell(data, columns, method, seed)
        scored = data != FEW or seed < FEW_SEEDS
        if scored and only in "/".join(map(str, cell)) and BLENDS.get(method) != columns:
            yield cell


def used(cell: Cell, folder: Path) -> dict[str, object]:
    """Run a cell, and return its row; a blend reads the runs of FedAvg and Boosting in the folder, or runs them."""
    start = time.process_time()
    if cell.method in BLENDS:
        trees = BLENDS[cell.method] or cell.columns
        parts = [cell._replace(method="FedAvg"), cell._replace(method="Boosting", columns=trees)]
        for part in parts:
            if not (place(folder, part) / "summary.json").is_file():
                used(part, folder)
        summary = blend([place(folder, part) for part in parts], place(folder, cell))
        words = ["blend", *("+".join(part.overrides(part.method)) for part in parts)]
    else:
        words = cell.overrides(cell.method)
        options = ["checkpoint_every=0", "overwrite=true", f"out={place(folder, cell)}"]
        summary = api.run(*words, *options, progress=False).summary
    scores = summary["metrics"]["best_val"]
    return cell._asdict() | {
        "test": scores["test_average_precision"],
        "validation": scores["val_average_precision"],
        "best_round": summary["best_round"],
        "rounds": summary["rounds"],
        "cpu_seconds": round(time.process_time() - start, 1),
        "overrides": " ".join(words),
    }


def place(folder: Path, cell: Cell) -> Path:
    """Return the run folder of a cell."""
    return folder / "-".join(map(str, cell)).replace(", ", "-").replace(" ", "-")


def stored(path: Path) -> Rows:
    """Return the rows of a file by cell."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {(row["data"], row["columns"], row["method"], int(row["seed"])): row for row in csv.DictReader(file)}


def run(seeds: int, only: str, path: Path, runs: Path | None = None) -> None:
    """Run the missing cells, and append each row when its run ends; ``runs`` keeps the run folders."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    known = stored(path)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=RESULTS).stdout.strip()
    if not known:
        path.write_text(",".join(FIELDS) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells(seeds, only):
            if cell in known:
                continue
            try:
                row = used(cell, runs or Path(folder)) | {"commit": commit}
            except FedGraphError as error:
                sys.exit(f"{cell}: {error}")
            with path.open("a", newline="") as file:
                csv.DictWriter(file, FIELDS, lineterminator="\n").writerow(row)
            print(
                f"{' / '.join(map(str, cell))}: {100 * float(str(row['test'])):.1f} ({row['cpu_seconds']} CPU s)",
                flush=True,
            )


def table(rows: Rows) -> str:
    """Return the Markdown table: means with 95 % intervals over seeds, and differences paired by seed."""
    scores: dict[tuple[str, str, str], dict[int, float]] = {}
    for (data, columns, method, seed), row in rows.items():
        scores.setdefault((data, columns, method), {})[seed] = 100 * float(row["test"])

    def shown(estimate: Interval | None, sign: str = "") -> str:
        if estimate is None:
            return ""
        half = f" ± {estimate.half:.1f}" if estimate.n > 1 else ""
        return f"{estimate.mean:{sign}.1f}{half} ({estimate.n})"

    def cell(values: dict[int, float]) -> str:
        return shown(interval(list(values.values())) if values else None)

    def line(name: str, texts: list[str]) -> str:
        return f"| {name} | {' | '.join(texts)} |"

    text = [
        "# Payments: what columns, trees and a federation are worth\n",
        "Average precision on test items in %, mean over banks, at the best validation round. In a cell: mean ± 95 % interval"
        " (t) and the number of seeds, each with its own data. An empty cell has not been run. Made by"
        " `python -m benchmarks.payments_worth`.\n",
    ]
    for data, kinds in BY_DATA.items():
        methods = [method for method in METHODS if any((data, columns, method) in scores for columns in kinds)]
        text += [
            f"## {data.capitalize()}\n",
            f"`{' '.join(DATA[data])}`\n",
            line("", methods),
            line("---", ["---"] * len(methods)),
        ]
        text += [line(name, [cell(scores.get((data, name, method), {})) for method in methods]) for name in kinds]
        pairs = [pair for pair in DIFFERENCES if set(pair) <= set(methods)]
        text += [
            "\nDifferences, paired by seed:\n",
            line("", [" − ".join(pair) for pair in pairs]),
            line("---", ["---"] * len(pairs)),
        ]
        for name in kinds:
            differences = [paired(scores.get((data, name, a), {}), scores.get((data, name, b), {})) for a, b in pairs]
            text.append(line(name, [shown(difference, "+") for difference in differences]))
        text += [
            "\nRecipe − recipe without `flow_*`, paired by seed:\n",
            line("", methods),
            line("---", ["---"] * len(methods)),
        ]
        lost = [
            paired(scores.get((data, "recipe", m), {}), scores.get((data, "recipe without flow", m), {}))
            for m in methods
        ]
        text += [
            line("difference", [shown(difference, "+") for difference in lost]),
            "",
        ]
    return "\n".join(text)


def means(rows: Rows) -> str:
    """Return the Markdown table of means over seeds, without intervals and cells of fewer than `FEW_SEEDS` seeds."""
    count = Counter(key[:3] for key in rows)
    rows = {key: row for key, row in rows.items() if count[key[:3]] >= FEW_SEEDS}
    methods = [method for method in METHODS if any(key[2] == method for key in rows)]
    text = [f"| data | columns | {' | '.join(methods)} |", f"|---|---|{'---|' * len(methods)}"]
    for data, kinds in BY_DATA.items():
        for columns in kinds:
            scores = [
                [100 * float(row["test"]) for key, row in rows.items() if key[:3] == (data, columns, method)]
                for method in methods
            ]
            if any(scores):
                text.append(
                    f"| {data} | {columns} | {' | '.join(f'{fmean(runs):.1f}' if runs else '' for runs in scores)} |"
                )
    return "\n".join(text)


def write_page(rows: Rows, page: Path) -> None:
    """Put the means between the marks of a page."""
    before, mark, rest = page.read_text().partition(MARKS[0])
    if not mark:
        sys.exit(f"{page} has no line {MARKS[0]}: put it where the table belongs, and {MARKS[1]} after it")
    page.write_text(f"{before}{MARKS[0]}\n{means(rows)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def main() -> None:
    """Run cells, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds (default: 10)")
    parser.add_argument("--only", default="", help="run only cells whose DATA/COLUMNS/METHOD/SEED contains this text")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs (default: none)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the results (default: simulations/results)"
    )
    args = parser.parse_args()
    path = args.out / "payments_worth.csv"
    if args.what == "run":
        run(args.seeds, args.only, path, args.runs)
    path.with_suffix(".md").write_text(table(stored(path)))
    if path.parent == RESULTS:
        write_page(stored(path), PAGE)


if __name__ == "__main__":
    main()
