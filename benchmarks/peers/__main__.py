"""Rows beside other packages, each of which runs in an environment of its own: ``docs/compare.md`` shows them.

    python -m venv NVFLARE && NVFLARE/bin/pip install nvflare==2.9.0 torch==2.13.0 torch-geometric==2.8.1
    python -m benchmarks.peers cora --python NVFLARE/bin/python          # FedAvg on ten clients of Cora, ours and NVFlare's
    pip install xgboost==3.2.0
    python -m benchmarks.peers payments --seeds 5                        # trees of five banks, ours and Flower's bagging
    python -m benchmarks.peers table                                     # the table of the stored rows

``cora`` gives both packages the same files of clients, network, optimiser, local steps and weights. A round costs the CPU
seconds of all processes of a run of 110 rounds less those of a run of 10, by 100. Memory is the maximum over all processes,
counting shared pages once. ``payments`` has the data of ``benchmarks.payments_worth``; each method reads the same columns.
Rows are in ``simulations/results/peers.csv``: one for each run, with the versions and the command or the chosen values.
"""

import argparse
import contextlib
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil

from benchmarks.cost.round import CORA, held_by
from fedgraph_flwr import partition
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.evaluation.intervals import interval, paired

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "simulations" / "results"
FIELDS = ["data", "method", "version", "seed", "rounds", "test", "validation", "cpu_seconds", "megabytes", "bytes"]
FIELDS += ["commit", "words"]
SHARED = ["dataset=cora", "model=gcn", "model.hidden=64", "strategy=fedavg", "strategy.weighting=train"]
SHARED += [word for word in CORA if word != "dataset=cora"]
LENGTHS = (10, 110)
Row = dict[str, Any]


def measured(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run a command; return the CPU seconds and the most memory in MB of its processes.

    Raises:
        SystemExit: the command failed.
    """
    spent: dict[tuple[int, float], float] = {}
    held = 0
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(process.pid)
                for member in [top, *top.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        times = member.cpu_times()
                        spent[member.pid, member.create_time()] = times.user + times.system
            held = max(held, held_by(process.pid))
            time.sleep(0.2)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with code {process.returncode}:\n{(folder / 'log').read_text()[-2000:]}")
    return sum(spent.values()), held / 2**20


def write_clients(folder: Path, seed: int) -> None:
    """Write each client's graph as arrays that any package reads."""
    cfg = compose([*SHARED, f"seed={seed}"])
    for client in range(partition.num_clients(cfg)):
        graph: ClientGraph = partition.load_client(cfg, client)
        masks = {name: getattr(graph, f"{name}_mask").numpy() for name in ("train", "val", "test")}
        arrays = {"x": graph.x.to_dense().numpy(), "edge_index": graph.edge_index.numpy(), "y": graph.y.numpy()}
        held: dict[str, Any] = arrays | masks
        np.savez(folder / f"site-{client + 1}.npz", **held)


def cora(python: str, seeds: int) -> list[Row]:
    """Return the rows of FedAvg on Cora: ours and NVFlare's, in turns."""
    rows = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_clients(folder, seed)
            for package, rounds in itertools.product(("ours", "NVFlare"), LENGTHS):
                out = folder / f"{package}-{rounds}"
                out.mkdir()
                ours = [*SHARED, f"seed={seed}", f"rounds={rounds}", f"out={out / 'run'}"]
                command = [sys.executable, "-m", "fedgraph_flwr", "run", *ours, "--quiet", "--no-report"]
                if package == "NVFlare":
                    job = str(Path(__file__).with_name("nvflare_job.py"))
                    command = [python, job, str(folder), str(out), str(rounds), str(seed)]
                cpu, megabytes = measured(command, out)
                test, val = scores_of(out) if package == "NVFlare" else scores_of_run(out / "run")
                release = subprocess.run(
                    [python, "-c", "import nvflare; print(nvflare.__version__)"], capture_output=True, text=True
                ).stdout.strip()
                words = " ".join(SHARED) if package == "ours" else "benchmarks/peers/nvflare_job.py"
                rows.append(
                    row("Cora, 10 clients", package, release if package == "NVFlare" else version("fedgraph-flwr"))
                    | {"seed": seed, "rounds": rounds, "test": test, "validation": val, "words": words}
                    | {"cpu_seconds": round(cpu, 2), "megabytes": round(megabytes)}
                )
                print(rows[-1], flush=True)
    return rows


def scores_of_run(run: Path) -> tuple[float, float]:
    """Return test and validation accuracy at the best validation round of a run of ours."""
    scores = json.loads((run / "summary.json").read_text())["metrics"]["best_val"]
    return scores["test_accuracy"], scores["val_accuracy"]


def scores_of(out: Path) -> tuple[float, float]:
    """Return test and validation accuracy, mean over clients, at the best validation round of what NVFlare's clients wrote."""
    sites = [np.loadtxt(path, ndmin=2) for path in sorted(out.glob("site-*.txt"))]
    val, test = np.mean(sites, axis=0).T
    best = int(val.argmax())
    return float(test[best]), float(val[best])


def row(data: str, method: str, release: str) -> Row:
    """Return what every row has."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return {"data": data, "method": method, "version": release, "commit": commit}


def add(path: Path, rows: list[Row]) -> None:
    """Replace the stored rows of the same data, method, seed and rounds, and keep the others."""
    known = {key(one): one for one in stored(path)}
    known |= {key({name: str(value) for name, value in one.items()}): one for one in rows}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(known.values())


def key(one: Row) -> tuple[object, ...]:
    """Return what names a row."""
    return one["data"], one["method"], one["seed"], one["rounds"] if "Cora" in str(one["data"]) else ""


def stored(path: Path) -> list[Row]:
    """Return the rows of a file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [dict(one) for one in csv.DictReader(file)]


def table(rows: list[Row]) -> str:
    """Return the Markdown tables: means with 95 % intervals over seeds, and differences paired by seed."""
    short, long = map(str, LENGTHS)
    graphs = [one for one in rows if "Cora" in str(one["data"])]
    text = ["# Beside other packages\n", "Made by `python -m benchmarks.peers`, which says what is alike.\n"]
    text += [
        "## FedAvg on Cora, ten clients\n",
        "| | version | CPU s, a round | CPU s, 10 rounds | MB | accuracy, 110 rounds |",
        "|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(one["method"] for one in graphs):
        runs = {(one["seed"], one["rounds"]): one for one in graphs if one["method"] == method}
        seeds = sorted({seed for seed, _ in runs})
        cpu = {at: float(str(one["cpu_seconds"])) for at, one in runs.items()}
        span = LENGTHS[1] - LENGTHS[0]
        pace = fmean((cpu[seed, long] - cpu[seed, short]) / span for seed in seeds)
        whole = fmean(cpu[seed, short] for seed in seeds)
        memory = max(float(str(one["megabytes"])) for one in runs.values())
        tests = interval([100 * float(str(runs[seed, long]["test"])) for seed in seeds])
        release = runs[seeds[0], long]["version"]
        text.append(
            f"| {method} | {release} | {pace:.3f} | {whole:.1f} | {memory:,.0f} | {tests.mean:.1f} ± {tests.half:.1f} |"
        )
    trees = [one for one in rows if "Cora" not in str(one["data"])]
    scores = {
        method: {int(str(one["seed"])): 100 * float(str(one["test"])) for one in trees if one["method"] == method}
        for method in dict.fromkeys(str(one["method"]) for one in trees)
    }
    text += [
        "\n## Trees on payments of five banks\n",
        "Average precision in %, mean over banks. The last column is paired by seed.\n",
        "| | version | test | MB sent | ours − it |",
        "|---|---|---|---|---|",
    ]
    for method, held in scores.items():
        chosen = [one for one in trees if one["method"] == method]
        mean, sent = interval(list(held.values())), fmean(float(str(one["bytes"])) for one in chosen) / 1e6
        gap = paired(scores["ours"], held) if method != "ours" and "ours" in scores else None
        difference = f"{gap.mean:+.1f} ± {gap.half:.1f}" if gap else ""
        text.append(
            f"| {method} | {chosen[0]['version']} | {mean.mean:.1f} ± {mean.half:.1f} | {sent:.1f} | {difference} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    """Run one comparison, or write the table of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cora", "payments", "table"))
    parser.add_argument("--python", default=sys.executable, help="Python of the environment that has NVFlare")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.csv")
    args = parser.parse_args()
    if args.what == "cora":
        add(args.out, cora(args.python, args.seeds))
    if args.what == "payments":
        from benchmarks.peers import flower_trees

        for seed in range(args.seeds):
            add(args.out, [row("payments", *names) | scores for names, scores in flower_trees.rows(seed)])
    args.out.with_suffix(".md").write_text(table(stored(args.out)))


if __name__ == "__main__":
    main()
