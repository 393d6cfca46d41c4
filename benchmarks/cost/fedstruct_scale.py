"""FedStruct-B on a large graph: ``python -m benchmarks.cost fedstruct_scale [--full] [key=value ...]``.

A CSBM graph of 90,000 nodes and 900,000 directed edges is split at random over 30 clients, so that nearly every edge is cut;
L_s = 10, p = 30 entries per row. With ``--full`` a graph of PubMed's size with Table 4's model, L_s = 20 and 10 clients:
nothing is pruned and rows become dense. The command acquires Ā and trains three rounds of Hop2Vec in this process. It prints
seconds and bytes per phase, and the largest resident memory.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from fedgraph_flwr import partition
from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run

WORDS = [
    "strategy=fedstruct",
    "strategy.prune=30",
    "model.structure_hops=10",
    "dataset=csbm",
    "dataset.clients=30",
    "dataset.nodes=90000",
    "dataset.degree=10",
    "partition=random",
    "num_clients=30",
    "rounds=3",
    "train.local_steps=1",
]
FULL = [
    "strategy.prune=0",
    "dataset.clients=1",
    "dataset.nodes=19717",
    "dataset.degree=4.5",
    "dataset.features=500",
    "dataset.classes=3",
    "num_clients=10",
    "split={kind: ratio, scope: global, train: 0.1, val: 0.1, test: 0.8}",
    "model.hidden=128",
    "model.structure_hops=20",
    "model.structure_layers=[128]",
]


def main(words: list[str]) -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as out:
        cfg = compose(
            [*WORDS, *(FULL if "--full" in words else []), *(word for word in words if word != "--full"), f"out={out}"]
        )
        began = time.perf_counter()
        folder = partition.client_files(cfg)
        size = sum(file.stat().st_size for file in folder.glob("client_*"))
        print(
            f"data: {time.perf_counter() - began:.1f} s, {size / 1e6:.0f} MB of client files, {_peak():.2f} GB resident"
        )
        summary = run(cfg)
        record = (Path(out) / "rounds.jsonl").read_text().splitlines()
    print(f"{'phase':12}{'exchanges':>10}{'MB down':>10}{'MB up':>10}")
    for name, entry in summary["bytes_by_phase"].items():
        print(f"{name:12}{entry['exchanges']:10}{entry['bytes_down'] / 1e6:10.1f}{entry['bytes_up'] / 1e6:10.1f}")
    print(
        f"set-up {summary['setup_seconds']:.1f} s, a round {summary['seconds_per_round']:.1f} s, {len(record)} rounds"
    )
    print(f"largest resident memory {_peak():.2f} GB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main(sys.argv[1:])
