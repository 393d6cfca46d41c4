"""Heterogeneous graphs: typed nodes and typed edges, one labelled node type, and their file format.

A type schema lists the node types and the edge types, each a triple (source type, relation, target type). A graph may list a
type without holding any node or edge of it. Clients that share a schema list its types in the same order. Clients with
private schemas list only their types.

Letters: A node types, R edge types, N_a nodes of type a, N = Σ_a N_a, E_r edges of type r. *Flat* numbering concatenates the
nodes of all types in the order of the schema.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.graph import (
    MASKS,
    ClientGraph,
    Graph,
    Source,
    check_client_fields,
    check_dtypes,
    edge_tensors,
    masks_of,
    read_tensors,
    write_tensors,
)
from fedgraph_flwr.errors import MALFORMED, FedGraphError, check_names, first_line

EdgeType = tuple[str, str, str]
REVERSE = "rev_"


def check_types(data: Any, where: str) -> None:
    """As `check_dtypes`, of all types of a ``HeteroData``.

    Raises:
        FedGraphError: also, a node type has no count, or an edge type no ends.
    """
    for kind in data.node_types:
        named = f"{where}, '{kind}'"
        check_dtypes(data[kind], named)
        with warnings.catch_warnings(action="ignore"):  # PyG's, which names the attribute alone
            count = data[kind].num_nodes
        if count is None:
            raise FedGraphError(f"{named}: the number of nodes is unknown: set x or num_nodes of this type")
    for edge in data.edge_types:
        named = f"{where}, '{':'.join(edge)}'"
        check_dtypes(data[edge], named)
        if "edge_index" not in data[edge]:
            none = "torch.zeros(2, 0, dtype=torch.int64) if it has no edges"
            raise FedGraphError(f"{named}: edge_index is missing: set it, {none}, or delete this type")


@dataclass
class HeteroGraph:
    """Heterogeneous graph with labels on the nodes of one type.

    Attributes:
        counts: N_a by node type, in the order of the schema.
        edges: int64 [2, E_r] by edge type; row 0 numbers nodes of the source type, row 1 of the target type.
        target: the node type with labels.
        y: labels of its nodes, int64 [N_target], -1 where unknown.
        train_mask: bool [N_target]; likewise ``val_mask`` and ``test_mask``.
        num_classes: C, over the whole dataset.
        x: features float32 [N_a, F_a] of the node types with features.
        name: the dataset's name.
        schema: schema of an imported graph's features and classes (`schema.stored`); empty for others.
        by_name: whether edge types with the same relation name share weights, whatever types they join.
        ids: ids of the target nodes, as in `Graph`, uint8 [N_target, width].
        edge_attr: features float32 [E_r, D_r] of the edge types with features. Parallel edges of such a type stay separate.
    """

    counts: dict[str, int]
    edges: dict[EdgeType, Tensor]
    target: str
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    x: dict[str, Tensor] = field(default_factory=dict)
    name: str = ""
    schema: dict[str, Any] = field(default_factory=dict)
    by_name: bool = False
    ids: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.uint8))
    edge_attr: dict[EdgeType, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names([self.target], self.counts, "target node type", self.name)
        for source, relation, target in self.edges:
            check_names((source, target), self.counts, f"node type of the edges '{relation}'", self.name)
        check_names(map(":".join, self.edge_attr), map(":".join, self.edges), "edge type of edge_attr", self.name)

    @property
    def num_features(self) -> list[int]:
        """Sizes that determine a model's weight shapes: A, number of edge kinds, then F_a of every node type (0: no features).

        If edges have features, D_r of every edge type follows.
        """
        widths = [self.x[a].size(1) if a in self.x else 0 for a in self.counts]
        of_edges = [self.edge_attr[r].size(1) if r in self.edge_attr else 0 for r in self.edges]
        kinds = int(self.edge_kinds.max(initial=-1)) + 1
        return [len(self.counts), kinds, *widths, *(of_edges if any(of_edges) else [])]

    @property
    def labelled(self) -> Tensor:
        """Nodes of the target type with a label, bool [N_target]."""
        return self.y >= 0

    @property
    def num_edge_features(self) -> int:
        """0: `num_features` has the number of each edge type."""
        return 0

    def until(self, stage: int) -> Self:
        """Return the graph itself: every stage reads all typed edges."""
        return self

    @property
    def edge_kinds(self) -> np.ndarray:
        """Kind of each edge type, int64 [R], in the order of the schema; with ``by_name``, one kind per relation name."""
        keys = [name if self.by_name else (a, name, b) for a, name, b in self.edges]
        place = {key: kind for kind, key in enumerate(dict.fromkeys(keys))}
        return np.array([place[key] for key in keys], np.int64)

    @property
    def num_nodes(self) -> int:
        """N, over all types."""
        return sum(self.counts.values())

    @property
    def num_edges(self) -> int:
        """E, over all types."""
        return sum(index.size(1) for index in self.edges.values())

    def offsets(self) -> np.ndarray:
        """Return the flat number of the first node of each type, then N: [A + 1]."""
        return np.concatenate([[0], np.cumsum(list(self.counts.values()))]).astype(np.int64)

    def with_reverse(self) -> Self:
        """Return the graph with the reverse of every edge type added, including types that join a node type to itself."""
        reverse = {(b, REVERSE + name, a): index.flip(0) for (a, name, b), index in self.edges.items()}
        if twice := reverse.keys() & self.edges.keys():
            raise FedGraphError(f"{self.name} already has the reverse edge type {sorted(twice)[0]}")
        attr = {(b, REVERSE + name, a): rows.clone() for (a, name, b), rows in self.edge_attr.items()}
        return replace(self, edges={**self.edges, **reverse}, edge_attr={**self.edge_attr, **attr})

    def both_ways(self) -> Self:
        """Return `with_reverse`, with its edge types in alphabetical order, as clients' files have them."""
        both = self.with_reverse()
        return both.on_schema(list(both.counts), sorted(both.edges))

    def without_reverse(self) -> Self:
        """Return the graph without edge types that are exactly the reverse of another one.

        Those that `with_reverse` or PyG's ``ToUndirected`` add go, and others without features between two node types.
        """
        kept: list[EdgeType] = []
        for edge in sorted(self.edges, key=lambda edge: edge[1].startswith(REVERSE)):
            if not any(self._is_reverse(edge, other) for other in kept):
                kept.append(edge)
        return self._of_types(self.counts, {edge: index for edge, index in self.edges.items() if edge in kept})

    def _is_reverse(self, edge: EdgeType, other: EdgeType) -> bool:
        """Return whether an edge type is exactly the reverse of another one, and may go."""
        (source, name, target), attr = edge, self.edge_attr.get(edge)
        added = name == REVERSE + other[1]
        if other[::2] != (target, source) or not (added or (attr is None and source != target)):
            return False
        pair = [index[0] * self.counts[source] + index[1] for index in (self.edges[edge].flip(0), self.edges[other])]
        if attr is None:
            return torch.equal(*(codes.sort().values for codes in pair))
        return other in self.edge_attr and torch.equal(*pair) and torch.equal(attr, self.edge_attr[other])

    def on_schema(self, node_types: list[str], edge_types: list[EdgeType]) -> Self:
        """Return the graph with its types in the given order; missing types become empty."""
        none = torch.zeros(2, 0, dtype=torch.int64)
        counts = {a: self.counts.get(a, 0) for a in node_types}
        return self._of_types(counts, {r: self.edges.get(r, none) for r in edge_types})

    def _of_types(self, counts: dict[str, int], edges: dict[EdgeType, Tensor]) -> Self:
        """Return the graph with these types of nodes and edges, and the features of these edges."""
        attr = {r: self.edge_attr[r] for r in edges if r in self.edge_attr}
        return replace(self, counts=counts, edges=edges, edge_attr=attr)

    @classmethod
    def from_pyg(cls, data: Any, target: str, num_classes: int, name: str = "") -> "HeteroGraph":
        """Convert a PyG ``HeteroData``; missing masks become all False."""
        where = name or "the HeteroData"
        check_types(data, where)
        of_edges = {r: edge_tensors(data[r], f"{where}, '{':'.join(r)}'", ["edge_attr"]) for r in data.edge_types}
        return HeteroGraph(
            counts={a: int(data[a].num_nodes) for a in data.node_types},
            edges={r: data[r].edge_index.to(torch.int64) for r in data.edge_types},
            target=target,
            y=data[target].y.view(-1).to(torch.int64),
            **masks_of(data[target]),
            num_classes=num_classes,
            x={a: data[a].x.to(torch.float32) for a in data.node_types if getattr(data[a], "x", None) is not None},
            name=name,
            edge_attr={r: tensors["edge_attr"] for r, tensors in of_edges.items() if tensors},
        )

    def to_pyg(self) -> Any:
        """Convert to a PyG ``HeteroData`` with the same tensors."""
        from torch_geometric.data import HeteroData

        data = HeteroData()
        for a, count in self.counts.items():
            data[a].num_nodes = count
        for a, x in self.x.items():
            data[a].x = x
        for r, index in self.edges.items():
            data[r].edge_index = index
        for r, rows in self.edge_attr.items():
            data[r].edge_attr = rows
        for key in ("y", *MASKS):
            data[self.target][key] = getattr(self, key)
        for a, ids in getattr(self, "node_id", {}).items():
            data[a].node_id = ids
        return data

    def save(self, path: Path | str | BinaryIO) -> None:
        """Write one file atomically: tensors by type index, names and counts as JSON in its header."""
        tensors = {key: getattr(self, key) for key in ("y", *MASKS, "ids", "part") if hasattr(self, key)}
        tensors |= {f"edges.{i}": index for i, index in enumerate(self.edges.values())}
        for key, kinds in self._by_type(self.counts, self.edges):
            held = getattr(self, key, {})
            tensors |= {f"{key}.{i}": held[kind] for i, kind in enumerate(kinds) if kind in held}
        values = {"node_types": list(self.counts.items()), "edge_types": list(self.edges)}
        more = ("target", "num_classes", "name", "schema", "by_name", "client", "num_clients")
        values |= {key: getattr(self, key) for key in more if hasattr(self, key)}
        write_tensors(path, tensors, values | {"kind": type(self).__name__})

    @staticmethod
    def _by_type(counts: Iterable[str], edges: Iterable[EdgeType]) -> list[tuple[str, Iterable[Any]]]:
        """Return the names of tensors that some types have, each with the types."""
        return [("x", counts), ("node_id", counts), ("edge_attr", edges)]

    @classmethod
    def load(cls, path: Source) -> Self:
        """Read a file of `save`.

        Raises:
            FedGraphError: the file is missing, truncated, has another version, or holds another kind of graph.
        """
        return cls.unpack(path, *read_tensors(path))

    @classmethod
    def unpack(cls, path: Source, tensors: dict[str, Tensor], values: dict[str, Any]) -> Self:
        """Build the graph from the tensors and values of the file ``path``."""
        kind = values.pop("kind", None)
        if kind != cls.__name__:
            raise FedGraphError(f"{path} holds a {kind}, expected a {cls.__name__}")
        check_client_fields(kind, values, str(path))
        given: dict[str, Any] = {**tensors, **values}
        counts: dict[str, int] = dict(given.pop("node_types"))
        types: list[EdgeType] = [(a, relation, b) for a, relation, b in given.pop("edge_types")]
        given["edges"] = {r: given.pop(f"edges.{i}") for i, r in enumerate(types)}
        for key, kinds in cls._by_type(counts, types):
            of_type = {kind: given.pop(f"{key}.{i}") for i, kind in enumerate(kinds) if f"{key}.{i}" in given}
            if of_type:
                given[key] = of_type
        return cls(counts=counts, **given)


@dataclass
class HeteroClientGraph(HeteroGraph):
    """Private heterogeneous graph of one client. Several clients may hold a copy of the same node.

    Attributes:
        node_id: by node type, numbers of its nodes within the type in the whole graph, int64 [N_a].
        client: index of this client, 0..M-1.
        num_clients: M.
        part: always empty: the pooled graph is scored as a whole, because a node may belong to several clients.
    """

    node_id: dict[str, Tensor] = field(default_factory=dict)
    client: int = 0
    num_clients: int = 1
    part: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


_KINDS: dict[str, type[Graph] | type[HeteroGraph]] = {
    cls.__name__: cls for cls in (Graph, ClientGraph, HeteroGraph, HeteroClientGraph)
}


def load_graph(path: Source) -> Graph | HeteroGraph:
    """Read a graph of any kind from a file."""
    tensors, values = read_tensors(path)
    if not isinstance(values.get("kind"), str) or values["kind"] not in _KINDS:
        raise FedGraphError(f"{path} holds a {values.get('kind')}, expected one of: {', '.join(_KINDS)}")
    try:
        return _KINDS[values["kind"]].unpack(path, tensors, values)
    except MALFORMED as error:
        raise FedGraphError(
            f"{path} does not hold a valid {values.get('kind', 'graph')} ({first_line(error)}): write the file again"
        ) from error
