"""Secure aggregation at the client (``privacy.secagg``): exchanges around a sum, and its masked term (`secure.secagg`)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.downlink import Input
from fedgraph_flwr.methods.uplink import ARRAYS, Once, sums
from fedgraph_flwr.methods.weighting import batch_of, batches, in_sum
from fedgraph_flwr.secure.keyring import SIGNATURES, Keyring
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.protection.plain import Leaving, Place, Protection, Taken
from fedgraph_flwr.secure.secagg import (
    AGREE,
    AGREED,
    CLIENTS,
    DEAL,
    ENVELOPES,
    KEYS,
    MEMBERS,
    MODELS,
    PUBLISH,
    SECAGG,
    SIZES,
    STEPS,
    SURVIVORS,
    Member,
    publication,
    threshold,
    unpacked,
)
from fedgraph_flwr.wire.messages import TRAIN, Arrays
from fedgraph_flwr.wire.trees import as_arrays

LISTS = "lists"
"""Part of a client's state: the clients of this run's secure sums, by kind of values."""

HISTORY = "history"
"""Part of a client's state: the digest of this run's requests of phases with sums."""

_STEP = {
    SECAGG: Input("keys, envelopes and consents of the other clients in a secure sum"),
    SIGNATURES: Input("the clients' signatures of their keys"),
}


class Masked(Protection):
    """Clients mask their terms, and the server opens sums.

    Args:
        inner: the protection of a term before it is masked.
        client: index of the client.

    Attributes:
        member: the client's part in the current sum.
        history: digest of all requests of phases with sums so far.
    """

    exchanges: tuple[str, ...] = STEPS
    sums_only = True

    inner: Protection

    def __init__(self, inner: Protection, client: int):
        super().__init__(inner.cfg, inner)
        rules, self.key, self.history = inner.cfg.privacy, "privacy.secagg=true", b""
        self.weights: dict[int, int] = {}
        self.member = Member(client, rules.secagg_threshold, rules.secagg_bits, inner.noise)

    def downlink(self, summed: Collection[str]) -> dict[str, dict[str, Input]]:
        """Add the exchanges around a sum, and what a member of it receives."""
        inputs = {phase: dict(_STEP) for phase in STEPS} | self.inner.downlink(summed)
        part = Input("the members of a secure sum, with sealed shares of their secrets")
        for phase in {TRAIN, *summed}:
            inputs[phase] = {**inputs.get(phase, {}), SECAGG: part}
        return inputs

    def places(self, server_round: int, present: Sequence[int]) -> Sequence[int]:
        """Return the batch of a round."""
        return batch_of(self.cfg, server_round)

    def cohort_size(self, server_round: int, present: Sequence[int]) -> int:
        """Return the size of the batch, which trains as a whole."""
        return len(batch_of(self.cfg, max(server_round, 1)))

    def take(self, phase: str, groups: dict[str, Arrays], client_groups: Collection[str]) -> Taken:
        """Take the server's part of a sum; all groups that do not differ by client bind the masks."""
        if phase in STEPS:
            return Taken({})
        part = groups.pop(SECAGG, {})
        common = {
            f"{group}/{name}": a
            for group, arrays in groups.items()
            if group not in client_groups
            for name, a in arrays.items()
        }
        taken = self.inner.take(phase, groups, client_groups)
        return replace(taken, groups={**taken.groups, SECAGG: part}, digest=digest(common))

    def follow(self, phase: str, scalars: Callable[[], Any], taken: Taken) -> Taken:
        """Bind the masks of sums over one list to all requests before, too: what clients keep of them changes their terms."""
        if not self.one_list:
            return taken
        self.history = sha256(self.history + f"{phase} {scalars()}".encode() + taken.digest).digest()
        return replace(taken, digest=self.history)

    def answer(
        self, phase: str, at: tuple[int, int], groups: Mapping[str, Arrays], sizes: Sequence[int], keyring: Keyring
    ) -> dict[str, Arrays]:
        """Reply to a request for keys (`PUBLISH`), shares (`DEAL`), a signature (`AGREE`), or shares that unmask a sum."""
        member, server_round, request = self.member, at[0], groups.get(SECAGG, {})
        if phase == PUBLISH:
            published = member.publish(*at, sizes)
            content = publication(published[KEYS], published[SIZES])
            return {SECAGG: published | keyring.sign(self._subject(server_round), content)}
        if phase == DEAL:
            dealt = request[CLIENTS], request[KEYS], request[SIZES]
            if len({len(array) for array in dealt}) > 1:
                raise RunFailed(
                    f"client {member.client} received lists of clients, keys and sizes of different lengths"
                )
            for client, size in (
                zip(request[CLIENTS].tolist(), request[SIZES].tolist(), strict=True) if self.weights else ()
            ):
                if size[0] != (agreed := self.weights.get(client)) or size[1] not in (0, agreed):
                    raise RunFailed(
                        f"client {client} published the sizes {size}, and members agreed on the weight {agreed}"
                    )
            signed = {int(c): publication(k, s) for c, k, s in zip(*dealt, strict=True)}

            def verify() -> None:
                own_key, signatures = signed[member.client], groups.get(SIGNATURES, {})
                keyring.check(self._subject(server_round), own_key, signed, signatures)

            return {SECAGG: member.deal(*dealt, server_round, batch_of(self.cfg, server_round), verify)}
        if phase == AGREE:
            return {SECAGG: member.agree(request[SURVIVORS], server_round)}
        return {SECAGG: member.unmask(unpacked(request), server_round)}

    def _subject(self, server_round: int) -> str:
        """Return the subject of a signature, which keeps keys of one sum from being reused in another sum of the round."""
        return f"{PUBLISH} {server_round} {self.member.exchange}"

    def withheld(self, phase: str) -> str:
        """Return the key: reasons in a phase with data may hold numbers that no mask covers."""
        return self.inner.withheld(phase) or ("" if not phase or phase in STEPS else self.key)

    def leave(self, leaving: Leaving) -> dict[str, Arrays]:
        """Mask the groups that are summed, with weights that the client computes; the others do not change.

        Raises:
            RunFailed: the server requests arrays outside a sum.
        """
        sent, declared = self.inner.leave(leaving), leaving.declared
        terms = {group: sent[group] for group in sums(declared) if group in sent}
        if not terms:
            return sent
        member, part = self.member, leaving.taken.groups[SECAGG]
        if not part:
            raise RunFailed(
                f"client {member.client}: the server requested an unmasked reply in round {leaving.round}, which"
                f" {self.key} refuses"
            )
        members = part[MEMBERS]
        sizes = member.sizes_of(members)
        weights = {group: in_sum(declared[group], self.cfg, self.private, sizes, members.tolist()) for group in terms}
        when = "of the set-up" if isinstance(declared, Once) else "of rounds"  # whatever round the server names
        kinds = {group: f"{MODELS if declared[group].fields == ARRAYS else group} {when}" for group in terms}
        context = part[ENVELOPES], leaving.round, leaving.taken.digest, kinds
        self._place = leaving.round, leaving.phase, leaving.exchange
        return {**sent, **member.masked(terms, weights, members, *context), SECAGG: {AGREED: member.state[AGREED]}}

    def admit(self, min_clients: int, max_share: float, trusting: bool) -> None:
        """Note the bounds; of a party, all sums without noise have one list of clients."""
        self.member.floor, self.member.max_share = min_clients, max_share
        self.member.fixed = self.one_list = not (trusting or self.private)

    def note_members(self, weights: Mapping[int, int], absent: bool) -> None:
        """Note the list and the weights of all sums without noise, and the fewest members of a list of the others."""
        if self.one_list:
            self.weights = dict(weights)
            self.member.required = list(weights)
            return
        drawn = batches(len(weights), self.cfg.strategy.cohort_size(len(weights)), self.cfg.seed)
        judges = self.cfg.evaluation.clients
        size = min(*map(len, drawn), int(judges) if judges.isdecimal() else len(weights))
        self.member.floor = max(self.member.floor, threshold(0.0, size) if absent else size)

    def keep(self, kept: Callable[[Place, bytes, Callable[[], Any]], Any]) -> None:
        """Keep noised terms by their place."""
        self.member.kept = lambda request, make: kept(self._place, request, make)

    def save(self, secrets: bool) -> dict[str, Any]:
        """Return this round's keys, which no checkpoint stores, the lists of clients, and the digest of earlier requests."""
        history = {HISTORY: {"digest": np.frombuffer(self.history, np.uint8).copy()}} if self.history else {}
        return {**({SECAGG: self.member.state} if secrets else {}), LISTS: self.member.lists, **history}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Restore them."""
        self.history = b"".join(array.tobytes() for array in as_arrays(tree.get(HISTORY, {})).values())
        self.member.state, self.member.lists = as_arrays(tree.get(SECAGG, {})), as_arrays(tree.get(LISTS, {}))
