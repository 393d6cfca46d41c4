"""Installed packages that bring methods, networks, data and more, by an entry point of the group `ENTRY_POINT`.

[project.entry-points."fedgraph_flwr.conf"]
mymethods = "mymethods"     # the package, whose folder conf/ has strategy/NAME.yaml, model/NAME.yaml and so on
"""

import sys
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

ENTRY_POINT = "fedgraph_flwr.conf"


def packages() -> dict[str, Path]:
    """The config folder of each package by its name; none of them is imported."""
    return _packages(tuple(sys.path))


@lru_cache(maxsize=4)
def _packages(path: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for name in sorted({point.value for point in entry_points(group=ENTRY_POINT)}):
        spec = find_spec(name) if name.isidentifier() else None  # of what stands below a package, it would import that
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (folder := Path(place) / "conf").is_dir():
                found[name] = folder
    return found
