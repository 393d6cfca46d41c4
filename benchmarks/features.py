"""What columns of a party's own records cost, and what they are worth.

    python benchmarks/features.py import [1000000]    CPU seconds and peak memory of `import --features payments`
    python benchmarks/features.py account [1000000]   the same columns for records of one account, in several shapes
    python benchmarks/features.py worth [3]           average precision: raw columns, the recipe, the recipe without `flow_*`

Each measurement runs in its own process. Target: a million records with all columns and three windows in 20 CPU seconds and 1.5
GB, import included. `worth` reads generated payments whose rings pass money on (`dataset.amounts=passed`); it needs LightGBM.
"""

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

DAY = 86_400
RINGS = [
    "dataset=payments",
    "dataset.amounts=passed",
    "dataset.kinds=[cycle]",
    "dataset.per_kind=100",
    "dataset.cross=0.1",
]
COLUMNS = {
    "raw": ["dataset.windows=[]"],
    "recipe": ["dataset.recipe=payments", "dataset.windows=[]"],
    "without flow": ["dataset.recipe=payments", "dataset.windows=[]", "dataset.without=[flow_*]"],
}
SHAPES = ("pays everyone", "pays one other", "pays and is paid alike")


def used() -> str:
    """Return CPU seconds and peak memory of this process."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return f"{found.ru_utime + found.ru_stime:.1f} CPU s, peak {found.ru_maxrss / 1e6:.2f} GB"


def write_tables(folder: Path, records: int) -> None:
    """Write accounts and payments of 90 days as CSV; activities of accounts follow a power law."""
    import pandas as pd

    rng = np.random.default_rng(0)
    accounts = max(records // 10, 10)
    share = rng.pareto(1.5, accounts) + 1
    ids = np.array([f"DE{i:010d}" for i in rng.permutation(accounts)])
    ends = rng.choice(accounts, (2, records), p=share / share.sum())
    moments = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 90 * DAY, records)), unit="s")
    pd.DataFrame({"id": ids, "label": rng.choice(["ok", "fraud"], accounts, p=[0.9, 0.1])}).to_csv(
        folder / "accounts.csv", index=False
    )
    pd.DataFrame(
        {
            "reference": [f"r{i}" for i in range(records)],
            "source": ids[ends[0]],
            "target": ids[ends[1]],
            "time": moments.strftime("%Y-%m-%d %H:%M:%S"),
            "amount": np.exp(rng.normal(5, 1.2, records)).round(2),
            "label": rng.choice(["no", "yes"], records, p=[0.98, 0.02]),
        }
    ).to_csv(folder / "payments.csv", index=False)


def import_tables(folder: Path) -> None:
    """Import the tables as one client's file, and print the cost of the whole process."""
    from fedgraph_flwr import cli

    args = ["import", "--nodes", f"{folder}/accounts.csv", "--edges", f"{folder}/payments.csv", "--time-column", "time"]
    args += [
        "--edge-label-column",
        "label",
        "--edge-id-column",
        "reference",
        "--edge-columns",
        "amount",
        "--split",
        "temporal",
    ]
    args += ["--classes", "ok,fraud", "--edge-classes", "no,yes", "--features", "payments", "--client", "0"]
    with contextlib.redirect_stdout(io.StringIO()):
        if code := cli.main([*args, "--num-clients", "1", "--out", f"{folder}/client.safetensors"]):
            sys.exit(code)
    print(f"import with {widths()}: {used()}")


def widths() -> str:
    """Return the numbers of columns of the default recipe."""
    from fedgraph_flwr.data.features import Recipe

    recipe = Recipe()
    return f"{len(recipe.edge_columns)} columns of edges and {len(recipe.node_columns)} of nodes, {len(recipe.windows)} windows"


def one_account(records: int, shape: str) -> None:
    """Compute the columns of records that all belong to one account, and print the cost of the whole process."""
    from fedgraph_flwr.data.features import Book, Recipe, edge_columns, node_columns

    rng = np.random.default_rng(0)
    own, other = (
        np.zeros(records, dtype=np.int64),
        1 + rng.integers(1 if shape == "pays one other" else records, size=records),
    )
    back = rng.random(records) < (0.5 if shape == "pays and is paid alike" else 0)
    cents = np.full(records, 10_000) if shape == "pays and is paid alike" else rng.integers(1, 10**7, records)
    book = Book(np.where(back, other, own), np.where(back, own, other), rng.integers(0, 90 * DAY, records), cents)
    edge_columns(book, Recipe())
    node_columns(book, Recipe(), book.accounts)
    print(f"one account {shape}: {used()}")


def boosted(clients: list[Any], task: str) -> dict[str, float]:
    """Return average precision of trees on each party's columns: local, and the mean of the parties' raw scores."""
    import lightgbm
    import torch
    from sklearn.metrics import average_precision_score

    sets = []
    for client in clients:
        if task == "edges":
            both = (
                torch.cat([getattr(client, key), getattr(client, f"cut_out_{key}")])
                for key in ("edge_attr", "edge_y", "edge_split")
            )
            sets.append(tuple(values.numpy() for values in both))
        else:
            stage = np.select([client.train_mask, client.val_mask, client.test_mask], [0, 1, 2], -1)
            sets.append((client.x.numpy(), client.y.numpy(), stage))
    keys = {
        "objective": "binary",
        "metric": "average_precision",
        "learning_rate": 0.05,
        "num_leaves": 15,
        "verbosity": -1,
    }
    keys |= {"feature_fraction": 0.5, "lambda_l2": 1, "num_threads": 1, "deterministic": True, "force_row_wise": True}
    models = []
    for x, y, stage in sets:
        first = lightgbm.Dataset(x[stage == 0], y[stage == 0])
        held = lightgbm.Dataset(x[stage == 1], y[stage == 1], reference=first)
        stop = lightgbm.early_stopping(50, verbose=False)
        models.append(lightgbm.train(keys, first, 600, [held], callbacks=[stop]))
    local, mean = [], []
    for model, (x, y, stage) in zip(models, sets, strict=True):
        test = stage == 2
        scores = [other.predict(x[test], raw_score=True) for other in models]
        local.append(average_precision_score(y[test], model.predict(x[test], raw_score=True)))
        mean.append(average_precision_score(y[test], np.mean(scores, axis=0)))
    return {"trees, local": float(np.mean(local)), "trees, mean of parties": float(np.mean(mean))}


def worth(seeds: int) -> None:
    """Print average precision of trees and of FedAvg by task and columns."""
    from fedgraph_flwr import api
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.data.datasets import load
    from fedgraph_flwr.data.graph import Graph
    from fedgraph_flwr.partition.clients import make

    warnings.filterwarnings("ignore")
    networks = {
        "nodes": ["model=sage", "rounds=60", "evaluation.metric=average_precision"],
        "edges": ["rounds=100", "train.lr=0.02", "train.weight_decay=0.01", "split.step=null"],
    }
    for task, more in networks.items():
        for name, columns in COLUMNS.items():
            rows: list[dict[str, float]] = []
            for seed in range(seeds):
                words = [*RINGS, f"task={task}", "num_clients=3", f"seed={seed}", *columns]
                cfg = compose(words)
                graph = load(cfg.dataset, seed=seed, num_clients=3)
                assert isinstance(graph, Graph)
                clients = make(graph, cfg)
                rows.append(boosted(clients, task))
                with tempfile.TemporaryDirectory() as folder:
                    done = api.run(*words, *more, "evaluation.every=10", f"out={folder}/run", progress=False)
                    rows[-1]["FedAvg"] = done.summary["metrics"]["best_val"]["test_average_precision"]
            text = ", ".join(f"{key} {np.mean([row[key] for row in rows]):.3f}" for key in rows[0])
            print(f"{task}, {name}: {text} ({seeds} seeds)", flush=True)


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("import", "account", "worth", "import-once", "account-once"))
    parser.add_argument("size", nargs="?", default="")
    parser.add_argument("more", nargs="?", default="")
    args = parser.parse_args()
    if args.what == "worth":
        worth(int(args.size or 3))
    elif args.what == "import-once":
        import_tables(Path(args.size))
    elif args.what == "account-once":
        one_account(int(args.size), args.more)
    elif args.what == "account":
        for shape in SHAPES:
            subprocess.run([sys.executable, __file__, "account-once", args.size or "1000000", shape], check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            write_tables(Path(folder), int(args.size or 1_000_000))
            print(f"wrote {args.size or '1000000'} records in {time.perf_counter() - start:.0f} s")
            subprocess.run([sys.executable, __file__, "import-once", folder], check=True)


if __name__ == "__main__":
    main()
