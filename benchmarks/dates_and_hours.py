"""Books with dates or with hours: own LightGBM with hand-made columns against the recipe, trees and networks of three banks.

    python -m benchmarks.dates_and_hours                    # about 20 CPU minutes; resumes where it stopped
    python -m benchmarks.dates_and_hours --seeds 1 --only payments --without networks
    python -m benchmarks.dates_and_hours --table            # print the table of the stored cells, with the goals
    python -m benchmarks.dates_and_hours --write            # write the stored cells into results/trees-worth.md

Generated books (``dataset=payments``): patterns of all kinds within a day or two, half of whose members are at any bank, which
pass money on. Average precision on test items, mean over banks, at the best validation round. The hand-made columns are
statistics per account and per day, of a bank's own book, the item's day included. The table has the goals beside the rows.
"""

import argparse
import csv
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedgraph_flwr import api
from fedgraph_flwr.config import compose, typed
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.payments import DAY, Payments, PaymentsSpec, generate
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.evaluation.intervals import interval
from fedgraph_flwr.evaluation.metrics import average_precision
from fedgraph_flwr.partition.clients import make
from fedgraph_flwr.party.use.blend import blend

RESULTS = Path(__file__).parents[1] / "simulations" / "results" / "dates_and_hours.csv"
FIELDS = ("task", "times", "method", "seed", "score")
BANKS = 3
BOOKS = [
    *("dataset=payments", f"num_clients={BANKS}", "dataset.accounts=1500", "dataset.background=9000"),
    *("dataset.per_kind=12", "dataset.size=[5,9]", "dataset.window=1.5", "dataset.decoy_dir=0", "dataset.decoy_time=0"),
    *("dataset.amounts=passed", "dataset.cross=0.5", "dataset.skew=0.3"),
]
TASKS = {
    "accounts": ["task=nodes", "evaluation.metric=average_precision"],
    "payments": ["task=edges"],
}
TIMES = {
    "dates": ["dataset.dates=true", "dataset.day=whole"],
    "dates, earlier days only": ["dataset.dates=true"],
    "hours": [],
    "hours, whole days": ["dataset.day=whole"],
}
RECIPE = ["dataset.recipe=payments", "dataset.windows=[]", "split.step=1d"]
TREES = {
    "LightGBM on the recipe, each bank": ["strategy=boosting", "strategy.shared=[]"],
    "LightGBM on the recipe, pooled": ["strategy=boosting", "strategy.pooled=true"],
    "boosting, bagging": ["strategy=boosting"],
}
NETWORKS = {"Local": ["strategy=local"], "FedAvg": ["strategy=fedavg"]}
OF_ACCOUNTS = {"FedGCN": ["strategy=fedgcn", "model=gcn"]}
OWN, BLEND = "own LightGBM, hand-made", "FedAvg and boosting, blended"
METHODS = (OWN, *TREES, *NETWORKS, BLEND, *OF_ACCOUNTS)
TRAINED = {
    "accounts": ["model=sage", "rounds=60", "evaluation.every=5", "train.weight_decay=0.01"],
    "payments": ["rounds=100", "train.lr=0.02", "model.hidden=32", "evaluation.every=5", "train.weight_decay=0.001"],
}
PAGE = Path(__file__).parents[1] / "simulations" / "results" / "trees-worth.md"
MARKS = "<!-- dates: made by python -m benchmarks.dates_and_hours --write -->", "<!-- end -->"
SHOWN = [(task, times) for task in TASKS for times in ("dates", "dates, earlier days only", "hours")]
OWN_TREES, BAGGING = "LightGBM on the recipe, each bank", "boosting, bagging"
DIFFERENCES = [
    (OWN_TREES, OWN),
    (BAGGING, OWN_TREES),
    ("FedAvg", "Local"),
    ("FedAvg", OWN_TREES),
    (BLEND, OWN_TREES),
]
CALLED = {
    OWN: "own trees, hand-made columns",
    OWN_TREES: "own trees on the recipe",
    "LightGBM on the recipe, pooled": "pooled trees",
    BAGGING: "federated trees",
    BLEND: "FedAvg blended with federated trees",
}
"""Names of the page for methods, as `worth` has them."""
GOAL = 0.02
"""Largest loss against own LightGBM with hand-made columns; boosting is to be above it."""


class Cell(NamedTuple):
    """One score: task, times, method and seed."""

    task: str
    times: str
    method: str
    seed: int

    @property
    def books(self) -> list[str]:
        """Keys of the books."""
        return [*TASKS[self.task], *BOOKS, *RECIPE, *TIMES[self.times], f"seed={self.seed}"]


def cells(seeds: int, only: str, without: str) -> Iterator[Cell]:
    """Yield the cells whose TASK/TIMES/METHOD/SEED has the text, quick ones first."""
    skipped = {"networks": (*NETWORKS, *OF_ACCOUNTS, BLEND), "": ()}[without]
    for seed in range(seeds):
        for method in METHODS:
            for task in TASKS:
                for times in TIMES:
                    cell = Cell(task, times, method, seed)
                    fits = task == "accounts" or method not in OF_ACCOUNTS
                    fits = fits and (method in (OWN, *TREES) or times in ("dates", "hours"))
                    if fits and method not in skipped and only in "/".join(map(str, cell)):
                        yield cell


def score(cell: Cell, folder: Path) -> float:
    """Return the average precision of a cell; a blend reads or makes the runs of its two parts."""
    if cell.method == OWN:
        return own(cell.task, cell.books, cell.seed)
    out = folder / "-".join(map(str, cell)).replace(", ", "-").replace(" ", "-")
    if cell.method == BLEND:
        parts = [cell._replace(method=name) for name in ("FedAvg", "boosting, bagging")]
        places = [folder / "-".join(map(str, part)).replace(", ", "-").replace(" ", "-") for part in parts]
        for part, place in zip(parts, places, strict=True):
            if not (place / "summary.json").is_file():
                score(part, folder)
        summary = blend(places, out)
    else:
        words = (TREES | NETWORKS | OF_ACCOUNTS)[cell.method]
        trained = [] if cell.method in TREES else [key for key in TRAINED[cell.task] if key not in ("model=sage",)]
        model = ["model=sage"] if cell.task == "accounts" and cell.method in NETWORKS else []
        options = ["checkpoint_every=0", "overwrite=true", f"out={out}"]
        summary = api.run(*cell.books, *trained, *model, *words, *options, progress=False).summary
    return float(summary["metrics"]["best_val"]["test_average_precision"])


def own(task: str, books: list[str], seed: int) -> float:
    """Return the average precision of LightGBM on hand-made columns of books, one model per bank, mean over banks."""
    import lightgbm

    cfg = compose(books)
    spec: PaymentsSpec = typed(PaymentsSpec, cfg.dataset.params, "dataset=payments")
    p = generate(spec, seed=seed, banks=BANKS)
    graph: Any = datasets.load(cfg.dataset, seed=seed, num_clients=BANKS)
    precisions = []
    for bank, client in enumerate(make(graph, cfg)):
        book = book_of(p, bank)
        if task == "payments":
            paid = p.bank[p.source] == bank
            x = of_payments(book)[p.bank[book["source"].to_numpy()] == bank]
            y, stage = p.label[paid], split_graph(graph, cfg.split, seed).edge_split.numpy()[paid]
        else:
            nodes = client.node_id.numpy()
            x, y = of_accounts(book).reindex(nodes).fillna(0).to_numpy(), client.y.numpy()
            stage = np.select(
                [client.train_mask.numpy(), client.val_mask.numpy(), client.test_mask.numpy()], [0, 1, 2], -1
            )
        rules = {"learning_rate": 0.05, "num_threads": 1, "verbosity": -1, "objective": "binary", "seed": 0}
        rules |= {"metric": "average_precision", "deterministic": True, "force_row_wise": True}
        train, val = (lightgbm.Dataset(x[stage == s], y[stage == s].astype(float)) for s in (0, 1))
        stops: Any = [lightgbm.early_stopping(30, verbose=False)]
        booster = lightgbm.train(rules, train, 300, valid_sets=[val], callbacks=stops)
        if y[stage == 2].any():
            raw = np.asarray(booster.predict(x[stage == 2], raw_score=True))
            precisions.append(average_precision(np.stack([-raw, raw], axis=1), y[stage == 2].astype(int)))
    return fmean(precisions)


def book_of(p: Payments, bank: int) -> pd.DataFrame:
    """Return the payments that a bank books, with their day; the index is the payment's number."""
    table = pd.DataFrame({"source": p.source, "target": p.target, "amount": p.amount, "day": p.time // DAY})
    return table[(p.bank[p.source] == bank) | (p.bank[p.target] == bank)]


def daily(book: pd.DataFrame) -> pd.DataFrame:
    """Return statistics of each account and day: number, sum, largest amount and partners, paid (out) and received (in)."""
    parts = []
    for way, near, far in (("out", "source", "target"), ("in", "target", "source")):
        rows = book.rename(columns={near: "account", far: "partner"}).groupby(["account", "day"])
        of = rows.agg(
            n=("amount", "size"), sum=("amount", "sum"), most=("amount", "max"), partners=("partner", "nunique")
        )
        parts.append(of.add_suffix(f"_{way}"))
    return pd.concat(parts, axis=1).fillna(0)


def of_payments(book: pd.DataFrame) -> np.ndarray:
    """Return hand-made columns of each payment of a book: of both accounts, on its day, in the week until it, and so far."""
    stats = daily(book)
    days = pd.MultiIndex.from_product(
        [stats.index.levels[0], range(int(book["day"].max()) + 1)], names=["account", "day"]
    )
    dense = stats.reindex(days, fill_value=0)
    week = dense.groupby("account").rolling(7, min_periods=1).sum().droplevel(0)
    so_far = dense.groupby("account").cumsum()
    columns = [book["amount"].to_numpy()[:, None]]
    for end in ("source", "target"):
        at = pd.MultiIndex.from_arrays([book[end], book["day"]])
        today, recent, before = (table.reindex(at).to_numpy() for table in (dense, week, so_far))
        mean = [before[:, 1] / np.maximum(before[:, 0], 1), before[:, 5] / np.maximum(before[:, 4], 1)]
        ratio = [np.minimum(today[:, 1], today[:, 5]) / np.maximum(np.maximum(today[:, 1], today[:, 5]), 0.01)]
        share = [book["amount"].to_numpy() / np.maximum(value, 0.01) for value in mean]
        columns += [today, recent, before, *(values[:, None] for values in (*mean, *ratio, *share))]
    pair = book.groupby(["source", "target"])["day"].rank(method="max").to_numpy()
    return np.concatenate([*columns, pair[:, None]], axis=1)


def of_accounts(book: pd.DataFrame) -> pd.DataFrame:
    """Return hand-made columns of each account of a book: totals, and the largest and mean statistics of its days."""
    stats = daily(book)
    low, high = stats[["sum_out", "sum_in"]].min(axis=1), stats[["sum_out", "sum_in"]].max(axis=1)
    stats["passed"], stats["passed_share"] = low, low / high
    stats["both"] = np.minimum(stats["n_out"], stats["n_in"])
    rows = stats.groupby("account")
    columns = pd.concat(
        [rows.sum().add_suffix("_sum"), rows.max().add_suffix("_max"), rows.mean().add_suffix("_mean")], axis=1
    )
    columns["days"] = rows.size()
    for way, near, far in (("out", "source", "target"), ("in", "target", "source")):
        columns[f"partners_{way}"] = book.groupby(near)[far].nunique()
        columns[f"spread_{way}"] = book.groupby(near)["amount"].std()
    return columns.fillna(0)


def stored(path: Path) -> dict[Cell, float]:
    """Return the scores of a file."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        return {Cell(r["task"], r["times"], r["method"], int(r["seed"])): float(r["score"]) for r in rows}


def table(scores: dict[Cell, float]) -> str:
    """Return the Markdown table: mean and 95 % interval over seeds, with the goals of books that have dates."""
    held: dict[tuple[str, str, str], list[float]] = {}
    for cell, value in scores.items():
        held.setdefault((cell.method, cell.task, cell.times), []).append(value)
    heads = [(task, times) for task in TASKS for times in TIMES]
    lines = [
        f"| average precision | {' | '.join(f'{task}, {times}' for task, times in heads)} | goal with dates |",
        f"|---|{'---|' * (len(heads) + 1)}",
    ]

    def mean(method: str, task: str, times: str) -> float:
        return fmean(held.get((method, task, times), [float("nan")]))

    for method in METHODS:
        texts = []
        for task, times in heads:
            values = held.get((method, task, times), [])
            half = f" ± {interval(values).half:.3f}" if len(values) > 1 else ""
            texts.append(f"{fmean(values):.3f}{half}" if values else "")
        goals = []
        for task in TASKS if method in TREES else ():
            least = mean(OWN, task, "dates") - (0 if method == "boosting, bagging" else GOAL)
            met = "yes" if mean(method, task, "dates") >= least else "no"
            goals.append(f"{task} ≥ {least:.3f}: {met}")
        lines.append(f"| {method} | {' | '.join(texts)} | {'; '.join(goals)} |")
    return "\n".join(lines)


def page_tables(scores: dict[Cell, float]) -> str:
    """Return the Markdown tables of the page in %: means and 95 % intervals over seeds, and differences paired by seed."""
    seeds = sorted({cell.seed for cell in scores})

    def line(name: str, texts: list[str]) -> str:
        return f"| {name} | {' | '.join(texts)} |"

    def text(values: list[float], sign: str = "") -> str:
        half = f" ± {100 * interval(values).half:.1f}" if len(values) > 1 else ""
        return f"{100 * fmean(values):{sign}.1f}{half}" if values else ""

    def values(method: str, task: str, times: str) -> dict[int, float]:
        cells = {seed: Cell(task, times, method, seed) for seed in seeds}
        return {seed: scores[cell] for seed, cell in cells.items() if cell in scores}

    head = [line("average precision", [f"{task}, {times}" for task, times in SHOWN]), f"|---|{'---|' * len(SHOWN)}"]
    rows = [
        line(CALLED.get(method, method), [text([*values(method, *at).values()]) for at in SHOWN]) for method in METHODS
    ]
    changes = []
    for first, second in DIFFERENCES:
        pairs = [(values(first, *at), values(second, *at)) for at in SHOWN]
        both = [[a[seed] - b[seed] for seed in a if seed in b] for a, b in pairs]
        title = " − ".join(CALLED.get(method, method) for method in (first, second))
        changes.append(line(title, [text(gaps, "+") for gaps in both]))
    return "\n".join([*head, *rows, "", *[head[0].replace("average precision", "paired by seed"), head[1]], *changes])


def write_page(scores: dict[Cell, float]) -> None:
    """Put the tables between the marks of the page."""
    before, mark, rest = PAGE.read_text().partition(MARKS[0])
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARKS[0]}: put it where the tables belong, and {MARKS[1]} after it")
    PAGE.write_text(f"{before}{MARKS[0]}\n{page_tables(scores)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def main() -> None:
    """Run the missing cells, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--only", default="", help="only cells whose TASK/TIMES/METHOD/SEED contains this text")
    parser.add_argument("--without", default="", choices=("", "networks"), help="networks: trees only")
    parser.add_argument("--table", action="store_true", help="print the table of the stored cells")
    parser.add_argument("--write", action="store_true", help=f"write the tables of the stored cells into {PAGE.name}")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"file of scores (default: {RESULTS.name})")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    known = stored(args.out)
    if args.write:
        write_page(known)
        return
    with tempfile.TemporaryDirectory() as folder:
        for cell in [] if args.table else cells(args.seeds, args.only, args.without):
            if cell in known:
                continue
            known[cell] = score(cell, Path(folder))
            new = not args.out.is_file()
            with args.out.open("a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([FIELDS] if new else [])
                writer.writerow([*cell, f"{known[cell]:.4f}"])
            print(f"{' / '.join(map(str, cell))}: {known[cell]:.3f}", flush=True)
    print(table(known))


if __name__ == "__main__":
    main()
