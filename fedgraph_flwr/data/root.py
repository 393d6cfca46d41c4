"""Data folders: the root chosen by the user, the user's cache folder, and a writable folder.

Keep imports cheap: shell completion loads this module at every key press.
"""

import functools
import hashlib
import os
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError


def user_cache() -> Path:
    """Return the folder for files that can be recreated."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgraph-flwr"


def data_root() -> Path:
    """Return the folder of the raw files in PyG's layout: ``FEDGRAPH_DATA``, else the user's cache folder."""
    given = os.environ.get("FEDGRAPH_DATA")
    return Path(given).expanduser().absolute() if given else user_cache()


def imported_names() -> list[str]:
    """Return the names of imported graphs."""
    return sorted(path.stem for path in (data_root() / "imported").glob("*.safetensors"))


def imported_path(name: str) -> Path:
    """Return the path of an imported graph (`fedgraph-flwr import`)."""
    return data_root() / "imported" / f"{name}.safetensors"


def writable(folder: Path) -> bool:
    """Return whether ``folder``, or its nearest existing parent, is writable."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    # Check the mode too: access() is always true for the superuser.
    return folder.is_dir() and os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def cache_dir() -> Path:
    """Return the folder of converted datasets: ``<root>/fedgraph``, else a folder in the user's cache.

    Raises:
        FedGraphError: neither is writable.
    """
    folder = _cache_of(data_root())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedGraphError(
            f"cannot create {folder} ({error.strerror}): set FEDGRAPH_DATA to a writable folder"
        ) from error
    return folder


@functools.cache  # a run looks once per client
def _cache_of(root: Path) -> Path:
    folder = root / "fedgraph"
    return (
        folder if writable(folder) else user_cache() / f"fedgraph-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"
    )
