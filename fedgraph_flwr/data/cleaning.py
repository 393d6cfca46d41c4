"""Options that change a graph before the split and the partition."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.config import DatasetConfig
from fedgraph_flwr.data.graph import AnyGraph, Graph, rows_at
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.errors import FedGraphError

CHANGES = (
    "reversed",
    "undirected",
    "remove_self_loops",
    "drop_featureless",
    "largest_component",
    "normalize_features",
    "edge_flip",
)
"""Keys of a dataset that change a graph with one type of nodes."""


def clean(graph: Graph | HeteroGraph, cfg: DatasetConfig) -> Graph | HeteroGraph:
    """Apply the keys of ``cfg`` that change a graph, in the order of the lines below.

    Raises:
        FedGraphError: a key of graphs with one node type for a heterogeneous graph, or the reverse.
    """
    if isinstance(graph, HeteroGraph):
        if given := [key for key in CHANGES if getattr(cfg, key)]:
            raise FedGraphError(
                f"dataset.{given[0]} does not apply to '{cfg.name}', a heterogeneous graph: leave it out"
            )
        return graph
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
        graph = without_loops(graph)
    if cfg.drop_featureless:
        graph = subgraph(graph, (graph.x != 0).any(dim=1))
    if cfg.largest_component:
        graph = subgraph(graph, largest_component(graph.edge_index, graph.num_nodes))
    if cfg.normalize_features:
        total = graph.x.abs().sum(dim=1, keepdim=True)
        graph = replace(graph, x=graph.x / torch.where(total > 0, total, torch.ones(())))  # an empty row stays empty
    return graph


def without_loops(graph: Graph) -> Graph:
    """Return the graph without edges from a node to itself."""
    proper = (graph.edge_index[0] != graph.edge_index[1]).nonzero().view(-1)
    return graph.with_edges(graph.edge_index[:, proper], proper)


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
    component = torch.from_numpy(components(edge_index.numpy(), num_nodes))
    return component == component.bincount().argmax()


def components(edge_index: Any, num_nodes: int) -> Any:
    """Return the weakly connected component of each node, NumPy int [N]."""
    import numpy as np
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(edge_index.shape[1], dtype=np.int8)
    return connected_components(coo_matrix((ones, tuple(edge_index)), shape=(num_nodes, num_nodes)), directed=False)[1]


def subgraph(graph: AnyGraph, keep: Tensor) -> AnyGraph:
    """Return the subgraph induced by the nodes marked in ``keep`` [N], in their original order."""
    new_id = keep.cumsum(0) - 1
    inside = (keep[graph.edge_index[0]] & keep[graph.edge_index[1]]).nonzero().view(-1)
    graph = graph.with_edges(new_id[graph.edge_index[:, inside]], inside)
    return replace(graph, **rows_at(graph, "node", keep))
