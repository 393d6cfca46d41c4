"""Partition of a mapped graph into client files in bounded memory, with progress and resumption.

Memory grows with the nodes (about 30 bytes each), not with edges or features. Edges are read block by block, and appended to
one file per client and kind: kept edges, outgoing and incoming cut edges. Then each client's file is made from them. A stopped
partition resumes from the last saved block or client. The files have the tensors that `clients.make` gives in memory.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import require_space, write_bytes
from fedgraph_flwr.data.graph import FORMAT_VERSION, MASKS, Graph
from fedgraph_flwr.data.mapped import Blocks, write_blocks
from fedgraph_flwr.data.split import grouping_seed, shell, split_graph
from fedgraph_flwr.errors import MALFORMED, FedGraphError
from fedgraph_flwr.partition.clients import assign, split_client, splits_whole
from fedgraph_flwr.partition.stream import blocks

ROWS_AT_ONCE = 1 << 16
SAVED_AFTER = 20.0
"""Seconds between two saved states."""

PROGRESS = "progress.json"


def applies(graph: Any, cfg: RunConfig) -> bool:
    """Return whether a graph is partitioned out of core: mapped, without targets or data of edges, into disjoint clients."""
    return (
        isinstance(graph, Graph)
        and graph.compressed is not None
        and not graph.has_edge_data
        and not graph.num_targets
        and not cfg.dataset.edge_flip
        and cfg.partition.name != "overlapping"
        and not cfg.partition.share
        and cfg.split.kind != "temporal"
    )


def make_files(graph: Graph, cfg: RunConfig, folder: Path) -> list[int]:
    """Write the client files of a partition into a folder, and return the nodes of each client.

    Args:
        graph: as `applies`.
        cfg: the configuration.
        folder: keeps what is done until it is complete; call again to resume.

    Raises:
        FedGraphError: as `clients.make`; or the disk is full, after which the next call resumes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*folder.glob(".*"), folder / "parts.tmp.npz"]:  # that a killed process was writing
            path.unlink(missing_ok=True)
        parts = _parts(graph, cfg, folder)
        _check_space(graph, folder)
        spool = Spool(graph, parts, folder)
        spool.fill()
        if splits_whole(cfg):
            graph = replace_masks(graph, split_graph(shell(graph), cfg.split, cfg.seed))
        for index in range(len(parts)):
            path = folder / f"client_{index:04d}.safetensors"
            if not path.is_file():
                _write_client(graph, parts, index, spool, cfg, path)
                _say(f"client {index + 1} of {len(parts)}: {path.stat().st_size / 1e6:.0f} MB")
        spool.delete()
    except OSError as error:
        raise FedGraphError(
            f"cannot write {folder}: {error.strerror or error}; what is done is kept, run the same command again to resume"
        ) from error
    return [len(part) for part in parts]


def _say(text: str) -> None:
    print(f"partition: {text}", file=sys.stderr, flush=True)


def _parts(graph: Graph, cfg: RunConfig, folder: Path) -> list[Tensor]:
    """Return the nodes of each client, stored for resumption."""
    path = folder / "parts.npz"
    if path.is_file():
        with np.load(path) as archive:
            return [torch.from_numpy(archive[f"arr_{i}"].astype(np.int64)) for i in range(len(archive.files))]
    parts = assign(graph, cfg.partition, cfg.num_clients, grouping_seed(cfg.split, cfg.seed))
    if sum(map(len, parts)) != graph.num_nodes:
        raise FedGraphError(
            f"partition={cfg.partition.name} gives a node to several clients or to none, and the graph is too big to be"
            " partitioned in memory: use a partition into disjoint clients"
        )
    kind = np.int32 if graph.num_nodes < 2**31 else np.int64
    temporary = folder / "parts.tmp.npz"
    np.savez(temporary, *(part.numpy().astype(kind) for part in parts))
    os.replace(temporary, path)
    return parts


def _check_space(graph: Graph, folder: Path) -> None:
    """Check that the disk can hold what is missing: kept edges twice, features once."""
    present = sum(path.stat().st_size for path in folder.iterdir())
    row = graph.x.element_size() * graph.num_features + 64
    require_space(folder, max(graph.num_nodes * row + 8 * graph.num_edges - present, 0), f"a partition in {folder}")


class Spool:
    """Edges of each client on disk, in their order.

    Args:
        graph: the whole graph.
        parts: nodes of each client.
        folder: where the files are.

    Attributes:
        degree: kept edges of each node's row, int32 [N]; complete after `fill`.
    """

    def __init__(self, graph: Graph, parts: list[Tensor], folder: Path):
        self.folder, self.clients = folder, len(parts)
        self.indptr, self.indices = graph.rows()
        edges = graph.stored_edges
        self.by_target = edges is not None and edges.rows == "target"
        self.symmetric = edges is not None and edges.rows == "both"
        n = graph.num_nodes
        self.owner = np.empty(n, np.int16 if self.clients < 2**15 else np.int32)
        self.place = np.empty(n, np.int32)
        for index, part in enumerate(parts):
            self.owner[part.numpy()] = index
            self.place[part.numpy()] = np.arange(len(part), dtype=np.int32)

    def path(self, kind: str, client: int) -> Path:
        """Return the file of a kind of edges of a client."""
        return self.folder / f"spool_{kind}_{client:04d}"

    @property
    def degree(self) -> np.ndarray:
        """Kept edges of each row, read from disk."""
        return np.fromfile(self.path("degree", 0), np.int32)

    def fill(self) -> None:
        """Read all edges that are not on disk yet."""
        done = self._resume()
        saved, shown, rows = time.monotonic(), done, len(self.indptr) - 1
        for first, end in blocks(self.indptr):
            if end <= done:
                continue
            self._add(first, end)
            if time.monotonic() - saved > SAVED_AFTER or end == rows:
                self._save(end)
                saved = time.monotonic()
            if end - shown >= rows / 10:
                _say(f"{self.indptr[end] / max(len(self.indices), 1):.0%} of {len(self.indices):,} edges read")
                shown = end

    def delete(self) -> None:
        """Delete what only a resumption needs."""
        for path in [*self.folder.glob("spool_*"), self.folder / PROGRESS, self.folder / "parts.npz"]:
            path.unlink(missing_ok=True)

    def _add(self, first: int, end: int) -> None:
        """Append the edges of some rows."""
        far = self.indices[self.indptr[first] : self.indptr[end]].astype(np.int64)
        near = np.repeat(np.arange(first, end), np.diff(self.indptr[first : end + 1]))
        kept = self.owner[near] == self.owner[far]
        self._append("degree", 0, np.bincount(near[kept] - first, minlength=end - first).astype(np.int32))
        self._by_client("kept", self.owner[near[kept]], self.place[far[kept]])
        source, target = (far[~kept], near[~kept]) if self.by_target else (near[~kept], far[~kept])
        for kind, local_ends, other in (("out", source, target), ("in", target, source)):
            self._by_client(
                kind, self.owner[local_ends], np.stack([self.place[local_ends], other, self.owner[other]], axis=1)
            )

    def _by_client(self, kind: str, owner: np.ndarray, rows: np.ndarray) -> None:
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=self.clients)
        starts = np.cumsum(counts) - counts
        for client in np.flatnonzero(counts):
            self._append(kind, int(client), rows[order[starts[client] : starts[client] + counts[client]]])

    def _append(self, kind: str, client: int, rows: np.ndarray) -> None:
        with self.path(kind, client).open("ab") as file:
            file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    def _save(self, end: int) -> None:
        """Store that the rows before ``end`` are on disk."""
        sizes = {}
        for path in sorted(self.folder.glob("spool_*")):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[path.name] = path.stat().st_size
        write_bytes(self.folder / PROGRESS, json.dumps({"rows": end, "sizes": sizes}).encode())

    def _resume(self) -> int:
        """Cut the files back to the last stored state, and return the rows before it."""
        path = self.folder / PROGRESS
        state: dict[str, Any] = {"rows": 0, "sizes": {}}
        with contextlib.suppress(OSError, *MALFORMED):  # a damaged file: all rows again
            stored = json.loads(path.read_text())
            state = {"rows": int(stored["rows"]), "sizes": {str(k): int(v) for k, v in stored["sizes"].items()}}
            if not 0 <= state["rows"] < len(self.indptr) or min(state["sizes"].values(), default=0) < 0:
                state = {"rows": 0, "sizes": {}}
        for spool in self.folder.glob("spool_*"):
            if spool.name in state["sizes"]:
                os.truncate(spool, state["sizes"][spool.name])
            else:
                spool.unlink()
        if state["rows"]:
            _say(f"resumed after {state['rows']:,} of {len(self.indptr) - 1:,} nodes")
        return int(state["rows"])


def replace_masks(graph: Graph, masked: Graph) -> Graph:
    """Return a graph with the masks of another, its edges still compressed."""
    clone = object.__new__(type(graph))
    vars(clone).update(vars(graph))
    vars(clone).update({name: getattr(masked, name) for name in MASKS})
    return clone


def _write_client(graph: Graph, parts: list[Tensor], index: int, spool: Spool, cfg: RunConfig, path: Path) -> None:
    """Write one client's file."""
    nodes = parts[index]
    values: dict[str, Any] = {"client": index, "num_clients": len(parts), "num_global_nodes": graph.num_nodes}
    client = split_client(shell(graph, nodes, **values), cfg)
    role = "in_" if spool.by_target else ""
    degree = spool.degree[nodes.numpy()].astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    kept = np.memmap(spool.path("kept", index), np.int32, "r") if indptr[-1] else np.empty(0, np.int32)
    tensors: dict[str, Tensor | Blocks] = {
        "x": _rows(graph.x, nodes),
        **{name: getattr(client, name) for name in ("y", *MASKS)},
        "node_id": nodes,
        **_cut(spool, index, "out"),
        **_cut(spool, index, "in"),
        f"edge_index#{role}indptr": torch.from_numpy(indptr),
        f"edge_index#{role}indices": Blocks(torch.int32, (len(kept),), lambda: _split(kept)),
    }
    if spool.symmetric:
        tensors["edge_index#symmetric"] = torch.ones(1, dtype=torch.uint8)
    for name in ("ids", "graph_id"):
        if (held := getattr(graph, name)).numel():
            tensors[name] = _rows(held, nodes)
    values |= {"kind": "ClientGraph", "name": graph.name, "schema": graph.schema, "num_classes": graph.num_classes}
    write_blocks(path, tensors, json.dumps(values), str(FORMAT_VERSION))


def _rows(tensor: Tensor, nodes: Tensor) -> Blocks:
    """Return rows of a mapped tensor, read block by block."""
    return Blocks(
        tensor.dtype,
        (len(nodes), *tensor.shape[1:]),
        lambda: (tensor[part].numpy() for part in nodes.split(ROWS_AT_ONCE)),
    )


def _split(array: np.ndarray) -> Iterator[np.ndarray]:
    return (array[start : start + (1 << 22)] for start in range(0, len(array), 1 << 22))


def _cut(spool: Spool, client: int, kind: str) -> dict[str, Tensor | Blocks]:
    """Return the cut edges of a client, and their owners."""
    path = spool.path(kind, client)
    size = path.stat().st_size if path.is_file() else 0
    rows = np.memmap(path, np.int64, "r").reshape(-1, 3) if size else np.empty((0, 3), np.int64)
    ends = Blocks(torch.int64, (2, len(rows)), lambda: itertools.chain(_split(rows[:, 0]), _split(rows[:, 1])))
    return {f"cut_{kind}": ends, f"cut_{kind}_owner": Blocks(torch.int64, (len(rows),), lambda: _split(rows[:, 2]))}
