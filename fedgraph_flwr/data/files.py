"""Write files atomically, and read those of this package that are not Python, all without torch."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError


@contextlib.contextmanager
def writing(path: Path, size: int, durable: bool = True) -> Iterator[Any]:
    """Open a temporary file that replaces ``path`` at the end. If ``durable``, a power cut, too, leaves one of the two whole.

    Raises:
        FedGraphError: the disk has less room than ``size`` bytes, or the folder is not writable.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path.parent, size, str(path))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            _locked(file)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        if durable:
            _flush_names(path.parent)
    except OSError as error:
        raise FedGraphError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def packaged(path: Path, instead: str = "") -> str:
    """Return the text of a file of this package, such as a template.

    Args:
        path: the file.
        instead: what the user can do without it.

    Raises:
        FedGraphError: the file is missing, as in a bundle of `flwr build`, to which Flower adds no files of its kind.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FedGraphError(
            f"{path} is missing, which this command needs: `flwr build` adds no {path.suffix} files to a bundle."
            f" {instead}Use the command of an installed fedgraph-flwr (docs/start.md)"
        ) from error


def require_space(folder: Path, size: int, what: str) -> None:
    """Check the free space of a folder's disk.

    Raises:
        FedGraphError: it is less than ``size`` bytes.
    """
    free = shutil.disk_usage(folder).free
    if free < size:
        room = f"it needs {size / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free"
        raise FedGraphError(f"cannot write {what}: {room}: free some space or choose another folder")


def write_bytes(path: Path | str, content: bytes, durable: bool = True) -> None:
    """Write a file atomically: write a temporary file in the same folder, rename it and, if ``durable``, flush both.

    Raises:
        FedGraphError: the disk is full or the folder is not writable. An older file at ``path`` stays intact.
    """
    with writing(Path(path), 0, durable) as file:
        file.write(content)


def append_bytes(path: Path, content: bytes) -> int:
    """Append to a file, flush it, and return the place of the first byte; what a killed process began stays before it.

    Raises:
        FedGraphError: the disk is full or the folder is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            start = file.tell()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not start:
            _flush_names(path.parent)
    except OSError as error:
        raise FedGraphError(f"cannot write {path}: {error.strerror or error}") from error
    return start


def _flush_names(folder: Path) -> None:
    """Let the names of new files in a folder outlive a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def leftovers(folder: Path) -> list[Path]:
    """List temporary files of `writing` that killed processes left; the system released the locks of these."""
    return [path for path in folder.glob(".*.????????") if _TEMPORARY.fullmatch(path.name) and _abandoned(path)]


def _abandoned(path: Path) -> bool:
    """Return whether no process writes a file."""
    with contextlib.suppress(OSError), path.open("r+b") as file:
        return _locked(file)
    return False


def _locked(file: Any) -> bool:
    """Lock a file and return True, unless another process holds its lock. Some file systems have no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that killed processes left of one file, whose data they may have."""
    for half in leftovers(path.parent):
        if half.name[:-8] == f".{path.name}.":
            half.unlink(missing_ok=True)


_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
