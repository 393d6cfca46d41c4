"""Federated graph neural networks on Flower.

    import fedgraph_flwr as fg

    run = fg.run(strategy="fedprox", dataset="cora", num_clients=10)

docs/python.md describes all names here. They are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedgraph_flwr.version import __version__ as __version__

if TYPE_CHECKING:
    from fedgraph_flwr.api import (
        Run,
        SweepResult,
        audit,
        blend,
        choices,
        compare,
        forget,
        keys,
        load,
        load_run,
        plot,
        ray_session,
        run,
        sweep,
        worth,
    )
    from fedgraph_flwr.errors import FedGraphError, RunFailed
    from fedgraph_flwr.partition import api as datasets

__all__ = [
    "FedGraphError",
    "Run",
    "RunFailed",
    "SweepResult",
    "audit",
    "blend",
    "choices",
    "compare",
    "datasets",
    "forget",
    "keys",
    "load",
    "load_run",
    "plot",
    "ray_session",
    "run",
    "sweep",
    "worth",
]

_ERRORS = ("FedGraphError", "RunFailed")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if name == "datasets":
        return importlib.import_module(f"{__name__}.partition.api")
    value = getattr(importlib.import_module(f"{__name__}.{'errors' if name in _ERRORS else 'api'}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
