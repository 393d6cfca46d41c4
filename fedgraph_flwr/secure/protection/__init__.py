"""The clients' half of a run's protection: one object, chosen once per run from its configuration.

    Protection   a reply leaves as it is
    Clipped      each client bounds the norm of what it sends
    Booked       only what the node booked leaves, for sums with noise (``privacy.dp``); it contains one of the others
    Masked       clients mask their terms of a sum (``privacy.secagg``), around all others
    Verified     the same, in rounds that every node computes (``privacy.coordinator=verified``)

The mirror of `fedgraph_flwr.strategies.summation`, in the opposite order: with secure sums and distributed noise a reply leaves
through `Clipped`, `Booked`, `Masked`, and is opened by the server's `Masked`, then `Noised`. What it declares (groups, places of
a round, whether sizes are private) holds for both sides, which ask it and never the configuration. `plain` says what it offers.
"""

from collections.abc import Callable

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.protection.booked import Booked
from fedgraph_flwr.secure.protection.clipped import Clipped
from fedgraph_flwr.secure.protection.masked import Masked
from fedgraph_flwr.secure.protection.plain import Leaving, Protection, Taken
from fedgraph_flwr.secure.protection.verified import Verified

__all__ = ["Leaving", "Protection", "Taken", "protection_of"]


def protection_of(
    cfg: RunConfig, client: int = 0, last: Callable[[Protection], Protection] | None = None
) -> Protection:
    """Return the protection of a run.

    Args:
        cfg: the run's configuration.
        client: index of the client; for declarations, any.
        last: adds what a client does before it masks; None: nothing.
    """
    rules, protection = cfg.privacy, Protection(cfg)
    cohort = cfg.strategy.cohort_size(cfg.num_clients)
    noise = DistributedNoise(rules, cohort=cohort) if rules.side == "distributed" else None
    if rules.side in ("client", "distributed") and rules.unit == "client":
        protection = Clipped(cfg, protection)
    if rules.dp != "none":
        protection = Booked(protection, noise)
    if last:
        protection = last(protection)
    kind = Verified if rules.coordinator == "verified" else Masked
    return kind(protection, client) if rules.secagg else protection
