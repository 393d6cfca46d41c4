"""Reasons of planted payments: how often `fedgraph-flwr explain` lists payments of the same pattern first.

    python -m benchmarks.reasons [--sets 5] [--items 20] [--rounds 40]

Each data set has one bank's payments with planted rings; a model trains on them. Of each of the planted payments with the highest
scores, the other payments that its score reads are ranked by how much they raise it, as `alerts` lists them. Two numbers: how
often a payment of the item's own ring is among the first five, and which share of the first five they are. Compared with
contributions in a model with random parameters, and with a random order of these payments (exact). ± half of the 95 % interval of
the mean over data sets (Student's t).
"""

import argparse
import tempfile
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedgraph_flwr as fg
from fedgraph_flwr.data.payments import PaymentsSpec, generate
from fedgraph_flwr.evaluation.intervals import interval
from fedgraph_flwr.party.use.explain import explain
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.tasks.edges import Edges

RINGS: dict[str, Any] = {
    "accounts": 300,
    "background": 1200,
    "per_kind": 8,
    "kinds": ("cycle",),
    "decoy_dir": 0,
    "decoy_time": 0,
}
FIRST = 5


def measured(seed: int, rounds: int, items: int, out: Path) -> NDArray[np.float64]:
    """Return how often and which share of the first five are planted, by the model, a random model and chance, [2, 3]."""
    keys: dict[str, Any] = {f"dataset.{key}": value for key, value in RINGS.items()} | {"dataset.kinds": ["cycle"]}
    keys |= {"dataset.cross": 0.0, "dataset.seed": seed, "seed": seed, "model.hidden": 16, "checkpoint_every": 0}
    run = fg.run(task="edges", dataset="payments", num_clients=1, rounds=rounds, progress=False, out=str(out), **keys)
    predictor = load_predictor(run.path, 0)
    graph = predictor.client_graph
    made = generate(PaymentsSpec(**RINGS, cross=0.0), seed=seed, banks=1)
    listed = zip(made.source, made.target, made.time, made.pattern, strict=True)
    pattern_of = {(int(s), int(t), int(at)): int(pattern) for s, t, at, pattern in listed}
    ends = graph.node_id[graph.edge_index].T.tolist()
    pattern = np.array([pattern_of[s, t, at] for (s, t), at in zip(ends, graph.edge_time.tolist(), strict=True)])
    logits, task = predictor.items(graph)
    assert isinstance(task, Edges)
    score = (logits[:, 1] - logits[:, 0]).double().numpy()
    rows = np.flatnonzero(task.y.numpy() == 1)
    rows = rows[np.argsort(-score[rows], kind="stable")][:items]
    numbers = task.order[torch.from_numpy(rows)].tolist()
    shares = []
    for item, reasons in zip(numbers, explain(predictor, graph, None, None, list(map(str, numbers))), strict=True):
        edges = reasons.edges.astype(int)
        read = (reasons.of_edges != 0) & (edges != item)
        same = pattern[edges] == pattern[item]
        reach, planted = int(read.sum()), int((read & same).sum())
        if not planted or reach <= FIRST:
            continue
        row = []
        for raised in (reasons.of_edges, reasons.random[len(reasons.columns) :]):
            first = np.argsort(-np.where(read, raised, -np.inf), kind="stable")[:FIRST]
            row.append([same[first].any(), same[first].mean()])
        row.append([1 - comb(reach - planted, FIRST) / comb(reach, FIRST), planted / reach])
        shares.append(row)
    return np.transpose(np.mean(shares, axis=0))


def main() -> None:
    """Print both numbers, and their differences to those of a random model and of chance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    figures = []
    for seed in range(given.sets):
        with tempfile.TemporaryDirectory() as out:
            figures.append(measured(seed, given.rounds, given.items, Path(out) / "run"))
        print(f"set {seed}: {figures[-1].round(3).tolist()}", flush=True)
    print(f"{'':24} {'model':>14} {'random model':>14} {'chance':>8} {'over random':>14} {'times chance':>13}")
    for name, values in zip(
        (f"any of the first {FIRST}", f"share of the first {FIRST}"), np.stack(figures, axis=1), strict=True
    ):
        model, random, chance = (interval(values[:, k].tolist()) for k in range(3))
        over = interval((values[:, 0] - values[:, 1]).tolist())
        cells = [f"{one.mean:.3f} ± {one.half:.3f}" for one in (model, random)]
        cells += [f"{chance.mean:8.3f}", f"{over.mean:+.3f} ± {over.half:.3f}", f"{model.mean / chance.mean:13.1f}"]
        print(f"{name:24} {cells[0]:>14} {cells[1]:>14} {cells[2]} {cells[3]:>14} {cells[4]}")


if __name__ == "__main__":
    main()
