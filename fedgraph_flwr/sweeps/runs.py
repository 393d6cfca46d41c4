"""Run one cell of a sweep in this process, from its overrides to its row."""

import contextlib
import hashlib
import math
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line, sanitize
from fedgraph_flwr.evaluation.best_round import MISSING, coverage
from fedgraph_flwr.sweeps.rows import DIED, FAILED, FIELDS, HOMOPHILY, MAJORITY, PARTLY, REFUSED
from fedgraph_flwr.sweeps.spec import Cell


@dataclass(frozen=True)
class Keep:
    """What a sweep keeps of its runs.

    Attributes:
        folder: folder of the run folders.
        whole: whether models and checkpoints are kept, too; else only configuration, rounds and summary.
    """

    folder: Path
    whole: bool = True


def run_cell(cell: Cell, keep: Keep | None = None, on_share: Callable[[float], None] | None = None) -> dict[str, Any]:
    """Run a cell and return its row, with the reason if it has no score.

    Args:
        cell: the cell to run.
        keep: what is kept of the run folder; without it, nothing is, and no checkpoints are written.
        on_share: called with the finished share of the rounds, after each round.
    """
    began, cpu = time.perf_counter(), time.process_time()
    with contextlib.suppress(OSError):  # Linux: peak memory is this cell's, not that of earlier ones in this process
        Path("/proc/self/clear_refs").write_text("5")
    try:
        if cell.method == MAJORITY:
            figures = {"value": majority(cell.overrides), "headline": f"{_score(cell.overrides)} at chance"}
        elif cell.method == HOMOPHILY:
            figures = {"value": homophily(cell.overrides)}
        else:
            figures = _train(cell, keep, on_share)
    except RunFailed as error:  # such as diverging training: also a result
        figures = {"value": math.nan, "headline": f"{FAILED}{error}"}
    except FedGraphError as error:
        figures = {"value": math.nan, "headline": f"{REFUSED}{error}"}
    except Exception as error:
        figures = {"value": math.nan, "headline": f"{DIED}{type(error).__name__}: {first_line(error)}"}
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    return {**cell.row, **figures, **{key: round(value, 3) for key, value in spent.items()}}


def _train(cell: Cell, keep: Keep | None, on_share: Callable[[float], None] | None) -> dict[str, Any]:
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.launch.runner import run
    from fedgraph_flwr.store.results import CONFIG, ROUNDS, SUMMARY, headline_score

    with tempfile.TemporaryDirectory() as temporary:
        out = keep.folder / run_name(cell) if keep and keep.whole else Path(temporary)
        group = [f"tracking_group={cell.group}"] if cell.group else []
        cfg = configuration(["checkpoint_every=0", *group, *cell.overrides, f"out={out}", "overwrite=true"])
        summary = run(cfg, (lambda record: on_share(record["round"] / cfg.rounds)) if on_share else None)
        digest = parameters(out)
        if keep and not keep.whole:
            (keep.folder / run_name(cell)).mkdir(parents=True, exist_ok=True)
            for name in (CONFIG, ROUNDS, SUMMARY):
                shutil.copyfile(out / name, keep.folder / run_name(cell) / name)
    key, choice = summary["headline"].split(" at ")
    if choice not in summary["metrics"]:
        raise FedGraphError(f"the run reported no {key}, so it cannot be compared")
    at = {name: summary["metrics"][name][key] for name in ("last", "last5")}
    same = {name: summary[name] for name in FIELDS if name in summary and name != "seed"} | {"parameters": digest}
    same["exchanges"] = sum(phase["exchanges"] for phase in summary["bytes_by_phase"].values())
    if failed := summary["failures"]:
        who, reason = next(iter(failed.items()))
        partly = f"{PARTLY}{coverage(summary)}; " if MISSING in summary else ""
        same["missed"] = sanitize(f"{partly}client {who}: {reason}", 300)
    if "attack" in summary:
        return {**same, "headline": "the attack's accuracy", "value": summary["attack"]["accuracy"]}
    if "adversary" in summary:
        same["success"] = summary["adversary"]["success"]
    validation = summary["metrics"][choice][key.replace("test", "val", 1)]
    return {**same, **at, "value": headline_score(summary), "validation": validation}


def parameters(out: Path) -> str:
    """Return 16 hexadecimal digits over the parameters after the last round, of the server and of clients."""
    paths = [*sorted(out.glob("model*_final.safetensors")), *sorted(out.glob("state/*/*/model_last.safetensors"))]
    trees = [sorted(read_tensors(path)[0].items()) for path in paths]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tree in trees for _, tensor in tree)).hexdigest()[:16]


def run_name(cell: Cell) -> str:
    """Return the name of a cell's run folder."""
    return re.sub(r"[^\w.=-]+", "-", f"{cell.setting}-{cell.method}-{cell.seed}")


def _score(overrides: Sequence[str]) -> str:
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.evaluation import metrics

    return metrics.headline(configuration(overrides).evaluation, "test")


def homophily(overrides: Sequence[str]) -> float:
    """Return node homophily: the mean share of in-neighbours of the same class, averaged over nodes, then clients."""
    from fedgraph_flwr.data.statistics import node_homophily

    _, graphs = _clients(overrides)
    return statistics.mean(node_homophily(g.edge_index, g.y) or 0.0 for g in graphs)


def majority(overrides: Sequence[str]) -> float:
    """The chance level of the protocol's score; of accuracy, by the most frequent training label of all clients."""
    import torch
    import torch.nn.functional as F

    from fedgraph_flwr.evaluation import metrics
    from fedgraph_flwr.tasks import kind_of

    cfg, graphs = _clients(overrides)
    tasks = [kind_of(cfg)(cfg, graph) for graph in graphs]
    classes = kind_of(cfg).capabilities.classes
    labels = torch.cat([task.y[task.masks["train"]] for task in tasks]) if classes else None
    if labels is not None and not labels.numel():
        raise FedGraphError(f"no client has a labelled training item of task={cfg.task.name}")
    label = labels.bincount().argmax() if labels is not None else None
    scores: dict[str, list[float]] = {}
    for task in tasks:
        width = task.width
        constant = torch.zeros(task.num_rows, width)
        if label is not None:
            constant = F.one_hot(label, width).float().expand(task.y.numel(), -1)
        task_scores = task.scorer(cfg.evaluation.min_items).score(
            constant, task.wanted(cfg.evaluation, width), cfg.evaluation.own
        )
        scores = {key: [*scores.get(key, []), *values] for key, values in task_scores.items()}
    key = metrics.headline if cfg.evaluation.metric == "accuracy" else metrics.chance_key
    return metrics.averages(scores, [float(g.num_nodes) for g in graphs])[key(cfg.evaluation, "test")]


def _clients(overrides: Sequence[str]) -> tuple[Any, list[Any]]:
    """Return the configuration and the clients' graphs."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.config import configuration

    cfg = configuration(overrides)
    if cfg.on_fleet and not cfg.graph:
        instead = "pass --no-baselines; the chance level is in each run's summary.json (--keep)"
        raise FedGraphError(f"engine={cfg.engine} is a fleet, whose parties keep their labels: {instead}")
    cfg = partition.resolved(cfg)
    return cfg, [partition.load_client(cfg, index) for index in range(partition.num_clients(cfg))]
