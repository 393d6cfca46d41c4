"""Write tables of three banks whose payments cross: each bank books the payments of its own accounts, in its own way.

    python examples/banks/linked_tables.py crossing       # crossing/a_accounts.csv, crossing/a_payments.csv, ...

Most payments lead to another bank. Bank b writes dates and amounts in another way, bank c its account numbers in capitals. Both
books of a payment have the same value date, amount and reference, not the same time. A few payments are in one book only, some
lead to a bank that takes no part. Money launderers, 8 % of the accounts, pass money on from bank to bank.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

BANKS = ("a", "b", "c")


def accounts(letter: str, count: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return one bank's accounts, one per row."""
    fraud = rng.random(count) < 0.08
    return pd.DataFrame(
        {
            "id": [f"{letter}{i:04d}" for i in range(count)],
            "age": rng.integers(18, 90, count),
            "income": np.exp(rng.normal(10.3 - 0.2 * fraud, 0.5)).round(2),
            "part": rng.choice(["train", "val", "test"], count, p=[0.5, 0.2, 0.3]),
            "label": np.where(fraud, "fraud", "ok"),
        }
    )


def payments(tables: dict[str, pd.DataFrame], count: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return all payments; those that a launderer makes go to a launderer of another bank, most of the time."""
    everyone = pd.concat([table.assign(bank=letter) for letter, table in tables.items()], ignore_index=True)
    crooks = np.flatnonzero(everyone["label"] == "fraud")
    source = np.concatenate([rng.integers(len(everyone), size=count), rng.choice(crooks, count // 5)])
    target = rng.integers(len(everyone), size=source.size)
    passed = (everyone["label"].to_numpy()[source] == "fraud") & (rng.random(source.size) < 0.7)
    target[passed] = rng.choice(crooks, int(passed.sum()))
    rows = pd.DataFrame(
        {
            "from_bank": everyone["bank"].to_numpy()[source],
            "source": everyone["id"].to_numpy()[source],
            "to_bank": everyone["bank"].to_numpy()[target],
            "target": everyone["id"].to_numpy()[target],
            "value_date": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 90, source.size), unit="D"),
            "amount": np.exp(rng.normal(5, 1, source.size)).round(2),
            "reference": [f"E2E-{i:07d}" for i in rng.permutation(10 * source.size)[: source.size]],
        }
    )
    elsewhere = rng.random(len(rows)) < 0.05
    rows.loc[elsewhere, ["to_bank", "target"]] = ["x", "X-17"]
    return rows[source != target]


def book(rows: pd.DataFrame, letter: str, rng: np.random.Generator) -> pd.DataFrame:
    """Return the payments as one bank books them."""
    bookings = rows[(rows["from_bank"] == letter) | (rows["to_bank"] == letter)]
    bookings = bookings[rng.random(len(bookings)) > 0.01].sample(frac=1, random_state=int(rng.integers(2**31))).copy()
    bookings["booked_at"] = rng.integers(0, 86_400, len(bookings))
    day = bookings["value_date"].dt.strftime("%d.%m.%Y" if letter == "b" else "%Y-%m-%d")
    amount = bookings["amount"].map("{:.2f}".format)
    bookings["value_date"], bookings["amount"] = day, amount.str.replace(".", ",") if letter == "b" else amount
    if letter == "c":
        bookings[["source", "target"]] = bookings[["source", "target"]].apply(lambda column: column.str.upper())
    return bookings


def main() -> None:
    """Write the six tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accounts", type=int, default=300, help="accounts per bank (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    tables = {letter: accounts(letter, args.accounts, rng) for letter in BANKS}
    rows = payments(tables, 15 * args.accounts, rng)
    for letter, table in tables.items():
        table.to_csv(args.folder / f"{letter}_accounts.csv", index=False)
        book(rows, letter, rng).to_csv(args.folder / f"{letter}_payments.csv", index=False)


if __name__ == "__main__":
    main()
