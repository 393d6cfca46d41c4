"""Cost of a round: the table of docs/speed.md, and its growth from 10 to 100,000 clients.

    python -m benchmarks.cost scale                   # the rows of the table (half an hour; partitions are made first)
    python -m benchmarks.cost scale --growth          # the curve: at most 1,000 of 10 ... 100,000 clients per round
    python -m benchmarks.cost scale --only "1000, ray"     # the row of this name
    python -m benchmarks.cost scale --write           # run nothing; write the stored rows to the page

Each row is a run in a separate process. Its seconds are medians over rounds after the first (`WARM`: after more): elapsed time,
and CPU seconds of the server's process and of the busiest actor. The sum of the two CPU times is the duration of a round if
each has its own core. ``of_bare`` divides the round's time by that of a bare loop over PyG's ``GCNConv`` for only the local
steps, measured alternately in one process (`benchmarks.cost.round.ratio`). Memory is the maximum of all processes of the run,
counting shared pages once. ``simulations/results/scale.csv`` and ``growth.csv`` contain the rows, and ``growth.png`` the curve.
"""

import argparse
import csv
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cost.round import CORA, held_by

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "simulations" / "results"
FIELDS = [
    "row",
    "clients",
    "cohort",
    "engine",
    "seconds",
    "of_bare",
    "cpu_server",
    "cpu_actor",
    "start",
    "first",
    "megabytes",
    "words",
]

CSBM = ["dataset=csbm", "dataset.nodes_per_client=[100,200]"]
SMALL = ["dataset=csbm", "dataset.nodes_per_client=[20,40]"]
RAY = ["engine=ray", "ray.actors=2"]
FEW = ["evaluation.clients=cohort", "train.optimizer_state=reset", "ray.live_clients=500"]
"""Nothing is kept of, or asked of, clients that take no part in a round."""

TABLE = {
    "10 of Cora, inline": CORA,
    "1000, inline": [*CSBM, "num_clients=1000"],
    "1000, inline, stack=auto": [*CSBM, "num_clients=1000", "stack=auto"],
    "1000, ray": [*CSBM, "num_clients=1000", *RAY],
    "1000, ray, stack=auto": [*CSBM, "num_clients=1000", *RAY, "stack=auto"],
    "1000, Flower's simulation": [*CSBM, "num_clients=1000", "engine=flower-simulation"],
    "1000 of 10000, ray": [*CSBM, "num_clients=10000", "strategy.fraction=0.1", *RAY, *FEW],
    "1000 of 10000, ray, stack=auto": [*CSBM, "num_clients=10000", "strategy.fraction=0.1", *RAY, *FEW, "stack=auto"],
    "1000 of 10000, ray, stack=auto, all built": [
        *CSBM,
        "num_clients=10000",
        "strategy.fraction=0.1",
        *RAY,
        *FEW[:2],
        "stack=auto",
    ],
    "1000 of 100000, ray, actors add": [
        *SMALL,
        "num_clients=100000",
        "strategy.fraction=0.01",
        *RAY,
        *FEW,
        "ray.aggregate=true",
    ],
    "1000 of 100000, ray, actors add, stack=auto": [
        *SMALL,
        "num_clients=100000",
        "strategy.fraction=0.01",
        *RAY,
        *FEW,
        "ray.aggregate=true",
        "stack=auto",
    ],
}

BARE = {"10 of Cora, inline": 12, "1000, inline": 4}
"""Rows that also measure a bare loop, and rounds per turn."""

WARM = {"1000 of 10000, ray, stack=auto, all built": 44}
"""Rows whose first rounds are not counted: by then all but one client in a hundred have been asked, and are held."""

COLUMNS = {
    "seconds": "seconds per round",
    "of_bare": "relative to a bare PyG loop",
    "cpu_server": "server, CPU s",
    "cpu_actor": "busiest actor, CPU s",
    "start": "start, s",
    "megabytes": "MB, all processes",
}

TEXT = ROOT / "docs" / "speed.md"
MARKS = re.compile(r"(<!-- cost: made by python -m benchmarks.cost scale --write -->\n).*?(?=<!-- end -->)", re.DOTALL)


def growth() -> dict[str, list[str]]:
    """Return the rows of the curve: at most 1,000 clients per round, out of growing numbers."""
    sizes = (10, 100, 1000, 10_000, 100_000)
    fraction = {size: min(1.0, 1000 / size) for size in sizes}
    return {
        f"{size}": [
            *SMALL,
            f"num_clients={size}",
            f"strategy.fraction={fraction[size]}",
            *RAY,
            *FEW,
            "ray.aggregate=true",
        ]
        for size in sizes
    }


def child(words: list[str]) -> None:
    """Run it, and print as JSON the end time of each round and the CPU time of each process by then."""
    began = time.time()
    from fedgraph_flwr import partition
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.engine import ray
    from fedgraph_flwr.launch.runner import run

    ray.PATIENCE = 600.0  # cores may be busy with other work: its CPU seconds count
    cfg = compose(words)
    partition.num_clients(cfg)  # made, if it is not there
    ready = time.time()
    marks: list[dict[str, Any]] = []

    def mark(record: dict[str, Any]) -> None:
        process = psutil.Process()
        actors = [p for p in process.children(recursive=True) if p.name().startswith("ray::ClientA")]
        used = {p.pid: sum(p.cpu_times()[:2]) for p in actors}
        marks.append(
            {"time": time.time(), "server": sum(process.cpu_times()[:2]), "actors": used, "seconds": record["seconds"]}
        )

    summary = run(cfg, mark)
    print(json.dumps({"began": began, "ready": ready, "marks": marks, "setup": summary["setup_seconds"]}))


def measured(row: str, words: list[str], rounds: int) -> dict[str, Any]:
    """Return a row from a run in a separate process; with fewer than 1,000 clients it has ten times as many rounds."""
    clients, cohort = _sizes(words)
    skipped = WARM.get(row, 1)
    rounds = rounds * (10 if clients < 1000 else 1) + skipped - 1
    with tempfile.TemporaryDirectory() as out:
        run_words = [*words, f"rounds={rounds}", "checkpoint_every=0", f"out={out}"]
        command = [sys.executable, "-m", "benchmarks.cost.scale", "--child", *run_words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        held = 0.0
        while process.poll() is None:
            if any(Path(out).glob("rounds.jsonl")):  # not while its partition is made
                held = max(held, held_by(process.pid))
            time.sleep(1.0)
        output = process.stdout.read() if process.stdout else b""
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    report = json.loads(output.splitlines()[-1])
    marks = report["marks"]
    after = list(itertools.pairwise(marks[skipped - 1 :]))
    actors = [max((b["actors"][pid] - a["actors"].get(pid, 0) for pid in b["actors"]), default=0.0) for a, b in after]
    engine = dict(word.split("=", 1) for word in words).get("engine", "inline")
    row_of = {
        "row": row,
        "clients": clients,
        "cohort": cohort,
        "engine": engine,
        "of_bare": _of_bare(words, BARE[row]) if row in BARE else "",
        "seconds": round(statistics.median(mark["seconds"] for mark in marks[skipped:]), 3),
        "cpu_server": round(statistics.median(b["server"] - a["server"] for a, b in after), 3),
        "cpu_actor": round(statistics.median(actors), 3),
        "start": round(report["marks"][0]["time"] - report["ready"] - marks[0]["seconds"], 2),
        "first": round(marks[0]["seconds"], 2),
        "megabytes": round(held / 2**20),
        "words": " ".join(words),
    }
    if engine == "flower-simulation":  # its processes are a SuperLink's, not this one's
        row_of |= dict.fromkeys(("cpu_server", "cpu_actor", "megabytes"), "")
    return row_of


def _of_bare(words: list[str], rounds: int) -> float:
    """Measure the ratio in a separate process."""
    code = f"from benchmarks.cost.round import ratio; ours, bare = ratio({words!r}, 3, {rounds}); print(ours / bare)"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True
    ).stdout
    return round(float(output.splitlines()[-1]), 2)


def _sizes(words: list[str]) -> tuple[int, int]:
    values = dict(word.split("=", 1) for word in words)
    clients = int(values["num_clients"])
    return clients, round(clients * float(values.get("strategy.fraction", 1)))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Store rows; they replace older rows of the same name."""
    kept = {}
    if path.exists():
        with path.open() as file:
            kept = {row["row"]: row for row in csv.DictReader(file)}
    kept |= {row["row"]: row for row in rows}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())


def table() -> str:
    """Return the stored rows as Markdown."""
    with (RESULTS / "scale.csv").open() as file:
        kept = {row["row"]: row for row in csv.DictReader(file)}
    lines = [
        "| clients per round, engine | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name in TABLE:
        if row := kept.get(name):
            lines.append("| " + " | ".join([name, *(_told(key, row[key]) for key in COLUMNS)]) + " |")
    return "\n".join(lines)


def _told(key: str, value: str) -> str:
    if not value or (key == "cpu_actor" and not float(value)):
        return ""
    return value if key == "megabytes" else f"{float(value):.3g}" if key == "seconds" else f"{float(value):.2g}"


def written(text: str) -> str:
    """Return a text whose table has the current rows."""
    return MARKS.sub(lambda match: f"{match[1]}{table()}\n", text)


def draw(path: Path) -> None:
    """Draw CPU seconds per round, start and memory, over registered clients."""
    from matplotlib.figure import Figure

    with path.open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["clients"]))
    clients = [int(row["clients"]) for row in rows]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for key, label, mark in (("cpu_server", "server", "o"), ("cpu_actor", "busiest of two actors", "s")):
        left.loglog(clients, [float(row[key]) for row in rows], marker=mark, label=label)
    left.set(xlabel="clients registered, at most 1,000 per round", ylabel="CPU seconds per round")
    left.legend()
    right.semilogx(clients, [float(row["megabytes"]) for row in rows], marker="o")
    right.set(xlabel="clients registered", ylabel="MB, all processes")
    right.set_ylim(bottom=0)
    figure.savefig(path.with_suffix(".png"), format="png", dpi=130)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description="What many clients cost.")
    parser.add_argument("--growth", action="store_true", help="the curve instead of the table")
    parser.add_argument("--only", default="", help="the row of this name")
    parser.add_argument("--write", action="store_true", help="run nothing, put the rows into the page")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    if args.write:
        TEXT.write_text(written(TEXT.read_text()))
        return
    path = RESULTS / ("growth.csv" if args.growth else "scale.csv")
    rows = growth() if args.growth else TABLE
    if args.only and args.only not in rows:
        parser.error(f"no row {args.only}; there are: {'; '.join(rows)}")
    for row, words in rows.items():
        if not args.only or args.only == row:
            figures = measured(row, words, args.rounds)
            print({key: value for key, value in figures.items() if key != "words"}, flush=True)
            write(path, [figures])
    if args.growth:
        draw(path)


if __name__ == "__main__":
    main()
