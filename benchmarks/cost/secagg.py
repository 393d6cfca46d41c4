"""Cost of secure aggregation: bytes, seconds and exchanges per round, with and without it.

    python -m benchmarks.cost secagg [rounds=3] [--clients 3 10 100] [--methods fedavg fedomd fedhero fedhgn]
    python -m benchmarks.cost secagg --verified [--write] [rounds=4] [--clients 3 5 10 32] [--methods fedavg boosting]

All clients and the server run in one process, so seconds are their sum; on a fleet clients work in parallel. CPU seconds cover
the whole run including its start, and do not depend on other load. FedHGN runs on AIFB, which is downloaded on first use; the
other methods run on generated graphs.

``--verified`` compares rounds that every node computes (``privacy.coordinator=verified``) with those of a server that follows the
protocol, both under an agreement: FedAvg, GCN of 64, graphs of Cora's size, and trees of banks' payments. Members are nodes with
keys, state folders and audit logs, in this process; each message passes through protobuf both ways. CPU and wall seconds are of a
round between the first and the last, of all nodes and the server, one after another; MB are of the run. Wall seconds are left out
on a busy machine. ``--write`` replaces these rows of ``simulations/results/verified_cost.csv``.
"""

import argparse
import csv
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
            found = run(compose([*chosen, f"privacy.secagg={secure}", f"out={out}", "checkpoint_every=0"]))
        except FedGraphError as error:
            return str(error)
    used = (time.process_time() - start) / found["rounds"]
    up, down = (found[key] / clients / found["rounds"] / 1e3 for key in ("bytes_up", "bytes_down"))
    return (
        f"{up:8.1f} kB up, {down:8.1f} kB down a client and round; {found['seconds_per_round']:6.2f} s a round,"
        f" {used:6.2f} s CPU; {found['exchanges_per_round']:g} exchanges"
    )


def agreed_round(clients: int, words: Sequence[str]) -> dict[str, Any]:
    """Return CPU and wall seconds of a round of an agreed run after the first, and MB of the run, both ways."""
    import pytest
    import torch

    from fedgraph_flwr.cli.app import main as command
    from fedgraph_flwr.engine.grid import get_reply
    from fedgraph_flwr.engine.inline import InlineGrid
    from fedgraph_flwr.fleet.keys import make_node
    from tests.conftest import client_graph
    from tests.nodes import agreed, over_the_wire

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, began = Path(name), dict[int, tuple[float, float]]()
        (folder / "keys").mkdir()
        (folder / "policy.yaml").write_text("min_nodes: 0\ntasks: [nodes, edges]\n")
        for client in range(clients):
            make_node(folder / "keys" / f"node_{client}")
        trees = [*words[:1]] == TREES[:1]
        if trees:
            banks = ["dataset=payments", f"num_clients={clients}", *TREES[:1], "--out", str(folder / "graphs")]
            command(["partition", *banks])
        for client in () if trees else range(clients):
            graph = client_graph(client, *CORA)
            drawn = torch.rand(graph.x.shape, generator=torch.Generator().manual_seed(client))
            graph.x = (drawn < DENSITY).float()
            graph.node_id = torch.arange(CORA[0]) + CORA[0] * client
            graph.num_clients, graph.num_global_nodes = clients, CORA[0] * clients
            graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
        given = [*AGREED, *words, f"num_clients={clients}", f"graph={folder / 'graphs'}"]
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
        found = run(compose([*given, f"agreement={digest}/1", f"out={folder / 'out'}"]))
    used = [(last - first) / (len(began) - 1) for first, last in zip(began[min(began)], began[max(began)], strict=True)]
    return {"cpu": used[0], "wall": used[1], "up": found["bytes_up"] / 1e6, "down": found["bytes_down"] / 1e6}


def compare(clients: int, words: Sequence[str]) -> dict[str, Any]:
    """Return a row: costs of both coordinators, and their ratio."""
    curious, verified = agreed_round(clients, words), agreed_round(clients, [*words, *VERIFIED])
    row: dict[str, Any] = {"members": str(clients)}
    for name, cost in (("curious", curious), ("verified", verified)):
        wall = "" if os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1) else f"{cost['wall']:.2f}"
        row |= {f"{name}_cpu_seconds": f"{cost['cpu']:.2f}", f"{name}_seconds": wall}
        row |= {f"{name}_mb_{way}": f"{cost[way]:.1f}" for way in ("up", "down")}
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return {
        **row,
        "ratio": f"{verified['cpu'] / curious['cpu']:.2f}",
        "words": " ".join(words),
        "commit": commit.stdout.strip(),
    }


def measure_verified(methods: Sequence[str], clients: Sequence[int], words: Sequence[str], write: bool) -> None:
    """Print a row per method and number of members, and store them."""
    rows = [dict(row) for row in csv.DictReader(RESULT.open())] if RESULT.is_file() else []
    for own, members in (KINDS[method] for method in methods):
        for count in clients or members:
            row = compare(count, [*own, *words])
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            rows = [old for old in rows if (old["members"], old["words"]) != (str(count), row["words"])] + [row]
    if write:
        with RESULT.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda row: (row["words"], int(row["members"]))))


def main() -> None:
    """Print one line per method and number of clients, or per number of members."""
    parser = argparse.ArgumentParser(description="Cost of secure aggregation.")
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--verified", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    if args.verified:
        return measure_verified(args.methods or [*KINDS], args.clients, args.words, args.write)
    for clients in args.clients or [3, 10, 100]:
        for method in args.methods or ["fedavg", "fedomd", "fedhero", "fedhgn"]:
            for secure in ("false", "true"):
                cost = measure(method, clients, secure, args.words)
                print(f"{method:8} {clients:4} clients  secagg={secure:5}  {cost}", flush=True)


if __name__ == "__main__":
    main()
