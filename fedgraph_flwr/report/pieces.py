"""Partition section of a report: labels and degrees of each client, and drawings of small clients' graphs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.statistics import degree_shares
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.report.page import Page, grid, note, render
from fedgraph_flwr.report.runs import FinishedRun
from fedgraph_flwr.report.units import count

MAX_ROWS = 40
"""Maximum number of clients in a matrix: the largest ones are shown."""

_MAX_NODES, _MAX_DRAWN, _STEPS = 500, 12, 60
_COLOURS = 10


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
    return [grid(labels, degrees), _graphs(run, classes)]


def _graphs(run: FinishedRun, classes: Sequence[str]) -> Markup:
    """Draw small clients' graphs as SVG."""
    small = [i for i, client in enumerate(run.clients) if client["nodes"] <= _MAX_NODES and "degrees" in client]
    if not small:
        return note(f"No graph is drawn, because all clients have more than {_MAX_NODES} nodes.")
    from fedgraph_flwr import partition

    pictures = []
    for client in small[:_MAX_DRAWN]:
        try:
            graph = partition.load_client(run.cfg, client)
        except FedGraphError:
            continue
        about = f"{run.client_name(client)}: {count(graph.num_nodes)} nodes"
        pictures.append({"about": about, "small": graph.num_nodes > 150, **_paths(graph)})
    more = len(run.clients) - len(pictures)
    left = f" {more} larger or additional clients are not drawn." if more else ""
    return render("graphs", pictures=pictures, note=left, swatches=_swatch_names(classes))


def _swatch_names(classes: Sequence[str]) -> list[str]:
    if len(classes) <= _COLOURS:
        return [f"class {name}" if name.isdecimal() else name for name in classes]
    return [f"class {name}" for name in classes[: _COLOURS - 1]] + ["other classes"]


def _paths(graph: Graph) -> dict[str, Any]:
    """Return SVG paths of a graph, placed by `layout`: the edges, and the nodes of each colour."""
    edges = graph.edge_index.numpy()
    places = np.round(100 * layout(edges, graph.num_nodes), 1)  # [N, 2] in [0, 100]
    once = edges[:, edges[0] < edges[1]]
    lines = "".join(
        f"M{a:g} {b:g}L{c:g} {d:g}" for (a, b), (c, d) in zip(places[once[0]], places[once[1]], strict=True)
    )
    colour = np.clip(graph.y.numpy(), 0, _COLOURS - 1)
    # a zero-length line with round ends is a dot
    dots = {int(k): "".join(f"M{x:g} {y:g}h0" for x, y in places[colour == k]) for k in np.unique(colour)}
    return {"lines": lines, "dots": dots}


def layout(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """Place a small graph's nodes, [N, 2] in [0, 1], by forces (Fruchterman & Reingold, 1991), deterministically.

    All pairs repel each other, so it suits a few hundred nodes.

    Shapes: edges [2, E].
    """
    rng = np.random.default_rng(0)
    places = rng.random((num_nodes, 2), dtype=np.float32)
    ideal = 1 / np.sqrt(max(num_nodes, 1))
    source, target = edges[:, edges[0] != edges[1]]
    for heat in np.linspace(0.12, 0.004, _STEPS, dtype=np.float32):
        apart = places[:, None] - places[None]  # [N, N, 2]
        squared = np.einsum("ijk,ijk->ij", apart, apart) + 1e-6
        push = np.einsum("ijk,ij->ik", apart, ideal**2 / squared)
        along = places[source] - places[target]
        pull = along * (np.linalg.norm(along, axis=1, keepdims=True) / ideal)
        for axis in (0, 1):
            push[:, axis] -= np.bincount(source, pull[:, axis], num_nodes)
        push -= (places - 0.5) * ideal * 12  # keeps unconnected components from drifting away
        length = np.linalg.norm(push, axis=1, keepdims=True) + 1e-9
        places += push / length * np.minimum(length, heat)
    low, span = places.min(0), np.maximum(np.ptp(places, axis=0).max(), 1e-6)
    fitted: np.ndarray = (places - low) / span
    return fitted + (1 - fitted.max(0)) / 2


def class_names(run: FinishedRun, number: int) -> list[str]:
    """Return the names of labels 0..C-1 in the run's graphs."""
    names: Any = run.summary.get("classes")
    known = isinstance(names, list) and len(names) == number
    return list(map(str, names if known else range(number)))
