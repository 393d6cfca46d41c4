"""What secure aggregation costs: bytes, seconds and exchanges a round, with and without it.

    python benchmarks/secagg.py [rounds=3] [--clients 3 10 100]

All clients and the server take turns in one process; on a fleet clients work side by side. Shamir's shares are made and
combined in Python, n^2 / 3 products of 128 bits each for two secrets a client, and for one of each client on the server.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedgraph_flwr.config import compose
from fedgraph_flwr.runner import run

METHODS = ("fedavg", "fedhero")


def measure(words: list[str]) -> dict[str, Any]:
    """The summary of a run."""
    with tempfile.TemporaryDirectory() as out:
        return run(compose([*words, f"out={out}", "checkpoint_every=0"]))


def main() -> None:
    """Print a line for each method and number of clients."""
    parser = argparse.ArgumentParser(description="Cost of secure aggregation.")
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    for clients in args.clients:
        for method in METHODS:
            words = ["dataset=csbm", "dataset.nodes_per_client=[100,200]", f"num_clients={clients}", "rounds=3"]
            words += [f"strategy={method}", *args.words]
            for secure in ("false", "true"):
                found = measure([*words, f"privacy.secagg={secure}"])
                up, down = (found[key] / clients / found["rounds"] / 1e3 for key in ("bytes_up", "bytes_down"))
                print(
                    f"{method:8} {clients:4} clients  secagg={secure:5}  {up:8.1f} kB up, {down:8.1f} kB down a client and "
                    f"round, {found['seconds_per_round']:7.2f} s a round, {found['exchanges_per_round']:g} exchanges",
                    flush=True,
                )


if __name__ == "__main__":
    main()
