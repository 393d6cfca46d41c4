"""Columns of far ends: what a party knows of accounts of other parties at the other end of its edges.

    partition.share=[n_in, "sum_*:exact", "flag:eps=1"]         link --share n_in,sum_*:exact,flag:eps=1

Each entry names columns of nodes (a pattern, or a column's number), or with ``edges.`` columns of the recipe that describe an end
of an edge, such as ``edges.n_in_2d`` for ``n_in_source_2d`` and ``n_in_target_2d``, and how their owner protects the values:

    buckets    (default) rounded down to a power of two: 1 + value of columns that are ln(1 + value), else the size of the value
    exact      unchanged
    eps=E      one of `LEVELS` (0 or 1 of a flag), drawn by k-ary randomised response: the true one with probability
               e^E / (e^E + k − 1), else any other. One account's value of one column is E-differentially private towards the
               receiver; ε of an account is the sum over such columns and over links. Each link draws anew: a draw that stayed
               would show that a value did not change. The draws of two forms are independent.

Columns of edges look back: their owner sends the value as of each edge, exact or in buckets.

A receiver could probe an account by its own payments: it would see when they move a value over a bound. So its records with the
account count neither for the floor nor in the columns of the recipe that it receives. The receiver adds them itself to columns of
edges (`joined`), which then describe all records of the far end; below the floor, those of the receiver alone.

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

from fedgraph_flwr.data.features import Book, Form, Recipe, columns_at, of_payer, views
from fedgraph_flwr.data.graph import ClientGraph, Graph, grown, joined_edge_data, rows_at
from fedgraph_flwr.data.own_columns import node_columns_of, recipe_of
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

    def names(self, name: str) -> bool:
        """Return whether the entry names a column; only one with `EDGES` names columns of edges."""
        return name.startswith(EDGES) == self.pattern.startswith(EDGES) and fnmatch.fnmatchcase(name, self.pattern)

    def covers(self, form: str) -> bool:
        """Return whether the entry's form tells at least as much as another."""
        order, other = [EXACT, BUCKETS], Entry(self.pattern, form)
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
            key: secret of their owner and of the link.
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
    entries = _named([entry for entry in parse_share(share) if not entry.pattern.startswith(EDGES)], names, "nodes")
    return [Column(names[p], p, entries[p].form, logs.get(names[p]), names[p] in flags) for p in sorted(entries)]


def _named(entries: Sequence[Entry], names: Sequence[str], what: str) -> dict[int, Entry]:
    """Return the first entry that names each column, by the column's position in ``names``.

    Raises:
        FedGraphError: an entry names no column.
    """
    by_place: dict[int, Entry] = {}
    for entry in entries:
        places = [place for place, name in enumerate(names) if fnmatch.fnmatchcase(name, entry.pattern)]
        if not places and entry.pattern.isdigit() and int(entry.pattern) < len(names):
            places = [int(entry.pattern)]
        if not places:
            raise unknown(f"column of {what} in share", entry.pattern, names)
        for place in places:
            by_place.setdefault(place, entry)
    return by_place


def shared_records(graph: Graph, share: Sequence[str] | str) -> list[tuple[Column, Column]]:
    """Return the columns of edges that ``share`` names, each for the source and for the target, by position in ``edge_attr``.

    Raises:
        FedGraphError: an entry names no column of the recipe, or the recipe reads the last records only.
    """
    entries = [entry for entry in parse_share(share) if entry.pattern.startswith(EDGES)]
    if not entries:
        return []
    recipe = recipe_of(graph)
    columns = recipe.edge_columns if recipe else []
    if recipe and recipe.last:
        raise FedGraphError(
            f"share: {entries[0].pattern} would tell a party how its own payments push others out of the last {recipe.last} that"
            " the recipe reads: leave the column out, or import without last"
        )
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


def with_told_records(graph: Graph, share: Sequence[str], floor: int) -> tuple[Graph, Tensor | None]:
    """Return a whole graph whose edges between parties have the shared columns of targets as their sources' parties read them.

    Args:
        graph: a graph; with a recipe, and groups of nodes, which are parties, their edges have columns of own records.
        share: entries that name the columns.
        floor: fewest records of an account, besides those with the receiver, of which a party tells.

    Returns:
        The graph, and the features of its edges as the targets' parties read them [E, D]: the columns that they compute from
        their own books, with the shared ones of sources; None where edges have no columns of single parties' records.

    Raises:
        FedGraphError: its edges are not the records of its book.
    """
    columns, recipe = shared_records(graph, share), recipe_of(graph)
    if recipe is None or not graph.group.numel() or not torch.equal(graph.book[:2], graph.edge_index):
        if columns:
            raise FedGraphError(
                f"share: {columns[0][0].name} needs the records of several parties: set dataset=payments"
            )
        return graph, None
    book, party, base = Book.of(graph.book), graph.group.numpy(), graph.num_shared_edge_features
    ends = np.stack([book.source, book.target])
    between = party[ends[0]] != party[ends[1]]
    seen = views(book, recipe, party)
    if not columns and not np.array_equal(seen[0], graph.edge_attr[:, base:]):  # columns of all books
        return graph, None
    total = np.bincount(ends.ravel(), minlength=graph.num_nodes)
    attr, arriving = graph.edge_attr.clone(), graph.edge_attr.clone()
    arriving[:, base:] = torch.from_numpy(seen[1] * between[:, None])
    if not columns:
        return graph, arriving
    for end, (view, read) in enumerate(
        ((seen[1], arriving), (seen[0], attr))
    ):  # the far end is the source, then the target
        far, reader = ends[end], party[ends[1 - end]]
        _, pair, met = np.unique(_meetings(ends, party), return_inverse=True, return_counts=True)
        known = enough(total[far] - met[pair[end * reader.size : (end + 1) * reader.size]], floor)
        others = _of_others(graph, recipe, far, reader, between)
        for pair_of in columns:
            column = pair_of[end]
            values = others[column.name.removeprefix(EDGES)]
            told = column.decode(column.encode(values, b"", ()))
            joined_values = joined(column, view[:, column.place - base], told, known)
            read[torch.from_numpy(between), column.place] = torch.from_numpy(joined_values)[between]
    told_pairs = [[source.place, target.place] for source, target in columns]
    return replace(graph, edge_attr=attr, own_columns={**graph.own_columns, "told": told_pairs}), arriving


def _meetings(ends: NDArray[np.int64], party: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number of each end's account and the other end's party, of the sources and then of the targets [2 R]."""
    return np.concatenate([ends[end] * (1 + int(party.max())) + party[ends[1 - end]] for end in (0, 1)])


def _of_others(
    graph: Graph, recipe: Recipe, far: NDArray[np.int64], reader: NDArray[np.int64], between: NDArray[np.bool_]
) -> dict[str, NDArray[np.float32]]:
    """Return what the parties of accounts know of them as of each record, without their records with the reading party [R].

    Args:
        graph: of the book.
        recipe: the columns (`columns_at`).
        far: account of each record [R].
        reader: party at its other end [R].
        between: records between two parties, of which the values are asked [R].
    """
    book, party = Book.of(graph.book), graph.group.numpy()
    first, second = party[book.source], party[book.target]
    columns: dict[str, NDArray[np.float32]] = {}
    for owner, peer in np.unique(np.stack([party[far], reader])[:, between], axis=1).T:
        rows = np.flatnonzero(between & (party[far] == owner) & (reader == peer))
        with_owner = (first == owner) | (second == owner)
        kept = book.where(with_owner & (first != peer) & (second != peer))
        for name, values in columns_at(kept, recipe, far[rows], book.time[rows]).items():
            columns.setdefault(name, np.zeros(far.size, dtype=np.float32))[rows] = values
    return columns


def joined(
    column: Column, own_values: NDArray[np.float32], told: NDArray[np.float32], known: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Return a column of edges from a receiver's own records with an account, and the values of all others [K].

    Counts and sums add up, since no account of the receiver is among the others' partners; of the times since the last record,
    the shorter counts.

    Args:
        column: an `END_FORMS` column of the recipe.
        own_values: values of the receiver's records [K].
        told: values of the others, as decoded [K].
        known: whether the account is not below the floor [K].
    """
    form = column.log
    assert form is not None
    if column.name.startswith(f"{EDGES}since_"):
        return np.where(known, np.minimum(own_values, told), own_values).astype(np.float32)
    mine, theirs = (np.expm1(values.astype(np.float64) * form.scale + form.center) for values in (own_values, told))
    value = np.rint((mine + theirs) * 100) / 100  # whole cents, and so whole counts
    return np.where(known, (np.log1p(value) - form.center) / form.scale, own_values).astype(np.float32)


def widened(graph: ClientGraph, columns: Sequence[Column]) -> ClientGraph:
    """Return a client's graph whose ``x`` has the columns that mark far ends, before those of its recipe, and ``far``."""
    start = graph.num_features - int(graph.own_columns.get("nodes", 0))
    marks = graph.x.new_zeros(graph.num_nodes, MARKS)
    places = [column.place + MARKS * (column.place >= start) for column in columns]
    far = {"names": [c.name for c in columns], "forms": [c.form for c in columns], "places": places, "marks": start}
    return replace(graph, x=torch.cat([graph.x[:, :start], marks, graph.x[:, start:]], dim=1), far=far)


def far_ends(graph: ClientGraph) -> Tensor:
    """Return the global ids of the accounts at the other ends of a client's outgoing and then of its incoming cut edges."""
    return torch.cat([graph.cut_out[1], graph.cut_in[1]])


def records(graph: ClientGraph, without: int = -1) -> NDArray[np.int64]:
    """Return the number of edges at each node of a client, cut edges included, but not those with one other client [N]."""
    cuts = graph.cut_out[0, graph.cut_out_owner != without], graph.cut_in[0, graph.cut_in_owner != without]
    return torch.cat([graph.edge_index.reshape(-1), *cuts]).bincount(minlength=graph.num_nodes).numpy()


def enough(counts: NDArray[np.int64], floor: int) -> NDArray[np.bool_]:
    """Return which accounts have enough records besides those with the receiver [K]; a floor of 1 leaves out none."""
    return (counts >= floor) | (floor <= 1)


def encoded(
    columns: Sequence[Column], x: NDArray[np.float32], key: bytes, accounts: Sequence[bytes]
) -> list[NDArray[Any]]:
    """Return what an owner tells of accounts, by column.

    Args:
        columns: the shared columns.
        x: features of the accounts [K, F].
        key: secret of their owner and of the link.
        accounts: identifies each for its owner [K].
    """
    return [column.encode(x[:, column.place], key, accounts) for column in columns]


def reads_book(graph: Graph, columns: Sequence[Column]) -> bool:
    """Return whether some columns of nodes are those of the recipe, which the graph computes from its book."""
    return any(column.place >= graph.num_features - int(graph.own_columns.get("nodes", 0)) for column in columns)


def without_records(graph: Graph, x: NDArray[np.float32], dropped: NDArray[np.bool_], rows: Any) -> NDArray[np.float32]:
    """Return features of some nodes whose columns of the recipe do not read some records of the book [K, F].

    Args:
        graph: a graph with columns of the recipe (`reads_book`).
        x: the nodes' features [K, F].
        dropped: records that are not read [R].
        rows: the nodes [K].
    """
    if not dropped.any():
        return x
    x = x.copy()
    x[:, x.shape[1] - int(graph.own_columns["nodes"]) :] = node_columns_of(graph, ~dropped)[rows]
    return x


def with_shares(
    clients: Sequence[ClientGraph], share: Sequence[str], floor: int, seed: int, whole: Graph | None = None
) -> list[ClientGraph]:
    """Return the clients of a partition, each with the shared columns of its far ends as `fedgraph-flwr link` gives them.

    Args:
        clients: the partition.
        share: entries that name the columns.
        floor: fewest records of an account that is shared, besides those with the receiver.
        seed: of the draws of randomised response.
        whole: the graph that is partitioned; its book has the records that columns of a recipe read.

    Raises:
        FedGraphError: no client has cut edges, or as `shared_columns`.
    """
    if not any(client.cut_out.numel() + client.cut_in.numel() for client in clients):
        raise FedGraphError("partition.share needs edges between clients, but no client has such edges: leave it out")
    columns = shared_columns(clients[0], share)
    computed = whole is not None and bool(whole.book.numel()) and reads_book(whole, columns)
    ids = torch.cat([client.node_id for client in clients]).numpy()
    nodes, first = np.unique(ids, return_index=True)  # of the owner, the lowest client
    every, count = torch.cat([client.x for client in clients]).numpy(), np.concatenate([*map(records, clients)])
    owner = np.repeat([client.client for client in clients], [client.num_nodes for client in clients])

    def own(client: ClientGraph) -> ClientGraph:
        far, met = far_ends(client).unique(return_counts=True)
        rows = first[np.searchsorted(nodes, far.numpy())]
        known = enough(count[rows] - met.numpy(), floor)
        x = every[rows]
        if computed and whole is not None:
            dropped = np.logical_or(*np.isin(whole.book[:2].numpy(), client.node_id.numpy()))
            x = without_records(whole, x, dropped, far.numpy())
        values = np.full((far.numel(), len(columns)), np.nan, dtype=np.float32)
        for holder in np.unique(owner[rows]):
            told = np.flatnonzero(known & (owner[rows] == holder))
            names = [str(node).encode() for node in far[told].tolist()]
            key = f"seed {seed} client {holder} ".encode()
            for place, (column, codes) in enumerate(zip(columns, encoded(columns, x[told], key, names), strict=True)):
                values[told, place] = column.decode(codes)
        return replace(widened(client, columns), far_id=far, far_x=torch.from_numpy(values))

    return [own(client) for client in clients]


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
    foreign, place = far_ends(graph).unique(return_inverse=True)
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


def edge_maxima(graph: ClientGraph) -> Tensor:
    """Return the largest columns of the edges that leave each node, and of those that reach it, float64 [N, 2 D].

    Cut edges count. Of an edge from another party, columns of own records are those of the recipe that tell of the receiver or of
    both ends, and of the payer those that its party shares. An edge of which the party computed no columns, since only the other
    party booked it, has none. NaN without known ones.

    Raises:
        FedGraphError: some edges have no columns.
    """
    inner, leaving, arriving = graph.edge_index, graph.cut_out[0], graph.cut_in[0]
    parts = (graph.edge_attr, graph.cut_out_edge_attr, graph.cut_in_edge_attr)
    attr = torch.cat([part for part in parts if part.numel()] or [graph.edge_attr]).double()
    if len(attr) != inner.size(1) + leaving.numel() + arriving.numel():
        raise FedGraphError(
            f"client {graph.client} has edges without columns, which strategy.edge_columns=true reads: leave it out, or import"
            " edges with columns, such as features=payments"
        )
    foreign = torch.zeros(len(attr), dtype=torch.bool)
    foreign[inner.size(1) + leaving.numel() :] = True
    if graph.far:  # far ends are nodes
        foreign[: inner.size(1)] = graph.x[inner[0], graph.far["marks"]] == 1
    unknown = torch.arange(attr.size(1)) >= (base := graph.num_shared_edge_features)
    computed = (attr[:, base:] != 0).any(1) | ~unknown.any()
    attr[~computed] = attr[~computed].masked_fill(unknown, -torch.inf)
    if recipe := recipe_of(graph):
        unknown[base:] = torch.tensor([of_payer(column.name) for column in recipe.edge_columns], dtype=torch.bool)
    unknown[told_places(graph)[0]] = False
    attr = attr.masked_fill(foreign[:, None] & unknown, -torch.inf)
    rows = torch.arange(len(attr))
    out, into = rows < inner.size(1) + leaving.numel(), (rows < inner.size(1)) | (rows >= len(attr) - arriving.numel())
    maxima = []
    for kept, near in ((out, torch.cat([inner[0], leaving])), (into, torch.cat([inner[1], arriving]))):
        most = attr.new_full((graph.num_nodes, attr.size(1)), -torch.inf)
        maxima.append(most.scatter_reduce_(0, near[:, None].expand(-1, attr.size(1)), attr[kept], "amax"))
    return torch.cat(maxima, dim=1).masked_fill(torch.cat(maxima, dim=1).isneginf(), torch.nan)
