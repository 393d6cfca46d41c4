"""Folders of the user's machine, quick to import: what completes a command line looks there at every key press."""

import os
from pathlib import Path


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
