"""Train on three banks: create tables, import with one schema, compare three methods, predict new customers, export.

    python examples/banks/banks.py work            # in this process
    python examples/banks/banks.py work --fleet    # on a SuperLink and three SuperNodes, each with its own bank's file

Each command is printed before it runs.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import make_tables
import pandas as pd

from fedgraph_flwr import cli
from fedgraph_flwr.fleet.processes import end_group, free_port

METHODS = ("local", "fedavg", "ditto")
SCORES = ("accuracy", "majority", "balanced_accuracy", "auc", "average_precision", "f1_at_threshold")
NAME = "banks"


def go(*words: object) -> None:
    """Print and run one command."""
    args = [str(word) for word in words]
    print(f"\n$ fedgraph-flwr {shlex.join(args)}", flush=True)
    if code := cli.main(args):
        sys.exit(code)


def tables(folder: Path, customers: int) -> None:
    """Write the tables of three banks, and those of new customers of bank a without labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for letter in make_tables.OWN_TRADE:
        people, payments = make_tables.bank(letter, customers, seed=0)
        people.to_csv(folder / f"{letter}_customers.csv", index=False)
        payments.to_csv(folder / f"{letter}_payments.csv", index=False)
    people, payments = make_tables.bank("a", customers // 2, seed=1)
    people[["id", "label"]].to_csv(folder / "new_truth.csv", index=False)
    people.drop(columns=["label", "part"]).to_csv(folder / "new_customers.csv", index=False)
    payments.to_csv(folder / "new_payments.csv", index=False)


def imports() -> None:
    """Write sums of each bank's columns, merge them into the schema, and import each bank's tables with it."""
    for letter in make_tables.OWN_TRADE:
        words = ["import", "--nodes", f"tables/{letter}_customers.csv", "--edges", f"tables/{letter}_payments.csv"]
        words += ["columns.split=part", "--classes", "ok,fraud", "scales.income=log", "scales.balance=log"]
        words += ["kinds.branch=ignored"] if letter == "c" else []
        go(*words, "--statistics", f"{letter}.json")
    go("schema", "merge", "a.json", "b.json", "c.json", "--out", "schema.yaml")
    for number, letter in enumerate(make_tables.OWN_TRADE):
        words = ["import", "--nodes", f"tables/{letter}_customers.csv", "--edges", f"tables/{letter}_payments.csv"]
        words += ["--undirected", "columns.split=part", "--schema", "schema.yaml", "--client", str(number)]
        go(*words, "--num-clients", 3, "--out", f"parts/client_{number:04d}.safetensors")


def train(methods: list[str], rounds: int, *where: str) -> str:
    """Train each method, and return the one with the best validation score."""
    rows = {}
    for method in methods:
        words = [f"strategy={method}", f"rounds={rounds}", "train.loss=weighted", "evaluation.metric=average_precision"]
        go("run", *words, *where, f"out=runs/{method}", "--quiet", "--no-report")
        at = json.loads(Path(f"runs/{method}/summary.json").read_text())["metrics"]["best_val"]
        rows[method] = {"validation": at["val_average_precision"], **{name: at[f"test_{name}"] for name in SCORES}}
    table = pd.DataFrame.from_dict(rows, orient="index")
    print(f"\n{table.round(3).to_string()}")
    return str(table["validation"].idxmax())


def look_at(predictions: str) -> None:
    """Compare the predictions with the true labels."""
    customers = pd.read_csv(predictions).merge(pd.read_csv("tables/new_truth.csv"), on="id")
    print(f"\n{customers.sort_values('p_fraud', ascending=False).head(5).round(3).to_string(index=False)}")
    named, real = customers["class"] == "fraud", customers["label"] == "fraud"
    print(
        f"\n{len(customers)} new customers: {named.sum()} predicted as fraud, "
        f"{(named & real).sum()} of the {real.sum()} fraudulent ones",
        flush=True,
    )


@contextlib.contextmanager
def fleet(folder: Path, *options: str) -> Iterator[None]:
    """Run a fleet's server and three nodes on loopback; each node has one bank's file and a state folder, and these options."""
    address, running = f"127.0.0.1:{free_port()}", list[subprocess.Popen[bytes]]()
    os.environ |= {"FLWR_HOME": str(folder / "flwr-home"), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}

    def start(name: str, *words: str) -> None:
        print(f"\n$ fedgraph-flwr {shlex.join(words)} &", flush=True)
        with (folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "fedgraph_flwr", *words]
            running.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True))

    go("fleet", "init", "keys", "--nodes", "3", "--listen", address)
    try:
        start("server", "server", "keys", "--name", NAME)
        wait_for_line(folder / "server.log", "ready on", running[0])
        for node in range(3):
            graph = f"parts/client_{node:04d}.safetensors"
            words = [
                "--server",
                address,
                "--key",
                f"keys/node_{node}",
                "--graph",
                graph,
                "--state",
                f"state_{node}",
                *options,
            ]
            start(f"node_{node}", "node", *words)
        yield
    finally:
        for process in reversed(running):
            end_group(process)


def wait_for_line(path: Path, text: str, process: subprocess.Popen[bytes], seconds: float = 240.0) -> None:
    """Wait until a process prints a text."""
    deadline = time.monotonic() + seconds
    while text not in path.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{path} does not contain '{text}'")
        time.sleep(0.2)


def main() -> None:
    """Run all steps from tables to predictions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--customers", type=int, default=600, help="customers per bank (default: 600)")
    parser.add_argument("--rounds", type=int, default=40, help="number of rounds (default: 40)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help=f"methods (default: {' '.join(METHODS)})")
    parser.add_argument("--fleet", action="store_true", help="run on a SuperLink and three SuperNodes")
    args = parser.parse_args()
    folder = args.folder.absolute()
    tables(folder / "tables", args.customers)
    os.chdir(folder)
    imports()
    new = ["--nodes", "tables/new_customers.csv", "--edges", "tables/new_payments.csv"]
    if args.fleet:
        with fleet(folder):
            best = train(args.methods, args.rounds, f"engine={NAME}", "num_clients=3")
        # The server and the other banks have stopped. Bank a has its model of the last run.
        go("predict", "state_0", *new, "--out", "predictions.csv")
        look_at("predictions.csv")
        go("export", "state_0", "--out", "exported")
    else:
        best = train(args.methods, args.rounds, "graph=parts")
        go("predict", f"runs/{best}", "--client", 0, *new, "--out", "predictions.csv")
        look_at("predictions.csv")
        go("export", f"runs/{best}", "--client", 0, "--out", "exported")
    go("predict", "exported", *new, "--out", "again.csv")
    both = [pd.read_csv(name)["p_fraud"] for name in ("predictions.csv", "again.csv")]
    print(f"\nthe exported network differs by at most {(both[0] - both[1]).abs().max():.1e}")


if __name__ == "__main__":
    main()
