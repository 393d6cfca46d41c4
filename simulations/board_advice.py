"""Advice which method to try on other data, from the rows of the board: it has to beat "always FedAvg" on left-out data sets."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from fedgraph_flwr.config import compose
from fedgraph_flwr.evaluation.intervals import interval
from simulations.board_rows import FEDAVG, Board

DATA = Path(__file__).parent / "results" / "board_data.csv"
PROPERTIES = ("homophily", "homophily_gap", "label_skew", "log_nodes", "cut_share")


def measured(overrides: Sequence[str]) -> dict[str, float]:
    """Return the properties of a configuration's clients."""
    import torch

    from fedgraph_flwr import partition
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.data.statistics import edge_homophily, label_skew

    cfg = partition.resolved(configuration(overrides))
    clients = [partition.load_client(cfg, i) for i in range(partition.num_clients(cfg))]
    kept, cut = (sum(getattr(c, key).size(1) for c in clients) for key in ("edge_index", "cut_out"))
    levels = [level for c in clients if (level := edge_homophily(c.edge_index, c.y)) is not None]
    labels = torch.stack([torch.bincount(c.y[c.y >= 0], minlength=c.num_classes) for c in clients])
    return {
        "homophily": fmean(levels),
        "homophily_gap": max(levels) - min(levels),
        "label_skew": float(label_skew(labels)[1].mean()),
        "log_nodes": math.log(sum(c.num_nodes for c in clients)),
        "cut_share": cut / max(kept + cut, 1),
    }


def measure(board: Board) -> None:
    """Store the properties of every complete setting, for the first seed; stored ones are kept."""
    known = properties()
    for setting in board.complete:
        if setting not in known:
            measurement = measured(
                [*board.sweep.common, *board.sweep.settings[setting], f"seed={board.sweep.seeds[0]}"]
            )
            known[setting] = [measurement[key] for key in PROPERTIES]
    with DATA.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", *PROPERTIES])
        writer.writerows([setting, *(f"{value:.4f}" for value in values)] for setting, values in known.items())


def properties() -> dict[str, list[float]]:
    """Return the stored properties of each setting."""
    if not DATA.is_file():
        return {}
    with DATA.open(newline="") as file:
        return {row["setting"]: [float(row[key]) for key in PROPERTIES] for row in csv.DictReader(file)}


class Adviser:
    """The method that was best on the most similar data set, by standardised properties.

    Args:
        points: properties of each setting.
        gains: points above FedAvg of each setting and method.
        groups: data set of each setting; settings of one data set are left out together.
    """

    def __init__(
        self, points: Mapping[str, Sequence[float]], gains: Mapping[str, Mapping[str, float]], groups: Mapping[str, str]
    ):
        self.points, self.gains, self.groups = points, gains, groups

    def choose(self, point: Sequence[float], known: Sequence[str]) -> tuple[str, str]:
        """Return the method for a point, and the most similar of the known settings."""
        table = np.array([self.points[s] for s in known])
        scale = table.std(0)
        distance = (((table - np.asarray(point)) / np.where(scale > 0, scale, 1)) ** 2).sum(1)
        nearest = known[int(distance.argmin())]
        return max(self.gains[nearest], key=lambda m: self.gains[nearest][m]), nearest

    def left_out(self) -> dict[str, float]:
        """Return the mean gain over FedAvg of the advice for each data set, from the others only."""
        by_group: dict[str, list[float]] = {}
        for setting, group in self.groups.items():
            known = [s for s, other in self.groups.items() if other != group]
            if known:
                method, _ = self.choose(self.points[setting], known)
                by_group.setdefault(group, []).append(self.gains[setting].get(method, math.nan))
        return {group: fmean(gains) for group, gains in by_group.items()}

    def speaks(self) -> bool:
        """Whether the 95 % interval of the gain over left-out data sets is above 0."""
        gains = list(self.left_out().values())
        return len(gains) > 1 and (gain := interval(gains)).mean > gain.half


def adviser(board: Board) -> Adviser:
    """Return the adviser of the complete settings, over the methods that pool no graphs and ended on each seed."""
    points, seeds = properties(), len(board.sweep.seeds)
    settings = [s for s in board.complete if s in points]
    differences = {
        m: {s: gap.mean for s in settings if (gap := board.difference(s, m, FEDAVG)) and gap.n == seeds}
        for m in board.methods
        if not board.pools(m)
    }
    gains = {s: {m: by[s] for m, by in differences.items() if len(by) == len(settings)} for s in settings}
    groups = {s: compose([*board.sweep.common, *board.sweep.settings[s]]).dataset.name for s in settings}
    return Adviser(points, gains, groups)


def advise(board: Board, overrides: Sequence[str]) -> str:
    """Return the advice for a configuration, or why there is none."""
    guide = adviser(board)
    if not guide.speaks():
        count = len(guide.left_out())
        return f"No advice: on {count} left-out data sets, no choice by data properties beats always using {FEDAVG}."
    mine = measured(["protocol=board", *overrides])
    method, nearest = guide.choose([mine[key] for key in PROPERTIES], list(guide.groups))
    values = ", ".join(f"{key} {value:.2f}" for key, value in mine.items())
    return f"Try {method}: it was best on {nearest}, the most similar setting (your data: {values})."
