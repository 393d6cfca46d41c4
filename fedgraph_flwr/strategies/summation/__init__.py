"""How a run adds up what its clients send: one object, chosen once per run from its configuration.

    Plain      the server sees single values, and adds them up
    Actors     the actors that hold clients add up, and the server sees sums (``ray.aggregate``)
    Masked     clients mask their values, and the server opens sums (``privacy.secagg``)
    Noised     sums are released with noise (``privacy.dp``); it contains one of the others

`interface` says what the loop, the reader of replies and the methods ask of it.
"""

from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.summation.actors import Actors
from fedgraph_flwr.strategies.summation.interface import Federation, Summation
from fedgraph_flwr.strategies.summation.masked import Masked
from fedgraph_flwr.strategies.summation.noised import Noised, PublicDivisor
from fedgraph_flwr.strategies.summation.opened_store import OpenedStore
from fedgraph_flwr.strategies.summation.plain import Plain

__all__ = ["Federation", "Summation", "summation_of"]


def summation_of(server: Federation) -> Summation:
    """Return the summation of a run.

    Args:
        server: the run's server.
    """
    cfg = server.cfg
    account = Privacy(cfg) if cfg.privacy.dp != "none" else None
    summed: Summation
    if cfg.privacy.secagg:
        folder = server.recorder.folder if cfg.checkpoint_every else None
        divisor = PublicDivisor(server, account) if account else None
        summed = Masked(server, OpenedStore(folder), divisor)
    elif cfg.ray.aggregate:
        summed = Actors(server)
    else:
        summed = Plain(server)
    return Noised(server, summed, account) if account else summed
