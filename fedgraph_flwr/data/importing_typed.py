"""Import of a user's heterogeneous graph: one table per node type and per edge type, or a saved PyG ``HeteroData``.

Types are in alphabetical order, so clients with the same types number them equally. A type without a table is empty. This
lets a federation share its schema although a client has no data of some type.
"""

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.config import SplitConfig
from fedgraph_flwr.data.columns import AS_FOUND, Features, Treatment, feature_names, features
from fedgraph_flwr.data.graph import check_dtypes, pack_words
from fedgraph_flwr.data.hetero import EdgeType, HeteroClientGraph, HeteroGraph, check
from fedgraph_flwr.data.importing import (
    Columns,
    Ids,
    agreed_classes,
    arranged,
    check_masks,
    check_roles,
    edge_ends,
    edge_feature_columns,
    feature_columns,
    label_codes,
    numbered_classes,
    read_saved,
    saved_features,
    split_masks,
)
from fedgraph_flwr.data.schema import Schema, stored
from fedgraph_flwr.data.split import split_targets
from fedgraph_flwr.data.tables import TableLayout, read_table
from fedgraph_flwr.data.typed import without_reverse
from fedgraph_flwr.errors import FedGraphError, unknown


def from_typed_tables(
    nodes: Mapping[str, Path | None],
    edges: Mapping[EdgeType, Path | None],
    target: str,
    columns: Columns,
    *,
    classes: Sequence[str] = (),
    treatment: Treatment = AS_FOUND,
    labelled: bool = True,
) -> HeteroGraph:
    """Build a heterogeneous graph from one table per node type and edge type; None for an empty type.

    Args:
        nodes: by node type, CSV or Parquet with one row per node. Columns other than id, label, split and client are
            features. A type without other columns has no features.
        edges: by (source type, relation, target type), CSV or Parquet with one row per edge. Each may have other columns. An
            edge type without features that is the exact reverse of another is dropped: the partition and `typed_client` add
            reverse types, which carry the same features.
        target: labelled node type; its table has the label column, and the split column if there is one.
        columns: roles of the columns.
        classes: class names in label order; empty for the schema's, else the sorted values that occur.
        treatment: column options (`columns`) and the schema to follow.
        labelled: whether the table of the target type must have labels.

    Raises:
        FedGraphError: a table is invalid, as for `importing.from_tables`, or a type of an edge has no node table.
    """
    if nodes.get(target) is None:
        raise unknown("target node type", target, [kind for kind, path in nodes.items() if path], "--target")
    layout = columns.layout
    tables = {kind: read_table(path, layout, treatment.say) for kind, path in nodes.items() if path is not None}
    for kind in tables:
        check_roles(columns, kind, treatment)
    ids = {kind: Ids(table, columns.id, str(nodes[kind])) for kind, table in tables.items()}
    files = {kind: str(path) for kind, path in nodes.items()} | {":".join(r): str(path) for r, path in edges.items()}
    usable = {kind: feature_columns(t, (), columns.others, files[kind]) for kind, t in tables.items()}
    links = {r: read_table(path, layout, treatment.say) for r, path in _with_ends(nodes, edges).items()}
    tables |= {":".join(r): table for r, table in links.items()}
    usable |= _edge_columns({kind: t for kind, t in tables.items() if kind not in ids}, columns, files, treatment)
    treatment.check_names(usable)
    made = {
        kind: features(kind, tables[kind], names, files[kind], treatment)
        for kind, names in usable.items()
        if names or (treatment.schema and treatment.schema.nodes.get(kind))
    }
    for kind, agreed in (treatment.schema.nodes if treatment.schema else {}).items():
        if (
            kind in files and kind not in tables and agreed
        ):  # nothing of it here, but the others' features have this width
            made[kind] = Features(agreed, agreed, torch.zeros(0, len(feature_names(agreed))))
    found: dict[EdgeType, Tensor] = {r: torch.zeros(2, 0, dtype=torch.int64) for r in edges}
    attr = {r: made[":".join(r)].x for r in edges if ":".join(r) in made and made[":".join(r)].x.size(1)}
    for r, table in links.items():
        ends = edge_ends(table, columns, str(edges[r]), ids[r[0]], ids[r[2]])
        found[r], rows = arranged(ends, len(ids[r[2]].index), False, str(edges[r]), treatment, r in attr)
        if r in attr:
            attr[r] = attr[r][rows]
    where = str(nodes[target])
    y, names = torch.full((len(tables[target]),), -1), list(agreed_classes(classes, treatment))
    if labelled or columns.label in tables[target].columns:
        y, names = label_codes(tables[target], columns.label, where, names)
    train, val, test = (mask & (y >= 0) for mask in split_masks(tables[target], columns.split, where))
    graph = HeteroGraph(
        counts={kind: len(tables[kind]) if kind in tables else 0 for kind in nodes},
        edges=found,
        target=target,
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=len(names),
        x={kind: made[kind].x for kind in nodes if kind in made and made[kind].x.size(1)},
        ids=pack_words(ids[target].index.to_numpy()),
        edge_attr=attr,
    )
    return check(_with_schema(graph, names, made, treatment, treatment.settled_scaling(), layout), where, labelled)


def _with_ends(nodes: Mapping[str, Path | None], edges: Mapping[EdgeType, Path | None]) -> dict[EdgeType, Path]:
    """Return the tables of edges.

    Raises:
        FedGraphError: a node type of an edge type is unknown, or has no table although there are edges.
    """
    found = {}
    for (a, relation, b), path in edges.items():
        for end in (a, b):
            if end not in nodes:
                raise unknown(f"node type of the edges '{relation}'", end, nodes, "--edge-table")
        if path is None:
            continue
        if missing := [end for end in (a, b) if nodes[end] is None]:
            raise FedGraphError(
                f"{path} has edges of '{relation}', but node type '{missing[0]}' has no table: pass --node-table"
            )
        found[a, relation, b] = path
    return found


def _edge_columns(
    tables: Mapping[str, Any], columns: Columns, files: Mapping[str, str], treatment: Treatment
) -> dict[str, list[str]]:
    """Return the columns of each edge type that may become features; a name or pattern applies to every table that has it.

    Raises:
        FedGraphError: no table has a column of that name.
    """
    free = {kind: feature_columns(table, (), columns.edge_others, files[kind]) for kind, table in tables.items()}
    wanted: dict[str, list[str]] = {kind: [] for kind in tables}
    for pattern in columns.edge_features:
        if not (having := [kind for kind in free if pattern in free[kind] or fnmatch.filter(free[kind], pattern)]):
            raise unknown("edge column", pattern, {name for names in free.values() for name in names}, "--edge-columns")
        for kind in having:
            wanted[kind].append(pattern)
    return {
        kind: edge_feature_columns(table, replace(columns, edge_features=wanted[kind]), files[kind], treatment, kind)
        for kind, table in tables.items()
    }


def _with_schema(
    graph: HeteroGraph,
    classes: Sequence[str],
    made: Mapping[str, Features],
    treatment: Treatment,
    scaling: str,
    layout: TableLayout,
) -> HeteroGraph:
    """Return the graph with ordered types, without reverse edge types, and with the schema of its features."""
    graph = in_order(without_reverse(graph))
    edges = {kind: made[kind] for edge in graph.edges if edge in graph.edge_attr and (kind := ":".join(edge)) in made}
    agreed = Schema(
        classes=tuple(classes),
        nodes={kind: made[kind].agreed if kind in made else {} for kind in graph.counts}
        | {kind: columns.agreed for kind, columns in edges.items()},
        edges=tuple(":".join(edge) for edge in graph.edges),
        scaling=scaling,
        tables=treatment.schema.tables if treatment.schema else layout,
    )
    fitted = {kind: made[kind].fitted if kind in made else {} for kind in graph.counts}
    fitted |= {kind: columns.fitted for kind, columns in edges.items()}
    return replace(graph, schema=stored(agreed, fitted, tables=layout))


def from_saved_typed(
    path: Path | str, target: str, *, classes: Sequence[str] = (), treatment: Treatment = AS_FOUND
) -> HeteroGraph:
    """Build a heterogeneous graph from a saved PyG ``HeteroData`` with integer labels ``y`` on ``target``; keep its masks.

    Raises:
        FedGraphError: the file is invalid (`importing.read_saved`), the target type is unknown or unlabelled, or the graph
            is invalid.
    """
    return from_hetero_data(read_saved(path), str(path), target, classes=classes, treatment=treatment)


def from_hetero_data(
    data: Any, where: str, target: str, *, classes: Sequence[str] = (), treatment: Treatment = AS_FOUND
) -> HeteroGraph:
    """Build a heterogeneous graph from a ``HeteroData`` in memory, which is not modified; ``where`` names it in errors.

    Edge types added by PyG's `ToUndirected` are dropped: a client's graph adds the same ones.

    Raises:
        FedGraphError: the target type is unknown or unlabelled, or the graph is invalid.
    """
    if not hasattr(data, "node_types"):
        raise FedGraphError(f"{where} holds a PyG Data with a single node type: leave out --target")
    if target not in data.node_types:
        raise unknown("target node type", target, data.node_types, where)
    y = getattr(data[target], "y", None)
    if not isinstance(y, Tensor) or y.is_floating_point() or y.numel() != data[target].num_nodes:
        got = f"{y.dtype} {list(y.shape)}" if isinstance(y, Tensor) else "none"
        raise FedGraphError(f"{where}: '{target}' must have one integer label y per node, got {got}")
    if not data[target].num_nodes:
        raise FedGraphError(f"{where} has no nodes of type '{target}', expected at least 1")
    for kind in (*data.node_types, *data.edge_types):
        name = ":".join(kind) if isinstance(kind, tuple) else kind
        check_dtypes(data[kind], f"{where}, '{name}'")
    check_masks(data[target], data[target].num_nodes, where)
    made = {
        kind: saved_features(kind, data[kind].x, where, treatment)
        for kind in data.node_types
        if getattr(data[kind], "x", None) is not None
    }
    data = copy.copy(data)
    for kind, made_features in made.items():
        data[kind].x = made_features.x
    names = agreed_classes(classes, treatment) or numbered_classes(y, where)
    graph = check(HeteroGraph.from_pyg(data, target, num_classes=len(names)), where)
    graph = graph.without_reverse()
    for key in ("train_mask", "val_mask", "test_mask"):
        setattr(graph, key, getattr(graph, key) & (graph.y >= 0))
    return _with_schema(graph, names, made, treatment, treatment.settled_scaling("none"), TableLayout())


def in_order(graph: HeteroGraph) -> HeteroGraph:
    """Return the graph with its types in alphabetical order."""
    return graph.on_schema(sorted(graph.counts), sorted(graph.edges))


def typed_client(
    graph: HeteroGraph, client: int, num_clients: int, split: SplitConfig | None = None, seed: int = 0
) -> HeteroClientGraph:
    """Return a heterogeneous graph as one client's private graph, with the reverse of every edge type.

    Args:
        graph: the client's nodes and edges.
        client: index of the client, 0..M-1.
        num_clients: M.
        split: how to split a graph without masks.
        seed: seed of the split.

    Raises:
        FedGraphError: the index is outside 0..M-1, or the client has no training nodes.
    """
    if not 0 <= client < num_clients:
        raise FedGraphError(f"--client must be in 0..{num_clients - 1} for --num-clients {num_clients}, got {client}")
    own = HeteroClientGraph(
        **{f.name: getattr(graph, f.name) for f in fields(HeteroGraph)},
        node_id={kind: torch.arange(count) for kind, count in graph.counts.items()},
        client=client,
        num_clients=num_clients,
    )
    if not bool((own.train_mask | own.val_mask | own.test_mask).any()):
        own = split_targets(own, split or SplitConfig(), seed)
    if not bool(own.train_mask.any()):
        raise FedGraphError(
            f"client {client} has no '{own.target}' node for training: mark some in its split column or train_mask"
        )
    return own.both_ways()


def named_files(args: Sequence[str], option: str) -> dict[str, Path | None]:
    """Parse ``NAME=FILE`` arguments to paths by name; ``NAME=`` gives None.

    Raises:
        FedGraphError: an argument has no ``=``, or a name is repeated.
    """
    found: dict[str, Path | None] = {}
    for arg in args:
        name, sign, path = arg.rpartition("=")
        if not sign or not name:
            raise FedGraphError(f"{option} {arg}: expected NAME=FILE, or NAME= for a type without a table")
        if name in found:
            raise FedGraphError(f"{option} names '{name}' twice: leave one out")
        found[name] = Path(path) if path else None
    return found


def edge_types(named: Mapping[str, Path | None]) -> dict[EdgeType, Path | None]:
    """Parse ``SOURCE:RELATION:TARGET`` names to edge types.

    Raises:
        FedGraphError: a name has another form.
    """
    found: dict[EdgeType, Path | None] = {}
    for name, path in named.items():
        parts = name.split(":")
        if len(parts) != 3 or not all(parts):
            raise FedGraphError(
                f"--edge-table {name}: expected SOURCE:RELATION:TARGET=FILE, such as author:writes:paper=w.csv"
            )
        found[parts[0], parts[1], parts[2]] = path
    return found
