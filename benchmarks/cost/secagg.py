"""Cost of secure aggregation: bytes, seconds and exchanges per round, with and without it.

    python -m benchmarks.cost secagg [rounds=3] [--clients 3 10 100] [--methods fedavg fedomd fedhero fedhgn]
    python -m benchmarks.cost secagg --verified [--fleet] [--write] [rounds=4] [--clients 3 5 10 32] [--methods fedavg boosting]

All clients and the server run in one process, so seconds are their sum; on a fleet clients work in parallel. CPU seconds cover
the whole run including its start, and do not depend on other load. FedHGN runs on AIFB, which is downloaded on first use; the
other methods run on generated graphs.

``--verified`` compares rounds that every node computes (``privacy.coordinator=verified``) with those of a server that follows the
protocol, both under an agreement: FedAvg, GCN of 64, graphs of Cora's size, and trees of banks' payments. Members are nodes with
keys, state folders and audit logs, in this process; each message passes through protobuf both ways. CPU and wall seconds are of a
round between the first and the last, of all nodes and the server, one after another; MB are of the run. ``--fleet`` starts one
on this machine instead, and counts all of its processes. Wall seconds are left out if the machine was
busy before. ``--write`` replaces these rows of ``simulations/results/verified_cost.csv``.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run

CORA, DENSITY = (2708, 1433, 7), 0.0127  # nodes, features, classes; share of features that are 1
RESULT = Path(__file__).resolve().parents[2] / "simulations" / "results" / "verified_cost.csv"
AGREED = [
    *("rounds=4", "model.hidden=64", "checkpoint_every=0", "evaluation.select=last"),
    *("privacy.secagg=true", "privacy.scores=none", "strategy.weighting=uniform"),
]
TREES = ["task=edges", "strategy=boosting", "strategy.mode=histogram"]
KINDS: dict[str, tuple[list[str], list[int]]] = {"fedavg": ([], [3, 5, 10, 32]), "boosting": (TREES, [3, 5])}
"""Overrides of ``--verified`` and numbers of members, by method."""

VERIFIED = ["privacy.coordinator=verified", "privacy.max_update=1e6"]
GRAPHS = {"fedhgn": ["dataset=aifb", "partition=random-edges"]}
CSBM = ["dataset=csbm", "dataset.nodes_per_client=[100,200]"]


def measure(method: str, clients: int, secure: str, words: list[str]) -> str:
    """Return the cost of a run, or the error message that refuses it."""
    chosen = [f"strategy={method}", *GRAPHS.get(method, CSBM), f"num_clients={clients}", "rounds=3", *words]
    with tempfile.TemporaryDirectory() as out:
        start = time.process_time()
        try:
            summary = run(compose([*chosen, f"privacy.secagg={secure}", f"out={out}", "checkpoint_every=0"]))
        except FedGraphError as error:
            return str(error)
    used = (time.process_time() - start) / summary["rounds"]
    up, down = (summary[key] / clients / summary["rounds"] / 1e3 for key in ("bytes_up", "bytes_down"))
    return (
        f"{up:8.1f} kB up, {down:8.1f} kB down a client and round; {summary['seconds_per_round']:6.2f} s a round,"
        f" {used:6.2f} s CPU; {summary['exchanges_per_round']:g} exchanges"
    )


def agreed_graphs(folder: Path, clients: int, words: Sequence[str]) -> list[str]:
    """Write the graphs of members, and return the overrides of their runs."""
    import torch

    from fedgraph_flwr.cli.app import main as command
    from tests.conftest import client_graph

    (folder / "policy.yaml").write_text("min_nodes: 0\ntasks: [nodes, edges]\n")
    if [*words[:1]] == TREES[:1]:
        banks = ["dataset=payments", f"num_clients={clients}", *TREES[:1], "--out", str(folder / "graphs")]
        with contextlib.redirect_stdout(io.StringIO()):
            command(["partition", *banks])
    else:
        for client in range(clients):
            graph = client_graph(client, *CORA)
            drawn = torch.rand(graph.x.shape, generator=torch.Generator().manual_seed(client))
            graph.x = (drawn < DENSITY).float()
            graph.node_id = torch.arange(CORA[0]) + CORA[0] * client
            graph.num_clients, graph.num_global_nodes = clients, CORA[0] * clients
            graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
    return [*AGREED, *words, f"num_clients={clients}"]


def agreed_round(clients: int, words: Sequence[str]) -> dict[str, Any]:
    """Return CPU and wall seconds of a round of an agreed run after the first, and MB of the run, both ways."""
    import pytest

    from fedgraph_flwr.engine.grid import get_reply
    from fedgraph_flwr.engine.inline import InlineGrid
    from fedgraph_flwr.fleet.keys import make_node
    from tests.nodes import agreed, over_the_wire

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, began = Path(name), dict[int, tuple[float, float]]()
        (folder / "keys").mkdir()
        for client in range(clients):
            make_node(folder / "keys" / f"node_{client}")
        given = [*agreed_graphs(folder, clients, words), f"graph={folder / 'graphs'}"]
        digest = agreed(folder / "agreement.yaml", compose(given), folder / "keys")

        def call(self: Any, message: Any) -> Any:
            node = message.metadata.dst_node_id
            files = {"graph": f"graphs/client_{node - 1:04d}.safetensors", "state": f"state_{node - 1}"}
            files |= {"key": f"keys/node_{node - 1}", "policy": "policy.yaml", "agreement": "agreement.yaml"}
            files |= {"peers": "keys"}
            self.contexts[node].node_config = {key: str(folder / file) for key, file in files.items()}
            config = message.content["config"]
            if config["phase"] == "secagg_keys" and config["round"]:
                began.setdefault(config["round"], (time.process_time(), time.perf_counter()))
            return over_the_wire(get_reply(self.app, over_the_wire(message), self.contexts[node]))

        patch.setattr(InlineGrid, "_call", call)
        summary = run(compose([*given, f"agreement={digest}/1", f"out={folder / 'out'}"]))
    used = [(last - first) / (len(began) - 1) for first, last in zip(began[min(began)], began[max(began)], strict=True)]
    return {"cpu": used[0], "wall": used[1], "up": summary["bytes_up"] / 1e6, "down": summary["bytes_down"] / 1e6}


def fleet_round(clients: int, words: Sequence[str]) -> dict[str, Any]:
    """Return the same of a fleet on this machine: of all processes of the nodes and of the server."""
    from benchmarks.cost.fleet import processor_seconds
    from fedgraph_flwr.cli.app import main as command
    from tests.engine.fleet import COMMAND, NAME, Fleet

    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), dict[int, tuple[float, float]]()
        given = agreed_graphs(folder, clients, words)
        fleet, agreement = Fleet(folder, folder / "graphs"), str(folder / "agreement.yaml")
        named = [word for i in range(clients) for word in ("--member", f"bank_{i}={fleet.keys / f'node_{i}.pub'}")]
        about = ["--name", "cost", "--purpose", "a benchmark", "--until", "2099-01-01", "--out", agreement]
        with contextlib.redirect_stdout(io.StringIO()):
            command(["agree", "new", *given, f"engine={NAME}", *named, *about])
            for client in range(clients):
                command(["agree", "sign", agreement, "--key", str(fleet.keys / f"node_{client}")])
        try:
            fleet.start_superlink()
            fleet.register(*range(clients))
            for client in range(clients):
                fleet.start_node(client, agreement=agreement, policy=str(folder / "policy.yaml"))
            begin = [*COMMAND, "run", "--quiet", "--no-report", "--agreement", agreement, f"engine={NAME}"]
            process, rounds = (
                fleet._spawn("run-out", [*begin, f"out={folder / 'out'}"]),
                folder / "out" / "rounds.jsonl",
            )
            while process.poll() is None:
                done = rounds.read_text().count("\n") if rounds.is_file() else 0
                if done and done not in began:
                    began[done] = sum(processor_seconds(fleet).values()), time.perf_counter()
                time.sleep(0.05)
            if process.returncode:
                raise SystemExit(fleet.log("run-out"))
        finally:
            fleet.stop()
        summary = json.loads((folder / "out" / "summary.json").read_text())
    spans = [(b - a) / (max(began) - min(began)) for a, b in zip(began[min(began)], began[max(began)], strict=True)]
    return {"cpu": spans[0], "wall": spans[1], "up": summary["bytes_up"] / 1e6, "down": summary["bytes_down"] / 1e6}


def compare(clients: int, words: Sequence[str], on_fleet: bool) -> dict[str, Any]:
    """Return a row: costs of both coordinators, and their ratio."""
    measured = fleet_round if on_fleet else agreed_round
    busy = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    curious, verified = measured(clients, words), measured(clients, [*words, *VERIFIED])
    row: dict[str, Any] = {"members": str(clients), "engine": "fleet" if on_fleet else "inline"}
    for name, cost in (("curious", curious), ("verified", verified)):
        row |= {f"{name}_cpu_seconds": f"{cost['cpu']:.2f}", f"{name}_seconds": "" if busy else f"{cost['wall']:.2f}"}
        row |= {f"{name}_mb_{way}": f"{cost[way]:.1f}" for way in ("up", "down")}
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return {
        **row,
        "ratio": f"{verified['cpu'] / curious['cpu']:.2f}",
        "words": " ".join(words),
        "commit": commit.stdout.strip(),
    }


def measure_verified(
    methods: Sequence[str], clients: Sequence[int], words: Sequence[str], write: bool, on_fleet: bool
) -> None:
    """Print a row per method and number of members, and store them."""
    rows = [dict(row) for row in csv.DictReader(RESULT.open())] if RESULT.is_file() else []
    for overrides, members in (KINDS[method] for method in methods):
        for count in clients or members:
            row = compare(count, [*overrides, *words], on_fleet)
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            place = ("members", "engine", "words")
            rows = [old for old in rows if [old[key] for key in place] != [row[key] for key in place]] + [row]
    if write:
        with RESULT.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda row: (row["words"], row["engine"], int(row["members"]))))


def main() -> None:
    """Print one line per method and number of clients, or per number of members."""
    parser = argparse.ArgumentParser(description="Cost of secure aggregation.")
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--verified", action="store_true")
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    if args.verified:
        return measure_verified(args.methods or [*KINDS], args.clients, args.words, args.write, args.fleet)
    for clients in args.clients or [3, 10, 100]:
        for method in args.methods or ["fedavg", "fedomd", "fedhero", "fedhgn"]:
            for secure in ("false", "true"):
                cost = measure(method, clients, secure, args.words)
                print(f"{method:8} {clients:4} clients  secagg={secure:5}  {cost}", flush=True)


if __name__ == "__main__":
    main()
