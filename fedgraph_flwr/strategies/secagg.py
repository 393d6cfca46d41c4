"""The server's side of secure aggregation (`fedgraph_flwr.secure.secagg`): exchanges around a masked sum.

    secagg_keys, secagg_shares → train, or a phase of the method (masked) → unmask                  for each sum, over the cohort

Methods do not know of it. Where they read one client's arrays they are given the mean over all that answered, so that whatever
they average by the weights they told comes out as it would: what a method needs beyond that it declares, and is refused.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.secagg import (
    AGREED,
    CLIENTS,
    DEAL,
    ENVELOPES,
    FEWEST,
    KEYS,
    MEMBERS,
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
from fedgraph_flwr.wire.messages import TRAIN, Reply, to_record
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema

if TYPE_CHECKING:
    from fedgraph_flwr.strategies.base import GraphStrategy


class SecureSums:
    """Secure sums of a run, one at a time.

    Args:
        strategy: whose clients add up.

    Attributes:
        phase: the exchange whose answers are terms of the sum at hand.
        keys: for this sum, [3, 32] by client.
        members: the clients that made masks for each other.
        ratios: their shares of the weights.
    """

    def __init__(self, strategy: "GraphStrategy"):
        self.strategy, self.rules = strategy, strategy.cfg.privacy
        self.open = set(locate(strategy.cfg.strategy.client).unmasked(strategy.cfg))
        self.phase = ""
        self.keys: dict[int, np.ndarray] = {}
        self.members: list[int] = []
        self.ratios: dict[int, float] = {}

    def schema(self, phase: str, client: int | None) -> ReplySchema:
        """What an answer to a phase holds where sums are secure."""
        if phase == PUBLISH:
            return ReplySchema({SECAGG: {KEYS: ArrayField((3, 32), "uint8"), **SIGNATURE_FIELD}})
        if phase == DEAL:
            return ReplySchema({SECAGG: {ENVELOPES: ArrayField((len(self.keys), envelope_size()), "uint8")}})
        if phase == UNMASK:
            return ReplySchema({SECAGG: {SHARES: ArrayField((len(self.members), LIMBS), "uint32", 0, PRIME - 1)}})
        wanted = self.strategy.schema(phase, client)
        if phase != self.phase:
            return wanted
        masked = {
            group: fields if group in self.open else {n: ArrayField(f.shape, "uint64") for n, f in fields.items()}
            for group, fields in wanted.groups.items()
        }
        if masked.keys() - self.open:
            masked[SECAGG] = {AGREED: ArrayField((32,), "uint8")}
        return ReplySchema(masked, wanted.numbers)

    def unsealed(self, phase: str, reply: Reply) -> Reply:
        """What of an answer can be judged before its sum is known."""
        if phase != self.phase:
            return reply
        seen = {group: arrays for group, arrays in reply.groups.items() if group in self.open}
        return Reply(reply.client, seen, reply.metrics, reply.message)

    def begin(self, phase: str, weights: Callable[[list[int]], list[float]]) -> dict[int, dict[str, Any]]:
        """Keys and shares for a sum over the cohort, which shrinks to those that gave both; what each needs to mask, by client.

        Args:
            phase: whose answers will be added.
            weights: how each of these clients counts, unnormalised.

        Raises:
            RunFailed: too few clients answered.
            FedGraphError: the method's training answer holds arrays that it does not declare as `sums`.
        """
        method, asked, self.phase = self.strategy, self.strategy.addressed, phase
        groups = method.schema(phase, asked[0]).groups.keys() - self.open
        if phase == TRAIN and (odd := sorted(groups - set(method.sums))):
            raise FedGraphError(
                f"privacy.secagg=true shows the server sums alone, and {method.cfg.strategy.name} asks for '{odd[0]}'"
                f" of each client"
            )
        told = method.ask(PUBLISH)
        self.keys = {reply.client: reply.groups[SECAGG][KEYS] for reply in told}
        self._enough(PUBLISH, len(self.keys), len(asked))
        group = {CLIENTS: np.array(list(self.keys), np.int64), KEYS: np.stack(list(self.keys.values()))}
        down = {SECAGG: to_record(group), **signatures(told, SECAGG)}
        told = method.ask(DEAL, down, list(self.keys))
        dealt = {reply.client: reply.groups[SECAGG][ENVELOPES] for reply in told}
        self.members = list(dealt)
        self._enough(DEAL, len(dealt), len(self.keys))
        method.drop(set(asked) - set(dealt))
        counts = weights(self.members)
        total = sum(counts)
        self.ratios = {c: count / total if total else 0.0 for c, count in zip(self.members, counts, strict=True)}
        ratios = np.array([self.ratios[client] for client in self.members])
        places, members = {client: place for place, client in enumerate(self.keys)}, np.array(self.members, np.int64)
        return {
            client: {
                SECAGG: {
                    RATIOS: ratios,
                    MEMBERS: members,
                    ENVELOPES: np.stack([dealt[peer][places[client]] for peer in self.members]),
                }
            }
            for client in self.members
        }

    def reveal(self, replies: list[Reply]) -> list[Reply]:
        """The answers, each with the weighted mean over all of them in the place of its masked arrays.

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
        told = method.ask(UNMASK, {SECAGG: {SURVIVORS: np.array(survivors, np.int64)}}, survivors)
        self._enough(UNMASK, len(told), len(self.keys))
        shares = {reply.client: reply.groups[SECAGG][SHARES] for reply in told}
        hidden = self.open | {SECAGG}
        answers = {r.client: {g: arrays for g, arrays in r.groups.items() if g not in hidden} for r in replies}
        bits = self.rules.secagg_bits
        sums = unmasked(answers, shares, self.members, self.keys, needed, bits, method.server_round, next(iter(agreed)))
        weight = sum(self.ratios[client] for client in survivors)
        if not weight:
            raise FedGraphError("the aggregation weights of this round's clients sum to 0: none has a training node")
        dtypes = method.schema(self.phase, survivors[0]).groups
        means = {
            group: {name: (total / weight).astype(dtypes[group][name].dtype) for name, total in arrays.items()}
            for group, arrays in sums.items()
        }
        seen = [{g: arrays for g, arrays in reply.groups.items() if g in self.open} for reply in replies]
        return [
            Reply(reply.client, {**own, **means}, reply.metrics, reply.message)
            for reply, own in zip(replies, seen, strict=True)
        ]

    def fewest(self, of: int) -> int:
        """How many of the clients that are asked for a sum have to begin it."""
        return max(threshold(self.rules.secagg_threshold, of), FEWEST)

    def _enough(self, phase: str, count: int, of: int) -> None:
        needed = self.fewest(of) if phase in (PUBLISH, DEAL) else threshold(self.rules.secagg_threshold, of)
        if count < needed:
            method = self.strategy
            why = "".join(f"; client {client}: {reason}" for client, reason in list(method.failed.items())[:1])
            raise RunFailed(
                f"round {method.server_round}, {phase}: {count} of {of} clients gave a valid answer, {needed} needed"
                f" for a secure "
                f"sum (privacy.secagg_threshold={self.rules.secagg_threshold:g}){why}"
            )
