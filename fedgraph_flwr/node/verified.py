"""A node's part in rounds that every node computes (`fedgraph_flwr.secure.verified`).

It keeps a record in its state folder, by the agreement and the run's number, and writes it before a reply leaves: which
state is certified, which sums were opened since, which state follows, and what it has signed at the current position. States
and sums have files of their own. It replies to nothing else than what the replica of the server's half requests from the
certified state and these sums.

A reply around a sum is stored until the next state is certified. Whoever requests it again, in this run of Flower or in
one that resumes, gets the same bytes: a reply file is written first, then the client's state with the record that names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.phases import ReplyContent
from fedgraph_flwr.clients.replies import announced
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import Refusal
from fedgraph_flwr.fleet.agreements import CONTINUES, Agreement, remembered
from fedgraph_flwr.methods.downlink import SCALARS
from fedgraph_flwr.methods.weighting import SIZE_KEYS, sizes_of
from fedgraph_flwr.node.node import Node
from fedgraph_flwr.node.request import Request
from fedgraph_flwr.secure.masked import digest, joined_groups, split_groups
from fedgraph_flwr.secure.protection.masked import Masked
from fedgraph_flwr.secure.secagg import (
    AGREE,
    AGREED,
    CLIENTS,
    CONSENT,
    DEAL,
    KEYS,
    MEMBERS,
    PUBLISH,
    SECAGG,
    SHARES,
    SIGNED,
    SIGNERS,
    SURVIVORS,
    UNMASK,
    threshold,
    unmasked,
)
from fedgraph_flwr.secure.shamir import LIMBS, PRIME
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
    SUBJECTS,
    TERMS,
    Certificate,
    Listing,
    Position,
    Statement,
    after,
    alike,
    digest_of,
    first,
    needed,
)
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, MODEL, Arrays, numbers_record
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, check, up_to

if TYPE_CHECKING:  # the two halves of a method do not import each other
    from fedgraph_flwr.strategies.replica import Values, Wanted

REPLICA = "fedgraph_flwr.strategies.replica:Replica"
"""The replica of the server's half, found like the method's own two halves when a run needs it."""

FILE = "verified"
"""Name of the record."""

GONE = (
    "this node replied in the run, and its record of what it signed is gone: its owner restores the state folder, or members"
    " start the next run"
)


@dataclass
class Term:
    """What a node signed about its term of the sum at the current position.

    Attributes:
        phase: the phase.
        exchange: number of earlier exchanges of the phase in the round.
        held: digest of what all hold, in hexadecimal digits.
        own: digest of the term.
        like: group, name and shape of its arrays, in order.
        listed: digests of all terms by client, once the list is signed.
        shown: whether t signatures of the list came, and the shares left.
    """

    phase: str
    exchange: int
    held: str
    own: str
    like: list[list[Any]]
    listed: dict[str, str] = field(default_factory=dict)
    shown: bool = False


@dataclass
class Record:
    """What a node knows of a run.

    Attributes:
        before: hash of all before the current position, in hexadecimal digits.
        round: the last certified round; −1: not even the start is certified.
        opened: phases of the sums that were opened since, and where each is stored.
        next: digest of the state that the node computed from them; empty: further sums follow.
        term: what was signed at the current position; None: nothing.
        keys: the members' keys of the current sum, in their order: [4, 32] in hexadecimal digits each.
        signed: digest of the state whose certificate was signed at the current position.
        kept: digest of the request of each reply since the certified state, and where that is stored, by phase and exchange.
        writes: how often the record was written, which orders its copies.
    """

    before: str
    round: int = -1
    opened: list[list[Any]] = field(default_factory=list)
    next: str = ""
    term: Term | None = None
    keys: list[str] = field(default_factory=list)
    signed: str = ""
    kept: dict[str, list[Any]] = field(default_factory=dict)
    writes: int = 0

    @property
    def values(self) -> dict[str, Any]:
        """What is written of it."""
        return {**vars(self), "term": vars(self.term) if self.term else None}


class Verified:
    """The state machine of one run at a node.

    Args:
        node: the node.
        client: its client.
        folder: where the record is.

    Raises:
        Refusal: the run is under no agreement, or the node keeps nothing.
    """

    def __init__(self, node: Node, client: GraphClient, folder: StateFolder | None):
        agreement = node.agreement
        if agreement is None or folder is None:
            raise Refusal(
                "privacy.coordinator=verified needs an agreement of members: nodes start with --agreement FILE,"
                " and the run with run --agreement FILE; or set privacy.coordinator=curious"
            )
        assert isinstance(client.protection, Masked)
        self.client, self.folder, self.member = client, folder, client.protection.member
        continues = client.cfg.init or agreement.values["start"] == CONTINUES
        self.earlier = _earlier(node, client, agreement) if continues else []
        if self.earlier and self.earlier[-1] is not None and not client.cfg.init:
            raise Refusal(
                "members certified a model of an earlier run, with which this one starts (start: continues): pass a run's"
                " folder as init="
            )
        self.own = client.graph.client
        self.run = node.sent_cfg.agreement
        weights, text = agreement.weights or {}, announced(client)
        self.members = sorted(agreement.members)
        sizes = SIZE_KEYS.values() & text.keys()
        self.described = {c: text | dict.fromkeys(sizes, weights.get(c, 1)) for c in self.members}
        self.sizes = {c: np.array(sizes_of(described)) for c, described in self.described.items()}
        self.record = Record(first(self.run).hex())
        self._forget()

    def _forget(self) -> None:
        """Forget what was read from files, or follows from it."""
        self._states: dict[int, Arrays] = {}
        self._sums: list[Values] = []
        self._known: tuple[tuple[int, int], Wanted | list[Arrays]] | None = None

    def refresh(self, folder: StateFolder) -> None:
        """Take the record of another process of this node, or a restored one, if it is not the one that is known.

        Args:
            folder: where the record is, as the current message found it.

        Raises:
            Refusal: the record is gone.
        """
        self.folder = folder
        values, later = folder.read_record(FILE), folder.last_record()
        if values is None and later:
            raise Refusal(GONE)
        if values is None:
            return self._write()
        if later.get("writes", 0) > values.get("writes", 0):
            values = later
        if values != self.record.values:
            self._forget()
            term = Term(**values["term"]) if values["term"] else None
            self.record = Record(**{**values, "term": term})

    def state(self, server_round: int) -> Arrays:
        """Return the certified state, or the one that follows it."""
        if server_round not in self._states:
            self._states[server_round] = self.folder.read_state(FILE, server_round)
        return self._states[server_round]

    def _keep(self, server_round: int, state: Arrays) -> None:
        self.folder.write_state(FILE, server_round, state)
        self._states[server_round] = state

    def _write(self) -> None:
        self.folder.write_record(FILE, self.written())

    def written(self) -> dict[str, Any]:
        """Return the record as it is written."""
        self.record.writes += 1
        return self.record.values

    @cached_property
    def replica(self) -> Any:
        """The replica of the server's half."""
        return locate(REPLICA)(self.client.cfg, self.described, self.earlier)

    def _following(self) -> "Wanted | list[Arrays]":
        """Return what comes next after the opened sums: a request, or the states with which the round may end."""
        record = self.record
        place = record.round, len(record.opened)
        if self._known is None or self._known[0] != place:
            for phase, stored in record.opened[len(self._sums) :]:
                self._sums.append((phase, self.folder.read_reply(record.round + 1, stored)[0]))
            before = self.state(record.round) if record.round >= 0 else None
            with torch.random.fork_rng(devices=[]):
                successor = self.replica.follow(record.round + 1, before, self._sums, self.own)
            self._known = place, successor
        return self._known[1]

    # --- replies that are repeated ----------------------------------------------------------------

    def repeats(self, request: Request) -> bool:
        """Return whether the reply to a request is stored."""
        record = self.record
        return request.round == record.round + 1 and _place(request) in record.kept

    def repeated(self, request: Request) -> ReplyContent:
        """Return the stored reply."""
        return self.folder.read_reply(request.round, self.record.kept[_place(request)][1])

    def check_resumed(self, done: int) -> None:
        """Refuse that the server resumes after another round than the last one of this node.

        Raises:
            Refusal: it does.
        """
        if self.record.round not in (done - 1, done):
            raise Refusal(
                f"the server resumes after round {done}, and the last round that members certified here is"
                f" {self.record.round}: resume from the newest checkpoint of the run, or start the next run"
            )

    # --- before a reply ---------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse a request that does not follow from what this node opened and certified.

        Raises:
            Refusal: says what differs.
        """
        phase, part = request.phase, self._part(request)
        if phase == PUBLISH:
            if TERMS in part:
                self._open(request, part)
            elif CONSENT in part:
                self._close(request, part, request.round - 1)
            self._check_keys(request)
        if phase in (PUBLISH, DEAL, OPEN, PROPOSE, CERTIFY, CLOSE):
            return
        if self.repeats(request):
            if (
                phase in self.client.uplink_of
                and self.record.kept[_place(request)][0] != request.digest()
            ):
                raise Refusal(
                    f"this node signed its term of another request at this place already (phase '{phase}', round"
                    f" {request.round}): it adds nothing else to the sum"
                )
            return
        if phase == EVALUATE:
            raise Refusal("a node of a verified run scores no model for the server")
        if phase == DESCRIBE:
            if MODEL in request.groups:
                known = request.scalars.keys() & {"scored"}
                rounds = dict.fromkeys(known, self.record.round)
                self._check_groups(request, {MODEL: self._model()}, rounds)
        elif phase == AGREE:
            self._check_list(request, part)
        elif phase == UNMASK:
            self._check_signers(part)
        else:
            self._check_request(request, part)

    def _check_keys(self, request: Request) -> None:
        """Refuse keys of another sum than the next."""
        record = self.record
        if request.round != record.round + 1:
            raise Refusal(
                f"the server requests keys of round {request.round}, and the last round that members certified here is"
                f" {record.round}"
            )
        follows = not (record.term or record.next) and request.exchange == len(record.opened)
        if not (follows or self.repeats(request)):
            raise Refusal(
                f"the server requests keys of sum {request.exchange + 1} of round {request.round}, and"
                f" {len(record.opened)} of its sums were opened here"
            )

    def _part(self, request: Request) -> Arrays:
        """Return the arrays of secure sums of a request, with the types and shapes that its phase has.

        Raises:
            FedGraphError: names the array that has others.
        """
        part, count = request.groups.get(SECAGG, {}), len(self.members)
        opens = self._opens(request)
        if request.phase == OPEN and not opens:
            part = {STATE: part.get(STATE, np.empty(0))}
        elif request.phase == PUBLISH and TERMS in part and not opens:
            part = {}
        some = up_to(count)
        size = (
            sum(int(np.prod(shape)) for *_, shape in self.record.term.like)
            if self.record.term
            else 0
        )
        clients = ArrayField((some,), "int64", 0, LARGEST)
        signatures, hashed = ArrayField((some, 96), "uint8"), ArrayField((32,), "uint8")
        consents = ArrayField((some, SIGNED), "uint8")
        terms = {
            CLIENTS: clients,
            TERMS: ArrayField((some, size), "uint64"),
            HELPERS: clients,
            SHARES: ArrayField((some, count, LIMBS), "uint32", 0, PRIME - 1),
        }
        forms = {
            AGREE: {
                SURVIVORS: clients,
                TERMS: ArrayField((some, 32), "uint8"),
                STATEMENTS: signatures,
            },
            UNMASK: {SIGNERS: clients, CONSENT: consents, STATEMENTS: signatures},
            OPEN: {STATE: hashed, **(terms if opens else {})},
            PROPOSE: {STATE: hashed} if part else {},
            CERTIFY: {SIGNERS: clients, CONSENT: signatures},
            CLOSE: (closing := {SIGNERS: clients, CONSENT: signatures, BEFORE: hashed}),
            PUBLISH: terms if TERMS in part else closing if part else {},
        }
        if request.phase in forms:
            check(part, forms[request.phase], f"the server sent, in phase '{request.phase}',")
        return part

    def _check_request(self, request: Request, part: Arrays) -> None:
        """Refuse a phase, a model or groups that the replica of the server's half does not request."""
        record = self.record
        if record.term:
            raise Refusal(
                f"this node signed its term at this place already (phase '{record.term.phase}', round"
                f" {record.round + 1}): it adds nothing else to the sum"
            )
        if request.round != record.round + 1:
            raise Refusal(
                f"the server requests phase '{request.phase}' of round {request.round}, and the last round"
                f" that members certified here is {record.round}"
            )
        known = self._following()
        if isinstance(known, list) or known.phase != request.phase:
            named = "no other phase" if isinstance(known, list) else f"phase '{known.phase}'"
            raise Refusal(
                f"the server requests phase '{request.phase}' of round {request.round}, and by what members"
                f" opened, {named} comes next"
            )
        self._check_groups(request, known.groups, known.scalars)
        sizes = self.member.sizes_of(part.get(MEMBERS, np.empty(0, np.int64)))
        if wrong := [c for c, n in sizes.items() if n.tolist() != self.sizes[c].tolist()]:
            raise Refusal(f"client {wrong[0]} counts otherwise in this sum than members agreed on")

    def _check_groups(
        self,
        request: Request,
        wanted: Mapping[str, Arrays],
        scalars: Mapping[str, Any] | None = None,
    ) -> None:
        """Refuse arrays and scalars other than those that a request follows from."""
        given = {name: group for name, group in request.groups.items() if name != SECAGG}
        odd = [
            name
            for name in sorted(given.keys() | wanted.keys())
            if digest(given.get(name, {})) != digest(wanted.get(name, {}))
        ]
        known = SCALARS.keys() - {"stage", "keep_model"} | (scalars or {}).keys()
        odd += [name for name in request.scalars if name not in known]
        odd += [
            name for name, value in (scalars or {}).items() if request.scalars.get(name) != value
        ]
        if odd:
            raise Refusal(
                f"the server sent another '{odd[0]}' in phase '{request.phase}' of round {request.round} than"
                " this node computed from the opened sums, or adopted with a certificate"
            )

    def _model(self) -> Arrays:
        prefix = "arrays/"
        state = self.state(self.record.round) if self.record.round >= 0 else {}
        return _below(state, prefix)

    def _check_list(self, request: Request, part: Arrays) -> None:
        """Refuse a list of terms of which one has no statement at this position."""
        term = self._term(request)
        clients = part[SURVIVORS].tolist()
        if clients != self.members or part[TERMS].shape != (len(clients), 32):
            raise Refusal(
                f"a list of terms of clients {clients}, and the members are {self.members}"
            )
        listed = dict(zip(clients, map(np.ndarray.tobytes, part[TERMS]), strict=True))
        position = self._position(term)
        for client, term_digest, signature in zip(
            clients, listed.values(), part[STATEMENTS], strict=True
        ):
            if client != self.own:
                text = Statement(position, bytes.fromhex(term.held), term_digest)
                self._check_signed(client, text, text.content, signature)
        if listed[self.own].hex() != term.own:
            raise Refusal("the list has another term of this node than the one that it signed")
        hexed = {str(client): term_digest.hex() for client, term_digest in listed.items()}
        if term.listed and term.listed != hexed:
            raise Refusal("this node signed another list of terms at this place")
        term.listed = hexed

    def _check_signers(self, part: Arrays) -> None:
        """Refuse to show shares before t members signed the list."""
        term = self.record.term
        if term is None or not term.listed:
            raise Refusal("this node signed no list of terms at this place")
        self._check_enough(self._listing(term), part[SIGNERS], part[STATEMENTS], signed=True)
        term.shown = True

    def _check_signed(self, client: int, text: Any, content: bytes, signature: np.ndarray) -> None:
        """Refuse a text that a member did not sign."""
        known = client in self.members
        subject = SUBJECTS[type(text)]
        if not known or self.client.keyring.unproven(subject, client, content, signature):
            raise Refusal(f"no signature of client {client} at this place ({subject})")

    def _check_enough(
        self, text: Any, clients: np.ndarray, signatures: np.ndarray, signed: bool
    ) -> None:
        """Refuse a list or a certificate that fewer than t members signed; ``signed``: this node is one of them."""
        valid, enough, content = set[int](), needed(len(self.members)), text.content
        given = sorted(
            zip(clients.tolist(), signatures, strict=True), key=lambda one: one[0] != self.own
        )
        for client, signature in given:
            if len(valid) == enough:
                break
            if not (signed and client == self.own):
                self._check_signed(client, text, content, signature)
            valid.add(client)
        if len(valid) < enough:
            raise Refusal(
                f"{len(valid)} of {len(self.members)} members signed ({SUBJECTS[type(text)]}), expected at least"
                f" {enough}"
            )

    def _term(self, request: Request) -> Term:
        term = self.record.term
        if term is None or request.round != self.record.round + 1:
            raise Refusal("this node added no term to a sum at this place")
        return term

    def _position(self, term: Term) -> Position:
        before = bytes.fromhex(self.record.before)
        return Position(self.run, self.record.round + 1, term.phase, term.exchange, before)

    def _listing(self, term: Term) -> Listing:
        listed = {
            int(client): bytes.fromhex(term_digest) for client, term_digest in term.listed.items()
        }
        return Listing(self._position(term), bytes.fromhex(term.held), listed)

    # --- the reply --------------------------------------------------------------------------------

    def signed(self, request: Request, reply: ReplyContent) -> ReplyContent:
        """Return a reply with what this node signs about it, once the record has it."""
        groups, numbers = reply
        part = groups.get(SECAGG, {})
        text: Statement | Listing
        if request.phase == DESCRIBE:
            return reply
        if request.phase in (PUBLISH, DEAL):
            return self._stored(request, reply)
        if request.phase in (AGREE, UNMASK):
            assert self.record.term
            text = self._listing(self.record.term)
        else:
            state, declared = self.member.state, self.client.uplink_of[request.phase]
            terms = {n: a for n, a in groups.items() if n in declared and n != SECAGG}
            like = [
                [group, n, list(a.shape)]
                for group, arrays in terms.items()
                for n, a in arrays.items()
            ]
            held, term_digest = part[AGREED].tobytes(), digest_of(joined_groups(terms))
            self.record.term = Term(
                request.phase, request.exchange, held.hex(), term_digest.hex(), like
            )
            order = np.argsort(state[CLIENTS])
            self.record.keys = [keys.tobytes().hex() for keys in state[KEYS][order]]
            text = Statement(self._position(self.record.term), held, term_digest)
        if request.phase == UNMASK:
            return self._stored(request, reply)
        signed = {**groups, SECAGG: {**part, **self._signature(text)}}
        return self._stored(request, (signed, numbers))

    def _stored(self, request: Request, reply: ReplyContent) -> ReplyContent:
        """Store a reply; the record, which is written with the client's state, has it then."""
        stored = self.folder.write_reply(request.round, reply[0], dict(numbers_record(reply[1])))
        self.record.kept[_place(request)] = [request.digest(), stored]
        return reply

    def _signature(self, text: Any) -> Arrays:
        return self.client.keyring.sign(SUBJECTS[type(text)], text.content)

    def answer(self, request: Request) -> ReplyContent:
        """Reply to an exchange that follows an opened sum, or ends a round.

        Raises:
            Refusal: the sum, the proposal or the certificate does not follow from what this node knows.
            RunFailed: shares do not open the sum.
        """
        part, phase = self._part(request), request.phase
        groups: dict[str, Arrays] = {}
        if phase == OPEN and self._opens(request):
            self._open(request, part)
        if phase == CLOSE:
            self._close(request, part, request.round)
        else:
            groups = self._proposed(request, part)
            self._write()
        return groups, {}

    def _opens(self, request: Request) -> bool:
        """Return whether a request brings the sum at the current position; it is open here otherwise, or there is none."""
        record = self.record
        return bool(record.term) and (
            request.phase == OPEN or request.exchange == len(record.opened) + 1
        )

    def _open(self, request: Request, part: Arrays) -> None:
        """Open the sum at the current position, and move to the next; the record is written before a reply leaves."""
        record, term = self.record, self._term(request)
        if not term.shown:
            raise Refusal("this node opens a sum once t members signed its list, and not before")
        clients = part[CLIENTS].tolist()
        given = {
            str(client): digest_of(row).hex()
            for client, row in zip(clients, part[TERMS], strict=True)
        }
        if given != term.listed:
            raise Refusal("the terms are not those of the list that this node signed")
        like: dict[str, Arrays] = {}
        for group, name, shape in term.like:
            like.setdefault(group, {})[name] = np.empty(shape, np.uint64)
        total = unmasked(
            {
                client: split_groups(row, like)
                for client, row in zip(clients, part[TERMS], strict=True)
            },
            dict(zip(part[HELPERS].tolist(), part[SHARES], strict=True)),
            self.members,
            {
                c: np.frombuffer(bytes.fromhex(text), np.uint8).reshape(4, 32)
                for c, text in zip(self.members, record.keys, strict=True)
            },
            threshold(self.member.share, len(self.members)),
            self.member.bits,
            request.round,
            bytes.fromhex(term.held),
        )
        self._following()
        opened = self.replica.opened(term.phase, self.sizes, total)
        stored = self.folder.write_reply(request.round, opened[1], {})
        self._sums.append(opened)
        record.before, record.term = after(self._listing(term)).hex(), None
        record.opened.append([term.phase, stored])
        successor = self._following()
        if isinstance(successor, list) and request.round:
            self._keep(request.round, successor[0])
            record.next = digest(successor[0]).hex()

    def _results(self, server_round: int) -> dict[str, Arrays]:
        """Return the state after a round that ends here by its digest, or all with which the run may begin here."""
        record = self.record
        if server_round != record.round + 1 or record.term:
            raise Refusal(
                f"the server ends round {server_round}, and the last round that members certified here"
                f" is {record.round}"
            )
        if not server_round:
            starts = self._following()
            if not isinstance(starts, list):
                raise Refusal(f"the set-up is not over: phase '{starts.phase}' comes next")
            unknown = self.client.cfg.init and not self.earlier
            return {} if unknown else {digest(start).hex(): start for start in starts}
        if not record.next:
            raise Refusal(
                f"round {server_round} is not over: {len(record.opened)} of its sums were opened here, and others follow"
            )
        return {record.next: self.state(server_round)}

    def _proposed(self, request: Request, part: Arrays) -> dict[str, Arrays]:
        """Reply with a signature of the state that this node computed, or of one that is the same up to rounding.

        If the server named another one than the latest, the reply has the digests of all that this node would sign.
        """
        known, proposed = self._results(request.round), request.groups.get(PROPOSAL, {})
        name = part[STATE].tobytes().hex() if STATE in part else next(iter(known), "")
        if request.phase == OPEN and name not in list(known)[:1]:
            rows = [np.frombuffer(bytes.fromhex(one), np.uint8) for one in known]
            return {SECAGG: {KNOWN: np.stack(rows)}} if rows else {}
        if request.phase == CERTIFY:
            name = digest(proposed).hex()
            text = Certificate(self._end(request.round), bytes.fromhex(name))
            if not any(alike(state, proposed) for state in known.values()):
                raise Refusal(
                    f"the proposed model of round {request.round} is not the one that this node computed"
                )
            if not part[SIGNERS].size:
                raise Refusal("no member signed the proposed model")
            self._check_signed(int(part[SIGNERS][0]), text, text.content, part[CONSENT][0])
        elif name not in known:
            raise Refusal(
                "this node has no certified model of an earlier run: it adopts that of other members"
            )
        if self.record.signed not in ("", name):
            raise Refusal(f"this node signed another model of round {request.round}")
        self.record.signed = name
        text = Certificate(self._end(request.round), bytes.fromhex(name))
        shown = {PROPOSAL: known[name]} if request.phase == PROPOSE else {}
        return {SECAGG: self._signature(text), **shown}

    def _close(self, request: Request, part: Arrays, server_round: int) -> None:
        """Adopt a state that t members certified."""
        record, before = self.record, part[BEFORE].tobytes()
        if server_round < record.round:
            raise Refusal(f"round {server_round} is certified here already")
        if server_round == record.round:
            return
        if state := request.groups.get(PROPOSAL, {}):
            name = digest(state).hex()
        else:
            known = self._results(server_round)
            name = record.signed if record.signed in known else next(iter(known), "")
            state = known.get(name, {})
        certificate = Certificate(self._end(server_round, before), bytes.fromhex(name))
        signed = record.signed == name and before.hex() == record.before
        self._check_enough(certificate, part[SIGNERS], part[CONSENT], signed)
        if name != record.next:
            self._keep(server_round, state)
        self._forget()
        self._states = {server_round: state}
        self.record = Record(after(certificate).hex(), server_round, writes=record.writes)
        self._write()
        self.folder.forget_replies()

    def _end(self, server_round: int, before: bytes = b"") -> Position:
        return Position(
            self.run, server_round, CERTIFY, 0, before or bytes.fromhex(self.record.before)
        )


def _earlier(node: Node, client: GraphClient, agreement: Agreement) -> list[Arrays | None]:
    """Return parameters of earlier runs of this version of the agreement, or the one before it, with which this one may begin.

    The last certified ones are the last in the list. Before them are those of a round that this node computed and whose
    certificate it does not have: others may have it. If runs of a first version have none, the last is None: those of the seed.
    The list is empty if this node took part in no run, or lost what it kept of one.
    """
    current, _, number = node.sent_cfg.agreement.partition("/")
    records = remembered(Path(node.root))
    parameters, whole = list[Arrays | None](), set[bool]()
    for version in (current, agreement.values["continues"]):
        runs = sorted(map(int, records.get(version, {}).get("starts", ())), reverse=True)
        for k in runs if version != current else [k for k in runs if k < int(number)]:
            names = f"{version[32:]}-{k}", client.cfg.strategy.name, client.graph.client
            folder = StateFolder(node.root, *names)
            known = folder.read_record(FILE) or {"round": 0, "next": ""}
            rounds = [known["round"] + 1] if known["next"] else []
            rounds += [known["round"]] if known["round"] > 0 else []
            parameters += [_below(folder.read_state(FILE, done), "arrays/") for done in rounds]
            if known["round"] > 0:
                return parameters
            whole.add(
                "seed" not in records[version]["starts"][str(k)] or folder.read_asked().writes > 0
            )
    return (
        [*parameters, None] if whole == {True} and not agreement.values["continues"] else parameters
    )


def _place(request: Request) -> str:
    return f"{request.phase} {request.exchange}"


def _below(arrays: Arrays, prefix: str) -> Arrays:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
