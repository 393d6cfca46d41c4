"""Graphs to be predicted: tables, files of ours, and PyG objects, with features made as those of training; labels may lack."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.cleaning import to_undirected
from fedgraph_flwr.data.columns import Treatment, as_words, features
from fedgraph_flwr.data.graph import Graph, check_dtypes, pack_words, read_header, unpack_words
from fedgraph_flwr.data.hetero import HeteroGraph, load_graph
from fedgraph_flwr.data.importing import (
    Columns,
    Ids,
    edge_ends,
    feature_columns,
    from_tables,
    once,
    read_saved,
    saved_features,
)
from fedgraph_flwr.data.schema import NODE, Column, Schema, fitted_schema
from fedgraph_flwr.data.tables import read_table
from fedgraph_flwr.errors import FedGraphError

SAVED = (".pt", ".pth")
"""Endings of files that torch.save wrote."""


@dataclass(frozen=True)
class InputSpec:
    """What a trained network's features and classes mean.

    Attributes:
        classes: names, in the order of the logits.
        num_features: F, a list for typed graphs; None where nobody told.
        schema: with the statistics by which columns become features; None: features are taken as they are.
        undirected: whether each row of an edge table stands for both directions.
        where: whence it is known, for errors.
    """

    classes: tuple[str, ...]
    num_features: Any = None
    schema: Schema | None = None
    undirected: bool = False
    where: str = "the run"

    def as_imported(self, path: Path) -> "InputSpec":
        """With the classes and the schema of an imported graph's file, where it has as many classes."""
        if path.suffix in SAVED:
            return self
        schema = fitted_schema(read_header(path)[1].get("schema", {}), str(path))
        if schema is None or len(schema.classes) != len(self.classes):
            return self
        return replace(self, schema=schema, classes=schema.classes, where=str(path))

    def columns(self, kind: str) -> dict[str, Column]:
        """The columns of a node type that become features; empty where the features have no names."""
        columns = dict(self.schema.nodes.get(kind, {})) if self.schema else {}
        return {name: c for name, c in columns.items() if c.kind != "ignored" and c.width == 1}

    def treatment(self, kind: str = NODE) -> Treatment:
        """How the columns of a node type become features.

        Raises:
            FedGraphError: they have no names, or their statistics are each party's own.
        """
        columns = self.columns(kind)
        if self.schema is None or not columns:
            raise FedGraphError(
                f"{self.where} knows no columns of tables: give --graph FILE with features as in training"
            )
        if lacking := [name for name, column in columns.items() if "fill" not in column.statistics]:
            raise FedGraphError(
                f"{self.where} has no statistics of column '{lacking[0]}', since each party scaled by its own (scaling"
                f" {self.schema.scaling}): say whose by --client"
            )
        return Treatment(schema=self.schema, where=self.where)


@dataclass(frozen=True)
class NewNodes:
    """The nodes of a table in the graph that they are predicted in.

    Attributes:
        graph: of the table alone, or of the stored graph and the table.
        ids: of the graph's nodes [N].
        rows: the places of the table's rows in the graph [K].
        note: how they were joined to the stored graph; "" where they were not.
    """

    graph: Graph
    ids: np.ndarray
    rows: np.ndarray
    note: str = ""


def tables(
    nodes: Path, edges: Path, columns: Columns, meaning: InputSpec, treatment: Treatment | None = None
) -> tuple[Graph, np.ndarray]:
    """The graph of a node table and an edge table, and the ids of its nodes [N]; the column of labels may be missing.

    Args:
        nodes: one row a node.
        edges: one row an edge.
        columns: which columns mean what.
        meaning: of the features.
        treatment: default: the meaning's.

    Raises:
        FedGraphError: as `from_tables`, or `InputSpec.treatment`.
    """
    table = read_table(nodes, columns.layout)
    graph = from_tables(
        nodes,
        edges,
        _present(columns, table),
        classes=meaning.classes,
        undirected=meaning.undirected,
        treatment=treatment or meaning.treatment(),
    )
    return graph, as_words(table[columns.id])


def _present(columns: Columns, table: Any) -> Columns:
    """The columns without those of labels, split and client that a table does not have: nothing is predicted by them."""
    return replace(
        columns, **{role: "" for role in ("label", "split", "client") if getattr(columns, role) not in table.columns}
    )


def new_nodes(
    nodes: Path,
    edges: Path,
    columns: Columns,
    meaning: InputSpec,
    stored: Any = None,
    where: str = "",
    treatment: Treatment | None = None,
) -> NewNodes:
    """The nodes of a table, in the stored graph where edges name nodes of it.

    The stored nodes keep their features, labels and edges; a row with the id of a stored node replaces its features.

    Args:
        nodes: one row a node.
        edges: one row an edge, between nodes of the table and of the stored graph.
        columns: which columns mean what.
        meaning: of the features.
        stored: the party's graph, with the ids that it was imported with; None: there is none.
        where: names the stored graph in errors.
        treatment: default: the meaning's.

    Raises:
        FedGraphError: an edge names a node of neither, or as `tables`.
    """
    table, links = read_table(nodes, columns.layout), read_table(edges, columns.layout)
    own = Ids(table, columns.id, str(nodes))
    named = [np.unique(as_words(links[end])) for end in (columns.source, columns.target) if end in links.columns]
    outside = [word for words in named for word in words[own.index.get_indexer(words) < 0]]
    if not outside:
        graph, ids = tables(nodes, edges, columns, meaning, treatment)
        return NewNodes(graph, ids, np.arange(len(ids)))
    if not isinstance(stored, Graph) or not len(stored.ids):
        missing = (
            "pass --client I or --graph FILE for the graph that it belongs to"
            if stored is None
            else f"{where} does not hold its nodes' ids: import it again"
        )
        raise FedGraphError(f"{edges} names '{outside[0]}', no id of {nodes}: {missing}")
    return _joined(table, links, own, columns, meaning, stored, (str(nodes), str(edges), where), treatment)


def _joined(
    table: Any,
    links: Any,
    own: Ids,
    columns: Columns,
    meaning: InputSpec,
    stored: Graph,
    where: tuple[str, str, str],
    treatment: Treatment | None,
) -> NewNodes:
    treatment = treatment or meaning.treatment()
    names = feature_columns(table, (), _present(columns, table).others, where[0])
    treatment.check_names({NODE: names})
    x = features(NODE, table, names, where[0], treatment).x
    if x.size(1) != stored.num_features:
        raise FedGraphError(f"{where[0]} has {x.size(1)} features, {where[2]} has {stored.num_features}")
    old = Ids.of(unpack_words(stored.ids), where[2])
    rows = old.index.get_indexer(own.index)
    fresh = rows < 0
    n, k = stored.num_nodes, int(fresh.sum())
    rows[fresh] = n + np.arange(k)
    union = Ids.of(np.concatenate([old.index, own.index[fresh]]), f"{where[0]} or {where[2]}")
    ends = once(edge_ends(links, columns, where[1], union, union), n + k, meaning.undirected, where[1], treatment)
    longer = torch.cat([stored.x, torch.zeros(k, x.size(1))])
    longer[torch.from_numpy(rows)] = x
    none = torch.zeros(k, dtype=torch.bool)
    graph = Graph(
        x=longer,
        edge_index=torch.cat([stored.edge_index, ends], dim=1).unique(dim=1),
        y=torch.cat([stored.y, torch.full((k,), -1)]),
        train_mask=torch.cat([stored.train_mask, none]),
        val_mask=torch.cat([stored.val_mask, none]),
        test_mask=torch.cat([stored.test_mask, none]),
        num_classes=stored.num_classes,
        name=stored.name,
        schema=stored.schema,
        ids=pack_words(union.index.to_numpy()),
    )
    known = f", {len(rows) - k} of which replace stored ones," if k < len(rows) else ""
    note = f"{len(rows)} nodes{known} joined to the {n} nodes of {where[2]}, which edges name"
    return NewNodes(graph, union.index.to_numpy(), rows, note)


def graph_file(path: Path, meaning: InputSpec) -> Graph | HeteroGraph:
    """A graph file of ours, or what ``torch.save`` wrote of a PyG object.

    Raises:
        FedGraphError: it cannot be read, or its features or classes are others.
    """
    if path.suffix in SAVED:
        return from_pyg(read_saved(path), meaning, str(path))
    return check_file(load_graph(path), str(path))


def from_pyg(data: Any, meaning: InputSpec, where: str = "the graph") -> Graph | HeteroGraph:
    """A PyG ``Data`` or ``HeteroData``; without ``y``, its labels are unknown.

    Columns ``x`` that training scaled are scaled likewise.

    Raises:
        FedGraphError: something else, or a tensor that lacks.
    """
    if hasattr(data, "node_types"):
        return _typed(data, meaning, where)
    for key in ("x", "edge_index"):
        if not isinstance(getattr(data, key, None), Tensor):
            raise FedGraphError(
                f"{where} has no tensor '{key}': expected a PyG Data with x and edge_index, or a graph of ours"
            )
    check_dtypes(data, where)
    data = data.clone()
    if not isinstance(getattr(data, "y", None), Tensor):
        data.y = torch.full((data.num_nodes,), -1)
    data.x = _features(data.x, NODE, meaning, where)
    graph = Graph.from_pyg(data, num_classes=len(meaning.classes))
    if meaning.undirected:
        graph = replace(graph, edge_index=to_undirected(graph.edge_index, graph.num_nodes))
    return check_file(_known_labels(graph), where)


def _typed(data: Any, meaning: InputSpec, where: str) -> HeteroGraph:
    from fedgraph_flwr.data.importing_typed import in_order

    labelled = [kind for kind in data.node_types if isinstance(getattr(data[kind], "y", None), Tensor)]
    if len(labelled) != 1:
        raise FedGraphError(
            f"{where}: one node type must have y, which says whose classes are meant (-1 where unknown), got"
            f" {', '.join(labelled) or 'none'}"
        )
    data = data.clone()
    for kind in data.node_types:
        if isinstance(getattr(data[kind], "x", None), Tensor):
            data[kind].x = _features(data[kind].x, kind, meaning, where)
    graph = in_order(HeteroGraph.from_pyg(data, labelled[0], num_classes=len(meaning.classes)).without_reverse())
    both = _known_labels(graph).with_reverse()
    return check_file(both.on_schema(list(both.counts), sorted(both.edges)), where)


def _known_labels(graph: Any) -> Any:
    """The graph without masks of nodes whose label is unknown."""
    masks = {key: getattr(graph, key) & (graph.y >= 0) for key in ("train_mask", "val_mask", "test_mask")}
    return replace(graph, **masks)


def _features(x: Tensor, kind: str, meaning: InputSpec, where: str) -> Tensor:
    """Features of a PyG object: scaled where training scaled columns of such an object, else as they are."""
    columns = meaning.columns(kind)
    if not columns or any(name != f"x_{i}" for i, name in enumerate(columns)):
        return (x.to_dense() if x.is_sparse else x).to(torch.float32)
    return saved_features(kind, x, where, meaning.treatment(kind)).x
