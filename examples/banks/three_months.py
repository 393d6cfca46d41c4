"""Three months at three banks: train, raise alerts each day, notice drift, train on, and go on without a bank that leaves.

    python examples/banks/three_months.py work

Month 1: banks a, b and c link their books and train together; bank a asks whether that is worth it and sets a budget of alerts.
Month 2: bank a scores each day's file. Prices rise, `drift` notices it, `link` sends new records only, and training starts from
last month's model.
Month 3: bank b leaves and is forgotten, bank d joins. Training goes on from the model of month 1 as it is without b, bit for bit.

Books are those of `dataset=payments`, with rings in which nearly the same amount is passed on. Each command is printed before it
runs.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from banks import go

import fedgraph_flwr as fg
from fedgraph_flwr import cli
from fedgraph_flwr.data.payments import PaymentsSpec, generate

FIRST, MONTH = np.datetime64("2026-01-01T00:00:00"), 30
"""First second of month 1, and the days of a month."""

BANKS = "abcd"
BUDGET = 2
"""Alerts per day that a desk can look at."""


def moment(day: float) -> str:
    """Return the time at which a day of the three months begins, from day 0 on."""
    return str(FIRST + np.timedelta64(round(day * 86_400), "s"))


def books(folder: Path, accounts: int, seed: int = 0) -> pd.DataFrame:
    """Write each bank's accounts, and return the payments of three months as banks book them, by time."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = PaymentsSpec(accounts=accounts, background=40 * accounts, per_kind=accounts, days=3 * MONTH)
    spec = replace(spec, kinds=["cycle"], amounts="passed", cross=0.7, skew=0.3)
    p = generate(spec, seed=seed, banks=len(BANKS))
    bank = np.array(list(BANKS))[p.bank]
    ids = np.array([f"{letter}{i:05d}" for i, letter in enumerate(bank)])
    for letter in BANKS:
        pd.DataFrame({"id": ids[bank == letter]}).to_csv(folder / f"{letter}.csv", index=False)
    booked = (FIRST + p.time.astype("timedelta64[s]")).astype(str)
    dearer = np.where(booked < moment(MONTH), 1.0, 4.0)  # from month 2 on
    table = pd.DataFrame(
        {
            "reference": [f"E2E-{i:08d}" for i in np.random.default_rng(seed).permutation(p.time.size)],
            "from_bank": bank[p.source],
            "source": ids[p.source],
            "to_bank": bank[p.target],
            "target": ids[p.target],
            "time": booked,
            "amount": (p.amount * dearer).round(2),
            "label": np.where(p.label, "fraud", "ok"),
        }
    )
    return table.sort_values("time", kind="stable", ignore_index=True)


def booked_by(table: pd.DataFrame, bank: str, start: float, end: float) -> pd.DataFrame:
    """Return the rows that a bank books, from one day to another."""
    mask = (table[["from_bank", "to_bank"]] == bank).any(axis=1)
    return table[mask & (table["time"] >= moment(start)) & (table["time"] < moment(end))]


def link(month: int, table: pd.DataFrame, banks: str, start: int) -> Path:
    """Import the books of banks from a day to the month's end, the last half for validation and test, and link them."""
    place, end = Path(f"month_{month}"), month * MONTH
    place.mkdir(exist_ok=True)
    until = f"{moment(end - MONTH / 2)},{moment(end - MONTH / 3)}"
    for number, bank in enumerate(banks):
        booked_by(table, bank, start, end).to_csv(place / f"{bank}_payments.csv", index=False)
        words = ["import", "--nodes", f"{bank}.csv", "--edges", place / f"{bank}_payments.csv", "--own-party", bank]
        words += [
            "columns.edge_label=label",
            "columns.edge_id=reference",
            "--split",
            "temporal",
            "--until",
            until,
        ]
        words += ["--schema", "schema.yaml", "--client", number, "--num-clients", len(banks)]
        if month == 1 and not number:  # the schema has it for the others, and for later months
            words += ["edge_classes=ok,fraud", "--scaling", "none", "party_columns=from_bank,to_bank"]
            words += [
                "--match-columns",
                "time,amount:amount,reference",
                "columns.time=time",
                "features=payments",
            ]
        go(*words, "--out", place / f"{bank}.safetensors")
    files = [place / f"{bank}.safetensors" for bank in banks]
    since = ["--since", f"month_{month - 1}/linked"] if month > 1 and not start else []  # only new records are sent
    go("link", "--simulate", *files, *since, "--out", place / "linked")
    return place / "linked"


def train(name: str, files: Path, rounds: int, *words: object) -> fg.Run:
    """Train on linked files."""
    common = ["task=edges", "model.hidden=16", "train.loss=weighted", "train.local_steps=5", "evaluation.every=2"]
    go("run", f"graph={files}", *common, f"rounds={rounds}", *words, f"out=runs/{name}", "--quiet", "--no-report")
    return fg.load_run(f"runs/{name}")


def score(run: fg.Run) -> float:
    """Return a run's average precision on test payments, mean over banks."""
    return float(run.table().loc["test_average_precision", "best validation round"])


def month_1(table: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """Train alone and together, compare both at bank a, and choose its threshold; return the comparison."""
    files = link(1, table, "abc", 0)
    train("local_1", files, rounds, "strategy=local")
    train("month_1", files, rounds)
    go("worth", "runs/local_1", "runs/month_1", "--client", 0, "--clusters", "day", "--out", "worth.csv")
    go("alerts", "runs/month_1", "--client", 0, "--budget", BUDGET)
    return pd.read_csv("worth.csv")


def days(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """Score the first days of month 2 at bank a, each with the two days before; return the alerts, with what was true."""
    daily_alerts = []
    for day in range(MONTH, MONTH + count):
        booked_by(table, "a", max(day - 2, MONTH), day + 1).to_csv("today.csv", index=False)
        given = ["--nodes", "a.csv", "--edges", "today.csv", "--reasons", 2, "--explained", 3]
        go("alerts", "runs/month_1", "--client", 0, *given, "--out", "alerts.csv")
        truth = table[["reference", "label"]]
        alerts = pd.read_csv("alerts.csv").merge(truth, left_on="edge", right_on="reference")
        daily_alerts.append(alerts[alerts["time"] >= moment(day)].assign(day=day))
    listed = pd.concat(daily_alerts, ignore_index=True)
    print(f"\n{count} days: {len(listed)} alerts, {(listed['label'] == 'fraud').sum()} of them right", flush=True)
    return listed


def start(run: fg.Run) -> float:
    """Return the score of the model that a run started from, on its files."""
    return float(run.summary["start"]["metrics"]["test_average_precision"])


def month_2(table: pd.DataFrame, rounds: int) -> tuple[bool, fg.Run]:
    """Return whether bank a's new rows have drifted, and the run that started from last month's model."""
    booked_by(table, "a", MONTH, 2 * MONTH).to_csv("february.csv", index=False)
    words = [
        "drift",
        "runs/month_1",
        "--client",
        "0",
        "--nodes",
        "a.csv",
        "--edges",
        "february.csv",
        "--page",
        "drift.html",
    ]
    print(f"\n$ fedgraph-flwr {' '.join(words)}", flush=True)
    shifted = cli.main(words) == 3
    return shifted, train("month_2", link(2, table, "abc", 0), rounds, "init=runs/month_1")


def month_3(table: pd.DataFrame, rounds: int) -> fg.Run:
    """Forget bank b in the model of month 1, and train it on without b and with bank d, on months 2 and 3."""
    go("forget", "runs/month_1", "--party", "b", "--out", "runs/without_b")
    return train("month_3", link(3, table, "acd", MONTH), rounds, "init=runs/without_b")


def main() -> None:
    """Play the three months."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accounts", type=int, default=150, help="accounts of all banks (default: 150)")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds (default: 10)")
    parser.add_argument("--days", type=int, default=7, help="days of month 2 that are scored (default: 7)")
    args = parser.parse_args()
    folder = args.folder.absolute()
    table = books(folder, args.accounts)
    os.chdir(folder)
    seconds: dict[str, float] = {}

    def done(step: str) -> None:
        seconds[step] = time.process_time() - sum(seconds.values())

    worth = month_1(table, args.rounds)
    done("month 1")
    listed = days(table, args.days)
    done("days")
    shifted, second = month_2(table, args.rounds)
    done("month 2")
    third = month_3(table, args.rounds)
    done("month 3")
    last = worth.iloc[-1]
    change = f"{last['difference']:+.3f} [{last['difference_low']:+.3f}, {last['difference_high']:+.3f}]"
    right = (listed["label"] == "fraud").sum()
    print(f"\nMonth 1: together instead of alone, at bank a: {change}, {last['verdict']}")
    print(f"Month 2: {len(listed)} alerts in {args.days} days, {right} right; drift: {'yes' if shifted else 'no'}")
    print(f"Month 2: last month's model {start(second):.3f}, trained on {score(second):.3f}")
    print(f"Month 3: without bank b, with bank d: {start(third):.3f} before, trained on {score(third):.3f}")
    print("CPU seconds: " + ", ".join(f"{step} {value:.1f}" for step, value in seconds.items()), flush=True)


if __name__ == "__main__":
    main()
