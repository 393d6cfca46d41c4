"""Profile of a round: time in torch's and NumPy's own code, and in messages, replies, scores and clients.

    python -m benchmarks.cost limits                       # Cora with 10 clients, and 1,000 CSBM clients stacked, inline
    python -m benchmarks.cost limits --only "1000, inline, stack=auto"
    python -m benchmarks.cost limits dataset=csbm num_clients=100     # overrides of another run

A run without a profiler gives the CPU seconds per round (median). The same run under cProfile gives the calls from Python to
torch's and NumPy's own code; the profiler adds almost nothing to their seconds. The remaining Python time is divided among its
callers in the proportions of the profile. cProfile does not record operators on tensors (``@``); they count where they are
written, mostly in the models. ``simulations/results/limits.csv`` contains the rows.
"""

import argparse
import cProfile
import csv
import itertools
import pstats
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from benchmarks.cost.scale import RESULTS, TABLE
from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run

ROWS = ("10 of Cora, inline", "1000, inline, stack=auto")
KERNELS = ("torch", "numpy", "_operator.matmul", "ufunc")
PLACES = {
    "messages and replies": ("/flwr/", "fedgraph_flwr/messages", "fedgraph_flwr/answers", "fedgraph_flwr/engine/"),
    "scores": ("fedgraph_flwr/evaluation/",),
    "server": ("/strategies/", "fedgraph_flwr/serving"),
    "networks": ("fedgraph_flwr/models/", "fedgraph_flwr/numerics/", "/torch/"),
    "clients": ("/clients/",),
}
"""Whose files spend what Python spends; all else is other."""


def rounds_of(words: list[str], rounds: int, profile: cProfile.Profile | None = None) -> float:
    """Return the median CPU seconds of rounds after the first; a profile covers all rounds after it."""
    marks: list[float] = []

    def mark(record: object) -> None:
        marks.append(time.process_time())
        if profile and len(marks) == 1:
            profile.enable()
        if profile and len(marks) == rounds:
            profile.disable()

    with tempfile.TemporaryDirectory() as out:
        run(compose([*words, f"rounds={rounds}", "checkpoint_every=0", f"out={out}"]), mark)
    return statistics.median(b - a for a, b in itertools.pairwise(marks))


def divided(profile: cProfile.Profile, rounds: int) -> tuple[float, dict[str, float]]:
    """Return the seconds per round in torch's and NumPy's own code, and Python's seconds by caller under the profile."""
    kernels, places = 0.0, Counter[str]()
    for (file, _, name), (_, _, spent, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if file != "~":
            places[_place(file)] += spent
        elif any(word in name for word in KERNELS):
            kernels += spent
        else:  # of the interpreter: whoever calls it
            for (caller, _, _), entry in callers.items():
                places[_place(caller)] += entry[2]
    return kernels / rounds, {place: seconds / rounds for place, seconds in places.items()}


def _place(file: str) -> str:
    return next((place for place, parts in PLACES.items() if any(part in file for part in parts)), "other")


def measured(row: str, words: list[str]) -> dict[str, object]:
    """Return a row: milliseconds per round, and per part of it."""
    rounds = 8 if "1000" in row else 60
    whole, profile = rounds_of(words, rounds), cProfile.Profile()
    rounds_of(words, rounds, profile)
    kernels, places = divided(profile, rounds - 1)
    python, profiled = max(whole - kernels, 0.0), sum(places.values())
    parts = {place: python * places.get(place, 0) / profiled for place in (*PLACES, "other")}
    parts_of = {"a round": whole, "torch and NumPy": kernels} | parts
    return {"row": row} | {f"{name}, ms": round(1000 * seconds, 1) for name, seconds in parts_of.items()}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description="Where a round's time goes.")
    parser.add_argument("words", nargs="*", help="of another run, which is printed and not kept")
    parser.add_argument("--only", default="", help="the row of this name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.words:
        print(measured(" ".join(args.words), args.words))
        return
    if args.only and args.only not in ROWS:
        parser.error(f"no row {args.only}; there are: {'; '.join(ROWS)}")
    path = Path(RESULTS / "limits.csv")
    kept = {}
    if path.exists():
        with path.open(newline="") as file:
            kept = {row["row"]: row for row in csv.DictReader(file)}
    for row in ROWS:
        if args.only in ("", row):
            kept[row] = {name: str(value) for name, value in measured(row, TABLE[row]).items()}
            print(kept[row], flush=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(next(iter(kept.values()))), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())


if __name__ == "__main__":
    main()
