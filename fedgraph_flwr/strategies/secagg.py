"""The server's side of secure aggregation (`fedgraph_flwr.secure.secagg`): exchanges around a masked sum.

    secagg_keys, secagg_shares → train, or a phase of the method (masked) → unmask                  for each sum, over the cohort

Methods do not know of it: what their uplink declares as a mean or sum comes out as it would in the clear. Each group is masked
with its own ratio, since a mean and a sum in one reply weigh a client differently.
"""

from typing import Any

import numpy as np

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer, Sum, sums
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.secagg import (
    AGREED,
    CLIENTS,
    DEAL,
    ENVELOPES,
    KEYS,
    MEMBERS,
    MIN_CLIENTS,
    PUBLISH,
    RATIOS,
    SECAGG,
    SHARES,
    SURVIVORS,
    UNMASK,
    envelope_size,
    threshold,
    unmasked,
)
from fedgraph_flwr.secure.shamir import LIMBS, PRIME
from fedgraph_flwr.strategies.contract import Method
from fedgraph_flwr.strategies.reducing import private_weights
from fedgraph_flwr.wire.messages import Arrays, Reply, to_record
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema


class SecureSums:
    """Secure sums of a run, one at a time.

    Args:
        strategy: whose clients add up.

    Attributes:
        phase: the exchange whose answers are terms of the sum at hand.
        keys: for this sum, [3, 32] by client.
        members: the clients that made masks for each other.
        ratios: their shares of the weights, by group.
    """

    def __init__(self, strategy: Method):
        self.strategy, self.rules = strategy, strategy.cfg.privacy
        self.phase = ""
        self.keys: dict[int, np.ndarray] = {}
        self.members: list[int] = []
        self.ratios: dict[str, dict[int, float]] = {}

    def own_schema(self, phase: str) -> ReplySchema | None:
        """What a reply to an exchange around a sum holds; None for the phases of the method."""
        if phase == PUBLISH:
            return ReplySchema({SECAGG: {KEYS: ArrayField((3, 32), "uint8"), **SIGNATURE_FIELD}})
        if phase == DEAL:
            return ReplySchema({SECAGG: {ENVELOPES: ArrayField((len(self.keys), envelope_size()), "uint8")}})
        if phase == UNMASK:
            return ReplySchema({SECAGG: {SHARES: ArrayField((len(self.members), LIMBS), "uint32", 0, PRIME - 1)}})
        return None

    def masked(self, phase: str, wanted: ReplySchema) -> ReplySchema:
        """The schema of a reply whose groups in the current sum are masked."""
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
        """What of an answer can be judged before its sum is known."""
        if phase != self.phase:
            return reply
        seen = {group: arrays for group, arrays in reply.groups.items() if group not in self.ratios}
        return Reply(reply.client, seen, reply.metrics, reply.message)

    def begin(self, phase: str, asked: list[int]) -> dict[int, dict[str, Any]]:
        """Keys and shares for a sum over clients, which shrink to those that gave both; what each needs to mask, by client.

        Args:
            phase: whose replies will be added.
            asked: the clients.

        Raises:
            RunFailed: too few clients replied.
        """
        method, self.phase, self.ratios = self.strategy, phase, {}
        told = list(method.request(PUBLISH, clients=asked))
        self.keys = {reply.client: reply.groups[SECAGG][KEYS] for reply in told}
        self._enough(PUBLISH, len(self.keys), len(asked))
        group = {CLIENTS: np.array(list(self.keys), np.int64), KEYS: np.stack(list(self.keys.values()))}
        down = {SECAGG: to_record(group), **signatures(told, SECAGG)}
        told = list(method.request(DEAL, down, list(self.keys)))
        dealt = {reply.client: reply.groups[SECAGG][ENVELOPES] for reply in told}
        self.members = list(dealt)
        self._enough(DEAL, len(dealt), len(self.keys))
        method.drop(set(asked) - set(dealt))
        for name in sums(declared := method.uplink_of[phase]):
            if method.privacy:
                factors, _ = private_weights(method, declared[name])
                self.ratios[name] = {c: factors[c] / len(self.members) for c in self.members}
                continue
            counts = method.weights_in(declared[name], self.members)
            total = sum(counts)
            self.ratios[name] = {
                c: count / total if total else 0.0 for c, count in zip(self.members, counts, strict=True)
            }
        shares = {group: np.array([ratios[client] for client in self.members]) for group, ratios in self.ratios.items()}
        places, members = {client: place for place, client in enumerate(self.keys)}, np.array(self.members, np.int64)
        return {
            client: {
                SECAGG: {
                    **{f"{RATIOS}/{group}": own for group, own in shares.items()},
                    MEMBERS: members,
                    ENVELOPES: np.stack([dealt[peer][places[client]] for peer in self.members]),
                }
            }
            for client in self.members
        }

    def reveal(self, replies: list[Reply]) -> dict[str, Arrays]:
        """The weighted mean, or the sum, of each masked group over the clients that replied.

        Raises:
            RunFailed: too few answer, a share is wrong, or the sum is beyond the fixed point.
        """
        method, needed = self.strategy, threshold(self.rules.secagg_threshold, len(self.keys))
        survivors = [reply.client for reply in replies]
        self._enough(self.phase, len(survivors), len(self.keys))
        agreed = {reply.groups[SECAGG][AGREED].tobytes() for reply in replies}
        if len(agreed) > 1:
            raise RunFailed(
                f"round {method.server_round}, {self.phase}: clients masked their values under different lists of weights, keys"
                " or models, so that their masks do not cancel: the server sent them different ones, or a client answers wrongly"
            )
        told = list(method.request(UNMASK, {SECAGG: {SURVIVORS: np.array(survivors, np.int64)}}, survivors))
        self._enough(UNMASK, len(told), len(self.keys))
        shares = {reply.client: reply.groups[SECAGG][SHARES] for reply in told}
        answers = {r.client: {g: arrays for g, arrays in r.groups.items() if g in self.ratios} for r in replies}
        bits = self.rules.secagg_bits
        found = unmasked(
            answers, shares, self.members, self.keys, needed, bits, method.server_round, next(iter(agreed))
        )
        fields = method.reply_schema(self.phase, survivors[0]).groups
        declared = method.uplink_of[self.phase]
        return {
            group: {
                name: self._value(declared[group], group, name, total, survivors).astype(
                    getattr(declared[group], "dtype", fields[group][name].dtype)
                )
                for name, total in arrays.items()
            }
            for group, arrays in found.items()
        }

    def _value(self, reducer: Reducer, group: str, name: str, total: np.ndarray, survivors: list[int]) -> np.ndarray:
        """The mean over the survivors, or the sum, of which each member's ratio is one part of as many as there are members.

        Under differential privacy a mean is divided by what follows from the configuration, and added to its origin.

        Raises:
            FedGraphError: the weights of a mean sum to 0.
        """
        if isinstance(reducer, Sum):
            return total * len(self.members)
        if self.strategy.privacy:
            _, size = private_weights(self.strategy, reducer)
            origin = self.strategy.arrays[name] if getattr(reducer, "origin", "") == ARRAYS else 0.0
            return np.asarray(origin + total * (len(self.members) / size))
        weight = sum(self.ratios[group][client] for client in survivors)
        if not weight:
            raise FedGraphError("the aggregation weights of this round's clients sum to 0: none has a training node")
        return total / weight

    def min_clients(self, of: int) -> int:
        """How many of the clients that are asked for a sum have to begin it."""
        return max(threshold(self.rules.secagg_threshold, of), MIN_CLIENTS)

    def _enough(self, phase: str, count: int, of: int) -> None:
        needed = self.min_clients(of) if phase in (PUBLISH, DEAL) else threshold(self.rules.secagg_threshold, of)
        if count < needed:
            method = self.strategy
            why = "".join(f"; client {client}: {reason}" for client, reason in list(method.failed.items())[:1])
            raise RunFailed(
                f"round {method.server_round}, {phase}: {count} of {of} clients gave a valid answer, {needed} needed"
                f" for a secure "
                f"sum (privacy.secagg_threshold={self.rules.secagg_threshold:g}){why}"
            )
