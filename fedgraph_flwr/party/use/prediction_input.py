"""Input of predictions: tables, graph files and PyG objects, encoded as in training; labels are optional."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.cleaning import both_directions
from fedgraph_flwr.data.edge_columns import log_counts
from fedgraph_flwr.data.far_ends import MARKS
from fedgraph_flwr.data.features import DAY, Book, edge_columns, node_columns
from fedgraph_flwr.data.graph import (
    SHARED_FIELDS,
    ClientGraph,
    Graph,
    check_dtypes,
    grown,
    pack_words,
    read_header,
    rows_at,
    rows_of,
    unpack_words,
)
from fedgraph_flwr.data.hetero import EdgeType, HeteroGraph, load_graph
from fedgraph_flwr.data.many_graphs import starts
from fedgraph_flwr.data.own_columns import appended, recipe_of, renumbered, with_node_columns
from fedgraph_flwr.data.pyg import read_saved
from fedgraph_flwr.data.schema import EDGE, NODE, Column, Schema, TableLayout, fitted_schema, to_text
from fedgraph_flwr.errors import FedGraphError, by_caller, check_names, counted, sanitize
from fedgraph_flwr.party.book.rows import day_text, missing_days
from fedgraph_flwr.party.tables.columns import Treatment, as_words, features, log_warning
from fedgraph_flwr.party.tables.edges import (
    EdgeData,
    amounts_of,
    arranged,
    contents_of,
    edge_data,
    edge_ends,
    edge_times,
    with_columns,
)
from fedgraph_flwr.party.tables.importing import from_tables, saved_features
from fedgraph_flwr.party.tables.nodes import Ids, check_swapped, column_of
from fedgraph_flwr.party.tables.parties import fold, normal_ids, parties_of
from fedgraph_flwr.party.tables.party_roles import nodes_of_role
from fedgraph_flwr.party.tables.reading import read_table
from fedgraph_flwr.party.tables.repeats import counted_once, joined
from fedgraph_flwr.party.tables.roles import BOUND, Columns, edge_feature_columns, edge_types, feature_columns
from fedgraph_flwr.party.use.day import Day, divide, global_ids, rule_of
from fedgraph_flwr.tasks.base import STAGES
from fedgraph_flwr.tasks.edges import ENTERING

SAVED = (".pt", ".pth")
"""Suffixes of torch.save files."""


@dataclass(frozen=True)
class InputSpec:
    """Features and classes that a trained model expects.

    Attributes:
        classes: class names, in the order of the logits.
        num_features: F, a list for heterogeneous graphs; None if unknown.
        schema: schema with the statistics that turn columns into features; None if features are used unchanged.
        undirected: whether each row of an edge table represents both directions.
        where: origin of this information, for errors.
        parallel: whether each row of an edge table is predicted, so that repeated rows stay separate.
        bare: whether edges of the stored graph are left out, since the model reads none besides items.
        scaled: whether the features of given graphs are scaled as in training, by the user's word.
        of_fleet: whether only the parties know whether they scaled their features.
    """

    classes: tuple[str, ...]
    num_features: Any = None
    schema: Schema | None = None
    undirected: bool = False
    where: str = "the run"
    parallel: bool = False
    bare: bool = False
    scaled: bool = False
    of_fleet: bool = False

    def as_imported(self, path: Path) -> "InputSpec":
        """Return it with classes and schema of an imported graph's file, if the number of classes matches."""
        if path.suffix in SAVED:
            return self
        schema = fitted_schema(read_header(path)[1].get("schema", {}), str(path))
        if schema is None or len(schema.classes) != len(self.classes):
            return self
        return replace(self, schema=schema, classes=schema.classes, where=str(path))

    @property
    def tables(self) -> TableLayout:
        """Names of columns and format of the tables; all default without a schema."""
        return self.schema.tables if self.schema else TableLayout()

    @property
    def separate(self) -> bool:
        """Whether rows that repeat an edge stay separate, as in training: they are items, or carried times or labels there."""
        return self.parallel or bool(self.tables.time or self.tables.edge_label)

    def columns(self, kind: str) -> dict[str, Column]:
        """Return the columns of a node type that become features; empty if features have no names."""
        columns = dict(self.schema.nodes.get(kind, {})) if self.schema else {}
        return {name: c for name, c in columns.items() if c.kind != "ignored" and c.width == 1}

    def treatment(self, kind: str = NODE) -> Treatment:
        """Return the options that turn a node type's columns into features.

        Raises:
            FedGraphError: the columns have no names, or each party has its own statistics.
        """
        schema, columns = self.named_schema(kind), self.columns(kind)
        if missing := [name for name, column in columns.items() if "fill" not in column.statistics]:
            what = f"has no shared statistics of column '{missing[0]}' (scaling {schema.scaling})"
            fix = f"pass {by_caller('--client I', 'client=I')} to use those of party I"
            raise FedGraphError(f"{self.where} {what}: {fix}")
        self.warn_of_bound(BOUND, "this release computes")
        return Treatment(schema=schema, where=self.where, labelled=False)

    def warn_of_bound(self, bound: str, whose: str) -> None:
        """Report columns of a recipe that are not computed as those that the model was trained on."""
        if self.tables.recipe and self.tables.alike != bound:
            _warn_once(
                f"{self.where} was trained on own columns with the bound {self.tables.alike or 'of an earlier release'} of alike"
                f" amounts, but {whose} them with {bound or 'that of an earlier release'}: import again and train again"
            )

    def named_schema(self, kind: str = "") -> Schema:
        """Return the schema, which must name columns of a node type if one is given.

        Raises:
            FedGraphError: it does not.
        """
        if self.schema is None or (kind and not self.columns(kind) and not self.tables.recipe):
            raise FedGraphError(
                f"{self.where} has no schema of columns: pass --graph FILE with features as in training"
            )
        return self.schema


@functools.cache
def _warn_once(text: str) -> None:
    log_warning(text)


@dataclass(frozen=True)
class NewNodes:
    """Nodes of a table, and the graph in which they are predicted.

    Attributes:
        graph: the table's graph, optionally joined to the stored graph.
        ids: ids of the graph's nodes [N].
        rows: positions of the table's rows in the graph [K]; of many graphs, of each graph [G].
        note: how they were joined to the stored graph, or "".
        edges: positions of the edge table's rows among the graph's items [K'], if the model predicts edges.
        edge_ids: ids of the rows that are read, or their numbers from 1 [K'].
        ends: ids of their sources and targets as the table has them [2, K'].
        left_out: rows of the edge table that cannot be read, with the reason: row from 1, id, source, target, reason.
        read: positions of the rows that are read, in the edge table [K'].
        tables: the rows of the tables, by type.
    """

    graph: Graph
    ids: np.ndarray
    rows: np.ndarray
    note: str = ""
    edges: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    edge_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=object))
    ends: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), dtype=object))
    left_out: tuple[tuple[Any, ...], ...] = ()
    read: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tables: Mapping[str, Any] = field(default_factory=dict)

    def of_rows(self, chosen: np.ndarray) -> "NewNodes":
        """Return it with some of its edge table's rows only, bool [E']."""
        at = chosen[self.read]
        left = tuple(row for row in self.left_out if chosen[row[0] - 1])
        edges = self.edges[at] if self.edges.size else self.edges
        subset = replace(self, edges=edges, edge_ids=self.edge_ids[at], ends=self.ends[:, at], left_out=left)
        read = (np.cumsum(chosen) - 1)[self.read[at]]
        return replace(subset, read=read, tables={**self.tables, EDGE: self.tables[EDGE][chosen]})


def tables(
    nodes: Path,
    edges: Path,
    columns: Columns,
    spec: InputSpec,
    treatment: Treatment | None = None,
    reader: Callable[..., Any] = read_table,
) -> tuple[Graph, np.ndarray]:
    """Build a graph and its node ids [N] from a node table and an edge table; the label column is optional.

    Args:
        nodes: one row per node.
        edges: one row per edge.
        columns: roles of the columns.
        spec: the model's features and classes.
        treatment: column options (default: those of ``spec``).
        reader: reads a table.

    Raises:
        FedGraphError: as for `from_tables` or `InputSpec.treatment`.
    """
    graph = from_tables(
        nodes,
        edges,
        _of_new(columns),
        reader=reader,
        classes=spec.schema.classes if spec.schema else spec.classes,
        undirected=spec.undirected,
        treatment=treatment or spec.treatment(),
        parallel=spec.separate,
    )
    return with_node_columns(graph), unpack_words(graph.ids)


def _of_new(columns: Columns) -> Columns:
    """Return the columns without those of numbers to predict and of parties."""
    return replace(columns, predict="", party_columns="", party_prefix="", match_columns="")


def _of_later(columns: Columns, table: Any, links: Any, stored: Graph) -> Columns:
    """Return the columns of later tables, which may lack labels and, unless windows or a recipe read them, times."""
    times = () if columns.windows or recipe_of(stored) else ("time",)
    return _of_new(columns).without([table], "label", "split", "client").without([links], *times, "edge_label")


def new_nodes(
    nodes: Path | None,
    edges: Path | Sequence[Path],
    columns: Columns,
    spec: InputSpec,
    stored: Any = None,
    where: str = "",
    treatment: Treatment | None = None,
) -> NewNodes:
    """Build the graph of a table's nodes, joined to the stored graph if edges name its nodes; of many graphs, no stored one.

    Stored nodes keep their features, labels and edges. A row with the id of a stored node replaces its features.

    Args:
        nodes: one row per node; None for a party of a role without node table, whose nodes are the ends of edges.
        edges: one row per edge, between nodes of the table and of the stored graph; several files are one table.
        columns: roles of the columns.
        spec: the model's features and classes.
        stored: the party's graph, imported with ids, or None.
        where: name of the stored graph, for errors.
        treatment: column options (default: those of ``spec``).

    Raises:
        FedGraphError: an edge names an unknown node, or as for `tables`.
    """
    files = [edges] if isinstance(edges, Path) else list(edges)
    listed, treatment = ", ".join(map(str, files)), treatment or spec.treatment()
    links, file = (read_table(files[0], columns.layout), None) if len(files) == 1 else joined(files, columns.layout)
    for end in (columns.source, columns.target):
        column_of(links, end, listed, "end of edges")
    rule = None if nodes is None else rule_of(columns, stored, columns.match_columns)  # accounts of a role are all own
    links = links[counted_once(links, columns, rule, listed, treatment, file)]
    _warn_of_gap(links, columns, stored, (listed, where), treatment)
    if nodes is None:
        table, treatment = nodes_of_role(links, columns, stored, listed, treatment)
        node_ids, columns = Ids.of(table, columns.id, listed), replace(columns, party_columns="", party_prefix="")
        return join_tables(table, links, node_ids, columns, spec, stored, (listed, listed, where), treatment)
    table = read_table(nodes, columns.layout)
    held = {nodes: table, files[0]: links.reset_index(drop=True)}
    if columns.graph:  # whole new graphs
        graph, _ = tables(nodes, files[0], columns, spec, treatment, lambda path, *_: held[path])
        return NewNodes(graph, unpack_words(graph.ids), np.arange(starts(graph).numel()))
    names = columns.id, columns.source, columns.target
    check_swapped(table, links, names, (str(nodes), listed))
    node_ids = Ids.of(table, columns.id, str(nodes))
    named = [np.unique(as_words(links[end])) for end in (columns.source, columns.target)]
    _check_known(node_ids, links, columns, stored, (str(nodes), listed, where), treatment)
    outside = [word for texts in named for word in texts[node_ids.index.get_indexer(texts) < 0]]
    known = isinstance(stored, Graph) and recipe_of(stored) is not None and _names(stored, node_ids, named)
    known = known or rule_of(columns, stored) is not None
    if not outside and not known:
        graph, ids = tables(nodes, files[0], columns, spec, treatment, lambda path, *_: held[path])
        additions = NewNodes(graph, ids, np.arange(len(ids)), tables={NODE: table, EDGE: links})
        if not spec.parallel:
            return additions
        ends = edge_ends(links, columns, listed, node_ids, node_ids)
        _, order = arranged(ends, len(ids), False, listed, treatment, True)
        additions = replace(additions, graph=replace(graph, edge_split=_stages(graph.edge_time[:0], graph.edge_time)))
        return replace(additions, edges=order.argsort().numpy(), edge_ids=_edge_ids(links, columns, listed))
    if not isinstance(stored, Graph) or not len(stored.ids):
        remedy = f"{where} does not store node ids: import it again"
        remedy = "pass --client I or --graph FILE to name the graph that contains it" if stored is None else remedy
        raise FedGraphError(f"{listed} names '{outside[0]}', which is not an id of {nodes}: {remedy}")
    return join_tables(table, links, node_ids, columns, spec, stored, (str(nodes), listed, where), treatment)


def times_of(stored: Graph) -> Tensor:
    """Return the times of a graph's edges, also to other parties, and of its book [K]."""
    names = ("edge_time", "cut_out_edge_time", "cut_in_edge_time")
    return torch.cat([*(getattr(stored, name) for name in names if hasattr(stored, name)), stored.book[2]])


def _warn_of_gap(links: Any, columns: Columns, stored: Any, where: tuple[str, str], treatment: Treatment) -> None:
    """Report days without rows between the last stored record and the last row of a file."""
    if not isinstance(stored, Graph) or columns.time not in links.columns or not len(links):
        return
    if not (held := times_of(stored)).numel():
        return
    days, stored_days = edge_times(links, columns.time, where[0], treatment).numpy() // DAY, held.numpy() // DAY
    if missing := missing_days(stored_days, days):
        treatment.warn(
            f"{where[0]} has no payments on {missing} after {where[1]}, which ends on {day_text(stored_days.max())}: columns that"
            " look back miss them. Pass the files of all days (--edges FILE --edges FILE), or keep a book (`fedgraph-flwr book`)"
        )


def _check_known(
    node_ids: Ids, links: Any, columns: Columns, stored: Any, where: tuple[str, str, str], treatment: Treatment
) -> None:
    """Refuse a node table of another party than the edges and the stored graph, and report one that hardly fits them.

    Raises:
        FedGraphError: no id of the nodes is known to the edges or to the stored graph.
    """
    if not isinstance(stored, Graph) or not len(stored.ids) or not len(node_ids.index):
        return
    ids, held = node_ids.index.to_numpy(), unpack_words(stored.ids)
    texts = [as_words(links[end]) for end in (columns.source, columns.target)]
    if rule := rule_of(columns, stored):  # accounts of other parties are no nodes of this one
        mine = [fold(names) == fold([rule.own_party])[0] for names in parties_of(links, texts, rule, where[1])]
        texts = [words[rows] for words, rows in zip(texts, mine, strict=True)]
        ids, held, *texts = (normal_ids(words, rule.id_form) for words in (ids, held, *texts))
    ends = np.unique(np.concatenate(texts))
    stored_ones = np.isin(ids, held)
    lone = ~stored_ones & ~np.isin(ids, ends)
    if len(links) and lone.all():
        raise FedGraphError(
            f"{where[0]} and {where[1]} do not belong together: no id of the nodes, such as '{sanitize(ids[0], 40)}', is an end"
            f" of an edge or in {where[2]}: pass the tables of one party"
        )
    if 2 * lone.sum() > lone.size:
        treatment.warn(
            f"{int(lone.sum())} of {lone.size} ids of {where[0]} are ends of no row of {where[1]} and unknown to {where[2]}:"
            " check that the tables belong to one party"
        )
    elif not stored_ones.any() and not np.isin(ends, held).any():
        treatment.warn(f"no id of {where[0]} or {where[1]} is in {where[2]}: they are scored as a graph of their own")


def _names(stored: Graph, node_ids: Ids, named: list[np.ndarray]) -> bool:
    """Return whether a table or its edges name a node of a stored graph, whose book then gives the columns of the new records."""
    ids = Ids(unpack_words(stored.ids), "the stored graph").index if len(stored.ids) else node_ids.index[:0]
    return any(bool((ids.get_indexer(texts) >= 0).any()) for texts in (node_ids.index, *named))


def _table_columns(
    table: Any, names: list[str], stored: Graph, where: tuple[str, str, str], treatment: Treatment
) -> Tensor:
    """Return the features of new nodes that their table gives, as many as those of the stored graph [n, F]."""
    made = int(stored.own_columns.get("nodes", 0))
    x = features(NODE, table, names, where[0], treatment).x if names or not made else torch.zeros(len(table), 0)
    x = torch.cat([x, x.new_zeros(len(x), MARKS if getattr(stored, "far", None) else 0)], dim=1)
    if x.size(1) != stored.num_features - made:
        what = f"{where[0]} gives {x.size(1)} features, but {where[2]} has {stored.num_features - made}"
        raise FedGraphError(f"{what}: pass the table columns of the run")
    return x


def join_tables(
    table: Any,
    links: Any,
    node_ids: Ids,
    columns: Columns,
    spec: InputSpec,
    stored: Graph,
    where: tuple[str, str, str],
    treatment: Treatment | None,
    new: np.ndarray | None = None,
) -> NewNodes:
    """Return the graph of a table's nodes and edges joined to a stored one.

    Args:
        table: one row per node.
        links: one row per edge.
        node_ids: index of the table's ids.
        columns: roles of the columns.
        spec: the model's features and classes.
        stored: the party's graph.
        where: files of nodes and edges, and the graph's name.
        treatment: column options.
        new: which rows are items, of a book, all of whose rows are records that the graph does not have [E'].
    """
    treatment = treatment or spec.treatment()
    stored = without_edges(stored) if spec.bare else stored
    rule = rule_of(columns, stored)
    columns = _of_later(columns, table, links, stored)
    names = feature_columns({NODE: table}, (), columns.others, {NODE: where[0]})[NODE]
    carried = edge_feature_columns({EDGE: links}, columns, {EDGE: where[1]}, treatment)[EDGE]
    treatment.check_names({NODE: names, EDGE: carried})
    x = _table_columns(table, names, stored, where, treatment)
    old = Ids(unpack_words(stored.ids), where[2])
    rows = old.index.get_indexer(node_ids.index)
    fresh = rows < 0
    n, k = stored.num_nodes, int(fresh.sum())
    rows[fresh] = n + np.arange(k)
    union = Ids(np.concatenate([old.index, node_ids.index[fresh]]), f"{where[0]} or {where[2]}")
    rows_of_table = links
    day = divide(links, columns, union.index, rule, stored, (where[1], f"{where[0]} or {where[2]}"), spec.parallel)
    links = links.iloc[day.rows].reset_index(drop=True)
    added: Mapping[str, Tensor] = {}
    carries = stored.has_edge_data or stored.num_edge_features > 0 or times_of(stored).numel() > 0
    if carries:  # also of a party that has edges to others only
        data_of = edge_data(links, carried, columns, where[1], treatment)
        ends, every_row = torch.from_numpy(day.ends), new is not None
        given = where, treatment, every_row, spec.parallel
        data_of, computed = _computed(data_of, ends, links, columns, stored, k, *given)
        x = torch.cat([x, computed[torch.from_numpy(rows)]], dim=1)
        added = {key: values[torch.from_numpy(day.usable)] for key, values in data_of.fields.items()}
    day = day.edges()
    ends = torch.from_numpy(day.ends)
    stages = None if new is None else torch.from_numpy(new[day.rows])
    inner = (ends < n + k).all(0).nonzero().view(-1)
    every, whole = ends, added
    ends, added = ends[:, inner], {key: rows_of(values, inner) for key, values in added.items()}
    ends, order = arranged(ends, n + k, spec.undirected, where[1], treatment, carries or spec.parallel)
    data = _joined_data(stored, added, order, where)
    if spec.parallel and "edge_time" in data:
        of_edges = None if stages is None else stages[inner][order]
        data["edge_split"] = _stages(stored.edge_time, data["edge_time"][stored.edge_time.numel() :], of_edges)
    edges = torch.cat([stored.edge_index, ends], dim=1)
    of_nodes = grown(stored, k)
    of_nodes["x"][torch.from_numpy(rows)] = x
    graph = Graph(
        edge_index=edges if data or spec.parallel else edges.unique(dim=1),
        ids=pack_words(union.index.to_numpy()),
        **{key: getattr(stored, key) for key in SHARED_FIELDS},
        **of_nodes,
        **data,
    )
    known = f", {len(rows) - k} of which replace stored ones," if k < len(rows) else ""
    note = f"{counted(len(rows), 'node')}{known} joined to the {n} nodes of {where[2]}, which edges name"
    additions = NewNodes(graph, union.index.to_numpy(), rows, note, tables={NODE: table, EDGE: rows_of_table})
    place = np.zeros(every.size(1), dtype=np.int64)
    place[inner.numpy()[order.numpy()]] = stored.edge_index.size(1) + np.arange(order.numel())
    if isinstance(stored, ClientGraph) and (spec.parallel or stored.far):
        additions = replace(additions, graph=_with_cut_edges(graph, stored, day, whole, place, spec, stages))
    ids = _edge_ids(rows_of_table, columns, where[1])
    named_ends = np.stack([as_words(rows_of_table[end]).astype(object) for end in (columns.source, columns.target)])
    numbers = np.asarray(rows_of_table.index) + 1
    left = tuple((int(numbers[row]), ids[row], *named_ends[:, row], reason) for row, reason in day.left_out)
    additions = replace(additions, edge_ids=ids[day.rows], ends=named_ends[:, day.rows], left_out=left, read=day.rows)
    return replace(additions, edges=place) if spec.parallel else additions


def without_edges(stored: Graph) -> Graph:
    """Return a graph with the first of its edges of each kind, which shows what data they have."""
    first = torch.zeros(1, dtype=torch.int64)
    samples: dict[str, Any] = {"edge_index": stored.edge_index[:, :1]} if stored.num_edges else {}
    for of in ("edge", "cut_out", "cut_in"):
        if getattr(stored, "edge_index" if of == "edge" else of, first[:0]).numel():
            samples |= rows_at(stored, of, first)
    return replace(stored, **samples)


def _computed(
    joined: EdgeData,
    ends: Tensor,
    links: Any,
    columns: Columns,
    stored: Graph,
    new: int,
    where: tuple[str, str, str],
    treatment: Treatment,
    distinct: bool,
    of_records: bool,
) -> tuple[EdgeData, Tensor]:
    """Return the data of new rows with the columns of the party's own records, and those of nodes [N + new, K].

    Args:
        joined: data of the rows.
        ends: their ends; accounts of other parties follow the nodes, in the order of the stored book [2, E'].
        links: the rows.
        columns: roles of their columns.
        stored: the party's graph of N nodes.
        new: number of new nodes.
        where: files of nodes and edges, and the graph's name.
        treatment: column options.
        distinct: whether the graph has none of the rows.
        of_records: whether rows are items; columns of nodes from their records are then 0.
    """
    nodes, recipe = stored.num_nodes + new, recipe_of(stored)
    of_nodes = torch.zeros(nodes, int(stored.own_columns.get("nodes", 0)))
    if recipe is None and not columns.seconds:
        return joined, of_nodes
    check_book(stored, where[2])
    cents = np.zeros(len(links), dtype=np.int64)
    if recipe is not None:
        cents = amounts_of(links, columns.amount_column, where[1], treatment)
    values = (
        joined.fields["edge_time"],
        torch.from_numpy(cents),
        torch.from_numpy(contents_of(links, treatment.agreed.nodes.get(EDGE, {}))),
    )
    held = renumbered(stored.book, torch.arange(stored.num_nodes), nodes)
    rows = torch.stack([*ends, *values])[: len(held)]
    table, at = torch.cat([held, rows], dim=1), held.size(1) + np.arange(rows.size(1))
    if not distinct:
        table, at = appended(held, rows)
    if repeated := held.size(1) + rows.size(1) - table.size(1):
        treatment.warn(
            f"{where[1]}: {repeated} of {rows.size(1)} rows repeat records that {where[2]} has (same accounts, time and"
            " amount): they are scored, and columns count them once"
        )
    if recipe is None:
        counts = log_counts(table[:2].numpy(), table[2].numpy(), columns.seconds)[at]
        return with_columns(joined, torch.from_numpy(counts)), of_nodes
    book = Book.of(table)
    joined = with_columns(joined, torch.from_numpy(edge_columns(book, recipe, rows=at)))
    if of_nodes.size(1) and not of_records:  # models of records do not read them
        matrix = node_columns(book, recipe, nodes, until=stored.own_columns.get("until"))
        of_nodes = torch.from_numpy(np.ascontiguousarray(matrix))
    return joined, of_nodes


def check_book(stored: Graph, where: str) -> None:
    """Refuse a file of an earlier release that has no records.

    Raises:
        FedGraphError: names the file.
    """
    if recipe_of(stored) is None and (len(stored.book) < 5 or stored.book.size(1) < stored.num_edges):
        raise FedGraphError(f"{where} was imported by an earlier release and has no records: import it again")


def _with_cut_edges(
    graph: Graph,
    stored: ClientGraph,
    day: Day,
    added: Mapping[str, Tensor],
    place: np.ndarray,
    spec: InputSpec,
    new: Tensor | None = None,
) -> ClientGraph:
    """Return a graph joined to a client's as that client's, with the edges to and from other clients; new ones are items.

    Args:
        graph: the joined graph, own accounts only.
        stored: the client's.
        day: the new rows.
        added: their data.
        place: receives the positions of rows that name other parties among the graph's items [K].
        spec: the model's features and classes.
        new: which rows are items [K]; None: all.
    """
    more, count = graph.num_nodes - stored.num_nodes, stored.num_global_nodes
    fresh, start = torch.arange(count, count + more), graph.edge_index.size(1)
    far = torch.from_numpy(global_ids(stored, day.far, count + more))
    cut: dict[str, Any] = {}
    leaving, reaching = day.of(graph.num_nodes)[1:]
    near = np.where(leaving, *day.ends)
    other = day.ends.sum(0) - near - graph.num_nodes
    for key, direct in (("cut_out", leaving), ("cut_in", reaching)):
        at = torch.from_numpy(np.flatnonzero(leaving | reaching if spec.undirected else direct))
        joined = torch.stack([torch.from_numpy(near)[at], far[torch.from_numpy(other)[at]]])
        held = getattr(stored, key)
        cut[key] = torch.cat([held, joined], dim=1)
        owner = getattr(stored, f"{key}_owner")
        cut[f"{key}_owner"] = torch.cat([owner, owner.new_full((at.numel(),), -1)])
        for name in ("attr", "time"):
            old = getattr(stored, f"{key}_edge_{name}")
            values = rows_of(added.get(f"edge_{name}", old[:0]), at)
            cut[f"{key}_edge_{name}"] = torch.cat([old, values]) if old.numel() else values
            if spec.parallel and name == "time" and old.numel() == held.size(1):
                cut[f"{key}_edge_split"] = _stages(old, values, None if new is None else new[at])
        place[at.numpy()] = start + held.size(1) + np.arange(at.numel())
        start += cut[key].size(1)
        if not (added or spec.parallel):  # such edges count once
            _, first = np.unique(cut[key].numpy(), axis=1, return_index=True)
            kept = torch.from_numpy(np.sort(first))
            cut[key], cut[f"{key}_owner"] = cut[key][:, kept], rows_of(cut[f"{key}_owner"], kept)
    return ClientGraph(
        **{f.name: getattr(graph, f.name) for f in fields(graph)} | {"schema": {**graph.schema, ENTERING: True}},
        **cut,
        node_id=torch.cat([stored.node_id, fresh]),
        **{key: getattr(stored, key) for key in ("client", "num_clients", "far")},
        **_far_fields(stored, day.far, far),
        num_global_nodes=count + more + len(day.far),
    )


def _far_fields(stored: ClientGraph, names: np.ndarray, ids: Tensor) -> dict[str, Any]:
    """Return ``far_id``, ``far_name`` and ``far_x`` of a graph with further accounts of other parties, of which nothing is told.

    Args:
        stored: the party's graph.
        names: party and id of accounts of other parties [K].
        ids: their global ids; those of accounts that the graph does not have are larger than all of its own [K].
    """
    held: dict[str, Any] = {key: getattr(stored, key) for key in ("far_id", "far_name", "far_x")}
    if not held["far_name"].numel():
        return held
    fresh = ~torch.isin(ids, held["far_id"])
    order = ids[fresh].argsort()
    more = names[fresh.numpy()][order.numpy()]
    held["far_id"] = torch.cat([held["far_id"], ids[fresh][order]])
    held["far_name"] = pack_words(np.concatenate([unpack_words(held["far_name"]), more]))
    if held["far_x"].numel():
        unknown = held["far_x"].new_full((more.size, held["far_x"].size(1)), torch.nan)
        held["far_x"] = torch.cat([held["far_x"], unknown])
    return held


def _stages(stored: Tensor, new: Tensor, items: Tensor | None = None) -> Tensor:
    """Return the first stage that reads each edge, int8 [E + E']: training for stored ones, test for new ones.

    So a new edge is scored on edges until the end of its own ``split.step``, as a test edge of the run is, whatever other rows
    its table has.

    Args:
        stored: times of stored edges [E].
        new: times of new ones [E'].
        items: which new ones are items; the others are read as stored ones [E']. None: all.
    """
    stages = torch.zeros(stored.numel() + new.numel(), dtype=torch.int8)
    stages[stored.numel() :] = STAGES.index("test") if items is None else STAGES.index("test") * items.to(torch.int8)
    return stages


def _edge_ids(links: Any, columns: Columns, where: str) -> np.ndarray:
    """Return the ids of an edge table's rows: those of its column, else their numbers from 1."""
    if not columns.edge_id:
        return (np.asarray(links.index) + 1).astype(object)
    return np.asarray(as_words(column_of(links, columns.edge_id, where, "edge id")), dtype=object)


def _joined_data(
    stored: Graph, added: Mapping[str, Tensor], order: Tensor, where: tuple[str, str, str]
) -> dict[str, Any]:
    """Return the data of the stored edges followed by those of a table; labels of edges are unknown.

    Raises:
        FedGraphError: the table has no column for features or times of the stored edges.
    """
    data: dict[str, Any] = {}
    for key, what in (("edge_attr", "features"), ("edge_time", "times")):
        if (held := getattr(stored, key)).numel() and key not in added:
            raise FedGraphError(f"{where[1]} has no {what} of edges, which {where[2]} has: add their columns")
        if key in added and (held.numel() or not stored.num_edges):
            data[key] = torch.cat([held, added[key][order]]) if held.numel() else added[key][order]
    return data


def typed_tables(
    nodes: Mapping[str, Path | None],
    edges: Mapping[EdgeType, Path | None],
    target: str,
    columns: Columns,
    spec: InputSpec,
    options: Mapping[str, Any],
) -> HeteroGraph:
    """Build a heterogeneous graph from tables, with the types of the training graph and their reverse; labels are optional.

    Args:
        nodes: by node type, one row per node; a type without a table is empty.
        edges: by edge type, one row per edge.
        target: the node type to predict.
        columns: roles of the columns.
        spec: the model's features and classes.
        options: fields of the `Treatment`, such as ``decimals``.

    Raises:
        FedGraphError: a type is unknown, or as for `from_tables` or `InputSpec.treatment`.
    """
    schema = spec.named_schema()
    kinds = [kind for kind in schema.nodes if kind not in schema.edges]
    known = edge_types(dict.fromkeys(schema.edges))
    for what, given, accepted in (
        ("node", list(nodes), kinds),
        ("edge", list(map(":".join, edges)), list(schema.edges)),
    ):
        check_names(given, accepted, f"{what} type", f"--{what}s")
    for kind in schema.nodes:
        if spec.columns(kind):
            spec.treatment(kind)
    graph: HeteroGraph = from_tables(
        dict.fromkeys(kinds) | dict(nodes),
        {**known, **edges},
        columns,
        target=target,
        classes=schema.classes,
        treatment=Treatment(schema=schema, where=spec.where, labelled=False, **options),
    )
    return graph.on_schema(sorted(kinds), sorted(known)).both_ways()


def graph_file(path: Path, spec: InputSpec) -> Graph | HeteroGraph:
    """Read a graph file of this package, or a PyG object written by ``torch.save``.

    Raises:
        FedGraphError: the file cannot be read, or its features or classes differ.
    """
    if path.suffix in SAVED:
        return from_pyg(read_saved(path), spec, str(path))
    graph = check_file(load_graph(path), str(path))
    check_scaling(graph, spec, str(path))
    return graph.both_ways() if type(graph) is HeteroGraph else graph  # a dataset, without reverse edges


def from_pyg(data: Any, spec: InputSpec, where: str = "the graph") -> Graph | HeteroGraph:
    """Convert a PyG ``Data`` or ``HeteroData``; without ``y``, labels are unknown.

    Columns of ``x`` that were scaled for training are scaled in the same way, unless the object carries a schema.

    Raises:
        FedGraphError: the object has another type, a tensor is missing, or `check_scaling` fails.
    """
    if hasattr(data, "node_types"):
        return _typed(data, spec, where)
    if missing := [key for key in ("x", "edge_index") if not isinstance(getattr(data, key, None), Tensor)]:
        expected = "a PyG Data with x and edge_index, a Graph or a HeteroGraph"
        raise FedGraphError(f"{where} has no tensor '{missing[0]}': expected {expected}")
    check_dtypes(data, where)
    spec = _checked(data, spec, where)
    data = data.clone()
    if not isinstance(getattr(data, "y", None), Tensor):
        data.y = torch.full((data.num_nodes,), -1)
    data.x = _features(data.x, NODE, spec, where)
    graph = Graph.from_pyg(data, num_classes=max(len(spec.classes), 1), name=where)
    if spec.undirected:
        graph = both_directions(graph)
    return check_file(_known_labels(graph), where)


def _typed(data: Any, spec: InputSpec, where: str) -> HeteroGraph:
    from fedgraph_flwr.data.pyg import in_order

    labelled = [kind for kind in data.node_types if isinstance(getattr(data[kind], "y", None), Tensor)]
    if len(labelled) != 1:
        got = ", ".join(labelled) or "none"
        raise FedGraphError(f"{where}: only the node type to predict must have y (-1 where unknown), got {got}")
    spec = _checked(data, spec, where)
    data = data.clone()
    for kind in data.node_types:
        if isinstance(getattr(data[kind], "x", None), Tensor):
            data[kind].x = _features(data[kind].x, kind, spec, where)
    made = HeteroGraph.from_pyg(data, labelled[0], num_classes=len(spec.classes), name=where)
    graph = in_order(made.without_reverse())
    return check_file(_known_labels(graph).both_ways(), where)


def _known_labels(graph: Any) -> Any:
    """Return the graph with unlabelled nodes removed from its masks."""
    masks = {key: getattr(graph, key) & (graph.y >= 0) for key in ("train_mask", "val_mask", "test_mask")}
    return replace(graph, **masks)


def _features(x: Tensor, kind: str, spec: InputSpec, where: str) -> Tensor:
    """Return the features of a PyG object, scaled if training scaled the columns of such an object."""
    if spec.scaled or not _of_saved(spec, kind):
        return (x.to_dense() if x.is_sparse else x).to(torch.float32)
    return saved_features(spec.treatment(kind), kind, x, where).x


def _of_saved(spec: InputSpec, kind: str) -> bool:
    """Return whether training scaled the columns of a PyG object."""
    columns = spec.columns(kind)
    return bool(columns) and all(name == f"x_{i}" for i, name in enumerate(columns))


def _checked(data: Any, spec: InputSpec, where: str) -> InputSpec:
    """Check a PyG object as `check_scaling`; return the specification, with ``scaled`` if the object carries a schema."""
    check_scaling(data, spec, where)
    return replace(spec, scaled=spec.scaled or _carried(data, where) is not None)


def _carried(graph: Any, where: str) -> Schema | None:
    """Return the schema with the statistics by which a graph's features were scaled; None if it carries none."""
    values = getattr(graph, "schema", None)
    return fitted_schema(values, where) if isinstance(values, Mapping) and "fitted" in values else None


def check_scaling(graph: Any, spec: InputSpec, where: str) -> None:
    """Check that the features of a given graph are scaled as in training, unless the user says so (``spec.scaled``).

    Columns of a PyG object that training scaled from such an object pass, since `from_pyg` scales them. Where each party has its
    own statistics (scaling local), other ones are a warning.

    Args:
        graph: a `Graph`, a `HeteroGraph` or a PyG object.
        spec: the model's features and classes.
        where: its file or name, for errors.

    Raises:
        FedGraphError: training scaled its features, and the graph carries no schema, or one with another scaling.
    """
    if spec.scaled:
        return
    graph_schema = _carried(graph, where)
    stated = by_caller("--scaled", "scaled=True")
    if spec.schema is None:
        if spec.of_fleet and graph_schema is None:
            schema = by_caller("--schema FILE", "a Graph of a file that `import` wrote")
            log_warning(
                f"{where} is read as it is: {spec.where} does not know whether the parties scaled their features. If they"
                f" imported tables, pass {schema}; {stated} hides this warning"
            )
        return
    tables = by_caller(
        "pass its tables (such as --nodes FILE --edges FILE)",
        "predict its tables (`fedgraph-flwr predict RUN --nodes FILE ...`)",
    )
    fix = f"{tables}, or {by_caller(stated, f'pass {stated}')} if its features are scaled as in training"
    given_raw = graph_schema is None and not isinstance(graph, Graph | HeteroGraph)
    for kind in _kinds(graph):
        wanted = spec.schema.scaled(kind)
        if graph_schema is None and wanted and not (given_raw and _of_saved(spec, kind)):
            more = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
            columns = f"'{next(iter(wanted))}'{more}"
            what = f"{where} does not say how its features are scaled"
            raise FedGraphError(f"{what}, and {spec.where} was trained on scaled columns ({columns}): {fix}")
        if (
            graph_schema is None
            or kind not in spec.schema.nodes
            or not (unlike := _scaled_unlike(spec.schema, graph_schema, kind))
        ):
            continue
        what = f"{where} is scaled otherwise than the features of {spec.where}: {unlike}"
        scales = [{name: column.scale for name, column in s.scaled(kind).items()} for s in (spec.schema, graph_schema)]
        if scales[0] != scales[1] or not spec.schema.scaling == graph_schema.scaling == "local":
            raise FedGraphError(f"{what}: {fix}")
        log_warning(f"{what}. This is right for another party's file; for new data of the same party, {tables}")
        return


def _kinds(graph: Any) -> Iterator[str]:
    """Yield the types of nodes and edges of a graph or PyG object that have features in some row, as a schema names them."""
    tensors: dict[str, Any]
    if isinstance(graph, HeteroGraph):
        tensors = {**graph.x, **{":".join(edge): rows for edge, rows in graph.edge_attr.items()}}
    elif hasattr(graph, "node_types"):
        tensors = {kind: getattr(graph[kind], "x", None) for kind in graph.node_types}
        tensors |= {":".join(edge): getattr(graph[edge], "edge_attr", None) for edge in graph.edge_types}
    else:
        tensors = {NODE: graph.x, EDGE: getattr(graph, "edge_attr", None)}
    yield from (kind for kind, rows in tensors.items() if isinstance(rows, Tensor) and rows.numel())


def _scaled_unlike(training: Schema, graph_schema: Schema, kind: str) -> str:
    """Describe the first column of a type that a graph scales otherwise than training; "" if there is none.

    Args:
        training: schema of training; columns without statistics were scaled by each party's own.
        graph_schema: schema of the graph, with its statistics.
        kind: the type.
    """
    wanted, given = training.scaled(kind), graph_schema.scaled(kind)
    for name in (*wanted, *given):
        if name not in wanted or name not in given:
            return f"column '{name}' is scaled only {'in training' if name in wanted else 'there'}"
        ours, theirs = wanted[name], given[name]
        if ours.scale != theirs.scale:
            return f"column '{name}' has scale {theirs.scale}, in training {ours.scale}"
        known = [
            {key: float(c.statistics[key]) for key in ("center", "spread") if key in c.statistics}
            for c in (theirs, ours)
        ]
        if known[1] and known[0] != known[1]:
            return f"column '{name}' has {to_text(known[0])}, in training {to_text(known[1])}"
        if not known[1] and graph_schema.scaling != training.scaling:
            return f"column '{name}' has scaling {graph_schema.scaling}, in training {training.scaling}"
    return ""
