"""Memory and CPU time of payments that do not fit one step: one bank, `multi_gine` in sampled batches, scores in blocks.

    python -m benchmarks.cost edges_scale [--payments 4000000] [--accounts 500000] [--write] [key=value ...]

One epoch over the training payments and one scoring of all payments, in a process of its own. Prints the CPU seconds of the
set-up (data, partition and inputs), of the epoch and of the scoring as each ends, with the peak memory so far, and the latter two
per million payments. ``--write`` appends them to ``simulations/results/edges_scale.csv``. Overrides change the run, such as
``train.fanout=[8,4]``.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "simulations" / "results" / "edges_scale.csv"
RUN = [
    *(
        "task=edges",
        "dataset=payments",
        "partition=planted",
        "num_clients=1",
        "dataset.banks=1",
        "rounds=1",
        "checkpoint_every=0",
    ),
    *("train.sampler=neighbors", "train.batch_size=4096", "train.fanout=[8,4]", "train.local_epochs=1", "threads=1"),
]


def child(out: str, overrides: list[str]) -> None:
    """Run in this process, and write the figures."""
    from fedgraph_flwr.clients import base
    from fedgraph_flwr.clients.base import GraphClient
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.launch.runner import run

    spent: dict[str, float] = {}

    def report() -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        spent["peak_gb"] = round(usage.ru_maxrss / 2**20, 2)
        print(json.dumps({key: round(value, 4) for key, value in spent.items()}), file=sys.stderr, flush=True)

    def timed(name: str, owner: object, method: str) -> None:
        plain = getattr(owner, method)

        def measured(*arguments: object) -> object:
            began = time.process_time()
            spent.setdefault("set_up", began)
            report()
            output = plain(*arguments)
            spent[name] = spent.get(name, 0.0) + time.process_time() - began
            report()
            return output

        setattr(owner, method, measured)

    timed("epoch", GraphClient, "train")
    timed("scoring", base, "scores")
    summary = run(configuration([*overrides, f"out={out}/run", "overwrite=true"]))
    spent["average_precision"] = summary["test_average_precision"]
    report()
    Path(out, "figures.json").write_text(json.dumps(spent))


def table() -> list[str]:
    """Return the rows of the table in results/speed-details.md."""
    with RESULT.open() as file:
        rows = list(csv.DictReader(file))
    numbers = ("payments", "accounts")
    shown = (
        "peak_gb",
        "set_up_cpu_seconds",
        "epoch_cpu_seconds",
        "epoch_per_million",
        "scoring_cpu_seconds",
        "scoring_per_million",
    )
    return [
        "| " + " | ".join([*(f"{int(row[key]):,}" for key in numbers), *(row[key] for key in shown)]) + " |"
        for row in rows
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--payments", type=int, default=4_000_000)
    parser.add_argument("--accounts", type=int, default=500_000)
    parser.add_argument("--write", action="store_true", help=f"append the row to {RESULT.name}")
    parser.add_argument(
        "--table", action="store_true", help="only print the stored rows, as in results/speed-details.md"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.table:
        print("\n".join(table()))
        return
    if given.child:
        child(given.child, given.overrides)
        return
    overrides = [*RUN, f"dataset.accounts={given.accounts}", f"dataset.background={given.payments}", *given.overrides]
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.cost.edges_scale", "--child", folder, *overrides]
        environment = {**os.environ, "FEDGRAPH_DATA": f"{folder}/data", "OMP_NUM_THREADS": "1"}
        subprocess.run(words, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        figures = json.loads(Path(folder, "figures.json").read_text())
    head = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    row = {
        "payments": given.payments,
        "accounts": given.accounts,
        "peak_gb": f"{figures['peak_gb']:.2f}",
        "set_up_cpu_seconds": f"{figures['set_up']:.0f}",
        "epoch_cpu_seconds": f"{figures['epoch']:.0f}",
        "scoring_cpu_seconds": f"{figures['scoring']:.0f}",
        "epoch_per_million": f"{figures['epoch'] / (0.6e-6 * given.payments):.0f}",  # of training payments
        "scoring_per_million": f"{figures['scoring'] / (1e-6 * given.payments):.0f}",
        "average_precision": f"{figures['average_precision']:.4f}",
        "overrides": " ".join(given.overrides),
        "commit": head.stdout.strip(),
    }
    if given.write:
        new = not RESULT.is_file()
        with RESULT.open("a", newline="") as file:
            writer = csv.DictWriter(file, row, lineterminator="\n")
            writer.writerows([dict(zip(row, row, strict=True)), row] if new else [row])
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
