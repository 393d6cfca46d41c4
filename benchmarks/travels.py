"""Bytes of each exchange to and from a client, per method, in a short run: ``python -m benchmarks.travels``.

Methods run on generated CSBM clients, methods for heterogeneous graphs on AIFB (skipped if it is not in ``FEDGRAPH_DATA``).
Bytes do not depend on the machine. ``simulations/results/travels.csv`` has one row per phase, which the documentation shows on
each method's page.
"""

import argparse
import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from fedgraph_flwr import models
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run

PLAIN = ["dataset=csbm", "dataset.nodes_per_client=[100,200]", "num_clients=5"]
TYPED = ["dataset=aifb", "partition=random-edges", "num_clients=5"]
ROUNDS = 3
PATH = Path(__file__).parents[1] / "simulations" / "results" / "travels.csv"
FIELDS = ["method", "phase", "when", "exchanges", "down", "up", "parameters", "words"]


def measured(method: str) -> list[dict[str, object]]:
    """A row for each phase of a method: exchanges in the run, and bytes of one exchange to and from one client of those asked."""
    cfg = compose([f"strategy={method}"])
    words = TYPED if models.network(cfg.model).capabilities.heterogeneous else PLAIN
    records: list[dict] = []
    with tempfile.TemporaryDirectory() as out:
        summary = run(compose([*words, f"strategy={method}", f"rounds={ROUNDS}", f"out={out}"]), records.append)
        parameters = sum(t.numel() for t in read_tensors(Path(out) / "model_final.safetensors")[0].values())
    rounds: defaultdict[str, int] = defaultdict(int)
    for record in records:
        for phase, at in record["phases"].items():
            rounds[phase] += at["exchanges"]
    clients = 1 if cfg.strategy.pooled else 5
    rows = []
    for phase, sent in summary["bytes_by_phase"].items():
        messages = sent["exchanges"] * clients
        when = "once" if sent["exchanges"] == 1 else f"{sent['exchanges']} times"
        if rounds[phase] and phase != "evaluate":
            often = sent["exchanges"] / ROUNDS
            when = "each round" if often == 1 else f"{often:g} times a round"
        elif phase in ("describe", "evaluate"):
            when = "before round 1 and at the end" if phase == "describe" else "at the end"
        else:
            when += " before round 1"
        rows.append(
            {"method": method, "phase": phase, "when": when, "exchanges": sent["exchanges"]}
            | {"down": sent["bytes_down"] // messages, "up": sent["bytes_up"] // messages}
            | {"parameters": parameters, "words": " ".join([*words, f"strategy={method}", f"rounds={ROUNDS}"])}
        )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Write the table, of the methods that are missing or of those that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.travels", description=__doc__.partition("\n")[0])
    parser.add_argument("methods", nargs="*", help="default: methods missing from the table")
    args = parser.parse_args(argv)
    rows = list(csv.DictReader(PATH.open(newline=""))) if PATH.is_file() else []
    wanted = args.methods or [name for name in group_names("strategy") if name not in {row["method"] for row in rows}]
    for name in wanted:
        try:
            rows = [row for row in rows if row["method"] != name] + measured(name)
        except FedGraphError as error:
            print(f"{name}: {error}")
    rows.sort(key=lambda row: row["method"])  # stable: a method's phases stay in their order
    with PATH.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps({"methods": len({row["method"] for row in rows}), "rows": len(rows)}))


if __name__ == "__main__":
    main()
