"""Write tables of three banks' customers and payments with 5 % fraud, mixed types, gaps and different columns.

    python examples/banks/make_tables.py banks            # banks/a_customers.csv, banks/a_payments.csv, ...

Bank c has another column order and an extra column. Each bank has a trade that the others do not have. Fraudsters opened their
account late, earn little for their balance, and pay each other. Equal arguments give equal files.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

TRADES = ("clerk", "farmer", "nurse", "student", "teacher")
OWN_TRADE = {"a": "miner", "b": "sailor", "c": "vintner"}
COLUMNS = ["id", "age", "income", "balance", "trade", "opened", "online", "name", "part", "label"]
ORDER = {"c": ["label", "part", "name", "trade", "balance", "id", "opened", "income", "online", "age", "branch"]}


def bank(letter: str, customers: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return one bank's customers, one per row, and the payments between them."""
    rng = np.random.default_rng([seed, ord(letter)])
    n = customers
    fraud = np.zeros(n, dtype=bool)
    fraud[rng.choice(n, size=round(0.05 * n), replace=False)] = True
    income = np.exp(rng.normal(10.3 - 0.5 * fraud, 0.5)).round(2)
    trades = np.array([*TRADES, OWN_TRADE[letter]])
    opened = pd.Timestamp("2012-01-01") + pd.to_timedelta(
        np.where(fraud, rng.integers(2500, 5000, n), rng.integers(0, 4500, n)), unit="D"
    )
    table = pd.DataFrame(
        {
            "id": [f"{letter}{number:05d}" for number in range(n)],
            "age": rng.integers(18, 90, n).astype(float),
            "income": income,
            "balance": (income * np.exp(rng.normal(-1 + 0.8 * fraud, 0.7))).round(2),
            "trade": trades[rng.choice(len(trades), n, p=[0.3, 0.1, 0.2, 0.2, 0.15, 0.05])],
            "opened": opened.strftime("%Y-%m-%d"),
            "online": np.where(rng.random(n) < 0.6 + 0.2 * fraud, "yes", "no"),
            "name": [f"customer {letter} {number}" for number in rng.permutation(n)],
            "part": rng.choice(["train", "val", "test"], n, p=[0.5, 0.2, 0.3]),
            "label": np.where(fraud, "fraud", "ok"),
            "branch": rng.integers(1, 9, n),
        }
    )
    for column, share in (("age", 0.06), ("income", 0.1), ("trade", 0.04)):
        table.loc[rng.random(n) < share, column] = np.nan
    source = rng.integers(0, n, 4 * n)
    target = rng.integers(0, n, 4 * n)
    crooks = np.flatnonzero(fraud)
    together = fraud[source] & (rng.random(4 * n) < 0.6)
    target[together] = rng.choice(crooks, int(together.sum()))
    payments = pd.DataFrame(
        {
            "source": table["id"].to_numpy()[source],
            "target": table["id"].to_numpy()[target],
            "amount": np.exp(rng.normal(4, 1, 4 * n)).round(2),
            "time": rng.integers(0, 86400, 4 * n),
        }
    )
    return table[ORDER.get(letter, COLUMNS)], payments[source != target]


def main() -> None:
    """Write the six tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--customers", type=int, default=600, help="customers per bank (default: 600)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for letter in OWN_TRADE:
        customers, payments = bank(letter, args.customers, args.seed)
        customers.to_csv(args.folder / f"{letter}_customers.csv", index=False)
        payments.to_csv(args.folder / f"{letter}_payments.csv", index=False)


if __name__ == "__main__":
    main()
