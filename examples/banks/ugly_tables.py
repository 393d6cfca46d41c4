"""The tables of `make_tables.py` as three banks would really export them, and those of new customers of bank a.

    python examples/banks/ugly_tables.py ugly            # ugly/a_customers.csv, ugly/b_customers.csv, ugly/c_customers.tsv, ...

bank a   commas, a byte-order mark, numbers as 2,317.50, dates in two formats, payments that repeat
bank b   semicolons, Latin-1, numbers as 2.317,50, dates as 31.01.2026, other names of columns
bank c   tabs, UTF-16, numbers as 2 317,50, `Germany` for `DE`, columns in another order and one more
new      customers of bank a who pay existing ones, with a trade that training never saw
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import make_tables
import numpy as np
import pandas as pd

COUNTRIES = ("DE", "FR", "IT")
MONEY = ["income", "balance"]
GERMAN = {"id": "kunde", "label": "status", "source": "von", "target": "an"}


def money(column: pd.Series, thousands: str, decimal: str) -> list[str | None]:
    """Numbers with two decimals and these signs; gaps stay."""
    signs = str.maketrans({",": thousands, ".": decimal})
    return [None if np.isnan(value) else f"{value:,.2f}".translate(signs) for value in column]


def dates(column: pd.Series, *formats: str) -> list[str]:
    """Dates in several formats by turns."""
    return [day.strftime(formats[row % len(formats)]) for row, day in enumerate(pd.to_datetime(column))]


def bank(letter: str, customers: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One bank's tables as `make_tables.bank` has them, with a country, and names with umlauts."""
    people, payments = make_tables.bank(letter, customers, seed)
    rng = np.random.default_rng([seed, ord(letter), 1])
    people["country"] = np.array(COUNTRIES)[rng.choice(3, len(people), p=[0.6, 0.3, 0.1])]
    people["name"] = [f"Jürgen Müßig {letter} {number}" for number in rng.permutation(len(people))]
    return people, payments


def bank_a(customers: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two formats of dates, and every tenth payment twice."""
    people, payments = bank("a", customers, seed)
    for name in MONEY:
        people[name] = money(people[name], ",", ".")
    people["opened"] = dates(people["opened"], "%Y-%m-%d", "%d.%m.%Y")
    return people, pd.concat([payments, payments.iloc[::10]])


def bank_b(customers: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """German names of columns, numbers and dates."""
    people, payments = bank("b", customers, seed)
    for name in MONEY:
        people[name] = money(people[name], ".", ",")
    people["opened"] = dates(people["opened"], "%d.%m.%Y")
    return people.rename(columns=GERMAN), payments.rename(columns=GERMAN)


def bank_c(customers: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Narrow spaces in numbers, and a country written in full by one branch."""
    people, payments = bank("c", customers, seed)
    for name in MONEY:
        people[name] = money(people[name], "\u202f", ",")
    people.loc[(people["country"] == "DE") & (people["branch"] == 1), "country"] = "Germany"
    return people, payments


def newcomers(customers: int, seed: int = 1) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """New customers of bank a, their payments among themselves and to existing customers, and what came out since."""
    people, payments = bank_a(customers, seed)
    rng = np.random.default_rng([seed, 2])
    people["id"] = people["id"].str.replace("a", "n")
    for end in ("source", "target"):
        payments[end] = payments[end].str.replace("a", "n")
    known = pd.DataFrame(
        {"source": people["id"], "target": [f"a{k:05d}" for k in rng.integers(0, customers, customers)]}
    )
    people.loc[people.index[:5], "trade"] = "crypto"
    return people.drop(columns=["label", "part"]), pd.concat([payments, known]), people[["id", "label"]]


WRITTEN: dict[str, tuple[Callable[..., tuple[pd.DataFrame, pd.DataFrame]], str, dict[str, str]]] = {
    "a": (bank_a, "csv", {"sep": ",", "encoding": "utf-8-sig"}),
    "b": (bank_b, "csv", {"sep": ";", "encoding": "latin-1"}),
    "c": (bank_c, "tsv", {"sep": "\t", "encoding": "utf-16"}),
}


def write(folder: Path, customers: int = 600) -> None:
    """All tables of the three banks, and those of the new customers."""
    folder.mkdir(parents=True, exist_ok=True)
    for letter, (make, ending, form) in WRITTEN.items():
        for name, table in zip(("customers", "payments"), make(customers), strict=True):
            table.to_csv(folder / f"{letter}_{name}.{ending}", index=False, **form)
    people, payments, truth = newcomers(customers // 4)
    people.to_csv(folder / "new_customers.csv", index=False, sep=";", encoding="utf-8-sig")
    payments.to_csv(folder / "new_payments.csv", index=False)
    truth.to_csv(folder / "new_truth.csv", index=False)


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--customers", type=int, default=600, help="of each bank; default: 600")
    args = parser.parse_args()
    write(args.folder, args.customers)


if __name__ == "__main__":
    main()
