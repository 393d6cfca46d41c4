"""What payments between banks are worth: write each bank's tables, import, link, train six ways over seeds, and predict.

    python examples/banks/between_banks.py work                                      # three small banks, two seeds
    python examples/banks/between_banks.py work --banks 5 --accounts 2000 --seeds 5  # as simulations/payments_between.yaml
    python examples/banks/between_banks.py work --kinds cycle --amounts passed --features payments    # or "payments,-flow_*"
    python examples/banks/between_banks.py work --find payments --amounts passed --features payments  # instead of accounts
    python examples/banks/between_banks.py work ... --keys dataset.decoy_dir=0 dataset.decoy_time=0   # keys of the generator

Accounts that take part in laundering are looked for, or payments. Members of a pattern are at any bank (`--crossing 1`). Each
bank computes features from its own book only: counts of its payments, or with `--features` those of a recipe. Generator, methods
and their keys are those of `simulations/payments_between.yaml`, for payments of `payments_edges.yaml`. The last row blends FedAvg
with boosting. Commands are printed before they run.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from banks import go

from fedgraph_flwr.config import compose, typed
from fedgraph_flwr.data.payments import Payments, PaymentsSpec, activity, generate
from fedgraph_flwr.evaluation.intervals import interval

TABLES = {
    what: yaml.safe_load((Path(__file__).parents[2] / "simulations" / f"payments_{name}.yaml").read_text())
    for what, name in {"accounts": "between", "payments": "edges"}.items()
}
COLUMNS = ("paid", "received", "receivers", "senders", "paid_at_once", "received_at_once", "passed_on")


SHARED = "FedAvg, far ends"
"""Rows of files with `--share`, which end in what is shared."""

UNTIL = 0.6, 0.8
"""Shares of the time until the end of training and of validation payments."""


def payments(
    find: str, seed: int, banks: int, accounts: int, crossing: float, *more: str
) -> tuple[Payments, PaymentsSpec]:
    """Draw payments by the generator and keys of the table, with as much of everything per account."""
    words = [word for word in TABLES[find]["common"] if word.startswith("dataset")]
    params = compose([*words, f"dataset.cross={crossing}", *more]).dataset.params
    share = accounts / params["accounts"]
    sizes = {key: max(round(params[key] * share), 1) for key in ("accounts", "background", "per_kind")}
    keys = {key: value for key, value in (params | sizes).items() if key in vars(PaymentsSpec())}
    spec = typed(PaymentsSpec, keys, "dataset=payments")
    return generate(spec, seed=seed, banks=banks), spec


def tables(folder: Path, p: Payments, spec: PaymentsSpec, seed: int, find: str, features: str) -> list[str]:
    """Write each bank's accounts, with counts unless import computes columns, and the book of its payments; return the banks."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    letters = [chr(ord("a") + bank) for bank in range(int(p.bank.max()) + 1)]
    bank = np.array(letters)[p.bank]
    ids = np.array([f"{letter}{i:06d}" for i, letter in enumerate(bank)])
    crooks = np.isin(np.arange(p.bank.size), np.concatenate([p.source[p.label], p.target[p.label]]))
    accounts = (
        pd.DataFrame(activity(p, spec), columns=COLUMNS)
        if not features and find == "accounts"
        else pd.DataFrame(index=range(len(ids)))
    )
    accounts.insert(0, "id", ids)
    if find == "accounts":
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
    if find == "payments":
        book["label"] = np.where(p.label, "fraud", "ok")
    for letter in letters:
        accounts[bank == letter].to_csv(folder / f"{letter}_accounts.csv", index=False)
        mask = (book["from_bank"] == letter) | (book["to_bank"] == letter)
        book[mask].to_csv(folder / f"{letter}_payments.csv", index=False)
    return letters


def link(place: str, letters: list[str], find: str, features: str, days: int, shares: list[str]) -> None:
    """Import each bank's tables, and match the payments between them, once for each list of columns that are shared."""
    until = ",".join(str(round(share * days * 86_400)) for share in UNTIL)
    timed = ["columns.edge_label=label", "columns.edge_id=reference", "--split", "temporal", "--until", until]
    accounts = ["--undirected", "columns.split=part"]
    for number, letter in enumerate(letters):
        words = ["import", "--nodes", f"{place}/{letter}_accounts.csv", "--edges", f"{place}/{letter}_payments.csv"]
        words += accounts if find == "accounts" else timed
        words += ["--own-party", letter, "--schema", f"{place}/schema.yaml"]
        words += ["--secret-seed", "0"]  # so that scores can be repeated
        if not number:  # the schema has it for the others
            words += ["--classes", "ok,fraud"] if find == "accounts" else ["edge_classes=ok,fraud"]
            words += ["--scaling", "none", "party_columns=from_bank,to_bank"]
            words += ["--match-columns", "value_date:date,amount:amount,reference"]
            words += ["columns.time=time"] if features or find == "payments" else []
            words += [f"features={features}"] if features else []
            words += ["edge_columns=amount", "windows=1,0.25"] if find == "payments" and not features else []
        go(*words, "--client", number, "--num-clients", len(letters), "--out", f"{place}/{letter}.safetensors")
    files = [f"{place}/{letter}.safetensors" for letter in letters]
    go("link", "--simulate", *files, "--out", f"{place}/linked")
    for number, share in enumerate(shares):
        go("link", "--simulate", *files, "--share", share, "--out", f"{place}/shared_{number}")


def methods(find: str, features: str, shares: list[str]) -> dict[str, list[str]]:
    """Return the methods that train, with their keys; with a recipe, networks of accounts are the default ones."""
    choices = {name: words for name, words in TABLES[find]["methods"].items() if name != "Majority"}
    choices = {name: [word for word in words if not features or word != "model=gcn"] for name, words in choices.items()}
    return choices | {f"{SHARED} {share}": choices["FedAvg"] for share in shares}


def train(place: str, seed: int, rounds: int, find: str, features: str, shares: list[str]) -> dict[str, float]:
    """Train each method on the linked files, and blend two; return average precision on test items, in %."""
    common = [word for word in TABLES[find]["common"] if word.startswith(("evaluation.", "train.", "model."))]
    common += ["task=edges"] if find == "payments" else []
    precisions, runs = {}, {}
    graphs = {f"{SHARED} {share}": f"shared_{number}" for number, share in enumerate(shares)}
    for number, (name, words) in enumerate(methods(find, features, shares).items()):
        out = runs[name] = f"{place}/run_{number}"
        go(
            "run",
            f"graph={place}/{graphs.get(name, 'linked')}",
            *words,
            *common,
            f"rounds={rounds}",
            f"seed={seed}",
            f"out={out}",
            "--quiet",
            "--no-report",
        )
        precisions[name] = average_precision(out)
    go("blend", runs["FedAvg"], runs["Boosting"], "--out", f"{place}/blend")
    return precisions | {"FedAvg and boosting, blended": average_precision(f"{place}/blend")}


def average_precision(run: str) -> float:
    """Return a run's average precision on test items, in %."""
    metrics = json.loads(Path(run, "summary.json").read_text())["metrics"]["best_val"]
    return float(100 * metrics["test_average_precision"])


def main() -> None:
    """Run all steps from tables to predictions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--find", default="accounts", choices=TABLES, help="what is classified (default: accounts)")
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
    parser.add_argument(
        "--share", nargs="*", default=[], help="columns of far ends (`link --share`), each a row of FedAvg"
    )
    parser.add_argument("--keys", nargs="*", default=[], help="more keys of the generator, such as dataset.decoy_dir=0")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(args.folder)
    rows = []
    for seed in range(args.seeds):
        more = [
            f"dataset.amounts={args.amounts}",
            *([f"dataset.kinds=[{args.kinds}]"] if args.kinds else []),
            *args.keys,
        ]
        p, spec = payments(args.find, seed, args.banks, args.accounts, args.crossing, *more)
        place = f"seed_{seed}"
        letters = tables(Path(place), p, spec, seed, args.find, args.features)
        link(place, letters, args.find, args.features, spec.days, args.share)
        rows.append(train(place, seed, args.rounds, args.find, args.features, args.share))
    print(f"\naverage precision in %, and difference to FedAvg: mean and 95 % interval over {args.seeds} seeds")
    for name in rows[0]:
        cells = []
        for form, values in (
            ("5.1f", [row[name] for row in rows]),
            ("+6.1f", [row[name] - row["FedAvg"] for row in rows]),
        ):
            estimate = interval(values)
            cells.append(f"{estimate.mean:{form}}" + (f" ± {estimate.half:.1f}" if args.seeds > 1 else ""))
        print(f"  {name:30s} {'  '.join(cells)}")
    number = list(methods(args.find, args.features, args.share)).index(
        "FedGCN" if args.find == "accounts" else "FedAvg"
    )
    go("predict", f"seed_0/run_{number}", "--client", 0, "--out", "a_predictions.csv")
    top = pd.read_csv("a_predictions.csv").sort_values("p_fraud", ascending=False).head(5)
    print(f"\n{top.round(3).to_string(index=False)}")


if __name__ == "__main__":
    main()
