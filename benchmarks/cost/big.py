"""Memory, disk and time of graphs that do not fit one step: clients with generated files, sampled training.

    python -m benchmarks.cost big [--nodes 300000] [--edges 7500000] [--features 100] [--clients 1] [--cohort 0] [--rounds 2]
    python -m benchmarks.cost big --row "one client"     # a row of the table in results/speed-details.md; --rows lists them

The graph is a pure function: in-neighbour j of node v is a hash of (seed, client, v, j), in v's class with probability
``--same``, and features are the class's centre plus noise, hashed too. So any part can be made without the rest. Needs numba
(``pip install fedgraph-flwr[fast]``). Each client's file is written block by block. The run is a process of its own:
``resident`` is its peak memory with pages of mapped files, which the system can take back; ``own`` is without.
``simulations/results/big.csv`` holds the rows; the files are deleted afterwards unless ``--folder`` names where to keep them.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from fedgraph_flwr.data.files import require_space
from fedgraph_flwr.data.graph import FORMAT_VERSION
from fedgraph_flwr.data.mapped import Blocks, is_mapped, write_blocks

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "simulations" / "results" / "big.csv"
LARGE = ["--nodes", "1110000", "--edges", "16000000", "--features", "128", "--half", "--labelled", "0.01"]
ROWS: dict[str, list[str]] = {
    "one client": ["--nodes", "2400000", "--edges", "60000000"],
    "one of 20": ["--nodes", "500000", "--edges", "2500000", "--rounds", "1"],
    "20 clients": [
        *("--nodes", "500000", "--edges", "2500000", "--clients", "20"),
        *("--cohort", "4", "--rounds", "1"),
    ],
    "10 of 100 clients": [*LARGE, "--clients", "10", "--rounds", "1", "evaluation.clients=1"],
    "100 clients": [*LARGE, "--clients", "100", "--cohort", "10", "--rounds", "1"],
}
"""Rows of the table; nodes and edges are per client. The tenth has the clients that one round of the
whole trains; one of them scores."""

FIELDS = (
    *("row", "clients", "nodes", "edges", "features", "cohort", "rounds", "gigabytes", "write_seconds"),
    *("setup_seconds", "seconds_per_round", "resident_megabytes", "own_megabytes", "test_accuracy", "overrides"),
)
SAMPLED = ["model=sage", "train.sampler=neighbors", "train.batch_size=1024", "train.fanout=[10,10]"]
ROWS_AT_ONCE = 1 << 16
CENTRE = 0.25
"""Size of a class's centre, in standard deviations of the noise."""


@njit
def mixed(value: Any) -> Any:
    """Return the splitmix64 hash of an integer, uint64."""
    z = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit
def fill_neighbours(out: np.ndarray, first: int, degree: int, key: Any, nodes: int, classes: int, same: int) -> None:
    """Draw in-neighbours ``out`` [n, degree] of the nodes from ``first`` on; ``same`` is a probability in units of 2^-32."""
    for row in range(len(out)):
        node = first + row
        for place in range(degree):
            drawn = mixed(np.uint64(node * degree + place) ^ key)
            low, high = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32)
            if high < np.uint64(same):
                member = (low * np.uint64(nodes // classes)) >> np.uint64(32)
                out[row, place] = np.int64(member) * classes + node % classes
            else:
                out[row, place] = np.int64((low * np.uint64(nodes)) >> np.uint64(32))


@njit
def fill_rows(out: np.ndarray, first: int, key: Any, centres: np.ndarray) -> None:
    """Draw features ``out`` [n, F]: the class's centre plus uniform noise of variance 1."""
    width = out.shape[1]
    words = (width + 3) // 4
    for row in range(len(out)):
        node = first + row
        centre = centres[node % len(centres)]
        for word in range(words):
            drawn = mixed(np.uint64(node * words + word) ^ key)
            for part in range(min(4, width - 4 * word)):
                bits = np.int64((drawn >> np.uint64(16 * part)) & np.uint64(0xFFFF)) - 32768
                out[row, 4 * word + part] = centre[4 * word + part] + np.float32(bits) * np.float32(3**0.5 / 32768)


@njit
def fill_shares(out: np.ndarray, key: Any) -> None:
    """Draw a number in [0, 1) per node."""
    for node in range(len(out)):
        out[node] = np.float64(mixed(np.uint64(node) ^ key) >> np.uint64(11)) / 2.0**53


class Made:
    """The graph of one client as a function of its parameters.

    Args:
        args: of the command.
        client: its index.
    """

    def __init__(self, args: argparse.Namespace, client: int):
        self.nodes, self.features, self.classes, self.same = args.nodes, args.features, args.classes, args.same
        self.degree = max(args.edges // args.nodes, 1)
        self.half, self.labelled, self.client, self.clients = args.half, args.labelled, client, args.clients
        self.key = self.hashed(np.uint64(args.seed * 1_000_003 + client))
        centres = np.random.default_rng(args.seed).choice([-CENTRE, CENTRE], (args.classes, args.features))
        self.centres = centres.astype(np.float32)

    @staticmethod
    def hashed(value: np.uint64) -> np.uint64:
        """Return a hash, which numba gives as an integer, as uint64."""
        return np.uint64(mixed(value))

    def neighbours(self, first: int, end: int) -> np.ndarray:
        """Return the in-neighbours of some nodes, int32 [end - first, degree]."""
        out = np.empty((end - first, self.degree), np.int32)
        fill_neighbours(out, first, self.degree, self.key, self.nodes, self.classes, int(self.same * 2**32))
        return out

    def rows(self, first: int, end: int) -> np.ndarray:
        """Return the features of some nodes, [end - first, F]."""
        out = np.empty((end - first, self.features), np.float32)
        fill_rows(out, first, self.hashed(self.key), self.centres)
        return out.astype(np.float16) if self.half else out

    def tensors(self) -> dict[str, Any]:
        """Return what the client's file holds."""
        n, degree = self.nodes, self.degree
        y = torch.arange(n) % self.classes
        drawn = np.empty(n)
        fill_shares(drawn, self.hashed(self.hashed(self.key)))
        share = torch.from_numpy(drawn / self.labelled)

        def blocks(make: Any) -> Any:
            def parts() -> Iterator[np.ndarray]:
                return (make(start, min(start + ROWS_AT_ONCE, n)) for start in range(0, n, ROWS_AT_ONCE))

            return parts

        return {
            "x": Blocks(torch.float16 if self.half else torch.float32, (n, self.features), blocks(self.rows)),
            "y": y,
            "train_mask": share < 0.6,
            "val_mask": (share >= 0.6) & (share < 0.8),
            "test_mask": (share >= 0.8) & (share < 1),
            "edge_index#in_indptr": torch.arange(n + 1) * degree,
            "edge_index#in_indices": Blocks(torch.int32, (n * degree,), blocks(self.neighbours)),
            "node_id": torch.arange(n) + n * self.client,
        }

    def write(self, folder: Path) -> int:
        """Write the client's file if it is not there yet, and return its size."""
        path = folder / f"client_{self.client:04d}.safetensors"
        if not path.is_file():
            values = {"kind": "ClientGraph", "name": "big", "num_classes": self.classes, "client": self.client}
            values |= {"num_clients": self.clients, "num_global_nodes": self.nodes * self.clients}
            write_blocks(path, self.tensors(), json.dumps(values), str(FORMAT_VERSION))
        if not is_mapped(path):
            print(f"{path.name} is small: it is read, not mapped", flush=True)
        return path.stat().st_size


def child(words: list[str]) -> None:
    """Run, and print time, peak memory and accuracy as JSON."""
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.launch.runner import run

    torch.set_num_threads(1)
    peak = {"RssAnon": 0, "VmHWM": 0}

    def watch() -> None:
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            entries = {line.split(":")[0]: line for line in lines}
            for name in peak:
                peak[name] = max(peak[name], int(entries[name].split()[1]) // 1024)
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryDirectory() as out:
        summary = run(compose([*words, f"out={out}"]))
    time.sleep(0.05)
    costs = {"setup_seconds": summary["setup_seconds"], "seconds_per_round": summary["seconds_per_round"]}
    accuracy = summary.get("final", {}).get("test_accuracy", summary.get("test_accuracy", ""))
    print(json.dumps(costs | {"resident": peak["VmHWM"], "own": peak["RssAnon"], "test_accuracy": accuracy}))


def measured(row: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the files, run, and return a row of the result."""
    made = [Made(args, client) for client in range(args.clients)]
    width = 2 if args.half else 4
    per_client = args.nodes * (width * args.features + 4 * made[0].degree + 27)
    present = sum(path.stat().st_size for path in folder.glob("client_*.safetensors"))
    require_space(folder, args.clients * per_client - present, f"the files of {args.clients} clients")
    began = time.perf_counter()
    size = 0
    for one in made:
        size += one.write(folder)
        print(f"client {one.client}: {size / 1e9:.2f} GB, {time.perf_counter() - began:.0f} s", flush=True)
    wrote = time.perf_counter() - began
    words = [f"graph={folder}", f"num_clients={args.clients}", f"rounds={args.rounds}", "checkpoint_every=0", *SAMPLED]
    if args.cohort:
        words += [f"strategy.fraction={args.cohort / args.clients}", "evaluation.clients=cohort"]
    words += args.overrides
    command = [sys.executable, "-m", "benchmarks.cost.big", "--child", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return {
        "row": row,
        "clients": args.clients,
        "nodes": args.nodes,
        "edges": args.nodes * made[0].degree,
        "features": args.features,
        "cohort": args.cohort or args.clients,
        "rounds": args.rounds,
        "gigabytes": round(size / 1e9, 2),
        "write_seconds": "" if present else round(wrote, 1),
        "setup_seconds": round(figures["setup_seconds"], 1),
        "seconds_per_round": round(figures["seconds_per_round"], 1),
        "resident_megabytes": figures["resident"],
        "own_megabytes": figures["own"],
        "test_accuracy": figures["test_accuracy"],
        "overrides": " ".join([*SAMPLED, *args.overrides]),
    }


def keep(row: dict[str, Any]) -> None:
    """Store a row, in the place of an older one of its name."""
    kept: dict[str, Any] = {}
    if RESULT.exists():
        with RESULT.open(newline="") as file:
            kept = {entry["row"]: entry for entry in csv.DictReader(file)}
    kept[row["row"]] = row
    with RESULT.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for `fedgraph-flwr run`")
    sizes = (("nodes", 300_000), ("edges", 7_500_000), ("features", 100), ("clients", 1), ("cohort", 0), ("rounds", 2))
    for name, default in (*sizes, ("classes", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--same", type=float, default=0.6, help="probability of a neighbour in the node's class")
    parser.add_argument("--labelled", type=float, default=0.05, help="share of labelled nodes that are split")
    parser.add_argument("--half", action="store_true", help="store features as float16")
    parser.add_argument("--folder", type=Path, help="keep the files here, and use those that are there")
    parser.add_argument("--row", choices=ROWS, help="settings of a row of the table, which is stored")
    parser.add_argument("--table", action="store_true", help="print the stored rows as Markdown")
    parser.add_argument("--rows", action="store_true", help="list the rows")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def table() -> str:
    """Return the stored rows as Markdown."""
    names = ("clients", "nodes", "edges", "features", "cohort", "rounds", "gigabytes")
    titles = ("clients", "nodes each", "edges each", "features", "clients per round", "rounds", "GB of files")
    measures = ("setup_seconds", "seconds_per_round", "resident_megabytes", "own_megabytes", "test_accuracy")
    heads = ("set-up, s", "round, s", "peak MB, resident", "peak MB, without mapped files", "test accuracy")
    lines = ["| " + " | ".join(("row", *titles, *heads)) + " |", "|---" * (len(titles) + len(heads) + 1) + "|"]
    with RESULT.open(newline="") as file:
        for row in csv.DictReader(file):
            cells = [f"{int(row[name]):,}" if row[name].isdecimal() else row[name] for name in (*names, *measures)]
            cells[-1] = f"{float(row['test_accuracy']):.3f}" if row["test_accuracy"] else ""
            lines.append("| " + " | ".join([row["row"], *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; store a row of the table."""
    args = parsed()
    if args.child:
        return child(args.overrides)
    if args.table:
        return print(table())
    if args.rows:
        return print("\n".join(f"{name}: {' '.join(words)}" for name, words in ROWS.items()))
    if args.row:
        chosen = parsed([*ROWS[args.row], *args.overrides])
        chosen.folder, chosen.row = args.folder, args.row
        args = chosen
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        row = measured(args.row or "other", args, folder)
    for name, value in row.items():
        print(f"{name:<20} {value}")
    if args.row:
        keep(row)
    return None


if __name__ == "__main__":
    main()
