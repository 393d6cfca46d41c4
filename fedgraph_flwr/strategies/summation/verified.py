"""Secure sums in rounds that every node computes: the server delivers, and computes the same.

    secagg_agree, unmask → the next sum's secagg_keys
    secagg_agree, unmask → verified_open → the next round's secagg_keys

`fedgraph_flwr.secure.verified` says what nodes sign and check. They believe nothing of what the
server computes, whose operator wants the model.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.logs import log
from fedgraph_flwr.methods.method_half import inherits
from fedgraph_flwr.methods.uplink import ARRAYS as UPDATES
from fedgraph_flwr.methods.uplink import Once, sums
from fedgraph_flwr.methods.variates import VARIATES
from fedgraph_flwr.secure import verified
from fedgraph_flwr.secure.keyring import SIGNATURE
from fedgraph_flwr.secure.masked import digest, joined_groups
from fedgraph_flwr.secure.secagg import AGREE, AGREED, CLIENTS, CONSENT, SECAGG, SHARES, SIGNERS
from fedgraph_flwr.secure.verified import (
    BEFORE,
    CERTIFY,
    CLOSE,
    HELPERS,
    KNOWN,
    OPEN,
    PROPOSAL,
    PROPOSE,
    STATE,
    STATEMENTS,
    TERMS,
    Certificate,
    Listing,
    Position,
)
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.round import GroupsFor
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.masked import Masked
from fedgraph_flwr.wire.messages import MODEL, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, ReplySchema, like, up_to
from fedgraph_flwr.wire.trees import Tree, as_arrays, flatten, unflatten

MUCH = 2.0
"""GB of a run's terms at the server of which it warns."""

MOST_KNOWN = 64
"""Most states that a member may name: with which a run may begin, or its result of a round."""

ARRAYS, MEMORY, WEIGHTS = "arrays", "method", "weights"
"""Parts of a server half's state: the shared parameters, the method's memory, and class weights."""

_SIGNATURE = {SIGNATURE: ArrayField((96,), "uint8")}


class Verified(Masked):
    """The secure sums of a run whose nodes compute its rounds.

    Args:
        server: the run's server.
        schemas: what the method declares.
        account: of sums that are released with noise; None: they are not.

    Attributes:
        before: hash of all before the next position.
        state: the server half's state after the round, by path.
        delivered: terms and shares of a sum that no node has yet.
        closing: the certificate of the round before, by client, that no node has yet.
        early: how many numbers a client added to the sums of the set-up.
    """

    __slots__ = ("before", "closing", "delivered", "early", "state")

    def __init__(self, server: GraphStrategy, schemas: Schemas, account: Privacy | None = None):
        super().__init__(server, schemas, account=account)
        self.before = verified.first(server.cfg.agreement)
        self.state: Arrays = {}
        self.delivered: Arrays = {}
        self.closing: dict[int, dict[str, Any]] = {}
        self.early = 0

    def position(self, phase: str) -> Position:
        """Return the position of the current exchange of a phase."""
        current = self.server.round
        count = max(current.exchanges[phase] - 1, 0)
        run = self.server.cfg.agreement
        return Position(run, current.number, phase, count, self.before)

    # --- a sum ------------------------------------------------------------------------------------

    def schema(self, phase: str, declared: Callable[[], ReplySchema]) -> ReplySchema:
        """As of `Masked`, with statements, and of a reply to an exchange at the end of a round."""
        if phase == AGREE:
            return ReplySchema({SECAGG: {CONSENT: ArrayField((64,), "uint8"), **_SIGNATURE}})
        if phase in (OPEN, CERTIFY):
            known = ArrayField((up_to(MOST_KNOWN), 32), "uint8", optional=True)
            signature = replace(_SIGNATURE[SIGNATURE], optional=True)
            return ReplySchema({SECAGG: {SIGNATURE: signature, KNOWN: known}})
        if phase == PROPOSE:
            return ReplySchema({PROPOSAL: self._states(), SECAGG: _SIGNATURE})
        if phase == CLOSE:
            return ReplySchema({})
        form = super().schema(phase, declared)
        part = form.groups.get(SECAGG)
        if phase != self.phase or part is None:
            return form
        return ReplySchema({**form.groups, SECAGG: {**part, **_SIGNATURE}}, form.numbers)

    def _states(self) -> dict[str, ArrayField]:
        """Return the form of the next state; trees of another start have other sizes."""
        forms = like(self.state)
        if self.server.server_round or inherits(type(self.server), ["accepted"]):
            return forms
        return {
            path: replace(field, shape=tuple(up_to(LARGEST) for _ in field.shape))
            for path, field in forms.items()
        }

    def opening(self) -> GroupsFor:
        """Return what travels with a request for keys: the sum before, or a certificate."""
        if delivered := self.delivered:
            self.delivered = {}
            return {SECAGG: delivered}
        closing, self.closing = self.closing, {}
        return closing

    def statements(self, replies: list[Reply]) -> Arrays:
        """Return digests of the terms, and the members' statements."""
        terms = [verified.digest_of(self._term(reply.groups)) for reply in replies]
        signed = [reply.groups[SECAGG][SIGNATURE] for reply in replies]
        held = replies[0].groups[SECAGG][AGREED].tobytes()
        listed = {reply.client: term for reply, term in zip(replies, terms, strict=True)}
        self.before = verified.after(Listing(self.position(self.phase), held, listed))
        rows = np.stack([np.frombuffer(term, np.uint8) for term in terms])
        return {TERMS: rows, STATEMENTS: np.stack(signed)}

    def _term(self, groups: dict[str, Arrays]) -> np.ndarray:
        return joined_groups({group: groups[group] for group in groups if group in self.ratios})

    def signatures(self, consents: dict[int, Arrays]) -> Arrays:
        """Return the members' signatures of the survivors and of the list."""
        signed = np.stack([arrays[SIGNATURE] for arrays in consents.values()])
        return super().signatures(consents) | {STATEMENTS: signed}

    def deliver(
        self, masked: dict[int, dict[str, Arrays]], shares: dict[int, np.ndarray]
    ) -> None:
        """Keep terms and shares, which nodes receive once the next state is known."""
        self.delivered = {
            CLIENTS: np.array(list(masked), np.int64),
            TERMS: np.stack([self._term(groups) for groups in masked.values()]),
            HELPERS: np.array(list(shares), np.int64),
            SHARES: np.stack(list(shares.values())),
        }
        self.early += 0 if self.server.server_round else self.delivered[TERMS].shape[1]

    def values(self, opened: dict[str, Arrays], survivors: list[int]) -> dict[str, Arrays]:
        """Return means and sums; the mean of the models is within ``max_update``."""
        means, server = super().values(opened, survivors), self.server
        if getattr(server.uplink_of[self.phase].get(MODEL), "origin", "") != UPDATES:
            return means
        most = server.cfg.privacy.max_update
        if (norm := verified.moved(means[MODEL], server.arrays)) > most:
            server.note_scaled("mean update", norm, most)
        means[MODEL] = verified.bounded(means[MODEL], server.arrays, most)
        return means

    def sets_up(self) -> bool:
        """Return whether the run does not resume: members open the sums of its set-up once."""
        return not self.server.cfg.resume

    # --- the state after a round ------------------------------------------------------------------

    def certified(self, arrays: Arrays) -> Arrays:
        """Let members certify the state after a round, or the set-up; return its shared parameters.

        Raises:
            RunFailed: fewer than t members do.
        """
        server = self.server
        if server.cfg.resume and not server.server_round:
            return arrays  # those of the checkpoint follow
        everyone = sorted(server.clients)
        self.state = next_state(server, arrays, server.arrays)
        if not server.server_round:
            self._announce(server.numbers() or self._numbers())
        part = {STATE: np.frombuffer(digest(self.state), np.uint8), **self.delivered}
        self.delivered = {}
        signed, known = self._signed(OPEN, {SECAGG: part}, everyone)
        behind = [client for client in everyone if client not in signed]
        needed = verified.needed(server.cfg.num_clients)
        if len(signed) < needed:
            signed |= self._proposed(signed, behind, known)
        if len(signed) < needed:
            raise RunFailed(
                f"round {server.server_round}: {len(signed)} of {len(everyone)} members certified"
                f" the next model, expected at least {needed}"
            )
        certificate = {
            SIGNERS: np.array(list(signed), np.int64),
            CONSENT: np.stack(list(signed.values())),
            BEFORE: np.frombuffer(self.before, np.uint8),
        }
        self.closing = {
            client: {SECAGG: certificate} | ({PROPOSAL: self.state} if client in behind else {})
            for client in everyone
        }
        self.before = verified.after(Certificate(self._end, digest(self.state)))
        return take_state(server, self.state, arrays)

    def _signed(
        self, phase: str, groups: dict[str, Arrays], clients: list[int]
    ) -> tuple[dict[int, np.ndarray], dict[int, list[bytes]]]:
        """Return signatures of the next state by member, and digests that they would sign."""
        replies = self.server.request(phase, groups, clients).replies
        parts = {reply.client: reply.groups.get(SECAGG, {}) for reply in replies}
        signed = {c: part[SIGNATURE] for c, part in parts.items() if SIGNATURE in part}
        known = {c: [row.tobytes() for row in part.get(KNOWN, ())] for c, part in parts.items()}
        return signed, known

    def _proposed(
        self,
        signed: dict[int, np.ndarray],
        behind: list[int],
        known: dict[int, list[bytes]],
    ) -> dict[int, np.ndarray]:
        """Let members sign the state of one that signed it, or the one that most of them have.

        Their processors round otherwise, or the run begins with a model of theirs.
        """
        server = self.server
        signatures = dict[int, np.ndarray]()
        if not signed:
            count = Counter(chain.from_iterable(known.values()))
            name = max(count, key=lambda one: count[one], default=b"")
            holder = next((c for c in behind if name in known.get(c, ())), behind[0])
            named = {SECAGG: {STATE: np.frombuffer(name, np.uint8)}} if name else {}
            (reply,) = server.request(PROPOSE, named, [holder]).replies
            self.state = {path: reply.groups[PROPOSAL][path] for path in self.state}
            signed = signatures = {reply.client: reply.groups[SECAGG][SIGNATURE]}
        (witness, signature), *_ = sorted(signed.items())
        part = {SIGNERS: np.array([witness], np.int64), CONSENT: signature[None]}
        left = [client for client in behind if client not in signatures]
        return signatures | self._signed(CERTIFY, {SECAGG: part, PROPOSAL: self.state}, left)[0]

    @property
    def _end(self) -> Position:
        return Position(
            self.server.cfg.agreement, self.server.server_round, CERTIFY, 0, self.before
        )

    def save(self, ahead: Iterable[int]) -> Tree:
        """Return the place of the next sum, and the certificate that members may not have yet."""
        behind = [client for client, groups in self.closing.items() if PROPOSAL in groups]
        parts: Arrays = next(iter(self.closing.values()), {SECAGG: {}})[SECAGG]
        place = {"after": np.frombuffer(self.before, np.uint8).copy()}
        return {
            WEIGHTS: self.server.class_weights,
            "verified": place
            | {name: array.copy() for name, array in parts.items()}
            | {"behind": np.array(behind, np.int64)},
        }

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned."""
        if "verified" not in tree:
            raise FedGraphError(
                "the checkpoint is of a version that resumed no verified run: start the next run"
            )
        parts = as_arrays(tree["verified"])
        self.server.take_class_weights(tree.get(WEIGHTS, {}))
        self.before, behind = parts.pop("after").tobytes(), parts.pop("behind").tolist()
        state = state_of(self.server, self.server.arrays)
        for client in sorted(self.server.clients) if parts else ():
            self.closing[client] = {SECAGG: parts} | (
                {PROPOSAL: state} if client in behind else {}
            )

    def closed(self) -> None:
        """Let members have the last round's certificate."""
        if self.closing:
            self.server.request(CLOSE, self.opening(), sorted(self.server.clients))

    def _numbers(self) -> int:
        """Return how many numbers a client adds to the sums of a round by its declared uplink."""
        declared, client = self.server.uplink_of.items(), min(self.server.clients)
        rounds = {
            phase: sums(groups) for phase, groups in declared if not isinstance(groups, Once)
        }
        fields = {
            phase: self.schemas.of(phase, client).groups
            for phase, names in rounds.items()
            if names
        }
        shapes = [
            one.shape
            for p, groups in fields.items()
            for name in rounds[p]
            for one in groups[name].values()
        ]
        return sum(math.prod(n for n in shape if isinstance(n, int)) for shape in shapes)

    def _announce(self, numbers: int) -> None:
        """Log what the run costs, before its first round."""
        count, rounds = self.server.cfg.num_clients, self.server.cfg.rounds
        node = count * (self.early + numbers * rounds) * 8 / 1e9
        log(
            INFO if count * node < MUCH else WARNING,
            "in %d rounds each of %d nodes receives %.3g GB of terms, and the server sends %.3g GB",
            *(rounds, count, node, count * node),
        )


# --- a server half's state ------------------------------------------------------------------------


def next_state(strategy: GraphStrategy, arrays: Arrays, start: Arrays) -> Arrays:
    """Return the state after a step to these parameters, which is scaled to ``max_update``.

    The variate c of SCAFFOLD and FedDC is scaled so that it moves a round's local steps by as much.
    """
    most = strategy.cfg.privacy.max_update
    if control := strategy.memory.get(VARIATES):
        train = strategy.cfg.train
        way = train.lr * max(train.steps_of(client) for client in strategy.clients)
        zero = {name: np.zeros_like(array) for name, array in control.items()}
        if (norm := way * verified.moved(control, zero)) > most:
            strategy.note_scaled("way of local steps by variates", norm, most)
        strategy.memory[VARIATES] = verified.bounded(control, zero, most / way)
    return state_of(strategy, strategy.limited(arrays, start, most))


def state_of(strategy: GraphStrategy, arrays: Arrays) -> Arrays:
    """Return shared parameters, memory and class weights of a server's half, by path."""
    tree = flatten({ARRAYS: arrays, MEMORY: strategy.save(), WEIGHTS: strategy.class_weights})
    return {path: leaf.cpu().numpy().copy() for path, leaf in tree.items()}


def take_state(strategy: GraphStrategy, state: Arrays, like: Arrays) -> Arrays:
    """Restore what `state_of` returned but its parameters; return those, ordered as ``like``."""
    tree = unflatten({path: torch.from_numpy(array.copy()) for path, array in state.items()})
    strategy.load(tree.get(MEMORY, {}))
    strategy.take_class_weights(tree.get(WEIGHTS, {}))
    parameters = as_arrays(tree[ARRAYS])
    return {name: parameters[name] for name in like}
