"""Three hospitals diagnose tumours: each alone, together, with all rows in one place, and under differential privacy of patients.

    python examples/hospitals/hospitals.py                                   # five seeds, under a minute
    python examples/hospitals/hospitals.py --seeds 20 --write results.csv    # as the page of results

The rows are scikit-learn's breast cancer table (Wisconsin, 569 tumours, 30 measurements), dealt at random to three hospitals.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student
from sklearn.datasets import load_breast_cancer
from sklearn.neighbors import kneighbors_graph
from torch_geometric.data import Data

import fedgraph_flwr as fg

SHARES = (0.5, 0.3, 0.2)
"""Each hospital's share of the patients."""

TRAIN, VAL, NEIGHBOURS = 0.3, 0.2, 5
"""Shares of a hospital's patients with a label for training and for validation; how many similar patients each is joined to."""

MODELS: dict[str, dict[str, Any]] = {"GCN": {"name": "gcn"}, "linear": {"name": "mlp", "layers": 1, "dropout": 0}}
METHODS = {"Local": "own", "fedavg": "federated", "central": "pooled"}
KEYS: dict[str, Any] = {"train.lr": 0.03, "train.weight_decay": 0.0, "evaluation.average": "test_nodes"}
PRIVACY: dict[str, Any] = {
    "privacy.unit": "row",
    "privacy.dp": "local",
    "privacy.rows": 50,  # public: about a hospital's number of training patients
    "privacy.batch": 0,
    "privacy.delta": 0.01,
    "privacy.clipping_norm": 1.0,
    "privacy.scores": "none",
}
COLUMNS = ["model", "method", "seed", "all", "A", "B", "C"]


def patients(rows: np.ndarray, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Data:
    """Return one hospital's graph, made of its own rows only: each patient is joined to the most similar ones.

    Features are scaled by mean and standard deviation of the hospital's training patients. No label makes an edge.
    """
    x, y = x[rows], y[rows]
    order = rng.permutation(len(y))
    first, second = round(TRAIN * len(y)), round((TRAIN + VAL) * len(y))
    masks = {key: torch.zeros(len(y), dtype=torch.bool) for key in ("train_mask", "val_mask", "test_mask")}
    for mask, part in zip(masks.values(), np.split(order, [first, second]), strict=True):
        mask[part] = True
    known = x[order[:first]]
    scaled = (x - known.mean(0)) / known.std(0).clip(1e-9)
    near = kneighbors_graph(scaled, NEIGHBOURS)
    edges = torch.tensor(np.stack((near + near.T).nonzero()), dtype=torch.int64)
    return Data(x=torch.tensor(scaled, dtype=torch.float32), edge_index=edges, y=torch.tensor(y), **masks)


def hospitals(seed: int) -> list[Data]:
    """Return the hospitals' graphs of a seed, which deals the patients and draws who has a label. Class 1 is malignant."""
    x, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(seed)
    cuts = (np.cumsum(SHARES)[:-1] * len(y)).round().astype(int)
    return [patients(rows, x, 1 - y, rng) for rows in np.split(rng.permutation(len(y)), cuts)]


def private(seed: int, noise: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Train the linear model under noise for single patients, and return its row of scores.

    A score would leave the hospitals without noise, so the run has none: each hospital predicts its own patients.
    """
    graphs = hospitals(seed)
    run = fg.run(
        graphs,
        dataset="hospitals",
        strategy="fedgrad",
        model=MODELS["linear"],
        rounds=rounds,
        seed=seed,
        out=folder / f"private-{noise:g}-{seed}",
        overwrite=True,
        progress=False,
        **KEYS | PRIVACY | {"privacy.noise_multiplier": noise, "train.lr": 0.3},
    )
    right = []
    for client, graph in enumerate(graphs):
        predicted = torch.tensor(run.predict(graph, client=client).to_frame()["class"].astype(int).to_numpy())
        right.append((predicted == graph.y)[graph.test_mask].double())
    method = f"federated, ε = {run.summary['privacy']['epsilon']:.1f}"
    scores = [hits.mean().item() for hits in (torch.cat(right), *right)]
    return dict(zip(COLUMNS, ["linear", method, seed, *scores], strict=True))


def compared(name: str, seeds: Sequence[int], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Train a model alone, together and on pooled rows; print the verdict, and return the rows of scores."""
    sweep = fg.sweep(
        hospitals,
        dataset="hospitals",
        model=MODELS[name],
        strategy=["fedavg", "central"],
        rounds=rounds,
        seed=seeds,
        out=folder,
        progress=False,
        **KEYS,
    )
    print(f"{name}:", sweep.verdicts[0])
    rows = []
    for run in sweep.runs:
        apart = run.clients["test_accuracy"].tolist() if len(run.clients) == len(SHARES) else [None] * len(SHARES)
        method = METHODS.get(run.summary["strategy"], METHODS["Local"])
        rows.append(dict(zip(COLUMNS, [name, method, run.config.seed, run.score, *apart], strict=True)))
    return rows


def cell(values: pd.Series, sign: str = "") -> str:
    """Return mean and half of the 95 % interval over seeds (Student's t), in percent."""
    if not (count := values.count()):
        return "–"
    half = student.ppf(0.975, count - 1) * values.std() / count**0.5 if count > 1 else np.nan
    return f"{100 * values.mean():{sign}.1f} ± {100 * half:.1f}"


def table(rows: pd.DataFrame) -> str:
    """Return accuracy on test patients: of all, its paired difference from own models, and by hospital."""
    lines = ["| model | training | all patients | minus own | hospital A | hospital B | hospital C |", "|---" * 7 + "|"]
    by_seed = rows.set_index("seed")
    for (model, method), group in by_seed.groupby(["model", "method"], sort=False):
        own_scores = by_seed[(by_seed["model"] == model) & (by_seed["method"] == "own")]["all"]
        difference = "" if method == "own" else cell(group["all"] - own_scores, "+")
        cells = [model, method, cell(group["all"]), difference, *(cell(group[key]) for key in "ABC")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("hospitals"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--noise", type=float, nargs="*", default=[2.5, 6.0])
    parser.add_argument("--write", type=Path, help="CSV of the scores")
    args = parser.parse_args()
    rows = [row for name in MODELS for row in compared(name, range(args.seeds), args.rounds, args.folder)]
    rows += [private(seed, z, args.rounds, args.folder) for z in args.noise for seed in range(args.seeds)]
    scores = pd.DataFrame(rows, columns=COLUMNS)
    print(table(scores))
    if args.write:
        scores.round(4).to_csv(args.write, index=False)


if __name__ == "__main__":
    main()
