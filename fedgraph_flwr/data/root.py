"""Where data lives: the root the user chose, the user's cache folder, and a folder that can be written.

Quick to import: the completion of a command line looks there at every key press.
"""

import hashlib
import os
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError


def user_cache() -> Path:
    """The folder of what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgraph-flwr"


def data_root() -> Path:
    """Folder of the raw files, in PyG's layout: ``FEDGRAPH_DATA``, else the user's cache folder."""
    given = os.environ.get("FEDGRAPH_DATA")
    return Path(given).expanduser().absolute() if given else user_cache()


def imported_names() -> list[str]:
    """The names of the user's own graphs."""
    return sorted(path.stem for path in (data_root() / "imported").glob("*.safetensors"))


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
