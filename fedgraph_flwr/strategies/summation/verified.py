"""Secure sums in rounds that every node computes: the server delivers, and computes the same.

    secagg_agree, unmask → verified_open            for each sum
    verified_propose, verified_certify, _close      after the set-up, and after each round

`fedgraph_flwr.secure.verified` says what nodes sign and check. They believe nothing of what the
server computes, whose operator wants the model.
"""

from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.logs import log
from fedgraph_flwr.secure import verified
from fedgraph_flwr.secure.keyring import SIGNATURE
from fedgraph_flwr.secure.masked import digest, flat
from fedgraph_flwr.secure.secagg import AGREE, AGREED, CLIENTS, CONSENT, SECAGG, SHARES, SIGNERS
from fedgraph_flwr.secure.verified import (
    BEFORE,
    CERTIFY,
    CLOSE,
    HELPERS,
    OPEN,
    PROPOSAL,
    PROPOSE,
    STATEMENTS,
    TERMS,
    Certificate,
    Listing,
    Position,
)
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.masked import Masked
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema, like
from fedgraph_flwr.wire.trees import as_arrays, flatten, unflatten

MUCH = 2.0
"""GB of a run's terms at the server of which it warns."""

ARRAYS, MEMORY = "arrays", "method"
"""Parts of a server half's state."""

_SIGNATURE = {SIGNATURE: ArrayField((96,), "uint8")}


class Verified(Masked):
    """The secure sums of a run whose nodes compute its rounds.

    Args:
        server: the run's server.
        schemas: what the method declares.

    Attributes:
        before: hash of all before the next position.
        state: the server half's state after the round, by path.
    """

    __slots__ = ("before", "state")

    def __init__(self, server: GraphStrategy, schemas: Schemas):
        super().__init__(server, schemas)
        self.before = verified.first(server.cfg.agreement)
        self.state: Arrays = {}

    def position(self, phase: str) -> Position:
        """Return the position of the current exchange of a phase."""
        current = self.server.round
        count = max(current.exchanges[phase] - 1, 0)
        run = self.server.cfg.agreement
        return Position(run, current.number, phase, count, self.before)

    # --- a sum ------------------------------------------------------------------------------------

    def own_schema(self, phase: str) -> ReplySchema | None:
        """Return the schema of a reply to an exchange around a sum, or at the end of a round."""
        if phase == AGREE:
            return ReplySchema({SECAGG: {CONSENT: ArrayField((64,), "uint8"), **_SIGNATURE}})
        if phase == PROPOSE:
            return ReplySchema({PROPOSAL: like(self.state)})
        if phase == CERTIFY:
            return ReplySchema({SECAGG: _SIGNATURE})
        return ReplySchema({}) if phase in (OPEN, CLOSE) else super().own_schema(phase)

    def schema(self, phase: str, wanted: ReplySchema) -> ReplySchema:
        """Return the schema of a reply whose groups are masked, with a statement."""
        found = super().schema(phase, wanted)
        part = found.groups.get(SECAGG)
        if phase != self.phase or part is None:
            return found
        return ReplySchema({**found.groups, SECAGG: {**part, **_SIGNATURE}}, found.numbers)

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
        return flat({group: groups[group] for group in groups if group in self.ratios})

    def signatures(self, consents: dict[int, Arrays]) -> Arrays:
        """Return the members' signatures of the survivors and of the list."""
        signed = np.stack([arrays[SIGNATURE] for arrays in consents.values()])
        return super().signatures(consents) | {STATEMENTS: signed}

    def deliver(
        self, masked: dict[int, dict[str, Arrays]], shares: dict[int, np.ndarray]
    ) -> None:
        """Let every node open the sum."""
        part = {
            CLIENTS: np.array(list(masked), np.int64),
            TERMS: np.stack([self._term(groups) for groups in masked.values()]),
            HELPERS: np.array(list(shares), np.int64),
            SHARES: np.stack(list(shares.values())),
        }
        self.server.request(OPEN, {SECAGG: part}, list(masked))

    def values(self, opened: dict[str, Arrays], survivors: list[int]) -> dict[str, Arrays]:
        """Return the mean of the models, within ``max_update``; there are no other sums."""
        found = super().values(opened, survivors)
        return {
            group: bounded(self.server, arrays, self.server.arrays)
            for group, arrays in found.items()
        }

    # --- the state after a round ------------------------------------------------------------------

    def certified(self, arrays: Arrays) -> Arrays:
        """Let members certify the state after a round, or the set-up; return its shared parameters.

        Raises:
            RunFailed: fewer than t members do.
        """
        server = self.server
        everyone = sorted(server.clients)
        self.state = state_of(server, bounded(server, arrays, server.arrays))
        if not server.server_round:
            self._announce(sum(array.size for array in arrays.values()))
        state: Arrays = (
            server.request(PROPOSE, clients=everyone[:1]).replies[0].groups[PROPOSAL]
        )
        state = {path: state[path] for path in self.state}
        position = self.position(CERTIFY)
        certificate = Certificate(position, digest(state))
        replies = server.request(CERTIFY, {PROPOSAL: state}, everyone).replies
        needed = verified.needed(server.cfg.num_clients)
        if len(replies) < needed:
            raise RunFailed(
                f"round {server.server_round}: {len(replies)} of {len(everyone)} members certified"
                f" the next model, expected at least {needed}"
            )
        signed = {
            SIGNERS: np.array([reply.client for reply in replies], np.int64),
            CONSENT: np.stack([reply.groups[SECAGG][SIGNATURE] for reply in replies]),
            BEFORE: np.frombuffer(position.before, np.uint8),
        }
        behind = set(everyone) - {reply.client for reply in replies}
        closing: dict[int, dict[str, Any]] = {
            client: {SECAGG: signed} | ({PROPOSAL: state} if client in behind else {})
            for client in everyone
        }
        server.request(CLOSE, closing, everyone)
        self.before = verified.after(certificate)
        return take_state(server, state, arrays)

    def _announce(self, numbers: int) -> None:
        """Log what the run costs, before its first round."""
        count, rounds = self.server.cfg.num_clients, self.server.cfg.rounds
        node = count * numbers * 8 * rounds / 1e9
        log(
            INFO if count * node < MUCH else WARNING,
            "in %d rounds each of %d nodes receives %.3g GB of terms, and the server sends %.3g GB",
            *(rounds, count, node, count * node),
        )


# --- a server half's state ------------------------------------------------------------------------


def bounded(strategy: GraphStrategy, arrays: Arrays, start: Arrays) -> Arrays:
    """Return parameters within ``max_update`` of those that a round began with."""
    return verified.bounded(arrays, start, strategy.cfg.privacy.max_update)


def state_of(strategy: GraphStrategy, arrays: Arrays) -> Arrays:
    """Return the shared parameters and the memory of a server's half, by path."""
    tree = flatten({ARRAYS: arrays, MEMORY: strategy.save()})
    return {path: leaf.cpu().numpy().copy() for path, leaf in tree.items()}


def take_state(strategy: GraphStrategy, state: Arrays, like: Arrays) -> Arrays:
    """Restore the memory that `state_of` returned; return its parameters, ordered as ``like``."""
    tree = unflatten({path: torch.from_numpy(array.copy()) for path, array in state.items()})
    strategy.load(tree.get(MEMORY, {}))
    found = as_arrays(tree[ARRAYS])
    return {name: found[name] for name in like}
