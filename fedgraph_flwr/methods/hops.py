"""Rows of the L-hop combined adjacency, computed centrally or by clients that each know only their own edges.

    Ã = A + I,   Â = D̃⁻¹ Ã,   Ā = Σ_{l=1}^{L} β_l Â^l                              FedStruct, Eq. (4)
    B_i^k = Ã_k^[i] [Â^[k]]^{l-1}            computed by client k, sent to i        Algorithm 3
    [Â^[i]]^l = D̃_i⁻¹ Σ_k B_i^k,   Ā^[i] = Σ_l β_l [Â^[i]]^l                        Eqs. (45), (46)

A row is a node, its columns are the out-neighbours. Parallel edges count once, and a self-loop in the data is the loop that
A + I adds. Client k knows Ã_k^[i], the edges from i's nodes to its own, as its incoming cut edges. A matrix is CSR up to a share
`DENSE_ABOVE` of filled entries, then dense; a pruned matrix stays CSR. A column of a power depends only on the same column of the
previous power. So all hops are exchanged for one block of columns after another (`blocks`), which keeps messages small.
No formal privacy is claimed: with few hops a message can reveal edges of its sender to the client that it is addressed to.

Letters: n nodes of the whole graph, n_i nodes of client i, b rows of i that touch k, L hops, J combinations of hops, w columns
of a block.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.hops import pattern, row_normalized, with_loops
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to

Array = NDArray[Any]
Matrix: TypeAlias = sp.csr_matrix | Array
"""A CSR matrix or, if well filled, a dense one."""

DENSE_ABOVE = 0.2  # share of filled entries above which a dense matrix is smaller, and its products are faster
HELD = 2**24  # most entries of a power's columns that all clients hold together, 64 MB of float32,
MAX_BLOCKS = 32  # in at most this many blocks
BLOCK = 2048  # rows of a product that are built, and pruned, at once
TIE_DIGITS = 12  # values equal up to this many decimals tie, so that the order of a sum does not decide what is pruned


@dataclass(frozen=True)
class Pruning:
    """Pruning of each hop.

    Attributes:
        keep: p; 0 keeps everything.
        mode: ``per_row`` (the p largest entries of each row), ``per_block`` (the p·n_i largest of each block B_ij^k before
            it is sent, appendix L.2.1) or ``global`` (the p·n largest of the whole matrix, first hop included, as in the
            authors' code).
    """

    keep: int = 0
    mode: str = "per_row"

    def active(self, mode: str) -> bool:
        """Return whether this mode prunes."""
        return self.keep > 0 and self.mode == mode


EXACT = Pruning()


SAMPLE = 64  # nodes whose reach estimates that of all nodes
BYTES = 104  # per CSR entry, while clients of one machine exchange hops
FLIGHT = 4  # copies of an entry on its way between clients of one machine: sealed, relayed, opened


def bytes_held(
    graphs: Sequence[ClientGraph], weights: Array, pruning: Pruning, itemsize: int, handed_on: bool = False
) -> float:
    """Estimate the most bytes that clients of one machine hold while they exchange hops.

    Args:
        graphs: graphs of all clients.
        weights: weights of the hops, [J, L].
        pruning: pruning of each hop.
        itemsize: bytes of a value.
        handed_on: whether all rows are finally sent to the owners of their columns, who keep them.
    """
    n, hops = graphs[0].num_global_nodes, weights.shape[1]
    entries = expected_entries(graphs, hops, pruning.keep)
    if pruning.keep or entries <= DENSE_ABOVE * n**2:
        return BYTES * entries * len(weights)
    parts = blocks(n, hops, pruning)
    width, rows = parts[0].stop, len(weights) * n**2
    crossing = sum(len(np.unique(np.stack([g.cut_out[0].numpy(), g.cut_out_owner.numpy()]), axis=1).T) for g in graphs)
    exchanged = 2 * n * width + FLIGHT * crossing * width
    joined = rows if len(parts) > 1 else 0  # blocks that are joined to rows; their memory is not freed at once
    return itemsize * (rows + max(exchanged + joined, handed_on * (FLIGHT + 1) * rows))


def expected_entries(graphs: Iterable[ClientGraph], hops: int, keep: int = 0) -> float:
    """Estimate the number of entries of Â^L of the whole graph, from the reach of a sample of its nodes.

    Args:
        graphs: graphs of all clients.
        hops: L.
        keep: entries per row after pruning; 0: all.
    """
    ends: list[Array] = []
    for graph in graphs:
        node = graph.node_id.numpy()
        source, target = graph.edge_index.numpy()
        out_source, out_target = graph.cut_out.numpy()
        ends += [np.stack([node[source], node[target]]), np.stack([node[out_source], out_target])]
        n = graph.num_global_nodes
    rows, columns = np.concatenate(ends, axis=1)
    step = with_loops(rows, columns, np.arange(n), (n, n), np.float32)
    some = np.random.default_rng(0).choice(n, size=min(SAMPLE, n), replace=False)
    seen = step[some]
    for _ in range(hops - 1):
        before = seen.nnz
        seen = seen @ step
        seen.data[:] = 1
        if seen.nnz == before:
            break
    reach = seen.nnz / some.size
    return n * (min(reach, keep) if keep else reach)


def blocks(num_nodes: int, hops: int, pruning: Pruning = EXACT) -> list[slice]:
    """Return the blocks of columns for Algorithm 3, from numbers that all clients know; pruning needs whole rows."""
    if hops == 1 or pruning.keep:
        return [slice(0, num_nodes)]
    width = max(HELD // num_nodes, -(-num_nodes // MAX_BLOCKS), 1)
    return [slice(start, min(start + width, num_nodes)) for start in range(0, num_nodes, width)]


def stored(matrix: Matrix) -> Matrix:
    """Return the smaller of the two forms of a matrix; a dense matrix stays dense."""
    if isinstance(matrix, np.ndarray) or matrix.nnz <= DENSE_ABOVE * math.prod(matrix.shape):
        return matrix
    return _dense(matrix)


def joined(parts: Sequence[Matrix]) -> Matrix:
    """Join blocks of columns side by side."""
    if len(parts) == 1:
        return parts[0]
    filled, size = (
        sum(of) for of in zip(*((np.count_nonzero(_values(p)), math.prod(p.shape)) for p in parts), strict=True)
    )
    if filled > DENSE_ABOVE * size:
        return np.hstack([_dense(part) for part in parts])
    return sp.hstack([sp.csr_matrix(part) for part in parts], format="csr")


def filled(matrix: Matrix) -> Array:
    """Return which columns have an entry, bool [w]."""
    if isinstance(matrix, np.ndarray):
        return np.asarray(matrix.any(axis=0))
    return np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0


def nodes_behind(matrix: Matrix, nodes: int) -> Array:
    """Count the nodes with an entry in each column of J stacked combinations: [J·nodes, w] → int64 [w]."""
    parts = [matrix[start : start + nodes] != 0 for start in range(0, max(matrix.shape[0], 1), max(nodes, 1))]
    if isinstance(matrix, np.ndarray):
        return np.asarray(np.logical_or.reduce(parts).sum(axis=0))
    return np.bincount(sum(parts[1:], parts[0]).tocsr().indices, minlength=matrix.shape[1])


def supported(combinations: Sequence[Matrix]) -> tuple[Array, Matrix]:
    """Return the columns of J combinations [N, n] that have an entry, int64 [Q], and the combinations stacked, [J·N, Q]."""
    if any(isinstance(part, np.ndarray) for part in combinations):
        whole = (
            _dense(combinations[0]) if len(combinations) == 1 else np.vstack([_dense(part) for part in combinations])
        )
    else:
        whole = sp.vstack(combinations, format="csr")
    held = filled(whole)
    if not held.all():
        # By rows, as read from a file: on some processors products differ in their last bit with the order in memory.
        whole = np.compress(held, whole, axis=1) if isinstance(whole, np.ndarray) else whole[:, held]
    return np.flatnonzero(held), stored(whole)


def spread(matrix: Matrix, places: Array, columns: int) -> tuple[Array, Matrix]:
    """Return the rows that have an entry, int64 [b], and those rows with column c moved to ``places[c]`` of ``columns``."""
    if isinstance(matrix, np.ndarray):
        met = np.flatnonzero(matrix.any(axis=1))
        wide = np.zeros((met.size, columns), matrix.dtype)
        wide[:, places] = matrix[met]
        return met, wide
    met = np.flatnonzero(np.diff(matrix.indptr))
    kept = matrix[met]
    return met, sp.csr_matrix((kept.data, places[kept.indices], kept.indptr), shape=(met.size, columns))


def parts_of(matrix: Matrix) -> dict[str, Array]:
    """Convert either form to named arrays."""
    if isinstance(matrix, np.ndarray):
        return {"dense": matrix}
    return {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}


def from_parts(parts: Mapping[str, Array], columns: int) -> Matrix:
    """Convert the result of `parts_of` back."""
    if "dense" in parts:
        return parts["dense"]
    shape = (parts["indptr"].size - 1, columns)
    return sp.csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=shape)


def _values(matrix: Matrix) -> Array:
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.data)


def _dense(matrix: Matrix) -> Array:
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


def multiply(left: sp.csr_matrix, right: Matrix, pruning: Pruning = EXACT) -> Matrix:
    """Compute ``left @ right`` in blocks of rows; with per-row pruning each block is pruned before the next is built."""
    if isinstance(right, np.ndarray):
        return left @ right

    def block(start: int) -> sp.csr_matrix:
        rows = left[start : start + BLOCK] @ right
        return top_per_row(rows, pruning.keep) if pruning.active("per_row") else rows

    return sp.vstack([block(start) for start in range(0, max(left.shape[0], 1), BLOCK)], format="csr")


def top_per_row(matrix: sp.csr_matrix, keep: int) -> sp.csr_matrix:
    """Select the ``keep`` largest entries of each row; ties go to the smaller column id."""
    counts = np.diff(matrix.indptr)
    if not counts.size or counts.max() <= keep:
        return matrix
    matrix.sort_indices()
    return _entries(
        matrix, _largest(matrix.data, np.repeat(np.arange(counts.size), counts), np.full(counts.size, keep))
    )


def top_per_block(matrix: sp.csr_matrix, owner: Array, keep: int) -> sp.csr_matrix:
    """Select the ``keep`` largest entries of each block of columns with one owner; ``owner`` is [n]."""
    matrix.sort_indices()
    blocks = owner[matrix.indices]
    return _entries(matrix, _largest(matrix.data, blocks, np.full(int(owner.max()) + 1, keep)))


def spectrum(matrix: sp.csr_matrix) -> tuple[Array, Array]:
    """Return the distinct values of a matrix in ascending order, and how often each occurs, for global pruning."""
    return np.unique(np.round(matrix.data, TIE_DIGITS), return_counts=True)


def top_globally(matrix: sp.csr_matrix, spectra: Sequence[tuple[Array, Array]], index: int, keep: int) -> sp.csr_matrix:
    """Select this client's entries among the ``keep`` largest of all clients; ties go to earlier clients, rows and columns.

    Args:
        matrix: the rows of client number ``index``, [n_i, n].
        spectra: `spectrum` of each client, in client order.
        index: this client's index in ``spectra``.
        keep: p·n.
    """
    values, place = np.unique(np.concatenate([v for v, _ in spectra]), return_inverse=True)
    counts = np.zeros((len(spectra), values.size), np.int64)
    client = np.repeat(np.arange(len(spectra)), [v.size for v, _ in spectra])
    np.add.at(counts, (client, place), np.concatenate([c for _, c in spectra]))
    at_least = counts.sum(0)[::-1].cumsum()[::-1]  # entries of value >= values[t]
    if at_least[0] <= keep:
        return matrix
    bound = int(np.flatnonzero(at_least >= keep)[-1])
    spare = keep - (at_least[bound + 1] if bound + 1 < values.size else 0)
    ties = np.clip(spare - counts[:index, bound].sum(), 0, counts[index, bound])
    matrix.sort_indices()
    rounded = np.round(matrix.data, TIE_DIGITS)
    tied = rounded == values[bound]
    return _entries(matrix, (rounded > values[bound]) | (tied & (tied.cumsum() <= ties)))


def _largest(data: Array, group: Array, keep: Array) -> Array:
    """Return a mask of the ``keep[g]`` largest values of each group g; ties go to the earlier value."""
    order = np.lexsort((-np.round(data, TIE_DIGITS), group))
    start = np.concatenate([[0], np.bincount(group, minlength=keep.size).cumsum()[:-1]])
    kept = np.zeros(data.size, bool)
    sorted_group = group[order]
    kept[order[np.arange(data.size) - start[sorted_group] < keep[sorted_group]]] = True
    return kept


def _entries(matrix: sp.csr_matrix, kept: Array) -> sp.csr_matrix:
    before = np.concatenate([[0], kept.cumsum()])
    return sp.csr_matrix((matrix.data[kept], matrix.indices[kept], before[matrix.indptr]), shape=matrix.shape)


def _plus(left: Matrix, right: Matrix) -> Matrix:
    if sp.issparse(left) and sp.issparse(right):
        return left + right
    return _dense(right) if not isinstance(left, np.ndarray) and not left.nnz else _dense(left) + _dense(right)


@dataclass(frozen=True)
class RowMessage:
    """B_i^k without its empty rows.

    Attributes:
        nodes: global ids of the rows: nodes of client i with edges to client k's nodes, [b].
        rows: [b, w].
    """

    nodes: Array
    rows: Matrix

    def arrays(self) -> dict[str, Array]:
        """Return the message as named arrays, with ids in 32 bits."""
        nodes, rows = {"nodes": self.nodes.astype(np.int32)}, self.rows
        if isinstance(rows, np.ndarray):
            return nodes | {"dense": rows}
        return nodes | {
            "starts": rows.indptr.astype(np.int32),
            "columns": rows.indices.astype(np.int32),
            "values": rows.data,
        }

    @staticmethod
    def fields(limit: int, columns: int, dtype: str) -> dict[str, ArrayField]:
        """Return the fields of `arrays`; ``limit`` bounds the rows and their ids, ``dtype`` is that of the values."""
        rows, entries = up_to(limit), up_to(LARGEST)
        return {
            "nodes": ArrayField((rows,), "int32", 0, limit - 1),
            "starts": ArrayField((up_to(limit + 1),), "int32", 0, LARGEST, optional=True),
            "columns": ArrayField((entries,), "int32", 0, columns - 1, optional=True),
            "values": ArrayField((entries,), dtype, optional=True),
            "dense": ArrayField((rows, columns), dtype, optional=True),
        }

    @staticmethod
    def of(arrays: Mapping[str, Array], columns: int) -> "RowMessage":
        """Build a message from `arrays`; ``columns`` is w.

        Raises:
            FedGraphError: they are not rows of a matrix.
        """
        nodes = arrays["nodes"]
        if arrays.keys() == {"nodes", "dense"} and len(arrays["dense"]) == nodes.size:
            return RowMessage(nodes, arrays["dense"])
        if arrays.keys() == {"nodes", "starts", "columns", "values"}:
            starts, entries = arrays["starts"], {arrays["values"].size, arrays["columns"].size}
            ascends = starts.size == nodes.size + 1 and not starts[0] and (np.diff(starts) >= 0).all()
            if ascends and entries == {starts[-1]}:
                parts = (arrays["values"], arrays["columns"], starts)
                return RowMessage(nodes, sp.csr_matrix(parts, shape=(nodes.size, columns)))
        raise FedGraphError(
            f"the message of another client does not hold {nodes.size} rows of a matrix, got arrays {', '.join(sorted(arrays))}"
        )


class HopExchange:
    """Client i's side of Algorithm 3: `messages` for one hop, `receive` those of all clients, until ``hop == hops``.

    Attributes:
        hop: l, the power that ``current`` holds.
        current: [Â^[i]]^l, [n_i, w].
        totals: the J combinations so far, each [n_i, w].
    """

    def __init__(
        self,
        graph: ClientGraph,
        weights: Array,
        pruning: Pruning = EXACT,
        owner: Array | None = None,
        max_entries: int = 0,
        dtype: Any = np.float64,
        columns: slice | None = None,
    ):
        """Start from hop 1, the client's own adjacency.

        Args:
            graph: the client's graph with its cut edges.
            weights: weights of the hops, [J, L] (`hop_weights`).
            pruning: pruning of each hop.
            owner: client of each node [n], known to all; required by ``per_block``.
            max_entries: refuse a hop with more entries, and a block with more than its share of them; 0: no limit.
            dtype: dtype of the values.
            columns: the columns to exchange, one of `blocks`; None: all.
        """
        self.weights, self.pruning, self.owner, self.max_entries = weights, pruning, owner, max_entries
        self.client, self.nodes = graph.client, graph.node_id.numpy()
        n, count = graph.num_global_nodes, graph.num_nodes
        self.num_nodes = n
        source, target = graph.edge_index.numpy()
        out_source, out_target = graph.cut_out.numpy()
        sources, targets = np.concatenate([source, out_source]), np.concatenate([self.nodes[target], out_target])
        edges = with_loops(sources, targets, self.nodes, (count, n), dtype)
        self.scale = 1 / np.asarray(edges.sum(axis=1)).ravel()  # D̃_i⁻¹
        self.inner = edges[:, self.nodes]  # Ã_i^[i]
        self.incoming = {peer: _incoming(graph, peer, dtype) for peer in np.unique(graph.cut_in_owner.numpy()).tolist()}
        self.expected = set(graph.cut_out_owner.tolist())
        first = row_normalized(edges)
        self.hop, self.current = 1, first if columns in (None, slice(0, n)) else first[:, columns]
        self.totals: list[Matrix] = [sp.csr_matrix(self.current.shape, dtype=dtype)] * len(weights)
        if not pruning.active("global"):
            self.keep_hop()

    @property
    def hops(self) -> int:
        """L."""
        return int(self.weights.shape[1])

    def keep_hop(self, spectra: Sequence[tuple[Array, Array]] = ()) -> None:
        """Prune the current hop and add it to the combinations, Eq. (46).

        Args:
            spectra: every client's `spectrum` of this hop; required by ``global``, which keeps nothing before it knows them.
        """
        keep = self.pruning.keep
        if self.pruning.active("global"):
            self.current = top_globally(self.current, spectra, self.client, keep * self.current.shape[1])
        elif self.pruning.active("per_row"):
            self.current = top_per_row(self.current, keep)
        if not keep:
            self.current = stored(self.current)
        columns, size = self.current.shape[1], self.current.size  # size of CSR: its entries
        if 0 < self.max_entries < (entries := size * self.num_nodes // columns):
            what = f"client {self.client} holds {entries} entries of hop {self.hop}"
            raise FedGraphError(f"{what}, more than {self.max_entries}: set strategy.prune (30 in the paper)")
        pairs = zip(self.totals, self.weights[:, self.hop - 1], strict=True)
        self.totals = [_plus(total, float(w) * self.current) if w else total for total, w in pairs]

    def messages(self) -> dict[int, RowMessage]:
        """Return B_i^k = Ã_k^[i] [Â^[k]]^l for every client i with edges into this client k."""
        return {
            peer: RowMessage(nodes, self._block_pruned(multiply(edges, self.current), peer))
            for peer, (nodes, edges) in self.incoming.items()
        }

    def receive(self, messages: Mapping[int, RowMessage]) -> None:
        """Take B_i^k of the other clients: [Â^[i]]^{l+1} = D̃_i⁻¹ Σ_k B_i^k, Eq. (45).

        Raises:
            FedGraphError: a message is missing, comes from a client without edges to this one, or holds foreign rows.
        """
        if set(messages) != self.expected:
            raise FedGraphError(
                f"client {self.client} expects rows from clients {sorted(self.expected)}, got {sorted(messages)}: their graphs"
                " differ in the edges between them; link or import them again"
            )
        for peer, message in messages.items():
            nodes = message.nodes
            known = (np.diff(nodes) > 0).all() and np.isin(nodes, self.nodes).all()
            if message.rows.shape[1] != self.current.shape[1] or not known:
                raise FedGraphError(f"client {peer} sent client {self.client} rows of nodes that are not its own")
        held = [self.current, *(message.rows for message in messages.values())]
        self.current = self._sparse_sum(messages) if all(map(sp.issparse, held)) else self._dense_sum(messages)
        self.hop += 1
        if not self.pruning.active("global"):
            self.keep_hop()

    def _dense_sum(self, messages: Mapping[int, RowMessage]) -> Array:
        """Compute Eq. (45) if any of the parts is dense."""
        total = _dense(self.inner @ self.current)
        for peer in sorted(messages):
            total[np.searchsorted(self.nodes, messages[peer].nodes)] += _dense(messages[peer].rows)
        total *= self.scale[:, None]
        return total

    def _sparse_sum(self, messages: Mapping[int, RowMessage]) -> sp.csr_matrix:
        """Compute Eq. (45) in CSR, pruned."""
        count = self.nodes.size
        parts, selectors = [self.current], [self.inner]
        if self.pruning.active("per_block"):
            parts = [self._block_pruned(multiply(self.inner, self.current), self.client)]
            selectors = [sp.identity(count, self.inner.dtype, format="csr")]
        for peer in sorted(messages):
            nodes, rows = messages[peer].nodes, messages[peer].rows
            place = np.searchsorted(self.nodes, nodes)
            ones = np.ones(nodes.size, self.inner.dtype)
            selectors.append(sp.csr_matrix((ones, (place, np.arange(nodes.size))), shape=(count, nodes.size)))
            parts.append(rows)
        left = sp.diags(self.scale) @ sp.hstack(selectors, format="csr")
        return multiply(sp.csr_matrix(left), sp.vstack(parts, format="csr"), self.pruning)

    def state(self) -> dict[str, Array]:
        """Return the state between two messages to this client, as named arrays."""
        arrays = {"hop": np.array([self.hop])}
        for name, matrix in [("current", self.current), *((f"total{j}", total) for j, total in enumerate(self.totals))]:
            arrays |= {f"{name}.{part}": array for part, array in parts_of(matrix).items()}
        return arrays

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""

        def matrix(name: str) -> Matrix:
            parts = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
            return from_parts(parts, columns)

        columns = self.current.shape[1]
        self.hop, self.current = int(arrays["hop"][0]), matrix("current")
        self.totals = [matrix(f"total{j}") for j in range(len(self.weights))]

    def _block_pruned(self, rows: Matrix, receiver: int) -> Matrix:
        if not self.pruning.active("per_block"):
            return rows
        if self.owner is None:
            raise FedGraphError("strategy.prune_mode=per_block needs the owner of every node: set per_row or global")
        return top_per_block(rows, self.owner, self.pruning.keep * int((self.owner == receiver).sum()))


def _incoming(graph: ClientGraph, peer: int, dtype: Any) -> tuple[Array, sp.csr_matrix]:
    """Return nodes of ``peer`` with edges into this client [b], and those edges: Ã_k^[i] without empty rows [b, n_k]."""
    target, source = graph.cut_in[:, graph.cut_in_owner == peer].numpy()
    nodes, row = np.unique(source, return_inverse=True)
    return nodes, pattern(row, target, (nodes.size, graph.num_nodes), dtype)
