"""Rounds and bytes that each method needs to reach a validation accuracy: ``python -m simulations.budget --seeds 0 1 2``.

The clients are CSBM graphs with different homophily (`WORDS`). Methods are the files of ``conf/strategy`` that train on graphs
with one node type and do not pool them, with the settings and model in their YAML. ``results/budget.csv`` contains the curves,
one row per round. Stored runs are not repeated; delete the file if `WORDS` change. ``results/budget.md`` and the plot show
`needed` at one target.
"""

import argparse
import csv
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr import models
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.launch.runner import run

WORDS = ["dataset=csbm", "num_clients=10", "rounds=40", "evaluation.metric=accuracy", "checkpoint_every=0"]
WORDS += ["dataset.nodes_per_client=[200,600]", "dataset.homophily=0.5", "dataset.gap=0.8", "dataset.mu=3"]
PATH = Path(__file__).parent / "results" / "budget.csv"
FIELDS = ["method", "seed", "round", "validation", "bytes"]


def read(path: Path) -> list[dict[str, str]]:
    """Return the stored rows."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def methods() -> list[str]:
    """Return the methods for graphs with one node type whose data stay with the clients."""
    chosen = [(name, compose([f"strategy={name}"])) for name in group_names("strategy")]
    typed = {name for name, cfg in chosen if models.network(cfg.model).capabilities.heterogeneous}
    return [name for name, cfg in chosen if not cfg.strategy.pooled and name not in typed]


def keeps(method: str) -> str:
    """Return which parameters a method is scored with."""
    rules = compose([f"strategy={method}"]).strategy
    return "clients'" if rules.personal or rules.private or rules.shared != [""] else "shared"


def curve(method: str, seed: int) -> list[dict[str, Any]]:
    """Return validation accuracy and total bytes in both directions after each round, including the setup."""
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as out:
        summary = run(compose([*WORDS, f"strategy={method}", f"seed={seed}", f"out={out}"]), rounds.append)
    sent = [sum(p["bytes_up"] + p["bytes_down"] for p in r["phases"].values()) for r in rounds]
    rows, total = [], summary["bytes_up"] + summary["bytes_down"] - sum(sent)
    for record, more in zip(rounds, sent, strict=True):
        total += more
        if "metrics" in record:
            score = record["metrics"]["val_accuracy"]
            rows.append({"method": method, "seed": seed, "round": record["round"], "validation": score, "bytes": total})
    return rows


def targets(rows: Sequence[dict[str, str]], share: float) -> dict[str, float]:
    """Return, per seed, a share of the median over methods of the best validation accuracy."""
    best: dict[str, dict[str, float]] = {}
    for row in rows:
        reached = best.setdefault(row["seed"], {})
        reached[row["method"]] = max(reached.get(row["method"], 0.0), float(row["validation"]))
    return {seed: share * statistics.median(reached.values()) for seed, reached in sorted(best.items())}


def needed(rows: Sequence[dict[str, str]], target: dict[str, float]) -> dict[str, list[tuple[int, int] | None]]:
    """Return the round and bytes at which each method first reaches its seed's target; None if it does not."""
    arrivals: dict[tuple[str, str], tuple[int, int] | None] = {}
    for row in sorted(rows, key=lambda row: int(row["round"])):
        key = row["method"], row["seed"]
        if arrivals.setdefault(key, None) is None and float(row["validation"]) >= target[row["seed"]]:
            arrivals[key] = int(row["round"]), int(row["bytes"])
    return {name: [at for (method, _), at in arrivals.items() if method == name] for name, _ in arrivals}


def ranked(need: dict[str, list[tuple[int, int] | None]]) -> list[str]:
    """Return the methods by mean bytes; methods that miss the target with a seed come last."""

    def mean(name: str) -> float:
        return statistics.mean(at[1] if at else float("inf") for at in need[name])

    return sorted(need, key=lambda name: (mean(name), name))


def shown(target: dict[str, float]) -> str:
    """Return the targets as text."""
    return ", ".join(f"{100 * value:.1f}" for value in target.values()) + " %"


def summarise(need: dict[str, list[tuple[int, int] | None]], target: dict[str, float], share: float) -> str:
    """Return the Markdown table: means over the seeds that reach the target."""
    lines = ["# Rounds and bytes to one validation accuracy on CSBM with heterogeneous clients", ""]
    lines += [f"`{' '.join(WORDS)}`", ""]
    lines += [
        f"The accuracy is {100 * share:g} % of what the median method reaches: {shown(target)} (seeds {', '.join(target)}).",
        "",
    ]
    lines += ["| method | scored by | seeds that reach it | rounds | MB |"]
    lines.append("|---" * 5 + "|")
    for name in ranked(need):
        there = [at for at in need[name] if at]
        means = [statistics.mean(column) for column in zip(*there, strict=True)]
        cells = f"{means[0]:.1f} | {means[1] / 1e6:.3g}" if means else " | "
        lines.append(f"| {name} | {keeps(name)} | {len(there)} of {len(need[name])} | {cells} |")
    lines += [
        "",
        "Means over the seeds that reach it. Validation accuracy is the plain mean over clients, of one shared model or, where "
        "some or all parameters stay with the clients, of each one's own. Bytes are those of all clients, in both directions, "
        "from the setup on, scores included; Local's are scores alone. Every method runs with the defaults of its YAML and on "
        "its own network where it has one, so this says what they cost as they come, not which is best. "
        "Made by `python -m simulations.budget`.",
    ]
    return "\n".join(lines) + "\n"


def draw(need: dict[str, list[tuple[int, int] | None]], target: dict[str, float]) -> None:
    """One plot: rounds at the left, bytes at the right, a point a seed and a bar for their mean."""
    from matplotlib.figure import Figure

    names = ranked(need)[::-1]
    figure = Figure(figsize=(8, 1 + 0.24 * len(names)), layout="constrained")
    for index, (axes, label) in enumerate(zip(figure.subplots(1, 2, sharey=True), ("rounds", "MB"), strict=True)):
        for y, name in enumerate(names):
            values = [at[index] / (1, 1e6)[index] for at in need[name] if at]
            axes.plot(values, [y] * len(values), "o", color="C0", alpha=0.5)
            if values:
                axes.plot(statistics.mean(values), y, "|", color="C1", markersize=12)
            if None in need[name]:
                missed = f"{need[name].count(None)} of {len(need[name])} never"
                axes.annotate(missed, (1, y), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=7)
        axes.set_xlabel(label)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.grid(alpha=0.3)
        axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xscale("log")
    figure.suptitle(
        f"To {shown(target)} validation accuracy (by seed), CSBM, 10 clients of unlike homophily", fontsize=9
    )
    figure.savefig(PATH.with_suffix(".png"), dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, then write table and plot."""
    parser = argparse.ArgumentParser(prog="python -m simulations.budget", description="Rounds and bytes to a target.")
    parser.add_argument("--share", type=float, default=0.98, help="of the median method's best validation accuracy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args(argv)
    done = {(row["method"], row["seed"]) for row in read(PATH)}
    with PATH.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not done:
            writer.writeheader()
        for seed in args.seeds:
            for method in methods():
                if (method, str(seed)) not in done:
                    writer.writerows(curve(method, seed))
                    file.flush()
    rows = read(PATH)
    target = targets(rows, args.share)
    need = needed(rows, target)
    write_bytes(PATH.with_suffix(".md"), summarise(need, target, args.share).encode())
    draw(need, target)


if __name__ == "__main__":
    main()
