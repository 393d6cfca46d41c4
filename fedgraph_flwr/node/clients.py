"""The client of a run at a node: found or rebuilt, asked, and stored.

A client object stays alive in its process between messages, because building one costs more than a
round. Its private state also goes through ``context.state``, tagged with a version. A process that
holds no client, or a stale one, rebuilds it from there. An engine that serves all messages of a
client in one process sets ``live`` in the node config, which avoids the copies.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from logging import INFO
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedgraph_flwr.clients import earlier
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.combinations import check_unit
from fedgraph_flwr.clients.phases import ReplyContent, unknown_phase
from fedgraph_flwr.clients.replies import plain_reply, protected, summed_groups, taken
from fedgraph_flwr.clients.saved_models import WHOLE
from fedgraph_flwr.clients.state import (
    AnotherSum,
    StateFolder,
    checkpointed_state,
    restore_state,
    state_of,
)
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, Refusal, RunFailed, sanitize
from fedgraph_flwr.fleet.agreements import ALLOWED
from fedgraph_flwr.logs import log
from fedgraph_flwr.methods.declared import uplink_of
from fedgraph_flwr.node import records, settings, start
from fedgraph_flwr.node.node import Key, Node
from fedgraph_flwr.node.request import Request
from fedgraph_flwr.node.verified import GONE, Verified
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure import eligibility
from fedgraph_flwr.secure.keyring import Keyring, read_key, read_pins
from fedgraph_flwr.secure.masked import OutOfRange, digest
from fedgraph_flwr.secure.protection.verified import Verified as VerifiedSums
from fedgraph_flwr.secure.verified import EXCHANGES
from fedgraph_flwr.wire.messages import (
    DESCRIBE,
    EVALUATE,
    METRICS,
    MODEL,
    SPEAKS,
    TRAIN,
    Arrays,
    check_version,
    derive_seed,
    from_record,
    numbers_record,
    pack,
    to_record,
)
from fedgraph_flwr.wire.trees import flatten, unflatten

STATE = "fedgraph-state"
VERSION = "fedgraph-version"

KEPT = "0 kept 0"
"""Place of the model that an agreed run ends with, among the digests of its requests."""

_live: dict[Key, tuple[GraphClient, int]] = {}


class Start(NamedTuple):
    """What a request may start.

    Attributes:
        untrained: whether nothing was trained before it.
        fresh: whether its parameters must therefore be those of a start.
    """

    untrained: bool
    fresh: bool


class NodeClient:
    """The client of a run at a node.

    Args:
        node: the node.
        client: the client.
        version: of its state.
    """

    def __init__(self, node: Node, client: GraphClient, version: int):
        self.node, self.client, self.version = node, client, version
        self.folder = node.folder(client.cfg.strategy.name, client.graph.client)
        self.requests = records.Requests(node, self.folder)
        self.booked: dict[str, Any] = {}
        self.most = 0

    @cached_property
    def verified(self) -> Verified | None:
        """The state machine of a run that every node computes; None: of another run, or before it begins."""
        client, node, protection = self.client, self.node, self.client.protection
        early = node.agreement and node.beginning.seeds is None
        if not isinstance(protection, VerifiedSums) or early:
            return None
        machine: Verified = protection.part or Verified(node, client, self.folder)
        protection.part = machine
        assert self.folder
        machine.refresh(self.folder)
        begun = any(not place.startswith("0 ") for place in self.requests.read().received)
        if machine.record.round < 0 and begun:
            raise Refusal(GONE)
        return machine

    # --- before the reply -------------------------------------------------------------------------

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for another message of the run, and continue from the state that it left in the node's folder."""
        if self.node.live or not self.folder:
            yield
            return
        with self.folder.locked():
            if self.folder.last_version() > self.version:
                self.version = _from_folder(self.folder, self.client, self.version)
            yield

    def start_of(self, request: Request) -> Start:
        """Return what a request may start; a server of another version is refused."""
        if request.phase == DESCRIBE:
            check_version(request.scalars.get(SPEAKS, 1), "the server", "node")
        ledger = self.requests.read()
        untrained = not (ledger.trained or request.resume is not None)
        early = untrained and not start.comes_late(self.client, request.round)
        trains = request.phase not in (DESCRIBE, EVALUATE, *self.client.protection.exchanges)
        return Start(untrained, (early or ledger.suspect) and trains)

    def permit(self, request: Request) -> None:
        """Record a request, or refuse it.

        It is refused by the policy, because of an earlier request, or for a changed configuration.

        Raises:
            FedGraphError: an error message for the server and the node's log.
        """
        client, phase = self.client, request.phase
        checkpoints = self._checkpoints(request)
        early = phase != DESCRIBE or MODEL in request.groups
        if client.cfg.agreement and early and self.node.beginning.seeds is None:
            raise Refusal(
                "the agreed run has not begun here: members first open their nonces, from which its seed follows"
            )
        if phase not in client.messages:
            raise unknown_phase(client, phase)
        self.most = client.policy.most(phase, client.messages[phase])
        if not 0 <= request.round <= client.cfg.rounds:
            raise Refusal(
                f"the server requests phase '{phase}' of round {request.round} in a run of"
                f" {client.cfg.rounds} rounds"
            )
        if phase == TRAIN and not request.round:
            raise Refusal(
                "the server requests training in round 0, the set-up: training begins in round 1"
            )
        ledger = self.requests.read()
        if ledger.ended:
            raise Refusal(
                "an earlier request of this run failed at this node, whose log has the reason: start the next run"
            )
        self.node.check_folder(self.folder)
        try:
            self.node.pin(ledger)
        except FedGraphError:
            _live.pop(self.node.key, None)  # it was built from the refused configuration
            raise
        ledger.add(phase, request.round, request.exchange, self.most)
        if request.resume is not None and self.verified:
            self.verified.check_resumed(request.resume)
            ledger.resume(request.resume, known=True, trained=True)
        elif request.resume is not None:
            stored = request.resume
            if checkpoints is not None:
                stored = checkpoints.stored_round(stored, request.round)
            known = checkpoints is not None and checkpoints.has_checkpoint(stored)
            trained = known and checkpoints is not None and checkpoints.had_trained(stored)
            ledger.resume(stored, known, trained)
        self.requests.write(ledger)

    def _book(self, request: Request) -> list[str]:
        """Book the releases of a reply to a request that was not refused, and return the groups of its sums.

        A noised term of an agreed run counts once, when it is drawn for its place.

        Raises:
            AnotherSum: the request of a resumed run differs from the first one at its place, or the
                phase had all its places of the round.
            FedGraphError: the policy does not allow the releases.
        """
        client, phase, ledger = self.client, request.phase, self.requests.read()
        agreed = client.cfg.agreement and phase not in (DESCRIBE, *client.protection.exchanges)
        before = [one for one in ledger.received if one.startswith(f"{request.round} {phase} ")]
        place = f"{request.round} {phase} {request.exchange}"
        new = place not in before and len(before) < self.most
        if agreed and (
            ledger.skipped(request.round)
            or (not new and ledger.received.get(place) != request.digest())
        ):
            raise AnotherSum(
                f"the server requests phase '{phase}' of round {request.round} of this agreed run"
                " again, over another model, or skips a round: a repeated request is the same message; resume with the"
                " server's own folder and the same members, or start the next run"
            )
        summed = summed_groups(client, phase, request.scalars)
        scored = phase == EVALUATE or request.sends_scores
        if count := client.protection.releases(bool(summed), scored):
            at = request.round, phase, request.exchange
            kept = self.folder if summed and agreed and client.protection.noise else None
            repeats = kept is not None and kept.is_booked(at)
            self.booked = records.book_releases(self.node, client, count, repeats)
            if kept and not repeats:
                kept.note_booked(at)
        if not agreed:
            return summed
        ledger.received.pop(place, None)
        ledger.received[place] = request.digest()  # the last one
        if new and self.folder:
            ended = self.folder.ended_round(request.round - 1)
            ledger.received = {
                key: value
                for key, value in ledger.received.items()
                if not 0 < int(key.partition(" ")[0]) < ended
            }
        self.requests.write(ledger)
        return summed

    def resume(self, request: Request) -> None:
        """Restore the state after the round from which the server resumes, if it does.

        A node of a verified run has that of its last reply, and repeats replies.
        """
        if request.resume is None or self.verified:
            return
        checkpoints, client = self._checkpoints(request), self.client
        if checkpoints is not None:
            stored = checkpoints.stored_round(request.resume, request.round)
            state = checkpoints.read_checkpoint(stored)
            with checkpoints.reading(f"round_{stored:06d}"):
                restore_state(client, unflatten(state))
        elif flatten(checkpointed_state(client)):
            raise FedGraphError(
                f"client {client.graph.client} cannot resume after round {request.resume}: it has"
                " private state and no state folder; start the SuperNode with --node-config"
                " 'state=\"DIR\"'"
            )
        self._keep()

    def take_earlier_model(self, request: Request, begin: Start) -> None:
        """Load the private parameters of the run in ``init`` or ``evaluate``, at the start."""
        client, groups = self.client, request.groups
        continues = client.cfg.init or client.cfg.evaluate
        if not (begin.untrained and continues and (request.phase != DESCRIBE or MODEL in groups)):
            return
        received = groups.get(MODEL, {})
        earlier.take(client, self.node.earlier_model(client.cfg, client.graph.client, received))
        self._keep()

    def check_parameters(self, request: Request, begin: Start) -> None:
        """Refuse parameters that training must not start with."""
        if self.node.agreement and self.client.cfg.evaluate:
            start.check_scored(request, self.node.agreement.values["start"])
        if self.client.policy.check_start:
            self._judge_start(request, begin.fresh)
        if self.node.agreement and request.phase == DESCRIBE and MODEL in request.groups:
            self._check_kept(request)
        request.check_model(self.client)
        if self.verified:
            self.verified.check(request)

    def _check_kept(self, request: Request) -> None:
        """Refuse a second model for prediction: an agreed run ends with one.

        Raises:
            Refusal: it is another one.
        """
        ledger, name = self.requests.read(), digest(request.groups[MODEL]).hex()
        if ledger.received.setdefault(KEPT, name) != name:
            raise Refusal(
                "the server ends this agreed run with another model than before: a node keeps one"
            )
        self.requests.write(ledger)

    def _judge_start(self, request: Request, fresh: bool) -> None:
        """Refuse parameters that training must not start with, and record it in the ledger."""
        client, phase = self.client, request.phase
        ledger, received = self.requests.read(), request.groups.get(MODEL, {})
        before = ledger.suspect, ledger.loaded
        try:
            # An earlier message may have brought parameters.
            if fresh and not received and (ledger.loaded or phase == TRAIN):
                received = {name: t.detach().cpu().numpy() for name, t in client.shared.items()}
            if fresh:
                agreement = self.node.agreement
                start.check_start(client, received, self.node.root, agreement)
                for group in sorted(client.chosen_parts.zero):
                    start.check_zero(group, request.groups.get(group, {}))
                ledger.suspect = ledger.suspect and not (received and phase == TRAIN)
            elif received and phase in (DESCRIBE, EVALUATE):
                ledger.loaded = True
        except FedGraphError:
            ledger.suspect = True
            raise
        finally:
            if (ledger.suspect, ledger.loaded) != before:
                self.requests.write(ledger)

    def seed(self, request: Request) -> None:
        """Set the streams of random numbers of a request.

        The first exchange of a phase in a round keeps the stream that it had before exchanges were
        counted.
        """
        client = self.client
        stream: list[int | str] = [client.graph.client, request.round, request.phase]
        if request.exchange:
            stream.append(request.exchange)
        reseed(derive_seed(client.cfg.own_seed, *stream), client.device)
        client.server_round = request.round

    # --- the reply, and after it ------------------------------------------------------------------

    def reply(self, request: Request) -> ReplyContent:
        """Return the client's reply, checked against its uplink and masked in secure sums."""
        client, phase, verified = self.client, request.phase, self.verified
        if verified and phase in EXCHANGES:
            return verified.answer(request)
        summed = self._book(request)
        with self.node.withheld(client.cfg, phase), self._ending(phase):
            if verified and verified.repeats(request):
                return verified.repeated(request)
            part = taken(client, phase, request.groups, request.scalars)
            with self._training(phase):
                plain = plain_reply(client, phase, request.groups, request.scalars)
            sent = protected(client, phase, plain, part, summed)
            return verified.signed(request, sent) if verified else sent

    @contextlib.contextmanager
    def _ending(self, phase: str) -> Iterator[None]:
        """End a run of exact secure sums here with the first request that fails: each tells a bit of the data.

        A verified run has one request at each place, whose failure tells the same bit again.
        """
        try:
            yield
        except (MemoryError, AnotherSum):
            raise
        except Exception as error:
            of_data = not isinstance(error, RunFailed) or isinstance(error, OutOfRange)
            if (
                of_data
                and not self.verified
                and self.client.protection.one_list
                and phase not in self.client.protection.exchanges
            ):
                ledger = self.requests.read()
                ledger.ended = True
                self.requests.write(ledger)
            raise

    @contextlib.contextmanager
    def _training(self, phase: str) -> Iterator[None]:
        """Record that training began; not if it raises, so that a failed request is no start.

        A process that is killed in its first training has begun.
        """
        ledger = self.requests.read()
        if phase != TRAIN or ledger.trained:
            yield
            return
        ledger.trained = True
        self.requests.write(ledger)
        try:
            yield
        except Exception:
            ledger.trained = False
            self.requests.write(ledger)
            raise

    def remember(self, request: Request) -> None:
        """Store what the request changed."""
        client, phase = self.client, request.phase
        scored = phase == EVALUATE and client.saved_models.state
        if phase not in (DESCRIBE, EVALUATE, *EXCHANGES) or scored:
            self._keep()
        checkpoints = self._checkpoints(request)
        if request.keeps_models and checkpoints:
            self._keep_models(checkpoints, int(request.scalars["best"]))
        if request.writes_checkpoint and checkpoints and not self.verified:
            state, trained = flatten(checkpointed_state(client)), self.requests.read().trained
            checkpoints.write_checkpoint(state, request.round, trained)

    def _keep_models(self, folder: StateFolder, best: int) -> None:
        """Store the models that the client will predict with.

        A party's own node stores their configuration and schema too.
        """
        client, ledger = self.client, self.requests.read()
        client.saved_models.update_best(best)
        values: dict[str, Any] = {}
        if client.saved_models.what == WHOLE:
            graph = client.graph
            values = {
                "config": dataclasses.asdict(client.cfg),
                "file": str(client.file.absolute()) if client.file else "",
                "schema": graph.schema,
                "num_features": graph.num_features,
                "num_classes": client.task.num_classes(graph),
                earlier.TRAINED: ledger.trained and not ledger.suspect,
            }
        for name, tree in client.saved_models.state.items():
            parts = flatten({key: tree[key] for key in ("model", "method") if key in tree})
            folder.write_model(name, parts, values | {"round": int(tree["round"])})

    def _keep(self) -> None:
        """Store the client's state under the next version."""
        node = self.node
        self.version += 1
        _live[node.key] = (self.client, self.version)
        if node.live:
            return
        state = flatten(state_of(self.client))
        if self.folder:
            record = self.verified.written() if self.verified else None
            self.folder.write_last(state, self.version, record)
        node.context.state[STATE] = to_record({name: t.cpu().numpy() for name, t in state.items()})
        node.context.state[VERSION] = ConfigRecord({"version": self.version})

    def _checkpoints(self, request: Request) -> StateFolder | None:
        """Return where checkpoints of the server's run go; None: nowhere."""
        if request.run is None:
            return None
        return self.node.checkpoints(self.client.cfg, self.client.graph.client, request.run)


def begun(node: Node, message: Message, request: Request) -> Message:
    """Reply to a request at the beginning of an agreed run, which needs no client."""
    beginning = node.beginning
    records.check_age(node)
    groups = beginning.reply(request.phase, request.groups)
    _live.pop(node.key, None)  # it was built before the seed was known
    return Message(packed(groups, {"client": beginning.client}), reply_to=message)


def packed(groups: dict[str, Arrays], numbers: dict[str, Any]) -> RecordDict:
    """Return the content of a reply."""
    content = pack(groups)
    content[METRICS] = numbers_record(numbers)
    return content


# --- a client, found or rebuilt -------------------------------------------------------------------


def client_at(node: Node) -> NodeClient:
    """Return a node's live client if it is up to date, else one rebuilt from its graph and state.

    The state is in ``context.state`` or, after a restart of the SuperNode, in the state folder.
    """
    number = settings.threads(node.settings, node.cfg)
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
    held = _live.get(node.key)
    if held and node.live:
        return NodeClient(node, *held)
    versions = node.context.state.config_records.get(VERSION)
    version = int(versions["version"]) if versions is not None else 0  # type: ignore[arg-type]
    # another run of Flower may have begun this one since, which gave it its seeds
    if held and held[1] == version and held[0].cfg.own_seed == node.cfg.own_seed:
        return NodeClient(node, *held)
    client = _built(node)
    version = _restored(node, client, version)
    _live[node.key] = (client, version)
    return NodeClient(node, client, version)


def _built(node: Node) -> GraphClient:
    """Return the client of a run which the policy accepts, without its earlier state."""
    settings.check(node.settings)
    cfg = node.cfg
    file = settings.graph_file(node.settings, cfg)
    policy = node.policy()
    policy.check_run(cfg)
    kind = _class_of(node)
    graph = settings.load_graph(node.settings, cfg, file)
    agreement = node.agreement
    if agreement:
        settings.check_agreed(agreement, graph, node.settings)
    if graph.client in cfg.adversary.clients:
        kind = node.malicious(kind, cfg)
    node.check_model(policy, kind, cfg, graph)
    with node.withheld(cfg):
        client = kind(cfg, graph, settings.device(node.settings, cfg), file)
    client.policy = policy
    client.protection.admit(policy.min_clients, policy.max_share, policy.trusting)
    client.keyring = _keyring(node, client)
    if agreement:
        counted = dict(zip(agreement.members, agreement.counted.values(), strict=True))
        client.fixed_size = counted.get(graph.client, 1)
        client.protection.note_members(counted, agreement.values["absent"] == ALLOWED)
        if client.protection.one_list and node.beginning.seeds:
            tables = hashlib.sha256(file.read_bytes()).hexdigest() if file else ""
            node.beginning.keep_tables(tables)
        if folder := node.folder(cfg.strategy.name, graph.client):
            client.protection.keep(folder.kept_term)
    policy.check_client(client)
    client.saved_models.what = node.saved_models
    return client


def _restored(node: Node, client: GraphClient, version: int) -> int:
    """Restore a client's state between messages, and return its version."""
    state = node.context.state
    if STATE in state.array_records:
        _live.pop(node.key, None)  # a stale one
        restore_state(client, unflatten(stored_state(node.context)))
        if node.live:
            del state[STATE]  # the client holds it now
        return version
    folder = node.folder(client.cfg.strategy.name, client.graph.client)
    return _from_folder(folder, client, version) if folder else version


def _from_folder(folder: StateFolder, client: GraphClient, version: int) -> int:
    """Restore the last state in a node's folder, if there is one, and return its version."""
    if not (last := folder.read_last()):
        return version
    with folder.reading("last"):
        restore_state(client, unflatten(last[0]))
    return last[1]


def _class_of(node: Node) -> type[GraphClient]:
    """Return the client's class of a run whose protections, task and sampler it supports."""
    cfg = node.cfg
    kind = locate(cfg.strategy.client)
    if not (isinstance(kind, type) and issubclass(kind, GraphClient)):
        raise FedGraphError(
            f"strategy.client={sanitize(cfg.strategy.client, 80)} is not a client: expected a"
            " subclass of GraphClient"
        )
    check_unit(cfg, kind)
    eligibility.check(cfg, uplink_of(kind, cfg))
    node.check_kind(cfg, kind)
    return kind


def _keyring(node: Node, client: GraphClient) -> Keyring:
    """Return the party's own key and the keys it trusts.

    The node logs fingerprints and stores them in its state folder.
    """
    key, agreement = node.settings.get("key"), node.agreement
    peers = node.settings.get("peers")
    members = agreement.members.items() if agreement else ()
    return Keyring(
        client.graph.client,
        node.cfg.agreement or node.key[0],
        read_key(str(key)) if key else None,
        agreement.pins if agreement else read_pins(str(peers)) if peers else None,
        partial(_report_keys, node, client) if node.reports_keys else None,
        {number: f"{agreement.values['name']}/{name}" for number, name in members}
        if agreement
        else None,
    )


def _report_keys(
    node: Node, client: GraphClient, exchange: str, digits: str, clients: list[int]
) -> None:
    line = f"keys of clients {', '.join(map(str, clients))} ({exchange}): {digits}"
    if not client.keyring.pins:
        line += "; none is pinned (peers=): compare this line with another party"
    log(INFO, line)
    if folder := node.folder(client.cfg.strategy.name, client.graph.client):
        folder.add_fingerprint(exchange, digits, clients)


# --- for engines ----------------------------------------------------------------------------------


def forget(run_id: int) -> None:
    """Drop the live clients of a run."""
    records.forget(run_id)
    for key in [key for key in _live if key[0] == run_id]:
        del _live[key]


def stored_state(context: Context) -> dict[str, torch.Tensor]:
    """Return a node's private state, for an engine that may have to rebuild its client."""
    if live := _live.get((context.run_id, context.node_id)):
        return flatten(state_of(live[0]))
    record = context.state.array_records.get(STATE)
    arrays = from_record(record) if record else {}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def store_state(context: Context, state: Mapping[str, torch.Tensor]) -> None:
    """Store a private state with which the node's next message rebuilds its client."""
    _live.pop((context.run_id, context.node_id), None)
    if state:
        arrays = {name: t.detach().cpu().numpy() for name, t in state.items()}
        context.state[STATE] = to_record(arrays)


def release_mapped(context: Context) -> None:
    """Drop a live client whose graph is a mapped file; its state stays.

    Many of them then need the memory of one.
    """
    live = _live.get((context.run_id, context.node_id))
    if live and getattr(live[0].graph, "stored_edges", None) is not None:
        store_state(context, stored_state(context))
