"""From matched records to linked client files: keys of records, global ids, and edges in one order at all parties.

    global id of a node   = number of nodes of lower clients + its row, in an order of rows that only the party knows
    order of edges        = source, target, time, features, label: the same at both parties of a cut edge

With these, the linked files equal `partition.cut` of the whole graph, whose nodes and edges are in the same order (`canonical`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.data.far_ends import far_ends
from fedgraph_flwr.data.graph import (
    EDGE_FIELDS,
    MASKS,
    ClientGraph,
    Graph,
    grown,
    pack_words,
    rows_by_field,
    rows_of,
    unpack_words,
)
from fedgraph_flwr.data.own_columns import renumbered
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.parties import BETWEEN, normal_ids

Ints = NDArray[np.int64]
AnyGraph = TypeVar("AnyGraph", bound=Graph)

ALIASES = "aliases"
"""Key of ``linking``: pairs of a record and the name by which the other party's book calls its own end, in normal form."""

DATA = ("edge_attr", "edge_time", "edge_y")
"""Data of a record that its source's party sends to the other one."""


def undirected(graph: ClientGraph) -> bool:
    """Return whether each row of the party's edge table represents both directions."""
    return bool(graph.schema.get("undirected", False))


def id_form(graph: ClientGraph) -> str:
    """Return the form in which the party compares ids."""
    form: str = graph.linking.get("form", "ids text").partition(";")[0].removeprefix("ids ")
    return form


def _aliases(graph: ClientGraph) -> dict[int, str]:
    """Return the names of own ends by record.

    Raises:
        FedGraphError: they are no pairs of a number and a text.
    """
    pairs = graph.linking.get(ALIASES, [])
    if not isinstance(pairs, list) or any(
        not isinstance(pair, list | tuple) or [type(part) for part in pair] != [int, str] for pair in pairs
    ):
        raise FedGraphError(f"linking.{ALIASES} must be pairs of a record's number and a name: plant and import again")
    return dict(pairs)


def record_keys(graph: ClientGraph, rows: Ints, party: str) -> list[bytes]:
    """Return the keys of records with one other party, each with its copy number.

    Equal records differ by their copy: the k-th has copy k, in the order of time, features and label. So the k-th copy of one
    party matches the k-th of the other.

    Args:
        graph: the party's file.
        rows: its records with the other party [R].
        party: the other party's name.
    """
    if not rows.size:
        return []
    form, own_party = id_form(graph), graph.linking["party"]
    ids = normal_ids(unpack_words(graph.ids), form)[graph.foreign[0].numpy()[rows]]
    others = normal_ids(unpack_words(graph.foreign_id)[rows], form)
    extra = unpack_words(graph.foreign_key)[rows]
    outgoing = graph.foreign_out.numpy()[rows]
    if aliases := _aliases(graph):
        ids = np.array(
            [aliases.get(row, word) for row, word in zip(rows.tolist(), ids.tolist(), strict=True)], dtype=str
        )
    keys = []
    for local, remote, out, key in zip(ids, others, outgoing, extra, strict=True):
        ends = [(own_party, str(local)), (party, str(remote))]
        ends = sorted(ends) if undirected(graph) else ends if out else ends[::-1]
        keys.append(BETWEEN.join([*ends[0], *ends[1], str(key)]))
    order = np.lexsort(_data_columns(graph, _data_of(graph, "foreign_"), torch.from_numpy(rows)))
    ordered = pd.Series(keys, dtype=object).iloc[order]
    copies = ordered.groupby(ordered, sort=False).cumcount().sort_index()
    return [f"{key}{BETWEEN}{copy}".encode() for key, copy in zip(keys, copies, strict=True)]


def _data_columns(graph: ClientGraph, data: Mapping[str, Tensor], rows: Tensor) -> list[np.ndarray]:
    """Return `DATA` of edges as sort keys for `np.lexsort`, the most significant last: label, features, time."""
    attr, time, y = (data[key] for key in DATA)
    columns = [y[rows].numpy()] if y.numel() else [np.zeros(len(rows), dtype=np.int64)]
    if attr.numel():
        columns += [attr[rows, column].numpy() for column in reversed(range(graph.num_shared_edge_features))]
    return [*columns, time[rows].numpy()] if time.numel() else columns


def _data_of(graph: Graph, prefix: str = "") -> dict[str, Tensor]:
    return {key: getattr(graph, f"{prefix}{key}") for key in DATA}


def canonical(graph: AnyGraph) -> AnyGraph:
    """Return a graph with its edges in the order of linked files: source, target, time, features, label."""
    order = _order(graph.edge_index[0], graph.edge_index[1], graph, _data_of(graph))
    return graph.with_edges(graph.edge_index[:, order], order)


def _order(source: Tensor, target: Tensor, graph: Any, data: Mapping[str, Tensor]) -> Tensor:
    columns = _data_columns(graph, data, torch.arange(source.numel()))
    return torch.from_numpy(np.lexsort([*columns, target.numpy(), source.numpy()]))


def own_order(graph: ClientGraph, secret: bytes) -> Tensor:
    """Return the secret order of the party's rows [N]: by a hash of each account's id, keyed by the party's secret.

    It does not reveal the order in which accounts were opened. Since it follows from ids alone, row numbers in two runs do not
    show a changed feature, label or edge; an account that is opened or closed moves others by one place.
    """
    key = hashlib.sha256(b"fedgraph link order" + secret).digest()
    names = unpack_words(graph.ids).tolist() if len(graph.ids) else range(graph.num_nodes)
    drawn = [hashlib.blake2b(str(name).encode(), digest_size=16, key=key).digest() for name in names]
    return torch.tensor(sorted(range(len(drawn)), key=drawn.__getitem__), dtype=torch.int64)


@dataclass(frozen=True)
class Edges:
    """Edges between own nodes and those of one other client.

    Attributes:
        node: own end, as a row of the party's file [E].
        outgoing: whether the own end is the source [E].
        far: global id of the other end [E].
        name: party and id of the other end, "" where the party does not know it [E].
        data: ``edge_attr``, ``edge_time`` and ``edge_y`` by edge, as far as there are any.
    """

    node: Ints
    outgoing: NDArray[np.bool_]
    far: Ints
    name: NDArray[np.str_]
    data: Mapping[str, Tensor] = field(default_factory=dict)


def concatenated(parts: Sequence[Edges]) -> Edges:
    """Return edges one after the other."""
    zero = np.zeros(0, dtype=np.int64)
    none = Edges(zero, zero > 0, zero, np.zeros(0, dtype=str))
    columns = ("node", "outgoing", "far", "name")
    node, outgoing, far, name = (np.concatenate([getattr(part, key) for part in (none, *parts)]) for key in columns)
    data = {key: torch.cat([part.data[key] for part in parts]) for key in (parts[0].data if parts else ())}
    return Edges(node, outgoing, far, name, data)


def both_ways(edges: Edges) -> Edges:
    """Return edges and their reverses."""
    data = {key: torch.cat([values, values]) for key, values in edges.data.items()}
    directions = np.repeat([True, False], edges.node.size)
    return Edges(np.tile(edges.node, 2), directions, np.tile(edges.far, 2), np.tile(edges.name, 2), data)


def linked(graph: ClientGraph, ids: Ints, total: int, edges: Mapping[int, Edges]) -> ClientGraph:
    """Return the client's graph with global ids and cut edges, nodes and edges in their common order.

    Args:
        graph: the party's imported graph.
        ids: global ids of its nodes [N].
        total: number of nodes of all parties.
        edges: matched edges by client at the other end.
    """
    by_id = np.argsort(ids, kind="stable")
    place = np.empty_like(by_id)
    place[by_id] = np.arange(by_id.size)
    order, new = torch.from_numpy(by_id), torch.from_numpy(place)
    gid = torch.from_numpy(ids)[order]
    base = graph.with_edges(new[graph.edge_index], torch.arange(graph.edge_index.size(1)))
    base = canonical(replace(base, num_global_nodes=total))  # local rows ascend with global ids
    between = concatenated([edges[client] for client in sorted(edges)])
    owners = (np.full(edges[client].far.size, client) for client in sorted(edges))
    owner = np.concatenate([np.zeros(0, dtype=np.int64), *owners])
    fields: dict[str, Any] = {}
    for cut, outgoing in (("cut_out", True), ("cut_in", False)):
        fields |= _cut(graph, cut, outgoing, ids, place, between, owner)
    fields |= {key: getattr(graph, key)[order] for key in ("x", "y", *MASKS)}
    fields |= {key: rows_of(getattr(graph, key), order) for key in ("targets", "graph_id", "ids")}
    fields |= {"group": graph.group[:0], "book": renumbered(graph.book, new, graph.num_nodes)}
    empty = ClientGraph(*(torch.zeros(0),) * 6, num_classes=1)
    fields |= {key: getattr(empty, key) for key in ("linking", *rows_by_field(empty, "foreign"))}
    made = replace(base, **fields, node_id=gid, num_global_nodes=total)
    far = far_ends(made).unique()
    named = between.name != ""
    known = np.zeros(far.numel(), dtype=between.name.dtype)
    known[np.searchsorted(far.numpy(), between.far[named])] = between.name[named]
    return replace(made, far_id=far, far_name=pack_words(known)) if len(far) else made


def _cut(
    graph: ClientGraph, cut: str, outgoing: bool, ids: Ints, place: Ints, edges: Edges, owner: Ints
) -> dict[str, Any]:
    """Return one kind of cut edges in the common order, with owners and data."""
    chosen = np.flatnonzero(edges.outgoing == outgoing)
    ends, other, who = edges.node[chosen], torch.from_numpy(edges.far[chosen]), torch.from_numpy(owner[chosen])
    gid, local = torch.from_numpy(ids[ends]), place[ends]
    values = {key: held[torch.from_numpy(chosen)] for key, held in edges.data.items() if chosen.size}
    if graph.edge_split.numel() and "edge_time" in values:
        values["edge_split"] = _stages(graph, values["edge_time"])
    empty = {key: getattr(graph, key)[:0] for key in EDGE_FIELDS}
    held: dict[str, Any] = {f"{cut}_{key}": values.get(key, empty[key]) for key in EDGE_FIELDS}
    source, target = (gid, other) if outgoing else (other, gid)
    order = _order(source, target, graph, {key: held[f"{cut}_{key}"] for key in DATA})
    if not values and order.numel():  # edges without data count once
        pairs = torch.stack([source, target])[:, order]
        first = torch.cat([torch.ones(1, dtype=torch.bool), (pairs[:, 1:] != pairs[:, :-1]).any(dim=0)])
        order = order[first]
    held = {key: rows_of(values, order) for key, values in held.items()}
    return {cut: torch.stack([torch.from_numpy(local)[order], other[order]]), f"{cut}_owner": who[order], **held}


def _stages(graph: ClientGraph, time: Tensor) -> Tensor:
    """Return the first stage that may read a cut edge, by the times of the party's own edges; between two stages the later."""
    last = [graph.edge_time[graph.edge_split <= stage] for stage in (0, 1)]
    first, second = (int(times.max()) if times.numel() else torch.iinfo(torch.int64).min for times in last)
    return (time > first).to(torch.int8) + (time > second).to(torch.int8)


def record_columns(graph: ClientGraph, key: str, values: Any) -> Any:
    """Return the part of edge data that both parties have alike: of features, without the columns of own records."""
    return values[:, : graph.num_shared_edge_features] if key == "edge_attr" else values


def cut_digest(graph: ClientGraph, client: int) -> bytes:
    """Return the hash of the cut edges with one other client, which that client computes alike from its own file."""
    digest = hashlib.sha256(b"fedgraph cut edges")
    pieces = []
    for cut, outgoing in (("cut_out", True), ("cut_in", False)):
        ends, owner = getattr(graph, cut), getattr(graph, f"{cut}_owner")
        rows = (owner == client).nonzero().view(-1)
        gid = graph.node_id[ends[0, rows]]
        pair = torch.stack([gid, ends[1, rows]] if outgoing else [ends[1, rows], gid])
        pieces.append((graph.client if outgoing else client, pair, cut, rows))
    for _, pair, cut, rows in sorted(pieces, key=lambda piece: piece[0]):
        digest.update(f"{pair.size(1)};".encode() + pair.contiguous().numpy().tobytes())
        for key in DATA:
            values = record_columns(graph, key, rows_of(getattr(graph, f"{cut}_{key}"), rows))
            digest.update(values.contiguous().numpy().tobytes() if rows.numel() else b"")
    return digest.digest()


def file_digest(graph: ClientGraph, secret: bytes) -> bytes:
    """Return a hash of a linked graph, keyed by a secret: its nodes, edges and cut edges."""
    digest = hashlib.sha256(b"fedgraph linked file" + secret)
    for key in ("node_id", "x", "y", "edge_index", "cut_out", "cut_in", "far_x"):
        digest.update(f"{key}{list(getattr(graph, key).shape)}".encode())
        digest.update(getattr(graph, key).contiguous().numpy().tobytes())
    return digest.digest()


def told_rows(graph: ClientGraph, client: int) -> Ints:
    """Return the own nodes at cut edges with one other client, ascending [K]."""
    ends = [getattr(graph, cut)[0, getattr(graph, f"{cut}_owner") == client] for cut in ("cut_out", "cut_in")]
    return torch.cat(ends).unique().numpy()


def booked_with(graph: ClientGraph, party: str) -> NDArray[np.bool_]:
    """Return which records of a graph's book are with an account of one other party [R]."""
    names = unpack_words(graph.book_ids).tolist() if len(graph.book_ids) else []
    there = np.array([False, *(name.partition(BETWEEN)[0] == party for name in names)])
    far = (
        graph.book[:2].max(dim=0).values.numpy() - graph.num_nodes
        if graph.book.numel()
        else np.zeros(0, dtype=np.int64)
    )
    return there[np.maximum(far, -1) + 1]


def with_stubs(graph: ClientGraph, rows: Ints) -> ClientGraph:
    """Return a graph in which unmatched records lead to nodes without features or labels.

    Only this party has them. Each foreign account is one node.

    Args:
        graph: the party's imported graph.
        rows: the unmatched records [R].
    """
    if graph.graph_id.numel():
        raise FedGraphError("one_sided=stub does not apply to many graphs side by side: pass --one-sided drop")
    if not rows.size:
        return graph
    chosen = torch.from_numpy(rows)
    ids = normal_ids(unpack_words(graph.foreign_id)[rows], id_form(graph))
    names = [f"{party}{BETWEEN}{name}" for party, name in zip(graph.foreign[1, chosen].tolist(), ids, strict=True)]
    distinct, inverse = np.unique(names, return_inverse=True)
    n, more = graph.num_nodes, distinct.size
    node, far = graph.foreign[0, chosen], torch.from_numpy(inverse.astype(np.int64)) + n
    out = graph.foreign_out[chosen]
    new = torch.stack([torch.where(out, node, far), torch.where(out, far, node)])
    kept = chosen
    if undirected(graph):
        new, kept = torch.cat([new, new.flip(0)], dim=1), torch.cat([chosen, chosen])
    data: dict[str, Any] = {
        key: torch.cat([getattr(graph, key), getattr(graph, f"foreign_{key}")[kept]])
        for key in DATA
        if getattr(graph, f"foreign_{key}").numel()
    }
    edges = torch.cat([graph.edge_index, new], dim=1)
    if not graph.has_edge_data and not data:
        edges = edges.unique(dim=1)
    labels = [name.partition(BETWEEN)[2] for name in distinct.tolist()]
    texts = [*unpack_words(graph.ids).tolist(), *labels]
    book = renumbered(graph.book, torch.arange(n), n + more)
    return replace(graph, edge_index=edges, ids=pack_words(texts), book=book, **grown(graph, more), **data)
