"""Contribution of each party to a model: its Shapley value over coalitions, each of which trains again from the first round.

    v(S)    score of the shared model that the parties S train: mean over all parties of the score on their test items
    φ_i     mean, over orders of the parties, of what v gains when party i joins those before it

The sum of all φ_i is v(all) − v(none); none is a model that gives all items one score. Up to `EXACT` parties, φ_i is exact, after
2^M − 2 runs. For more, orders are drawn, and a 95 % interval shows what that leaves open. Both are about one seed of the run.

A coalition's files are those of `forget`: its run is that of these parties alone, but for scales that an import agreed on with
all. From a party leaves what any run sends. Scores of coalitions tell about single parties: show them only to those who agreed.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.party.forget import held_files, of_clients, without
from fedgraph_flwr.party.use.alerts import labelled
from fedgraph_flwr.party.use.predict import finished, load_predictor
from fedgraph_flwr.party.use.worth import Floats, check_metric, measure

EXACT = 5
"""Largest number of parties for which all coalitions are trained."""

Members = frozenset[int]


def shapley(value: Callable[[Members], float], count: int, orders: int, seed: int = 0) -> Floats:
    """Return each party's Shapley value and the ends of its 95 % interval [count, 3]; NaN ends where it is exact.

    Args:
        value: score of a coalition.
        count: number of parties.
        orders: orders that are drawn for more than `EXACT` parties, at least 2.
        seed: of the draws.
    """
    parties = range(count)
    if count <= EXACT:
        exact = [
            sum(
                (value(Members(rest) | {i}) - value(Members(rest))) / (count * comb(count - 1, size))
                for size in parties
                for rest in combinations([j for j in parties if j != i], size)
            )
            for i in parties
        ]
        return np.array([[gain, np.nan, np.nan] for gain in exact])
    rng, gains = np.random.default_rng(seed), np.zeros((orders, count))
    for row in gains:
        order = rng.permutation(count).tolist()
        scores = [value(Members(order[:size])) for size in range(count + 1)]
        row[order] = np.diff(scores)
    mean = gains.mean(0)
    wide = stdtrit(orders - 1, 0.975) * gains.std(0, ddof=1) / np.sqrt(orders)
    return np.stack([mean, mean - wide, mean + wide], axis=1)


def contribution(folder: Path, out: Path, metric: str = "", orders: int = 20) -> Any:
    """Return a pandas table with one row per party.

    Columns: ``party``, ``contribution`` with ``low`` and ``high``, ``alone``, v of the party, and ``without``, v of all others;
    NaN where that coalition was not trained. ``attrs``: ``metric``, ``none``, ``all``, and ``runs``, their number.

    Args:
        folder: a finished simulation of a method with a shared model.
        out: new folder for the runs of coalitions.
        metric: one of `worth.METRICS`; default: the headline of the run.
        orders: as in `shapley`.

    Raises:
        FedGraphError: a run on a fleet or with one party, a metric that cannot be recomputed, or a method without shared model.
    """
    import pandas as pd

    cfg, _ = finished(folder)
    if cfg.on_fleet:
        where = f"{folder} is a run of the fleet '{cfg.engine}', whose parties hold the files to train on"
        raise FedGraphError(f"{where}: simulate the run with files that they agree to show")
    if cfg.strategy.personal or cfg.strategy.pooled or cfg.strategy.shared != [""]:
        raise FedGraphError(f"strategy={cfg.strategy.name} has no shared model that predicts: pass another run")
    metric = check_metric("contribution", metric or cfg.evaluation.headline, metrics.AT_THRESHOLD)
    held, scores = held_files(cfg), dict[Members, float]()
    if len(held) < 2 or orders < 2 or out.exists():
        got = f"{len(held)}, {orders} and {out}"
        raise FedGraphError(f"contribution needs two parties, --orders of at least 2 and a new folder, got {got}")

    def value(members: Members) -> float:
        if members not in scores:
            path = folder if len(members) == len(held) else out / "-".join(map(str, sorted(members)))
            if path != folder and members:
                _train(cfg, held, members, path)
            scores[members] = _score(path if members else folder, held, metric, empty=not members)
        return scores[members]

    shares = shapley(value, len(held), orders)
    everyone = Members(range(len(held)))
    names = [str(getattr(graph, "linking", {}).get("party", "")) or f"client {i}" for i, graph in enumerate(held)]
    frame = pd.DataFrame({"party": names, **dict(zip(("contribution", "low", "high"), shares.T, strict=True))})
    frame["alone"] = [scores.get(Members({i}), np.nan) for i in everyone]
    frame["without"] = [scores.get(everyone - {i}, np.nan) for i in everyone]
    frame.attrs |= {"metric": metric, "none": value(Members()), "all": value(everyone), "runs": len(scores) - 2}
    return frame


def _train(cfg: Any, held: list[Any], members: Members, out: Path) -> None:
    """Run on the files of a coalition."""
    graphs = held
    for gone in sorted({*range(len(held))} - members, reverse=True):
        graphs = without(graphs, gone)
    for graph in graphs:
        graph.save(out / "files" / f"client_{graph.client:04d}.safetensors")
    run(replace(of_clients(cfg, sorted(members)), graph=str((out / "files").absolute()), out=str(out)))


def _score(folder: Path, graphs: list[Any], metric: str, empty: bool) -> float:
    """Return the mean score of a run's shared model on the test items of all parties; if ``empty``, of one score for all."""
    model, scores = load_predictor(folder), []
    for graph in graphs:
        logits, task = model.items(graph)
        rows = labelled(task, "test")
        outputs = logits.numpy()[rows] * (not empty)
        one = np.zeros(rows.size, dtype=np.int64)
        if rows.size:
            scores.append(float(measure(metric, outputs, task.y.numpy()[rows], one)(np.ones((1, 1), np.float32))[0]))
    return float(np.nanmean(scores))
