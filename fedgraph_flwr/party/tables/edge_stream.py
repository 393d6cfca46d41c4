"""Edges of a table that is too big for memory: read in chunks, sorted by source on disk, kept as a memory map."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.data.files import require_space
from fedgraph_flwr.data.mapped import CompressedEdges, is_mapped
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.edges import report_repeated
from fedgraph_flwr.party.tables.reading import read_chunks
from fedgraph_flwr.party.tables.roles import Columns

ROWS_AT_ONCE = 1 << 20

BUCKET_EDGES = 1 << 24
"""Edges that are sorted at once, about."""


def is_big(path: Path | str) -> bool:
    """Return whether a table is so big that its edges are read in chunks."""
    return Path(path).is_file() and is_mapped(path)


def read_edges(path: Path | str, columns: Columns, ids: Any, undirected: bool, treatment: Any) -> CompressedEdges:
    """Return the distinct edges of a table as CSR by source, with both directions if ``undirected``.

    The same edges as `edges.arranged` of the whole table. Memory does not grow with the edges: they are written to a temporary
    file for each range of sources, then sorted range by range.

    Args:
        path: the table.
        columns: roles of its columns, and its format.
        ids: index of the nodes (`importing.Ids`).
        undirected: whether each row represents both directions.
        treatment: reports progress and repeated rows.

    Raises:
        FedGraphError: an id is unknown, the file cannot be read, or the disk of temporary files is full.
    """
    nodes = len(ids.index)
    with tempfile.TemporaryDirectory(prefix="fedgraph-edges-") as name:
        folder = Path(name)
        require_space(folder, 2 * Path(path).stat().st_size, f"temporary files of {path}")
        try:
            rows, width = _spool(path, columns, ids, undirected, treatment, folder)
            return _sorted(folder, nodes, width, rows, undirected, str(path), treatment)
        except OSError as error:
            what = f"cannot write temporary files of {path} to {folder.parent}: {error.strerror or error}"
            raise FedGraphError(f"{what}; set TMPDIR to a folder with more free space") from error


def _spool(
    path: Path | str,
    columns: Columns,
    ids: Any,
    undirected: bool,
    treatment: Any,
    folder: Path,
) -> tuple[int, int]:
    """Write codes ``source * N + target`` by range of sources; return the rows of the table, and the nodes of a range."""
    nodes, rows = len(ids.index), 0
    expected = Path(path).stat().st_size // 8  # at least so many bytes per row
    width = max(nodes // max(expected * (2 if undirected else 1) // BUCKET_EDGES, 1), 1)
    ends = columns.source, columns.target
    for chunk in read_chunks(path, columns.layout, ends, ROWS_AT_ONCE):
        source, target = (ids.positions(chunk, end, str(path), rows) for end in ends)
        pairs = [source * nodes + target, target * nodes + source] if undirected else [source * nodes + target]
        for codes in pairs:
            bucket = codes // (nodes * width)
            order = np.argsort(bucket, kind="stable")
            counts = np.bincount(bucket)
            parts = np.split(codes[order], np.cumsum(counts[counts > 0])[:-1])
            for number, part in zip(np.flatnonzero(counts), parts, strict=True):
                with (folder / f"{number:06d}").open("ab") as file:
                    file.write(part.data)
        rows += len(chunk)
        if rows % (16 * ROWS_AT_ONCE) == 0:
            treatment.say(f"{path}: {rows:,} edges read")
    return rows, width


def _sorted(
    folder: Path, nodes: int, width: int, rows: int, undirected: bool, where: str, treatment: Any
) -> CompressedEdges:
    """Sort each range, leave out repeated edges, and return all of them."""
    degree = np.zeros(nodes, np.int64)
    kind, single = (np.int32 if nodes < 2**31 else np.int64), 0
    path = folder / "indices"
    with path.open("wb") as file:
        for bucket in sorted(folder.glob("[0-9]*")):
            codes = np.unique(np.fromfile(bucket, np.int64))
            bucket.unlink()
            source, target = np.divmod(codes, nodes)
            first = int(bucket.name) * width
            degree[first : first + width] = np.bincount(source - first, minlength=min(width, nodes - first))
            single += int((source <= target).sum()) if undirected else len(codes)
            file.write(target.astype(kind).data)
    report_repeated(rows - single, rows, undirected, where, treatment)
    total = int(degree.sum())
    indices = np.memmap(path, kind, "c") if total else np.empty(0, kind)  # stays mapped when its file is deleted
    indptr = np.concatenate([[0], np.cumsum(degree)])
    return CompressedEdges(torch.from_numpy(indptr), torch.from_numpy(indices), "both" if undirected else "source")
