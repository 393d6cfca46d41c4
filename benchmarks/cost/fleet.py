"""Seconds per round on a local fleet, and cost of its processes: `fedgraph-flwr node` compared with unpatched Flower.

    python -m benchmarks.cost fleet [rounds=8]

The fleet has a server with a database, TLS and node keys, and three nodes. The same run is measured first with `--plain` (a new
Python process per message, Flower's sleeps), then without. The graphs are tiny, so a round costs what its exchanges cost. The
script reports if the two runs end with different parameters. CPU seconds count only rounds after the first one.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

CASES = {"unpatched Flower (--plain)": "1", "fedgraph-flwr node": "0"}


def main() -> None:
    """Print a table with one line per case."""
    from fedgraph_flwr.config import compose
    from tests.conftest import client_graph
    from tests.engine.fleet import Fleet
    from tests.support import wait_for

    words, models = ["rounds=8", *sys.argv[1:]], list[dict[str, np.ndarray]]()
    compose(words)  # a wrong argument is an error before a fleet starts
    print(f"{'':28} s a round (median)   CPU s a round: nodes, server   MB of a node: SuperNode, executor")
    for what, plain in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for client in range(3):
                client_graph(client).save(folder / "graphs" / f"client_{client:04d}.safetensors")
            fleet = Fleet(folder, folder / "graphs")
            fleet.environment["FEDGRAPH_PLAIN"] = plain
            del fleet.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
            try:
                fleet.start()
                rounds = folder / "run" / "rounds.jsonl"
                process = fleet.begin(folder / "run", *words)
                started = lambda: process.poll() is not None or (rounds.is_file() and bool(rounds.read_text()))  # noqa: B023, E731
                wait_for(started, "round 1")
                if process.poll():
                    raise SystemExit(fleet.log("run-run"))
                before, first = processor_seconds(fleet), _records(rounds)
                while process.poll() is None:
                    after, last = processor_seconds(fleet), _records(rounds)
                    time.sleep(0.5)
                if process.returncode:
                    raise SystemExit(fleet.log("run-run"))
                models.append(_model(folder / "run"))
                memory = _memory(fleet)
            finally:
                fleet.stop()
        seconds = np.median([record["seconds"] for record in last[1:]])
        cost = [(after[part] - before[part]) / max(len(last) - len(first), 1) for part in ("nodes", "server")]
        print(f"{what:28} {seconds:17.2f}   {cost[0]:20.2f}, {cost[1]:6.2f}   {memory:>30}", flush=True)
    same = all(np.array_equal(models[0][key], models[1][key]) for key in models[0])
    print("the same parameters, bit for bit" if same else "OTHER PARAMETERS")


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _model(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    tensors: dict[str, np.ndarray] = load_file(folder / "model_final.safetensors")
    return tensors


def _family(fleet: Any, name: str) -> list[psutil.Process]:
    process = psutil.Process(fleet.processes[name].pid)
    return [process, *process.children(recursive=True)]


def processor_seconds(fleet: Any) -> dict[str, float]:
    """Return the CPU seconds so far of all nodes, and of the server, including finished child processes."""
    cost = {"nodes": 0.0, "server": 0.0}
    for name in fleet.processes:
        part = "nodes" if name.startswith("node") else "server" if name == "superlink" else ""
        for process in _family(fleet, name) if part else []:
            try:
                cost[part] += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
    return cost


def _memory(fleet: Any) -> str:
    """Return the resident megabytes of node 0's processes, without the command itself."""
    sizes = [process.memory_info().rss >> 20 for process in _family(fleet, "node_0")[1:]]
    return ", ".join(map(str, sizes))


if __name__ == "__main__":
    main()
