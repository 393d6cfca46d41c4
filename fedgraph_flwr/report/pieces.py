"""Partition section of a report: labels and degrees of each client."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from fedgraph_flwr.data.statistics import degree_shares
from fedgraph_flwr.report.page import Page, grid, note
from fedgraph_flwr.report.runs import FinishedRun

MAX_ROWS = 40
"""Maximum number of clients in a matrix: the largest ones are shown."""


def drawn(page: Page, run: FinishedRun, classes: Sequence[str]) -> list[Markup]:
    """Return the parts of the section."""
    clients = run.clients
    if not clients:
        why = "the client files are not on this machine, and clients report neither degrees nor labels"
        return [note(f"Not available: {why}.")]
    shown = sorted(sorted(range(len(clients)), key=lambda i: -clients[i]["nodes"])[:MAX_ROWS])
    some = f" The {MAX_ROWS} largest of {len(clients)} clients." if len(shown) < len(clients) else ""
    heat: Any = partial(page.chart, kind="heat", height=90 + 22 * len(shown), rows=[str(i) for i in shown])
    counts = np.array([clients[i]["labels"] for i in shown], dtype=float)
    values = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    how = f"Share of a client's labelled nodes in each class, in %.{some}"
    names = ["client", "class"]
    labels = heat("Labels of each client", how, columns=list(classes), names=names, values=values, counts=counts)
    degrees = Markup("")
    if all("degrees" in clients[i] for i in shown):
        shares = np.array([clients[i]["degrees"] for i in shown])
        used = np.flatnonzero(shares.any(0))
        some_degrees = slice(used.min(), used.max() + 1)
        columns = degree_shares(np.zeros(1, int))[0][some_degrees]
        how = f"Share of a client's nodes by number of neighbours at the same client, in %.{some}"
        names, values = ["client", "neighbours"], shares[:, some_degrees]
        degrees = heat("Degrees within each client", how, columns=columns, names=names, values=values)
    return [grid(labels, degrees)]


def class_names(run: FinishedRun, number: int) -> list[str]:
    """Return the names of labels 0..C-1 in the run's graphs."""
    names: Any = run.summary.get("classes")
    known = isinstance(names, list) and len(names) == number
    return list(map(str, names if known else range(number)))
