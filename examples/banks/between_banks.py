"""What payments between banks are worth: write each bank's tables, import, link, train six ways over seeds, and predict.

    python examples/banks/between_banks.py work                                      # three small banks, two seeds
    python examples/banks/between_banks.py work --banks 5 --accounts 2000 --seeds 5  # as simulations/payments_between.yaml
    python examples/banks/between_banks.py work --kinds cycle --amounts passed --features payments    # or "payments,-flow_*"

Accounts that take part in laundering are looked for. Members of a pattern are at any bank (`--crossing 1`). Each bank computes
features from its own book only: counts of its payments, or with `--features` those of a recipe. Generator, methods and their keys
are those of `simulations/payments_between.yaml`. Commands are printed before they run.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from banks import go

from fedgraph_flwr.config import compose
from fedgraph_flwr.data.payments import Payments, PaymentsSpec, activity, generate, keys_of
from fedgraph_flwr.evaluation.intervals import interval

TABLE = yaml.safe_load((Path(__file__).parents[2] / "simulations" / "payments_between.yaml").read_text())
COLUMNS = ("paid", "received", "receivers", "senders", "paid_at_once", "received_at_once", "passed_on")


def payments(seed: int, banks: int, accounts: int, crossing: float, *more: str) -> tuple[Payments, PaymentsSpec]:
    """Draw payments by the generator and keys of the table, with as much of everything per account."""
    words = [word for word in TABLE["common"] if word.startswith("dataset")]
    params = compose([*words, f"dataset.cross={crossing}", *more]).dataset.params
    share = accounts / params["accounts"]
    sizes = {key: max(round(params[key] * share), 1) for key in ("accounts", "background", "per_kind")}
    spec = keys_of(
        PaymentsSpec, {key: value for key, value in (params | sizes).items() if key in vars(PaymentsSpec())}, "payments"
    )
    return generate(spec, seed=seed, banks=banks), spec


def tables(folder: Path, p: Payments, spec: PaymentsSpec, seed: int, features: str) -> list[str]:
    """Write each bank's accounts, with counts unless import computes columns, and the book of its payments; return the banks."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    letters = [chr(ord("a") + bank) for bank in range(int(p.bank.max()) + 1)]
    bank = np.array(letters)[p.bank]
    ids = np.array([f"{letter}{i:06d}" for i, letter in enumerate(bank)])
    crooks = np.isin(np.arange(p.bank.size), np.concatenate([p.source[p.label], p.target[p.label]]))
    accounts = pd.DataFrame(activity(p, spec), columns=COLUMNS) if not features else pd.DataFrame(index=range(len(ids)))
    accounts.insert(0, "id", ids)
    accounts["part"] = rng.choice(["train", "val", "test"], len(ids), p=[0.6, 0.2, 0.2])
    accounts["label"] = np.where(crooks, "fraud", "ok")
    book = pd.DataFrame(
        {
            "from_bank": bank[p.source],
            "source": ids[p.source],
            "to_bank": bank[p.target],
            "target": ids[p.target],
            "value_date": pd.Timestamp("2026-01-01") + pd.to_timedelta(p.time // 86_400, unit="D"),
            "amount": p.amount.round(2),
            "time": p.time,
            "reference": [f"E2E-{i:08d}" for i in rng.permutation(p.time.size)],
        }
    )
    for letter in letters:
        accounts[bank == letter].to_csv(folder / f"{letter}_accounts.csv", index=False)
        own = (book["from_bank"] == letter) | (book["to_bank"] == letter)
        book[own].to_csv(folder / f"{letter}_payments.csv", index=False)
    return letters


def link(place: str, letters: list[str], features: str) -> None:
    """Import each bank's tables, and match the payments between them."""
    for number, letter in enumerate(letters):
        words = ["import", "--nodes", f"{place}/{letter}_accounts.csv", "--edges", f"{place}/{letter}_payments.csv"]
        words += ["--undirected", "--split-column", "part", "--own-party", letter, "--schema", f"{place}/schema.yaml"]
        if not number:  # the schema has it for the others
            words += ["--classes", "ok,fraud", "--scaling", "none", "--party-columns", "from_bank,to_bank"]
            words += ["--match-columns", "value_date:date,amount:amount,reference"]
            words += ["--time-column", "time", "--features", features] if features else []
        go(*words, "--client", number, "--num-clients", len(letters), "--out", f"{place}/{letter}.safetensors")
    go("link", "--simulate", *(f"{place}/{letter}.safetensors" for letter in letters), "--out", f"{place}/linked")


def train(place: str, seed: int, rounds: int) -> dict[str, float]:
    """Train each method on the linked files; return average precision on test accounts, in %."""
    common = [word for word in TABLE["common"] if word.startswith("evaluation")]
    found = {}
    for number, (name, words) in enumerate(TABLE["methods"].items()):
        out = f"{place}/run_{number}"
        go(
            "run",
            f"graph={place}/linked",
            *words,
            *common,
            f"rounds={rounds}",
            f"seed={seed}",
            f"out={out}",
            "--quiet",
            "--no-report",
        )
        metrics = json.loads(Path(out, "summary.json").read_text())["metrics"]["best_val"]
        found[name] = 100 * metrics["test_average_precision"]
    return found


def main() -> None:
    """Run all steps from tables to predictions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--banks", type=int, default=3, help="number of banks (default: 3)")
    parser.add_argument("--accounts", type=int, default=900, help="accounts of all banks (default: 900)")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (default: 2)")
    parser.add_argument("--rounds", type=int, default=80, help="number of rounds (default: 80)")
    parser.add_argument(
        "--crossing", type=float, default=1.0, help="share of members that may be at any bank (default: 1)"
    )
    parser.add_argument(
        "--amounts", default="independent", choices=("independent", "passed"), help="passed: patterns pass money on"
    )
    parser.add_argument("--kinds", default="", help="kinds of patterns, by commas, such as cycle (default: all)")
    parser.add_argument("--features", default="", help="recipe of columns of own records (default: counts of payments)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(args.folder)
    rows = []
    for seed in range(args.seeds):
        more = [f"dataset.amounts={args.amounts}", *([f"dataset.kinds=[{args.kinds}]"] if args.kinds else [])]
        p, spec = payments(seed, args.banks, args.accounts, args.crossing, *more)
        link(f"seed_{seed}", tables(Path(f"seed_{seed}"), p, spec, seed, args.features), args.features)
        rows.append(train(f"seed_{seed}", seed, args.rounds))
    print(f"\naverage precision in %, mean and 95 % interval over {args.seeds} seeds")
    for name in TABLE["methods"]:
        found = interval([row[name] for row in rows])
        print(f"  {name:30s} {found.mean:5.1f} ± {found.half:.1f}")
    number = list(TABLE["methods"]).index("FedGCN")
    go("predict", f"seed_0/run_{number}", "--client", 0, "--out", "a_predictions.csv")
    top = pd.read_csv("a_predictions.csv").sort_values("p_fraud", ascending=False).head(5)
    print(f"\n{top.round(3).to_string(index=False)}")


if __name__ == "__main__":
    main()
