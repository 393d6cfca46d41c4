"""Names of methods for people: as in their papers."""

import contextlib
import re
from functools import cache

from fedgraph_flwr.config.composition import group_path
from fedgraph_flwr.errors import FedGraphError


@cache
def method_name(strategy: str) -> str:
    """Return the method's name as in its paper, if its file starts with it, else as in the configuration."""
    with contextlib.suppress(FedGraphError):
        path = group_path("strategy", strategy)
        first = path.read_text().partition("\n")[0].lstrip("# ").split() if path else []
        written = first[0].rstrip(":,.") if first else ""
        if re.sub(r"\W", "", written).lower() == strategy.replace("_", ""):
            return written
    return strategy


def column_name(column: str) -> str:
    """Return the name of a sweep's column for people: ``FedProx, mu=0.1`` for ``fedprox, mu=0.1``."""
    strategy, comma, choice = column.partition(", ")
    return f"{method_name(strategy)}{comma}{choice}"
