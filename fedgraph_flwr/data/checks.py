"""Checks of a graph read from a file: the type and shape of every tensor, the range of every number.

The checks are vectorised: they make a few passes over the tensors and never loop over nodes or edges.
"""

from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.data.features import Recipe
from fedgraph_flwr.data.graph import MASKS, ClientGraph, Graph
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.many_graphs import check_many
from fedgraph_flwr.data.mapped import CompressedEdges
from fedgraph_flwr.errors import FedGraphError


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
    try:
        _whole(graph, "num_classes", 1)
        if not isinstance(graph.name, str):
            raise FedGraphError(f"name must be a string, got {graph.name!r}")
        if isinstance(graph, ClientGraph | HeteroClientGraph):
            _whole(graph, "num_clients", 1)
            _whole(graph, "client", 0, graph.num_clients)
        if isinstance(graph, Graph):
            _check_plain(graph, finite)
        else:
            _check_typed(graph)
        _check_range(graph)
        _check_masks(graph)
        _tensor(graph.ids, "ids", torch.uint8, (graph.y.size(0) if graph.ids.numel() else 0, None))
        if isinstance(graph, ClientGraph):
            _check_cuts(graph, finite)
            _check_foreign(graph)
            _check_far(graph)
    except FedGraphError as error:
        raise FedGraphError(f"{where}: {error}") from None
    return graph


def _check_plain(graph: Graph, finite: bool) -> None:
    n = _length(graph.y, "y")
    # Features of a file with compressed edges, which is mapped, may have half the size.
    half = graph.compressed is not None and isinstance(graph.x, Tensor) and graph.x.dtype == torch.float16
    _tensor(graph.x, "x", torch.float16 if half else torch.float32, (n, None))
    if finite:
        _finite(graph.x, "x")
    _whole(graph, "num_edge_classes", 0)
    if graph.compressed is None:
        _edges(graph.edge_index, "edge_index", n, n)
    else:
        _compressed(graph.compressed, n)
    _edge_data(graph, "edge_", graph.num_edges, graph.num_edge_features, finite)
    if graph.targets.numel():
        _tensor(graph.targets, "targets", torch.float32, (n, None))
        if bool(graph.targets.isinf().any()):
            node, column = (int(i) for i in graph.targets.isinf().nonzero()[0])
            raise FedGraphError(
                f"targets must be finite, or NaN where unknown; node {node} has {float(graph.targets[node, column])} in column"
                f" {column}"
            )
    if graph.target_stats.numel():
        _tensor(graph.target_stats, "target_stats", torch.float64, (2, graph.num_targets))
        if not bool(graph.target_stats.isfinite().all()) or not bool((graph.target_stats[1] > 0).all()):
            raise FedGraphError(
                f"target_stats must be finite means and standard deviations above 0, got {graph.target_stats.tolist()}"
            )
    _labelled(graph.graph_id, "graph_id", n)
    if graph.graph_id.numel():
        check_many(graph)
    _labelled(graph.group, "group", n)
    _check_own(graph)


def _check_own(graph: Graph) -> None:
    """Check the columns of the party's own records, and the book."""
    own = graph.own_columns
    if not isinstance(own, dict) or set(own) - {"edges", "nodes", "recipe", "until", "told"}:
        raise FedGraphError(f"own_columns must have the keys edges, nodes, recipe, until and told, got {own!r}")
    for key, width in (("edges", graph.num_edge_features), ("nodes", graph.num_features)):
        if type(count := own.get(key, 0)) is not int or not 0 <= count <= width:
            raise FedGraphError(f"own_columns has {key} {count!r}, expected a number of columns from 0 to {width}")
    if type(own.get("until", 0)) is not int:
        raise FedGraphError(f"own_columns has until {own['until']!r}, expected a time in whole seconds")
    pairs, width = own.get("told", []), graph.num_edge_features
    if not isinstance(pairs, list) or any(
        not isinstance(pair, list) or len(pair) != 2 or any(type(p) is not int or not 0 <= p < width for p in pair)
        for pair in pairs
    ):
        raise FedGraphError(f"own_columns has told {pairs!r}, expected pairs of columns from 0 to {width - 1}")
    if own.get("recipe") is not None:
        Recipe.from_dict(own["recipe"], "own_columns")
    if graph.book.numel():
        _tensor(graph.book, "book", torch.int64, (4, None))
        _within(graph.book[:2].reshape(-1), "book", graph.num_nodes + len(graph.book_ids))
        if int(graph.book[3].min()) < 0:
            raise FedGraphError(f"book must have cents of at least 0, got {int(graph.book[3].min())}")
    _tensor(graph.book_ids, "book_ids", torch.uint8, (None, None))


def _check_cuts(graph: ClientGraph, finite: bool) -> None:
    n = graph.num_nodes
    _whole(graph, "num_global_nodes", 0)
    if type(graph.shared) is not bool:
        raise FedGraphError(f"shared must be true or false, got {graph.shared!r}")
    _labelled(graph.part, "part", n)
    _labelled(graph.edge_part, "edge_part", graph.num_edges)
    _labelled(graph.node_id, "node_id", n, graph.num_global_nodes)
    for key in ("cut_out", "cut_in"):
        cut, owner = getattr(graph, key), getattr(graph, f"{key}_owner")
        _edges(cut, key, n, graph.num_global_nodes)
        _tensor(owner, f"{key}_owner", torch.int64, (cut.size(1),))
        _within(owner, f"{key}_owner", graph.num_clients)
        _edge_data(graph, f"{key}_edge_", cut.size(1), graph.num_edge_features, finite)


def _check_far(graph: ClientGraph) -> None:
    """Check what the client knows of accounts of other clients."""
    count, far = graph.far_id.numel(), graph.far
    _labelled(graph.far_id, "far_id", count, graph.num_global_nodes)
    if count and bool((graph.far_id.diff() <= 0).any()):
        raise FedGraphError("far_id must ascend, without repetitions")
    _tensor(graph.far_name, "far_name", torch.uint8, (count if graph.far_name.numel() else 0, None))
    if not isinstance(far, dict) or set(far) not in (set(), {"names", "forms", "places", "marks"}):
        raise FedGraphError(f"far must have the keys names, forms, places and marks, got {far!r}")
    if not far:
        return
    width, places = graph.num_features, far["places"]
    if not isinstance(places, list) or any(type(place) is not int or not 0 <= place < width for place in places):
        raise FedGraphError(f"far has places {places!r}, expected columns from 0 to {width - 1}")
    if type(far["marks"]) is not int or not 0 <= far["marks"] <= width - 2:
        raise FedGraphError(f"far has marks {far['marks']!r}, expected a column from 0 to {width - 2}")
    for key in ("names", "forms"):
        if not isinstance(far[key], list) or len(far[key]) != len(places):
            raise FedGraphError(f"far has {key} {far[key]!r}, expected a text for each of {len(places)} columns")
    _tensor(graph.far_x, "far_x", torch.float32, (count, len(places)) if places else (None, 0))
    if bool(graph.far_x.isinf().any()):
        raise FedGraphError("far_x must hold numbers, or NaN where an account has none; it has an infinite value")


def _check_foreign(graph: ClientGraph) -> None:
    """Check the records that name other parties."""
    if not isinstance(graph.linking, dict) or not isinstance(parties := graph.linking.get("parties", []), list):
        raise FedGraphError(f"linking must be a mapping with a list of parties, got {graph.linking!r}")
    _edges(graph.foreign, "foreign", graph.num_nodes, len(parties))
    count = graph.foreign.size(1)
    _tensor(graph.foreign_out, "foreign_out", torch.bool, (count,))
    for key in ("foreign_id", "foreign_key"):
        _tensor(getattr(graph, key), key, torch.uint8, (count, None))
    for key, dtype in (("time", torch.int64), ("y", torch.int64)):
        values = getattr(graph, f"foreign_edge_{key}")
        _tensor(values, f"foreign_edge_{key}", dtype, (count if values.numel() else 0,))
    if graph.foreign_edge_attr.numel():
        _tensor(graph.foreign_edge_attr, "foreign_edge_attr", torch.float32, (count, graph.num_edge_features))
        _finite(graph.foreign_edge_attr, "foreign_edge_attr", "record")


def _edge_data(graph: Graph, prefix: str, edges: int, features: int, finite: bool) -> None:
    """Check one row per edge of each field of edges that is not empty."""
    attr, time, y, split = (getattr(graph, f"{prefix}{key}") for key in ("attr", "time", "y", "split"))
    if edges or len(attr):
        _tensor(attr, f"{prefix}attr", torch.float32, (edges if features else 0, features))
    if finite:
        _finite(attr, f"{prefix}attr", "edge")
    for values, key, dtype in ((time, "time", torch.int64), (y, "y", torch.int64), (split, "split", torch.int8)):
        _tensor(values, f"{prefix}{key}", dtype, (edges if isinstance(values, Tensor) and values.numel() else 0,))
    if y.numel() and int(y.min()) < -1:
        raise FedGraphError(f"{prefix}y must be 0, 1, ..., or -1 where unknown, got {int(y.min())}")
    if y.numel() and graph.num_edge_classes:
        _within(y.clamp(min=0), f"{prefix}y", graph.num_edge_classes)
    _within(split, f"{prefix}split", 3)


def _labelled(ids: Any, what: str, n: int, end: int | None = None) -> None:
    """Check one number per node; an empty tensor is accepted."""
    _tensor(ids, what, torch.int64, (n if isinstance(ids, Tensor) and ids.numel() else 0,))
    _within(ids, what, end)


def _check_typed(graph: HeteroGraph) -> None:
    for kind, count in graph.counts.items():
        if not isinstance(kind, str) or type(count) is not int or count < 0:
            raise FedGraphError(f"node type {kind!r} must have a node count of at least 0, got {count!r}")
    for key, of in (("x", "node"), ("node_id", "node"), ("edge_attr", "edge")):
        if not isinstance(getattr(graph, key, {}), dict):
            raise FedGraphError(f"{key} must be a dict keyed by {of} type, got {type(getattr(graph, key)).__name__}")
    _length(graph.y, "y", graph.counts[graph.target])
    for (a, relation, b), index in graph.edges.items():
        _edges(index, f"edges of '{relation}'", graph.counts[a], graph.counts[b])
    for kind, x in graph.x.items():
        _tensor(x, f"x of '{kind}'", torch.float32, (graph.counts[kind], None))
        _finite(x, f"x of '{kind}'")
    for edge, attr in graph.edge_attr.items():
        _tensor(attr, f"edge_attr of '{':'.join(edge)}'", torch.float32, (graph.edges[edge].size(1), None))
        _finite(attr, f"edge_attr of '{':'.join(edge)}'", "edge")
    if isinstance(graph, HeteroClientGraph):
        for kind, ids in graph.node_id.items():
            _tensor(ids, f"node_id of '{kind}'", torch.int64, (graph.counts[kind],))
            _within(ids, f"node_id of '{kind}'", None)
        _tensor(graph.part, "part", torch.int64, (0,))


def check_typed(graph: HeteroGraph, where: str, labelled: bool = True) -> HeteroGraph:
    """Return the graph unchanged if its tensors fit together, and some label is known unless ``labelled`` is False.

    Raises:
        FedGraphError: as of `check_file`, but for masks, which a split may replace.
    """
    try:
        _check_typed(graph)
        _check_range(graph)
        for key in MASKS:
            _tensor(getattr(graph, key), key, torch.bool, (len(graph.y),))
        if labelled and not bool((graph.y >= 0).any()):
            raise FedGraphError(f"no labelled node of type '{graph.target}': at least one label must be 0 or higher")
    except FedGraphError as error:
        raise FedGraphError(f"{where}: {error}") from None
    return graph


def _check_range(graph: Graph | HeteroGraph) -> None:
    wrong = (graph.y < -1) | (graph.y >= graph.num_classes)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise FedGraphError(
            f"labels must be in 0..{graph.num_classes - 1}, or -1 where unknown; node {node} has {int(graph.y[node])}"
        )


def _check_masks(graph: Graph | HeteroGraph) -> None:
    n = graph.y.size(0)
    marked = torch.zeros(n, dtype=torch.bool)
    labelled = graph.labelled if isinstance(graph, Graph) else graph.y >= 0
    for key in MASKS:
        mask = getattr(graph, key)
        _tensor(mask, key, torch.bool, (n,))
        if bool((twice := marked & mask).any()):
            raise FedGraphError(
                f"{' and '.join(MASKS)} must not overlap; node {int(twice.nonzero()[0])} is in two of them"
            )
        if bool((unknown := mask & ~labelled).any()):
            raise FedGraphError(f"{key} marks node {int(unknown.nonzero()[0])}, which has no label")
        marked |= mask


def _whole(graph: Any, key: str, low: int, end: int | None = None) -> None:
    value = getattr(graph, key)
    if type(value) is not int or not low <= value < (2**62 if end is None else end):
        raise FedGraphError(
            f"{key} must be an integer, {f'{low}..{end - 1}' if end else f'at least {low}'}, got {value!r}"
        )


def _tensor(tensor: Any, what: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    wanted = f"{dtype} [{', '.join('any' if size is None else str(size) for size in shape)}]"
    if not isinstance(tensor, Tensor):
        raise FedGraphError(f"{what} must be {wanted}, got {type(tensor).__name__}")
    fits = len(shape) == tensor.dim() and all(s in (None, t) for s, t in zip(shape, tensor.shape, strict=True))
    if tensor.dtype != dtype or not fits:
        raise FedGraphError(f"{what} must be {wanted}, got {tensor.dtype} {list(tensor.shape)}")


def _length(tensor: Any, what: str, size: int | None = None) -> int:
    """Return N for labels int64 [N]."""
    _tensor(tensor, what, torch.int64, (size,))
    return int(tensor.size(0))


def _within(ids: Tensor, what: str, end: int | None) -> None:
    if not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (end is not None and high >= end):
        raise FedGraphError(f"{what} must be in 0..{'' if end is None else end - 1}, got {low}..{high}")


def _edges(index: Any, what: str, sources: int, targets: int) -> None:
    _tensor(index, what, torch.int64, (2, None))
    for row, end in enumerate((sources, targets)):
        _within(index[row], f"{what}, row {row},", end)


def _compressed(edges: CompressedEdges, n: int) -> None:
    """Check the edges of a mapped file without expanding them."""
    try:
        edges.check(n)
    except ValueError as error:
        raise FedGraphError(f"edge_index: {error}") from error


def _finite(x: Tensor, what: str, item: str = "node") -> None:
    # A finite sum proves that all entries are finite, without a second matrix.
    if x.numel() and not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
        row, column = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise FedGraphError(f"{what} must be finite; {item} {row} has {float(x[row, column])} in column {column}")
