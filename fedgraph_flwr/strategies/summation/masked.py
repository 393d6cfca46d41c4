"""Secure aggregation (``privacy.secagg``): exchanges around a masked sum.

    secagg_keys, secagg_shares → train, or a phase of the method (masked) → secagg_agree, unmask

for each sum, over the batch (`fedgraph_flwr.secure.secagg`). Methods need no change: their declared
means and sums have the same values as without it. Each group is masked with its own ratio, since a
mean and a sum in one reply weight a client differently.

An opened sum is stored before it is used, until a checkpoint covers its round. A run that resumes
from an earlier round masks again, but reads the sums of those rounds from the store instead of
opening sums over other survivors (`OpenedStore`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer, Sum, sums
from fedgraph_flwr.methods.weighting import in_sum, private_factors, sizes_of
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.secagg import (
    AGREE,
    AGREED,
    CLIENTS,
    CONSENT,
    DEAL,
    ENVELOPES,
    KEYS,
    MEMBERS,
    MIN_CLIENTS,
    PUBLISH,
    SECAGG,
    SHARES,
    SIGNED,
    SIZES,
    SURVIVORS,
    UNMASK,
    envelope_size,
    relayed,
    threshold,
    unmasked,
)
from fedgraph_flwr.secure.shamir import LIMBS, PRIME
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.round import GroupsFor
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.interface import Summation, divisor_of
from fedgraph_flwr.strategies.summation.opened_store import OpenedStore
from fedgraph_flwr.wire.messages import TRAIN, Arrays, Reply, positive, to_record
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, ReplySchema


class Masked(Summation):
    """The secure sums of a run, one at a time.

    Args:
        server: the run's server.
        schemas: what the method declares.
        store: keeps opened sums.
        account: of sums that are released with noise; None: they are not.

    Attributes:
        phase: the exchange whose replies are terms of the current sum.
        keys: the clients' keys for this sum, [4, 32] by client.
        members: the clients that made masks for each other.
        ratios: their shares of the weights, by group.
    """

    __slots__ = ("account", "keys", "members", "phase", "ratios", "schemas", "store")

    def __init__(
        self,
        server: GraphStrategy,
        schemas: Schemas,
        store: OpenedStore | None = None,
        account: Privacy | None = None,
    ):
        super().__init__(server)
        self.schemas = schemas
        self.store = store or OpenedStore(None)
        self.account = account
        self.phase = ""
        self.keys: dict[int, np.ndarray] = {}
        self.members: list[int] = []
        self.ratios: dict[str, dict[int, float]] = {}

    # --- who takes part ---------------------------------------------------------------------------

    def min_clients(self, requested: int) -> int:
        """Return the fewest of the requested clients with which a sum can start."""
        return max(threshold(self.server.cfg.privacy.secagg_threshold, requested), MIN_CLIENTS)

    # --- one exchange -----------------------------------------------------------------------------

    def begin(self, phase: str, clients: list[int]) -> dict[int, dict[str, Any]] | None:
        """Collect keys and shares for a sum over clients.

        Args:
            phase: the phase whose replies will be summed.
            clients: those that send no keys or no shares are dropped.

        Returns:
            The inputs of each member for its masks; None: the phase has no sum.

        Raises:
            RunFailed: too few clients replied.
        """
        server = self.server
        declared = server.uplink_of.get(phase, {})
        if not sums(declared) and phase != TRAIN:
            return None
        self.phase = phase
        self.ratios = {}
        replies = server.request(PUBLISH, self.opening(), clients).replies
        self.keys = {reply.client: reply.groups[SECAGG][KEYS] for reply in replies}
        sizes = {reply.client: reply.groups[SECAGG][SIZES] for reply in replies}
        self._check_sizes(sizes)
        self._enough(PUBLISH, len(self.keys), len(clients))
        group = {
            CLIENTS: np.array(list(self.keys), np.int64),
            KEYS: np.stack(list(self.keys.values())),
            SIZES: np.stack(list(sizes.values())),
        }
        down = {SECAGG: to_record(group), **signatures(replies, SECAGG)}
        replies = server.request(DEAL, down, list(self.keys)).replies
        dealt = {reply.client: reply.groups[SECAGG][ENVELOPES] for reply in replies}
        self.members = list(dealt)
        self._enough(DEAL, len(dealt), len(self.keys))
        server.drop(set(clients) - set(dealt))
        self.weigh(phase, self.members, sizes)
        members = np.array(self.members, np.int64)
        envelopes = {
            client: np.stack([dealt[peer][place] for peer in self.members])
            for place, client in enumerate(self.keys)
        }
        return {
            client: {SECAGG: {MEMBERS: members, ENVELOPES: envelopes[client]}}
            for client in self.members
        }

    def weigh(self, phase: str, members: list[int], sizes: Mapping[int, np.ndarray]) -> None:
        """Note the members of a phase's sum, and their shares of its weights.

        Args:
            phase: the phase.
            members: the members.
            sizes: their sizes, [2] each.
        """
        self.phase, self.members = phase, members
        server = self.server
        declared = server.uplink_of[phase]
        for name in sums(declared):
            _, shares = in_sum(
                declared[name], server.cfg, server.counting.private, sizes, members
            )
            self.ratios[name] = dict(zip(members, shares.tolist(), strict=True))

    def _check_sizes(self, sizes: dict[int, np.ndarray]) -> None:
        """Refuse a client whose published sizes are not those of its description.

        Raises:
            RunFailed: names the client.
        """
        for client, published in sizes.items():
            if published.tolist() != sizes_of(self.server.clients[client].description):
                raise RunFailed(
                    f"client {client} published the sizes {published.tolist()} for a secure sum,"
                    " not those of its description: start the run again without it"
                )

    def schema(self, phase: str, declared: Callable[[], ReplySchema]) -> ReplySchema:
        """Return the schema of a reply to an exchange around a sum, or with masked groups."""
        group: dict[str, ArrayField]
        if phase == PUBLISH:
            sizes = ArrayField((2,), "int64", 0, LARGEST)
            group = {KEYS: ArrayField((4, 32), "uint8"), SIZES: sizes, **SIGNATURE_FIELD}
        elif phase == DEAL:
            group = {ENVELOPES: ArrayField((len(self.keys), envelope_size()), "uint8")}
        elif phase == AGREE:
            group = {CONSENT: ArrayField((SIGNED,), "uint8")}
        elif phase == UNMASK:
            group = {SHARES: ArrayField((len(self.members), LIMBS), "uint32", 0, PRIME - 1)}
        else:
            return self._masked(declared()) if phase == self.phase else declared()
        return ReplySchema({SECAGG: group})

    def _masked(self, wanted: ReplySchema) -> ReplySchema:
        """Return the schema of a reply whose groups in the current sum are masked."""
        masked = {
            group: {name: ArrayField(field.shape, "uint64") for name, field in fields.items()}
            if group in self.ratios
            else fields
            for group, fields in wanted.groups.items()
        }
        if self.ratios:
            masked[SECAGG] = {AGREED: ArrayField((32,), "uint8")}
        return ReplySchema(masked, wanted.numbers)

    def readable(self, phase: str, reply: Reply) -> Reply:
        """Return the part of a reply that is not masked."""
        if phase != self.phase:
            return reply
        open_groups = {
            group: arrays for group, arrays in reply.groups.items() if group not in self.ratios
        }
        return Reply(reply.client, open_groups, reply.metrics, reply.message)

    # --- the result -------------------------------------------------------------------------------

    def open_sums(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the weighted mean, or the sum, of each masked group over the clients that replied.

        Raises:
            RunFailed: too few clients reply, a share is wrong, or a sum exceeds its range.
        """
        server = self.server
        survivors = [reply.client for reply in replies]
        self._enough(self.phase, len(survivors), len(self.keys))
        agreed = {reply.groups[SECAGG][AGREED].tobytes() for reply in replies}
        if len(agreed) > 1:
            raise RunFailed(
                f"round {server.server_round}, {self.phase}: clients masked their values under"
                " different lists of weights, keys or models, so their masks do not cancel: the"
                " server sent them different ones, or a client is faulty or malicious"
            )
        if stored := self.store.read(server.server_round, self.phase):
            return stored
        opened = self._opened(replies, survivors, next(iter(agreed)))
        values = self.values(opened, survivors)
        self.store.write(server.server_round, self.phase, values)
        return values

    def _opened(
        self, replies: list[Reply], survivors: list[int], agreed: bytes
    ) -> dict[str, Arrays]:
        """Collect signatures on the survivors and their shares, and return the sums.

        Raises:
            RunFailed: too few clients reply, or a share is wrong.
        """
        server = self.server
        rules = self.server.cfg.privacy
        needed = threshold(rules.secagg_threshold, len(self.keys))
        alive = {SURVIVORS: np.array(survivors, np.int64)}
        signed = server.request(
            AGREE, {SECAGG: alive | self.statements(replies)}, survivors
        ).replies
        self._enough(AGREE, len(signed), len(self.keys))
        consents = {reply.client: reply.groups[SECAGG] for reply in signed}
        revealed = server.request(
            UNMASK, {SECAGG: self.signatures(consents)}, list(consents)
        ).replies
        self._enough(UNMASK, len(revealed), len(self.keys))
        shares = {reply.client: reply.groups[SECAGG][SHARES] for reply in revealed}
        masked = {
            reply.client: {
                group: arrays for group, arrays in reply.groups.items() if group in self.ratios
            }
            for reply in replies
        }
        self.deliver(masked, shares)
        return unmasked(
            masked,
            shares,
            self.members,
            self.keys,
            needed,
            rules.secagg_bits,
            server.server_round,
            agreed,
        )

    # --- what rounds that every node computes send along ------------------------------------------

    def opening(self) -> GroupsFor:
        """Return what clients receive with the first request of a sum."""
        return {}

    def statements(self, replies: list[Reply]) -> Arrays:
        """Return what members receive of each other's terms with the survivors."""
        return {}

    def signatures(self, consents: dict[int, Arrays]) -> Arrays:
        """Return the signatures of the survivors that members receive."""
        return relayed(consents)

    def deliver(
        self, masked: dict[int, dict[str, Arrays]], shares: dict[int, np.ndarray]
    ) -> None:
        """Let members have the terms and shares of a sum."""

    def values(self, opened: dict[str, Arrays], survivors: list[int]) -> dict[str, Arrays]:
        """Return means and sums in their declared types."""
        fields = self.schemas.of(self.phase, survivors[0]).groups
        values: dict[str, Arrays] = {}
        for group, arrays in opened.items():
            reducer = self.server.uplink_of[self.phase][group]
            values[group] = {}
            for name, total in arrays.items():
                dtype = getattr(reducer, "dtype", fields[group][name].dtype)
                value = self._value(reducer, group, name, total, survivors)
                values[group][name] = np.asarray(value).astype(dtype)
        return values

    def _value(
        self, reducer: Reducer, group: str, name: str, total: np.ndarray, survivors: list[int]
    ) -> Any:
        """Return a mean over the survivors, or a sum, in which n members have the ratio 1 / n.

        With distributed noise, clients sent updates (`Clipped.leave`), so the start is added again.
        """
        server, members, account = self.server, len(self.members), self.account
        unit = account.unit(group) if account else 1.0
        if isinstance(reducer, Sum):
            return total * members * unit
        if not account:
            return total / positive(sum(self.ratios[group][client] for client in survivors))
        factors = private_factors(reducer, server.cfg)
        size = divisor_of(reducer, factors, server.counting.meant_for(server.server_round))
        start = server.arrays[name] if getattr(reducer, "origin", "") == ARRAYS else 0.0
        return start + total * (members / size) * unit

    def forget(self, server_round: int) -> None:
        """Delete the opened sums up to a round, which a checkpoint covers."""
        self.store.forget(server_round)

    def _enough(self, phase: str, count: int, of: int) -> None:
        """Refuse to continue with too few clients.

        Raises:
            RunFailed: names the phase, the numbers and the first failure.
        """
        share = self.server.cfg.privacy.secagg_threshold
        starts = phase in (PUBLISH, DEAL)
        needed = self.min_clients(of) if starts else threshold(share, of)
        if count >= needed:
            return
        failures = list(self.server.failed.items())
        why = f"; client {failures[0][0]}: {failures[0][1]}" if failures else ""
        raise RunFailed(
            f"round {self.server.server_round}, {phase}: {count} of {of} clients sent a valid"
            f" reply, expected at least {needed} for a secure sum"
            f" (privacy.secagg_threshold={share:g}){why}"
        )
