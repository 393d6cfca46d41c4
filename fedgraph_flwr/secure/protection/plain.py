"""What a protection offers both sides of a run; without one, a reply leaves as it is."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.downlink import Input
from fedgraph_flwr.methods.uplink import Groups
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.wire.messages import MODEL, Arrays

Place = tuple[int, str, int]
"""Of a request in a run: round, phase, and number of earlier exchanges of the phase in the round."""


@dataclass(frozen=True)
class Taken:
    """What a protection takes out of a request.

    Attributes:
        model: the shared parameters that came with it, the origin of updates.
        groups: the protection's own groups.
        digest: of what all clients of a sum must receive alike.
    """

    model: Arrays
    groups: Mapping[str, Arrays] = field(default_factory=dict)
    digest: bytes = b""


@dataclass(frozen=True)
class Leaving:
    """A reply that is about to leave a client.

    Attributes:
        client: index of the client.
        phase: the phase.
        round: the round.
        groups: its groups of arrays.
        declared: the uplink of the phase.
        taken: of the request.
        booked: groups whose release the node booked.
        exchange: number of earlier exchanges of the phase in the round.
    """

    client: int
    phase: str
    round: int
    groups: dict[str, Arrays]
    declared: Groups
    taken: Taken
    booked: Collection[str]
    exchange: int = 0


class Protection:
    """The way of a run's replies out of its clients. Without another inside, replies leave as they are.

    Args:
        cfg: the run's configuration.
        inner: a protection that comes first; None: there is none.

    Attributes:
        key: the key that protects single values, with its value; empty: none does.
        noised: the key by which sums are released with noise, with its value; empty: none are.
        private: whether differential privacy hides the clients' sizes.
        scores: which scores leave clients: ``exact``, ``none`` or ``noised``.
        noise: what clients add to their terms of a masked sum; None: nothing.
        exchanges: phases of its own, in order.
        sums_only: whether the server learns sums alone, if clients have pinned each other's keys.
        unit: what noise protects, as ``privacy.unit``.
        one_list: whether all sums are over one list of clients.
        verified: whether every node computes the rounds (`fedgraph_flwr.secure.verified`).
        rows: public number of rows that a client is expected to draw for a step, 1 if the unit is a client.
    """

    key = ""
    noised = ""
    private = False
    noise: DistributedNoise | None = None
    exchanges: tuple[str, ...] = ()
    sums_only = False
    unit = "client"
    one_list = False
    verified = False
    rows = 1

    def __init__(self, cfg: RunConfig, inner: "Protection | None" = None):
        if inner:
            vars(self).update(vars(inner))  # what holds inside holds outside
        self.cfg, self.inner, self.scores = cfg, inner, cfg.privacy.scores

    # --- declarations, the same on both sides -------------------------------------------------------------------------

    def uplink(self, phases: Mapping[str, Groups]) -> dict[str, Groups]:
        """Return a method's uplink with the groups that the protection adds."""
        return self.inner.uplink(phases) if self.inner else dict(phases)

    def downlink(self, summed: Collection[str]) -> dict[str, dict[str, Input]]:
        """Return the groups that the protection adds to messages, by phase.

        Args:
            summed: phases with a sum.
        """
        return self.inner.downlink(summed) if self.inner else {}

    def places(self, server_round: int, present: Sequence[int]) -> Sequence[int]:
        """Return the clients among which a round draws, whether or not they are there.

        Args:
            server_round: the round; 0: for purposes other than training.
            present: the clients that are there.
        """
        return self.inner.places(server_round, present) if self.inner else present

    def cohort_size(self, server_round: int, present: Sequence[int]) -> int:
        """Return the number of places that a round draws."""
        return self.cfg.strategy.cohort_size(len(self.places(server_round, present)))

    # --- one reply ----------------------------------------------------------------------------------------------------

    def take(self, phase: str, groups: dict[str, Arrays], client_groups: Collection[str]) -> Taken:
        """Take the protection's groups out of a request.

        Args:
            phase: its phase.
            groups: its groups of arrays.
            client_groups: those that differ by client.
        """
        return self.inner.take(phase, groups, client_groups) if self.inner else Taken(groups.get(MODEL, {}))

    def follow(self, phase: str, scalars: Callable[[], Any], taken: Taken) -> Taken:
        """Return what was taken out of a request of a phase with sums, bound to those before it.

        Args:
            phase: its phase.
            scalars: returns those from which the reply follows.
            taken: what was taken.
        """
        return taken

    def answer(
        self, phase: str, at: tuple[int, int], groups: Mapping[str, Arrays], sizes: Sequence[int], keyring: Keyring
    ) -> dict[str, Arrays]:
        """Reply to a request for one of `exchanges`.

        Args:
            phase: the exchange.
            at: the round, and the number of earlier exchanges of the phase in it.
            groups: groups of arrays, as received.
            sizes: the client's sizes, as it describes itself.
            keyring: the client's keys.
        """
        raise NotImplementedError

    def leave(self, leaving: Leaving) -> dict[str, Arrays]:
        """Return the groups of a reply as they leave the client."""
        return self.inner.leave(leaving) if self.inner else leaving.groups

    def releases(self, summed: bool, scored: bool) -> int:
        """Return the number of releases with noise that a reply may hold.

        Args:
            summed: whether it may hold a group that is summed.
            scored: whether it may hold scores.
        """
        return self.inner.releases(summed, scored) if self.inner else 0

    def withheld(self, phase: str) -> str:
        """Return the key because of which reasons of failures stay in the node's log; empty: they do not."""
        return self.inner.withheld(phase) if self.inner else ""

    # --- a client's part in it ----------------------------------------------------------------------------------------

    def admit(self, min_clients: int, max_share: float, trusting: bool) -> None:
        """Note what a node's policy accepts: fewest clients and largest share of a sum; ``trusting``: it trusts the server."""

    def note_members(self, weights: Mapping[int, int], absent: bool) -> None:
        """Note the members of an agreement, over all of whom every sum without noise is, and their weights.

        Args:
            weights: by client.
            absent: whether other sums may lack some.
        """

    def keep(self, kept: Callable[[Place, bytes, Callable[[], Any]], Any]) -> None:
        """Note where noised terms are kept: by place and digest of the request, else made."""

    def save(self, secrets: bool) -> dict[str, Any]:
        """Return the state between messages; with ``secrets`` also keys that no checkpoint stores."""
        return {}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Restore what `save` returned, from a client's tree."""
