"""Seconds of a training round on one CPU core and on a GPU, and the GPU's memory.

    python -m benchmarks.cost devices [--size 1] [key=value ...]

Prints the median of rounds 2 to 4, and the ratio. Without a GPU it prints the CPU's column alone. ``--size`` scales the numbers
of nodes and payments.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from typing import Any

import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline

SAMPLED = ["train.sampler=neighbors", "train.batch_size=1024", "train.local_steps=10"]


def cases(size: float) -> dict[str, list[str]]:
    """Return the overrides of each case."""
    nodes = int(50_000 * size)
    graph = ["dataset=csbm", "partition=planted", "num_clients=4", f"dataset.nodes_per_client=[{nodes},{nodes + 1}]"]
    graph += ["dataset.features=64", "dataset.degree=10", "model.hidden=128"]
    payments = ["task=edges", "dataset=payments", "partition=planted", "num_clients=1", "dataset.banks=1"]
    payments += [f"dataset.accounts={int(40_000 * size)}", f"dataset.background={int(400_000 * size)}"]
    payments += ["model=multi_gine", "model.hidden=64"]
    return {
        f"FedAvg, GCN, 4 x {nodes:,} nodes": graph,
        "FedOMD, the same": [*graph, "strategy=fedomd"],
        "GraphSAGE, sampled, the same": [*graph, "model=sage", *SAMPLED, "train.fanout=[10,10]"],
        f"multi_gine, {int(400_000 * size):,} payments": payments,
        "multi_gine, sampled, the same": [*payments, *SAMPLED, "train.batch_size=4096", "train.fanout=[8,4]"],
    }


def seconds(overrides: list[str], device: str) -> float:
    """Return the median seconds of a round."""
    ends: list[float] = []

    def ended(*_: Any) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        words = [
            "rounds=5",
            "evaluation.every=5",
            "checkpoint_every=0",
            "threads=1",
            f"device={device}",
            f"out={folder}/run",
        ]
        run_inline(with_folder(compose([*overrides, *words])), ended)
    return statistics.median(after - before for before, after in itertools.pairwise(ends[:4]))


def main() -> None:
    """Print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0)
    options, overrides = parser.parse_known_args()
    gpu = torch.cuda.is_available()
    for name, words in cases(options.size).items():
        line = f"{name:40} CPU {(cpu := seconds([*words, *overrides], 'cpu')):8.3f} s"
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            took = seconds([*words, *overrides], "cuda")
            line += f"   GPU {took:8.3f} s   {cpu / took:5.1f} x   {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        print(line, flush=True)


if __name__ == "__main__":
    main()
