"""Means and sums that are released with noise, under differential privacy (``privacy.dp``).

The server adds the noise to clipped sums (`fedgraph_flwr.strategies.privacy`), or the clients do:
to their gradients (``privacy.unit``), or to their values before a masked sum (``distributed``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fedgraph_flwr.methods.uplink import ARRAYS, Reducer, Sum, sums
from fedgraph_flwr.methods.weighting import private_factors
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.privacy import Privacy, Terms
from fedgraph_flwr.strategies.summation.interface import Summation, divisor_of, origin_of
from fedgraph_flwr.wire.messages import CLIPPED, CLIPPING, MODEL, Arrays, Reply
from fedgraph_flwr.wire.trees import Tree


class Noised(Summation):
    """Releases of a summation with noise, and their cost.

    Places of a round are drawn among all ``num_clients``, whoever is there, and no factor depends
    on who replied: see `fedgraph_flwr.strategies.privacy`.

    Args:
        server: the run's server.
        inner: how values are summed.
        account: clipping, noise and cost.
    """

    __slots__ = ("account",)

    inner: Summation

    def __init__(self, server: GraphStrategy, inner: Summation, account: Privacy):
        super().__init__(server, inner)
        self.account = account

    def shared_groups(self, phase: str) -> Mapping[str, Arrays]:
        """Return the adaptive norms that clients need to clip their reply."""
        norms = self.account.norms_for(self.server.uplink_of.get(phase, {}))
        return {**self.inner.shared_groups(phase), **({CLIPPING: norms} if norms else {})}

    def verify(self, phase: str, reply: Reply) -> None:
        """Refuse updates that exceed the norm to which the client should have clipped them.

        Raises:
            FedGraphError: names the client and the norm.
        """
        self.inner.verify(phase, reply)
        server = self.server
        declared = self.server.uplink_of.get(phase, {})
        for group in sums(declared):
            if group not in reply.groups:
                continue
            arrays = reply.groups[group]
            reducer = declared[group]
            updates_model = group == MODEL and getattr(reducer, "origin", "") == ARRAYS
            personal = server.models.get(reply.client) if updates_model else None
            origin = origin_of(server, reducer, arrays) if personal is None else personal
            self.account.verify(reply.client, group, arrays, origin)

    # --- the result -------------------------------------------------------------------------------

    def open_sums(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the noised means and sums of one exchange, which count as one release.

        Raises:
            RunFailed: the budget does not allow it.
        """
        rules = self.server.cfg.privacy
        if rules.side == "distributed" or rules.unit != "client":
            return self._noised_by_clients(phase, replies)
        declared = self.server.uplink_of.get(phase, {})
        terms = {
            group: self._terms(group, declared[group], replies) for group in sums(declared)
        }
        return self.account.release(terms, self._meant_for)

    def _noised_by_clients(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
        """Return sums to which clients added the noise."""
        self.account.book()
        values = self.inner.open_sums(phase, replies)
        bits = {group: float(total[0]) for group, total in values.pop(CLIPPED, {}).items()}
        self.account.adapt(bits, self._meant_for)
        return values

    def _terms(self, group: str, reducer: Reducer, replies: list[Reply]) -> Terms:
        """Return the clipped sum of a group that the server releases."""
        values = [reply.groups.get(group, {}) for reply in replies]
        origin = origin_of(self.server, reducer, values[0])
        if isinstance(reducer, Sum):
            wide: Any = {name: array.astype(reducer.dtype) for name, array in origin.items()}
            return Terms(wide, values, [1.0] * len(values), 1.0)
        factors = private_factors(reducer, self.server.cfg)
        size = divisor_of(reducer, factors, self._meant_for)
        return Terms(origin, values, [factors[reply.client] for reply in replies], size)

    @property
    def _meant_for(self) -> int:
        return self.server.counting.meant_for(self.server.server_round)

    def scores(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Return noised means instead of clients' scores, if ``privacy.scores`` says so."""
        if self.server.cfg.privacy.scores != "noised":
            return scores
        return {
            **scores,
            "metrics": self.account.release_scores(scores["clients"]),
            "clients": {},
            **self.spent(),
        }

    # --- the budget -------------------------------------------------------------------------------

    def allows_round(self, pending: bool, ahead: Iterable[int]) -> bool:
        """Return whether the budget covers one more round."""
        return self.account.allows(self.account.next_round(pending, sum(ahead)))

    def spent(self) -> dict[str, Any]:
        """Return the releases so far, and the ε that they cost."""
        return {"privacy": self.account.spent()}

    def save(self, ahead: Iterable[int]) -> Tree:
        """Return the releases so far and those before the next checkpoint."""
        return {**self.inner.save(()), "privacy": self.account.state(ahead)}

    def load(self, tree: Tree) -> None:
        """Restore the releases of earlier rounds.

        Raises:
            FedGraphError: they had other noise.
        """
        self.inner.load(tree)
        self.account.load_state(tree.get("privacy", {}))
