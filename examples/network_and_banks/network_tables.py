"""Tables of one payment network and several banks, of the shape of the 2023 privacy-enhancing-technologies prize.

    python network_tables.py prize [--payments 20000] [--accounts 3000] [--banks 3] [--fraud 0.01] [--seed 0]

payments.csv    the network's: reference, time, from_bank, source, to_bank, target, amount, kind, fraud
bank1.csv ...   each bank's accounts: id, flagged, dormant, years

Only the shape is the prize's (payments and labels at a network, attributes of accounts at banks), not its data. A fraudulent
payment starts at a dormant account with probability .45 and ends at a flagged one with .6. Otherwise its ends are drawn like
those of other payments. Its amount is larger by a factor of e in the median, and it is more often of kind `instant`. So the
network alone sees some of it, and the banks' flags show most. 3 % of accounts are flagged; 4 % are dormant and pay a fifth as
often.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

DAYS = 30
KINDS = np.array(["card", "instant", "transfer"])


def make(folder: Path, payments: int, accounts: int, banks: int, fraud: float, seed: int) -> list[str]:
    """Write the tables, and return the names of the banks."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = np.array([f"bank{number + 1}" for number in range(banks)])
    share = np.arange(1, banks + 1) ** -0.7
    bank = rng.choice(banks, accounts, p=share / share.sum())
    flagged, dormant = rng.random(accounts) < 0.03, rng.random(accounts) < 0.04
    ids = np.char.add("AC", np.char.zfill(rng.permutation(accounts).astype(str), len(str(accounts))))
    activity = np.minimum(rng.pareto(1.5, accounts) + 1, 50) * np.where(dormant, 0.2, 1)
    often = activity / activity.sum()
    label = rng.random(payments) < fraud
    source, target = (rng.choice(accounts, payments, p=often) for _ in range(2))
    for ends, odd, part in ((source, dormant, 0.45), (target, flagged, 0.6)):
        moved = label & (rng.random(payments) < part * odd.any())
        ends[moved] = rng.choice(np.flatnonzero(odd), int(moved.sum()))
    target = np.where(source == target, (target + 1) % accounts, target)
    kind = np.where(label & (rng.random(payments) < 0.5), 1, rng.choice(3, payments, p=[0.5, 0.2, 0.3]))
    table = pd.DataFrame(
        {
            "reference": np.arange(payments),
            "time": np.sort(rng.integers(0, DAYS * 86_400, payments)),
            "from_bank": names[bank[source]],
            "source": ids[source],
            "to_bank": names[bank[target]],
            "target": ids[target],
            "amount": rng.lognormal(5 + label, 1.2).round(2),
            "kind": KINDS[kind],
            "fraud": np.where(label, "yes", "no"),
        }
    )
    table.to_csv(folder / "payments.csv", index=False)
    years = rng.gamma(2, 4, accounts).round(1)
    held = pd.DataFrame({"id": ids, "flagged": flagged, "dormant": dormant, "years": years})
    held = held.replace({True: "yes", False: "no"})
    for number, name in enumerate(names):
        held[bank == number].to_csv(folder / f"{name}.csv", index=False)
    return names.tolist()


def main() -> None:
    """Write the tables of the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--payments", type=int, default=20_000)
    parser.add_argument("--accounts", type=int, default=3_000)
    parser.add_argument("--banks", type=int, default=3)
    parser.add_argument("--fraud", type=float, default=0.01, help="share of fraudulent payments")
    parser.add_argument("--seed", type=int, default=0)
    made = make(**vars(parser.parse_args()))
    print(f"wrote payments.csv and {', '.join(f'{name}.csv' for name in made)}")


if __name__ == "__main__":
    main()
