"""Import of a party's graph: node and edge tables, or a saved PyG object, to a dataset or one client's file.

    from_tables(nodes, edges, columns)     CSV or Parquet            ┐
    from_saved(path)                       PyG's Data, HeteroData    ┴→ graph → save_dataset | client_graph(...).save

There is one path for all tables: each type of nodes (`nodes`) and of edges (`edges`) is read by itself. Nodes of one type without
a name and their edges become a `Graph`, others a `HeteroGraph`. Its types are in alphabetical order, so all clients number them
equally. A type without a table is empty: a federation can share its schema although a client has no data of a type.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.config import group_names
from fedgraph_flwr.data import pyg
from fedgraph_flwr.data.checks import check_graph
from fedgraph_flwr.data.graph import ClientGraph, Graph, pack_words
from fedgraph_flwr.data.hetero import EdgeType, HeteroGraph
from fedgraph_flwr.data.many_graphs import check_many
from fedgraph_flwr.data.pyg import EDGE_TYPE, Features
from fedgraph_flwr.data.root import imported_path
from fedgraph_flwr.data.schema import EDGE, NODE, feature_names
from fedgraph_flwr.data.value_formats import SECONDS
from fedgraph_flwr.errors import FedGraphError, check_names, unknown
from fedgraph_flwr.party.outcomes import Outcomes, with_outcomes
from fedgraph_flwr.party.tables import edge_stream, graph_tables, roles
from fedgraph_flwr.party.tables.columns import AS_FOUND, Treatment, features, warn_unscaled
from fedgraph_flwr.party.tables.edges import TableEdges, edge_times, judged, read_edges, time_format
from fedgraph_flwr.party.tables.nodes import (
    Ids,
    agreed_classes,
    agreed_targets,
    check_swapped,
    column_of,
    group_codes,
    label_codes,
    split_masks,
    target_values,
)
from fedgraph_flwr.party.tables.parties import PartyRule, fold, repeated
from fedgraph_flwr.party.tables.party_roles import complete, with_role
from fedgraph_flwr.party.tables.reading import read_columns, read_table
from fedgraph_flwr.party.tables.repeats import FILE, counted_once
from fedgraph_flwr.party.tables.roles import BOUND, DEFAULTS, Columns

Nodes = Mapping[str, Path | None]
Edges = Mapping[EdgeType, Path | None]


@dataclass
class Tables:
    """Tables of one import, read once.

    Attributes:
        nodes: rows by node type; a type without a table is missing. Likewise ``edges``.
        files: file of each type, for errors; "None" without a table.
        kinds: all node types. Likewise ``relations``, all edge types.
        target: the labelled node type.
        columns: roles of the columns.
        stream: file of edges that are read in chunks, because they do not fit in memory.
        of_graphs: many graphs: the graph of each node, and the names of the graphs by node.
    """

    nodes: dict[str, Any]
    edges: dict[EdgeType, Any]
    files: dict[str, str]
    kinds: list[str]
    relations: list[EdgeType]
    target: str
    columns: Columns
    stream: Path | None = None
    of_graphs: dict[str, Any] = field(default_factory=dict)

    @property
    def single(self) -> bool:
        """Whether nodes and edges have one type without a name."""
        return self.kinds == [NODE] and self.relations == [EDGE_TYPE]

    @property
    def by_name(self) -> dict[str, Any]:
        """Tables of edges by the name of their type."""
        return {":".join(r): table for r, table in self.edges.items()}


def from_tables(
    nodes: Path | str | Nodes,
    edges: Path | str | Edges,
    columns: Columns = DEFAULTS,
    *,
    target: str = "",
    classes: Sequence[str] = (),
    undirected: bool = False,
    treatment: Treatment = AS_FOUND,
    own_party: str = "",
    parallel: bool = False,
    edge_classes: Sequence[str] = (),
    graphs: Path | str | None = None,
    outcomes: Outcomes | None = None,
    reader: Callable[..., Any] = read_table,
) -> Any:
    """Build a graph from node tables and edge tables.

    Args:
        nodes: CSV or Parquet with one row per node, or one such file by node type (None: a type without data).
        edges: CSV or Parquet with one row per edge, or one such file by (source type, relation, target type). An edge type
            without features that is the exact reverse of another is dropped: clients add reverse types.
        columns: roles of the columns. Ids and labels may have any type; an empty label is unknown (y = -1). The split
            column holds train, val, test or an empty cell. The client column becomes `Graph.group`.
        target: labelled node type; its table has the label column, and the split column if there is one. "": the only type.
        classes: class names in label order; empty for the schema's, else the sorted values that occur.
        undirected: whether each row represents both directions.
        treatment: column options (`columns`) and the schema to follow.
        own_party: this party's name, if edges may name accounts of other parties (`parties`). The result is then a
            `ClientGraph` with foreign records.
        parallel: whether rows that repeat an edge stay separate even without data.
        edge_classes: class names of edges, as ``classes``.
        graphs: with a graph column, table with one row per graph: its label, targets, split and client.
        outcomes: decisions about alerts, which are the labels of their items (`with_outcomes`).
        reader: reads a table, as `read_table` does.

    Returns:
        A `Graph` for files, or for the node type ``node`` and the edge type ``node:edge:node``; else a `HeteroGraph`.

    Raises:
        FedGraphError: a file, column or id is missing, an id is repeated, an edge names an unknown id, a value does not
            match its column's kind, a label is outside ``classes``, or a type of an edge has no node table. The message names the
            first row.
    """
    nodes = nodes if isinstance(nodes, Mapping) else {NODE: Path(nodes)}
    edges = edges if isinstance(edges, Mapping) else {EDGE_TYPE: Path(edges)}
    single = ([*nodes], [*edges]) == ([NODE], [EDGE_TYPE])
    if not single:
        columns.of_one_type(own_party, graphs, undirected)
    rule = _rule(columns, nodes, edges, own_party, treatment.role)
    tables = _read(nodes, edges, target, columns, treatment, bool(parallel or rule), reader)
    _join_graphs(tables, graphs)
    treatment = _with_times(tables, treatment)
    if single:
        _count_once(tables, rule, treatment)
    if outcomes:
        _decide(tables, outcomes, (classes, edge_classes), treatment)
    columns, target = _present(tables, treatment.labelled, bool(treatment.role)), tables.target
    if single and treatment.labelled:
        columns = tables.columns = judged(columns, tables.edges.get(EDGE_TYPE), tables.files[EDGE], treatment)
    undirected = undirected or (single and treatment.undirected)
    for kind in tables.nodes:
        roles.check_roles(columns, kind, treatment)
    ids = {kind: Ids.of(table, columns.id, tables.files[kind]) for kind, table in tables.nodes.items()}
    values, names, clients = _target_nodes(tables, classes, treatment)
    usable = roles.feature_columns(tables.nodes, columns.features, columns.others, tables.files)
    carried = roles.edge_feature_columns(tables.by_name, columns, tables.files, treatment)
    where, of_edges = tables.files[target], carried.get(EDGE, [])
    roles.check_unknown_at_prediction(columns, usable[target], of_edges, where)
    treatment.check_names({**usable, **carried, EDGE: [*of_edges, columns.time, *(rule.key_columns if rule else ())]})
    edges_of = _edges(
        tables, carried, ids, treatment, undirected, parallel=parallel, edge_classes=edge_classes, rule=rule
    )
    made = _features(tables, usable, edges_of, treatment)
    common = {**values, "num_classes": max(len(names), 1), "ids": pack_words(ids[target].index.to_numpy())}
    graph: Any = (
        _graph(tables, common, edges_of[EDGE_TYPE], made) if single else _typed_graph(tables, common, edges_of, made)
    )
    agreed, bound = treatment.schema.tables if treatment.schema else columns.layout, BOUND if columns.recipe else ""
    graph.schema = pyg.schema_of(
        made,
        names,
        treatment.settled_scaling(),
        *((tables.kinds, tables.relations) if single else (graph.counts, graph.edges)),
        layouts=(replace(agreed, alike=bound), replace(columns.layout, alike=bound)),
        roles=treatment.roles({kind: one.agreed for kind, one in made.items()}, {**usable, EDGE: of_edges}),
        **_agreed_of_edges(tables, edges_of, treatment, undirected),
    )
    graph.schema |= {"clients": clients} if clients else {}
    labelled = treatment.labelled and bool(columns.label or columns.targets)
    if not single:
        return check_graph(graph, where, labelled)
    if treatment.role and not rule:
        names_of = ids[NODE].index.to_numpy()
        graph = with_role(graph, own_party, names_of, tables.edges[EDGE_TYPE], columns, where, treatment)
    return check_graph(with_records(graph, edges_of[EDGE_TYPE], rule, treatment.role, undirected), where, labelled)


def _rule(columns: Columns, nodes: Nodes, edges: Edges, own_party: str, role: str) -> Any:
    """Return how edges name other parties; None without such edges, or for a role that has one table of the two."""
    both = nodes.get(NODE) is not None and edges.get(EDGE_TYPE) is not None
    return columns.parties(own_party) if both or not role else None


def _read(
    nodes: Nodes,
    edges: Edges,
    target: str,
    columns: Columns,
    treatment: Treatment,
    in_memory: bool,
    reader: Callable[..., Any],
) -> Tables:
    """Read the tables; edges alone of a big file later, in chunks.

    Raises:
        FedGraphError: a file cannot be read, or types do not fit together.
    """
    target = target or (next(iter(nodes)) if len(nodes) == 1 else "")
    if not treatment.role:
        if nodes.get(target) is None:
            raise unknown("target node type", target, [kind for kind, path in nodes.items() if path], "--target")
        _check_ends(nodes, edges)
    files = {kind: str(path) for kind, path in nodes.items()} | {":".join(r): str(path) for r, path in edges.items()}
    layout, say = columns.layout, treatment.say
    held = {kind: reader(path, layout, say) for kind, path in nodes.items() if path is not None}
    tables = Tables(held, {}, files, [*nodes], [*edges], target, columns)
    roles_of_rows = ("edge_features", "time", "edge_label", "graph", "seconds", "recipe")
    need_rows = in_memory, treatment.agreed.nodes.get(EDGE), *(getattr(columns, role) for role in roles_of_rows)
    path = edges.get(EDGE_TYPE)
    if tables.single and path and edge_stream.is_big(path) and not any(need_rows):
        tables.stream, tables.edges = path, {EDGE_TYPE: read_columns(path, layout, say)}
    else:
        tables.edges = {r: reader(path, layout, say) for r, path in edges.items() if path is not None}
    if NODE in held and EDGE_TYPE in tables.edges:
        names = columns.id, columns.source, columns.target
        check_swapped(held[NODE], tables.edges[EDGE_TYPE], names, (files[NODE], files[EDGE]))
    if treatment.role:
        complete(tables.nodes, tables.edges, tables.files, columns, treatment)
    return tables


def _with_times(tables: Tables, treatment: Treatment) -> Treatment:
    """Return the options with the format of the times, which becomes part of the layout if a reader could not guess it."""
    columns, table = tables.columns, tables.edges.get(EDGE_TYPE)
    if not tables.single or not columns.time or table is None or columns.time not in table.columns:
        return treatment
    form = time_format(table[columns.time], tables.files[EDGE], treatment)
    tables.columns = replace(columns, time_format="" if form in (SECONDS, "ISO8601") else form)
    return replace(treatment, time_format=form)


def _count_once(tables: Tables, rule: PartyRule | None, treatment: Treatment) -> None:
    """Keep one row of each payment, of tables with a column of ids and of several files.

    Of one file without ids, records of other parties' accounts are matched copy by copy (`parties.divide`).
    """
    table, columns = tables.edges.get(EDGE_TYPE), tables.columns
    if table is None or tables.stream or not (columns.edge_id in table.columns or FILE in table.attrs):
        return
    where = tables.files[EDGE]
    for name in (columns.source, columns.target):
        column_of(table, name, where, "end of edges")
    file = table.attrs.pop(FILE, None)
    kept = counted_once(table, columns, rule, where, treatment, file).nonzero()[0]
    if file is not None and columns.time:  # as a book has them
        kept = kept[edge_times(table, columns.time, where, treatment).numpy()[kept].argsort(kind="stable")]
    tables.edges[EDGE_TYPE] = table.iloc[kept].reset_index(drop=True)


def _join_graphs(tables: Tables, graphs: Path | str | None) -> None:
    """Give the nodes of many graphs, if they are many, the columns of the table of graphs, in the order of the graphs."""
    if not tables.columns.graph:
        if graphs is not None:
            raise FedGraphError(f"--graph-table {graphs} needs columns.graph=NAME, with the graph of each node")
        return
    where = tables.files[NODE], tables.files[EDGE]
    tables.nodes[NODE], tables.edges[EDGE_TYPE], place, named = graph_tables.joined(
        tables.nodes[NODE], tables.edges[EDGE_TYPE], tables.columns, graphs, where
    )
    tables.of_graphs = {"graph_id": place, "ids": pack_words(named[place])}


def _decide(
    tables: Tables, outcomes: Outcomes, classes: tuple[Sequence[str], Sequence[str]], treatment: Treatment
) -> None:
    """Give the items of a table the labels that a party decided.

    Raises:
        FedGraphError: the graph has several types, no column of labels is named, or `with_outcomes` fails.
    """
    columns, of_edges = tables.columns, outcomes.of_edges
    if not tables.single or tables.stream or tables.of_graphs:
        raise FedGraphError(f"--outcomes {outcomes.where} needs nodes and edges of one type: pass --nodes and --edges")
    given, agreed = classes[of_edges], treatment.agreed.edge_classes if of_edges else treatment.agreed.classes
    label = columns.edge_label if of_edges else columns.label
    if not label:
        raise FedGraphError(f"--outcomes {outcomes.where} has labels of edges: pass columns.edge_label=NAME")
    if of_edges and not columns.edge_id:
        raise FedGraphError(
            f"--outcomes {outcomes.where} names edges, and no column has their ids: pass columns.edge_id=NAME; `predict` and"
            " `alerts`, which number rows without it, read it in the party's file (--party-file)"
        )
    held: dict[Any, Any] = tables.edges if of_edges else tables.nodes
    kind, where = (EDGE_TYPE, tables.files[EDGE]) if of_edges else (NODE, tables.files[NODE])
    if kind not in held:
        raise FedGraphError(f"--outcomes {outcomes.where} names items of a table that this party does not have")
    time = edge_times(held[kind], columns.time, where, treatment).numpy() if of_edges and columns.time else None
    ends = (columns.source, columns.target) if of_edges else None
    names = (columns.edge_id if of_edges else columns.id, label)
    held[kind] = with_outcomes(held[kind], names, agreed or given, outcomes, where, treatment.say, time, ends)


def _present(tables: Tables, labelled: bool, by_role: bool) -> Columns:
    """Keep roles of columns only if the tables have them, as far as they are not needed: parties of a role may have no labels."""
    columns, targets = tables.columns, [tables.nodes[tables.target]]
    if not labelled:
        columns = columns.without(targets, "label", "split", "client")
        columns = columns.without([*tables.edges.values()], "time", "edge_label")
    elif by_role:
        columns = columns.without(targets, "label", "split", "client").without([*tables.edges.values()], "edge_label")
    elif (columns.edge_label or columns.targets) and columns.label == DEFAULTS.label:
        columns = columns.without(targets, "label")  # labels of edges, or targets, are enough
    tables.columns = columns
    return columns


def _edges(
    tables: Tables,
    carried: Mapping[str, Sequence[str]],
    ids: Mapping[str, Ids],
    treatment: Treatment,
    undirected: bool,
    **options: Any,
) -> dict[EdgeType, TableEdges]:
    """Return the edges of every table; ``options`` are those of `read_edges`."""
    edges, columns = {}, tables.columns
    for r, table in tables.edges.items():
        kind, ends = ":".join(r), (ids[r[0]], ids[r[2]])
        where = tables.files[kind], tables.files[r[0]]
        edges[r] = read_edges(
            table, carried[kind], columns, kind, where, ends, treatment, undirected=undirected, **options
        )
    if tables.stream:
        index = edge_stream.read_edges(tables.stream, columns, ids[NODE], undirected, treatment)
        edges[EDGE_TYPE] = replace(edges[EDGE_TYPE], index=index)
    return edges


def _check_ends(nodes: Nodes, edges: Edges) -> None:
    """Check that every edge type joins known node types, which have tables if there are edges.

    Raises:
        FedGraphError: a node type is unknown, or has no table.
    """
    for (a, relation, b), path in edges.items():
        check_names((a, b), nodes, f"node type of the edges '{relation}'", "--edges A:RELATION:B=FILE")
        if path is not None and (missing := [end for end in (a, b) if nodes[end] is None]):
            what = f"{path} has edges of '{relation}'"
            raise FedGraphError(f"{what}, but node type '{missing[0]}' has no table: pass --nodes TYPE=FILE")


def _target_nodes(
    tables: Tables, classes: Sequence[str], treatment: Treatment
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return labels and masks of the target nodes as fields of a graph, and the names of classes and clients."""
    table, columns, where = tables.nodes[tables.target], tables.columns, tables.files[tables.target]
    y, names = torch.full((len(table),), -1), list(agreed_classes(classes, treatment))
    if columns.label:
        y, names = label_codes(table, columns.label, where, names, treatment)
    fields, clients = dict[str, Any](y=y), list[str]()
    known = y >= 0
    if tables.single:
        targets = target_values(table, columns.targets, where)
        known = known | ~targets.isnan().all(1) if columns.targets else known
        group, clients = group_codes(table, columns.client, where)
        fields |= {"targets": targets, "target_stats": agreed_targets(columns.targets, treatment), "group": group}
    split = columns.split if treatment.labelled else ""  # data to predict belong to no split, whatever the column says
    masks = split_masks(table, split, where)
    return fields | {key: mask & known for key, mask in masks.items()}, names, clients


def _features(
    tables: Tables, usable: Mapping[str, Sequence[str]], edges_of: Mapping[EdgeType, TableEdges], treatment: Treatment
) -> dict[str, Features]:
    """Return the features of every type that has some; a type without a table has the schema's columns for no row."""
    agreed = treatment.agreed.nodes
    made = {
        kind: features(kind, tables.nodes[kind], names, tables.files[kind], treatment)
        for kind, names in usable.items()
        if names or agreed.get(kind)
    }
    made |= {":".join(r): edges.data.made for r, edges in edges_of.items() if edges.data.made}
    for kind in tables.files:
        if kind not in tables.nodes and kind not in tables.by_name and (columns := agreed.get(kind)):
            width = len(feature_names(columns))
            made |= {kind: Features(columns, columns, torch.zeros(0, width))} if width or kind in tables.kinds else {}
    return made


def _graph(tables: Tables, common: dict[str, Any], edges: TableEdges, made: Mapping[str, Features]) -> Graph:
    """Return the graph of one node type and one edge type.

    Raises:
        FedGraphError: no column is a feature, or edges join two of many graphs.
    """
    if (NODE not in made or not made[NODE].x.size(1)) and not tables.columns.recipe:
        others = [name for name in map(str, tables.nodes[NODE].columns) if name not in tables.columns.others]
        held = f"its other columns: {', '.join(others) or 'none'}"
        role = "If other parties have columns of these nodes, pass --role NAME"
        raise FedGraphError(f"{tables.files[NODE]} has no feature column; {held}. {role}")
    graph = Graph(
        x=made[NODE].x if NODE in made else torch.zeros(len(tables.nodes[NODE]), 0),
        edge_index=edges.index,
        num_edge_classes=len(edges.data.classes),
        **edges.data.book_fields,
        **common | tables.of_graphs,
        **edges.fields,
    )
    if tables.of_graphs:
        try:
            check_many(graph)
        except FedGraphError as error:
            raise FedGraphError(f"{tables.files[EDGE]}: {error}") from None
    return graph


def _typed_graph(
    tables: Tables, common: dict[str, Any], edges_of: Mapping[EdgeType, TableEdges], made: Mapping[str, Features]
) -> HeteroGraph:
    """Return the graph of several types."""
    none = torch.zeros(2, 0, dtype=torch.int64)
    attr = {r: edges.fields["edge_attr"] for r, edges in edges_of.items() if edges.data.made}
    attr |= {r: made[":".join(r)].x for r in tables.relations if r not in edges_of and ":".join(r) in made}
    graph = HeteroGraph(
        counts={kind: len(tables.nodes.get(kind, ())) for kind in tables.kinds},
        edges={r: edges_of[r].index if r in edges_of else none for r in tables.relations},
        target=tables.target,
        x={kind: made[kind].x for kind in tables.kinds if kind in made and made[kind].x.size(1)},
        edge_attr={r: attr[r] for r in tables.relations if r in attr},
        **common,
    )
    return pyg.in_order(graph.without_reverse())


def _agreed_of_edges(
    tables: Tables, edges_of: Mapping[EdgeType, TableEdges], treatment: Treatment, undirected: bool
) -> dict[str, Any]:
    """Return the fields of a schema that only a graph of one type has."""
    if not tables.single:
        return {}
    classes = edges_of[EDGE_TYPE].data.classes
    return {"undirected": undirected, "edge_classes": classes, "targets": treatment.agreed.targets}


def with_records(graph: Graph, edges: TableEdges, rule: Any, role: str, undirected: bool) -> Graph:
    """Return the graph of a party with its records of edges to other parties; without them, the graph.

    Args:
        graph: the party's own graph.
        edges: the divided rows and their data.
        rule: how the parties of ends are named, a `PartyRule`.
        role: role of the party, or "".
        undirected: whether each row represents both directions.
    """
    records, data = edges.records, edges.data.fields
    if records is None:
        return graph
    chosen = torch.arange(records.rows.numel())
    if not data and not rule.key:  # such edges count once
        chosen = torch.from_numpy(~repeated(records, rule.id_form, undirected)).nonzero().view(-1)
    values: dict[str, Any] = {f"foreign_{key}": tensor[records.rows[chosen]] for key, tensor in data.items()}
    return ClientGraph(
        **vars(graph),
        foreign=torch.stack([records.node[chosen], records.party[chosen]]),
        foreign_out=records.outgoing[chosen],
        foreign_id=pack_words(records.ids[chosen.numpy()]),
        foreign_key=pack_words(records.keys[chosen.numpy()]),
        linking={"party": str(fold([rule.own_party])[0]), "parties": list(records.parties), "form": rule.form}
        | ({"role": role} if role else {}),
        **values,
    )


def from_saved(
    path: Path | str,
    target: str = "",
    *,
    classes: Sequence[str] = (),
    undirected: bool = False,
    treatment: Treatment = AS_FOUND,
    client: str = "",
) -> Any:
    """Build a graph from a saved PyG ``Data`` or ``HeteroData`` with features ``x`` and integer labels ``y``; keep its masks.

    Args:
        path: file written by ``torch.save(data, path)``.
        target: labelled node type of a ``HeteroData``.
        classes: names of the labels 0..C-1; empty for the schema's, else the numbers.
        undirected: whether each edge of a ``Data`` represents both directions.
        treatment: options for the columns ``x_0``...; without a ``scaling``, ``x`` is used unchanged.
        client: attribute of a ``Data`` with each node's client.

    Raises:
        FedGraphError: the file is invalid (`read_saved`), a tensor is missing, or the graph is invalid.
    """
    shared: dict[str, Any] = {
        "classes": agreed_classes(classes, treatment),
        "scaling": treatment.settled_scaling("none"),
        "encode": partial(saved_features, treatment),
    }
    if target:
        return pyg.from_hetero_data(pyg.read_saved(path), str(path), target, **shared)
    undirected = undirected or treatment.undirected
    options: Any = {"undirected": undirected, "say": treatment.say, "client": client}
    return pyg.from_data(pyg.read_saved(path), str(path), **shared, **options)


def saved_features(treatment: Treatment, kind: str, x: Tensor, where: str) -> Features:
    """Return the features of one node type of a saved graph from ``x`` [N, F] or [N]: unchanged, or scaled by column.

    Raises:
        FedGraphError: the columns differ from the schema's, or `features` fails.
    """
    x = pyg.matrix(x)
    names = [f"x_{i}" for i in range(x.size(1))]
    if treatment.settled_scaling("none") != "none":
        import pandas as pd

        kinds = dict.fromkeys(names, "number") | dict(treatment.kinds)
        return features(kind, pd.DataFrame(x.numpy(), columns=names), names, where, replace(treatment, kinds=kinds))
    made = pyg.unchanged(kind, x, where)
    agreed = treatment.schema.nodes.get(kind, {}) if treatment.schema else made.agreed
    if dict(agreed) != made.agreed:
        expected = f"{agreed['x'].width} columns x" if "x" in agreed else f"columns {', '.join(agreed) or 'none'}"
        fix = f"{treatment.where} has {expected}: save the object with those columns"
        raise FedGraphError(f"{where} has {x.size(1)} columns x, but {fix}")
    warn_unscaled(x, names, treatment.say)
    return made


def save_dataset(graph: Graph | HeteroGraph, name: str, overwrite: bool = False) -> Path:
    """Store a graph under the data root, for use as ``dataset=<name>``.

    Raises:
        FedGraphError: the name has a wrong form, belongs to a known dataset, or is taken.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise FedGraphError(f"--name must consist of lower-case letters, digits, - and _, got '{name}'")
    if name in group_names("dataset"):
        raise FedGraphError(f"--name '{name}' is a built-in dataset: choose another name")
    path = imported_path(name)
    if path.exists() and not overwrite:
        raise FedGraphError(f"--name '{name}' is taken ({path}): choose another name, or pass --overwrite")
    named = copy.copy(graph)  # keeps compressed edges
    named.name = name
    named.save(path)
    return path
