"""CPU seconds and peak memory of a bank's commands on large books: import, link, boosting, a day's scores.

    python -m benchmarks.cost books --scale 0.1                # a tenth of the size, about two minutes
    python -m benchmarks.cost books --only "predict"           # steps whose name has the text, on books that --folder keeps
    python -m benchmarks.cost books --folder books --write     # the full size; put the rows into simulations/results/books.csv

Three banks with 1.0, 0.5 and 0.3 million payments of their own and 0.3 million between them, with hours. Each step is a process
of its own, of which the system says what it took. ``--folder`` keeps the books, so that later calls do not repeat a step before.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "simulations" / "results" / "books.csv"
FIELDS = ("step", "scale", "cpu_seconds", "peak_gigabytes", "commit")
BANKS = {"a": 1_003_691, "b": 500_000, "c": 300_000}
"""Payments between each bank's own accounts."""

BETWEEN, DAYS, NEW = 304_041, 60, 3_000
PER_ACCOUNT = 20
"""Payments per account, about."""


def payments(scale: float, seed: int = 0) -> pd.DataFrame:
    """Return all payments in order of their times; 1 % are fraud, mostly large ones of a few accounts."""
    rng = np.random.default_rng(seed)
    sizes = {bank: round(count * scale) for bank, count in BANKS.items()}
    names, between = list(sizes), round(BETWEEN * scale)
    first = np.concatenate([np.repeat(np.arange(3), [*sizes.values()]), rng.integers(3, size=between)])
    second = np.concatenate([first[:-between], (first[-between:] + rng.integers(1, 3, size=between)) % 3])
    accounts = np.maximum(np.array([*sizes.values()]) // PER_ACCOUNT, 2)
    ends = [(rng.random(first.size) ** 2 * accounts[of]).astype(np.int64) for of in (first, second)]
    time = np.sort(rng.integers(DAYS * 86_400, size=first.size))
    amount = rng.lognormal(4, 1.2, first.size).round(2)
    order = rng.permutation(first.size)
    first, second, ends = first[order], second[order], [end[order] for end in ends]
    risk = (ends[0] % 50 == 0) & (amount > 100) | (rng.random(first.size) < 0.002)
    stamp = np.datetime_as_string(np.datetime64("2026-01-01", "s") + time, "s")
    letters = np.array(names)
    return pd.DataFrame(
        {
            "ref": np.char.add("p", np.arange(first.size).astype(str)),
            "source": np.char.add(letters[first], ends[0].astype(str)),
            "target": np.char.add(letters[second], ends[1].astype(str)),
            "from_bank": np.char.upper(letters[first]),
            "to_bank": np.char.upper(letters[second]),
            "at": stamp,
            "amount": amount,
            "fraud": np.where(risk, "yes", "no"),
        }
    )


def write(folder: Path, scale: float) -> None:
    """Write the banks' tables and party files; the last `NEW` payments of the first bank are a new day."""
    rows = payments(scale)
    new = rows[(rows[["from_bank", "to_bank"]] == "A").any(axis=1)].tail(NEW)
    rows = rows[rows["at"] < new["at"].iloc[0]]
    for number, bank in enumerate(BANKS):
        mine = rows[(rows[["from_bank", "to_bank"]] == bank.upper()).any(axis=1)]
        mine.to_csv(folder / f"{bank}_payments.csv", index=False)
        ids = pd.unique(pd.concat([table[end] for table in (mine, new) for end in ("source", "target")]))
        ids = np.sort(ids[pd.Series(ids).str.startswith(bank)])
        pd.DataFrame({"id": ids, "age": 18 + np.arange(ids.size) % 60}).to_csv(
            folder / f"{bank}_accounts.csv", index=False
        )
        columns = {"source": "source", "target": "target", "time": "at", "amount": "amount", "edge_id": "ref"}
        party = {
            **{"party": bank.upper(), "client": number, "schema": "schema.yaml", "out": f"{bank}.safetensors"},
            **{"nodes": f"{bank}_accounts.csv", "edges": f"{bank}_payments.csv"},
            "columns": {**columns, "edge_label": "fraud"},
            "party_columns": ["from_bank", "to_bank"],
            "match": {"at": "date", "amount": "amount", "ref": "text"},
            **{"features": "payments", "edge_classes": ["no", "yes"], "split": "temporal"},
        }
        (folder / f"{bank}.yaml").write_text(yaml.safe_dump(party))
    new.drop(columns="fraud").to_csv(folder / "day.csv", index=False)


def steps(folder: Path) -> dict[str, tuple[list[str], Path]]:
    """Return the commands, with what each leaves."""
    files = [str(folder / f"{bank}.safetensors") for bank in BANKS]
    parties = [str(folder / f"{bank}.yaml") for bank in BANKS]
    link = ["link", "--simulate", *files, "--match"]
    boosting = ["run", f"graph={folder / 'linked'}", "task=edges", "strategy=boosting", "--quiet", "--no-report"]
    day = [
        str(folder / "run"),
        "--client",
        "0",
        "--nodes",
        str(folder / "a_accounts.csv"),
        "--edges",
        str(folder / "day.csv"),
    ]
    imports = {
        f"import of bank {bank}": (["import", party], Path(file))
        for bank, party, file in zip(BANKS, parties, files, strict=True)
    }
    return {
        **imports,
        "link routed": ([*link, "routed", "--out", str(folder / "linked")], folder / "linked"),
        "link payments": ([*link, "payments", "--out", str(folder / "matched")], folder / "matched"),
        "boosting of three banks": ([*boosting, f"out={folder / 'run'}"], folder / "run" / "summary.json"),
        # the first also computes the threshold of alerts, which the cache keeps
        "predict the first day": (["predict", *day, "--out", str(folder / "first.csv")], folder / "first.csv"),
        "predict a day": (["predict", *day, "--out", str(folder / "scores.csv")], folder / "scores.csv"),
    }


def measured(words: list[str], cache: Path) -> tuple[float, float]:
    """Run a command with a cache of its own; return its CPU seconds and its peak memory in gigabytes.

    Raises:
        SystemExit: it fails.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FEDGRAPH_DATA": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgraph_flwr", *words], env=environment, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9


def main() -> None:
    """Measure the steps, print a row for each, and store the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="size of the books (default: 1)")
    parser.add_argument("--only", default="", help="steps whose name contains this text, and those that they need")
    parser.add_argument("--folder", type=Path, help="where to keep the books (default: a temporary folder)")
    parser.add_argument("--write", action="store_true", help=f"put the rows into {RESULT.name}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "day.csv").is_file():
            write(folder, args.scale)
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
        for step, (words, left) in steps(folder).items():
            if args.only not in step and (left.exists() or "link payments" in step):
                continue
            if step.startswith("boosting"):
                words = [*words, "overwrite=true"]
            row = dict(zip(FIELDS, (step, args.scale, *measured(words, folder / "cache"), commit), strict=True))
            row |= {"cpu_seconds": round(row["cpu_seconds"], 1), "peak_gigabytes": round(row["peak_gigabytes"], 2)}
            print(f"{step:24} {row['cpu_seconds']:8.1f} CPU s {row['peak_gigabytes']:6.2f} GB", flush=True)
            if args.write and args.only in step:
                fresh = not RESULT.is_file()
                with RESULT.open("a", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                    if fresh:
                        writer.writeheader()
                    writer.writerow(row)


if __name__ == "__main__":
    main()
