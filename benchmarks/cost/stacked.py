"""Savings by `stack`: CPU seconds of a FedAvg round with unstacked and with stacked clients, alternately.

    python -m benchmarks.cost stacked [--clients 300] [--stack 32] [key=value ...]

The default is CSBM with 100 to 200 nodes per client, in this process, with one thread. Results are medians of CPU seconds over
rounds and blocks, without each run's first round, and its last, which has a separate evaluation.
"""

import argparse
import statistics
import tempfile
import time
from itertools import pairwise

import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run


def rounds(words: list[str]) -> list[float]:
    """Return the CPU seconds of each round except the first, from one record to the next."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        run(compose([*words, f"out={out}"]), on_round=lambda record: ends.append(time.process_time()))
    return [end - begin for begin, end in pairwise(ends[1:-1])]


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(description="CPU seconds of a round with and without stack.")
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--stack", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    csbm = ["dataset=csbm", "dataset.nodes_per_client=[100,200]"]
    words = ["rounds=6", "checkpoint_every=0", f"num_clients={args.clients}", *(args.words or csbm)]
    timings: dict[int, list[float]] = {0: [], args.stack: []}
    for _ in range(args.blocks):
        for stack, seconds in timings.items():
            seconds += rounds([*words, f"stack={stack}"])
    alone, stacked = (statistics.median(seconds) for seconds in timings.values())
    print(f"CPU s per round: {alone:.3f} unstacked, {stacked:.3f} with stack={args.stack}, ratio {stacked / alone:.2f}")


if __name__ == "__main__":
    main()
