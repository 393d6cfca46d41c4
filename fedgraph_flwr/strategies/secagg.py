"""The server's side of secure aggregation (`fedgraph_flwr.secure.secagg`): exchanges around a round's training, and the mean.

    secagg_keys, secagg_shares → train (masked) → unmask → aggregate                               each round, over the cohort

Methods do not know of it. Where they read one client's trained arrays they are given the mean over all that answered, so
that whatever they average by `GraphStrategy.sum_weights` comes out as it would: what a method needs beyond that it
declares, and is refused.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedgraph_flwr.answers import ArrayField, Schema
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.messages import TRAIN, Reply, to_record
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.secagg import (
    CLIENTS,
    ENVELOPES,
    FEWEST,
    KEYS,
    SECRET,
    SHARES,
    SURVIVORS,
    threshold,
    unmasked,
)
from fedgraph_flwr.methods.secagg import DEAL, PUBLISH, SECAGG, UNMASK

if TYPE_CHECKING:
    from fedgraph_flwr.strategies.base import GraphStrategy

_ENVELOPE = range(1, 1025)  # bytes


class SecureSums:
    """Secure sums of a run, a round at a time.

    Args:
        strategy: whose clients add up.

    Attributes:
        keys: of this round, [3, 32] by client.
        members: the clients that made masks for each other in this round.
    """

    def __init__(self, strategy: "GraphStrategy"):
        self.strategy, self.rules = strategy, strategy.cfg.privacy
        self.keys: dict[int, np.ndarray] = {}
        self.members: list[int] = []

    def schema(self, phase: str, client: int | None) -> Schema:
        """What an answer to a phase holds where sums are secure."""
        method = self.strategy
        if phase == PUBLISH:
            return Schema({SECAGG: {KEYS: ArrayField((3, 32), "uint8"), **SIGNATURE_FIELD}})
        if phase == DEAL:
            others = [str(other) for other in self.keys if other != client]
            return Schema({ENVELOPES: {other: ArrayField((_ENVELOPE,), "uint8") for other in others}})
        if phase == UNMASK:
            return Schema({SECAGG: {SHARES: ArrayField((len(self.members), SECRET), "uint8")}})
        wanted = method.schema(phase, client)
        if phase != TRAIN:
            return wanted
        masked = {g: {n: ArrayField(f.shape, "uint64") for n, f in fs.items()} for g, fs in wanted.groups.items()}
        return Schema(masked, wanted.numbers)

    def begin(self) -> None:
        """Keys and shares of this round's cohort; the groups that go down with the model then hold what each needs to mask.

        Raises:
            RunFailed: too few clients answered.
            FedGraphError: the method's training answer holds arrays that it does not declare as `sums`.
        """
        method, asked = self.strategy, len(self.strategy.cohort)
        if odd := sorted(set(method.schema(TRAIN, method.cohort[0]).groups) - set(method.sums)):
            raise FedGraphError(
                f"privacy.secagg=true shows the server sums alone, and {method.cfg.strategy.name} asks for '{odd[0]}' of each client"
            )
        told = method.ask(PUBLISH)
        self.keys = {reply.client: reply.groups[SECAGG][KEYS] for reply in told}
        self._enough(PUBLISH, len(self.keys), asked)
        group = {CLIENTS: np.array(list(self.keys), np.int64), KEYS: np.stack(list(self.keys.values()))}
        down = {SECAGG: to_record(group), **signatures(told, SECAGG)}
        dealt = {r.client: r.groups[ENVELOPES] for r in method.ask(DEAL, down, list(self.keys))}
        self.members = list(dealt)
        self._enough(DEAL, len(dealt), len(self.keys))
        method.drop(set(method.cohort) - set(dealt))
        weights = method.sum_weights(self.members)
        total = sum(weights)
        self.ratios = {c: w / total if total else 0.0 for c, w in zip(self.members, weights, strict=True)}
        method.send_beside(
            {
                client: {
                    SECAGG: {"ratio": np.array([self.ratios[client]])},
                    ENVELOPES: {str(peer): dealt[peer][str(client)] for peer in self.members if peer != client},
                }
                for client in self.members
            }
        )

    def reveal(self, replies: list[Reply]) -> list[Reply]:
        """The replies to training, each with the weighted mean over all of them in the place of its masked arrays.

        Raises:
            RunFailed: too few answer, a share is wrong, or the sum is beyond the fixed point.
        """
        method, needed = self.strategy, threshold(self.rules.secagg_threshold, len(self.keys))
        survivors = [reply.client for reply in replies]
        self._enough(TRAIN, len(survivors), len(self.keys))
        told = method.ask(UNMASK, {SECAGG: {SURVIVORS: np.array(survivors, np.int64)}}, survivors)
        self._enough(UNMASK, len(told), len(self.keys))
        shares = {reply.client: reply.groups[SECAGG][SHARES] for reply in told}
        answers = {reply.client: reply.groups for reply in replies}
        sums = unmasked(
            answers, shares, self.members, self.keys, needed, self.rules.secagg_bits, method.server_round
        )
        weight = sum(self.ratios[client] for client in survivors)
        if not weight:
            raise FedGraphError("the aggregation weights of this round's clients sum to 0: none has a training node")
        dtypes = method.schema(TRAIN, survivors[0]).groups
        means = {
            group: {name: (total / weight).astype(dtypes[group][name].dtype) for name, total in arrays.items()}
            for group, arrays in sums.items()
        }
        return [Reply(reply.client, means, reply.metrics, reply.message) for reply in replies]

    def _enough(self, phase: str, count: int, of: int) -> None:
        needed = max(threshold(self.rules.secagg_threshold, of), FEWEST if phase in (PUBLISH, DEAL) else 0)
        if count < needed:
            method = self.strategy
            why = "".join(f"; client {client}: {reason}" for client, reason in list(method.failed.items())[:1])
            raise RunFailed(
                f"round {method.server_round}, {phase}: {count} of {of} clients gave a valid answer, {needed} needed for a secure "
                f"sum (privacy.secagg_threshold={self.rules.secagg_threshold:g}){why}"
            )
