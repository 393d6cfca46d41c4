"""A newcomer's first hour: from a clone to the LaTeX table of a comparison, with an own network on an own graph.

    python -m benchmarks.newcomer               # installs into a new environment, and takes minutes
    python -m benchmarks.newcomer --installed   # with this Python

Prints each step with its seconds of wall time and CPU. The steps are those of README.md; a person's reading comes on top.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

STUDY = """
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import fedgraph_flwr as fg


class Net(nn.Module):
    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.first, self.last = SAGEConv(in_dim, hidden_dim), SAGEConv(hidden_dim, out_dim)

    def forward(self, data):
        return self.last(self.first(data.x, data.edge_index).relu(), data.edge_index)


y = torch.randint(0, 3, (600,))
ends = torch.randint(0, 600, (2, 6000))
data = Data(x=torch.randn(600, 8) + nn.functional.one_hot(y, 8), edge_index=ends[:, y[ends[0]] == y[ends[1]]], y=y)
sweep = fg.sweep(data, partition="random", num_clients=3, model=Net, strategy=["fedavg", "fedprox"], rounds=20, seed=range(3))
print(sweep, sweep.latex())
"""
"""The file that a newcomer writes."""


def steps(installed: bool) -> dict[str, list[str]]:
    """Return the command of each step, to run in an empty folder."""
    python = sys.executable if installed else "env/bin/python"
    install = {
        "environment": [sys.executable, "-m", "venv", "env"],
        "install": [python, "-m", "pip", "install", "-q", "torch==2.13.0", "-e", str(ROOT)],
    }
    first = [python, "-m", "fedgraph_flwr", "run", "rounds=20", "out=runs/first"]
    return ({} if installed else install) | {"first run": first, "LaTeX table of an own network": [python, "study.py"]}


def main(args: list[str] | None = None) -> None:
    """Run the steps in an empty folder, and print their cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", action="store_true", help="install nothing: run the steps with this Python")
    commands = steps(parser.parse_args(args).installed)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.py").write_text(STUDY)
        for name, command in commands.items():
            begun, before = time.monotonic(), os.times()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed: {done.stderr[-2000:]}")
            after = os.times()
            cpu = sum(after[2:4]) - sum(before[2:4])
            print(f"{name}: {time.monotonic() - begun:.0f} s, {cpu:.0f} s of CPU", flush=True)
    if "tabular" not in done.stdout:
        sys.exit(f"no LaTeX table in: {done.stdout}")
    print(f"{len(commands)} commands and one file of {len(STUDY.split())} words")


if __name__ == "__main__":
    main()
