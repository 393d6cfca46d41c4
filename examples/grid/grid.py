"""Three areas of a power grid predict overloads: each alone, together, with sums over tie lines, and with all data in one place.

    pip install pandapower                       # an own environment is best: it needs pandas 2
    python examples/grid/grid.py                 # five seeds, under a minute
    python examples/grid/grid.py --seeds 10 --write results.csv       # as the page of results

The grid is pandapower's `case39` (New England: 39 buses in three areas, with the lines' real ratings). A load case draws loads
and generation and takes one line out. AC power flow says which lines are loaded above their rating. A bus at the end of such a
line has class 1. A model sees what an operator plans: loads, generation, and which lines are in service.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student
from torch_geometric.data import Data

import fedgraph_flwr as fg

MODELS = {"gcn": ["fedavg", "fedgcn", "central"], "sage": ["fedavg", "central"]}
METHODS = {"local": "own", "fedavg": "FedAvg", "fedgcn": "FedGCN", "central": "pooled"}
KEYS: dict[str, Any] = {"train.lr": 0.01, "train.local_steps": 5, "train.loss": "weighted", "model.hidden": 64}
SCORES: dict[str, Any] = {"evaluation.metric": "average_precision", "evaluation.every": 5}
TRAIN, VAL = 0.5, 0.2
"""Shares of the load cases."""


class Cases(NamedTuple):
    """Load cases of one grid of N buses and B branches (lines, then transformers).

    Attributes:
        area: of each bus, int [N].
        ends: buses of each branch, int [B, 2].
        rating: MVA [B].
        power: load in MW and Mvar and planned generation in MW of each case, [K, N, 3].
        live: which branches are in service, bool [K, B].
        overloaded: which of them are loaded above their rating, bool [K, B].
    """

    area: np.ndarray
    ends: np.ndarray
    rating: np.ndarray
    power: np.ndarray
    live: np.ndarray
    overloaded: np.ndarray


def simulate(number: int, seed: int = 0) -> Cases:
    """Return load cases of New England, by AC power flow."""
    try:
        import pandapower as pp
        from pandapower.networks import case39
        from pandapower.topology import unsupplied_buses
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is missing: pip install pandapower") from None
    net, rng = case39(), np.random.default_rng(seed)
    place = pd.Series(range(len(net.bus)), index=net.bus.index)
    area = net.bus.zone.astype(int).to_numpy() - 1
    lines, trafos = net.line[["from_bus", "to_bus"]].to_numpy(), net.trafo[["hv_bus", "lv_bus"]].to_numpy()
    ends = place[np.concatenate([lines, trafos]).ravel()].to_numpy().reshape(-1, 2)
    volts = net.bus.vn_kv.to_numpy()[ends[: len(lines), 0]]
    rating = np.concatenate([3**0.5 * volts * net.line.max_i_ka * net.line.parallel, net.trafo.sn_mva])
    loads, plants = place[net.load.bus].to_numpy(), place[net.gen.bus].to_numpy()
    usual, planned = net.load[["p_mw", "q_mvar"]].to_numpy(), net.gen.p_mw.to_numpy()
    spare = []
    for line in net.line.index:  # whose loss leaves no bus without supply
        net.line.loc[line, "in_service"] = False
        spare += [] if unsupplied_buses(net) else [line]
        net.line.loc[line, "in_service"] = True
    cases: list[tuple[np.ndarray, ...]] = []
    while len(cases) < number:
        factor = rng.uniform(0.8, 1.35, 3)[area[loads]] * rng.normal(1, 0.15, len(loads)).clip(0.5, 1.5)
        net.load[["p_mw", "q_mvar"]] = usual * factor[:, None]
        share = rng.normal(1, 0.2, len(plants)).clip(0.4, 1.6)
        net.gen["p_mw"] = planned * share * net.load.p_mw.sum() / usual[:, 0].sum()
        net.line["in_service"] = net.line.index != rng.choice(spare)
        try:
            pp.runpp(net, numba=False)
        except pp.LoadflowNotConverged:
            continue
        power = np.zeros((len(place), 3))
        np.add.at(power[:, :2], loads, net.load[["p_mw", "q_mvar"]].to_numpy())
        np.add.at(power[:, 2], plants, net.gen.p_mw.to_numpy())
        live = np.concatenate([net.line.in_service.to_numpy(), np.ones(len(trafos), dtype=bool)])
        percent = np.concatenate([net.res_line.loading_percent, net.res_trafo.loading_percent])
        cases.append((power, live, live & (percent > 100)))
    return Cases(area, ends, rating, *map(np.stack, zip(*cases, strict=True)))


def stored(folder: Path, number: int) -> Cases:
    """Return load cases, which the folder keeps."""
    path = folder / f"cases-{number}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **simulate(number)._asdict())
    with np.load(path) as held:
        return Cases(**held)


def graph(cases: Cases, seed: int) -> Data:
    """Return the buses of all cases as one graph, with the area of each in ``group``; a seed draws which cases train and test.

    Features: the name of the bus (one-hot), load, generation, branches in service and their rating, whether a branch is out.
    Each area scales its numbers by mean and standard deviation of its own training cases.
    """
    number, buses = len(cases.power), len(cases.area)
    degree, capacity, out = (np.zeros((number, buses)) for _ in range(3))
    y = np.zeros((number, buses), dtype=np.int64)
    for k, (live, over) in enumerate(zip(cases.live, cases.overloaded, strict=True)):
        np.add.at(degree[k], cases.ends[live].ravel(), 1)
        np.add.at(capacity[k], cases.ends[live].ravel(), cases.rating[live].repeat(2))
        out[k, cases.ends[~live].ravel()] = 1
        y[k, cases.ends[over].ravel()] = 1
    x = np.concatenate([cases.power, *(column[..., None] for column in (degree, capacity, out))], axis=2)
    order = np.random.default_rng(seed).permutation(number)
    split = np.split(order, [round(TRAIN * number), round((TRAIN + VAL) * number)])
    for area in np.unique(cases.area):
        members = cases.area == area
        known = x[np.ix_(split[0], members)].reshape(-1, x.shape[2])
        x[:, members] = (x[:, members] - known.mean(0)) / known.std(0).clip(1e-3)
    names = np.broadcast_to(np.eye(buses), (number, buses, buses))
    rows, branches = np.nonzero(cases.live)
    edges = (cases.ends[branches] + rows[:, None] * buses).T
    masks = {}
    for key, part in zip(("train_mask", "val_mask", "test_mask"), split, strict=True):
        masks[key] = torch.from_numpy(np.isin(np.arange(number), part).repeat(buses))
    return Data(
        x=torch.tensor(np.concatenate([x, names], axis=2).reshape(number * buses, -1), dtype=torch.float32),
        edge_index=torch.from_numpy(np.concatenate([edges, edges[::-1]], axis=1).astype(np.int64)),
        y=torch.from_numpy(y.ravel()),
        group=torch.from_numpy(np.tile(cases.area, number)),
        **masks,
    )


def compared(cases: Cases, model: str, seeds: Sequence[int], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Train a model by each method; print the verdict, and return the rows of scores."""

    def of_seed(seed: int) -> Data:
        return graph(cases, seed)

    sweep = fg.sweep(
        of_seed,
        dataset="grid",
        partition="planted",
        num_clients=int(cases.area.max()) + 1,
        model=model,
        strategy=MODELS[model],
        rounds=rounds,
        seed=seeds,
        out=folder,
        progress=False,
        **KEYS,
        **SCORES,
    )
    print(f"{model}:", *sweep.verdicts)
    return [
        {"model": model, "method": METHODS[run.summary["strategy"]], "seed": run.config.seed, "score": run.score}
        for run in sweep.runs
    ]


def cell(values: pd.Series, sign: str = "") -> str:
    """Return mean and half of the 95 % interval over seeds (Student's t), in percent."""
    half = student.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{100 * values.mean():{sign}.1f} ± {100 * half:.1f}"


def table(rows: pd.DataFrame) -> str:
    """Return average precision on test cases, mean over areas, and its paired difference from own models."""
    lines = ["| model | training | average precision | minus own |", "|---" * 4 + "|"]
    by_seed = rows.set_index("seed")
    for (model, method), group in by_seed.groupby(["model", "method"], sort=False):
        own_scores = by_seed[(by_seed["model"] == model) & (by_seed["method"] == "own")]["score"]
        difference = "" if method == "own" else cell(group["score"] - own_scores, "+")
        lines.append(f"| {model} | {method} | {cell(group['score'])} | {difference} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, train, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("grid"))
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", type=Path, help="CSV of the scores")
    args = parser.parse_args()
    cases = stored(args.folder, args.cases)
    rows = [row for model in MODELS for row in compared(cases, model, range(args.seeds), args.rounds, args.folder)]
    print(table(pd.DataFrame(rows)))
    if args.write:
        pd.DataFrame(rows).round(4).to_csv(args.write, index=False)


if __name__ == "__main__":
    main()
