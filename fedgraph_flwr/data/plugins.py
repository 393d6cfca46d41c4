"""Folders of YAML groups: the built-in one, and those of packages with methods, models or data.

These packages are `BASELINES`, and installed ones with an entry point of the group `ENTRY_POINT`. Keep imports cheap: shell
completion loads this module at every key press.

[project.entry-points."fedgraph_flwr.conf"]
mymethods = "mymethods"     # package whose folder conf/ has strategy/NAME.yaml, model/NAME.yaml ...
"""

import sys
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

ENTRY_POINT = "fedgraph_flwr.conf"
BASELINES = "fedgraph_baselines"
"""The package next to this one; an app that Flower unpacks has no entry points."""


@lru_cache
def conf_dir() -> Path:
    """Return the folder of the YAML groups: next to the package in a checkout or bundle, inside it when installed."""
    package = Path(__file__).parents[1]
    beside = package.parent / "conf"
    return beside if (beside / "config.yaml").is_file() else package / "_conf"


def packages() -> dict[str, Path]:
    """Return the config folder of each package by name, without importing it."""
    return _packages(tuple(sys.path))


@lru_cache(maxsize=4)
def _packages(path: tuple[str, ...]) -> dict[str, Path]:
    folders = {}
    for name in sorted({BASELINES, *(point.value for point in entry_points(group=ENTRY_POINT))}):
        spec = find_spec(name) if name.isidentifier() else None  # for a dotted name, find_spec would import the parent
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (folder := Path(place) / "conf").is_dir():
                folders[name] = folder
    return folders
