"""Where data lives: the root the user chose, and a folder that can be written."""

import hashlib
import os
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.places import data_root as data_root
from fedgraph_flwr.places import imported_names as imported_names
from fedgraph_flwr.places import user_cache


def imported_path(name: str) -> Path:
    """Where a user's own graph of this name lies (`fedgraph-flwr import`)."""
    return data_root() / "imported" / f"{name}.safetensors"


def writable(folder: Path) -> bool:
    """Whether files can be made in ``folder``, or in the nearest folder above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    # The mode says "keep out" to the superuser too, for whom access() is always true.
    return folder.is_dir() and os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def cache_dir() -> Path:
    """Folder for what is derived from the raw files: ``<root>/fedgraph``, else in the user's cache folder.

    Raises:
        FedGraphError: neither can be written.
    """
    root = data_root()
    folder = root / "fedgraph"
    if not writable(folder):
        folder = user_cache() / f"fedgraph-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedGraphError(f"{folder} cannot be made ({error.strerror}): let FEDGRAPH_DATA name a folder") from error
    return folder
