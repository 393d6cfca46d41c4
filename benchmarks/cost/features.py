"""What columns of a party's own records cost; `benchmarks.payments_worth` measures what they are worth.

    python -m benchmarks.cost features import [1000000]    CPU seconds and peak memory of `import --features payments`
    python -m benchmarks.cost features account [1000000]   the same columns for records of one account, in several shapes

Each measurement runs in its own process. Target: a million records with all columns and three windows in 20 CPU seconds and 1.5
GB, import included.
"""

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DAY = 86_400
SHAPES = ("pays everyone", "pays one other", "pays and is paid alike")


def used() -> str:
    """Return CPU seconds and peak memory of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return f"{usage.ru_utime + usage.ru_stime:.1f} CPU s, peak {usage.ru_maxrss / 1e6:.2f} GB"


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

    args = ["import", "--nodes", f"{folder}/accounts.csv", "--edges", f"{folder}/payments.csv", "columns.time=time"]
    args += [
        "columns.edge_label=label",
        "columns.edge_id=reference",
        "edge_columns=amount",
        "--split",
        "temporal",
    ]
    args += ["--classes", "ok,fraud", "edge_classes=no,yes", "features=payments", "--client", "0"]
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
    account, other = (
        np.zeros(records, dtype=np.int64),
        1 + rng.integers(1 if shape == "pays one other" else records, size=records),
    )
    back = rng.random(records) < (0.5 if shape == "pays and is paid alike" else 0)
    cents = np.full(records, 10_000) if shape == "pays and is paid alike" else rng.integers(1, 10**7, records)
    book = Book(
        np.where(back, other, account), np.where(back, account, other), rng.integers(0, 90 * DAY, records), cents
    )
    edge_columns(book, Recipe())
    node_columns(book, Recipe(), book.accounts)
    print(f"one account {shape}: {used()}")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("import", "account", "import-once", "account-once"))
    parser.add_argument("size", nargs="?", default="")
    parser.add_argument("more", nargs="?", default="")
    args = parser.parse_args()
    again = [sys.executable, "-m", "benchmarks.cost.features"]
    if args.what == "import-once":
        import_tables(Path(args.size))
    elif args.what == "account-once":
        one_account(int(args.size), args.more)
    elif args.what == "account":
        for shape in SHAPES:
            subprocess.run([*again, "account-once", args.size or "1000000", shape], check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            write_tables(Path(folder), int(args.size or 1_000_000))
            print(f"wrote {args.size or '1000000'} records in {time.perf_counter() - start:.0f} s")
            subprocess.run([*again, "import-once", folder], check=True)


if __name__ == "__main__":
    main()
