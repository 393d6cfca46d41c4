"""Big files of tensors: written block by block, and read as a memory map, so that neither needs the file's size in memory.

A file is safetensors, as of `graph.write_tensors`. Padding puts every tensor at a multiple of 64 bytes, where torch puts its own
tensors, because sums depend on alignment. The digest of a big file is checked once; then its size and time of change are trusted.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.files import writing
from fedgraph_flwr.data.root import cache_dir
from fedgraph_flwr.errors import FedGraphError

MAPPED_BYTES = 1 << 27
"""Size from which a file is mapped instead of read."""

ALIGNMENT = 64
"""Alignment of torch's tensors on a CPU, in bytes."""

BLOCK = 1 << 24
"""Bytes that are read or written at once."""

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class Blocks(NamedTuple):
    """Tensor that is made block by block while it is written.

    Attributes:
        dtype: type of the entries.
        shape: shape of the whole tensor.
        make: returns the blocks, along the first dimension.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Iterable[np.ndarray]]


def is_big(size: int) -> bool:
    """Return whether a file of so many bytes is mapped."""
    return size >= MAPPED_BYTES


def is_mapped(path: Path | str) -> bool:
    """Return whether a file is mapped, because it is big."""
    return is_big(Path(path).stat().st_size)


def own_or_mapped(tensor: Tensor, mapped: bool) -> Tensor:
    """Return a tensor of an open file: itself if it is mapped and aligned, else a copy."""
    return tensor if mapped and tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


# --- trust ----------------------------------------------------------------------------------------------------------------


def is_trusted(path: Path | str) -> bool:
    """Return whether this user checked the file's content, and it has not changed since.

    Its structure is checked at every load all the same (`checks.check_file`).
    """
    with contextlib.suppress(OSError, ValueError, FedGraphError, RecursionError):
        return bool(json.loads(mark_of(path).read_text()) == state_of(path))
    return False


def trust(path: Path | str) -> None:
    """Mark a file as checked; without effect where the cache is not writable."""
    with contextlib.suppress(OSError, FedGraphError):
        mark = mark_of(path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(json.dumps(state_of(path)))


def mark_of(path: Path | str) -> Path:
    """Return the path of a file's mark: in the cache, so that no copy of a file brings one along, by device and inode."""
    status = Path(path).stat()
    return cache_dir() / "checked" / f"{status.st_dev}-{status.st_ino}.json"


def state_of(path: Path | str) -> list[int]:
    """Return numbers that change with a file: device, inode, size, and times of change of content and inode."""
    status = Path(path).stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


# --- writing --------------------------------------------------------------------------------------------------------------


def write_blocks(path: Path | str, tensors: Mapping[str, Tensor | Blocks], values: str, version: str) -> None:
    """Write a file of tensors atomically and mark it as checked; its content was checked before.

    Args:
        path: the file.
        tensors: by name.
        values: JSON of the header.
        version: format version.

    Raises:
        FedGraphError: the disk is too small, or the folder is not writable. An older file at ``path`` stays intact.
    """
    path = Path(path)
    made = {name: tensors[name] for name in sorted(tensors)}
    layout = _layout(made)
    digest = hashlib.sha256(values.encode())
    for name, (_, shape, begin, end) in sorted(layout.items()):
        if name.startswith("#"):
            update_digest(digest, name, torch.uint8, shape)
            digest.update(bytes(end - begin))
    header = {"format": version, "values": values, "digest": digest.hexdigest()}
    total = max((end for *_, end in layout.values()), default=0)
    with writing(path, total) as file:
        file.write(_header(layout, header))
        for name, tensor in made.items():
            dtype, whole = tensor.dtype, tuple(tensor.shape)
            update_digest(digest, name, dtype, whole)
            written = 0
            for block in _blocks(tensor):
                view = np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
                digest.update(view)
                written += file.write(view)
            size = int(np.prod(whole, dtype=np.int64)) * dtype.itemsize
            if written != size:
                raise ValueError(f"blocks of '{name}' have {written} bytes, expected {size}")
            file.write(bytes(-size % ALIGNMENT))
        file.seek(0)
        file.write(_header(layout, header | {"digest": digest.hexdigest()}))
    trust(path)


def update_digest(digest: Any, name: str, dtype: torch.dtype, shape: Iterable[int]) -> None:
    """Add what identifies a tensor, before its bytes, to the digest of a file."""
    digest.update(f"\0{name}\0{dtype}{list(shape)}".encode())


def _layout(tensors: Mapping[str, Tensor | Blocks]) -> dict[str, tuple[str, list[int], int, int]]:
    """Return type, shape, begin and end of each tensor and of the padding after it."""
    layout: dict[str, tuple[str, list[int], int, int]] = {}
    end = 0
    for name, tensor in tensors.items():
        size = int(np.prod(tuple(tensor.shape), dtype=np.int64)) * tensor.dtype.itemsize
        layout[name] = _NAMES[tensor.dtype], list(tensor.shape), end, end + size
        end += size
        if padding := -size % ALIGNMENT:
            layout[f"#{name}"] = "U8", [padding], end, end + padding
            end += padding
    return layout


def _header(layout: Mapping[str, tuple[str, list[int], int, int]], metadata: Mapping[str, str]) -> bytes:
    """Return the header, filled with spaces so that the tensors after it are aligned."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, (kind, shape, begin, end) in layout.items():
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _blocks(tensor: Tensor | Blocks) -> Iterable[np.ndarray]:
    if isinstance(tensor, Blocks):
        return tensor.make()
    rows = tensor.reshape(-1)
    step = max(BLOCK // tensor.dtype.itemsize, 1)
    return (rows[start : start + step].numpy() for start in range(0, len(rows), step))


# --- edges ----------------------------------------------------------------------------------------------------------------


class CompressedEdges(NamedTuple):
    """Edges of a file in CSR, which may be mapped.

    Attributes:
        indptr: int64 [rows + 1]; last nodes without an edge may have no row.
        indices: int32 or int64 [E].
        rows: nodes of the rows: ``source`` or ``target`` of the edges, or ``both`` if every edge has its reverse.
    """

    indptr: Tensor
    indices: Tensor
    rows: str

    def expanded(self) -> Tensor:
        """Return the edges int64 [2, E], by rows."""
        owner = torch.arange(len(self.indptr) - 1).repeat_interleave(self.indptr.diff())
        pair = [owner, self.indices.to(torch.int64)]
        return torch.stack(pair[::-1] if self.rows == "target" else pair)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a file, by the field's name."""
        role = "in_" if self.rows == "target" else ""
        tensors = {f"{name}#{role}indptr": self.indptr, f"{name}#{role}indices": self.indices}
        return tensors | ({f"{name}#symmetric": torch.ones(1, dtype=torch.uint8)} if self.rows == "both" else {})

    def whole_indptr(self, num_nodes: int) -> Tensor:
        """Return pointers for every node, int64 [N + 1]."""
        missing = num_nodes + 1 - len(self.indptr)
        return torch.cat([self.indptr, self.indptr[-1:].expand(missing)]) if missing > 0 else self.indptr

    def check(self, num_nodes: int) -> None:
        """Check pointers and ids in one pass, without expanding them.

        Raises:
            ValueError: they are not the edges of so many nodes.
        """
        indptr, indices = self.indptr, self.indices
        shaped = indptr.dim() == indices.dim() == 1 and 0 < len(indptr) <= num_nodes + 1
        if not shaped or int(indptr[0]) or int(indptr[-1]) != len(indices) or bool((indptr[1:] < indptr[:-1]).any()):
            raise ValueError("compressed edges are inconsistent")
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= num_nodes):
            raise ValueError(f"compressed edges name nodes outside 0..{num_nodes - 1}")


def in_neighbours(csr: CompressedEdges, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sources of the edges into each node as CSR: int64 [N + 1] and [E]; copied only if the rows are sources."""
    indptr = csr.whole_indptr(num_nodes).numpy()
    indices = csr.indices.numpy()
    if csr.rows != "source":
        return indptr, indices
    from scipy import sparse

    ones = np.ones(len(indices), np.int8)
    columns = sparse.csr_matrix((ones, indices, indptr), shape=(num_nodes, num_nodes), copy=False).tocsc()
    return columns.indptr.astype(np.int64), columns.indices
