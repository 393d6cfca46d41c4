"""Schedules of a coordinator of verified runs, and what must hold at members after each message."""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.data.graph import read_header
from fedgraph_flwr.secure import secagg, verified
from fedgraph_flwr.secure.keyring import SIGNATURE, Keyring, read_key
from fedgraph_flwr.secure.masked import digest, joined_groups
from fedgraph_flwr.secure.policy import Ledger
from fedgraph_flwr.secure.verified import CERTIFY, CLOSE, OPEN, PROPOSAL, PROPOSE
from fedgraph_flwr.wire.messages import DESCRIBE, MODEL, TRAIN, Arrays
from tests.safety.coordinator import Groups, Refused, Run, keys_of
from tests.safety.schedules import TERMS, Broken, Message, Player, required

PREFIX = "arrays/"


def record_of(run: Run, client: int) -> dict[str, Any]:
    """What a node keeps of a run: the later of two copies; empty: nothing yet."""
    state = run.owner.folder / f"state_{client}"
    name = "-".join(run.cfg.agreement.split("/"))[32:]
    file = state / f"fedavg-{name}" / f"client_{client:04d}" / "verified.json"
    if not file.is_file():
        return {}
    values = json.loads(file.read_text())["verified"]
    if (last := file.with_name("last.safetensors")).is_file():
        later = read_header(last)[1].get("record", {})
        values = later if later.get("writes", 0) > values["writes"] else values
    if values["round"] < 0:
        return values
    state = StateFolder(state, name, "fedavg", client).read_state("verified", values["round"])
    return values | {"state": state}


class Cut(Exception):
    """The coordinator dies."""


class VerifiedPlayer(Player):
    """A coordinator of verified runs.

    Attributes:
        before: hash of all before the next position, as the coordinator knows it.
        state: the last certified state.
        proposal: the state that the lowest member computed in this round, with its signature; empty: not yet known.
        signed: the replies of members that signed its certificate.
        closing: the certificate of the last round by member, which travels with the next request for keys.
        left: after how many messages the coordinator dies; 0 or less: it lives.
    """

    before: bytes
    state: Arrays
    proposal: Groups
    signed: dict[int, Groups]
    closing: dict[int, Groups]
    rounds = ([1, 2, 3], [1, 2, 3, 4])
    left = 0

    def play(self) -> int:
        """Play one schedule, mostly with few troubles, since each lost message ends a round; then send old messages again."""
        usual, self.rate = self.rate, self.random.choice([0.004, 0.004, 0.015, self.rate])
        with pytest.MonkeyPatch.context() as patch:
            if self.random.random() < 0.5:  # nothing but the state machine refuses repeated messages
                patch.setattr(Ledger, "add", lambda *request: None)
            last = super().play()
            self.rate = 0.5
            for run, message in self.random.sample(self.sent, min(30, len(self.sent))):
                self._send(run, message)
        self.waiting.clear()
        for client in list(self.newer):
            self._newest(client)
        self.rate = usual
        return last

    def _resume(self, number: int, rounds: list[int]) -> None:
        """Resume after a round of the coordinator's choice, and request the next one from members again."""
        again, known = self._run(number), [record_of(self.runs[-1], c).get("round", -1) for c in self.members]
        done = self.random.choice([max(known), max(known), min(known), *rounds])
        for client in self.members:
            place = {"resume": done, "run": f"run{number}"}
            self._deliver(again, (client, DESCRIBE, self.random.choice([0, done]), None, place))
        if self.state:
            with suppress(Refused):
                self._round(again, done + 1, {})

    def honest(self) -> None:
        """Also a run of which a round was cut resumes and ends, whatever members did in it."""
        super().honest()
        self.number += 1
        rate, self.rate = self.rate, 0.0
        run, again, cut = self._run(self.number), self._run(self.number), self.random.choice([1, 2])
        try:
            self._begin(run)
            if cut == 2:
                self._round(run, 1, {})
            place = self.before, self.state, dict(self.closing)
            self.left = self.random.randrange(1, 24)  # before a member closes the round
            with suppress(Cut):
                self._round(run, cut, {})
            self.left = 0
            self.before, self.state, self.closing = place
            self.proposal, self.signed = {}, {}
            for client in self.members:
                self._send(again, (client, DESCRIBE, 0, None, {"resume": cut - 1, "run": f"run{self.number}"}))
            for server_round in range(cut, 4):
                self._round(again, server_round, {})
        except Refused as refusal:
            raise Broken(f"a resumed run was refused: {refusal}; {self.refusals}") from refusal
        finally:
            self.rate = rate
        required(self.facts.rounds.get(self.number) == 3, "a resumed run ended early", self.number, self.refusals)

    def _send(self, run: Run, message: Message) -> Groups | None:
        reply = super()._send(run, message)
        self.left -= 1
        if not self.left:
            raise Cut
        return reply

    def _begin(self, run: Run) -> None:
        super()._begin(run)
        self.before, self.state = verified.first(run.cfg.agreement), {}
        self.proposal, self.signed, self.closing = {}, {}, {}
        self.certify(run, 0)

    def _model(self, run: Run) -> dict[str, np.ndarray]:
        return {name.removeprefix(PREFIX): array for name, array in self.state.items() if name.startswith(PREFIX)}

    def _round(self, run: Run, server_round: int, model: dict[str, np.ndarray], more: Any = None) -> None:
        self.open(run, self.agree(run, self.terms(run, server_round, self._model(run)), server_round), server_round)
        self.certify(run, server_round)

    # --- the steps of a round -----------------------------------------------------------------------------------------

    def terms(self, run: Run, server_round: int, model: Arrays, who: Any = None) -> dict[int, Groups]:
        """Masked terms of members that train a model."""
        who = list(self.members if who is None else who)
        keys = {}
        for c in who:
            if reply := self._send(run, (c, secagg.PUBLISH, server_round, self.closing.get(c), {})):
                keys[c] = reply[secagg.SECAGG]
        self.closing = {}
        dealt = self._each(run, secagg.DEAL, keys_of(keys), server_round, list(keys)) if keys else {}
        replies = {}
        for place, c in enumerate(keys):
            if len(dealt) < len(keys):
                raise Refused("too few")
            envelopes = np.stack([dealt[p][secagg.SECAGG][secagg.ENVELOPES][place] for p in keys])
            part = {secagg.MEMBERS: np.array(list(keys), np.int64), secagg.ENVELOPES: envelopes}
            if reply := self._send(run, (c, TRAIN, server_round, {MODEL: model, secagg.SECAGG: part}, {})):
                replies[c] = reply
        return replies

    def listing(self, terms: dict[int, Groups]) -> Groups:
        """The message that lists terms with their statements."""
        rows = [np.frombuffer(verified.digest_of(joined_groups({MODEL: r[MODEL]})), np.uint8) for r in terms.values()]
        signed = [r[secagg.SECAGG][SIGNATURE] for r in terms.values()]
        alive = {secagg.SURVIVORS: np.array(list(terms), np.int64)}
        return {secagg.SECAGG: {**alive, verified.TERMS: np.stack(rows), verified.STATEMENTS: np.stack(signed)}}

    def agree(
        self, run: Run, terms: dict[int, Groups], server_round: int
    ) -> tuple[dict[int, Groups], dict[int, Groups]]:
        """The terms, and the members' shares."""
        if not terms:
            raise Refused("no terms")
        told = dict.fromkeys(terms, self.listing(terms))
        if self.random.random() < self.rate:  # two halves are told of different survivors
            half = {c: terms[c] for c in list(terms)[::2]}
            told |= dict.fromkeys(half, self.listing(half))
        signed = {
            c: r for c, group in told.items() if (r := self._send(run, (c, secagg.AGREE, server_round, group, {})))
        }
        if not signed:
            raise Refused("no signatures")
        down = self.consents(signed)
        return terms, self._each(run, secagg.UNMASK, down, server_round, list(signed))

    def consents(self, signed: dict[int, Groups]) -> Groups:
        """The message that relays signatures of a list."""
        groups = {c: reply[secagg.SECAGG] for c, reply in signed.items()}
        more = {verified.STATEMENTS: np.stack([arrays[SIGNATURE] for arrays in groups.values()])}
        return {secagg.SECAGG: secagg.relayed(groups) | more}

    def open(self, run: Run, parts: tuple[dict[int, Groups], dict[int, Groups]], server_round: int) -> None:
        """Let members open a sum."""
        terms, shares = parts
        if not shares:
            raise Refused("no shares")
        held = next(iter(terms.values()))[secagg.SECAGG][secagg.AGREED].tobytes()
        listed = {c: verified.digest_of(joined_groups({MODEL: r[MODEL]})) for c, r in terms.items()}
        part = {
            verified.STATE: np.zeros(32, np.uint8),
            secagg.CLIENTS: np.array(list(terms), np.int64),
            verified.TERMS: np.stack([joined_groups({MODEL: r[MODEL]}) for r in terms.values()]),
            verified.HELPERS: np.array(list(shares), np.int64),
            secagg.SHARES: np.stack([r[secagg.SECAGG][secagg.SHARES] for r in shares.values()]),
        }
        self.proposal, self.signed = {}, {}
        left = list(self.members)
        if self.random.random() < 0.5:  # the others receive the digest of what the lowest computed
            self._send(run, (left.pop(0), OPEN, server_round, {secagg.SECAGG: part}, {}))
            self.proposal = self._send(run, (0, PROPOSE, server_round, None, {})) or {}
            named = digest(self.proposal.get(PROPOSAL, {}))
            part = part | {verified.STATE: np.frombuffer(named, np.uint8)}
        replies = self._each(run, OPEN, {secagg.SECAGG: part}, server_round, left)
        self.signed = {c: reply for c, reply in replies.items() if SIGNATURE in reply.get(secagg.SECAGG, {})}
        position = verified.Position(run.cfg.agreement, server_round, TRAIN, 0, self.before)
        self.before = verified.after(verified.Listing(position, held, listed))

    def certify(self, run: Run, server_round: int) -> None:
        """Let members certify the state after a round."""
        proposed = self.proposal or self._send(run, (0, PROPOSE, server_round, None, {}))
        if not proposed:
            raise Refused("no proposal")
        state, signed = proposed[PROPOSAL], {0: proposed, **self.signed}
        self.proposal, self.signed = {}, {}
        told = {c: self.proposed(run, 0, state, server_round) for c in self.members if c not in signed}
        if self.random.random() < self.rate:  # two halves: member 0 signs both states
            told |= dict.fromkeys(list(told)[::2], self.proposed(run, 0, rounded(state), server_round))
        signed |= {c: r for c, group in told.items() if (r := self._send(run, (c, CERTIFY, server_round, group, {})))}
        certificate, close = self.certificate(signed, state, server_round, run.cfg.agreement)
        self.closing = dict.fromkeys(self.members, close)
        for c in self.members:
            late = {PROPOSAL: state} if c in told or self.random.random() < self.rate else {}
            self.closing[c] = {**close, **late}
        if not self.rate or self.random.random() < 0.5:
            for c, group in self.closing.items():
                self._send(run, (c, CLOSE, server_round, group, {}))
            self.closing = {}
        self.before, self.state = verified.after(certificate), state

    def proposed(self, run: Run, witness: int, state: Arrays, server_round: int) -> Groups:
        """The message that proposes a state which a member signed, with that member's key."""
        key = read_key(str(run.owner.folder / "keys" / f"node_{witness}"))
        text = verified.Certificate(self.end(run.cfg.agreement, server_round), digest(state))
        signature = Keyring(witness, run.cfg.agreement, key).sign("verified_certificate", text.content)[SIGNATURE]
        part = {secagg.SIGNERS: np.array([witness], np.int64), secagg.CONSENT: signature[None]}
        return {secagg.SECAGG: part, PROPOSAL: state}

    def end(self, agreement: str, server_round: int) -> verified.Position:
        """The position of a round's certificate."""
        return verified.Position(agreement, server_round, CERTIFY, 0, self.before)

    def certificate(
        self, signed: dict[int, Groups], state: Arrays, server_round: int, agreement: str
    ) -> tuple[verified.Certificate, Groups]:
        """A certificate, and the message that relays it."""
        part = {
            secagg.SIGNERS: np.array(list(signed), np.int64),
            secagg.CONSENT: np.stack([r[secagg.SECAGG][SIGNATURE] for r in signed.values()]),
            verified.BEFORE: np.frombuffer(self.before, np.uint8),
        }
        return verified.Certificate(self.end(agreement, server_round), digest(state)), {secagg.SECAGG: part}

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _check_term(self, client: int, number: int, message: Message, reply: Groups) -> None:
        if client in TERMS:  # else the reply is a stored one, the same as before
            super()._check_term(client, number, message, reply)

    def _check(self, run: Run, message: Message, reply: Groups) -> None:
        super()._check(run, message, reply)
        client, phase, server_round, groups, _ = message
        number = int(run.cfg.agreement.partition("/")[2])
        if not (record := record_of(run, client)):
            return
        place, term = (client, number, record["before"]), record["term"]
        if term:
            self.facts.only("two statements at one position", (term["held"], term["own"]), *place)
        if term and term["listed"]:
            self.facts.only("two lists at one position", term["listed"], *place)
            required([*term["listed"]] == [str(c) for c in self.members], "a list without a member", *place)
        if record["signed"]:
            self.facts.only("two certificates at one position", record["signed"], *place)
        if phase in (*secagg.STEPS, TRAIN):
            self.facts.only("two replies at one place", digest(flat_names(reply)), client, number, phase, server_round)
        if record["round"] >= 0:
            self.facts.only("two states of a round", digest(record["state"]), number, record["round"])
        if phase == TRAIN:
            state = {PREFIX + name: array for name, array in (groups or {})[MODEL].items()}
            required(record["round"] == server_round - 1, "training ahead of a certificate", place, server_round)
            required(digest(state) == digest(record["state"]), "training on another model", place, server_round)


def flat_names(groups: Groups) -> Arrays:
    """All arrays of groups."""
    return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}


def rounded(state: Arrays) -> Arrays:
    """A state that differs by one rounding of each number."""
    return {name: np.nextafter(array, np.inf, dtype=array.dtype) for name, array in state.items()}
