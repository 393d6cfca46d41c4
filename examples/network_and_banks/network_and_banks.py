"""What attributes of banks' accounts are worth to a payment network: tables, import, link, runs, predictions, bounds.

    python examples/network_and_banks/network_and_banks.py work                          # three banks, one seed, minutes
    python examples/network_and_banks/network_and_banks.py work --payments 100000 --accounts 15000 --seeds 3
    python examples/network_and_banks/network_and_banks.py work --epsilon 5 --payments 100000 --accounts 15000
    python examples/network_and_banks/network_and_banks.py work --scale --payments 4000000 --accounts 500000 --banks 9

The network imports payments without a table of accounts, each bank accounts without payments and labels. The first bank comes
first, so that the schema has the columns of both roles before files are written. `link --entities columns` brings the attributes
to the network: exact, or by randomised response with a local ε of 1 or 4 per column. The last column of the table is
(AP - alone) / (exact - alone). `--epsilon` trains an MLP on single payments with and without `privacy.unit=row`, noised inside
a secure sum of all parties, and scores the network's predictions. `--scale` runs import, link and one epoch with scoring once.
It prints the seconds and the peak memory of the network's import, of the link of all parties, and of the run, each in a process
of its own.
"""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from network_tables import make
from scipy.optimize import brentq

from fedgraph_flwr.cli import main as main_of_package
from fedgraph_flwr.config import compose
from fedgraph_flwr.evaluation.metrics import average_precision
from fedgraph_flwr.partition import load
from fedgraph_flwr.secure.accounting import UNITS, cost

FORMS = {"alone": "", "ε = 1": "eps=1", "ε = 4": "eps=4", "exact": "exact"}
METHODS = {"boosting": ["strategy=boosting"], "FedAvg": ["strategy=fedavg", "train.lr=0.02", "train.local_steps=5"]}
COMMON = ["task=edges", "evaluation.metric=average_precision", "model.hidden=32", "checkpoint_every=0"]
ROWS = ["strategy=fedgrad", "model=mlp", "model.dropout=0", "train.lr=0.03", "train.weight_decay=0", "rounds=60"]
NETWORK = """role: network
edges: payments.csv
columns: {time: time, edge_label: fraud, edge_id: reference}
edge_columns: [amount, kind]
edge_scales: {amount: log}
party_columns: [from_bank, to_bank]
split: temporal
"""
BANK = "role: bank\nnodes: {name}.csv\n"
LARGE = ["train.sampler=neighbors", "train.batch_size=4096", "train.fanout=[8,4]", "train.local_epochs=1", "threads=1"]


def go(*words: object, apart: bool = False) -> None:
    """Print and run a command; with ``apart`` in a process of its own, with its seconds and peak memory."""
    args = [str(word) for word in words]
    print("$ fedgraph-flwr", shlex.join(args), flush=True)
    if not apart:
        if code := main_of_package(args):
            raise SystemExit(code)
        return
    began = time.perf_counter()
    process = os.posix_spawn(sys.executable, [sys.executable, "-m", "fedgraph_flwr", *args], os.environ)
    _, status, used = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(code)
    spent, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20
    print(f"# {spent:.1f} CPU s, {time.perf_counter() - began:.1f} s, peak {peak:.2f} GB", flush=True)


def bring(place: str, banks: list[str], apart: bool = False) -> None:
    """Write each party's file and import its tables: the first bank, the network (perhaps apart), all banks."""
    for number, name in enumerate(["network", *banks]):
        role = BANK.format(name=name) if number else NETWORK
        out = f"client: {number}\nschema: schema.yaml\nout: client_{number:04d}.safetensors\n"
        Path(place, f"{name}.yaml").write_text(f"party: {name}\n{role}{out}")
    for name in [banks[0], "network", *banks]:
        go("import", f"{place}/{name}.yaml", "--num-clients", len(banks) + 1, apart=apart and name == "network")


def link(place: str, banks: list[str], form: str, match: str, apart: bool = False) -> str:
    """Bring the attributes to the network in a form, and return the folder of the files; without a form, the imported ones."""
    out = f"{place}/{form.replace('=', '') or 'alone'}"
    files = [f"{place}/client_{number:04d}.safetensors" for number in range(len(banks) + 1)]
    if form:
        share = f"flagged:{form},dormant:{form}"
        rules = ["--match", match, "--entities", "columns", "--share", share]
        go("link", "--simulate", *files, *rules, "--out", out, apart=apart)
        return out
    Path(out).mkdir(exist_ok=True)
    for file in files:
        link_to = Path(out, Path(file).name)
        link_to.unlink(missing_ok=True)
        link_to.hardlink_to(file)
    return out


def score(graph: str, out: str, words: list[str], seed: int, apart: bool = False) -> float:
    """Train on files, and return the network's average precision on test payments."""
    keys = [f"graph={graph}", *COMMON, *words, f"seed={seed}", f"out={out}", "overwrite=true"]
    go("run", *keys, "--quiet", "--no-report", apart=apart)
    return float(json.loads(Path(out, "summary.json").read_text())["metrics"]["best_val"]["test_average_precision"])


def private_keys(payments: int, epsilon: float, parties: int) -> list[str]:
    """Return the keys of a run in which a training payment of the network has at most this ε."""
    rows = round(0.6 * payments)
    keys = [
        "privacy.unit=row",
        "privacy.dp=distributed",
        "privacy.secagg=true",
        "privacy.secagg_bits=20",
        f"privacy.rows={rows}",
    ]
    keys += [
        f"privacy.batch={rows // 20}",
        f"privacy.delta={0.3 / rows}",
        "privacy.clipping_norm=0.3",
        "privacy.scores=none",
    ]

    def over(z: float) -> float:
        cfg = compose(["task=edges", *ROWS, *keys, f"num_clients={parties}", f"privacy.noise_multiplier={z}"])
        return cost(cfg.privacy, parties, cfg.rounds) - epsilon

    return [*keys, f"privacy.noise_multiplier={brentq(over, 0.3, 50, xtol=1e-3) + 2e-3:.4f}"]


def predicted(graph: str, keys: list[str], seed: int) -> float:
    """Train on single payments, let the network predict, and return average precision on its test payments."""
    run = ["run", f"graph={graph}", *COMMON, *ROWS, *keys, f"seed={seed}", f"out={graph}_rows", "overwrite=true"]
    go(*run, "--quiet", "--no-report")
    go("predict", f"{graph}_rows", "--client", 0, "--out", f"{graph}_rows.csv")
    held, predictions = (
        load(Path(graph, "client_0000.safetensors")),
        pd.read_csv(f"{graph}_rows.csv").set_index("edge").sort_index(),
    )
    test = (held.edge_split == 2).numpy()
    return average_precision(
        np.log(predictions[["p_no", "p_yes"]].to_numpy() + 1e-300)[test], held.edge_y.numpy()[test]
    )


def protected(args: argparse.Namespace) -> None:
    """Print what privacy of single payments costs the network, alone and with exact columns of the banks."""
    scores: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        place = f"{args.folder}/{seed}"
        banks = make(Path(place), args.payments, args.accounts, args.banks, args.fraud, seed)
        bring(place, banks)
        noised = private_keys(args.payments, args.epsilon, len(banks) + 1)
        for form in ("alone", "exact"):
            graph = link(place, banks, FORMS[form], args.match)
            for name, keys in (("no privacy", []), (f"ε = {args.epsilon:g}", noised)):
                scores.setdefault(f"{form}, {name}", []).append(predicted(graph, keys, seed))
    for name, values in scores.items():
        print(f"{name}: average precision {np.mean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})")
    alone, *_, private = (float(np.mean(values)) for values in scores.values())
    print(f"Random order: {args.fraud:g}. What ε protects: {UNITS['row']}")
    if private < alone:
        print(f"At this size ε = {args.epsilon:g} is not useful: the network alone, without privacy, does better.")


def table(precisions: dict[str, dict[str, list[float]]]) -> str:
    """Return the mean average precision by form and method, in %, and its place between alone and exact."""
    lines = ["| attributes | " + " | ".join(f"{name} | place" for name in METHODS) + " |", "|---" * 5 + "|"]
    for form in FORMS:
        cells = [form]
        for scores in precisions.values():
            low, high, mean = (np.mean(scores[key]) for key in ("alone", "exact", form))
            spread = f" ± {np.std(scores[form]):.3f}" if len(scores[form]) > 1 else ""
            cells += [f"{mean:.3f}{spread}", f"{(mean - low) / (high - low):.2f}" if high > low else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all steps from tables to predictions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--payments", type=int, default=20_000)
    parser.add_argument("--accounts", type=int, default=3_000)
    parser.add_argument("--banks", type=int, default=3)
    parser.add_argument("--fraud", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--match", default="routed", choices=("routed", "ids"))
    parser.add_argument(
        "--epsilon", type=float, default=0.0, help="train on single payments without privacy and at this ε"
    )
    parser.add_argument(
        "--scale", action="store_true", help="one import, link, epoch and scoring, with time and memory"
    )
    args = parser.parse_args()
    if args.epsilon:
        return protected(args)
    precisions: dict[str, dict[str, list[float]]] = {name: {form: [] for form in FORMS} for name in METHODS}
    for seed in range(1 if args.scale else args.seeds):
        place = f"{args.folder}/{seed}"
        banks = make(Path(place), args.payments, args.accounts, args.banks, args.fraud, seed)
        bring(place, banks, args.scale)
        if args.scale:
            graph = link(place, banks, "exact", args.match, apart=True)
            print(f"average precision {score(graph, f'{place}/run', [*LARGE, 'rounds=1'], seed, apart=True):.3f}")
            return
        for form, protection in FORMS.items():
            graph = link(place, banks, protection, args.match)
            for name, words in METHODS.items():
                rounds = [f"rounds={args.rounds}"] if name == "FedAvg" else []
                ap = score(graph, f"{graph}_{name}", [*words, *rounds], seed)
                precisions[name][form].append(ap)
        go("predict", f"{place}/exact_FedAvg", "--client", 0, "--out", f"{place}/predictions.csv")
    print(table(precisions))


if __name__ == "__main__":
    main()
