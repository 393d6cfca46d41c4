"""Cost of a whole round compared with a bare PyG loop of only its local steps, and start and scaling of runs.

    python -m benchmarks.cost round                     # the ratio and the start, on Cora with 10 Louvain clients
    python -m benchmarks.cost round --scale             # also 100 and 1000 clients on CSBM, on every engine that simulates

The ratio compares medians within one process: rounds of the in-process engine (3 local steps of 10 clients, scoring, messages,
aggregation, records), alternating with the same local steps in a loop over PyG's ``GCNConv``. The start is the time from
launching ``fedgraph-flwr run`` to its first finished round, with an existing partition.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.cost.gcn_step import bare_loop
from fedgraph_flwr import partition
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.launch.runner import run

ROOT = Path(__file__).parents[2]
CORA = ["dataset=cora", "num_clients=10", "split.train=0.2", "split.val=0.4", "split.test=0.4"]


def ratio(words: list[str], blocks: int = 7, rounds: int = 12) -> tuple[float, float]:
    """Return median seconds of our round and of the bare loop's local steps, alternating ``rounds`` rounds and five loops."""
    torch.set_num_threads(1)
    words = [*words, f"rounds={rounds}"]
    cfg = compose(words)
    loops = [bare_loop(cfg, partition.load_client(cfg, i)) for i in range(partition.num_clients(cfg))]
    ours, bare = [], []
    for _ in range(blocks):
        with tempfile.TemporaryDirectory() as out:
            summary = run(compose([*words, f"out={out}"]))
        ours.append(summary["seconds_per_round"])
        for _ in range(5):
            started = time.perf_counter()
            for train in loops:
                train()
            bare.append(time.perf_counter() - started)
    return statistics.median(ours), statistics.median(bare)


def start(words: list[str]) -> float:
    """Return the seconds from launching the command to its first finished round."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-m",
            "fedgraph_flwr",
            "run",
            *words,
            "rounds=3",
            f"out={out}",
            "--quiet",
            "--no-report",
        ]
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while not (Path(out) / "rounds.jsonl").exists() and process.poll() is None:
            time.sleep(0.005)
        seconds = time.perf_counter() - started
        process.wait()
    return seconds


def scale(clients: int, engine: str) -> dict[str, Any]:
    """Return the summary of a short run of many clients in a separate process, and the megabytes of all its processes."""
    words = [
        "dataset=csbm",
        "dataset.nodes_per_client=[100,200]",
        f"num_clients={clients}",
        "rounds=5",
        f"engine={engine}",
    ]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fedgraph_flwr", "run", *words, f"out={out}", "--quiet", "--no-report"]
        started = time.perf_counter()
        process, held, begun = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL), 0, 0.0
        while process.poll() is None:
            if not begun and (Path(out) / "rounds.jsonl").exists():
                begun = time.perf_counter() - started
            held = max(held, held_by(process.pid))
            time.sleep(0.2)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
        summary: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return summary | {"megabytes": held / 2**20, "start": begun}


def held_by(pid: int) -> int:
    """Return the memory of a process and its descendants in bytes, counting shared pages once."""
    held = 0
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(pid)
        for member in [family, *family.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                held += member.memory_full_info().pss
    return held


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description="Cost of a round, of the start, and of many clients.")
    parser.add_argument("--scale", action="store_true")
    args = parser.parse_args()
    ours, bare = ratio(CORA)
    print(
        f"Cora, 10 clients: our round {1e3 * ours:.1f} ms, bare local steps {1e3 * bare:.1f} ms, ratio {ours / bare:.2f}"
    )
    begun = [start(CORA) for _ in range(3)]
    print(f"start to first round: {statistics.median(begun):.1f} s")
    if args.scale:
        for clients in (100, 1000):
            for engine in SIMULATIONS:
                costs = scale(clients, engine)
                print(
                    f"CSBM, {clients} clients, {engine}: {costs['seconds_per_round']:.2f} s a round, "
                    f"{costs['start']:.1f} s to the second round, {costs['megabytes']:.0f} MB in all processes",
                    flush=True,
                )


if __name__ == "__main__":
    main()
