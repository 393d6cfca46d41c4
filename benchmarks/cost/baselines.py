"""Cost of the graph baselines on Cora with 10 clients: a table of results/speed-details.md.

    python -m benchmarks.cost baselines                  # every row: three runs in separate processes, one thread
    python -m benchmarks.cost baselines --only FedSage+  # one row
    python -m benchmarks.cost baselines --write          # run nothing; write the stored rows to the text

The protocol is the one OpenFGL was measured with: two-layer GCN unless a method has its own model, hidden 64, Adam 0.01, three
local steps, Louvain, 20/40/40 % of each client. Each method uses the settings in its YAML. Seconds are medians over rounds and
then over runs, including scoring, messages and records; memory is the process's maximum. OpenFGL was measured on a slower
machine, so its times are listed next to its own FedAvg there. Compare how many FedAvg rounds a method takes.
``simulations/results/baselines.csv`` contains the rows.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cost.round import CORA

ROOT = Path(__file__).parents[2]
PATH = ROOT / "simulations" / "results" / "baselines.csv"
TEXT = ROOT / "simulations" / "results" / "speed-details.md"
MARKS = re.compile(
    r"(<!-- baselines: made by python -m benchmarks.cost baselines --write -->\n).*?(?=<!-- end -->)", re.DOTALL
)
FIELDS = ["row", "seconds", "setup", "megabytes", "sent", "sent_before", "words"]
ROUNDS, TURNS = 20, 3

ROWS = {
    "FedAvg": ["strategy=fedavg"],
    "FedSage+": ["strategy=fedsage"],
    "FedGCN, two hops": ["strategy=fedgcn"],
    "FedDEP": ["strategy=feddep", "strategy.encoder_rounds=1"],
    "FED-PUB": ["strategy=fedpub"],
    "FedGTA": ["strategy=fedgta"],
    "GCFL": ["strategy=gcfl"],
    "FedStar": ["strategy=fedstar"],
    "FedLIT": ["strategy=fedlit"],
    "AdaFGL, federated": ["strategy=adafgl", f"strategy.extractor_rounds={ROUNDS}"],
    "AdaFGL, personal": ["strategy=adafgl", "strategy.extractor_rounds=1"],
    "FedGL, overlapping": ["strategy=fedgl", "partition=overlapping"],
    "FGSSL": ["strategy=fgssl"],
    "FGGP": ["strategy=fggp"],
    "FedTAD": ["strategy=fedtad"],
}

OPENFGL = {
    "FedAvg": (0.23, "541 MB"),
    "FedSage+": (1.4, "13 s while its generator trains, 3541 MB, 1228 MB per round"),
    "FED-PUB": (0.5, ""),
    "FedGTA": (0.36, ""),
    "AdaFGL, federated": (0.32, ""),
    "AdaFGL, personal": (0.7, "874 MB"),
    "FGSSL": (3.4, ""),
    "FGGP": (1.1, ""),
    "FedTAD": (16, "1295 MB"),
}
"""Its seconds a round, and what else was measured there."""


def measured(words: list[str]) -> dict[str, float]:
    """Measure one run in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        asked = [*CORA, *words, f"rounds={ROUNDS}", "checkpoint_every=0", f"out={out}", "--quiet"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fedgraph_flwr", "run", *asked]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        summary = json.loads((out / "summary.json").read_text())
        rounds = [json.loads(line)["phases"] for line in (out / "rounds.jsonl").read_text().splitlines()]
    sent = [sum(phase["bytes_up"] + phase["bytes_down"] for phase in phases.values()) for phases in rounds]
    return {
        "seconds": summary["seconds_per_round"],
        "setup": summary["setup_seconds"],
        "megabytes": summary["peak_rss_mb"],
        "sent": statistics.median(sent) / 1e6,
        "sent_before": (summary["bytes_up"] + summary["bytes_down"] - sum(sent)) / 1e6,
    }


def stored() -> dict[str, dict[str, str]]:
    """Return the stored rows by name."""
    if not PATH.exists():
        return {}
    with PATH.open() as file:
        return {row["row"]: row for row in csv.DictReader(file)}


def keep(rows: dict[str, dict[str, str]]) -> None:
    """Write the rows in the order of `ROWS`."""
    with PATH.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in ROWS if name in rows)


def table() -> str:
    """Return the stored rows as Markdown."""
    rows = stored()
    heads = [
        "method",
        "seconds per round",
        "rounds of FedAvg",
        "set-up, s",
        "memory, MB",
        "messages per round, MB",
        "before, MB",
    ]
    heads.append("OpenFGL: seconds, rounds of its FedAvg")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in ROWS:
        if row := rows.get(name):
            ratio = float(row["seconds"]) / float(rows["FedAvg"]["seconds"])
            cells = [f"{float(row['seconds']):.3f}", f"{ratio:.1f}", f"{float(row['setup']):.1f}"]
            cells += [f"{float(row['megabytes']):.0f}", f"{float(row['sent']):.1f}", f"{float(row['sent_before']):.1f}"]
            lines.append("| " + " | ".join([name, *cells, _peer(name)]) + " |")
    return "\n".join(lines)


def _peer(name: str) -> str:
    if name not in OPENFGL:
        return ""
    seconds, more = OPENFGL[name]
    return f"{seconds:g}, {seconds / OPENFGL['FedAvg'][0]:.1f}" + (f"; {more}" if more else "")


def written(text: str) -> str:
    """Return a text whose table has the current rows."""
    return MARKS.sub(lambda match: f"{match[1]}{table()}\n", text)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description="What the graph baselines cost.")
    parser.add_argument("--only", default="", choices=["", *ROWS], help="the row of this name")
    parser.add_argument("--write", action="store_true", help="run nothing, put the rows into the text")
    args = parser.parse_args()
    if args.write:
        TEXT.write_text(written(TEXT.read_text()))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS if args.only in ("", name)}
    for _ in range(TURNS):
        for name, measurements in runs.items():
            measurements.append(measured(ROWS[name]))
    for name, measurements in runs.items():
        figures = {key: f"{statistics.median(run[key] for run in measurements):.4g}" for key in measurements[0]}
        print(name, figures, flush=True)
        keep(stored() | {name: {"row": name, **figures, "words": " ".join([*CORA, *ROWS[name]])}})


if __name__ == "__main__":
    main()
