"""Import of a user's heterogeneous graph: one table per node type and per edge type, or a saved PyG ``HeteroData``.

Types are in alphabetical order, so clients with the same types number them equally. A type without a table is empty. This
lets a federation share its schema although a client has no data of some type.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.data.graph import pack_words
from fedgraph_flwr.data.hetero import EdgeType, HeteroGraph, check
from fedgraph_flwr.data.pyg import from_hetero_data, with_schema
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.party.tables.columns import AS_FOUND, Features, Treatment, feature_names, features
from fedgraph_flwr.party.tables.importing import (
    Columns,
    Ids,
    agreed_classes,
    arranged,
    check_roles,
    edge_ends,
    edge_feature_columns,
    feature_columns,
    label_codes,
    read_saved,
    saved_features,
    split_masks,
)
from fedgraph_flwr.party.tables.reading import read_table


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
    return check(
        with_schema(
            graph,
            names,
            made,
            treatment.settled_scaling(),
            treatment.schema.tables if treatment.schema else layout,
            layout,
        ),
        where,
        labelled,
    )


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


def from_saved_typed(
    path: Path | str, target: str, *, classes: Sequence[str] = (), treatment: Treatment = AS_FOUND
) -> HeteroGraph:
    """Build a heterogeneous graph from a saved PyG ``HeteroData`` with integer labels ``y`` on ``target``; keep its masks.

    Raises:
        FedGraphError: the file is invalid (`importing.read_saved`), the target type is unknown or unlabelled, or the graph
            is invalid.
    """
    return from_hetero_data(
        read_saved(path),
        str(path),
        target,
        classes=agreed_classes(classes, treatment),
        scaling=treatment.settled_scaling("none"),
        encode=partial(saved_features, treatment),
    )


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
