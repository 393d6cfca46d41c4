"""Classify payments: three banks' tables with labelled payments, one schema, two methods, and scores of bank a's new payments.

    python examples/banks/label_payments.py work            # in this process
    python examples/banks/label_payments.py work --fleet    # on a SuperLink and three SuperNodes, each with its own bank's file

A laundering account splits money: it pays many others within a few hours. Each command is printed before it runs.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd
from banks import NAME, fleet, go

BANKS = ("a", "b", "c")
DAY = 86_400
START, TRAIN, VALIDATION, END = (
    pd.Timestamp(day, tz="UTC") for day in ("2026-01-01", "2026-03-01", "2026-03-16", "2026-04-01")
)


def tables(folder: Path, accounts: int) -> None:
    """Write each bank's accounts and payments until the end of March, and bank a's payments of April."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, letter in enumerate(BANKS):
        rng = np.random.default_rng(number)
        people = pd.DataFrame(
            {"id": [f"{letter}{i:04d}" for i in range(accounts)], "age": rng.integers(18, 90, accounts)}
        )
        people.to_csv(folder / f"{letter}_accounts.csv", index=False)
        past = payments(letter, accounts, rng, START, END)
        past.to_csv(folder / f"{letter}_payments.csv", index=False)
        if letter == BANKS[0]:
            new = payments(letter, accounts, rng, END, END + pd.Timedelta(days=15))
            new[["reference", "label"]].to_csv(folder / "new_truth.csv", index=False)
            new.drop(columns="label").to_csv(folder / "new_payments.csv", index=False)


def payments(
    letter: str, accounts: int, rng: np.random.Generator, first: pd.Timestamp, last: pd.Timestamp
) -> pd.DataFrame:
    """Return payments between accounts in a period; those of a burst of eight within six hours are laundering."""
    seconds = int((last - first).total_seconds())
    usual, bursts, size = accounts * seconds // (6 * DAY), accounts * seconds // (400 * DAY), 8
    start = rng.integers(seconds - DAY, size=bursts).repeat(size) + rng.integers(DAY // 4, size=bursts * size)
    time = np.concatenate([rng.integers(seconds, size=usual), start])
    source = np.concatenate([rng.integers(accounts, size=usual), rng.integers(accounts, size=bursts).repeat(size)])
    target = rng.integers(accounts, size=time.size)
    label = np.arange(time.size) >= usual
    order = np.argsort(time, kind="stable")
    kept = order[source[order] != target[order]]
    return pd.DataFrame(
        {
            "reference": [f"{letter}-{first:%m}-{i:06d}" for i in range(kept.size)],
            "source": [f"{letter}{i:04d}" for i in source[kept]],
            "target": [f"{letter}{i:04d}" for i in target[kept]],
            "time": (first + pd.to_timedelta(time[kept], unit="s")).strftime("%Y-%m-%d %H:%M:%S"),
            "amount": np.exp(rng.normal(5, 1, kept.size)).round(2),
            "label": np.where(label[kept], "laundering", "ok"),
        }
    )


def imports() -> None:
    """Write each bank's client file by one schema, with counts of payments within one day and six hours, split by time."""
    for letter in BANKS:
        go(
            *_import(letter),
            "edge_columns=amount",
            "edge_classes=ok,laundering",
            "--statistics",
            f"{letter}.json",
        )
    go("schema", "merge", *(f"{letter}.json" for letter in BANKS), "--out", "schema.yaml")
    for number, letter in enumerate(BANKS):
        words = [
            *_import(letter),
            "--schema",
            "schema.yaml",
            "--split",
            "temporal",
            "--until",
            f"{TRAIN:%F},{VALIDATION:%F}",
        ]
        go(*words, "--client", number, "--num-clients", 3, "--out", f"parts/client_{number:04d}.safetensors")


def _import(letter: str) -> list[str]:
    roles = [
        "columns.time=time",
        "columns.edge_label=label",
        "columns.edge_id=reference",
        "windows=1,0.25",
    ]
    return ["import", "--nodes", f"tables/{letter}_accounts.csv", "--edges", f"tables/{letter}_payments.csv", *roles]


def look_at(scored: str) -> None:
    """Compare the scored payments with the true labels."""
    rows = pd.read_csv(scored).merge(pd.read_csv("tables/new_truth.csv"), left_on="edge", right_on="reference")
    top = rows.sort_values("p_laundering", ascending=False)
    print(f"\n{top.drop(columns='reference').head(5).round(3).to_string(index=False)}")
    real = (rows["label"] == "laundering").sum()
    hits = (top["label"].head(real) == "laundering").sum()
    print(
        f"\n{len(rows)} new payments, {real} of them laundering: {hits} of the {real} with the highest scores",
        flush=True,
    )


def main() -> None:
    """Run all steps from tables to scored payments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accounts", type=int, default=300, help="accounts per bank (default: 300)")
    parser.add_argument("--rounds", type=int, default=30, help="number of rounds (default: 30)")
    parser.add_argument("--fleet", action="store_true", help="run on a SuperLink and three SuperNodes")
    args = parser.parse_args()
    folder = args.folder.absolute()
    tables(folder / "tables", args.accounts)
    os.chdir(folder)
    imports()
    new = ["--nodes", "tables/a_accounts.csv", "--edges", "tables/new_payments.csv", "--out", "scored.csv"]
    words = ["task=edges", f"rounds={args.rounds}", "model.hidden=32", "train.lr=0.02"]
    if args.fleet:
        Path("policy.yaml").write_text("tasks: [edges]\n")
        with fleet(folder, "--policy", "policy.yaml"):
            go("run", *words, f"engine={NAME}", "num_clients=3", "out=runs/fedavg", "--quiet", "--no-report")
        go("predict", "state_0", *new)
    else:
        go("run", *words, "graph=parts", "out=runs/fedavg", "--quiet", "--no-report")
        go("predict", "runs/fedavg", "--client", 0, *new)
    look_at("scored.csv")


if __name__ == "__main__":
    main()
