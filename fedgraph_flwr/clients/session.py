"""From a Flower message to a client's reply: find or build the client, restore its state, reply, and store its state.

A client object stays alive in its process between messages, because building one costs more than a round. Its private
state also goes through ``context.state``, tagged with a version. A process that holds no client, or a stale one, rebuilds it
from there. An engine that serves all messages of a client in one process sets ``live`` in the node config, which avoids
the copies.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from logging import DEBUG, ERROR, INFO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedgraph_flwr.clients import earlier
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.phases import messages_of
from fedgraph_flwr.clients.replies import Received, plain_reply, protected, received, sum_request, summed_groups
from fedgraph_flwr.clients.requirements import check_sampler, check_task, check_unit
from fedgraph_flwr.clients.saved_models import PRIVATE, WHOLE
from fedgraph_flwr.clients.state import StateFolder, checkpointed_state, restore_state, state_of
from fedgraph_flwr.config import DEVICES, MAX_THREADS, RunConfig, from_run_config, one_of
from fedgraph_flwr.config.lookup import function, locate, method_params
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError, located, sanitize, unknown
from fedgraph_flwr.logs import log
from fedgraph_flwr.methods.cohorts import left_out
from fedgraph_flwr.methods.uplink import declared
from fedgraph_flwr.methods.variates import VARIATES
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure import audit, protections
from fedgraph_flwr.secure.keyring import Keyring, read_key, read_pins
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.opened import OpenedSums
from fedgraph_flwr.secure.policy import OWN_SECTION, Ledger, Policy, read_policy, simulated
from fedgraph_flwr.secure.secagg import STEPS
from fedgraph_flwr.secure.spent import SpentPrivacy, booking
from fedgraph_flwr.tasks import kind_of
from fedgraph_flwr.wire.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    FAILED,
    METRICS,
    MODEL,
    SPEAKS,
    TRAIN,
    Arrays,
    check_version,
    derive_seed,
    from_record,
    groups_of,
    numbers_record,
    pack,
    record_bytes,
    to_record,
)
from fedgraph_flwr.wire.trees import flatten, unflatten

STATE = "fedgraph-state"
VERSION = "fedgraph-version"

ASKED = "fedgraph-asked"

TRAINED_ON = "fedgraph-trained-on"
"""Model of the last training request, if the policy bounds how far it moves."""

NODE_KEYS = ("graph", "state", "policy", "key", "peers", "device", "threads")
"""Keys of a SuperNode's ``--node-config``; docs/fleet.md documents them."""

_OPTIONAL = {"resume": int, "run": str, "best": int, "keep": bool, "checkpoint": bool, "evaluate": bool}
"""Scalars that some messages have, and their types."""

CLIENT_FILE = "fedgraph_flwr.party.party_file:client_file"
"""Finds a party's client file by its ``party.yaml``."""

_PATHS = ("graph", "state", "policy", "key", "peers")
_ENGINE_KEYS = ("partition-id", "num-partitions", "live")
_live: dict[tuple[int, int], tuple[GraphClient, int]] = {}
_spent: dict[tuple[int, str], SpentPrivacy] = {}  # by node and purpose
_ledgers: dict[tuple[int, int], Ledger] = {}  # of nodes that an engine keeps alive in this process


Items = tuple[tuple[str, str], ...]
"""Names and values of Flower's run config, in order."""


class Request(NamedTuple):
    """A message that the node's policy permits.

    Attributes:
        client: who replies.
        version: of its state.
        config: the message's scalars.
        groups: its groups of arrays.
        checkpoints: where checkpoints of this run go; None: nowhere.
    """

    client: GraphClient
    version: int
    config: dict[str, Any]
    groups: dict[str, Arrays]
    checkpoints: StateFolder | None


def respond(message: Message, context: Context) -> Message:
    """Reply to one message; an exception becomes an error reply, whose reason is an error message for the user.

    For an exception in a method's code, the reason contains its file and line. A party's own node writes the exception's
    message, its traceback and all folders only to its own log. A node with a state folder writes request and reply to its
    audit log before the reply leaves.
    """
    request = None
    try:
        request = _permitted(message, context)
        client, phase, content = request.client, request.config["phase"], plain_reply
        if client.graph.client in client.cfg.adversary.clients:
            from fedgraph_flwr.clients.malicious import forged_reply as content
        with unexplained(client.cfg, context, phase):
            sum_ = sum_request(client, phase, request.groups)
            summed = summed_groups(client, phase, request.config)
            reply = protected(client, phase, content(client, phase, request.groups, request.config), sum_, summed)
        return _logged(message, Message(_stored(request, *reply, context), reply_to=message), request, context)
    except FedGraphError as error:
        reason, trace = str(error), None
    except MemoryError:
        raise
    except Exception as error:
        reason, trace = located(error), error
        if not _simulated(context):
            reason = f"the request failed: {located(error, public=True)}; its arrays or numbers may be wrong: see the node's log"
    if not context.node_config.get("live"):
        log(ERROR, reason, exc_info=trace)
    for key in _PATHS:
        if path := context.node_config.get(key):
            reason = reason.replace(str(path), f"<{key}>")
    return _logged(message, Message(Error(FAILED, reason), reply_to=message), request, context)


def _logged(message: Message, reply: Message, request: Request | None, context: Context) -> Message:
    """Return a reply after it was written to the node's audit log; an error instead if it cannot be.

    A node whose state folder cannot be created (`_check`) has no log, and says so in its reply.
    """
    root = context.node_config.get("state")
    if not root or _simulated(context) or (reply.has_error() and not Path(str(root)).is_dir()):
        return reply
    try:
        audit.append(Path(str(root)), _audited(message, reply, request, context))
    except FedGraphError as error:
        log(ERROR, str(error))
        return Message(Error(FAILED, str(error).replace(str(root), "<state>")), reply_to=message)
    return reply


def _audited(message: Message, reply: Message, request: Request | None, context: Context) -> dict[str, Any]:
    """Return the line of the audit log about a request and its reply, which was refused without ``request``."""
    record = message.content.get(CONFIG)
    config = record if isinstance(record, ConfigRecord) else {}
    numbers = {key: config[key] if type(config.get(key)) is int else 0 for key in ("round", "exchange")}
    entry: dict[str, Any] = {"run": str(context.run_id), "strategy": "", "phase": sanitize(config.get("phase", ""), 60)}
    entry |= {**numbers, "noise": {}}
    arrays = message.content.array_records.values()
    entry["received"] = sum(len(array.data) for record in arrays for array in record.values())
    if reply.has_error() or request is None:
        reason = str(reply.error.reason)
        return entry | {"refused": sanitize(reason, 300), "sent": {"error": len(reason)}}
    cfg, rules = request.client.cfg, request.client.cfg.privacy
    noised = rules.dp != "none" and rules.noise_multiplier > 0
    if noised and (releases := _releases(request.client, config)):
        entry["noise"] = {"unit": rules.unit, "purpose": request.client.policy.purpose, **booking(cfg, releases)}
    sent = {group: record_bytes(record) for group, record in reply.content.items()}
    return entry | {"strategy": cfg.strategy.name, "refused": "", "sent": sent}


@contextlib.contextmanager
def unexplained(cfg: RunConfig, context: Context, phase: str = "") -> Iterator[None]:
    """Keep the reasons of refusals that may depend on a party's data in the node's own log, under differential privacy.

    "It has 3 training nodes in a step, expected at least 5" tells a number that no noise covers. Exchanges around secure sums
    depend on no data.
    """
    try:
        yield
    except FedGraphError as error:
        if cfg.privacy.dp == "none" or _simulated(context) or phase in STEPS:
            raise
        log(ERROR, str(error))
        raise FedGraphError(
            f"this node refuses the request; under privacy.dp={cfg.privacy.dp} only its own log has the reason, which may depend"
            " on its data"
        ) from error


def forget(run_id: int) -> None:
    """Drop the live clients of a run."""
    for held in (_live, _ledgers):
        for key in [key for key in held if key[0] == run_id]:
            del held[key]


def stored_state(context: Context) -> dict[str, torch.Tensor]:
    """Return a node's current private state, for an engine that keeps clients alive and may have to rebuild one."""
    if live := _live.get((context.run_id, context.node_id)):
        return flatten(state_of(live[0]))
    found = context.state.array_records.get(STATE)
    return {name: torch.from_numpy(array) for name, array in from_record(found).items()} if found else {}


def store_state(context: Context, state: Mapping[str, torch.Tensor]) -> None:
    """Store a private state with which the node's next message rebuilds its client."""
    _live.pop((context.run_id, context.node_id), None)
    if state:
        context.state[STATE] = to_record({name: t.detach().cpu().numpy() for name, t in state.items()})


def release_mapped(context: Context) -> None:
    """Drop a live client whose graph is a mapped file, so that many of them need the memory of one; its state stays."""
    live = _live.get((context.run_id, context.node_id))
    if live and getattr(live[0].graph, "stored_edges", None) is not None:
        store_state(context, stored_state(context))


def _permitted(message: Message, context: Context) -> Request:
    """Return a message as the request to a client, which stands as before the message; or refuse it.

    Raises:
        FedGraphError: an error message for the server and the node's log.
    """
    config = _config(message)
    phase, server_round, exchange = config["phase"], config["round"], config["exchange"]
    own = tuple(sorted((str(k), str(v)) for k, v in context.run_config.items()))
    cfg = _run_config(own, foreign=not _simulated(context))
    if torch.get_num_threads() != (threads := _threads(cfg, context)):
        torch.set_num_threads(threads)
    client, version = _find(cfg, context)
    if phase == DESCRIBE:
        check_version(config.get(SPEAKS, 1), "the server", "node")
    untrained, fresh = _starts(client, context, config)
    checkpoints = _folder(context, client, str(config["run"])) if "run" in config else None
    _permit(client, context, config, own, checkpoints)
    if "resume" in config:
        _resume(client, checkpoints, config["resume"])
        version += 1
        _keep(client, version, context)
    groups = received(groups_of(message.content), phase)
    if untrained and (cfg.init or cfg.evaluate) and (phase != DESCRIBE or MODEL in groups):
        earlier.take(client, _earlier_model(client, context, groups.get(MODEL, {})))
        version += 1
        _keep(client, version, context)
    if client.policy.check_start:
        _judge_start(client, context, phase, fresh, groups)
    if client.policy.max_step and phase == TRAIN and MODEL in groups:
        if (last := context.state.array_records.get(TRAINED_ON)) is not None:
            client.policy.check_move(groups[MODEL], from_record(last))
        context.state[TRAINED_ON] = to_record(groups[MODEL])
    # The first exchange of a phase in a round keeps the stream that it had before exchanges were counted.
    seed = derive_seed(cfg.seed, client.graph.client, server_round, phase, *([exchange] if exchange else []))
    reseed(seed, client.device)
    client.server_round = server_round
    scalars = Received(config, f"number of phase '{phase}'")
    return Request(client, version, scalars, groups, checkpoints)


def _stored(request: Request, groups: dict[str, Arrays], numbers: dict[str, Any], context: Context) -> RecordDict:
    """Store what the request changed, and return the content of the reply."""
    client, version, config, _, checkpoints = request
    phase = config["phase"]
    if phase not in (DESCRIBE, EVALUATE) or (phase == EVALUATE and client.saved_models.state):
        _keep(client, version + 1, context)
    if config.get("keep") and checkpoints:
        ledger = _ledger(client, context)
        _keep_models(client, checkpoints, config, ledger.trained and not ledger.suspect)
    if config.get("checkpoint") and checkpoints:
        checkpoints.write_checkpoint(flatten(checkpointed_state(client)), config["round"])
    reply = pack(groups)
    reply[METRICS] = numbers_record({"client": client.graph.client, **numbers})
    return reply


def _starts(client: GraphClient, context: Context, config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether nothing was trained before this message, and whether its parameters must therefore be those of a start."""
    ledger = _ledger(client, context)
    untrained = not (ledger.trained or ledger.resumed or "resume" in config)
    early = untrained and not _comes_late(client, config["round"])
    return untrained, (early or ledger.suspect) and config["phase"] not in (DESCRIBE, EVALUATE)


def _earlier_model(client: GraphClient, context: Context, received: Mapping[str, Any]) -> Path | None:
    """Return the file with this client's part of the model of the run in ``init`` or ``evaluate``."""
    cfg, root = client.cfg, context.node_config.get("state")
    if _simulated(context):
        return earlier.in_run(Path(cfg.init or cfg.evaluate), client.graph.client)
    return earlier.in_node(Path(str(root)), client.graph.client, received) if root else None


def _comes_late(client: GraphClient, server_round: int) -> bool:
    """Return whether training may begin here in this round, the first of which the node knows: by the cohorts, or its policy.

    A server that could say "round 2" to a new node would choose the parameters of its first step, which reveal its features.
    """
    late = client.policy.late_start or left_out(client.cfg, client.graph.client, server_round)
    return server_round > 1 and late


def _judge_start(
    client: GraphClient, context: Context, phase: str, fresh: bool, groups: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse parameters that training must not start with, and record it in the ledger.

    Raises:
        FedGraphError: names the tensor.
    """
    ledger, received = _ledger(client, context), groups.get(MODEL, {})
    before = ledger.suspect, ledger.loaded
    try:
        # An earlier message may have brought parameters.
        if fresh and not received and (ledger.loaded or phase == TRAIN):
            received = {name: tensor.detach().cpu().numpy() for name, tensor in client.shared.items()}
        if fresh:
            _check_start(client, received, str(context.node_config.get("state", "")))
            _check_variates(groups.get(VARIATES, {}))
            ledger.suspect = ledger.suspect and not (received and phase == TRAIN)
        elif received and phase in (DESCRIBE, EVALUATE):
            ledger.loaded = True
    except FedGraphError:
        ledger.suspect = True
        raise
    finally:
        if (ledger.suspect, ledger.loaded) != before:
            _store(ledger, client, context)


def _store(ledger: Ledger, client: GraphClient, context: Context) -> None:
    """Keep what was requested, in the context and in the node's folder."""
    if not context.node_config.get("live"):
        context.state[ASKED] = ConfigRecord(ledger.record())
    if folder := _folder(context, client):
        folder.write_asked(ledger.record())


def _check_start(client: GraphClient, received: Mapping[str, Any], state: str = "") -> None:
    """Refuse first parameters that do not follow from the run's seed: a malicious server could choose some that leak data.

    A run with ``init`` starts with a model of a run in which this node trained, or one that its policy lists.

    Raises:
        FedGraphError: names the tensor.
    """
    if not received:
        return
    if client.cfg.init:
        found = digest(received).hex()
        known = state and earlier.in_node(Path(state), client.graph.client, received, trained=True)
        if not known and found not in client.policy.start_models:
            raise FedGraphError(
                f"the server starts this run with the model {found} (init): this node's policy accepts only models of runs in"
                " which the node trained, in its state folder (--state), or listed in the policy (start_models)"
            )
        return
    reseed(derive_seed(client.cfg.seed, "model"), client.device)
    first = client.build_model().to(client.device, client.dtype).state_dict()
    for name in client.shared.keys() & received.keys():
        expected, actual = first[name].cpu().numpy(), received[name]
        same = actual.shape == expected.shape
        # Of tensors that grow, such as a forest's, the first are empty; other wrong shapes are refused when the model takes them.
        if not expected.size if not same else not np.allclose(actual, expected, rtol=1e-3, atol=1e-5):
            raise FedGraphError(
                f"the server starts this run with other parameters than its seed={client.cfg.seed} gives"
                f" ('{sanitize(name, 60)}'): this node's policy accepts no others as a start (check_start), in a later round only"
                " if the cohorts left it out before (late_start), and after a resumption only if its own state folder has the"
                " checkpoint (--state)"
            )


def _check_variates(received: Mapping[str, Any]) -> None:
    """Refuse variates before any training: one step along chosen ones makes the first parameters those that a server chooses.

    Raises:
        FedGraphError: names the tensor.
    """
    if found := [sanitize(name, 60) for name, array in received.items() if np.any(array)]:
        raise FedGraphError(
            f"the server starts this run with a variate of '{found[0]}' that is not zero, which this node refuses (check_start)"
        )


def _config(message: Message) -> dict[str, Any]:
    """Return the scalars of a message, after checking those that every message has.

    Raises:
        FedGraphError: a scalar is missing, or has another type.
    """
    record = message.content.get(CONFIG)
    config: dict[str, Any] = {"exchange": 0, **(record if isinstance(record, ConfigRecord) else {})}
    kinds = {"phase": str, "round": int, "exchange": int}
    kinds |= {key: kind for key, kind in _OPTIONAL.items() if key in config}
    if config.get("keep"):
        kinds["best"] = int
    for key, kind in kinds.items():
        if type(config.get(key)) is not kind:
            raise FedGraphError(
                f"the server's message has {key}={sanitize(config.get(key), 60)}, expected {kind.__name__}"
            )
    if "resume" in config and (config["phase"] != DESCRIBE or config["resume"] < 0):
        raise FedGraphError(
            f"the server resumes after round {config['resume']} in a message of phase '{sanitize(config['phase'], 60)}', expected"
            f" phase '{DESCRIBE}' and no negative round"
        )
    return config


def _simulated(context: Context) -> bool:
    """Return whether the operator of the server also runs this client, as in a simulation."""
    return "partition-id" in context.node_config


def _ledger(client: GraphClient, context: Context) -> Ledger:
    """Return the record of the requests to this node in this run."""
    folder, live = _folder(context, client), context.node_config.get("live")
    ledger = _ledgers.get((context.run_id, context.node_id)) if live else None
    if ledger is None:
        record = context.state.config_records.get(ASKED) if not live else None
        ledger = folder.read_asked() if folder and not record else Ledger(record)
    if live:
        _ledgers[context.run_id, context.node_id] = ledger
    return ledger


def _permit(
    client: GraphClient, context: Context, config: Mapping[str, Any], items: Items, checkpoints: StateFolder | None
) -> None:
    """Record a request, or refuse it: by the policy, because of an earlier request, or for a changed configuration.

    Raises:
        FedGraphError: an error message for the server and the node's log.
    """
    phase, server_round = config["phase"], config["round"]
    most = client.policy.most(phase, messages_of(type(client), phase))
    if not 0 <= server_round <= client.cfg.rounds:
        raise FedGraphError(
            f"the server requests phase '{phase}' of round {server_round} in a run of {client.cfg.rounds} rounds"
        )
    ledger = _ledger(client, context)
    if not _simulated(context):
        if folder := _folder(context, client):
            folder.check_one_method()
        try:
            ledger.pin(items)
        except FedGraphError:
            _live.pop((context.run_id, context.node_id), None)  # it was built from the refused configuration
            raise
    ledger.book(phase, server_round, config["exchange"], most)
    _book_releases(client, context, config)
    if "resume" in config:
        known = checkpoints is not None and checkpoints.has_checkpoint(config["resume"])
        ledger.resume(config["resume"], known)
    _store(ledger, client, context)


@functools.lru_cache(maxsize=8)
def _run_config(items: Items, foreign: bool) -> RunConfig:
    return from_run_config(dict(items), foreign)


def _find(cfg: RunConfig, context: Context) -> tuple[GraphClient, int]:
    """Return this node's live client if it is up to date, else one rebuilt from its graph and its state.

    The state is in ``context.state`` or, after a restart of the SuperNode, in the node's state folder.
    """
    key = (context.run_id, context.node_id)
    if key in _live and context.node_config.get("live"):
        return _live[key]
    stored = int(context.state.config_records[VERSION]["version"]) if VERSION in context.state.config_records else 0  # type: ignore[arg-type]
    if key in _live and _live[key][1] == stored:
        return _live[key]
    _check(context.node_config)
    file = _graph_file(cfg, context)
    policy = _policy(context)
    policy.check_run(cfg)
    kind = _class_of(cfg, context)
    graph = load_graph(cfg, context, file)
    if graph.client in cfg.adversary.clients:
        kind = _malicious(kind, cfg, context)
    if not _simulated(context):
        _check_size(policy, kind, cfg, graph)
    with unexplained(cfg, context):
        client = kind(cfg, graph, device(cfg, context), file)
    client.policy, client.member.floor, client.member.max_share = policy, policy.min_clients, policy.max_share
    client.keyring = _keyring(context, client)
    if cfg.privacy.secagg:
        client.member.opened = _opened_sums(client, context)
        client.member.name_of = client.keyring.name_of
    policy.check_client(client)
    if _simulated(context):
        client.saved_models.what = PRIVATE
    elif context.node_config.get("state"):
        client.saved_models.what = WHOLE
    if STATE in context.state.array_records:
        _live.pop(key, None)  # a stale one
        restore_state(client, unflatten(stored_state(context)))
        if context.node_config.get("live"):
            del context.state[STATE]  # the client holds it now
    elif (folder := _folder(context, client)) and (kept := folder.read_last()):
        with folder.reading("last"):
            restore_state(client, unflatten(kept[0]))
        stored = kept[1]
    _live[key] = (client, stored)
    return _live[key]


def _class_of(cfg: RunConfig, context: Context) -> type[GraphClient]:
    """Return the client's class of a run whose protections, task and sampler it supports."""
    kind = locate(cfg.strategy.client)
    if not (isinstance(kind, type) and issubclass(kind, GraphClient)):
        raise FedGraphError(
            f"strategy.client={sanitize(cfg.strategy.client, 80)} is not a client: expected a subclass of GraphClient"
        )
    check_unit(cfg, kind)
    protections.check(cfg, declared(kind, cfg))
    if not _simulated(context):
        if cfg.privacy.secagg:
            _check_secure_node(context)
        check_task(cfg, kind)
        if cfg.train.sampler != "none":
            check_sampler(cfg, kind)
    return kind


def _check_size(policy: Policy, kind: type[GraphClient], cfg: RunConfig, graph: Any) -> None:
    """Refuse a model by its size before any memory is allocated for it.

    A model that cannot be built on the meta device, for example one with custom code, is built only if the policy lists it or
    the client's class. It is then checked afterwards.

    Raises:
        FedGraphError: the model is larger than the policy accepts, or cannot be counted.
    """
    sizes, task = [], kind_of(cfg)
    for extra in (0, 1):
        shell = object.__new__(kind)
        features, classes = graph.num_features, task.num_classes(graph) + extra
        varied = [f + extra for f in features] if isinstance(features, list) else features + extra
        shell.cfg, shell.params, shell.graph = cfg, method_params(kind, cfg), SimpleNamespace()  # type: ignore[assignment]
        sizes_known = {"num_features": varied, "num_classes": classes, "num_edge_features": graph.num_edge_features}
        vars(shell.graph).update(sizes_known)
        shell.task = SimpleNamespace(width=task.outputs(cfg, classes))  # type: ignore[assignment]
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                sizes.append(shell.build_model().with_nodes(graph.num_nodes + extra))
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            if cfg.model.name in policy.networks or cfg.strategy.client in policy.strategies:
                log(DEBUG, "model=%s is not counted on the meta device: %r", cfg.model.name, error)
                return
            raise FedGraphError(
                f"model={sanitize(cfg.model.name, 80)} of {sanitize(cfg.strategy.client, 80)} cannot be counted before it is"
                f" built ({located(error, public=True)}): make it build on torch's meta device, or list it in this node's policy"
            ) from error
    policy.check_model(*sizes)


def _keep(client: GraphClient, version: int, context: Context) -> None:
    _live[context.run_id, context.node_id] = (client, version)
    if context.node_config.get("live"):
        return
    state = flatten(state_of(client))
    context.state[STATE] = to_record({name: t.cpu().numpy() for name, t in state.items()})
    context.state[VERSION] = ConfigRecord({"version": version})
    if folder := _folder(context, client):
        folder.write_last(state, version)


def _keep_models(client: GraphClient, folder: StateFolder, config: Mapping[str, Any], trained: bool) -> None:
    """Store the models that the client will predict with; a party's own node stores their configuration and schema too."""
    client.saved_models.update_best(int(config["best"]))
    values: dict[str, Any] = {}
    if client.saved_models.what == WHOLE:
        values = {"config": dataclasses.asdict(client.cfg), "file": str(client.file.absolute()) if client.file else ""}
        values |= {key: getattr(client.graph, key) for key in ("schema", "num_features")}
        values |= {"num_classes": client.task.num_classes(client.graph), earlier.TRAINED: trained}
    for name, tree in client.saved_models.state.items():
        parts = flatten({key: tree[key] for key in ("model", "method") if key in tree})
        folder.write_model(name, parts, values | {"round": int(tree["round"])})


def _check(node_config: Mapping[str, Any]) -> None:
    """Refuse an unknown key of ``--node-config``, and a state folder that cannot be written."""
    for key in node_config:
        if key not in NODE_KEYS + _ENGINE_KEYS:
            raise unknown("key", key, NODE_KEYS, "in --node-config")
    if root := node_config.get("state"):
        try:
            Path(str(root)).mkdir(parents=True, exist_ok=True)
            problem = "" if os.access(str(root), os.W_OK) else "fix its permissions or pass another folder"
        except OSError as error:
            problem = f"{error.strerror}"
        if problem:
            raise FedGraphError(f"cannot write to the folder state={root} of --node-config: {problem}")


def _malicious(kind: type[GraphClient], cfg: RunConfig, context: Context) -> type[GraphClient]:
    """Return the class of a malicious client; a party's own node refuses to be one."""
    if not _simulated(context):
        raise FedGraphError(f"a party's own node refuses adversary.kind={cfg.adversary.kind}: set adversary.kind=none")
    from fedgraph_flwr.clients.malicious import malicious

    return malicious(kind)


def _policy(context: Context) -> Policy:
    """Return the party's policy, or the default one."""
    if path := context.node_config.get("policy"):
        return read_policy(str(path))
    return simulated() if _simulated(context) else Policy()


def _keyring(context: Context, client: GraphClient) -> Keyring:
    """Return the party's own key and the keys it trusts; the node logs fingerprints and stores them in its state folder."""
    node = context.node_config
    own = read_key(str(node["key"])) if node.get("key") else None
    pins = read_pins(str(node["peers"])) if node.get("peers") else None
    report = None if _simulated(context) else partial(_report_keys, context, client)
    return Keyring(client.graph.client, context.run_id, own, pins, report)


def _check_secure_node(context: Context) -> None:
    """Refuse secure sums at a party's own node that pins no keys, or has no folder for the ledger of opened sums.

    Raises:
        FedGraphError: names the missing key of ``--node-config``.
    """
    needed = {"key": "to sign its sizes", "peers": "to know whose values are summed", "state": "for opened sums"}
    for key, why in needed.items():
        if not context.node_config.get(key):
            raise FedGraphError(
                f"privacy.secagg=true: this node needs {key}= in its --node-config {why}: start it by `fedgraph-flwr node` with"
                " --key, --peers and --state"
            )


def _opened_sums(client: GraphClient, context: Context) -> OpenedSums | None:
    """Return the ledger of secure sums opened on this node's data, in any run; None where the server's operator runs it."""
    policy, root, path = client.policy, context.node_config.get("state"), None
    if policy.trusting:
        return None
    if root and client.file:
        status = client.file.stat()
        path = Path(str(root)) / f"opened_sums_{_digest(client.file, status.st_mtime_ns, status.st_size)}.json"
    return OpenedSums(path, policy.opened_sums, policy.model_distance)


def _releases(client: GraphClient, config: Mapping[str, Any]) -> int:
    """Return the number of releases with noise that a reply may hold: a sum, and noised scores."""
    phase = config["phase"]
    releases = int(bool(summed_groups(client, phase, config)))
    return releases + (client.cfg.privacy.scores == "noised" and (phase == EVALUATE or bool(config.get("evaluate"))))


def _book_releases(client: GraphClient, context: Context, config: Mapping[str, Any]) -> None:
    """Book the releases of a reply in the node's ledger of privacy, if it has a state folder, a bound of ε, or a unit of rows.

    Raises:
        FedGraphError: the policy does not allow them, or the node has no folder for the ledger.
    """
    policy, root, unit = client.policy, context.node_config.get("state"), client.cfg.privacy.unit
    if client.cfg.privacy.dp == "none" or (not policy.max_epsilon and unit == "client" and not root):
        return
    if not (releases := _releases(client, config)):
        return
    if policy.max_epsilon and not root and not _simulated(context):
        raise FedGraphError(
            "max_epsilon of this node's policy needs a ledger that outlives runs: start the node with --state"
        )
    name = policy.purpose if unit == "client" else f"{policy.purpose}_{unit}"
    path, limit = Path(str(root)) / f"privacy_{name}.json" if root else None, policy.max_epsilon or math.inf
    ledger = _spent.setdefault((context.node_id, name), SpentPrivacy(path, limit, policy.purpose))
    ledger.path, ledger.limit = path, limit
    ledger.logged = partial(audit.released, Path(str(root)), unit, policy.purpose)
    ledger.book(str(context.run_id), client.cfg, releases)


@functools.lru_cache(maxsize=8)
def _digest(file: Path, modified: int, size: int) -> str:
    """Return a digest of a file's content, computed again once it changed."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:32]


def _report_keys(context: Context, client: GraphClient, exchange: str, digits: str, clients: list[int]) -> None:
    line = f"keys of clients {', '.join(map(str, clients))} ({exchange}): {digits}"
    log(INFO, line if client.keyring.pins else f"{line}; none is pinned (peers=): compare this line with another party")
    if folder := _folder(context, client):
        folder.add_fingerprint(exchange, digits, clients)


def _threads(cfg: RunConfig, context: Context) -> int:
    """Return Torch's number of threads: the node's ``threads``, else the run's."""
    threads = context.node_config.get("threads", cfg.threads)
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise FedGraphError(f"threads={threads} of --node-config: expected a whole number from 1 to {MAX_THREADS}")
    return threads


def _graph_file(cfg: RunConfig, context: Context) -> Path | None:
    """Return the client file that the node config names, perhaps by the party's ``party.yaml``."""
    if not (path := context.node_config.get("graph")):
        return None
    return Path(function(CLIENT_FILE, "graph")(Path(str(path)), cfg.strategy.client not in OWN_SECTION))


def load_graph(cfg: RunConfig, context: Context, file: Path | None) -> Any:
    """Return the client's graph: the file that the node config names, else that of its partition.

    Files without edges between clients do not fix the number of clients: it is the run's.
    """
    from fedgraph_flwr import partition

    if not file and "partition-id" not in context.node_config:
        raise FedGraphError(
            "this node has no graph: start the SuperNode with --node-config 'graph=\"FILE\"', where FILE was written by"
            " `fedgraph-flwr partition` or `fedgraph-flwr import`"
        )
    try:
        graph = partition.load(file) if file else partition.load_client(cfg, int(context.node_config["partition-id"]))
    except FedGraphError as error:  # the reply replaces the path of the node config, and must not have another
        raise FedGraphError(str(error).replace(str(file), str(context.node_config.get("graph")))) from error
    cut = isinstance(graph, ClientGraph) and (graph.cut_out.numel() or graph.cut_in.numel())
    if not cut and not cfg.strategy.pooled:
        graph.num_clients = max(cfg.num_clients, graph.client + 1)
    return graph


def device(cfg: RunConfig, context: Context) -> torch.device:
    """Return where this node trains: its ``device``, else the run's; ``auto`` picks a GPU if there is one."""
    name = str(context.node_config.get("device", cfg.device))
    one_of(name, DEVICES, "device")
    if name == "cuda" and not torch.cuda.is_available():
        raise FedGraphError("device=cuda, but this node has no GPU that PyTorch can use; set device=auto or device=cpu")
    return torch.device("cuda" if name in ("auto", "cuda") and torch.cuda.is_available() else "cpu")


def _folder(context: Context, client: GraphClient, run: str | None = None) -> StateFolder | None:
    """Return the folder for the state of this Flower run, or for the checkpoints of ``run``, if there is one.

    It is in the node's ``state`` folder; in a simulation without one, checkpoints are in the run folder.
    """
    root = context.node_config.get("state")
    if run is None:
        run = str(context.run_id)
    elif not root and _simulated(context):
        root = f"{client.cfg.out}/state"
    return StateFolder(str(root), run, client.cfg.strategy.name, client.graph.client) if root else None


def _resume(client: GraphClient, folder: StateFolder | None, server_round: int) -> None:
    if folder is not None:
        state = folder.read_checkpoint(server_round)
        with folder.reading(f"round_{server_round:06d}"):
            restore_state(client, unflatten(state))
    elif flatten(checkpointed_state(client)):
        raise FedGraphError(
            f"client {client.graph.client} cannot resume after round {server_round}: it has private state and no state folder; "
            "start the SuperNode with --node-config 'state=\"DIR\"'"
        )
