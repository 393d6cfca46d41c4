"""Payments within and between two banks, imported from each bank's table and linked."""

import numpy as np
import pandas as pd

from fedgraph_flwr.cli.app import main
from tests.support import last_given

BANKS, EACH, DAY = ("a", "b"), 12, 86_400
ROLES = ["columns.time=at", "columns.edge_label=fraud", "columns.edge_id=ref", "edge_columns=amount"]
ROLES += [
    "--scaling",
    "none",
    "columns.amount=amount",
    "party_columns=from_bank,to_bank",
    "--match-columns",
    "at,amount:amount",
]


def payments():
    """Rows of both banks in order of their times, which differ; the last ones are tomorrow's."""
    rng = np.random.default_rng(0)
    bank, account = rng.integers(2, size=(2, 300)), rng.integers(EACH, size=(2, 300))
    return pd.DataFrame(
        {
            "ref": [f"p{i}" for i in range(300)],
            **{
                end: [f"{BANKS[b]}{n}" for b, n in zip(bank[k], account[k], strict=True)]
                for k, end in enumerate(("source", "target"))
            },
            **{end: [BANKS[b].upper() for b in bank[k]] for k, end in enumerate(("from_bank", "to_bank"))},
            "at": 20_000 * DAY + np.arange(300) * 1800,
            "amount": (rng.lognormal(3, 1, 300)).round(2),
            "fraud": np.where(rng.random(300) < 0.4, "yes", "no"),
        }
    )


def books(folder, rows, *recipe, share="", split="temporal", withheld=(), since=20_000):
    """Import each bank's rows, which start on a day, and link them, with shared columns; b does not book withheld references."""
    folder.mkdir()
    for number, bank in enumerate(BANKS):
        pd.DataFrame({"id": [f"{bank}{n}" for n in range(EACH)], "age": range(EACH)}).to_csv(
            folder / f"{bank}.csv", index=False
        )
        mine = rows[(rows[["from_bank", "to_bank"]] == bank.upper()).any(axis=1)]
        mine = mine[~mine.ref.isin(withheld)] if bank == "b" else mine
        mine.to_csv(folder / f"{bank}_pay.csv", index=False)
        args = ["import", "--nodes", f"{folder / bank}.csv", "--edges", f"{folder / bank}_pay.csv", *ROLES, *recipe]
        args += [
            "--own-party",
            bank.upper(),
            "edge_classes=no,yes",
            "--schema",
            str(folder / "schema.yaml"),
            "--secret-seed",
            "1",
        ]
        if split == "temporal":
            args += ["--split", "temporal", "--until", f"{since * DAY + 120 * 1800},{since * DAY + 180 * 1800}"]
        assert (
            main(last_given([*args, "--client", number, "--num-clients", 2, "--out", f"{folder / bank}.safetensors"]))
            == 0
        )
    files = [f"{folder / bank}.safetensors" for bank in BANKS]
    assert main(["link", "--simulate", *files, "--share", share, "--out", str(folder / "linked")]) == 0
    return folder / "linked"
