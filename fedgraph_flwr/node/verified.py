"""A node's part in rounds that every node computes (`fedgraph_flwr.secure.verified`).

It keeps a record in its state folder, by the agreement and the run's number, and writes it before a reply leaves: the
certified state, what it has opened since, and what it has signed at the current position. It trains on nothing else than
what the replica of the server's half requests from that state.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.phases import ReplyContent
from fedgraph_flwr.clients.replies import announced
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import Refusal
from fedgraph_flwr.methods.downlink import SCALARS
from fedgraph_flwr.methods.weighting import SIZE_KEYS, sizes_of
from fedgraph_flwr.node.node import Node
from fedgraph_flwr.node.request import Request
from fedgraph_flwr.secure.masked import digest, flat, shaped
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
    OPEN,
    PROPOSAL,
    PROPOSE,
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
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, MODEL, Arrays
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, check, up_to

REPLICA = "fedgraph_flwr.strategies.replica:Replica"
"""The replica of the server's half, found like the method's own two halves when a run needs it."""

FILE = "verified"


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
    like: list[tuple[str, str, list[int]]]
    listed: dict[str, str] = field(default_factory=dict)
    shown: bool = False


@dataclass
class Record:
    """What a node knows of a run.

    Attributes:
        before: hash of all before the current position, in hexadecimal digits.
        round: the last certified round; −1: not even the start is certified.
        state: the certified state, by path.
        opened: phases and sums that were opened since.
        term: what was signed at the current position; None: nothing.
        keys: the members' keys of the current sum, [N, 4, 32] in their order.
        signed: digest of the state whose certificate was signed at the current position.
        offered: that state.
    """

    before: str
    round: int = -1
    state: Arrays = field(default_factory=dict)
    opened: list[tuple[str, dict[str, Arrays]]] = field(default_factory=list)
    term: Term | None = None
    keys: np.ndarray = field(default_factory=lambda: np.zeros((0, 4, 32), np.uint8))
    signed: str = ""
    offered: Arrays = field(default_factory=dict)


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
                " and the run with run --agreement FILE"
            )
        assert isinstance(client.protection, Masked)
        self.client, self.folder, self.member = client, folder, client.protection.member
        self.own = client.graph.client
        self.run = node.sent_cfg.agreement
        weights, text = agreement.weights or {}, announced(client)
        self.members = sorted(agreement.members)
        sizes = SIZE_KEYS.values() & text.keys()
        self.described = {c: text | dict.fromkeys(sizes, weights.get(c, 1)) for c in self.members}
        self.sizes = {c: np.array(sizes_of(described)) for c, described in self.described.items()}
        self.record = _read(folder, self.run)

    @cached_property
    def replica(self) -> Any:
        """The replica of the server's half."""
        with torch.random.fork_rng(devices=[]):
            return locate(REPLICA)(self.client.cfg, self.described)

    # --- before a reply ---------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse a request that does not follow from what this node opened and certified.

        Raises:
            Refusal: says what differs.
        """
        phase, part = request.phase, self._part(request)
        if phase in (PUBLISH, DEAL, OPEN, PROPOSE, CERTIFY, CLOSE):
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

    def _part(self, request: Request) -> Arrays:
        """Return the arrays of secure sums of a request, with the types and shapes that its phase has.

        Raises:
            FedGraphError: names the array that has others.
        """
        part, count = request.groups.get(SECAGG, {}), len(self.members)
        some = up_to(count)
        size = (
            sum(int(np.prod(shape)) for *_, shape in self.record.term.like)
            if self.record.term
            else 0
        )
        clients = ArrayField((some,), "int64", 0, LARGEST)
        signatures = ArrayField((some, 96), "uint8")
        consents = ArrayField((some, SIGNED), "uint8")
        forms = {
            AGREE: {
                SURVIVORS: clients,
                TERMS: ArrayField((some, 32), "uint8"),
                STATEMENTS: signatures,
            },
            UNMASK: {SIGNERS: clients, CONSENT: consents, STATEMENTS: signatures},
            OPEN: {
                CLIENTS: clients,
                TERMS: ArrayField((some, size), "uint64"),
                HELPERS: clients,
                SHARES: ArrayField((some, count, LIMBS), "uint32", 0, PRIME - 1),
            },
            CLOSE: {SIGNERS: clients, CONSENT: signatures, BEFORE: ArrayField((32,), "uint8")},
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
        if request.round != record.round + 1 or record.round < 0:
            raise Refusal(
                f"the server requests phase '{request.phase}' of round {request.round}, and the last round"
                f" that members certified here is {record.round}"
            )
        wanted = self.replica.missing(record.state, request.round, record.opened, self.own)
        if wanted is None or wanted[0] != request.phase:
            named = f"phase '{wanted[0]}'" if wanted else "no other phase"
            raise Refusal(
                f"the server requests phase '{request.phase}' of round {request.round}, and by what members"
                f" opened, {named} comes next"
            )
        place = {"exchange": [phase for phase, _ in record.opened].count(request.phase)}
        self._check_groups(request, wanted[1], {**wanted[2], **place})
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
        return {n[len(prefix) :]: a for n, a in self.record.state.items() if n.startswith(prefix)}

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
        for client, own, signature in zip(clients, listed.values(), part[STATEMENTS], strict=True):
            self._check_signed(
                client, Statement(position, bytes.fromhex(term.held), own), signature
            )
        if listed[self.own].hex() != term.own:
            raise Refusal("the list has another term of this node than the one that it signed")
        hexed = {str(client): own.hex() for client, own in listed.items()}
        if term.listed and term.listed != hexed:
            raise Refusal("this node signed another list of terms at this place")
        term.listed = hexed

    def _check_signers(self, part: Arrays) -> None:
        """Refuse to show shares before t members signed the list."""
        term = self.record.term
        if term is None or not term.listed:
            raise Refusal("this node signed no list of terms at this place")
        self._check_enough(self._listing(term), part[SIGNERS], part[STATEMENTS])
        term.shown = True

    def _check_signed(self, client: int, text: Any, signature: np.ndarray) -> None:
        """Refuse a text that a member did not sign."""
        known = client in self.members
        subject = SUBJECTS[type(text)]
        if not known or self.client.keyring.unproven(subject, client, text.content, signature):
            raise Refusal(f"no signature of client {client} at this place ({subject})")

    def _check_enough(self, text: Any, clients: np.ndarray, signatures: np.ndarray) -> None:
        """Refuse a list or a certificate that fewer than t members signed."""
        valid = set()
        for client, signature in zip(clients.tolist(), signatures, strict=True):
            self._check_signed(client, text, signature)
            valid.add(client)
        if len(valid) < needed(len(self.members)):
            raise Refusal(
                f"{len(valid)} of {len(self.members)} members signed ({SUBJECTS[type(text)]}), expected at least"
                f" {needed(len(self.members))}"
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
        listed = {int(client): bytes.fromhex(own) for client, own in term.listed.items()}
        return Listing(self._position(term), bytes.fromhex(term.held), listed)

    # --- the reply --------------------------------------------------------------------------------

    def signed(self, request: Request, reply: ReplyContent) -> ReplyContent:
        """Return a reply with what this node signs about it, once the record has it."""
        groups, numbers = reply
        part = groups.get(SECAGG, {})
        text: Statement | Listing
        if request.phase in (PUBLISH, DEAL, DESCRIBE):
            return reply
        if request.phase in (AGREE, UNMASK):
            assert self.record.term
            text = self._listing(self.record.term)
        else:
            state, declared = self.member.state, self.client.uplink_of[request.phase]
            terms = {n: a for n, a in groups.items() if n in declared and n != SECAGG}
            like = [
                (group, n, list(a.shape))
                for group, arrays in terms.items()
                for n, a in arrays.items()
            ]
            held, own = part[AGREED].tobytes(), digest_of(flat(terms))
            self.record.term = Term(request.phase, request.exchange, held.hex(), own.hex(), like)
            order = np.argsort(state[CLIENTS])
            self.record.keys = state[KEYS][order]
            text = Statement(self._position(self.record.term), held, own)
        _write(self.folder, self.record)
        if request.phase == UNMASK:
            return reply
        return {**groups, SECAGG: {**part, **self._signature(text)}}, numbers

    def _signature(self, text: Any) -> Arrays:
        return self.client.keyring.sign(SUBJECTS[type(text)], text.content)

    def answer(self, request: Request) -> ReplyContent:
        """Reply to an exchange that follows an opened sum, or ends a round.

        Raises:
            Refusal: the sum, the proposal or the certificate does not follow from what this node knows.
            RunFailed: shares do not open the sum.
        """
        part = self._part(request)
        found: dict[str, Arrays] = {}
        if request.phase == OPEN:
            self._open(request, part)
        elif request.phase == PROPOSE:
            found = {PROPOSAL: self._next(request)}
        elif request.phase == CERTIFY:
            found = {SECAGG: self._certify(request)}
        else:
            self._close(request, part)
        _write(self.folder, self.record)
        return found, {}

    def _open(self, request: Request, part: Arrays) -> None:
        """Open the sum at the current position, and move to the next."""
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
            {client: shaped(row, like) for client, row in zip(clients, part[TERMS], strict=True)},
            dict(zip(part[HELPERS].tolist(), part[SHARES], strict=True)),
            self.members,
            dict(zip(self.members, record.keys, strict=True)),
            threshold(self.member.share, len(self.members)),
            self.member.bits,
            request.round,
            bytes.fromhex(term.held),
        )
        values = self.replica.opened(record.state, request.round, term.phase, self.sizes, total)
        record.before = after(self._listing(term)).hex()
        record.opened.append((term.phase, values))
        record.term = None

    def _next(self, request: Request) -> Arrays:
        """Return the state after the round, or the start."""
        record = self.record
        if request.round != record.round + 1 or record.term:
            raise Refusal(
                f"the server ends round {request.round}, and the last round that members certified here"
                f" is {record.round}"
            )
        if not request.round:
            return dict(self.replica.start)
        if wanted := self.replica.missing(record.state, request.round, record.opened, self.own):
            raise Refusal(f"round {request.round} is not over: phase '{wanted[0]}' comes next")
        return dict(self.replica.after(record.state, request.round, record.opened))

    def _certify(self, request: Request) -> Arrays:
        """Sign a proposed state that is this node's own up to rounding; one at each position."""
        record, proposed = self.record, request.groups.get(PROPOSAL, {})
        own = self._next(request)
        if not alike(own, proposed):
            raise Refusal(
                f"the proposed model of round {request.round} is not the one that this node computed"
            )
        name = digest(proposed).hex()
        if record.signed and record.signed != name:
            raise Refusal(f"this node signed another model of round {request.round}")
        record.signed, record.offered = name, proposed
        return self._signature(Certificate(self._end(request.round), bytes.fromhex(name)))

    def _close(self, request: Request, part: Arrays) -> None:
        """Adopt a state that t members certified."""
        record = self.record
        if request.round <= record.round:
            raise Refusal(f"round {request.round} is certified here already")
        offered = request.groups.get(PROPOSAL) or record.offered
        before = part[BEFORE].tobytes()
        certificate = Certificate(self._end(request.round, before), digest(offered))
        self._check_enough(certificate, part[SIGNERS], part[CONSENT])
        self.record = Record(after(certificate).hex(), request.round, offered)

    def _end(self, server_round: int, before: bytes = b"") -> Position:
        return Position(
            self.run, server_round, CERTIFY, 0, before or bytes.fromhex(self.record.before)
        )


# --- the record on the node's disk ------------------------------------------------------------------


def _write(folder: StateFolder, record: Record) -> None:
    parts = {f"state/{path}": array for path, array in record.state.items()}
    parts |= {f"offered/{path}": array for path, array in record.offered.items()} | {
        KEYS: record.keys
    }
    for place, (_, groups) in enumerate(record.opened):
        parts |= {
            f"opened/{place}/{group}/{name}": array
            for group, arrays in groups.items()
            for name, array in arrays.items()
        }
    values = {
        **{"before": record.before, "certified": record.round, "signed": record.signed},
        "opened": [phase for phase, _ in record.opened],
        "term": asdict(record.term) if record.term else None,
        "types": {name: array.dtype.name for name, array in parts.items()},
    }
    exact = {name: torch.from_numpy(_integers(array)) for name, array in parts.items()}
    folder.write_record(FILE, exact, values)


def _integers(array: np.ndarray) -> np.ndarray:
    """Return a float array as integers of its bits: files of sparse floats have no −0.0."""
    kept = np.array(array, order="C")
    return kept.view(f"int{8 * kept.itemsize}") if kept.dtype.kind == "f" else kept


def _read(folder: StateFolder, run: str) -> Record:
    found = folder.read_record(FILE)
    if found is None:
        return Record(first(run).hex())
    tensors, values = found
    arrays = {name: tensors[name].numpy().view(kind) for name, kind in values["types"].items()}
    opened: list[tuple[str, dict[str, Arrays]]] = []
    for place, phase in enumerate(values["opened"]):
        groups: dict[str, Arrays] = {}
        for name, array in _below(arrays, f"opened/{place}/").items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = array
        opened.append((phase, groups))
    return Record(
        before=values["before"],
        round=values["certified"],
        state=_below(arrays, "state/"),
        opened=opened,
        term=Term(**values["term"]) if values["term"] else None,
        keys=arrays[KEYS],
        signed=values["signed"],
        offered=_below(arrays, "offered/"),
    )


def _below(arrays: Arrays, prefix: str) -> Arrays:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
