"""Many graphs side by side as one block-diagonal graph (``graph_id``), the data of ``task=graphs``.

Each node holds the label, targets and masks of its graph, so that everything that selects nodes serves graphs too. The nodes of a
graph are consecutive, and no edge joins two graphs. `one_per_graph` returns the graph-level view, with one node per graph.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.data.cleaning import subgraph
from fedgraph_flwr.data.graph import MASKS, AnyGraph, Graph, rows_at
from fedgraph_flwr.errors import FedGraphError


def starts(graph: Graph) -> Tensor:
    """Return the first node of each graph, int64 [G], ascending."""
    number = graph.graph_id
    first = torch.ones(number.numel(), dtype=torch.bool)
    first[1:] = number[1:] != number[:-1]
    part = getattr(graph, "part", number[:0])
    if part.numel():  # the pooled graph of several parties, each with its own numbers
        first[1:] |= part[1:] != part[:-1]
    return first.nonzero().view(-1)


def sizes_of(graph: Graph, first: Tensor) -> Tensor:
    """Return the number of nodes of each graph, int64 [G], by the first node of each."""
    return torch.diff(first, append=torch.tensor([graph.num_nodes]))


def index_of(graph: Graph) -> Tensor:
    """Return the place of each node's graph among the G graphs, int64 [N]."""
    first = starts(graph)
    return torch.arange(first.numel()).repeat_interleave(sizes_of(graph, first))


def nodes_of(graph: Graph, places: Tensor) -> Tensor:
    """Return the nodes of the graphs at ``places`` [K], in their order."""
    first = starts(graph)
    start, size = first[places], sizes_of(graph, first)[places]
    within = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
    return start.repeat_interleave(size) + within


def one_per_graph(graph: AnyGraph) -> AnyGraph:
    """Return the first node of each graph, with the graph's label, targets and masks, and without features and edges."""
    first = starts(graph)
    none = torch.zeros(0, dtype=torch.int64)
    rows = rows_at(graph, "node", first) | {"x": graph.x.new_zeros(first.numel(), 0), "graph_id": graph.graph_id[:0]}
    return replace(graph, edge_index=graph.edge_index[:, :0], **rows_at(graph, "edge", none), **rows)


def selected(graph: AnyGraph, places: Tensor) -> AnyGraph:
    """Return the graphs at ``places`` [K], ascending, with their edges in the order of the whole graph's."""
    kept = torch.zeros(starts(graph).numel(), dtype=torch.bool)
    kept[places] = True
    return subgraph(graph, kept[index_of(graph)])


def side_by_side(
    x: Tensor,
    edge_index: Tensor,
    size: Tensor,
    *,
    y: Tensor | None = None,
    targets: Tensor | None = None,
    num_classes: int = 1,
    edge_attr: Tensor | None = None,
    name: str = "",
    group: Tensor | None = None,
    masks: Sequence[Tensor] | None = None,
) -> Graph:
    """Return graphs whose nodes and edges are listed one graph after the other.

    Args:
        x: features of all nodes [N, F].
        edge_index: edges [2, E] between nodes 0..N-1.
        size: number of nodes of each graph [G].
        y: labels [G], -1 where unknown.
        targets: numbers [G, T], NaN where unknown.
        num_classes: C.
        edge_attr: features of edges [E, D].
        name: of the data.
        group: the client that each graph is listed under [G].
        masks: training, validation and test graphs, bool [G] each.

    Raises:
        FedGraphError: a graph has no node.
    """
    if not size.numel() or not bool((size > 0).all()):
        where = f"graph {int((size == 0).nonzero()[0])} of '{name}'" if size.numel() else f"'{name}'"
        raise FedGraphError(f"{where} has no nodes: every graph needs at least one")
    of = torch.arange(size.numel()).repeat_interleave(size)
    none = torch.zeros(size.numel(), dtype=torch.bool)
    labels = torch.full((size.numel(),), -1) if y is None else y.view(-1).to(torch.int64)
    rows: dict[str, Any] = {mask: values[of] for mask, values in zip(MASKS, masks or [none] * 3, strict=True)}
    if targets is not None:
        rows["targets"] = targets.to(torch.float32)[of]
    if edge_attr is not None:
        rows["edge_attr"] = edge_attr.to(torch.float32)
    if group is not None:
        rows["group"] = group[of]
    return Graph(
        x=x.to(torch.float32),
        edge_index=edge_index,
        y=labels[of],
        num_classes=num_classes,
        name=name,
        graph_id=of,
        **rows,
    )


def check_many(graph: Graph) -> None:
    """Check that the nodes of each graph are consecutive, and that no edge joins two graphs.

    Raises:
        FedGraphError: with the first graph that does not fit.
    """
    first, of = starts(graph), index_of(graph)
    number = graph.graph_id[first]
    part = getattr(graph, "part", number[:0])
    pairs = torch.stack([number, part[first] if part.numel() else torch.zeros_like(number)])
    if pairs.unique(dim=1).size(1) < number.numel():
        order = number.argsort(stable=True)
        twice = number[order][1:][number[order][1:] == number[order][:-1]][0]
        raise FedGraphError(f"graph_id: the nodes of graph {int(twice)} are not side by side: sort nodes by graph_id")
    across = (of[graph.edge_index[0]] != of[graph.edge_index[1]]).nonzero()
    if across.numel():
        edge = int(across[0])
        raise FedGraphError(f"graph_id: edge {edge} joins two graphs; edges must stay within a graph")


def check_answers(graph: Graph) -> None:
    """Check that the nodes of each graph hold the same label, targets and masks.

    Raises:
        FedGraphError: with the first graph whose nodes differ.
    """
    first, of = starts(graph), index_of(graph)
    for key in ("y", *MASKS, "targets"):
        values = getattr(graph, key)
        if not values.numel():
            continue
        same = values.nan_to_num(nan=torch.inf) if values.is_floating_point() else values
        wrong = (same != same[first][of]).view(len(same), -1).any(1).nonzero()
        if wrong.numel():
            which = f"graph {int(graph.graph_id[wrong[0]])} of '{graph.name}'"
            raise FedGraphError(f"the nodes of {which} differ in {key}: each must hold the value of its graph")
