"""Graph statistics: sizes, homophily, labels, masks, cut edges."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.cleaning import to_undirected
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.mapped import CompressedEdges


def edge_homophily(edge_index: Tensor, y: Tensor) -> float | None:
    """Return the share of same-class edges among those with two labelled ends (Zhu et al., NeurIPS 2020)."""
    source, target = edge_index
    known = (y[source] >= 0) & (y[target] >= 0)
    if not bool(known.any()):
        return None
    return float((y[source] == y[target])[known].double().mean())


def node_homophily(edge_index: Tensor, y: Tensor) -> float | None:
    """Return the mean share of same-class in-neighbours over nodes with a labelled in-neighbour (Pei et al., ICLR 2020)."""
    source, target = edge_index
    known = (y[source] >= 0) & (y[target] >= 0)
    source, target = source[known], target[known]
    degree = torch.bincount(target, minlength=len(y))
    same = torch.bincount(target[y[source] == y[target]], minlength=len(y))
    reached = degree > 0
    return float((same[reached] / degree[reached]).double().mean()) if bool(reached.any()) else None


def _edge_values(graph: Graph) -> tuple[Tensor, dict[str, Any]]:
    """Return the number of edges at each node [N], and what `describe` says of edges."""
    source, target = graph.edge_index
    return torch.bincount(torch.cat([source, target]), minlength=graph.num_nodes), {
        "edge_homophily": edge_homophily(graph.edge_index, graph.y),
        "node_homophily": node_homophily(graph.edge_index, graph.y),
        "self_loops": int((source == target).sum()),
        "undirected": is_undirected(graph.edge_index, graph.num_nodes),
    }


def _mapped_edge_values(graph: Graph, edges: CompressedEdges) -> tuple[Tensor, dict[str, Any]]:
    """As `_edge_values` of mapped edges, block by block, without node homophily."""
    y, n, total = graph.y.numpy(), graph.num_nodes, len(edges.indices)
    indptr, indices = edges.whole_indptr(n).numpy(), edges.indices.numpy()
    met, known, same, loops = np.diff(indptr), 0, 0, 0
    for start in range(0, total, 1 << 22):
        far = indices[start : start + (1 << 22)].astype(np.int64)
        near = np.searchsorted(indptr, np.arange(start, start + len(far)), side="right") - 1
        met = met + np.bincount(far, minlength=n)
        labelled = (y[near] >= 0) & (y[far] >= 0)
        known, same = known + int(labelled.sum()), same + int((labelled & (y[near] == y[far])).sum())
        loops += int((near == far).sum())
    homophily = {"edge_homophily": same / known if known else None, "node_homophily": None}
    return torch.from_numpy(met), homophily | {"self_loops": loops, "undirected": edges.rows == "both"}


def describe(graph: Graph | HeteroGraph) -> dict[str, Any]:
    """Return statistics of a graph as JSON values.

    Returns:
        ``nodes``, ``edges`` (directed, as stored), ``features``, ``classes``, ``labels`` (nodes of each class [C]),
        ``labelled``, ``train``/``val``/``test`` (nodes in each mask), ``edge_homophily`` and ``node_homophily`` (None
        without edges), ``degree`` (mean), ``isolated``, ``self_loops``, ``undirected``; for a client also ``client`` and
        ``cut_edges`` (outgoing or incoming). A heterogeneous graph has ``node_types`` and ``edge_types`` instead of ``degree``
        and the keys after it, and no homophily.
    """
    facts: dict[str, Any] = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": max(graph.num_features[2 : 2 + len(graph.counts)])
        if isinstance(graph, HeteroGraph)
        else graph.num_features,
        "classes": graph.num_classes,
        "labels": torch.bincount(graph.y[graph.y >= 0], minlength=graph.num_classes).tolist(),
        "labelled": int((graph.y >= 0).sum()),
        **{split: int(getattr(graph, f"{split}_mask").sum()) for split in ("train", "val", "test")},
    }
    if isinstance(graph, HeteroGraph):
        facts |= {
            "edge_homophily": None,
            "node_homophily": None,
            "node_types": sum(n > 0 for n in graph.counts.values()),
        }
        facts["edge_types"] = sum(index.size(1) > 0 for index in graph.edges.values())
        return facts | ({"client": graph.client, "cut_edges": 0} if isinstance(graph, HeteroClientGraph) else {})
    edges = graph.compressed
    met, values = _edge_values(graph) if edges is None else _mapped_edge_values(graph, edges)
    facts |= {key: values[key] for key in ("edge_homophily", "node_homophily")}
    facts |= {"degree": graph.num_edges / max(graph.num_nodes, 1), "isolated": int((met == 0).sum())} | values
    if isinstance(graph, ClientGraph):
        facts |= {"client": graph.client, "cut_edges": graph.cut_out.size(1) + graph.cut_in.size(1)}
    return facts


def degree_shares(degrees: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the share of nodes in each of ten degree bins of doubling width: 0, 1, 2, 3–4, 5–8 and so on."""
    edges = [0, 1, 2, *(2**power for power in range(2, 9))]  # upper ends, the last bin is open
    place = np.searchsorted(edges, degrees)
    names = [
        "0",
        "1",
        "2",
        *(f"{low + 1}–{high}" for low, high in pairwise(edges[2:])),
        f"> {edges[-1]}",
    ]
    counts = np.bincount(place, minlength=len(names)).astype(float)
    return names, counts / max(counts.sum(), 1)


def label_skew(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Measure how far each client's label distribution is from the pooled one, from class counts [M, C].

    Returns:
        The share of each client's largest class [M], and the total-variation distance between its label distribution and
        the pooled one [M], 0 for a client without labelled nodes.
    """
    counts = labels.double()
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    whole = counts.sum(0) / counts.sum().clamp(min=1)
    distance = 0.5 * (share - whole).abs().sum(1)
    return share.max(1).values, torch.where(counts.sum(1) > 0, distance, 0.0)


def is_undirected(edge_index: Tensor, num_nodes: int) -> bool:
    """Return whether every edge has its reverse."""
    distinct = torch.unique(edge_index[0] * num_nodes + edge_index[1]).numel()
    return to_undirected(edge_index, num_nodes).size(1) == distinct
