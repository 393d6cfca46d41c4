"""Graphs to be predicted: tables, files of ours, and PyG objects, with features made as those of training; labels may lack."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.cleaning import to_undirected
from fedgraph_flwr.data.columns import Treatment, as_words
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.hetero import HeteroGraph, load_graph
from fedgraph_flwr.data.importing import Columns, from_tables, read_saved, read_table, saved_features
from fedgraph_flwr.data.schema import NODE, Column, Schema
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


def tables(nodes: Path, edges: Path, columns: Columns, meaning: InputSpec) -> tuple[Graph, np.ndarray]:
    """The graph of a node table and an edge table, and the ids of its nodes [N]; the column of labels may lack.

    Raises:
        FedGraphError: as `from_tables`, or `InputSpec.treatment`.
    """
    treatment = meaning.treatment()
    table = read_table(nodes)
    labelled = columns.label in table.columns
    graph = from_tables(
        nodes,
        edges,
        columns if labelled else replace(columns, label=""),
        classes=meaning.classes,
        undirected=meaning.undirected,
        treatment=treatment,
    )
    return graph, as_words(table[columns.id])


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
