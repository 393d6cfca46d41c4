"""Tables of a payment network and two banks, and their client files."""

import numpy as np
import pandas as pd

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.partition import load

NETWORK = ["columns.edge_label=fraud", "edge_columns=amount", "columns.time=t", "party_columns=from_bank,to_bank"]


def write(folder, banks="AB", extra=(), routed=True):
    """Import payments among the first ten of 12 accounts of each bank, and the last ten accounts of each bank."""
    rng = np.random.default_rng(1)
    ids = {bank: [f"{bank}{i}" for i in range(12)] for bank in "AB"}
    ends = rng.choice(np.array([*ids["A"][:10], *ids["B"][:10]]), (2, 150))
    pay = pd.DataFrame({"source": ends[0], "target": ends[1], "amount": 1.0 + np.arange(150)})
    pay = pay.assign(t=np.arange(150), fraud=rng.choice(["no", "yes"], 150))
    pay = pay.assign(from_bank=pay.source.str[0], to_bank=pay.target.str[0])
    pay.to_csv(folder / "pay.csv", index=False)
    for bank in banks:
        account_ids = [*ids[bank][2:], *extra]
        frame = pd.DataFrame(
            {
                "id": account_ids,
                "flag": rng.choice(["yes", "no"], len(account_ids)),
                "balance": rng.normal(9, 3, len(account_ids)),
            }
        )
        frame.loc[0, "balance"] = np.nan
        frame.to_csv(folder / f"{bank}.csv", index=False)
    for _ in range(2):
        bring(folder, "network", "--edges=pay.csv", 0, *(NETWORK if routed else NETWORK[:-1]))
        for client, bank in enumerate(banks, 1):
            bring(folder, "bank", f"--nodes={bank}.csv", client, f"--own-party={bank}")
    return [load(folder / f"client_{i:04d}.safetensors") for i in range(3)]


def bring(folder, role, table, client, *more):
    option, _, name = table.partition("=")
    args = [
        f"--role={role}",
        f"{option}={folder}/{name}",
        f"--schema={folder}/s.yaml",
        f"--client={client}",
        "--num-clients=3",
    ]
    if any("--own-party" in str(word) for word in more):
        args.append("--secret-seed=7")  # randomised columns are drawn from the secret
    assert main(["import", *args, f"--out={folder}/client_{client:04d}.safetensors", *more]) == 0
