"""Cost of FedOMD compared with FedAvg on the same layers: ``python -m benchmarks.cost fedomd_overhead [key=value ...]``.

All variants run alternately in this process under the paper's protocol. For each the command prints: CPU milliseconds per round
of server and clients together (median over rounds, best turn), the ratio to FedAvg, exchanges per round, and floats that a
client sends per round.
"""

import statistics
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from typing import Any

from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run

VARIANTS = {
    "FedAvg, plain stack": ["strategy=fedavg", "model=fedomd", "model.ortho=false"],
    "FedOMD, CMD off": ["strategy=fedomd", "strategy.cmd=false"],
    "FedOMD, ortho off": ["strategy=fedomd", "model.ortho=false"],
    "FedOMD": ["strategy=fedomd"],
    "FedOMD, two-phase": ["strategy=fedomd", "strategy.exchange=two_phase"],
}
TURNS = 3


def _stamp(stamps: list[float], record: dict[str, Any]) -> None:
    stamps.append(time.process_time())


def main(words: list[str]) -> None:
    """Run the variants and print the table."""
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    rows: dict[str, tuple[float, float]] = {}
    for _ in range(TURNS):
        for name, overrides in VARIANTS.items():
            with tempfile.TemporaryDirectory() as out:
                common = ["protocol=fedomd", "rounds=60", "evaluation.patience=0"]
                cfg = compose([*common, *overrides, *words, f"out={out}"])
                stamps: list[float] = []
                summary = run(cfg, partial(_stamp, stamps))
            seconds[name].append(statistics.median(b - a for a, b in pairwise(stamps)))
            rows[name] = summary["exchanges_per_round"], summary["bytes_up"] / summary["rounds"] / cfg.num_clients / 4
    base = min(seconds["FedAvg, plain stack"])
    print(f"{'':22}{'CPU ms':>12}{'ratio':>8}{'exchanges':>11}{'floats up a client':>20}")
    for name, values in seconds.items():
        best = min(values)
        print(f"{name:22}{1e3 * best:12.1f}{best / base:8.2f}{rows[name][0]:11.0f}{rows[name][1]:20.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
