"""Memory and CPU time of payments that do not fit one step: one bank, `multi_gine` in sampled batches, scores in blocks.

    python -m benchmarks.edges_scale [--payments 4000000] [--accounts 500000] [key=value ...]

One epoch over the training payments and one scoring of all payments, in a process of its own. Prints its peak memory, the CPU
seconds of the set-up (data, partition and inputs), of the epoch and of the scoring, and the latter two per million payments.
Overrides change the run, such as ``train.fanout=[8,4]``.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
    from fedgraph_flwr.runs.runner import run

    spent = dict.fromkeys(("train", "score"), 0.0)

    def timed(name: str, owner: object, method: str) -> None:
        plain = getattr(owner, method)

        def measured(*arguments: object) -> object:
            began = time.process_time()
            try:
                return plain(*arguments)
            finally:
                spent[name] += time.process_time() - began

        setattr(owner, method, measured)

    timed("train", GraphClient, "train")
    timed("score", base, "scores")
    summary = run(configuration([*overrides, f"out={out}/run", "overwrite=true"]))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {"peak_gb": usage.ru_maxrss / 2**20, "cpu": usage.ru_utime + usage.ru_stime, **spent}
    found["average_precision"] = summary["test_average_precision"]
    Path(out, "figures.json").write_text(json.dumps(found))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--payments", type=int, default=4_000_000)
    parser.add_argument("--accounts", type=int, default=500_000)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.child:
        child(given.child, given.overrides)
        return
    overrides = [*RUN, f"dataset.accounts={given.accounts}", f"dataset.background={given.payments}", *given.overrides]
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.edges_scale", "--child", folder, *overrides]
        environment = {**os.environ, "FEDGRAPH_DATA": f"{folder}/data", "OMP_NUM_THREADS": "1"}
        subprocess.run(words, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(Path(folder, "figures.json").read_text())
    millions = given.payments / 1e6
    rest = found["cpu"] - found["train"] - found["score"]
    print(
        f"peak memory {found['peak_gb']:.1f} GB; CPU seconds: set-up {rest:.0f}, epoch {found['train']:.0f}, scoring"
        f" {found['score']:.0f}"
    )
    print(
        f"per million payments: epoch {found['train'] / (0.6 * millions):.0f} (of training payments), scoring"
        f" {found['score'] / millions:.0f}; test average precision {found['average_precision']:.3f}"
    )


if __name__ == "__main__":
    main()
