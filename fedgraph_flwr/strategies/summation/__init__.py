"""How a run adds up what its clients send: one object, chosen once per run from its configuration.

    Plain      the server sees single values, and adds them up
    Actors     the actors that hold clients add up, and the server sees sums (``ray.aggregate``)
    Masked     clients mask their values, and the server opens sums (``privacy.secagg``)
    Verified   the same, and every node opens them, too (``privacy.coordinator=verified``)
    Noised     sums are released with noise (``privacy.dp``); it contains one of the others

`interface` says what the loop, the reader of replies and the methods ask of it.
"""

from pathlib import Path

from flwr.serverapp import Grid

from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.actors import Actors
from fedgraph_flwr.strategies.summation.interface import Summation
from fedgraph_flwr.strategies.summation.masked import Masked
from fedgraph_flwr.strategies.summation.noised import Noised
from fedgraph_flwr.strategies.summation.opened_store import OpenedStore
from fedgraph_flwr.strategies.summation.plain import Plain
from fedgraph_flwr.strategies.summation.verified import Verified

__all__ = ["Summation", "summation_of"]


def summation_of(
    server: GraphStrategy, schemas: Schemas, grid: Grid, folder: Path | None
) -> Summation:
    """Return the summation of a run.

    Args:
        server: the run's server.
        schemas: what the method declares.
        grid: joins the server with its nodes.
        folder: the run's folder, where opened sums are kept; None: nothing is kept.
    """
    cfg = server.cfg
    account = Privacy(cfg) if server.counting.private else None
    summed: Summation
    if server.counting.protection.verified:
        summed = Verified(server, schemas, account)
    elif cfg.privacy.secagg:
        summed = Masked(server, schemas, OpenedStore(folder), account)
    elif cfg.ray.aggregate:
        summed = Actors(server, schemas, grid)
    else:
        summed = Plain(server)
    return Noised(server, summed, account) if account else summed
