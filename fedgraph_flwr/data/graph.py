"""Graph containers and their file format.

Letters used project-wide: N nodes, E directed edges, F features, H hidden width, C classes, M clients.

The containers are plain dataclasses of tensors, not PyG ``Data``, because importing PyG doubles the start-up time of a
client process. Use `Graph.from_pyg` and `Graph.to_pyg` to convert.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.mapped import (
    CompressedEdges,
    in_neighbours,
    is_big,
    is_mapped,
    is_trusted,
    own_or_mapped,
    update_digest,
    write_blocks,
)
from fedgraph_flwr.errors import MALFORMED, FedGraphError

FORMAT_VERSION = 2
"""Version of the files that are written. Version 2 added data of edges, targets and graph ids, and stores sorted edges as CSR."""

READABLE = ("1", "2")
"""Versions of the files that can be read."""

MASKS = ("train_mask", "val_mask", "test_mask")

SHARED_FIELDS = ("num_classes", "num_edge_classes", "name", "schema", "target_stats", "own_columns")
"""Fields of a graph that all of its parts have alike."""


class FieldRows(NamedTuple):
    """Rows of a tensor of a graph; the fields of `Graph` and `ClientGraph` carry it in their ``metadata``.

    Attributes:
        of: what a row belongs to: ``node``, ``edge``, ``cut_out``, ``cut_in``, ``foreign`` or ``far`` (an account).
        dtype: type of the numbers.
        wide: whether a row has columns; else it is a number.
        width: property of the graph with the number of columns; empty: any.
        low: smallest number of integers; None: any.
        end: their end, exclusive: a number or a field or property of the graph; 0 or empty: none.
        needed: whether there must be a row for each; else there may be none.
        unknown: whether NaN is accepted.
        pairs: whether rows are columns of a tensor [2, R].
    """

    of: str
    dtype: torch.dtype = torch.int64
    wide: bool = False
    width: str = ""
    low: int | None = 0
    end: str | int = 0
    needed: bool = False
    unknown: bool = False
    pairs: bool = False


def _of_nodes(dtype: torch.dtype, wide: bool = False) -> Any:
    """Return the metadata of a field with a row for each node."""
    return {"rows": FieldRows("node", dtype, wide, low=None, needed=True)}


def _rows(of: str, dtype: torch.dtype = torch.int64, **more: Any) -> Any:
    """Return a field of `FieldRows` that is empty by default."""
    rows = FieldRows(of, dtype, **more)
    size = [2, 0] if rows.pairs else [0, 0] if rows.wide else [0]
    return field(default_factory=partial(torch.zeros, size, dtype=dtype), metadata={"rows": rows})


def rows_by_field(graph: Any, of: str = "") -> dict[str, FieldRows]:
    """Return the `FieldRows` of a graph's or class's fields by name; with ``of``, those of one kind."""
    by_name = {f.name: f.metadata["rows"] for f in fields(graph) if "rows" in f.metadata}
    return {name: rows for name, rows in by_name.items() if of in ("", rows.of)}


def rows_at(graph: Any, of: str, places: Tensor) -> dict[str, Any]:
    """Return all fields with a row per ``node``, ``edge`` and so on, at some places or by a mask; empty ones stay empty."""
    tensors: dict[str, Any] = {}
    for key, rows in rows_by_field(graph, of).items():
        tensor = getattr(graph, key)
        tensors[key] = tensor[..., places] if rows.pairs else tensor[places] if rows.needed else rows_of(tensor, places)
    return tensors


def pack_words(texts: Any) -> Tensor:
    """Encode texts as UTF-8, uint8 [N, width], padded with zeros, so that rows can be indexed like any tensor."""
    encoded = np.char.encode(np.asarray(texts, dtype=str), "utf-8")
    width = max(encoded.dtype.itemsize, 1)
    return torch.from_numpy(np.ascontiguousarray(encoded).view(np.uint8).reshape(len(encoded), width).copy())


def unpack_words(packed: Tensor) -> np.ndarray:
    """Decode the output of `pack_words` to texts [N]."""
    rows = np.ascontiguousarray(packed.numpy())
    return np.char.decode(rows.view(f"S{rows.shape[1]}").reshape(len(rows)), "utf-8", "replace")


def check_dtypes(tensors: Any, where: str) -> None:
    """Check a PyG ``Data`` (or one type of a ``HeteroData``) for values that a conversion would silently change.

    Raises:
        FedGraphError: ``edge_index`` or ``y`` does not hold integers, or ``x`` is complex.
    """
    index = getattr(tensors, "edge_index", None)
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        fix = "pass the numbers of both ends of each edge [2, E], of an adjacency matrix matrix.nonzero().t()"
        raise FedGraphError(f"{where}: edge_index must hold integers, got torch.bool: {fix}")
    accepted = dict.fromkeys(("edge_index", "y"), ("integers", "convert it with .long()"))
    accepted["x"] = ("real numbers", "pass the real and imaginary parts as separate features")
    for key, (numbers, advice) in accepted.items():
        tensor = getattr(tensors, key, None)
        if isinstance(tensor, Tensor) and (tensor.is_complex() or (key != "x" and tensor.is_floating_point())):
            raise FedGraphError(f"{where}: {key} must hold {numbers}, got {tensor.dtype}: {advice}")


def form_of(value: Any) -> str:
    """Return the type and shape of a tensor, or the type of another value, for errors."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


_VERSION_1 = (
    "x",
    "y",
    *MASKS,
    "group",
    "ids",
    "part",
    "node_id",
    *(f"cut_{k}" for k in ("out", "in", "out_owner", "in_owner")),
)
"""Tensors that are written even if they are empty."""

_OPTIONAL = ("linking", "num_edge_classes", "shared", "own_columns", "far")
"""Values that are not written if they are empty."""


def _by_row(edges: Tensor, nodes: int, rows: str) -> CompressedEdges:
    """Return edges [2, E] as CSR by their first ends, the second ends in stable order."""
    near, far = edges
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), near.bincount(minlength=nodes).cumsum(0)])
    return CompressedEdges(indptr, far[near.argsort(stable=True)], rows)


def rows_of(tensor: Tensor, order: Tensor) -> Tensor:
    """Return rows of a field that may be empty, which then stays empty."""
    held = tensor.size(1) if tensor.dim() > 1 else tensor.numel()
    return tensor[order] if held else tensor


def unsplit(nodes: int) -> dict[str, Any]:
    """Return the masks of a graph before a split: no node is in one."""
    return {mask: torch.zeros(nodes, dtype=torch.bool) for mask in MASKS}


def marks(graph: Any) -> Tensor:
    """Return in how many masks each node is [N]."""
    return torch.stack([getattr(graph, mask) for mask in MASKS]).sum(0)


def check_disjoint(graph: Any, where: str = "") -> None:
    """Check that no node is in two masks.

    Raises:
        FedGraphError: one is.
    """
    if bool((twice := marks(graph) > 1).any()):
        node = int(twice.nonzero()[0])
        raise FedGraphError(f"{where}{' and '.join(MASKS)} must not overlap; node {node} is in two of them")


def grown(graph: "Graph", more: int) -> dict[str, Any]:
    """Return the fields of a graph's nodes and of ``more`` ones after them: without features, label, targets and split."""
    fields = {"x": F.pad(graph.x, (0, 0, 0, more)), "y": F.pad(graph.y, (0, more), value=-1)}
    fields |= {mask: F.pad(getattr(graph, mask), (0, more)) for mask in MASKS}
    if graph.num_targets:
        fields["targets"] = F.pad(graph.targets, (0, 0, 0, more), value=torch.nan)
    return fields


@dataclass
class Graph:
    """Homogeneous graph with node labels.

    Attributes:
        x: node features, float32 [N, F].
        edge_index: int64 [2, E], row 0 source and row 1 target, as stored: an undirected edge is listed twice.
        y: labels, int64 [N], -1 where unknown.
        train_mask: bool [N]; likewise ``val_mask`` and ``test_mask``. All False before a split.
        num_classes: C, over the whole dataset (a client may miss classes).
        name: the dataset's name.
        group: client in which each node was planted or listed by its source, int64 [N]; empty if unknown.
        schema: schema of an imported graph's features and classes (`schema.stored`); empty for others.
        ids: ids of the nodes in their source tables (`pack_words`), uint8 [N, width]; empty for others. They stay in the
            party's file: nothing is computed from them, and no message contains them.
        edge_attr: features of edges, float32 [E, D]; [0, 0] without any.
        edge_time: time of each edge, int64 [E], in seconds; empty if unknown.
        edge_y: labels of edges, int64 [E], -1 where unknown; empty without any.
        edge_split: first stage that may read an edge, int8 [E]: 0 training, 1 validation, 2 test; empty: all read every edge.
        targets: real or binary targets of nodes, float32 [N, T], NaN where unknown; [0, 0] without any.
        target_stats: mean and standard deviation of each target, the same at all clients, float64 [2, T]; [0, 0] for 0 and 1.
        graph_id: the graph that each node belongs to, int64 [N], if this is many graphs side by side; else empty.
        num_edge_classes: number of classes of ``edge_y``, over the whole dataset; 0 without any.
        own_columns: columns that the party computes from its own records (`features`), the last ones: ``edges`` of
            ``edge_attr`` and ``nodes`` of ``x``; with ``recipe``, and ``until``, the last time that ``nodes`` read. Empty
            without any. No message contains them.
        book: the party's records, int64 [5, R]: source and target, whose numbers from N on are accounts of other parties, time
            in seconds, cents (0 without a recipe), and a hash of the columns that are features (missing in older files). Like
            ``ids``, it stays in the party's file.
        book_ids: party and id of each account of another party in ``book`` (`pack_words`), uint8 [K, width].
        stored_edges: the edges of a mapped file in CSR, expanded or not; None: of a graph in memory.
    """

    x: Tensor = field(metadata=_of_nodes(torch.float32, wide=True))
    edge_index: Tensor
    y: Tensor = field(metadata=_of_nodes(torch.int64))
    train_mask: Tensor = field(metadata=_of_nodes(torch.bool))
    val_mask: Tensor = field(metadata=_of_nodes(torch.bool))
    test_mask: Tensor = field(metadata=_of_nodes(torch.bool))
    num_classes: int
    name: str = ""
    group: Tensor = _rows("node")
    schema: dict[str, Any] = field(default_factory=dict)
    ids: Tensor = _rows("node", torch.uint8, wide=True)
    edge_attr: Tensor = _rows("edge", torch.float32, wide=True, width="num_edge_features")
    edge_time: Tensor = _rows("edge", low=None)
    edge_y: Tensor = _rows("edge", low=-1, end="num_edge_classes")
    edge_split: Tensor = _rows("edge", torch.int8, end=3)
    targets: Tensor = _rows("node", torch.float32, wide=True, unknown=True)
    graph_id: Tensor = _rows("node")
    num_edge_classes: int = 0
    target_stats: Tensor = field(default_factory=partial(torch.zeros, 0, 0, dtype=torch.float64))
    own_columns: dict[str, Any] = field(default_factory=dict)
    book: Tensor = field(default_factory=partial(torch.zeros, 4, 0, dtype=torch.int64))
    book_ids: Tensor = field(default_factory=partial(torch.zeros, 0, 0, dtype=torch.uint8))

    def __post_init__(self) -> None:
        if isinstance(self.edge_index, CompressedEdges):
            vars(self)["stored_edges"] = vars(self).pop("edge_index")

    if TYPE_CHECKING:
        stored_edges: ClassVar[CompressedEdges | None]
    else:
        stored_edges = None  # without annotation it is no field

        def __getattr__(self, name: str) -> Any:
            """Expand the edges of a mapped file when they are read; they stay expanded."""
            if name == "edge_index" and (edges := self.stored_edges) is not None:
                self.edge_index = edges.expanded()
                return self.edge_index
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @property
    def compressed(self) -> CompressedEdges | None:
        """The edges of a mapped file in CSR; None where they are expanded in memory."""
        return None if "edge_index" in vars(self) else self.stored_edges

    @property
    def num_edges(self) -> int:
        """E, without expanding the edges of a mapped file."""
        edges = self.compressed
        return self.edge_index.size(1) if edges is None else len(edges.indices)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges as CSR, by source unless a file stores them by target: int64 [N + 1] and [E]."""
        edges = self.stored_edges or _by_row(self.edge_index, self.num_nodes, "source")
        return edges.whole_indptr(self.num_nodes).numpy(), edges.indices.numpy()

    def in_neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources of the edges into each node as CSR: int64 [N + 1], int32 or int64 [E]; mapped where the file is."""
        edges = self.stored_edges
        if edges is None:
            edges = _by_row(self.edge_index.flip(0), self.num_nodes, "target")
            edges = edges._replace(indices=edges.indices.to(torch.int32 if self.num_nodes < 2**31 else torch.int64))
        return in_neighbours(edges, self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.y.size(0)

    @property
    def num_features(self) -> int:
        """F."""
        return self.x.size(1)

    @property
    def num_edge_features(self) -> int:
        """D."""
        return self.edge_attr.size(1)

    @property
    def num_shared_edge_features(self) -> int:
        """Number of columns of ``edge_attr`` that both parties of a cut edge have alike, the first ones."""
        return self.num_edge_features - int(self.own_columns.get("edges", 0))

    @property
    def num_targets(self) -> int:
        """T."""
        return self.targets.size(1)

    @property
    def labelled(self) -> Tensor:
        """Nodes with a label or a known target, bool [N]."""
        known = self.y >= 0
        return known | ~self.targets.isnan().all(1) if self.num_targets else known

    @property
    def has_edge_data(self) -> bool:
        """Whether edges carry features, times or labels, so that parallel edges differ."""
        return any(getattr(self, key).numel() for key in EDGE_FIELDS)

    def with_edges(self, edge_index: Tensor, order: Tensor) -> Self:
        """Return the graph with other edges, each with the data of one that it has.

        Args:
            edge_index: the new edges [2, E'].
            order: for each edge, the place of the edge whose data it carries [E'].
        """
        return replace(self, edge_index=edge_index, **rows_at(self, "edge", order))

    def until(self, stage: int, last: int | None = None) -> Self:
        """Return the graph as a stage may read it: without edges and cut edges of later stages (``edge_split``).

        Args:
            stage: the stage.
            last: time of the last edges that it reads, in seconds; None: it reads all of its edges.
        """
        graph = self
        for of, start in (("edge", ""), ("cut_out", "cut_out_"), ("cut_in", "cut_in_")):
            split = getattr(self, f"{start}edge_split", self.edge_split[:0])
            if not split.numel():
                continue
            kept = split <= stage
            if last is not None:
                kept &= getattr(self, f"{start}edge_time") <= last
            places = kept.nonzero().view(-1)
            inner: dict[str, Any] = {} if start else {"edge_index": self.edge_index[:, places]}
            graph = replace(graph, **rows_at(self, of, places), **inner)
        return graph

    @classmethod
    def from_pyg(cls, data: Any, num_classes: int, name: str = "") -> "Graph":
        """Convert a PyG ``Data``; missing masks become all False, 2-D masks keep their first column."""
        where = name or "the Data"
        check_dtypes(data, where)
        return Graph(
            x=data.x.to(torch.float32),
            edge_index=data.edge_index.to(torch.int64),
            y=data.y.view(-1).to(torch.int64),
            **masks_of(data),
            num_classes=num_classes,
            name=name,
            targets=target_tensor(data, where),
            **edge_tensors(data, where),
        )

    def to_pyg(self) -> Any:
        """Convert to a PyG ``Data`` with the same tensors and values, without empty optional ones."""
        from torch_geometric.data import Data

        private = ("foreign", "book", "far_name")  # they stay in the party's file
        content = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith(private)}
        empty = {key for key in _OPTIONAL if not content.get(key, True)}
        empty |= {key for key, value in content.items() if isinstance(value, Tensor | str | dict) and not len(value)}
        empty -= {key for key, rows in rows_by_field(self).items() if rows.needed}
        return Data(**{key: value for key, value in content.items() if key not in empty})

    def save(self, path: Path | str | BinaryIO) -> None:
        """Write tensors as safetensors and other fields as JSON in the header, atomically to a path or to an open file."""
        edges = self.compressed
        contents = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "edge_index" or edges is None}
        tensors = {
            key: value for key, value in contents.items() if isinstance(value, Tensor) and _is_written(key, value)
        }
        tensors |= edges.tensors("edge_index") if edges else {}
        values = {key: value for key, value in contents.items() if not isinstance(value, Tensor)}
        values = {key: value for key, value in values.items() if value or key not in _OPTIONAL}
        write_tensors(path, tensors, values | {"kind": type(self).__name__})

    @classmethod
    def load(cls, path: "Source") -> Self:
        """Read what `save` wrote.

        Raises:
            FedGraphError: the file is missing, truncated, has another version, or holds another kind of graph.
        """
        return cls.unpack(path, *read_tensors(path))

    @classmethod
    def unpack(cls, path: "Source", tensors: dict[str, Tensor], values: dict[str, Any]) -> Self:
        """Build the graph from the tensors and values of the file ``path``."""
        kind = values.pop("kind", None)
        if kind != cls.__name__:
            raise FedGraphError(f"{path} holds a {kind}, expected a {cls.__name__}")
        check_client_fields(kind, values, str(path))
        known = {f.name for f in fields(cls)}
        if unknown := sorted((tensors.keys() | values.keys()) - known):
            raise FedGraphError(
                f"{path} has field '{unknown[0]}', which this version of fedgraph-flwr does not know: install a newer one, or"
                " write the file again with this one"
            )
        return cls(**{**tensors, **values})


AnyGraph = TypeVar("AnyGraph", bound=Graph)

EDGE_FIELDS = tuple(rows_by_field(Graph, "edge"))
"""Fields of a graph with one row per edge, in the order of its ``edge_index``; empty where the edges carry no such data."""


def joined_edge_data(graphs: Sequence[Graph], kinds: Sequence[str], count: int, error: str) -> dict[str, Any]:
    """Return the data of several kinds of edges, one after the other: of each kind, those of all graphs.

    Args:
        graphs: the graphs.
        kinds: what the names of their fields start with: nothing for inner edges, ``cut_out_`` or ``cut_in_``.
        count: number of all edges.
        error: start and end of the error message, with ``{}`` for the field.

    Raises:
        FedGraphError: some edges have data, others do not.
    """
    data: dict[str, Any] = {}
    for key in EDGE_FIELDS:
        parts = [getattr(graph, f"{kind}{key}") for kind in kinds for graph in graphs]
        if held := [part for part in parts if part.numel()]:
            data[key] = torch.cat(held)
            if len(data[key]) != count:
                raise FedGraphError(error.format(key))
    return data


def _is_written(key: str, tensor: Tensor) -> bool:
    """Return whether a file holds a tensor: it has an entry, is of `_VERSION_1`, or states how many columns there are."""
    private = key.startswith(("foreign", "book", "far"))
    return key in _VERSION_1 or key == "edge_index" or bool(tensor.numel() if private else sum(tensor.shape))


def masks_of(data: Any) -> dict[str, Any]:
    """Return the masks of a PyG ``Data`` or node type: the first column of several, all False where there is none."""
    masks = {}
    for key in MASKS:
        mask = getattr(data, key, None)
        mask = torch.zeros(int(data.num_nodes), dtype=torch.bool) if mask is None else mask.bool().clone()
        masks[key] = mask[:, 0] if mask.dim() == 2 else mask
    return masks


def _check_count(tensor: Tensor, what: str, count: int, of: str) -> None:
    """Check that a tensor has ``count`` rows, one per ``of``."""
    if (rows := len(tensor) if tensor.dim() else 0) != count:
        raise FedGraphError(f"{what} must have a row per {of}, got {rows} for {count} {of}s")


def target_tensor(data: Any, where: str) -> Tensor:
    """Return ``targets`` of a PyG ``Data``, float32 [N, T]; [0, 0] if it has none.

    Raises:
        FedGraphError: it does not have a row per node.
    """
    targets = getattr(data, "targets", None)
    if not isinstance(targets, Tensor):
        return torch.zeros(0, 0, dtype=torch.float32)
    _check_count(targets, f"{where}: targets", data.num_nodes, "node")
    return targets.view(len(targets), -1).to(torch.float32)


def edge_tensors(data: Any, where: str, keys: Sequence[str] = ("edge_attr", "edge_time", "edge_y")) -> dict[str, Any]:
    """Return ``edge_attr``, ``edge_time`` and ``edge_y`` of a PyG ``Data`` or an edge type, as far as it has them.

    Raises:
        FedGraphError: one does not have a row per edge, or times or labels are not integers.
    """
    attributes = {key: getattr(data, key, None) for key in keys}
    held = {key: tensor for key, tensor in attributes.items() if isinstance(tensor, Tensor)}
    for key, tensor in held.items():
        _check_count(tensor, f"{where}: {key}", data.edge_index.size(1), "edge")
        if key == "edge_attr":
            held[key] = (tensor.view(-1, 1) if tensor.dim() == 1 else tensor.flatten(1)).to(torch.float32)
        elif tensor.is_floating_point() or tensor.dim() != 1:
            raise FedGraphError(f"{where}: {key} must be integers [E], got {form_of(tensor)}")
        else:
            held[key] = tensor.to(torch.int64)
    if "edge_y" in held:
        largest = int(held["edge_y"].max()) if len(held["edge_y"]) else 0
        return held | {"num_edge_classes": max(int(getattr(data, "num_edge_classes", 0)), largest + 1, 2)}
    return held


def check_client_fields(kind: str, values: Any, where: str) -> None:
    """Check that the values of a client's file identify the client.

    Raises:
        FedGraphError: a field is missing.
    """
    for key in ("client", "num_clients"):
        if kind.endswith("ClientGraph") and key not in values:
            raise FedGraphError(f"{where} has no field '{key}': write it again with `import --client` or `partition`")


@dataclass
class ClientGraph(Graph):
    """Private graph of one client: the nodes it owns, the edges among them, and the ends of its cut edges.

    Attributes:
        node_id: global ids of the client's nodes, int64 [N].
        cut_out: outgoing cut edges, int64 [2, E_out]: local source, global id of the target.
        cut_in: incoming cut edges, int64 [2, E_in]: local target, global id of the source.
        cut_out_owner: client that owns the other end of each outgoing edge, int64 [E_out]; likewise ``cut_in_owner``.
        cut_out_edge_attr: features of outgoing cut edges, float32 [E_out, D]; likewise ``_time``, ``_y`` and ``_split``, and
            those of incoming ones.
        part: empty, except in the pooled graph of the Central reference: the client each node belongs to, int64 [N].
        edge_part: there, where clients share nodes, the client that each edge belongs to, int64 [E]; else empty.
        client: index of this client, 0..M-1.
        num_clients: M.
        num_global_nodes: nodes of the whole graph.
        shared: whether clients share nodes, whose ``node_id`` are those of one graph even where each client holds all of it.
        foreign: rows of the party's edge table that name another party, not yet matched, int64 [2, R]: own node, and the
            position of the other party in ``linking["parties"]``. Like ``ids``, they stay in the party's file.
        foreign_out: whether the own node is the source, bool [R].
        foreign_id: id of the other end as written (`pack_words`), uint8 [R, width].
        foreign_key: values that identify the record, in normal form (`parties`), uint8 [R, width].
        foreign_edge_attr: features of foreign records, float32 [R, D]; likewise ``_time`` and ``_y``.
        linking: ``party``, ``parties`` and ``form`` of the records, or of linked files ``link``: the same text at all parties.
        far_id: global ids of accounts of other clients at cut edges, ascending, int64 [K]; empty where nothing is known of them.
        far_name: of linked files, their party and id (`pack_words`), uint8 [K, width]. They stay in the party's file.
        far_x: columns that their owners share, float32 [K, S], NaN where an account has none (`far_ends`).
        far: ``names`` and ``forms`` of these columns, their ``places`` in ``x``, and ``marks``, the first of the columns of ``x``
            that mark far ends. Empty without any.
    """

    node_id: Tensor = _rows("node", end="num_global_nodes")
    cut_out: Tensor = _rows("cut_out", end="num_global_nodes", pairs=True)
    cut_in: Tensor = _rows("cut_in", end="num_global_nodes", pairs=True)
    cut_out_owner: Tensor = _rows("cut_out", end="num_clients", needed=True)
    cut_in_owner: Tensor = _rows("cut_in", end="num_clients", needed=True)
    part: Tensor = _rows("node")
    edge_part: Tensor = _rows("edge")
    client: int = 0
    num_clients: int = 1
    num_global_nodes: int = 0
    shared: bool = False
    cut_out_edge_attr: Tensor = _rows("cut_out", torch.float32, wide=True, width="num_edge_features")
    cut_out_edge_time: Tensor = _rows("cut_out", low=None)
    cut_out_edge_y: Tensor = _rows("cut_out", low=-1, end="num_edge_classes")
    cut_out_edge_split: Tensor = _rows("cut_out", torch.int8, end=3)
    cut_in_edge_attr: Tensor = _rows("cut_in", torch.float32, wide=True, width="num_edge_features")
    cut_in_edge_time: Tensor = _rows("cut_in", low=None)
    cut_in_edge_y: Tensor = _rows("cut_in", low=-1, end="num_edge_classes")
    cut_in_edge_split: Tensor = _rows("cut_in", torch.int8, end=3)
    foreign: Tensor = _rows("foreign", end="num_parties", pairs=True)
    foreign_out: Tensor = _rows("foreign", torch.bool, needed=True)
    foreign_id: Tensor = _rows("foreign", torch.uint8, wide=True, needed=True)
    foreign_key: Tensor = _rows("foreign", torch.uint8, wide=True, needed=True)
    foreign_edge_attr: Tensor = _rows("foreign", torch.float32, wide=True, width="num_edge_features")
    foreign_edge_time: Tensor = _rows("foreign", low=None)
    foreign_edge_y: Tensor = _rows("foreign", low=None)
    linking: dict[str, Any] = field(default_factory=dict)
    far_id: Tensor = _rows("far", end="num_global_nodes")
    far_name: Tensor = _rows("far", torch.uint8, wide=True)
    far_x: Tensor = _rows("far", torch.float32, wide=True, unknown=True)
    far: dict[str, Any] = field(default_factory=dict)

    @property
    def num_parties(self) -> int:
        """Number of parties that records may name."""
        return len(self.linking.get("parties", ()))


def graph_digest(graph: ClientGraph) -> Tensor:
    """Return a digest, uint8 [32], of a client's nodes and edges, by which a party recognises the graph of an earlier run."""
    digest = hashlib.sha256()
    for key in ("ids", "node_id", "x", "edge_index", "cut_out", "cut_in"):
        tensor = getattr(graph, key).contiguous()
        digest.update(f"{key} {list(tensor.shape)}".encode())
        digest.update(tensor.numpy())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


@dataclass(frozen=True)
class Piece:
    """Client file packed with others into one file.

    Attributes:
        whole: the packed file.
        name: name of the client's file.
        start: its offset in bytes.
        size: its size in bytes.
    """

    whole: Path
    name: str
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.name} in {self.whole}"

    def read_bytes(self) -> bytes:
        """Return the content of the client's file."""
        with self.whole.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


Source = Path | str | Piece
"""Location from which a graph is read."""


def _with_sorted_metadata(content: bytes) -> bytes:
    """Return a safetensors file whose metadata are in order: safetensors writes them in another one in each process."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[start:]))


def write_tensors(
    path: Path | str | BinaryIO, tensors: dict[str, Tensor], values: dict[str, Any], durable: bool = True
) -> None:
    """Write named tensors and JSON values as safetensors, atomically to a path (see `files.writing`) or to an open file.

    Wide sparse float matrices, such as bag-of-words features, are stored as coordinates and values; edges that are sorted by
    source as compressed rows (CSR).
    """
    from safetensors.torch import save

    packed: dict[str, Tensor] = {}
    stored: set[int] = set()
    for key, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        tensor = tensor.clone() if tensor.data_ptr() in stored else tensor  # the format refuses shared memory
        stored.add(tensor.data_ptr())
        matrix = tensor.dim() == 2 and tensor.is_floating_point() and tensor.numel() > 4096
        if matrix and int(torch.count_nonzero(tensor)) * 5 < tensor.numel():
            nonzero = tensor != 0
            index = nonzero.nonzero()
            packed[f"{key}#row"] = index[:, 0].to(torch.int32)
            packed[f"{key}#col"] = index[:, 1].to(torch.int32)
            packed[f"{key}#value"] = tensor[nonzero]
            packed[f"{key}#shape"] = torch.tensor(tensor.shape)
            continue
        if key == "edge_index" and _sorted(tensor):
            packed |= _compressed(key, tensor)
            continue
        packed[key] = tensor
    text = json.dumps(values)
    if isinstance(path, Path | str) and is_big(sum(tensor.nbytes for tensor in packed.values())):
        write_blocks(path, packed, text, str(FORMAT_VERSION))
        return
    header = {"format": str(FORMAT_VERSION), "values": text, "digest": _digest(packed, text)}
    content = _with_sorted_metadata(save(packed, metadata=header))
    if isinstance(path, Path | str):
        write_bytes(path, content, durable)
    else:
        path.write(content)


def read_tensors(path: Source) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of `write_tensors`; nothing is unpickled.

    The tensors of a big file are a memory map, and its edges are `CompressedEdges`.

    Raises:
        FedGraphError: the file is missing, truncated, or has another version.
    """
    with _opened(path) as file:
        mapped = not isinstance(path, Piece) and is_mapped(path)
        # Not mapped where it is not aligned as in memory: sums depend on memory alignment.
        packed = {key: own_or_mapped(file.get_tensor(key), mapped) for key in file.keys()}  # noqa: SIM118 (not a dict)
        header = file.metadata()
        values = _values(header)
        known = mapped and not isinstance(path, Piece) and is_trusted(path)
        if "digest" in header and not known and header["digest"] != _digest(packed, header["values"]):
            raise FedGraphError(f"{path} is damaged: its content does not match its digest; restore or write it again")
        tensors: dict[str, Tensor] = {}
        for key, tensor in packed.items():
            name, _, role = key.partition("#")
            if role == "shape":
                tensors[name] = _dense(*(packed[f"{name}#{part}"] for part in ("shape", "row", "col", "value")))
            elif role in _INDICES:
                tensors[name] = _edges(packed, name, role, mapped)
            elif not role:
                tensors[name] = tensor
    return tensors, values


def _sorted(edge_index: Tensor) -> bool:
    """Whether a tensor is edges [2, E] that are sorted by source, as CSR lists them."""
    if edge_index.dtype != torch.int64 or edge_index.dim() != 2 or len(edge_index) != 2 or not edge_index.numel():
        return False
    source, target = edge_index
    small = int(source[-1]) < 16 * (source.numel() + 2**20)  # else row pointers are larger than the edges
    return small and min(int(source[0]), int(target.min())) >= 0 and bool((source[1:] >= source[:-1]).all())


_INDICES = {"indices": "source", "in_indices": "target"}
"""Names of compressed edges in a file, and the nodes of their rows."""


def _edges(packed: dict[str, Tensor], name: str, role: str, mapped: bool) -> Any:
    """Return compressed edges of a file: unchanged if it is mapped, else expanded."""
    indptr = packed[f"{name}#{role.replace('indices', 'indptr')}"]
    edges = CompressedEdges(
        indptr, packed[f"{name}#{role}"], "both" if f"{name}#symmetric" in packed else _INDICES[role]
    )
    if mapped:
        return edges
    edges.check(2**62)
    return edges.expanded()


def _compressed(key: str, edge_index: Tensor) -> dict[str, Tensor]:
    """Return sorted edges [2, E] as CSR: int32 targets where they fit."""
    source, target = edge_index
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), source.bincount().cumsum(0)])
    kind = torch.int32 if int(target.max()) < 2**31 else torch.int64
    indices = torch.empty(len(target), dtype=kind).copy_(target)  # a single edge's target may be a strided view
    return {f"{key}#indptr": indptr, f"{key}#indices": indices}


def read_digest(path: Source) -> str:
    """Return the content hash in a file's header, which `read_tensors` checks; "" if there is none.

    Files of equal content have equal hashes, although safetensors may write them differently.

    Raises:
        FedGraphError: as `read_tensors`.
    """
    with _opened(path) as file:
        return str(file.metadata().get("digest", ""))


def _digest(packed: dict[str, Tensor], values: str) -> str:
    """Return the SHA-256 of the tensors and values of a file."""
    digest = hashlib.sha256(values.encode())
    for key in sorted(packed):
        tensor = packed[key]
        update_digest(digest, key, tensor.dtype, tensor.shape)
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _dense(shape: Tensor, row: Tensor, col: Tensor, value: Tensor) -> Tensor:
    """Build a matrix [shape] from its entries."""
    sizes = tuple(shape.tolist())
    fits = len(sizes) == 2 and min(sizes) >= 0 and value.is_floating_point() and row.shape == col.shape == value.shape
    if not fits or (row.numel() and (row.min() < 0 or col.min() < 0)):
        raise ValueError(f"matrix {list(sizes)} has inconsistent entries")
    if sizes[0] * sizes[1] * value.element_size() > psutil.virtual_memory().total:
        raise ValueError(f"a matrix {list(sizes)} is larger than this machine's memory")
    dense = torch.zeros(sizes, dtype=value.dtype)
    dense[row.long(), col.long()] = value
    return dense


def _values(header: dict[str, str]) -> dict[str, Any]:
    values = json.loads(header["values"])
    if not isinstance(values, dict):
        raise ValueError("expected a header with keys and values")
    return values


def read_header(path: Source) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Read the tensor shapes and JSON values of a file of `write_tensors`, without reading the tensors.

    Raises:
        FedGraphError: as `read_tensors`.
    """
    with _opened(path) as file:
        shapes = {}
        for key in file.keys():  # noqa: SIM118 (not a dict)
            name, _, role = key.partition("#")
            if role in _INDICES:
                shapes[name] = (2, *file.get_slice(key).get_shape())
            if role in ("", "shape"):
                shapes[name] = tuple(file.get_tensor(key).tolist() if role else file.get_slice(key).get_shape())
        return shapes, _values(file.metadata())


def has_split(path: Path | str) -> bool:
    """Return whether a mask of the graph of a file marks nodes.

    Raises:
        FedGraphError: as `read_tensors`.
    """
    with _opened(path) as file:
        return any(bool(file.get_tensor(mask).any()) for mask in MASKS)


def clients_of(path: Path | str) -> int:
    """Return the number of clients that the graph of a file assigns its nodes to; 0 if it has no assignment.

    Raises:
        FedGraphError: as `read_tensors`.
    """
    with _opened(path) as file:
        group = file.get_tensor("group") if "group" in file.keys() else torch.zeros(0)  # noqa: SIM118 (not a dict)
        return int(group.max()) + 1 if group.numel() else 0


class _Held:
    """Bytes in memory with the interface of an open safetensors file."""

    def __init__(self, content: bytes):
        from safetensors.torch import load

        self.content, self.tensors = content, load(content)

    def metadata(self) -> dict[str, str]:
        end = 8 + int.from_bytes(self.content[:8], "little")
        return dict(json.loads(self.content[8:end]).get("__metadata__", {}))

    def keys(self) -> list[str]:
        return list(self.tensors)

    def get_tensor(self, key: str) -> Tensor:
        return self.tensors[key]

    def get_slice(self, key: str) -> Any:
        return SimpleNamespace(get_shape=lambda: tuple(self.tensors[key].shape))


@contextlib.contextmanager
def _opened(path: Source) -> Iterator[Any]:
    """Open a safetensors file of this format version; report any failure as one error message."""
    from safetensors import SafetensorError, safe_open

    if not (path.whole if isinstance(path, Piece) else Path(path)).is_file():
        raise FedGraphError(f"no such file: {path}; expected one written by `fedgraph-flwr partition` or `import`")
    try:
        opened: Any = _Held(path.read_bytes()) if isinstance(path, Piece) else safe_open(str(path), framework="pt")
        with contextlib.nullcontext(opened) if isinstance(path, Piece) else opened as file:
            version = (file.metadata() or {}).get("format")
            if version not in READABLE:
                raise FedGraphError(
                    f"{path} has format version {version!r}, expected {' or '.join(map(repr, READABLE))}: write it again, or"
                    " install a newer fedgraph-flwr"
                )
            yield file
    except (SafetensorError, OSError, RuntimeError, *MALFORMED) as error:
        raise FedGraphError(f"cannot read {path}, it is truncated or not a safetensors file ({error})") from error
