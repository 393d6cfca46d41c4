"""Split a heterogeneous graph into clients (FedHGN, Fu & King, IJCAI 2023, section 5.1; arXiv:2305.09729).

Edges, or edge types, are assigned in M + 2 segments of equal size. Segment i < M goes only to client i. Each item of the
next segment goes to q random clients, q uniform in 2..M-1. The last segment, with the remainder, goes to all. A client holds
the nodes that its edges touch, so clients share nodes. Reverse edge types are added afterwards, so that a client has both
directions of an edge or neither.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data import typed
from fedgraph_flwr.data.graph import MASKS
from fedgraph_flwr.data.hetero import EdgeType, HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.root import data_root
from fedgraph_flwr.data.split import split_targets
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.numerics.draws import occurrences
from fedgraph_flwr.partition.clients import check_poolable

ATTEMPTS = 1000


def make(graph: HeteroGraph, cfg: RunConfig) -> list[HeteroClientGraph]:
    """Return the clients' graphs of a configuration, with reverse edge types.

    With ``strategy.private_schema`` a client names the types it holds; otherwise all clients name the types of all, in
    one order, which is what schema sharing (FedAvg) needs. With ``strategy.pooled`` there is one client, the whole graph.
    With ``dataset.edge_types: name``, weights belong to names of edges, as in FedHGN's authors' code, instead of to triples.
    With ``partition.seed: null``, edges are assigned again for each seed of a run. A number assigns them once for all seeds.

    Raises:
        FedGraphError: an unknown partitioner, too few clients or edge types, or clients without labelled nodes.
    """
    name = cfg.partition.name
    if name not in ("random-edges", "random-edge-types", "given"):
        raise unknown(
            "partition", name, ["random-edges", "random-edge-types", "given"], f"typed dataset '{graph.name}'"
        )
    if name == "given":
        parts = _given(cfg)
    else:
        seed = cfg.partition.params.get("seed")
        graph = split_targets(graph, cfg.split, cfg.seed)
        if cfg.strategy.pooled:
            parts = [_induced(graph, [torch.arange(index.size(1)) for index in graph.edges.values()], 0, 1)]
        else:
            parts = _dealt(graph, name, cfg.num_clients, np.random.default_rng(cfg.seed if seed is None else seed))
        parts = [part.with_reverse() for part in parts]
    parts = [replace(part, by_name=cfg.dataset.edge_types == "name") for part in parts]
    return parts if cfg.strategy.private_schema else share_schema(parts)


def deal(items: int, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Assign the items of the M + 2 segments to clients: bool [M, items]."""
    order = rng.permutation(items)
    size = items // (num_clients + 2)
    held = np.zeros((num_clients, items), dtype=bool)
    for client in range(num_clients):
        held[client, order[client * size : (client + 1) * size]] = True
    some = order[num_clients * size : (num_clients + 1) * size]
    holders = rng.integers(2, num_clients, size=size)  # q in 2..M-1
    rank = rng.random((num_clients, size)).argsort(axis=0).argsort(axis=0)
    held[:, some] = rank < holders
    held[:, order[(num_clients + 1) * size :]] = True
    return held


def _dealt(graph: HeteroGraph, name: str, num_clients: int, rng: np.random.Generator) -> list[HeteroClientGraph]:
    """Repeat the assignment until every client has training, validation and test nodes."""
    if num_clients < 3:
        raise FedGraphError(
            f"partition={name} needs num_clients >= 3, got {num_clients}: some edges go to 2..M-1 clients"
        )
    if not graph.num_edges:
        raise FedGraphError(f"partition={name} divides edges, but '{graph.name}' has none")
    draw = _edges if name == "random-edges" else _edge_types
    for _ in range(ATTEMPTS):
        chosen = draw(graph, num_clients, rng)
        parts = [_induced(graph, edges, client, num_clients) for client, edges in enumerate(chosen)]
        if all(bool(mask.any()) for part in parts for mask in (part.train_mask, part.val_mask, part.test_mask)):
            return parts
    raise FedGraphError(
        f"partition={name}: in {ATTEMPTS} draws some of the {num_clients} clients of '{graph.name}' always had no training, "
        "validation or test nodes: lower num_clients"
    )


def _edges(graph: HeteroGraph, num_clients: int, rng: np.random.Generator) -> Iterator[list[torch.Tensor]]:
    """Random Edges: positions of each client's edges of every type."""
    held = deal(graph.num_edges, num_clients, rng)
    ends = np.cumsum([index.size(1) for index in graph.edges.values()])[:-1]
    for row in held:
        masks = np.split(row, ends)
        yield [torch.from_numpy(mask.nonzero()[0]) for mask in masks]


def _edge_types(graph: HeteroGraph, num_clients: int, rng: np.random.Generator) -> Iterator[list[torch.Tensor]]:
    """Random Edge Types: all edges of a type or none."""
    count = len(graph.edges)
    if count <= num_clients:
        raise FedGraphError(
            f"partition=random-edge-types needs more edge types than clients; '{graph.name}' has {count} for {num_clients}"
        )
    if count == num_clients + 1:  # one own type each, and a common one
        order = rng.permutation(count)
        held = np.zeros((num_clients, count), dtype=bool)
        held[np.arange(num_clients), order[:-1]] = True
        held[:, order[-1]] = True
    else:
        held = deal(count, num_clients, rng)
    for row in held:
        yield [torch.arange(i.size(1) if kept else 0) for i, kept in zip(graph.edges.values(), row, strict=True)]


def _induced(graph: HeteroGraph, edges: list[torch.Tensor], client: int, num_clients: int) -> HeteroClientGraph:
    """Return the client with the edges at these positions (by type, possibly none) and the nodes that they touch."""
    rows = {r: place for r, place in zip(graph.edges, edges, strict=True) if place.numel()}
    kept = {r: graph.edges[r][:, place] for r, place in rows.items()}
    ids = {}
    for kind in graph.counts:
        ends = [index[side] for (a, _, b), index in kept.items() for side, end in ((0, a), (1, b)) if end == kind]
        nodes = torch.cat(ends).unique() if ends else torch.zeros(0, dtype=torch.int64)
        if nodes.numel() or kind == graph.target:
            ids[kind] = nodes
    place = {}
    for kind, nodes in ids.items():
        place[kind] = torch.full((graph.counts[kind],), -1)
        place[kind][nodes] = torch.arange(nodes.numel())
    targets = ids[graph.target]
    return HeteroClientGraph(
        counts={kind: nodes.numel() for kind, nodes in ids.items()},
        edges={(a, r, b): torch.stack([place[a][i[0]], place[b][i[1]]]) for (a, r, b), i in kept.items()},
        target=graph.target,
        **{key: getattr(graph, key)[targets] for key in ("y", *MASKS)},
        num_classes=graph.num_classes,
        x={kind: x[ids[kind]] for kind, x in graph.x.items() if kind in ids},
        name=graph.name,
        schema=graph.schema,
        ids=graph.ids[targets] if len(graph.ids) else graph.ids,
        edge_attr={r: graph.edge_attr[r][place] for r, place in rows.items() if r in graph.edge_attr},
        node_id=ids,
        client=client,
        num_clients=num_clients,
    )


def _given(cfg: RunConfig) -> list[HeteroClientGraph]:
    """Return the published client graphs."""
    if not cfg.dataset.name.endswith(typed.PUBLISHED):
        raise FedGraphError(
            f"partition=given is for dataset=aifb-published and mutag-published, got dataset={cfg.dataset.name}"
        )
    pooled = bool(cfg.strategy.pooled)
    split_name = "centralized" if pooled else str(cfg.partition.params["split"])
    name = cfg.dataset.name.removesuffix(typed.PUBLISHED)
    return typed.published(data_root() / "FedHGN", name, split_name, 1 if pooled else cfg.num_clients)


def pool(clients: Sequence[HeteroClientGraph]) -> HeteroClientGraph:
    """Merge the clients' graphs: a shared node or edge counts once, and a node keeps its first holder's data.

    Of equal parallel edges with features, as many are kept as the client with most of them holds. A single client is returned
    unchanged.
    """
    if len(clients) == 1:
        return clients[0]
    parts = share_schema(list(clients))
    first = parts[0]
    check_poolable({tuple(part.num_features) for part in parts}, "features of nodes and edges")
    ids, place = {}, {}  # by type: global ids that someone holds, and where each first occurs among all clients' nodes
    for kind in first.counts:
        held = torch.cat([part.node_id.get(kind, torch.zeros(0, dtype=torch.int64)) for part in parts])
        unique, index = np.unique(held.numpy(), return_index=True)
        ids[kind], place[kind] = torch.from_numpy(unique), torch.from_numpy(index)

    def joined(end: str, part: HeteroClientGraph, local: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(ids[end], part.node_id[end][local]) if local.numel() else local

    edges, attr = {}, {}
    for a, r, b in first.edges:
        local = [part.edges[a, r, b] for part in parts]
        both = [torch.stack([joined(a, p, i[0]), joined(b, p, i[1])]) for p, i in zip(parts, local, strict=True)]
        if (a, r, b) in first.edge_attr:
            edges[a, r, b], attr[a, r, b] = _distinct(both, [part.edge_attr[a, r, b] for part in parts])
        else:
            edges[a, r, b] = torch.cat(both, dim=1).unique(dim=1)

    rows: dict[str, Any] = {
        key: torch.cat([getattr(part, key) for part in parts])[place[first.target]] for key in ("y", *MASKS)
    }
    return replace(
        first,
        ids=torch.zeros(0, 0, dtype=torch.uint8),
        counts={kind: held.numel() for kind, held in ids.items()},
        edges=edges,
        edge_attr=attr,
        x={kind: torch.cat([part.x[kind] for part in parts])[place[kind]] for kind in first.x},
        node_id=ids,
        client=0,
        num_clients=1,
        **rows,
    )


def _distinct(edges: list[torch.Tensor], attr: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all clients' edges [2, E] and features [E, D]: the k-th of equal ones is the same edge at every client."""
    numbered = []
    for index, values in zip(edges, attr, strict=True):
        rows = np.concatenate([index.T.numpy(), values.numpy()], axis=1, dtype=np.float64)
        numbered.append(np.column_stack([rows, occurrences(rows.T)[0]]))
    table = torch.from_numpy(np.unique(np.concatenate(numbered), axis=0))
    return table[:, :2].T.to(torch.int64), table[:, 2:-1].to(torch.float32)


def share_schema(parts: list[HeteroClientGraph]) -> list[HeteroClientGraph]:
    """Return the clients with the types of all clients in one order; missing types are empty."""
    node_types = sorted({kind for part in parts for kind in part.counts})
    edge_types: list[EdgeType] = sorted({r for part in parts for r in part.edges})
    no_features = {kind: x[:0] for part in parts for kind, x in part.x.items()}
    no_rows = {r: rows[:0] for part in parts for r, rows in part.edge_attr.items()}
    shared = []
    for part in parts:
        held = part.on_schema(node_types, edge_types)
        attr = {r: rows for r, rows in no_rows.items() if not held.edges[r].size(1)} | held.edge_attr
        shared.append(replace(held, x=no_features | part.x, edge_attr=attr))
    return shared
