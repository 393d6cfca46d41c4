"""Split a graph into clients: ownership of nodes, and each client's graph."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import PartitionConfig, RunConfig, is_own
from fedgraph_flwr.config.lookup import function
from fedgraph_flwr.data.edge_flip import flip_edges
from fedgraph_flwr.data.far_ends import with_shares, with_told_records
from fedgraph_flwr.data.graph import (
    EDGE_FIELDS,
    SHARED_FIELDS,
    ClientGraph,
    Graph,
    joined_edge_data,
    rows_at,
    rows_by_field,
    rows_of,
)
from fedgraph_flwr.data.many_graphs import nodes_of, one_per_graph
from fedgraph_flwr.data.own_columns import records_of, with_node_columns
from fedgraph_flwr.data.split import ensure_train, grouping_seed, split_graph
from fedgraph_flwr.errors import FedGraphError, TooManyClients, first_line, unknown
from fedgraph_flwr.numerics.draws import within
from fedgraph_flwr.partition.groups import FREE, GROUPINGS, skewed
from fedgraph_flwr.partition.merges import MERGES

RELATIONS = "relations"
"""The partition that assigns edges to clients by their labels."""


def make(graph: Graph | list[Graph], cfg: RunConfig) -> list[ClientGraph]:
    """Return the clients of a configuration: assign, cut and split the graph, and flip edges; of several graphs, one each.

    Raises:
        FedGraphError: as `assign` and `split_graph`, or a client without a training node.
    """
    if isinstance(graph, list):
        alone: list[ClientGraph] = []
        for index, one in enumerate(graph):
            prepared_graph = _prepared(one, cfg)
            (client,) = cut(prepared_graph, [torch.arange(prepared_graph.num_nodes)])
            alone += _finished([replace(client, client=index, num_clients=len(graph))], cfg)
        return alone
    graph, received = with_told_records(_prepared(graph, cfg), cfg.partition.share, cfg.partition.min_records)
    seed = grouping_seed(cfg.split, cfg.seed)
    if cfg.partition.name == RELATIONS:
        clients = by_relation(graph, cfg.partition, cfg.num_clients, seed)
    else:
        clients = cut(graph, assign(graph, cfg.partition, cfg.num_clients, seed), received)
    if cfg.partition.share:
        clients = with_shares(clients, cfg.partition.share, cfg.partition.min_records, cfg.seed, graph)
    return _finished(clients, cfg)


def _prepared(graph: Graph, cfg: RunConfig) -> Graph:
    """Return a graph that is split, if it is split as a whole, with the columns of its nodes."""
    if splits_whole(cfg):
        graph = split_graph(graph, cfg.split, cfg.seed)
    elif graph.edge_split.numel():  # the data's own split, which is not asked for
        graph = replace(graph, edge_split=graph.edge_split[:0])
    return with_node_columns(graph)


def _finished(clients: Sequence[ClientGraph], cfg: RunConfig) -> list[ClientGraph]:
    """Return clients that are split, with the statistics of their targets, and with flipped edges."""
    clients = with_target_stats([split_client(client, cfg) for client in clients])
    return [flip_edges(client, cfg.dataset.edge_flip, cfg.seed) for client in clients]


def with_target_stats(clients: Sequence[ClientGraph]) -> list[ClientGraph]:
    """Return clients with mean and standard deviation of the targets over all their training nodes; given ones stay.

    They correspond to the statistics that parties agree on by `schema merge`.
    """
    if not clients[0].num_targets or any(client.target_stats.numel() for client in clients):
        return list(clients)
    items = [one_per_graph(client) if client.graph_id.numel() else client for client in clients]
    known = torch.cat([client.targets[client.train_mask] for client in items]).double().numpy()
    stats = [center_and_spread(column[~np.isnan(column)]) for column in known.T]
    moments = torch.tensor(stats, dtype=torch.float64).T.contiguous()
    return [replace(client, target_stats=moments) for client in clients]


def center_and_spread(known: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of values [K]; 0 and 1 without any, a spread of 1 for equal values."""
    if not known.size:
        return 0.0, 1.0
    spread = float(known.std())
    return float(known.mean()), spread if spread > 1e-12 * max(1.0, float(np.abs(known).max())) else 1.0


def splits_whole(cfg: RunConfig) -> bool:
    """Return whether the whole graph is split, before the partition."""
    return cfg.split.scope == "global" or cfg.split.kind in ("public", "temporal")


def split_client(client: ClientGraph, cfg: RunConfig) -> ClientGraph:
    """Return a client of a partition with its masks.

    Raises:
        FedGraphError: it has no training node.
    """
    whole = splits_whole(cfg)
    client = ensure_train(client, cfg.split.min_train, cfg.seed) if whole else split_graph(client, cfg.split, cfg.seed)
    if cfg.task.name not in ("edges", "links", "triples") and not client.train_mask.any():
        what = f"client {client.client} has {client.num_nodes} nodes, none for training"
        split = " or split.kind=ratio" if cfg.split.kind in ("public", "temporal") else ""
        fewer = f"lower num_clients={client.num_clients}"
        how = f"{what}: {fewer}, use another partition, or set split.min_train=1{split}"
        raise TooManyClients(how, client.num_clients - 1)
    return client


def assign(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> list[Tensor]:
    """Return the global node ids of each client, ascending, each int64 [N_i]; of many graphs, each goes to a client as a whole.

    ``cfg.name`` groups the nodes (`groups`, or a ``module:function`` of the same signature), ``cfg.merge`` makes clients from the
    groups (`merges`). Clients are disjoint and cover all nodes, except with ``overlapping``. Their number is M, except with
    ``random_merge``, which determines it.

    Raises:
        FedGraphError: an unknown partitioner, or more clients than nodes or groups.
    """
    if graph.graph_id.numel():
        parts = assign(one_per_graph(graph), cfg, num_clients, seed)
        return [nodes_of(graph, part) for part in parts]
    custom = is_own(cfg.name)
    if not custom and cfg.name not in GROUPINGS:
        raise unknown("partition.name", cfg.name, [*GROUPINGS, RELATIONS, "module:function"])
    if num_clients > graph.num_nodes:
        what = f"num_clients={num_clients} exceeds the {graph.num_nodes} nodes of '{graph.name}'"
        raise TooManyClients(what, graph.num_nodes)
    if cfg.merge == "random_merge" and not custom and cfg.name not in FREE:
        what = f"partition.merge=random_merge makes as many clients as groups, and {cfg.name} makes num_clients groups"
        raise FedGraphError(f"{what}: use it with {' or '.join(FREE)}")
    seed %= 2**31  # what METIS, scikit-learn and NumPy all accept
    grouping = function(cfg.name, "partition") if custom else GROUPINGS[cfg.name]
    groups = grouping(graph, cfg, num_clients, seed)
    if custom:
        groups = _checked(groups, graph.num_nodes, cfg.name)
    clients = MERGES[cfg.merge](groups, cfg, num_clients, np.random.default_rng([seed, 1]))
    return [torch.from_numpy(np.sort(nodes)) for nodes in clients]


def _checked(groups: Any, num_nodes: int, name: str) -> list[np.ndarray]:
    """Return the groups of a custom function, each ascending, without empty ones."""
    try:
        kept = [group for group in (np.unique(np.asarray(group)) for group in groups) if group.size]
    except (TypeError, ValueError) as error:
        raise FedGraphError(f"partition={name} must return lists of node ids ({first_line(error)})") from error
    wrong = [g for g in kept if g.dtype.kind not in "iu" or g[0] < 0 or g[-1] >= num_nodes]
    if wrong or not kept:
        got = f"{wrong[0][0]}..{wrong[0][-1]} ({wrong[0].dtype})" if wrong else "no node"
        raise FedGraphError(f"partition={name} must return lists of node ids from 0 to {num_nodes - 1}, got {got}")
    return [group.astype(np.int64) for group in kept]


def cut(graph: Graph, parts: list[Tensor], received: Tensor | None = None) -> list[ClientGraph]:
    """Return one `ClientGraph` per client: its nodes, the relabelled edges between them, and its cut edges.

    An edge is kept by every client that holds both ends, and is a cut edge of every client that holds one end, if someone
    holds the other. Where clients share a node, its owner is the one with the lowest number. Edges keep their order.

    Args:
        graph: N nodes, E edges.
        parts: global node ids of each client, ascending.
        received: features of edges as the client of the target has those from another client [E, D]; None: as the graph has
            them, without the columns of own records, which are the other client's.
    """
    n, m = graph.num_nodes, len(parts)
    sizes = np.array([part.numel() for part in parts], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    node = torch.cat(parts).numpy()  # the memberships (client, node), sorted by both
    client = np.repeat(np.arange(m), sizes)
    key = client * n + node
    by_node = np.argsort(node, kind="stable")
    count = np.bincount(node, minlength=n)  # clients that hold each node
    first = np.cumsum(count) - count
    owner = np.full(n, -1)
    owner[count > 0] = client[by_node[first[count > 0]]]

    def seen_from(near: np.ndarray, far: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return each edge once per client that holds its near end: client, local near, local far or -1, edge."""
        edge = np.repeat(np.arange(near.size), count[near])
        member = by_node[first[near[edge]] + within(count[near])]
        who = client[member]
        wanted = who * n + far[edge]
        place = np.searchsorted(key, wanted)
        known = key[np.minimum(place, key.size - 1)] == wanted
        return who, member - starts[who], np.where(known, place - starts[who], -1), edge

    def split(who: np.ndarray, *columns: np.ndarray) -> list[list[Tensor]]:
        """Split columns [E'] by client, keeping their order."""
        order = np.argsort(who, kind="stable")
        ends = np.cumsum(np.bincount(who, minlength=m))[:-1]
        cut_up = [np.split(column[order], ends) for column in columns]
        return [[torch.from_numpy(piece) for piece in pieces] for pieces in zip(*cut_up, strict=True)]

    def crossing(seen: tuple[np.ndarray, ...], ends: np.ndarray) -> list[list[Tensor]]:
        """Return the edges of `seen_from` to nodes of others, which are ``ends`` of the graph's edges, by client."""
        who, near, _, edge = (column[seen[2] < 0] for column in seen)
        far = ends[edge]
        held = owner[far] >= 0
        return split(who[held], near[held], far[held], owner[far[held]], edge[held])

    def data_of(edges: Tensor, cut: str = "") -> dict[str, Any]:
        """Return the data of edges, under the names of the client's fields."""
        if not graph.has_edge_data:
            return {}
        edge_data = {f"{cut}{key}": rows_of(getattr(graph, key), edges) for key in EDGE_FIELDS}
        if cut == "cut_in_" and received is not None:
            edge_data["cut_in_edge_attr"] = received[edges]
        elif cut == "cut_in_":
            edge_data["cut_in_edge_attr"][:, graph.num_shared_edge_features :] = 0
        return edge_data

    source, target = graph.edge_index.numpy()
    seen = seen_from(source, target)
    intra = split(*(column[seen[2] >= 0] for column in seen))
    leaving, arriving = crossing(seen, target), crossing(seen_from(target, source), source)
    return [
        ClientGraph(
            **(rows_at(graph, "node", nodes) | {"group": graph.group[:0], "part": graph.group[:0], "node_id": nodes}),
            **{key: getattr(graph, key) for key in SHARED_FIELDS},
            edge_index=torch.stack(intra[i][:2]),
            cut_out=torch.stack(leaving[i][:2]),
            cut_in=torch.stack(arriving[i][:2]),
            cut_out_owner=leaving[i][2],
            cut_in_owner=arriving[i][2],
            client=i,
            num_clients=m,
            num_global_nodes=n,
            **(records_of(graph, nodes) if graph.book.numel() and len(graph.ids) else {}),
            **data_of(intra[i][2]),
            **data_of(leaving[i][3], "cut_out_"),
            **data_of(arriving[i][3], "cut_in_"),
        )
        for i, nodes in enumerate(parts)
    ]


def by_relation(graph: Graph, cfg: PartitionConfig, num_clients: int, seed: int) -> list[ClientGraph]:
    """Return clients among which the edges of each label are shared out: each holds its edges and the nodes that they touch.

    Raises:
        FedGraphError: edges without labels, or as `groups.skewed`.
    """
    if not graph.edge_y.numel():
        what = f"partition={RELATIONS} needs labels of edges, which '{graph.name}' does not have"
        raise FedGraphError(f"{what}: choose another partition, or import tables with columns.edge_label=NAME")
    owner = torch.from_numpy(skewed(graph.edge_y.numpy(), cfg, num_clients, seed, f"edges of '{graph.name}'"))
    clients = []
    for client in range(num_clients):
        rows = (owner == client).nonzero().view(-1)
        nodes = graph.edge_index[:, rows].unique()
        subgraph = graph.with_edges(torch.searchsorted(nodes, graph.edge_index[:, rows]), rows)
        (alone,) = cut(replace(subgraph, **rows_at(subgraph, "node", nodes)), [torch.arange(nodes.numel())])
        place: dict[str, Any] = {"client": client, "num_clients": num_clients, "num_global_nodes": graph.num_nodes}
        clients.append(replace(alone, node_id=nodes, shared=True, **place))
    return clients


def pool(clients: Sequence[ClientGraph]) -> ClientGraph:
    """Return the whole graph as the single client of the Central reference: all nodes, kept and cut edges, and ``part``.

    A node that several clients hold is taken from the owner (the lowest number), with its masks. Nodes without a client are
    omitted. For disjoint clients this is the original graph with each client's masks. Separately imported clients, each with
    its own numbering, are concatenated. Where clients share nodes and each edge is one client's, ``edge_part`` names the client.
    """
    sizes = {(c.num_features, c.num_classes, c.num_edge_features) for c in clients}
    check_poolable(sizes, "features, classes and edge features")
    if all(c.num_nodes == c.num_global_nodes and not c.shared for c in clients):
        starts = np.cumsum([0, *(c.num_nodes for c in clients)]).tolist()
        clients = [
            replace(c, node_id=c.node_id + start, num_global_nodes=starts[-1])
            for c, start in zip(clients, starts, strict=False)
        ]
    nodes = torch.cat([c.node_id for c in clients])
    part = torch.cat([torch.full_like(c.node_id, i) for i, c in enumerate(clients)])
    node_id, place = np.unique(nodes.numpy(), return_index=True)  # the first, so the lowest client
    local = torch.full((clients[0].num_global_nodes,), -1)
    local[node_id] = torch.arange(node_id.size)
    edges, edge_part = _pooled_edges(clients, shared=node_id.size < nodes.numel())
    index = torch.from_numpy(place)
    error = "some clients' edges have {}, others' do not: import them with one schema and the same columns"

    held = [key for key in rows_by_field(Graph, "node") if key not in ("group", "ids")]
    of_nodes: dict[str, Any] = {key: rows_of(torch.cat([getattr(c, key) for c in clients]), index) for key in held}
    return ClientGraph(
        **of_nodes,
        **{key: getattr(clients[0], key) for key in SHARED_FIELDS},
        edge_index=local[edges],
        node_id=torch.from_numpy(node_id),
        part=part[index],
        edge_part=edge_part,
        num_global_nodes=clients[0].num_global_nodes,
        **joined_edge_data(clients, ("", "cut_out_"), edges.size(1), error),
    )


def check_poolable(sizes: Collection[Any], of: str) -> None:
    """Check that all clients have the same numbers ``of`` something.

    Raises:
        FedGraphError: with the different numbers.
    """
    if len(sizes) > 1:
        what = f"clients with different numbers of {of}, {sorted(sizes)}"
        raise FedGraphError(f"{what}, cannot be pooled (strategy=central): use another strategy")


def _pooled_edges(clients: Sequence[ClientGraph], shared: bool) -> tuple[Tensor, Tensor]:
    """Return the global ids of all edges' ends [2, E], and the client of each edge where clients share nodes and no edge [E]."""
    edges = torch.cat(
        [c.node_id[c.edge_index] for c in clients]
        + [torch.stack([c.node_id[c.cut_out[0]], c.cut_out[1]]) for c in clients],
        dim=1,
    )
    labelled = any(c.edge_y.numel() for c in clients)
    edge_part = torch.zeros(0, dtype=torch.int64)
    if shared and not any(c.cut_out.numel() + c.cut_in.numel() for c in clients) and labelled:
        edge_part = torch.arange(len(clients)).repeat_interleave(torch.tensor([c.num_edges for c in clients]))
    elif shared:  # clients share nodes, so several may list one edge
        if any(c.has_edge_data for c in clients):
            what = "clients that share nodes cannot be pooled if their edges, which several may list, have data"
            raise FedGraphError(f"{what}: use a partition into disjoint clients")
        edges = torch.unique(edges, dim=1)
    return edges, edge_part
