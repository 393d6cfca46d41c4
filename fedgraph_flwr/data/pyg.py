"""PyG objects in memory or in a saved file as graphs: one per client, or one for all.

from_data(data)             PyG's Data        → Graph       → client_graph
from_hetero_data(data)      PyG's HeteroData  → HeteroGraph → client_graph
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import SplitConfig
from fedgraph_flwr.data.checks import check_graph
from fedgraph_flwr.data.cleaning import both_directions
from fedgraph_flwr.data.graph import ClientGraph, Graph, check_dtypes, form_of, marks
from fedgraph_flwr.data.hetero import EdgeType, HeteroClientGraph, HeteroGraph, check_types
from fedgraph_flwr.data.many_graphs import MASKS, side_by_side
from fedgraph_flwr.data.own_columns import with_node_columns
from fedgraph_flwr.data.schema import AS_DETECTED, NODE, Column, Schema, TableLayout, stored
from fedgraph_flwr.data.split import APART, AnyTyped, half_given, split_graph, split_targets
from fedgraph_flwr.errors import FedGraphError, check_names

EDGE_TYPE: EdgeType = ("node", "edge", "node")
"""`EDGE` in parts: the edge type of a graph with one."""


@dataclass(frozen=True)
class Features:
    """The features of one node type or edge type.

    Attributes:
        agreed: columns with the statistics that all parties share.
        fitted: the same columns, completed with this party's statistics.
        x: float32 [N, F].
    """

    agreed: Mapping[str, Column]
    fitted: Mapping[str, Column]
    x: Tensor


Encode = Callable[[str, Tensor, str], Features]
"""Return the features of ``x`` [N, F] or [N] of a node type; the last argument names the graph in errors."""


def matrix(x: Tensor) -> Tensor:
    """Return ``x`` [N, F], [N] or sparse as dense float32 [N, F]."""
    x = x if x.layout == torch.strided else x.to_dense()
    return (x.view(-1, 1) if x.dim() == 1 else x).to(torch.float32)


def unchanged(kind: str, x: Tensor, where: str) -> Features:
    """Return ``x`` as the features, one column of F values without names."""
    x = matrix(x)
    columns = {"x": Column(width=x.size(1))}
    return Features(columns, columns, x)


def read_saved(path: Path | str) -> Any:
    """Read a PyG ``Data`` or ``HeteroData`` from a ``torch.save`` file; only PyG containers and tensors are unpickled.

    Raises:
        FedGraphError: the file is missing or damaged, or holds another object.
    """
    import torch_geometric.data.data as containers
    from torch.serialization import safe_globals
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    if not Path(path).is_file():
        raise FedGraphError(f"no such file: {path}; expected a file written by torch.save(data, ...)")
    allowed = [Data, HeteroData, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    allowed += [containers.DataEdgeAttr, containers.DataTensorAttr]
    try:
        with safe_globals(allowed):
            saved = torch.load(path, weights_only=True, map_location="cpu")
        if isinstance(saved, Data | HeteroData):
            saved.to_dict()  # a damaged object fails here
    except Exception as error:  # a damaged pickle can fail in any way
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it names {named.group(1)}" if named else type(error).__name__
        raise FedGraphError(
            f"{path} does not hold a plain PyG Data or HeteroData ({reason}): save the object with torch.save(data, path)"
        ) from error
    if not isinstance(saved, Data | HeteroData):
        raise FedGraphError(f"{path} holds a {type(saved).__name__}, expected a PyG Data or HeteroData")
    return saved


_READ = {"x", "edge_index", "y", *MASKS, "num_nodes", "edge_attr", "edge_time", "edge_y", "num_edge_classes", "targets"}
"""Tensors of a ``Data`` that become part of a graph."""


def from_data(
    data: Any,
    where: str,
    *,
    classes: Sequence[str] = (),
    undirected: bool = False,
    scaling: str = "none",
    encode: Encode = unchanged,
    say: Callable[[str], None] = lambda text: None,
    client: str = "",
) -> Graph:
    """Build a graph from a ``Data`` in memory, which is not modified; ``where`` names it in errors.

    Args:
        data: with ``x``, ``edge_index`` and integer labels ``y`` (-1: unknown) or ``targets``; its masks are kept.
        where: its name in errors.
        classes: names of the labels 0..C-1; empty: the numbers.
        undirected: whether each edge represents both directions.
        scaling: name of the scaling that ``encode`` applies, for the graph's schema.
        encode: how ``x`` becomes features.
        say: receives one line about tensors that are not used.
        client: name of the attribute with each node's client, integers or texts [N]; empty: clients are not given.

    Raises:
        FedGraphError: a tensor is missing, or the graph is invalid.
    """
    if hasattr(data, "node_types"):
        raise FedGraphError(f"{where} holds a heterogeneous graph ({', '.join(data.node_types)}): pass --target TYPE")
    data = copy.copy(data)
    if getattr(data, "y", None) is None and isinstance(getattr(data, "targets", None), Tensor):
        data.y = torch.full((data.num_nodes,), -1)
    check_data(data, where)
    group, clients = _clients(data, client, where)
    if dropped := sorted({*data.keys()} - _READ - {client}):
        say(f"{where}: ignored: {', '.join(dropped)}")
    made = encode(NODE, data.x, where)
    names = classes or numbered_classes(data.y, where)
    data.x = made.x
    graph = Graph.from_pyg(data, num_classes=max(len(names), 1))
    graph.group = group
    graph.schema = schema_of({NODE: made}, names, scaling, undirected=undirected) | (
        {"clients": clients} if clients else {}
    )
    for key in MASKS:
        setattr(graph, key, getattr(graph, key) & graph.labelled)
    check_graph(graph, where)
    return both_directions(graph) if undirected else graph


def _clients(data: Any, name: str, where: str) -> tuple[Tensor, list[str]]:
    """Return each node's client, int64 [N], and the M values of the attribute in ascending order; both are empty without a name.

    Raises:
        FedGraphError: the attribute is missing, or is not one integer or text per node.
    """
    if not name:
        return torch.zeros(0, dtype=torch.int64), []
    held = data.to_dict().get(name)
    if held is None or name in _READ:
        others = ", ".join(sorted({*data.keys()} - _READ)) or "none"
        raise FedGraphError(
            f"{where} has no attribute '{name}' with each node's client; its other attributes: {others}"
        )
    values = np.asarray(held.cpu() if isinstance(held, Tensor) else held)
    if values.shape != (data.num_nodes,) or values.dtype.kind not in "iuU":
        form = f"{values.dtype} of shape {values.shape}"
        raise FedGraphError(f"{where}: '{name}' must be one integer or text per node [{data.num_nodes}], got {form}")
    if values.dtype.kind == "U" and (nameless := np.flatnonzero(np.char.strip(values) == "")).size:
        raise FedGraphError(f"{where}: '{name}' names no client of node {nameless[0]}")
    distinct, inverse = np.unique(values, return_inverse=True)
    return torch.from_numpy(inverse.astype(np.int64)), [str(value) for value in distinct]


def from_list(graphs: Sequence[Any], where: str) -> Graph:
    """Return one or more ``Data`` side by side, each with an integer class ``y``, or numbers, unknown where not ``y_mask``.

    Raises:
        FedGraphError: a graph lacks a tensor, or differs from the first in its columns or targets.
    """
    masks = _masks_of_graphs(graphs, where)
    forms = [_form(data, f"{where}[{place}]") for place, data in enumerate(graphs)]
    for place, form in enumerate(forms):
        for key, value in form.items():
            if value != forms[0][key]:
                two = f"{where}[{place}] has {key} {value}, and {where}[0] {forms[0][key]}"
                raise FedGraphError(f"{two}: expected the same in all graphs")
    width = forms[0]["columns of edge_attr"]
    attr = None if width is None else torch.cat([data.edge_attr.view(len(data.edge_attr), width) for data in graphs])
    y = torch.stack([data.y.view(-1) for data in graphs])
    if not y.is_floating_point():
        answers: dict[str, Any] = {"y": y.view(-1), "num_classes": max(int(y.max()) + 1, 1)}
    else:
        known = [getattr(data, "y_mask", torch.ones_like(data.y, dtype=torch.bool)).view(-1) for data in graphs]
        answers = {"targets": y.to(torch.float32).masked_fill(~torch.stack(known), torch.nan)}
    size = torch.tensor([len(data.x) for data in graphs])
    starts = (size.cumsum(0) - size).tolist()
    edges = torch.cat([data.edge_index.long() + start for data, start in zip(graphs, starts, strict=True)], dim=1)
    x = torch.cat([data.x.to(torch.float32) for data in graphs])
    return side_by_side(x, edges, size, edge_attr=attr, name=where, masks=masks, **answers)


def _masks_of_graphs(graphs: Sequence[Any], where: str) -> list[Tensor]:
    """Return the masks of labelled graphs, bool [G] each: False for those without a mask.

    Raises:
        FedGraphError: a graph has a mask of its nodes.
    """
    masks = torch.zeros(len(MASKS), len(graphs), dtype=torch.bool)
    for place, data in enumerate(graphs):
        for row, key in enumerate(MASKS):
            mask = getattr(data, key, None)
            if mask is not None and not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.numel() == 1):
                raise FedGraphError(
                    f"{where}[{place}]: {key} must be one boolean, as its label is one of the whole graph, got {form_of(mask)}"
                )
            masks[row, place] = mask is not None and bool(mask)
    return list(masks)


def _form(data: Any, where: str) -> dict[str, Any]:
    """Return what graphs side by side must have alike: their columns, and the kind and number of their answers."""
    held: dict[str, Any] = {key: getattr(data, key, None) for key in ("x", "edge_index", "y", "edge_attr", "y_mask")}
    tensors = ["x", "edge_index", *(["edge_attr"] if held["edge_attr"] is not None else []), "y"]
    if hasattr(data, "node_types") or not all(isinstance(held[key], Tensor) for key in tensors):
        listed = ", ".join(tensors[:-1])
        raise FedGraphError(f"{where} must be a PyG Data with tensors {listed} and y, got {str(data)[:100]}")
    x, index, y, attr, mask = held.values()
    if y.is_floating_point():
        marks = mask is None or (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.numel() == y.numel())
        fits = marks and not index.is_floating_point() and index.dtype != torch.bool
    else:
        check_dtypes(data, where)
        fits = y.numel() == 1
    if x.dim() != 2 or not fits or (index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(x)):
        y = "as y one integer class, or numbers with a bool for each in y_mask"
        raise FedGraphError(f"{where} must have x [n, F], edges of its n nodes, and {y}, got {str(data)[:200]}")
    return {
        "columns of x": x.size(1),
        "columns of edge_attr": None if attr is None else attr.shape[1:].numel(),
        "y": f"{y.numel()} numbers" if y.is_floating_point() else "a class",
    }


def check_data(data: Any, where: str) -> None:
    """Check that a ``Data`` has nodes, edges, and features and a label for each node.

    Raises:
        FedGraphError: a tensor is missing or has the wrong type, or the graph has no nodes.
    """
    for key in ("x", "edge_index", "y"):
        if not isinstance(getattr(data, key, None), Tensor):
            raise FedGraphError(f"{where}: the Data has no tensor '{key}'; x, edge_index and y are required")
    check_labels(data, where)
    check_dtypes(data, where)


def check_labels(held: Any, where: str, of: str = "") -> None:
    """Check the labels and masks of a ``Data``, or of a node type, which ``of`` names in errors.

    Raises:
        FedGraphError: there are no nodes, not one integer ``y`` for each, or a mask lists nodes or has another length.
    """
    if not held.num_nodes:
        raise FedGraphError(f"{where} has no nodes{of}, expected at least 1")
    y = getattr(held, "y", None)
    if not isinstance(y, Tensor) or y.is_floating_point() or y.numel() != held.num_nodes:
        raise FedGraphError(f"{where}: y{of} must be one integer per node, got {form_of(y)}")
    for key in MASKS:
        mask = getattr(held, key, None)
        valid = (
            isinstance(mask, Tensor) and mask.shape[:1] == (held.num_nodes,) and bool(((mask == 0) | (mask == 1)).all())
        )
        if mask is not None and not valid:
            expected = f"one boolean for each of {held.num_nodes} nodes"
            raise FedGraphError(f"{where}: {key} must hold {expected}, got {form_of(mask)}")


def labelled_type(data: Any, where: str, key: str = "target", target: str = "") -> str:
    """Return the labelled node type of a ``HeteroData``: ``target`` if it is given, or the only one with ``y``.

    Raises:
        FedGraphError: it has no ``y``, or several types have one; the error names the ``key`` to set.
    """
    labelled = [kind for kind in data.node_types if "y" in data[kind]]
    node_type = target or (labelled[0] if len(labelled) == 1 else "")
    if node_type not in labelled:
        known, got = ", ".join(labelled) or "none", f", got '{target}'" if target else ""
        raise FedGraphError(f"{where}: pass {key}=TYPE, a node type with labels y, one of: {known}{got}")
    return str(node_type)


def numbered_classes(y: Tensor, where: str) -> list[str]:
    """Return the classes 0..C-1 of labels [N], where C - 1 is the largest label.

    Raises:
        FedGraphError: most classes would have no node, as if 255 or 9999 meant that a label is unknown.
    """
    largest, used = int(y.max()), int(y[y >= 0].unique().numel())
    if largest >= 2 * used + 10:
        what = f"y has the label {largest} at node {int(y.argmax())}, but only {used} different labels"
        fix = (
            "set y to -1 where it is unknown, renumber the labels, or name all classes (--classes, in Python classes=)"
        )
        raise FedGraphError(f"{where}: {what}: {fix}")
    return [str(label) for label in range(largest + 1)]


def client_graph(
    graph: Graph | HeteroGraph, client: int, num_clients: int, split: SplitConfig | None = None, seed: int = 0
) -> Any:
    """Return a graph as one client's private graph, without cut edges; a heterogeneous one with the reverse of every edge type.

    Args:
        graph: graph of N nodes.
        client: index of the client, 0..M-1.
        num_clients: M.
        split: how to split a graph without masks; of a graph that lacks some, its ``val``.
        seed: seed of the split.

    Raises:
        FedGraphError: the index is outside 0..M-1, or the client has no training nodes.
    """
    if not 0 <= client < num_clients:
        raise FedGraphError(f"--client must be in 0..{num_clients - 1} for --num-clients {num_clients}, got {client}")
    typed, split = isinstance(graph, HeteroGraph), split or SplitConfig()
    values: dict[str, Any] = {f.name: getattr(graph, f.name) for f in fields(graph)}
    values |= {"client": client, "num_clients": num_clients}
    if isinstance(graph, HeteroGraph):
        part: Any = HeteroClientGraph(**values, node_id={kind: torch.arange(n) for kind, n in graph.counts.items()})
    else:
        n = graph.num_nodes
        part = ClientGraph(**values | {"node_id": torch.arange(n), "num_global_nodes": n})
    divided: Any = split_targets if typed else split_graph
    if half_given(part):
        public = replace(split, kind="public")
        part = divided(part, public, seed)
    marked = bool(marks(part).any())
    if not marked or (split.kind == "temporal" and not typed):
        made = divided(part, split, seed)
        if (
            marked and not typed and bool((part.edge_y >= 0).any())
        ):  # nodes keep their split, and edges have one by time
            masks = {key: getattr(part, key) for key in MASKS}
            made = replace(made, **masks, schema={**part.schema, APART: True})
        part = made
    by_edges = not typed and (
        bool((torch.cat([part.edge_y, part.foreign_edge_y]) >= 0).any()) or part.schema.get("agreed", {}).get("roles")
    )
    if not bool(part.train_mask.any()) and not by_edges:
        of = f" of type '{part.target}'" if typed else ""
        fix = "label some, or mark some by its split column or mask"
        raise FedGraphError(f"client {client} has {len(part.y)} nodes{of}, none for training: {fix}")
    return part.both_ways() if typed else with_node_columns(part)


def from_hetero_data(
    data: Any,
    where: str,
    target: str,
    *,
    classes: Sequence[str] = (),
    scaling: str = "none",
    encode: Encode = unchanged,
) -> HeteroGraph:
    """Build a heterogeneous graph from a ``HeteroData`` in memory, which is not modified; ``where`` names it in errors.

    Edge types added by PyG's `ToUndirected` are dropped: a client's graph adds the same ones. Other arguments: as `from_data`.

    Raises:
        FedGraphError: the target type is unknown or unlabelled, or the graph is invalid.
    """
    if not hasattr(data, "node_types"):
        raise FedGraphError(f"{where} holds a PyG Data with a single node type: leave out --target")
    check_names([target], data.node_types, "target node type", where)
    check_types(data, where)
    check_labels(data[target], where, f" of type '{target}'")
    made = {
        kind: encode(kind, data[kind].x, where)
        for kind in data.node_types
        if getattr(data[kind], "x", None) is not None
    }
    data = copy.copy(data)
    for kind, made_features in made.items():
        data[kind].x = made_features.x
    names = classes or numbered_classes(data[target].y, where)
    graph = check_graph(HeteroGraph.from_pyg(data, target, num_classes=len(names)), where)
    graph = in_order(graph.without_reverse())
    for key in MASKS:
        setattr(graph, key, getattr(graph, key) & (graph.y >= 0))
    return replace(graph, schema=schema_of(made, names, scaling, graph.counts, graph.edges))


def schema_of(
    made: Mapping[str, Features],
    classes: Sequence[str],
    scaling: str,
    nodes: Iterable[str] = (NODE,),
    edges: Iterable[EdgeType] = (EDGE_TYPE,),
    *,
    layouts: tuple[TableLayout, TableLayout] = (AS_DETECTED, AS_DETECTED),
    **more: Any,
) -> dict[str, Any]:
    """Return the ``schema`` field of a graph.

    Args:
        made: features by node type and edge type (``SOURCE:RELATION:TARGET``); types without features are missing.
        classes: C names, in label order.
        scaling: as in `Schema`.
        nodes: node types of the graph.
        edges: its edge types, in one direction.
        layouts: layout of the tables in the schema that parties share, and this party's own.
        more: other fields of the `Schema`.
    """
    named = [":".join(edge) for edge in edges]
    kinds = [*nodes, *(edge for edge in named if edge in made)]
    agreed = {kind: made[kind].agreed if kind in made else {} for kind in kinds}
    fitted = {kind: made[kind].fitted if kind in made else {} for kind in kinds}
    schema = Schema(tuple(classes), agreed, edges=tuple(named), scaling=scaling, tables=layouts[0], **more)
    return stored(schema, fitted, schema.undirected, layouts[1])


def in_order(graph: AnyTyped) -> AnyTyped:
    """Return the graph with its types in alphabetical order."""
    return graph.on_schema(sorted(graph.counts), sorted(graph.edges))
