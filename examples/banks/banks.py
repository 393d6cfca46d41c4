"""Three banks, from tables to predictions: tables, imports by one schema, three methods, comparison, new customers, export.

    python examples/banks/banks.py work            # in this process
    python examples/banks/banks.py work --fleet    # on a SuperLink and three SuperNodes, each with its own bank's file

Each command is printed as it would be typed. Needs a checkout, since the fleet's keys are made by docs/fleet/make_keys.py.
"""

import argparse
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import make_tables
import pandas as pd

from fedgraph_flwr import cli
from fedgraph_flwr.engine.flower import end_group, free_port, tool

ROOT = Path(__file__).parents[2]
METHODS = ("local", "fedavg", "ditto")
SCORES = ("accuracy", "majority", "balanced_accuracy", "auc", "average_precision", "f1_at_threshold")
NAME = "banks"


def go(*words: object) -> None:
    """One command of ours."""
    told = [str(word) for word in words]
    print(f"\n$ fedgraph-flwr {shlex.join(told)}", flush=True)
    if code := cli.main(told):
        sys.exit(code)


def tables(folder: Path, customers: int) -> None:
    """The tables of three banks, and those of new customers of bank a, whose labels nobody knows yet."""
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
    """Each bank tells sums of its columns, one merges them into the schema, each imports its own tables by it."""
    for letter in make_tables.OWN_TRADE:
        words = ["import", "--nodes", f"tables/{letter}_customers.csv", "--edges", f"tables/{letter}_payments.csv"]
        words += ["--split-column", "part", "--classes", "ok,fraud", "--scale", "income=log", "--scale", "balance=log"]
        words += ["--kind", "branch=ignored"] if letter == "c" else []
        go(*words, "--statistics", f"{letter}.json")
    go("schema", "merge", "a.json", "b.json", "c.json", "--schema", "schema.yaml")
    for number, letter in enumerate(make_tables.OWN_TRADE):
        words = ["import", "--nodes", f"tables/{letter}_customers.csv", "--edges", f"tables/{letter}_payments.csv"]
        words += ["--undirected", "--split-column", "part", "--schema", "schema.yaml", "--client", number]
        go(*words, "--num-clients", 3, "--out", f"parts/client_{number:04d}.safetensors")


def train(rounds: int, *where: str) -> str:
    """The three methods; returns the one of the best validation figure."""
    rows = {}
    for method in METHODS:
        words = [f"strategy={method}", f"rounds={rounds}", "train.loss=weighted", "evaluation.metric=average_precision"]
        go("run", *words, *where, f"out=runs/{method}", "--quiet", "--no-report")
        at = json.loads(Path(f"runs/{method}/summary.json").read_text())["metrics"]["best_val"]
        rows[method] = {"validation": at["val_average_precision"], **{name: at[f"test_{name}"] for name in SCORES}}
    table = pd.DataFrame.from_dict(rows, orient="index")
    print(f"\n{table.round(3).to_string()}")
    return str(table["validation"].idxmax())


def look_at(predictions: str) -> None:
    """What the predictions say, and what came out since."""
    found = pd.read_csv(predictions).merge(pd.read_csv("tables/new_truth.csv"), on="id")
    print(f"\n{found.sort_values('p_fraud', ascending=False).head(5).round(3).to_string(index=False)}")
    named, real = found["class"] == "fraud", found["label"] == "fraud"
    print(
        f"\n{len(found)} new customers: {named.sum()} called fraud, {(named & real).sum()} of the {real.sum()} who are",
        flush=True,
    )


@contextlib.contextmanager
def fleet(folder: Path) -> Iterator[None]:
    """A SuperLink with TLS and three SuperNodes with keys, all on loopback; each node has one bank's file and a state folder."""
    port, running = free_port(), list[subprocess.Popen[bytes]]()
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder / "flwr-home"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def start(name: str, *words: str) -> None:
        with (folder / f"{name}.log").open("ab") as log:
            command = [tool(words[0]), *words[1:]]
            running.append(
                subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            )

    keys = folder / "keys"
    script = [sys.executable, str(ROOT / "docs/fleet/make_keys.py"), str(keys), "--nodes", "3"]
    subprocess.run(script, env=environment, check=True, stdout=subprocess.DEVNULL)
    (folder / "flwr-home").mkdir(exist_ok=True)
    lines = ["[superlink]", f'default = "{NAME}"', "", f"[superlink.{NAME}]", f'address = "127.0.0.1:{port}"']
    lines.append(f'root-certificates = "{keys / "ca.crt"}"')
    (folder / "flwr-home/config.toml").write_text("\n".join(lines) + "\n")
    os.environ.update(environment)
    try:
        words = [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--enable-supernode-auth",
            "--ssl-ca-certfile",
            str(keys / "ca.crt"),
        ]
        words += ["--ssl-certfile", str(keys / "server.crt"), "--ssl-keyfile", str(keys / "server.key")]
        start("superlink", "flower-superlink", *words, "--database", str(folder / "superlink.db"))
        wait_for_port(port, running[0])
        for node in range(3):
            register = [tool("flwr"), "supernode", "register", str(keys / f"node_{node}.pub"), NAME]
            subprocess.run(register, env=environment, check=True, stdout=subprocess.DEVNULL)
        for node in range(3):
            told = f'graph="{folder}/parts/client_{node:04d}.safetensors" state="{folder}/state_{node}"'
            words = ["--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--node-config", told]
            words += [
                "--root-certificates",
                str(keys / "ca.crt"),
                "--auth-supernode-private-key",
                str(keys / f"node_{node}"),
            ]
            start(f"node_{node}", "flower-supernode", *words)
        yield
    finally:
        for process in reversed(running):
            end_group(process)


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 240.0) -> None:
    """Until a process on this machine listens."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit("the SuperLink does not answer: see superlink.log")
        time.sleep(0.2)


def main() -> None:
    """From tables to predictions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--customers", type=int, default=600, help="of each bank; default: 600")
    parser.add_argument("--rounds", type=int, default=40, help="default: 40")
    parser.add_argument("--fleet", action="store_true", help="on a SuperLink and three SuperNodes")
    args = parser.parse_args()
    folder = args.folder.absolute()
    tables(folder / "tables", args.customers)
    os.chdir(folder)
    imports()
    new = ["--nodes", "tables/new_customers.csv", "--edges", "tables/new_payments.csv"]
    if args.fleet:
        with fleet(folder):
            best = train(args.rounds, f"engine={NAME}", "num_clients=3")
        # The server and the other banks are gone: bank a has its own model of the last run.
        go("predict", "--node", "state_0", *new, "--out", "predictions.csv")
        look_at("predictions.csv")
        go("export", "--node", "state_0", "--out", "exported")
    else:
        best = train(args.rounds, "graph=parts")
        go("predict", f"runs/{best}", "--client", 0, *new, "--out", "predictions.csv")
        look_at("predictions.csv")
        go("export", f"runs/{best}", "--client", 0, "--out", "exported")
    go("predict", "exported", *new, "--out", "again.csv")
    both = [pd.read_csv(name)["p_fraud"] for name in ("predictions.csv", "again.csv")]
    print(f"\nthe exported network differs by at most {(both[0] - both[1]).abs().max():.1e}")


if __name__ == "__main__":
    main()
