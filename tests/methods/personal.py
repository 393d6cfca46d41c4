"""Single clients of a method, and what a run's record has of each client."""

from typing import Any

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from tests.conftest import client_graph
from tests.support import Finished


def made(method: str, *overrides: str, client: int = 0) -> Any:
    """A client of a method on a small graph."""
    cfg = compose([f"strategy={method}", "model.hidden=8", *overrides])
    return locate(cfg.strategy.client)(cfg, client_graph(client))


def scores_by_client(finished: Finished, key: str = "val-loss") -> list[list[float]]:
    return [record["clients"][key] for record in finished.rounds]
