"""Seconds per round of FedSPA and FedAvg, in this process: ``python -m benchmarks.cost fedspa_round [key=value ...]``.

The runs use Cora, 10 Louvain clients and the paper's protocol, with one thread. Overrides such as ``dataset=cs`` apply to every
run. The variants run alternately, so that other load affects them equally. For each the command prints the median and minimum
seconds per round, including evaluation, the exchanges per round, and the bytes that a client sends per round. The authors' code
takes 4.07 s per round on a machine of this size.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run

AUTHORS = 4.07  # seconds per round of the authors' code
ROUNDS = 20
TURNS = 3
VARIANTS = {
    "FedAvg, ACM-GCN": ["strategy=fedavg"],
    "FedAvg, same stack": ["strategy=fedavg", "model=fedspa", "model.sfpd=false"],
    "FedSPA": ["strategy=fedspa"],
    "FedSPA, acm": ["strategy=fedspa", "model.profile=acm"],
    "FedSPA, acm_sep": ["strategy=fedspa", "model.profile=acm_sep"],
    "FedSPA, scalar": ["strategy=fedspa", "strategy.fisher_exchange=scalar"],
    "FedSPA, per_node": ["strategy=fedspa", "strategy.fisher=per_node"],
}


def main(words: list[str]) -> None:
    """Run the variants and print the table."""
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    sent: dict[str, tuple[float, float]] = {}
    for _ in range(TURNS):
        for name, overrides in VARIANTS.items():
            with tempfile.TemporaryDirectory() as out:
                cfg = compose(["protocol=fedspa", f"rounds={ROUNDS}", *overrides, *words, f"out={out}"])
                summary = run(cfg)
                rounds = [json.loads(line) for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]
            seconds[name] += [r["seconds"] for r in rounds[1:]]
            sent[name] = summary["exchanges_per_round"], summary["bytes_up"] / cfg.rounds / cfg.num_clients
    print(f"{'':20}{'median s':>10}{'least s':>10}{'authors /':>11}{'exchanges':>11}{'bytes up a client':>19}")
    for name, values in seconds.items():
        middle, least = statistics.median(values), min(values)
        print(f"{name:20}{middle:10.3f}{least:10.3f}{AUTHORS / middle:11.1f}{sent[name][0]:11.0f}{sent[name][1]:19.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
