"""The server's side of secure aggregation (`fedgraph_flwr.secure.secagg`): exchanges around a masked sum.

    secagg_keys, secagg_shares → train, or a phase of the method (masked) → secagg_agree, unmask     for each sum, over the batch

Methods need no change: their declared means and sums have the same values as without it. Each group is masked with its own
ratio, since a mean and a sum in one reply weight a client differently.

An opened sum is stored before it is used, until a checkpoint covers its round. A run that resumes from an earlier round masks
again, but reads the sums of those rounds from the store instead of opening sums over other survivors (`OpenedStore`).
"""

from typing import Any

import numpy as np

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.bases import GraphStrategy
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer, Sum, sums
from fedgraph_flwr.methods.weighting import in_sum, sizes_of
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.secagg import (
    AGREE,
    AGREED,
    CLIENTS,
    CONSENT,
    DEAL,
    ENVELOPES,
    KEYS,
    LONGEST_REPORT,
    MEMBERS,
    MIN_CLIENTS,
    PUBLISH,
    REPORT,
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
from fedgraph_flwr.strategies.opened_store import OpenedStore
from fedgraph_flwr.strategies.reducing import private_weights
from fedgraph_flwr.wire.messages import CLIPPED, Arrays, Reply, positive, to_record
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, ReplySchema, up_to


class SecureSums:
    """The secure sums of a run, one at a time.

    Args:
        strategy: the strategy whose clients are summed.
        store: keeps opened sums.

    Attributes:
        phase: the exchange whose replies are terms of the current sum.
        keys: the clients' keys for this sum, [4, 32] by client.
        members: the clients that made masks for each other.
        ratios: their shares of the weights, by group.
    """

    def __init__(self, strategy: GraphStrategy, store: OpenedStore | None = None):
        self.strategy, self.rules = strategy, strategy.cfg.privacy
        self.store = store or OpenedStore(None)
        self.phase = ""
        self.keys: dict[int, np.ndarray] = {}
        self.members: list[int] = []
        self.ratios: dict[str, dict[int, float]] = {}

    def own_schema(self, phase: str) -> ReplySchema | None:
        """Return the schema of a reply to an exchange around a sum; None for the phases of the method."""
        if phase == PUBLISH:
            fields = {KEYS: ArrayField((4, 32), "uint8"), SIZES: ArrayField((2,), "int64", 0, LARGEST)}
            return ReplySchema({SECAGG: {**fields, **SIGNATURE_FIELD}})
        if phase == DEAL:
            return ReplySchema({SECAGG: {ENVELOPES: ArrayField((len(self.keys), envelope_size()), "uint8")}})
        if phase == AGREE:
            report = ArrayField((up_to(LONGEST_REPORT),), "uint8")
            return ReplySchema({SECAGG: {CONSENT: ArrayField((SIGNED,), "uint8"), REPORT: report}})
        if phase == UNMASK:
            return ReplySchema({SECAGG: {SHARES: ArrayField((len(self.members), LIMBS), "uint32", 0, PRIME - 1)}})
        return None

    def masked(self, phase: str, wanted: ReplySchema) -> ReplySchema:
        """Return the schema of a reply whose groups in the current sum are masked."""
        if phase != self.phase:
            return wanted
        masked = {
            group: {n: ArrayField(f.shape, "uint64") for n, f in fields.items()} if group in self.ratios else fields
            for group, fields in wanted.groups.items()
        }
        if self.ratios:
            masked[SECAGG] = {AGREED: ArrayField((32,), "uint8")}
        return ReplySchema(masked, wanted.numbers)

    def unsealed(self, phase: str, reply: Reply) -> Reply:
        """Return the part of a reply that can be checked before its sum is known."""
        if phase != self.phase:
            return reply
        seen = {group: arrays for group, arrays in reply.groups.items() if group not in self.ratios}
        return Reply(reply.client, seen, reply.metrics, reply.message)

    def begin(self, phase: str, requested: list[int]) -> dict[int, dict[str, Any]]:
        """Collect keys and shares for a sum over clients, and return each member's inputs for its masks.

        Args:
            phase: the phase whose replies will be summed.
            requested: the clients; those that send no keys or no shares are dropped.

        Raises:
            RunFailed: too few clients replied.
        """
        method, self.phase, self.ratios = self.strategy, phase, {}
        replies = list(method.request(PUBLISH, clients=requested))
        self.keys = {reply.client: reply.groups[SECAGG][KEYS] for reply in replies}
        sizes = {reply.client: reply.groups[SECAGG][SIZES] for reply in replies}
        self._check_sizes(sizes)
        self._enough(PUBLISH, len(self.keys), len(requested))
        group = {
            CLIENTS: np.array(list(self.keys), np.int64),
            KEYS: np.stack(list(self.keys.values())),
            SIZES: np.stack(list(sizes.values())),
        }
        down = {SECAGG: to_record(group), **signatures(replies, SECAGG)}
        replies = list(method.request(DEAL, down, list(self.keys)))
        dealt = {reply.client: reply.groups[SECAGG][ENVELOPES] for reply in replies}
        self.members = list(dealt)
        self._enough(DEAL, len(dealt), len(self.keys))
        method.drop(set(requested) - set(dealt))
        for name in sums(declared := method.uplink_of[phase]):
            _, shares = in_sum(declared[name], method.cfg, sizes, self.members)
            self.ratios[name] = dict(zip(self.members, shares.tolist(), strict=True))
        places, members = {client: place for place, client in enumerate(self.keys)}, np.array(self.members, np.int64)
        envelopes = {
            client: np.stack([dealt[peer][place] for peer in self.members]) for client, place in places.items()
        }
        return {client: {SECAGG: {MEMBERS: members, ENVELOPES: envelopes[client]}} for client in self.members}

    def _check_sizes(self, sizes: dict[int, np.ndarray]) -> None:
        """Refuse a client whose published sizes are not those of its description.

        Raises:
            RunFailed: names the client.
        """
        for client, published in sizes.items():
            if published.tolist() != sizes_of(self.strategy.clients[client].description):
                sizes_sent = f"the sizes {published.tolist()} for a secure sum, not those of its description"
                raise RunFailed(f"client {client} published {sizes_sent}: start the run again without it")

    def reveal(self, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the weighted mean, or the sum, of each masked group over the clients that replied.

        Raises:
            RunFailed: too few clients reply, a share is wrong, or the sum exceeds the fixed-point range.
        """
        method = self.strategy
        survivors = [reply.client for reply in replies]
        self._enough(self.phase, len(survivors), len(self.keys))
        agreed = {reply.groups[SECAGG][AGREED].tobytes() for reply in replies}
        if len(agreed) > 1:
            raise RunFailed(
                f"round {method.server_round}, {self.phase}: clients masked their values under different lists of weights,"
                " keys or models, so their masks do not cancel: the server sent them different ones, or a client is faulty or"
                " malicious"
            )
        if stored := self.store.read(method.server_round, self.phase):
            return stored
        found = self._opened(replies, survivors, next(iter(agreed)))
        fields = method.reader.schema(self.phase, survivors[0]).groups
        declared = method.uplink_of[self.phase]
        values = {
            group: {
                name: self._value(declared[group], group, name, total, survivors).astype(
                    getattr(declared[group], "dtype", fields[group][name].dtype)
                )
                for name, total in arrays.items()
            }
            for group, arrays in found.items()
        }
        self.store.write(method.server_round, self.phase, values)
        return values

    def _opened(self, replies: list[Reply], survivors: list[int], agreed: bytes) -> dict[str, Arrays]:
        """Collect signatures on the survivors and their shares, and return the sums.

        Raises:
            RunFailed: too few clients reply, or a share is wrong.
        """
        method, needed = self.strategy, threshold(self.rules.secagg_threshold, len(self.keys))
        alive = np.array(survivors, np.int64)
        signed = list(method.request(AGREE, {SECAGG: {SURVIVORS: alive}}, survivors))
        self._enough(AGREE, len(signed), len(self.keys))
        consents = {reply.client: reply.groups[SECAGG] for reply in signed}
        revealed = list(method.request(UNMASK, {SECAGG: relayed(consents)}, list(consents)))
        self._enough(UNMASK, len(revealed), len(self.keys))
        shares = {reply.client: reply.groups[SECAGG][SHARES] for reply in revealed}
        masked = {r.client: {g: arrays for g, arrays in r.groups.items() if g in self.ratios} for r in replies}
        rules = needed, self.rules.secagg_bits, method.server_round
        return unmasked(masked, shares, self.members, self.keys, *rules, agreed)

    def _value(self, reducer: Reducer, group: str, name: str, total: np.ndarray, survivors: list[int]) -> np.ndarray:
        """Return the mean over the survivors, or the sum, in which each of n members has the ratio 1 / n.

        Under differential privacy the configuration gives the divisor of a mean, which is added to its origin.

        Raises:
            FedGraphError: the weights of a mean sum to 0.
        """
        if isinstance(reducer, Sum):
            return total * len(self.members) * self._unit(group)
        if self.strategy.privacy:
            _, size = private_weights(self.strategy, reducer)
            origin = self.strategy.arrays[name] if getattr(reducer, "origin", "") == ARRAYS else 0.0
            return np.asarray(origin + total * (len(self.members) / size) * self._unit(group))
        return total / positive(sum(self.ratios[group][client] for client in survivors))

    def _unit(self, group: str) -> float:
        """Return the unit of a group's values: its adaptive clipping norm."""
        privacy = self.strategy.privacy if self.rules.adaptive and group != CLIPPED else None
        return float(privacy.norms[group]) if privacy else 1.0

    def min_clients(self, of: int) -> int:
        """Return the fewest of ``of`` requested clients with which a sum can start."""
        return max(threshold(self.rules.secagg_threshold, of), MIN_CLIENTS)

    def _enough(self, phase: str, count: int, of: int) -> None:
        needed = self.min_clients(of) if phase in (PUBLISH, DEAL) else threshold(self.rules.secagg_threshold, of)
        if count < needed:
            method = self.strategy
            why = "".join(f"; client {client}: {reason}" for client, reason in list(method.failed.items())[:1])
            raise RunFailed(
                f"round {method.server_round}, {phase}: {count} of {of} clients sent a valid reply, expected at least {needed}"
                f" for a secure sum (privacy.secagg_threshold={self.rules.secagg_threshold:g}){why}"
            )
