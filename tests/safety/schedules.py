"""Random schedules of a coordinator of agreed runs, and what must hold at members after each message."""

import copy
import dataclasses
import functools
import hashlib
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.clients import state as client_state
from fedgraph_flwr.data import files
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import agreements, audit_chain
from fedgraph_flwr.node import beginning as node_beginning
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node import node as nodes
from fedgraph_flwr.node import settings
from fedgraph_flwr.partition import resolved
from fedgraph_flwr.secure import audit, beginning, keyring, secagg
from fedgraph_flwr.secure import spent as secure_spent
from fedgraph_flwr.secure.masked import pairwise
from fedgraph_flwr.secure.spent import spent
from fedgraph_flwr.secure.verified import PROPOSAL
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, MODEL, TRAIN, flat
from tests.nodes import model_of
from tests.safety.coordinator import Coordinator, Groups, Refused, Run, keys_of, listed, opened

SECURE = ["privacy.secagg=true", "strategy.weighting=uniform"]
KINDS: dict[str, list[str]] = {
    "plain": [],
    "secure": SECURE,
    "noised": [*SECURE, "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.secagg_bits=20"],
    "verified": [*SECURE, "privacy.coordinator=verified", "privacy.max_update=5"],
}
"""Protections of a player's runs."""

MEMBERS = {"plain": 3, "secure": 4, "noised": 4, "verified": 4}
"""Their members: of three, no shorter list opens a sum."""

TROUBLES = (
    *("drop", "delay", "repeat", "swap", "replay", "key", "list", "model", "attempt", "number", "agreement"),
    *("restart", "restore", "kill"),
)
"""What may happen to a message.

An attempt is another run of Flower with the same number; a process is killed before its line is in the audit log."""

ROUNDS = ([1], [1, 2], [1, 3], [1, 3], [1, 2, 3], [1, 2, 3, 4])
"""Rounds of a schedule."""

Message = tuple[int, str, int, Groups | None, dict[str, Any]]
"""Client, phase, round, groups and scalars."""


class Broken(AssertionError):
    """Something that must hold does not."""


def required(holds: object, what: str, *where: Any) -> None:
    """Raise unless it holds."""
    if not holds:
        raise Broken(f"{what}: {where}")


class Facts:
    """What members have told, by member and number of a run."""

    def __init__(self) -> None:
        self.once: dict[tuple[Any, ...], Any] = {}
        self.terms: dict[tuple[Any, ...], tuple[str, str]] = {}
        self.drawn: defaultdict[int, set[str]] = defaultdict(set)
        self.spent: defaultdict[int, float] = defaultdict(float)
        self.rounds: dict[int, int] = {}

    def only(self, what: str, value: Any, *where: Any) -> None:
        """The first value is the only one."""
        required(self.once.setdefault((what, *where), value) == value, what, *where, self.once[what, *where], value)

    def term(self, position: tuple[Any, ...], request: str, term: str) -> None:
        """A position has one request, and one term."""
        known = self.terms.setdefault(position, (request, term))
        required(known == (request, term), "one position, two terms", position)


class Player:
    """A coordinator with members of its own, which it plays one schedule after another.

    Args:
        folder: of the members' files.
        kind: of `KINDS`.
        seed: of all its choices.
        rate: share of messages with a trouble.
    """

    rounds = ROUNDS

    def __init__(self, folder: Path, kind: str, seed: int, rate: float = 0.12):
        self.kind, self.random, self.rate = kind, random.Random(seed), rate
        absent = {"absent": "allowed"} if kind == "noised" else {}
        words = (*KINDS[kind], "privacy.scores=none")
        self.owner = Coordinator(folder, *words, members=MEMBERS[kind], runs=99_999, **absent)
        self.members = range(self.owner.members)
        self.facts, self.number = Facts(), 0
        self.cfg, self.runs = resolved(self.owner.cfg), list[Run]()
        self.sent: list[tuple[Run, Message]] = []
        self.waiting: list[tuple[Run, Message]] = []
        self.refusals: list[str] = []
        self.backups: dict[int, Path] = {}
        self.newer: dict[int, Path] = {}
        self.went_on: set[int] = set()

    # --- a schedule ---------------------------------------------------------------------------------------------------

    def play(self) -> int:
        """Play one schedule; the last round in which a member replied."""
        choose = self.random
        self.number = max(self.number + choose.choice([0, 1, 1, 1, 1, 1, 2]), 1)
        number = self.number
        self.facts.rounds.clear()
        for client in choose.sample(self.members, choose.choice([0, 0, 0, 1])):
            self._back_up(client)
        run = self._run(number)
        rounds = choose.choice(self.rounds)
        with suppress(Refused):
            self._begin(run)
            model = self._model(run)
            for server_round in rounds:
                with suppress(Refused):
                    self._round(run, server_round, model)
                model = {name: array + np.float32(0.01) for name, array in model.items()}
        if choose.random() < 0.3:
            self._resume(number, rounds)
        while self.waiting:
            self._deliver(*self.waiting.pop())
        for client in list(self.newer):
            self._newest(client)
        return max(self.facts.rounds.values(), default=0)

    def _resume(self, number: int, rounds: list[int]) -> None:
        """Ask for the last round again, over another model, perhaps as a later exchange or after an older checkpoint."""
        again, last = self._run(number), max(self.facts.rounds.values(), default=0)
        before = self.random.choice([r for r in (0, *rounds) if r < max(last, 1)])
        exchange = self.random.choice([{}, {"exchange": 1}])
        for client in self.members:
            place = {"resume": before, "run": f"run{number}"}
            self._deliver(again, (client, DESCRIBE, self.random.choice([before, last]), None, place))
        with suppress(Refused):
            self._round(again, last, {name: -2 * array for name, array in self._model(again).items()}, exchange)

    def honest(self) -> None:
        """An honest run of the next number finishes, once the owners of older records confirm."""
        self.number += 1
        rate, self.rate = self.rate, 0.0
        run, file = self._run(self.number), str(self.owner.folder / "agreement.yaml")
        for client in self.members:
            if "agree confirm" in str(run.ask(client, beginning.COMMIT)):
                state = str(self.owner.folder / f"state_{client}")
                last = ["--last", str(self.number - 1)]
                required(main(["agree", "confirm", file, "--state", state, *last]) == 0, "no confirmation", client)
        try:
            self._begin(run)
            for server_round in (1, 2):
                self._round(run, server_round, self._model(run))
        except Refused as refusal:
            raise Broken(f"an honest run was refused: {refusal}; {self.refusals}") from refusal
        finally:
            self.rate = rate
        required(self.facts.rounds.get(self.number) == 2, "an honest run ended early", self.number, self.refusals)

    def _run(self, number: int, digest: str = "") -> Run:
        """A run of Flower, with a number and a seed of the coordinator's choice."""
        agreed = f"{digest or self.owner.digest}/{number}"
        run = Run(self.owner, dataclasses.replace(self.cfg, agreement=agreed, seed=self.random.randrange(10**6)))
        for old in self.runs[:-7]:
            for client in self.members:
                new_process(old, client)
        self.runs = [*self.runs[-7:], run]
        return run

    def _begin(self, run: Run) -> None:
        commits = {
            c: r[beginning.START] for c in self.members if (r := self._send(run, (c, beginning.COMMIT, 0, None, {})))
        }
        nonces = self._each(run, beginning.OPEN, listed(commits)) if commits else {}
        openings = {c: reply[beginning.START][beginning.NONCE].tobytes() for c, reply in nonces.items()}
        if self.random.random() < self.rate / 4 and openings:
            openings[self.random.choice(list(openings))] = self.random.randbytes(32)
        if openings:
            self._each(run, beginning.BEGIN, opened(openings))

    def _round(
        self, run: Run, server_round: int, model: dict[str, np.ndarray], more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        scalars = {"checkpoint": True, "run": f"run{run.cfg.agreement.partition('/')[2]}", **more}
        if self.kind == "plain":
            self._each(run, TRAIN, {MODEL: model}, server_round, more=scalars)
            return
        asked = [c for c in self.members if self.random.random() >= self.rate / 4] or list(self.members)
        keys = {c: r[secagg.SECAGG] for c, r in self._each(run, secagg.PUBLISH, None, server_round, asked).items()}
        if len(keys) < len(self.members) and self.random.random() > self.rate:
            raise Refused("too few")
        dealt = self._each(run, secagg.DEAL, keys_of(keys), server_round, list(keys)) if keys else {}
        who = [c for c in keys if c in dealt]
        if len(who) < 2:
            raise Refused("too few")
        place = {c: list(keys).index(c) for c in who}
        terms = {}
        for c in who:
            envelopes = np.stack([dealt[p][secagg.SECAGG][secagg.ENVELOPES][place[c]] for p in who])
            part = {secagg.MEMBERS: np.array(who, np.int64), secagg.ENVELOPES: envelopes}
            message: Message = (c, TRAIN, server_round, {MODEL: model, secagg.SECAGG: part}, scalars)
            if reply := self._send(run, message):
                terms[c] = reply
        alive = {c: list(terms) for c in terms}
        if self.random.random() < self.rate:  # two halves are told of different survivors
            for c in list(terms)[::2]:
                alive[c] = [p for p in terms if p == c or self.random.random() < 0.5]
        signed = {}
        for c, survivors in alive.items():
            group = {secagg.SECAGG: {secagg.SURVIVORS: np.array(survivors, np.int64)}}
            if reply := self._send(run, (c, secagg.AGREE, server_round, group, {})):
                signed[c] = reply[secagg.SECAGG]
        if signed:
            self._each(run, secagg.UNMASK, {secagg.SECAGG: secagg.relayed(signed)}, server_round, list(signed))

    def _each(
        self, run: Run, phase: str, groups: Groups | None, server_round: int = 0, clients: Any = None, more: Any = None
    ) -> dict[int, Groups]:
        chosen = self.members if clients is None else clients
        replies = {c: self._send(run, (c, phase, server_round, groups, dict(more or {}))) for c in chosen}
        return {c: reply for c, reply in replies.items() if reply is not None}

    def _model(self, run: Run) -> dict[str, np.ndarray]:
        try:
            return model_of(run.nodes[0])
        except FedGraphError as refusal:
            raise Refused(str(refusal)) from refusal

    # --- a message ----------------------------------------------------------------------------------------------------

    def _send(self, run: Run, message: Message) -> Groups | None:
        """Send a message, perhaps with a trouble; the reply, if one came at once."""
        choose, trouble = self.random, ""
        if choose.random() < self.rate:
            trouble = choose.choice(TROUBLES)
        client, phase, server_round, groups, scalars = message
        if self.waiting and choose.random() < 0.3:
            self._deliver(*self.waiting.pop(choose.randrange(len(self.waiting))))
        if trouble == "drop":
            return None
        if trouble == "delay":
            self.waiting.append((run, message))
            return None
        if trouble == "swap":
            self._deliver(run, (choose.choice(self.members), *message[1:]))
        if trouble == "replay" and self.sent:
            before, old = choose.choice(self.sent)
            self._deliver(choose.choice([run, before]), (choose.choice([client, old[0]]), *old[1:]))
        if trouble in ("key", "list", "model") and groups:
            groups = changed(groups, trouble, choose)
        if trouble in ("attempt", "number"):
            self.number += trouble == "number"
            self._deliver(self._run(self.number), message)
        if trouble == "agreement":
            self._deliver(self._run(self.number, hashlib.sha256(choose.randbytes(4)).hexdigest()), message)
        if trouble == "restart":
            run.nodes[client].restart()
            new_process(run, client)
        if trouble == "restore":
            self._restore(client)
        if trouble == "kill":
            with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
                patch.setattr(audit_chain, "append", Mock(side_effect=KeyboardInterrupt))
                run.ask(client, phase, server_round, groups, **scalars)
            new_process(run, client)
        reply = self._deliver(run, (client, phase, server_round, groups, scalars))
        if trouble == "repeat":
            self._deliver(run, (client, phase, server_round, groups, scalars | choose.choice([{}, {"exchange": 0}])))
        return reply

    def _deliver(self, run: Run, message: Message) -> Groups | None:
        """Send a message as it is, and check what must hold; None: it was refused."""
        client, phase, server_round, groups, scalars = message
        self.sent = [*self.sent[-199:], (run, message)]
        TERMS.pop(client, None)
        reply = run.ask(client, phase, server_round, groups, **scalars)
        if isinstance(reply, str):
            self.refusals = [*self.refusals[-5:], f"client {client}, {phase} of round {server_round}: {reply}"]
        else:
            self.went_on.add(client)
            self._check(run, message, reply)
        return None if isinstance(reply, str) else reply

    def _check(self, run: Run, message: Message, reply: Groups) -> None:
        client, phase, server_round, groups, _ = message
        agreed, facts = run.cfg.agreement, self.facts
        number = int(agreed.partition("/")[2])
        required(agreed.startswith(self.owner.digest), "a run of another agreement", agreed)
        if phase == beginning.COMMIT:
            facts.only("two nonces of a run", reply[beginning.START][beginning.COMMITMENT].tobytes(), client, number)
        if phase == beginning.OPEN and groups:
            given = groups[beginning.START]
            facts.only(
                "two lists of commitments", sorted(zip(given["clients"].tolist(), map(bytes, given["commitments"]), strict=True)),
                client, number,
            )  # fmt: skip
            facts.only("two nonces", reply[beginning.START][beginning.NONCE].tobytes(), "nonce", client, number)
        if phase in (DESCRIBE, *beginning.BEGINNING):
            return
        facts.rounds[number] = max(facts.rounds.get(number, 0), server_round)
        context = run.nodes[client].context
        live = node_clients._live[context.run_id, context.node_id][0].cfg
        facts.only("two seeds of a run", live.seed, client, number)
        facts.only("two seeds of a member's draws", live.own_seed, client, number)
        facts.only("draws of two runs or members alike", (client, number), live.own_seed)
        required(live.own_seed != live.seed, "a member draws by the seed of all", client, number)
        listed = facts.once.get(("two lists of commitments", client, number), [(c, b"") for c in self.members])
        nonces = {c: facts.once.get(("two nonces", "nonce", c, number)) for c, _ in listed}
        if None not in nonces.values():
            required(
                live.seed == beginning.seed_of(f"{self.owner.digest}/{number}", nonces), "a seed of the server", number
            )
        if phase == secagg.AGREE and groups:
            survivors = groups[secagg.SECAGG][secagg.SURVIVORS].tolist()
            if self.kind == "secure":  # a reply of a verified run may be a stored one, to another request
                facts.only("two lists over one start", survivors, client, number)
                required(survivors == list(self.members), "a list without a member", client, number, survivors)
        if phase in (TRAIN, EVALUATE):
            self._check_term(client, number, message, reply)

    def _check_term(self, client: int, number: int, message: Message, reply: Groups) -> None:
        _, phase, server_round, groups, scalars = message
        position = (client, number, server_round, phase, 0 if phase == TRAIN else scalars.get("exchange", 0))
        if client in TERMS:
            request, term, exchange = TERMS[client]
            position = (*position[:4], exchange)
        else:
            request, term = digest(groups or {}), digest(reply)
        self.facts.term(position, request, term)
        if self.kind == "noised":
            state = self.owner.folder / f"state_{client}"
            ledger = json.loads((state / self.RECORDS[1]).read_bytes())
            self.facts.drawn[client].add(term)
            booked = sum(int(entry["releases"]) for entry in ledger.values())
            required(booked >= len(self.facts.drawn[client]), "ε fell: a release is not booked", position, booked)
            required((now := spent(ledger)) >= self.facts.spent[client], "ε fell", position)
            prefix = f"{self.owner.digest[32:]}-{number} "
            held = {name: entry["releases"] for name, entry in ledger.items() if name.startswith(prefix)}
            listed = audit.released(state, "client", "rings").items()
            required(
                {name: n for name, n in listed if name.startswith(prefix)} == held,
                "other releases are listed",
                position,
            )
            self.facts.spent[client] = now

    # --- back-ups -----------------------------------------------------------------------------------------------------

    RECORDS = (agreements.USED, "privacy_rings.json")

    def _back_up(self, client: int) -> None:
        state, kept = self.owner.folder / f"state_{client}", self.owner.folder / f"backup_{client}"
        if state.is_dir() and client not in self.newer:
            self.backups[client] = self._copied(state, kept)

    def _restore(self, client: int) -> None:
        """The records, or only the ledger of ε, are those of the back-up; the audit log stays."""
        if client in self.backups and client not in self.newer:
            state = self.owner.folder / f"state_{client}"
            self.went_on.discard(client)
            self.newer[client] = self._copied(state, self.owner.folder / f"newer_{client}")
            self._copied(self.backups[client], state, self.random.choice([self.RECORDS, self.RECORDS[1:]]))
            self._forget(client)

    def _newest(self, client: int) -> None:
        """The owner restores the newest records, but none that the node went on with: those of the back-up were no older."""
        newer, state = self.newer.pop(client), self.owner.folder / f"state_{client}"
        ledger = self.RECORDS[1]
        unused = [
            (folder / ledger).is_file() and (folder / ledger).read_bytes() for folder in (self.backups[client], state)
        ]
        names = self.RECORDS if client not in self.went_on else self.RECORDS[1:] if unused[0] == unused[1] else ()
        self._copied(newer, state, names)
        self._forget(client)

    def _copied(self, source: Path, target: Path, names: tuple[str, ...] = RECORDS) -> Path:
        target.mkdir(exist_ok=True)
        for name in names:
            (target / name).unlink(missing_ok=True)
            if (source / name).is_file():
                shutil.copy(source / name, target / name)
        return target

    def _forget(self, client: int) -> None:
        for run in self.runs:
            new_process(run, client)


_forget = node_clients.forget


def new_process(run: Run, client: int) -> None:
    """The next message of a run meets another process of the node."""
    _forget(run.nodes[client].grid.run_id)


TERMS: dict[int, tuple[str, str, int]] = {}
"""Of each client's last masked reply: digests of the request and of the term without masks, and the exchange."""


def digest(groups: Groups) -> str:
    """A digest of groups of arrays."""
    hasher = hashlib.sha256()
    for group in sorted(groups):
        for name in sorted(groups[group]):
            hasher.update(f"{group}/{name}".encode() + groups[group][name].tobytes())
    return hasher.hexdigest()


def changed(groups: Groups, how: str, choose: random.Random) -> Groups:
    """Groups with other parameters, a byte changed, or one client less."""
    copied = {group: {name: array.copy() for name, array in arrays.items()} for group, arrays in groups.items()}
    if how == "model":
        for array in [*copied.get(MODEL, {}).values(), *copied.get(PROPOSAL, {}).values()]:
            array *= choose.choice([0, 2, -1])
    if how == "key":
        places = [
            array for arrays in copied.values() for array in arrays.values() if array.dtype == np.uint8 and array.size
        ]
        if places:
            choose.choice(places).reshape(-1)[choose.randrange(8)] ^= 1
    if how == "list":
        for arrays in copied.values():
            for name in arrays.keys() - {"sizes"} if MODEL not in copied else ():
                arrays[name] = arrays[name][:-1]
    return copied


class Line(dict[str, Any]):
    """A line of an audit log, whose text is made once."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((self["n"], self["at"], self["run"]))


class Unlocked(nullcontext[None]):
    """A lock of a file in the only process."""

    def __init__(self, path: Path | str):
        super().__init__()

    def acquire(self) -> "Unlocked":
        """The lock."""
        return self


def opened_new(path: Path, size: int, durable: bool = True) -> Any:
    """A file that no process dies writing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


@contextmanager
def watched() -> Iterator[None]:
    """Nodes in this process that tell their terms without masks, and parse equal files and configurations once."""
    masked, base = secagg.Member.masked, nodes._run_config
    TERMS.clear()

    def spied(self: Any, values: Any, weights: Any, members: Any, envelopes: Any, server_round: int, *rest: Any) -> Any:
        before = dict(self.state)
        groups = masked(self, values, weights, members, envelopes, server_round, *rest)
        agreed, step = self.state[secagg.AGREED].tobytes(), secagg._step
        term = np.concatenate([flat(arrays) for arrays in groups.values()]).view(np.uint64)
        term = term - secagg.self_stream(before["self"].tobytes(), step(server_round), term.size)
        sealer = secagg.mask_sealer(self.client, before["mask"].tobytes())
        sealer.meet({int(c): k[1].tobytes() for c, k in zip(before[secagg.CLIENTS], before[secagg.KEYS], strict=True)})
        term = term - pairwise(sealer, members.tolist(), step(server_round, agreed), term.size)
        request = hashlib.sha256(rest[0] + members.tobytes()).hexdigest()
        TERMS[self.client] = request, hashlib.sha256(term.tobytes()).hexdigest(), int(before["exchange"][0])
        return groups

    @functools.lru_cache(8)
    def parsed(text: str) -> Any:
        return base((("config", text), ("overrides", "")), True)

    @functools.lru_cache(64)
    def configured(items: Any, foreign: bool) -> Any:
        values = json.loads(dict(items)["config"])
        agreement, seed = values.pop("agreement"), values.pop("seed")
        cfg = copy.copy(parsed(json.dumps(values)))
        cfg.agreement, cfg.seed = agreement, seed
        return cfg

    def once(name: str) -> property:
        known: dict[int, Any] = {}
        compute: Any = getattr(agreements.Agreement, name).fget

        def value(self: Any) -> Any:
            if id(self) not in known:
                known[id(self)] = self, compute(self)
            return known[id(self)][1]

        return property(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_clients, "forget", lambda run_id: None)
        patch.setattr(secagg.Member, "masked", spied)
        patch.setattr(nodes, "_run_config", configured)
        patch.setattr(agreements, "read", functools.lru_cache(8)(agreements.read))
        for name in ("signers", "digest", "statement", "pins"):
            patch.setattr(agreements.Agreement, name, once(name))
        for module in (node_clients, node_beginning, settings):
            patch.setattr(module, "read_key", functools.lru_cache(64)(keyring.read_key))
        for module in (audit_chain, client_state, secure_spent):  # one process, which writes whole files
            patch.setattr(module, "FileLock", Unlocked)
        patch.setattr(files, "writing", opened_new)
        patch.setattr(agreements, "_replace", Path.write_text)
        prove = keyring.Keyring.unproven
        proved: dict[tuple[Any, ...], str] = {}

        def unproven(self: Any, exchange: str, peer: int, key: bytes, signature: Any) -> str:
            """The keys of an agreed run follow from its name."""
            if "/" not in str(self.run) or signature is None:
                return prove(self, exchange, peer, key, signature)
            place = self.run, exchange, peer, key, signature.tobytes()
            if place not in proved:
                proved[place] = prove(self, exchange, peer, key, signature)
            return proved[place]

        patch.setattr(keyring.Keyring, "unproven", unproven)
        read_line, text_of = audit._read, functools.lru_cache(2**16)(audit.text_of)
        line_of = functools.lru_cache(2**16)(lambda n, line: read_line(Path(audit.LOG), n, line))
        patch.setattr(audit, "_read", lambda path, n, line: Line(line_of(n, line)))
        patch.setattr(audit, "text_of", text_of)
        read_policy = functools.lru_cache(8)(nodes.read_policy)
        patch.setattr(nodes, "read_policy", lambda path: copy.copy(read_policy(path)))
        load = settings.load_graph
        graphs: dict[Path, Any] = {}

        def loaded(node_settings: Any, cfg: Any, file: Path) -> Any:
            if file not in graphs:
                graphs[file] = load(node_settings, cfg, file)
            return graphs[file]

        patch.setattr(settings, "load_graph", loaded)
        yield
