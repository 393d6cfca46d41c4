"""Columns of far ends: what a party knows of accounts of other parties at the other end of its edges.

    partition.share=[n_in, "sum_*:exact", "flag:eps=1"]         link --share n_in,sum_*:exact,flag:eps=1

Each entry names columns of nodes (a pattern, or a column's number), or with ``edges.`` columns of the recipe that describe an end
of an edge, such as ``edges.n_in_2d`` for ``n_in_source_2d`` and ``n_in_target_2d``, and how their owner protects the values:

    buckets    (default) rounded down to a power of two: 1 + value of columns that are ln(1 + value), else the size of the value
    exact      unchanged
    eps=E      one of `LEVELS` (0 or 1 of a flag), drawn by k-ary randomised response: the true one with probability
               e^E / (e^E + k − 1), else any other. One account's value of one column is E-differentially private towards the
               receiver; ε of an account is the sum over such columns. The draw follows from the owner's secret, column and form,
               account and true level: a repetition tells nothing new, and the draws of two forms are independent.

Columns of edges look back, so that they are told as of each edge, exact or in buckets. The party at the other end reads those of
the far end in the place of its own (`told_places`), and 0 for an account below the floor.

A party's file lists its far ends (``far_id``) with these values (``far_x``; NaN for an account of fewer records than its owner's
floor). `with_far_ends` adds them to the graph as nodes: unknown columns are 0, and two more columns mark a far end, and a far end
without values. Both are 0 for all own nodes. So whatever reads node columns reads those of far ends.
"""

import fnmatch
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.data.features import Book, Form, receivers_columns
from fedgraph_flwr.data.graph import ClientGraph, Graph, grown, joined_edge_data, rows_at
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.data.schema import NODE, agreed_schema, feature_names
from fedgraph_flwr.errors import FedGraphError, unknown

EXACT, BUCKETS, EPSILON = "exact", "buckets", "eps="
EDGES = "edges."
"""Prefix of columns of edges in entries and names."""

MARKS = 2
"""Number of columns that mark far ends: any, and those without values."""

LEVELS = np.array([-1, 0, 1, 2], dtype=np.float32)
"""Values that randomised response draws from; a value's level is the closest. Columns are centred and scaled, or are flags."""

SMALLEST, LARGEST = -4, 10
"""Powers of two of the smallest and largest bucket of a column that is not ln(1 + value); smaller values are 0."""

MOST_LOG = 62
"""Power of two of the largest bucket of 1 + value."""

MOST_EPSILON = 50.0

_LN2 = float(np.log(2))


@dataclass(frozen=True)
class Entry:
    """Columns that are shared alike.

    Attributes:
        pattern: names of columns, or a column's number.
        form: `EXACT`, `BUCKETS` or ``eps=E``.
    """

    pattern: str
    form: str

    @classmethod
    def parse(cls, text: str) -> "Entry":
        """Build from ``PATTERN`` or ``PATTERN:FORM``.

        Raises:
            FedGraphError: no column, an unknown form, or an ε that is not a number above 0 and at most `MOST_EPSILON`.
        """
        pattern, sign, form = str(text).strip().rpartition(":")
        made = cls(pattern.strip(), form.strip()) if sign else cls(form, BUCKETS)
        forms = f"{EXACT}, {BUCKETS} or eps=E with E above 0 and at most {MOST_EPSILON:g}"
        drawn = 0 < made.epsilon <= MOST_EPSILON
        if made.pattern.startswith(EDGES):
            forms, drawn = f"{EXACT} or {BUCKETS}, since ε of an account grows with each edge", False
        if not made.pattern or not (made.form in (EXACT, BUCKETS) or drawn):
            raise FedGraphError(f"share: '{text}' must be COLUMN or COLUMN:FORM with FORM {forms}")
        return made

    @property
    def epsilon(self) -> float:
        """Local ε per column: 0 where the form has none, NaN where it is no number."""
        try:
            return float(self.form.removeprefix(EPSILON)) if self.form.startswith(EPSILON) else 0.0
        except ValueError:
            return float("nan")

    def covers(self, name: str, form: str) -> bool:
        """Return whether the entry names a column, and its form tells at least as much as another."""
        if not fnmatch.fnmatchcase(name, self.pattern):
            return False
        order, other = [EXACT, BUCKETS], Entry(name, form)
        if self.form in order:
            return form not in order or order.index(form) >= order.index(self.form)
        return 0 < other.epsilon <= self.epsilon

    def __str__(self) -> str:
        return f"{self.pattern}:{self.form}"


def parse_share(texts: Sequence[str] | str) -> list[Entry]:
    """Return the entries of ``share``, a list or texts separated by commas.

    Raises:
        FedGraphError: as `Entry.parse`.
    """
    listed = texts.split(",") if isinstance(texts, str) else list(texts)
    return [Entry.parse(text) for text in listed if str(text).strip()]


@dataclass(frozen=True)
class Column:
    """One shared column.

    Attributes:
        name: of the column; its number where it has no name.
        place: its position in ``x``.
        form: as in `Entry`.
        log: how ``x`` was made of ln(1 + value); None for other columns.
        binary: whether its values are 0 and 1.
    """

    name: str
    place: int
    form: str
    log: Form | None = None
    binary: bool = False

    @property
    def epsilon(self) -> float:
        """Local ε of the column, 0 without randomised response."""
        return Entry(self.name, self.form).epsilon

    @property
    def draw(self) -> str:
        """What the draws of randomised response depend on, beside secret, account and level: name, form and number of levels."""
        return f"{self.name}:{self.form}:{len(self.levels)}"

    @property
    def levels(self) -> NDArray[np.float32]:
        """Values that randomised response draws from."""
        return LEVELS[1:3] if self.binary else LEVELS

    @property
    def codes(self) -> tuple[int, int]:
        """Smallest and largest code of a column that is not exact."""
        if self.form == BUCKETS:
            return (0, MOST_LOG) if self.log else (SMALLEST - LARGEST - 1, LARGEST - SMALLEST + 1)
        return 0, len(self.levels) - 1

    def encode(self, x: NDArray[np.float32], key: bytes, accounts: Sequence[bytes]) -> NDArray[Any]:
        """Return what the owner tells of its values: codes int8 [K], or the values float32 [K].

        Args:
            x: values of accounts [K].
            key: secret of their owner.
            accounts: identifies each for its owner [K].
        """
        if self.form == EXACT:
            return np.ascontiguousarray(x, dtype=np.float32)
        if self.form == BUCKETS and self.log:
            exponent = (x.astype(np.float64) * self.log.scale + self.log.center) / _LN2
            return np.clip(np.floor(exponent + 1e-6), 0, MOST_LOG).astype(np.int8)
        if self.form == BUCKETS:
            _, exponent = np.frexp(np.abs(x))  # |x| = m 2^e with m in [1/2, 1)
            size = np.clip(exponent - 1, SMALLEST - 1, LARGEST) - SMALLEST + 1
            return np.where(x == 0, 0, np.sign(x) * size).astype(np.int8)
        level = np.abs(x[:, None] - self.levels).argmin(axis=1)
        return _randomised(level, len(self.levels), self.epsilon, key + self.draw.encode() + b":", accounts)

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Return the values that a receiver reads from what the owner tells, float32 [K]."""
        if self.form == EXACT:
            return codes
        if self.form != BUCKETS:
            return self.levels[codes]
        if self.log:
            return ((codes * _LN2 - self.log.center) / self.log.scale).astype(np.float32)
        size = np.abs(codes.astype(np.float64))
        return (np.sign(codes) * np.where(size, 2.0 ** (size + SMALLEST - 1), 0)).astype(np.float32)


def _randomised(level: NDArray[Any], k: int, epsilon: float, key: bytes, accounts: Sequence[bytes]) -> NDArray[np.int8]:
    """Return levels [K] of k by k-ary randomised response, whose draws follow from a key, the account and its level."""
    drawn = b"".join(
        hashlib.sha256(b"fedgraph far end" + key + bytes([true]) + account).digest()[:16]
        for true, account in zip(level.tolist(), accounts, strict=True)
    )
    keep, other = np.frombuffer(drawn, dtype=np.uint64).reshape(-1, 2).T
    kept = keep / 2.0**64 < np.exp(epsilon) / (np.exp(epsilon) + k - 1)
    step = 1 + (other % np.uint64(k - 1)).astype(np.int64)
    return np.where(kept, level, (level + step) % k).astype(np.int8)


def column_names(graph: Graph) -> list[str]:
    """Return the names of the columns of nodes: those of the schema and of the recipe, numbers where there are none [F]."""
    schema, recipe = agreed_schema(graph.schema, graph.name or "the graph"), recipe_of(graph)
    first = feature_names(schema.nodes.get(NODE, {})) if schema else []
    last = [column.name for column in recipe.node_columns] if recipe and "nodes" in graph.own_columns else []
    width = graph.num_features
    if len(first) + len(last) > width:
        first, last = [], []
    return [*first, *map(str, range(len(first), width - len(last))), *last]


def shared_columns(graph: Graph, share: Sequence[str] | str) -> list[Column]:
    """Return the columns of nodes that ``share`` names, by position. The first entry that names a column says how.

    Raises:
        FedGraphError: an entry names no column.
    """
    names, recipe = column_names(graph), recipe_of(graph)
    logs = {c.name: c.form for c in (recipe.node_columns if recipe else ()) if c.form.log}
    schema = agreed_schema(graph.schema, graph.name or "the graph")
    flags = {name for name, c in (schema.nodes.get(NODE, {}) if schema else {}).items() if c.kind == "flag"}
    found = _named([entry for entry in parse_share(share) if not entry.pattern.startswith(EDGES)], names, "nodes")
    return [Column(names[p], p, found[p].form, logs.get(names[p]), names[p] in flags) for p in sorted(found)]


def _named(entries: Sequence[Entry], names: Sequence[str], what: str) -> dict[int, Entry]:
    """Return the first entry that names each column, by the column's position in ``names``.

    Raises:
        FedGraphError: an entry names no column.
    """
    found: dict[int, Entry] = {}
    for entry in entries:
        places = [place for place, name in enumerate(names) if fnmatch.fnmatchcase(name, entry.pattern)]
        if not places and entry.pattern.isdigit() and int(entry.pattern) < len(names):
            places = [int(entry.pattern)]
        if not places:
            raise unknown(f"column of {what} in share", entry.pattern, names)
        for place in places:
            found.setdefault(place, entry)
    return found


def shared_records(graph: Graph, share: Sequence[str] | str) -> list[tuple[Column, Column]]:
    """Return the columns of edges that ``share`` names, each for the source and for the target, by position in ``edge_attr``.

    Raises:
        FedGraphError: an entry names no column of the recipe.
    """
    entries = [entry for entry in parse_share(share) if entry.pattern.startswith(EDGES)]
    if not entries:
        return []
    recipe = recipe_of(graph)
    columns = recipe.edge_columns if recipe else []
    place = {column.name: graph.num_shared_edge_features + number for number, column in enumerate(columns)}
    logs = {column.name: column.form for column in columns if column.form.log}
    pairs = [(name, name.replace("_source", "_target")) for name in place if "_source" in name]
    pairs = [(source, target) for source, target in pairs if target in place]
    names = [EDGES + source.replace("_source", "") for source, _ in pairs]

    def column(of: int, entry: Entry, end: int) -> Column:
        return Column(names[of], place[pairs[of][end]], entry.form, logs.get(pairs[of][end]))

    return [(column(of, entry, 0), column(of, entry, 1)) for of, entry in _named(entries, names, "edges").items()]


def told_places(graph: Graph) -> tuple[list[int], list[int]]:
    """Return the places in ``edge_attr`` of the columns that the source's party tells, and of those that the target's tells."""
    told = graph.own_columns.get("told", [])
    return [source for source, _ in told], [target for _, target in told]


def with_told_records(graph: Graph, share: Sequence[str], floor: int) -> Graph:
    """Return a whole graph whose edges between parties have the shared columns of targets as the targets' parties tell them.

    Args:
        graph: a graph with a recipe, whose nodes have groups, which are parties.
        share: entries that name the columns.
        floor: fewest records of an account of which a party tells.

    Raises:
        FedGraphError: its edges are not the records of its book.
    """
    columns = shared_records(graph, share)
    if not columns:
        return graph
    recipe = recipe_of(graph)
    if recipe is None or not graph.group.numel() or not torch.equal(graph.book[:2], graph.edge_index):
        raise FedGraphError(f"share: {columns[0][0].name} needs the records of several parties: set dataset=payments")
    party, (sources, targets) = graph.group.numpy(), graph.edge_index.numpy()
    between = torch.from_numpy(party[sources] != party[targets])
    few = graph.edge_index.reshape(-1).bincount(minlength=graph.num_nodes).numpy() < floor
    values = receivers_columns(Book.of(graph.book), recipe, party)
    attr = graph.edge_attr.clone()
    for _, column in columns:
        told = told_values(column, values[:, column.place - graph.num_shared_edge_features], few[targets])
        attr[between, column.place] = torch.from_numpy(told)[between]
    told_pairs = [[source.place, target.place] for source, target in columns]
    return replace(graph, edge_attr=attr, own_columns={**graph.own_columns, "told": told_pairs})


def told_values(column: Column, values: NDArray[np.float32], few: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the values [K] of a column of edges that a receiver reads; 0 at accounts with too few records."""
    return np.where(few, 0, column.decode(column.encode(values, b"", ()))).astype(np.float32)


def widened(graph: ClientGraph, columns: Sequence[Column]) -> ClientGraph:
    """Return a client's graph whose ``x`` has the columns that mark far ends, before those of its recipe, and ``far``."""
    start = graph.num_features - int(graph.own_columns.get("nodes", 0))
    marks = graph.x.new_zeros(graph.num_nodes, MARKS)
    places = [column.place + MARKS * (column.place >= start) for column in columns]
    far = {"names": [c.name for c in columns], "forms": [c.form for c in columns], "places": places, "marks": start}
    return replace(graph, x=torch.cat([graph.x[:, :start], marks, graph.x[:, start:]], dim=1), far=far)


def far_ends(graph: ClientGraph) -> Tensor:
    """Return the global ids of the accounts at the other ends of a client's cut edges, ascending [K]."""
    return torch.cat([graph.cut_out[1], graph.cut_in[1]]).unique()


def records(graph: ClientGraph) -> NDArray[np.int64]:
    """Return the number of edges at each node of a client, cut edges included [N]."""
    ends = torch.cat([graph.edge_index.reshape(-1), graph.cut_out[0], graph.cut_in[0]])
    return ends.bincount(minlength=graph.num_nodes).numpy()


def encoded(
    graph: ClientGraph, columns: Sequence[Column], floor: int, key: bytes, accounts: Sequence[bytes], rows: Any
) -> tuple[NDArray[np.bool_], list[NDArray[Any]]]:
    """Return which of some nodes a client tells of [K], and what it tells of these by column.

    Args:
        graph: the client's, with its cut edges.
        columns: the shared columns of its ``x``.
        floor: fewest records of a node.
        key: the client's secret.
        accounts: identifies each node for the client [K].
        rows: the nodes [K].
    """
    told = records(graph)[rows] >= floor
    names = [name for name, kept in zip(accounts, told.tolist(), strict=True) if kept]
    x = graph.x.numpy()[rows[told]]
    return told, [column.encode(x[:, column.place], key, names) for column in columns]


def with_shares(clients: Sequence[ClientGraph], share: Sequence[str], floor: int, seed: int) -> list[ClientGraph]:
    """Return the clients of a partition, each with the shared columns of its far ends as `fedgraph-flwr link` gives them.

    Args:
        clients: the partition.
        share: entries that name the columns.
        floor: fewest records of an account that is shared.
        seed: of the draws of randomised response.

    Raises:
        FedGraphError: no client has cut edges, or as `shared_columns`.
    """
    if not any(client.cut_out.numel() + client.cut_in.numel() for client in clients):
        raise FedGraphError("partition.share needs edges between clients, but no client has such edges: leave it out")
    clients = [_with_told_sources(client, shared_records(client, share), floor, clients) for client in clients]
    columns = shared_columns(clients[0], share)
    rows = []
    for client in clients:
        names = [str(node).encode() for node in client.node_id.tolist()]
        key = f"seed {seed} client {client.client} ".encode()
        told, codes = encoded(client, columns, floor, key, names, np.arange(len(names)))
        values = np.full((len(names), len(columns)), np.nan, dtype=np.float32)
        for place, (column, found) in enumerate(zip(columns, codes, strict=True)):
            values[told, place] = column.decode(found)
        rows.append(values)
    ids = torch.cat([client.node_id for client in clients]).numpy()
    nodes, first = np.unique(ids, return_index=True)  # of the owner, the lowest client
    whole = torch.from_numpy(np.concatenate(rows)[first])

    def own(client: ClientGraph) -> ClientGraph:
        ids = far_ends(client)
        return replace(widened(client, columns), far_id=ids, far_x=whole[np.searchsorted(nodes, ids.numpy())])

    return [own(client) for client in clients]


def _with_told_sources(
    client: ClientGraph, columns: Sequence[tuple[Column, Column]], floor: int, clients: Sequence[ClientGraph]
) -> ClientGraph:
    """Return a client whose incoming edges have the columns of sources as the sources' parties tell them."""
    if not columns or not client.cut_in.numel():
        return client
    nodes = torch.cat([one.node_id for one in clients]).numpy()
    count = np.concatenate([records(one) for one in clients])
    order = np.argsort(nodes, kind="stable")
    few = count[order[np.searchsorted(nodes, client.cut_in[1].numpy(), sorter=order)]] < floor
    attr = client.cut_in_edge_attr.clone()
    for column, _ in columns:
        attr[:, column.place] = torch.from_numpy(told_values(column, attr[:, column.place].numpy(), few))
    return replace(client, cut_in_edge_attr=attr)


def far_rows(graph: ClientGraph, ids: Tensor, unknown: float = 0.0) -> Tensor:
    """Return the features of accounts of other clients, by global id [K, F].

    Args:
        graph: the client's graph; without ``far`` it knows nothing of them.
        ids: the accounts [K].
        unknown: value of a column that the client does not know.
    """
    x = graph.x.new_full((ids.numel(), graph.num_features), unknown)
    if not graph.far:
        return x
    place = torch.searchsorted(graph.far_id, ids).clamp(max=max(graph.far_id.numel() - 1, 0))
    known = graph.far_id[place] == ids if graph.far_id.numel() else torch.zeros_like(ids, dtype=torch.bool)
    width = len(graph.far["places"])
    values = graph.far_x[place] if known.any() and width else graph.far_x.new_full((ids.numel(), width), torch.nan)
    known = known & ~values.isnan().any(1)
    x[:, graph.far["places"]] = values.where(known[:, None], torch.tensor(unknown))
    start = graph.far["marks"]
    x[:, start], x[:, start + 1] = 1, (~known).to(x)
    return x


def without_far_columns(graph: ClientGraph, start: int) -> ClientGraph:
    """Return a graph whose far ends have no values of the columns from ``start`` on."""
    kept = [number for number, place in enumerate(graph.far.get("places", ())) if place < start]
    if len(kept) == len(graph.far.get("places", ())):
        return graph
    lists = {key: [graph.far[key][number] for number in kept] for key in ("names", "forms", "places")}
    return replace(graph, far={**graph.far, **lists}, far_x=graph.far_x[:, kept])


def without_cut_edges(graph: ClientGraph) -> ClientGraph:
    """Return a client's graph with its inner edges only."""
    none = torch.zeros(0, dtype=torch.int64)
    return replace(graph, **rows_at(graph, "cut_out", none), **rows_at(graph, "cut_in", none))


def with_far_ends(graph: ClientGraph) -> ClientGraph:
    """Return a client's graph with its cut edges, whose other ends are nodes without labels, after its own.

    Their features are those of `far_rows`. The edges are its inner ones, then those that leave its nodes, then those that reach
    them.

    Raises:
        FedGraphError: some cut edges have no data, but the inner edges do.
    """
    if not graph.cut_out.size(1) + graph.cut_in.size(1):
        return graph
    n = graph.num_nodes
    far = torch.cat([graph.cut_out[1], graph.cut_in[1]])
    foreign, place = far.unique(return_inverse=True)
    out, into = (n + place).split([graph.cut_out.size(1), graph.cut_in.size(1)])
    edges = torch.cat(
        [graph.edge_index, torch.stack([graph.cut_out[0], out]), torch.stack([into, graph.cut_in[0]])], dim=1
    )
    error = f"client {graph.client}: only some of its edges have {{}}: import its edges with the same columns, or set"
    error += " task.between=false"
    data = joined_edge_data([graph], ("", "cut_out_", "cut_in_"), edges.size(1), error)
    nodes = grown(graph, foreign.numel())
    nodes["x"][n:] = far_rows(graph, foreign)
    return replace(
        without_cut_edges(graph), edge_index=edges, node_id=torch.cat([graph.node_id, foreign]), **nodes, **data
    )


def neighbour_means(graph: ClientGraph) -> Tensor:
    """Return the mean columns of the nodes with an edge to each node, and of those that it has an edge to, float64 [N, 2 F].

    A repeated edge counts as often. Columns that a far end does not share count as unknown. NaN without known ones.
    """
    n, x = graph.num_nodes, graph.x.double()
    if graph.far:
        start, every = graph.far["marks"], torch.arange(graph.num_features)
        far, absent = x[:, start] == 1, x[:, start + 1] == 1
        marks = (every == start) | (every == start + 1)
        given = torch.isin(every, torch.tensor(graph.far["places"], dtype=torch.int64))
        x = x.masked_fill(far[:, None] & ~(given | marks), torch.nan).masked_fill(absent[:, None] & ~marks, torch.nan)
    known, values = (~x.isnan()).double().numpy(), x.nan_to_num().numpy()
    source, target = graph.edge_index.numpy()
    means = []
    for near, other in ((target, source), (source, target)):
        edges = sp.csr_matrix((np.ones(near.size), (near, other)), shape=(n, n))
        count = edges @ known
        means.append(np.divide(edges @ values, count, out=np.full(count.shape, np.nan), where=count > 0))
    return torch.from_numpy(np.concatenate(means, axis=1))
