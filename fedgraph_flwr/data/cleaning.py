"""Checks of an external graph, and the options that change it before the split and the partition."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedgraph_flwr.config import DatasetConfig
from fedgraph_flwr.data.graph import MASKS, Graph, node_rows
from fedgraph_flwr.errors import FedGraphError


def check(graph: Graph, where: str, labelled: bool = True) -> Graph:
    """Return the graph unchanged if its tensors fit together.

    Args:
        graph: graph of N nodes.
        where: its file, for errors.
        labelled: whether at least one node must have a label.

    Raises:
        FedGraphError: wrong shapes, no nodes, no labels, a feature that is not finite, an edge to a missing node, or a label
            outside -1..C-1.
    """
    n = graph.num_nodes
    if n == 0:
        raise FedGraphError(f"{where} has no nodes, expected at least 1")
    computed = "recipe" in graph.own_columns  # its columns of nodes follow the split
    if graph.x.dim() != 2 or graph.x.size(0) != n or (graph.x.size(1) == 0 and not computed):
        raise FedGraphError(f"{where}: x must be [{n}, F] with F >= 1, got {list(graph.x.shape)}")
    in_memory = graph.compressed is None  # compressed edges were checked when their file was read
    if in_memory and (graph.edge_index.dim() != 2 or graph.edge_index.size(0) != 2):
        raise FedGraphError(f"{where}: edge_index must be [2, E], got {list(graph.edge_index.shape)}")
    for key in MASKS:
        if getattr(graph, key).shape != (n,):
            raise FedGraphError(f"{where}: {key} must be [{n}], got {list(getattr(graph, key).shape)}")
    # A finite sum proves that all entries are finite, without a second matrix.
    if not bool(torch.isfinite(graph.x.sum())) and not bool(torch.isfinite(graph.x).all()):
        row, column = (~torch.isfinite(graph.x)).nonzero()[0].tolist()
        value = float(graph.x[row, column])
        raise FedGraphError(f"{where}: features must be finite; node {row} has {value} in column {column}")
    if in_memory:
        _check_ends(graph.edge_index, n, where)
    wrong = (graph.y < -1) | (graph.y >= graph.num_classes)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise FedGraphError(
            f"{where}: labels must be in 0..{graph.num_classes - 1}, or -1 where unknown;"
            f" node {node} has {int(graph.y[node])}"
        )
    if labelled and not bool(graph.labelled.any()):
        raise FedGraphError(
            f"{where} has no labelled node: fill the label (in a saved graph y, from 0) of at least one"
        )
    return graph


def _check_ends(edge_index: Tensor, n: int, where: str) -> None:
    nowhere = ((edge_index < 0) | (edge_index >= n)).any(dim=0)
    if bool(nowhere.any()):
        edge = int(nowhere.nonzero()[0])
        source, target = edge_index[:, edge].tolist()
        raise FedGraphError(f"{where}: edge {edge} joins nodes {source} and {target}, expected nodes in 0..{n - 1}")


def clean(graph: Graph, cfg: DatasetConfig) -> Graph:
    """Apply the keys of ``cfg`` that change a graph, in the order of the lines below."""
    if cfg.edge_types != "triple":
        raise FedGraphError(
            f"dataset.edge_types={cfg.edge_types} is only for heterogeneous graphs, but '{cfg.name}' has a single edge"
            " type: leave it out"
        )
    if cfg.reversed:
        graph = replace(graph, edge_index=graph.edge_index.flip(0))
    if cfg.undirected:
        graph = both_directions(graph)
    if cfg.remove_self_loops:
        proper = (graph.edge_index[0] != graph.edge_index[1]).nonzero().view(-1)
        graph = graph.with_edges(graph.edge_index[:, proper], proper)
    if cfg.drop_featureless:
        graph = subgraph(graph, (graph.x != 0).any(dim=1))
    if cfg.largest_component:
        graph = subgraph(graph, largest_component(graph.edge_index, graph.num_nodes))
    if cfg.normalize_features:
        total = graph.x.abs().sum(dim=1, keepdim=True)
        graph = replace(graph, x=graph.x / torch.where(total > 0, total, torch.ones(())))  # an empty row stays empty
    return graph


def to_undirected(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return both directions of every edge, each once, sorted by source, then target [2, E]."""
    source, target = edge_index
    code = torch.cat([source * num_nodes + target, target * num_nodes + source]).unique()
    return torch.stack([code // num_nodes, code % num_nodes])


def both_directions(graph: Graph) -> Graph:
    """Return a graph with both directions of every edge, sorted by source.

    Each direction is listed once, unless edges carry data: then parallel edges stay, and both directions carry the same data.
    """
    if not graph.has_edge_data:
        return replace(graph, edge_index=to_undirected(graph.edge_index, graph.num_nodes))
    proper = (graph.edge_index[0] != graph.edge_index[1]).nonzero().view(-1)  # a loop is its own reverse
    both = torch.cat([graph.edge_index, graph.edge_index[:, proper].flip(0)], dim=1)
    order = (both[0] * graph.num_nodes + both[1]).argsort(stable=True)
    return graph.with_edges(both[:, order], torch.cat([torch.arange(graph.edge_index.size(1)), proper])[order])


def largest_component(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return a mask of the largest weakly connected component, bool [N]; ties go to the first."""
    import numpy as np
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    source, target = edge_index.numpy()
    adjacency = coo_matrix((np.ones(len(source), dtype=np.int8), (source, target)), shape=(num_nodes, num_nodes))
    _, component = connected_components(adjacency, directed=False)
    return torch.from_numpy(component == np.bincount(component).argmax())


def subgraph(graph: Graph, keep: Tensor) -> Graph:
    """Return the subgraph induced by the nodes marked in ``keep`` [N], in their original order."""
    new_id = keep.cumsum(0) - 1
    inside = (keep[graph.edge_index[0]] & keep[graph.edge_index[1]]).nonzero().view(-1)
    graph = graph.with_edges(new_id[graph.edge_index[:, inside]], inside)
    return replace(graph, **node_rows(partial(getattr, graph), keep, ("group", "ids", "targets", "graph_id")))
