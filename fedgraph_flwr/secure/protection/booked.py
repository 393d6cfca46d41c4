"""Differential privacy at the client: what it may release, and which noise joins its terms of a sum.

The server adds the noise (``server_...``, ``client_...``), each client adds a part to its masked terms (`noise`), or a party adds
all of it while it trains (``local``: `fedgraph_flwr.secure.rows`).
"""

from collections.abc import Sequence

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import sums
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.protection.plain import Leaving, Protection
from fedgraph_flwr.secure.secagg import STEPS
from fedgraph_flwr.wire.messages import Arrays


class Booked(Protection):
    """Sums leave if the node booked their release with noise (``privacy.dp``).

    Args:
        inner: the protection that comes first.
        noise: of the terms of a masked sum; None: the clients add none.
    """

    inner: Protection

    def __init__(self, inner: Protection, noise: DistributedNoise | None):
        super().__init__(inner.cfg, inner)
        rules = inner.cfg.privacy
        self.key = self.noised = f"privacy.dp={rules.dp}"
        self.private, self.noise = True, noise
        self.unit, self.rows = rules.unit, rules.expected_rows

    def places(self, server_round: int, present: Sequence[int]) -> Sequence[int]:
        """Return all places, so that an absent client changes no other contribution."""
        return range(self.cfg.num_clients)

    def leave(self, leaving: Leaving) -> dict[str, Arrays]:
        """Return what the inner one lets leave: `secagg.Member.masked` adds the noise of a masked sum, else the server does.

        Raises:
            FedGraphError: the node did not book its release.
        """
        held = [group for group in sums(leaving.declared) if leaving.groups.get(group)]
        if extra := [group for group in held if group not in leaving.booked]:
            raise FedGraphError(f"client {leaving.client} would send '{extra[0]}', which this stage must not release")
        return self.inner.leave(leaving)

    def releases(self, summed: bool, scored: bool) -> int:
        """Count a sum, and noised scores."""
        return summed + (scored and self.scores == "noised")

    def withheld(self, phase: str) -> str:
        """Return the key: reasons may depend on data, but not those of exchanges around a masked sum."""
        return "" if phase in STEPS else self.noised
