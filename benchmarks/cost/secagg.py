"""Cost of secure aggregation: bytes, seconds and exchanges per round, with and without it.

    python -m benchmarks.cost secagg [rounds=3] [--clients 3 10 100] [--methods fedavg fedomd fedhero fedhgn]

All clients and the server run in one process, so seconds are their sum; on a fleet clients work in parallel. CPU seconds cover
the whole run including its start, and do not depend on other load. FedHGN runs on AIFB, which is downloaded on first use; the
other methods run on generated graphs.
"""

import argparse
import tempfile
import time

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run

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


def main() -> None:
    """Print one line per method and number of clients."""
    parser = argparse.ArgumentParser(description="Cost of secure aggregation.")
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedomd", "fedhero", "fedhgn"])
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    for clients in args.clients:
        for method in args.methods:
            for secure in ("false", "true"):
                cost = measure(method, clients, secure, args.words)
                print(f"{method:8} {clients:4} clients  secagg={secure:5}  {cost}", flush=True)


if __name__ == "__main__":
    main()
