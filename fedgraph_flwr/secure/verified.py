"""Rounds that every node computes (``privacy.coordinator=verified``): what members sign, and the exchanges around it.

    position      agreement/number, round, phase, exchange, hash of all before
    statement     position, digest of what a member holds and received, digest of its masked term: one per position
    list          position, the same digest, member → digest of its term: signed by t of the N members of the agreement
    certificate   position, digest of the server half's next state: signed by t of them

    train, ...          up: the masked term, and the statement
    secagg_agree        down: all statements                     up: a signature of the list
    unmask              down: t signatures of the list           up: shares, as in `fedgraph_flwr.secure.secagg`
    verified_open       down: all terms and shares, from which each node opens the sum, and the digest of the next state
                        up: a signature of the certificate, if that is the state which the node computed
    secagg_keys         down: t signatures of the certificate, with the next round's first request

A round may have several sums (`fedgraph_flwr.strategies.boosting`): all terms and shares of one come with the next one's
``secagg_keys``, and only those of the last with ``verified_open``. Without a sum in the set-up, its ``verified_open`` has the
digest alone; the last round ends with ``verified_close``, which has the certificate.
Processors round differently: if fewer than t sign, the others get the state that a member signed (``verified_certify``), and
sign it if theirs is `alike`; if none signed, the lowest sends its own (``verified_propose``).

t = ⌊2N/3⌋ + 1, so two lists or certificates at one position need 2t − N > N/3 members that sign twice. Each node computes the
next state from the opened sums, and trains on a model that it computed, or adopted with a certificate.

Numbers have one form on the wire: a text in JSON, with digests in hexadecimal digits.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedgraph_flwr.secure.clipping import clipped_model
from fedgraph_flwr.secure.secagg import threshold
from fedgraph_flwr.wire.messages import Arrays, flat
from fedgraph_flwr.wire.trees import unlike

OPEN, PROPOSE, CERTIFY, CLOSE = "verified_open", "verified_propose", "verified_certify", "verified_close"
EXCHANGES = (OPEN, PROPOSE, CERTIFY, CLOSE)

PROPOSAL = "proposal"
"""Group of the server half's next state, by path."""

TERMS, STATEMENTS, HELPERS, BEFORE = "terms", "statements", "helpers", "before"
STATE, KNOWN = "state", "known"
"""Arrays of the group of secure sums: digests of terms [n, 32], or terms [n, P]; signatures of statements [n, 96]; who revealed
shares [h]; the hash of all before [32]; the digest of a state [32]; those of all states that a member may sign [k, 32]."""

ALIKE = 1e-9
"""Largest relative difference of a proposal's numbers from a node's own, besides one rounding of their type."""


def needed(members: int) -> int:
    """Return t of N members."""
    return threshold(0.0, members)


@dataclass(frozen=True)
class Position:
    """Place of a statement, a list or a certificate in all runs of an agreement.

    Attributes:
        run: DIGEST/NUMBER.
        round: the round; 0: the set-up.
        phase: the phase.
        exchange: number of earlier exchanges of the phase in the round.
        before: hash of all before.
    """

    run: str
    round: int
    phase: str
    exchange: int
    before: bytes

    def content(self, kind: str, *values: object) -> bytes:
        """Return the bytes of a text at this position."""
        place = [self.run, self.round, self.phase, self.exchange, self.before.hex()]
        return json.dumps([f"fedgraph {kind}", place, *values], sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Statement:
    """What a member adds to a sum; it signs one per position.

    Attributes:
        position: the position.
        held: digest of keys, sizes, members, weights, and of what the member received.
        term: digest of its masked term.
    """

    position: Position
    held: bytes
    term: bytes

    @property
    def content(self) -> bytes:
        """What is signed."""
        return self.position.content("statement", self.held.hex(), self.term.hex())


@dataclass(frozen=True)
class Listing:
    """The terms of a sum.

    Attributes:
        position: the position.
        held: as of a `Statement`, alike for all.
        terms: digest of each member's term.
    """

    position: Position
    held: bytes
    terms: Mapping[int, bytes]

    @property
    def content(self) -> bytes:
        """What is signed."""
        listed = [[client, self.terms[client].hex()] for client in sorted(self.terms)]
        return self.position.content("list", self.held.hex(), listed)


@dataclass(frozen=True)
class Certificate:
    """The state after a round.

    Attributes:
        position: the position, whose hash covers all lists before.
        state: digest of the state.
    """

    position: Position
    state: bytes

    @property
    def content(self) -> bytes:
        """What is signed."""
        return self.position.content("certificate", self.state.hex())


SUBJECTS = {Statement: "verified_statement", Listing: "verified_list", Certificate: "verified_certificate"}
"""Subject of the signature (`fedgraph_flwr.secure.keyring`) of each."""


def digest_of(term: np.ndarray) -> bytes:
    """Return the digest of a masked term [P]."""
    return sha256(np.ascontiguousarray(term).tobytes()).digest()


def first(run: str) -> bytes:
    """Return the hash of all before the first position of a run."""
    return sha256(f"fedgraph verified\n{run}".encode()).digest()


def after(signed: Listing | Certificate) -> bytes:
    """Return the hash of all before the next position."""
    return sha256(signed.content).digest()


def bounded(model: Arrays, start: Arrays, most: float) -> Arrays:
    """Return a model whose update is at most ``max_update`` long.

    A member that adds n(θ* − θ) would choose the next model otherwise, and a server's optimiser steps further than the mean.

    Args:
        model: the opened mean, or the model after the server's step.
        start: the model before.
        most: largest L2 norm of its update.
    """
    return model if moved(model, start) <= most else clipped_model(model, {name: start[name] for name in model}, most)


def moved(model: Arrays, start: Arrays) -> float:
    """Return the L2 norm of a model's update."""
    return float(np.linalg.norm(flat(model) - flat({name: start[name] for name in model})))


def alike(reference: Arrays, proposed: Arrays) -> bool:
    """Return whether a proposal is a node's own result, up to `ALIKE` and one rounding."""
    if unlike(proposed, reference):
        return False
    for name, array in reference.items():
        if array.dtype.kind != "f":
            same = np.array_equal(array, proposed[name])
        else:
            span = np.maximum(ALIKE * np.abs(array), np.spacing(np.abs(array)))
            same = bool((np.abs(proposed[name] - array) <= span).all())
        if not same:
            return False
    return True
