"""Checks of a graph read from a file: the type and shape of every tensor, the range of every number.

The checks are vectorised: they make a few passes over the tensors and never loop over nodes or edges.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedgraph_flwr.data.features import Recipe
from fedgraph_flwr.data.graph import MASKS, ClientGraph, FieldRows, Graph, check_disjoint, form_of, rows_by_field
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.many_graphs import check_many
from fedgraph_flwr.errors import FedGraphError

AnyGraph = TypeVar("AnyGraph", bound=Graph | HeteroGraph)


def check_file(graph: Any, where: str, finite: bool = True) -> Any:
    """Return the graph unchanged if its parts fit together.

    Args:
        graph: any kind of graph.
        where: its file, for errors.
        finite: whether to read all features; False for a mapped file whose content was checked before (`mapped.is_trusted`).

    Raises:
        FedGraphError: a tensor or number has the wrong type, shape or range. Masks overlap or mark unlabelled nodes, an edge
            names a missing node, or a feature is not finite.
    """
    with _naming(where):
        _check_parts(graph, finite)
        _check_masks(graph)
    return graph


def check_graph(graph: AnyGraph, where: str, labelled: bool = True) -> AnyGraph:
    """Return a graph from outside unchanged if its parts fit together, and it has nodes, features and, if ``labelled``, a label.

    Raises:
        FedGraphError: as of `check_file`, but for masks, which a split may replace.
    """
    with _naming(where):
        _check_parts(graph, finite=True)
        for key in MASKS:
            _tensor(getattr(graph, key), key, torch.bool, (len(graph.y),))
        if not graph.num_nodes:
            raise FedGraphError("the graph has no nodes, expected at least 1")
        made_later = isinstance(graph, HeteroGraph) or "recipe" in graph.own_columns
        if not made_later and not graph.num_features:
            raise FedGraphError(f"x must be [{graph.num_nodes}, F] with F >= 1, got F = 0")
        if labelled and not bool(graph.labelled.any()):
            kind = f" of type '{graph.target}'" if isinstance(graph, HeteroGraph) else ""
            raise FedGraphError(f"no labelled node{kind}: fill the label (in a saved graph y, from 0) of at least one")
    return graph


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the origin of a graph in front of an error."""
    try:
        yield
    except FedGraphError as error:
        raise FedGraphError(f"{where}: {error}") from None


def _check_parts(graph: Graph | HeteroGraph, finite: bool) -> None:
    _whole(graph.num_classes, "num_classes", 1)
    if not isinstance(graph.name, str):
        raise FedGraphError(f"name must be a string, got {graph.name!r}")
    if isinstance(graph, ClientGraph | HeteroClientGraph):
        _whole(graph.num_clients, "num_clients", 1)
        _whole(graph.client, "client", 0, graph.num_clients)
    if isinstance(graph, Graph):
        _check_plain(graph, finite)
    else:
        _check_typed(graph)
    wrong = (graph.y < -1) | (graph.y >= graph.num_classes)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise FedGraphError(
            f"labels must be in 0..{graph.num_classes - 1}, or -1 where unknown; node {node} has {int(graph.y[node])}"
        )


def _check_plain(graph: Graph, finite: bool) -> None:
    """Check the edges, each field by its `FieldRows`, and what follows from several fields."""
    _tensor(graph.y, "y", torch.int64, (None,))
    n = len(graph.y)
    _whole(graph.num_edge_classes, "num_edge_classes", 0)
    if graph.compressed is None:
        _edges(graph.edge_index, "edge_index", n, n)
    else:  # of a mapped file, without expanding them
        try:
            graph.compressed.check(n)
        except ValueError as error:
            raise FedGraphError(f"edge_index: {error}") from error
    _tensor(graph.edge_attr, "edge_attr", torch.float32, (None, None))
    counts = {"node": n, "edge": graph.num_edges}
    if isinstance(graph, ClientGraph):
        _whole(graph.num_global_nodes, "num_global_nodes", 0)
        if type(graph.shared) is not bool:
            raise FedGraphError(f"shared must be true or false, got {graph.shared!r}")
        if not isinstance(graph.linking, dict) or not isinstance(graph.linking.get("parties", []), list):
            raise FedGraphError(f"linking must be a mapping with a list of parties, got {graph.linking!r}")
        counts["far"] = len(graph.far_id) if isinstance(graph.far_id, Tensor) else 0
    for key, rows in rows_by_field(graph).items():
        if rows.pairs:
            _edges(getattr(graph, key), key, n, getattr(graph, str(rows.end)))
            counts[key] = getattr(graph, key).size(1)
        else:
            _check_rows(graph, key, rows, counts[rows.of], finite)
    shape = (2, graph.num_targets) if graph.target_stats.numel() else (0, None)
    _tensor(graph.target_stats, "target_stats", torch.float64, shape)
    if not bool(graph.target_stats.isfinite().all()) or not bool((graph.target_stats[1:] > 0).all()):
        raise FedGraphError(
            f"target_stats must be finite means and standard deviations above 0, got {graph.target_stats.tolist()}"
        )
    if graph.graph_id.numel():
        check_many(graph)
    _check_own(graph)
    if isinstance(graph, ClientGraph):
        _check_far(graph)


def _check_rows(graph: Graph, key: str, rows: FieldRows, count: int, finite: bool) -> None:
    """Check a field with a row for each of ``count`` items."""
    tensor, width = getattr(graph, key), getattr(graph, rows.width) if rows.width else None
    filled = isinstance(tensor, Tensor) and tensor.numel() > 0
    held = rows.needed or filled or bool(width and count and rows.of != "foreign")
    # Features of a file with compressed edges, which is mapped, may have half the size.
    half = key == "x" and filled and tensor.dtype == torch.float16 and graph.compressed is not None
    dtype = torch.float16 if half else rows.dtype
    _tensor(tensor, key, dtype, ((count, width) if held else (None, None))[: 1 + rows.wide])
    if dtype.is_floating_point and finite:
        _finite(tensor, key, rows.of if rows.of in ("node", "edge") else "row", rows.unknown)
    if not rows.wide and dtype != torch.bool and rows.low is not None:
        _within(tensor, key, _end(graph, rows), rows.low)


def _end(graph: Graph, rows: FieldRows) -> int | None:
    """Return the end of a field's range; None where it has none, or where the number of classes is unknown."""
    end = getattr(graph, rows.end) if isinstance(rows.end, str) else rows.end or None
    return end or None if rows.low else end


def _check_own(graph: Graph) -> None:
    """Check the columns of the party's own records, and the book."""
    description, width = graph.own_columns, graph.num_edge_features
    if not isinstance(description, dict) or set(description) - {"edges", "nodes", "recipe", "until", "told"}:
        raise FedGraphError(f"own_columns must have the keys edges, nodes, recipe, until and told, got {description!r}")
    _whole(description.get("edges", 0), "edges of own_columns", 0, width + 1)
    _whole(description.get("nodes", 0), "nodes of own_columns", 0, graph.num_features + 1)
    _whole(description.get("until", 0), "until of own_columns", -(2**62))
    for pair in _list(description.get("told", []), "told of own_columns"):
        for place in _list(pair, "a pair of told of own_columns", 2):
            _whole(place, "told of own_columns", 0, width)
    if description.get("recipe") is not None:
        Recipe.from_dict(description["recipe"], "own_columns")
    _tensor(graph.book, "book", torch.int64, (len(graph.book) if len(graph.book) in (4, 5) else 5, None))
    _tensor(graph.book_ids, "book_ids", torch.uint8, (None, None))
    _within(graph.book[:2].reshape(-1), "accounts of book", graph.num_nodes + len(graph.book_ids))
    _within(graph.book[3:].reshape(-1), "cents of book", None)


def _check_far(graph: ClientGraph) -> None:
    """Check what the client knows of accounts of other clients."""
    far, width = graph.far, graph.num_features
    if bool((graph.far_id.diff() <= 0).any()):
        raise FedGraphError("far_id must ascend, without repetitions")
    if not isinstance(far, dict) or set(far) not in (set(), {"names", "forms", "places", "marks"}):
        raise FedGraphError(f"far must have the keys names, forms, places and marks, got {far!r}")
    if not far:
        return
    places = _list(far["places"], "places of far")
    for place in places:
        _whole(place, "places of far", 0, width)
    _whole(far["marks"], "marks of far", 0, width - 1)
    for key in ("names", "forms"):
        _list(far[key], f"{key} of far", len(places))
    shape = (len(graph.far_id), len(places) if len(graph.far_id) else None)  # a file holds no empty tensor
    _tensor(graph.far_x, "far_x", torch.float32, shape if places else (None, 0))


def _check_typed(graph: HeteroGraph) -> None:
    for kind, count in graph.counts.items():
        if not isinstance(kind, str) or type(count) is not int or count < 0:
            raise FedGraphError(f"node type {kind!r} must have a node count of at least 0, got {count!r}")
    for key, of in (("x", "node"), ("node_id", "node"), ("edge_attr", "edge")):
        if not isinstance(getattr(graph, key, {}), dict):
            raise FedGraphError(f"{key} must be a dict keyed by {of} type, got {type(getattr(graph, key)).__name__}")
    _tensor(graph.y, "y", torch.int64, (graph.counts[graph.target],))
    for (a, relation, b), index in graph.edges.items():
        _edges(index, f"edges of '{relation}'", graph.counts[a], graph.counts[b])
    for kind, x in graph.x.items():
        _tensor(x, f"x of '{kind}'", torch.float32, (graph.counts[kind], None))
        _finite(x, f"x of '{kind}'")
    for edge, attr in graph.edge_attr.items():
        _tensor(attr, f"edge_attr of '{':'.join(edge)}'", torch.float32, (graph.edges[edge].size(1), None))
        _finite(attr, f"edge_attr of '{':'.join(edge)}'", "edge")
    _tensor(graph.ids, "ids", torch.uint8, (len(graph.y) if graph.ids.numel() else 0, None))
    if isinstance(graph, HeteroClientGraph):
        for kind, ids in graph.node_id.items():
            _tensor(ids, f"node_id of '{kind}'", torch.int64, (graph.counts[kind],))
            _within(ids, f"node_id of '{kind}'", None)
        _tensor(graph.part, "part", torch.int64, (0,))


def _check_masks(graph: Graph | HeteroGraph) -> None:
    for key in MASKS:
        mask = getattr(graph, key)
        _tensor(mask, key, torch.bool, (len(graph.y),))
        if bool((unknown := mask & ~graph.labelled).any()):
            raise FedGraphError(f"{key} marks node {int(unknown.nonzero()[0])}, which has no label")
    check_disjoint(graph)


def _whole(value: Any, what: str, low: int, end: int | None = None) -> None:
    if type(value) is not int or not low <= value < (2**62 if end is None else end):
        accepted = f"at least {low}" if end is None else f"{low}..{end - 1}"
        raise FedGraphError(f"{what} must be an integer, {accepted}, got {value!r}")


def _list(value: Any, what: str, size: int | None = None) -> list[Any]:
    if not isinstance(value, list) or size not in (None, len(value)):
        raise FedGraphError(f"{what} must be a list{'' if size is None else f' of {size}'}, got {value!r}")
    return value


def _tensor(tensor: Any, what: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    fits = isinstance(tensor, Tensor) and tensor.dtype == dtype and len(shape) == tensor.dim()
    if not fits or any(s not in (None, t) for s, t in zip(shape, tensor.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise FedGraphError(f"{what} must be {dtype} [{wanted}], got {form_of(tensor)}")


def _within(ids: Tensor, what: str, end: int | None, low: int = 0) -> None:
    if ids.numel() and (int(ids.min()) < low or (end is not None and int(ids.max()) >= end)):
        wrong = ids < low if end is None else (ids < low) | (ids >= end)
        place, last = int(wrong.nonzero()[0]), "" if end is None else end - 1
        raise FedGraphError(f"{what} must be in {low}..{last}; place {place} has {int(ids[place])}")


def _edges(index: Any, what: str, sources: int, targets: int) -> None:
    _tensor(index, what, torch.int64, (2, None))
    for row, end in enumerate((sources, targets)):
        _within(index[row], f"{what}, row {row},", end)


def _finite(x: Tensor, what: str, item: str = "node", unknown: bool = False) -> None:
    # A finite sum proves that all entries are finite, without a second matrix.
    if (
        x.numel()
        and not bool(torch.isfinite(x.sum()))
        and len(wrong := (x.isinf() if unknown else ~x.isfinite()).nonzero())
    ):
        row, column = wrong[0].tolist()
        accepted = "finite, or NaN where unknown" if unknown else "finite"
        where = f"{item} {row} has {float(x[row, column])} in column {column}"
        fix = f": fill it, or drop the {item} or the column (`import` fills empty cells of tables)"
        raise FedGraphError(f"{what} must be {accepted}; {where}{'' if unknown else fix}")
