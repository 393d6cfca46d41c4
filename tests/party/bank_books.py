"""Two banks' exports by day, their client files, and books that are filled in several ways."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from fedgraph_flwr.cli.app import main

BANKS, EACH, HISTORY, MONTH, PER_DAY = ("a", "b"), 16, 14, 6, 30
START = np.datetime64("2026-01-01")
SPAN = "--from", str(START + HISTORY), "--until", str(START + HISTORY + MONTH - 1)
MODELS: dict[str, dict[str, object]] = {
    "trees": {"strategy": "boosting", "strategy.min_data_in_leaf": 2},
    "network": {"rounds": 2, "model.hidden": 8},
}


def payments(
    days: int = HISTORY + MONTH, hours: bool = True, seed: int = 0, names: Sequence[str] = BANKS
) -> pd.DataFrame:
    """Return all banks' payments in order of their times; every tenth account passes money on within a day."""
    rng = np.random.default_rng(seed)
    count = days * PER_DAY
    bank, account = rng.integers(len(names), size=(2, count)), rng.integers(EACH, size=(2, count))
    day = np.repeat(np.arange(days), PER_DAY)
    second = (
        np.sort(rng.integers(86_400, size=(days, PER_DAY)), axis=1).ravel() if hours else np.zeros(count, dtype=int)
    )
    time = START.astype("datetime64[s]") + day * 86_400 + second
    form = np.datetime_as_string(time, "s") if hours else np.datetime_as_string(time, "D")
    rows = pd.DataFrame(
        {
            "ref": [f"p{i}" for i in range(count)],
            **{
                end: [f"{names[b]}{n}" for b, n in zip(bank[k], account[k], strict=True)]
                for k, end in enumerate(("source", "target"))
            },
            **{end: [names[b].upper() for b in bank[k]] for k, end in enumerate(("from_bank", "to_bank"))},
            "at": form,
            "amount": rng.lognormal(3, 1, count).round(2),
        }
    )
    fraud = (account[0] % 5 == 0) & (rng.random(count) < 0.7) | (rng.random(count) < 0.05)
    return rows.assign(fraud=np.where(fraud, "yes", "no"), day=day)


def of_bank(rows: pd.DataFrame, bank: str) -> pd.DataFrame:
    """Return the rows that one bank books."""
    return rows[(rows[["from_bank", "to_bank"]] == bank.upper()).any(axis=1)]


def tables(
    folder: Path, history: pd.DataFrame, names: Sequence[str] = BANKS, accounts: bool = False, **keys: object
) -> None:
    """Write each bank's tables and its party's file."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, bank in enumerate(names):
        rng = np.random.default_rng(number)
        people = pd.DataFrame({"id": [f"{bank}{n}" for n in range(EACH)], "age": rng.integers(18, 90, EACH)})
        if accounts:
            people["label"] = np.where(np.arange(EACH) % 5 == 0, "yes", "no")
            people["part"] = np.array(["train", "val", "test"])[np.arange(EACH) % 3]
        people.to_csv(folder / f"{bank}_accounts.csv", index=False)
        of_bank(history, bank).drop(columns="day").to_csv(folder / f"{bank}_history.csv", index=False)
        columns = {"source": "source", "target": "target", "time": "at", "amount": "amount", "edge_id": "ref"}
        columns |= {"label": "label", "split": "part"} if accounts else {"edge_label": "fraud"}
        party = {
            "party": bank.upper(),
            "client": number,
            "nodes": f"{bank}_accounts.csv",
            "edges": f"{bank}_history.csv",
            "schema": "schema.yaml",
            "out": f"{bank}.safetensors",
            "columns": columns,
            "party_columns": ["from_bank", "to_bank"],
            "match": {"at": "date", "amount": "amount", "ref": "text"},
            "features": "payments",
            "windows": "2,7",
            ("classes" if accounts else "edge_classes"): ["no", "yes"],
            **keys,
        }
        if not accounts:
            party.setdefault("split", "temporal")
        (folder / f"{bank}.yaml").write_text(yaml.safe_dump(party))


def banks(folder: Path, history: pd.DataFrame, names: Sequence[str] = BANKS, **keys: object) -> Path:
    """Import the banks' history and link it; return the folder of linked files."""
    tables(folder, history, names, **keys)
    for bank in names:
        assert main(["import", str(folder / f"{bank}.yaml")]) == 0
    files = [str(folder / f"{bank}.yaml") for bank in names]
    assert main(["link", "--simulate", *files, "--out", str(folder / "linked")]) == 0
    return folder / "linked"


def days(folder: Path, rows: pd.DataFrame, bank: str = "a") -> list[Path]:
    """Write one export per day, without labels."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for day, table in of_bank(rows, bank).groupby("day"):
        paths.append(folder / f"{START + int(day)}.csv")
        table.drop(columns=["day", "fraud"]).to_csv(paths[-1], index=False)
    return paths


def book(folder: Path, party: Path, *files: Path) -> Path:
    """Make a book of some files."""
    assert main(["book", "new", str(folder), "--party-file", str(party), *map(str, files)]) == 0
    return folder


def scores(where: Path, book: Path, run: Path, *words: str) -> pd.DataFrame:
    """Return the scores of a book's days by a run's model of client 0."""
    out = where / f"{book.name}.parquet"
    given = [str(run), "--client", "0"] if run else []
    assert main(["predict", *given, "--book", str(book), "--out", str(out), *words]) == 0
    return pd.read_parquet(out)
