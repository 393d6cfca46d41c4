"""Ray engine: the same ServerApp, Strategy and ClientApp, connected by a `Grid` over actors that keep their clients.

Client i stays in actor i mod A for the whole run. It is built at its first message, then kept with
its inputs and state. An exchange is one call per actor with all its messages. Shared records, such
as the model, are sent once per machine through Ray's object store. An actor whose process dies is
restarted from the last copy of its clients' private state. It repeats the exchanges since then,
which give the same bits, and the round continues.
"""

import itertools
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from ray.exceptions import ObjectLostError, RayActorError, RayError

from fedgraph_flwr import partition
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, to_json
from fedgraph_flwr.config.schema import RayConfig
from fedgraph_flwr.engine.grid import (
    BaseGrid,
    forget,
    get_replies,
    get_reply,
    load_descriptions,
    run_identity,
    virtual_context,
)
from fedgraph_flwr.engine.process import (
    freed_memory_kept,
    keep_freed_memory,
    reduce_gc,
    same_process_state,
)
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet.processes import kill_after
from fedgraph_flwr.logs import log
from fedgraph_flwr.numerics.partial_sums import PartialSum, Plan
from fedgraph_flwr.store.events import OnWait
from fedgraph_flwr.store.folder import CHECKPOINT, make_folder
from fedgraph_flwr.wire.messages import (
    CONFIG,
    FAILED,
    METRICS,
    REFUSED,
    TRAIN,
    Bare,
    bared,
    dressed,
)

Letter = tuple[int, str, str, dict[str, Any]]
"""Message to an actor: node, type, group, and records; a shared record is an index into the shared list."""

Replies = tuple[list[Bare | Error], bool, PartialSum]
"""Result of a call: one content or error per letter, whether private state is included, and the partial sum."""

States = dict[int, dict[str, np.ndarray]]
"""Private state by node."""

Result = tuple[Replies, States | None]
"""Both, if state is due."""

Files = dict[str, bytes]
"""Client files by name."""

PATIENCE = 300.0
"""Seconds to wait for the start of Ray and its processes; a busy machine takes minutes."""

CONNECT = 60.0
"""Seconds to wait for a connection to a cluster."""

STARTS = 3
"""Attempts to start a Ray instance; each fails after half a minute."""

STORE = 2 * 2**30
"""Maximum bytes of the object store of a local instance; unused pages cost nothing."""

LOOK = 2.0
"""Seconds between looks for lost machines, while processes start."""

KEEP_EVERY = 10
"""Exchanges between copies of the clients' private state, which a restarted actor must repeat at most."""

SMALL = 2**20
"""Maximum bytes of private state copied after every exchange."""

LIVES = 3
"""Number of consecutive deaths by the same exchange that fail the run."""


@dataclass(frozen=True)
class _Run:
    """Description of a run for an actor.

    Attributes:
        run_id: id of the server's grid.
        num_nodes: M.
        run_config: run configuration that Flower would pass to clients.
        environment: variables of the server's process with data folders.
        live_clients: maximum number of clients in memory; 0 for all.
        stack: maximum number of clients computed as one.
    """

    run_id: int
    num_nodes: int
    run_config: dict[str, Any]
    environment: dict[str, str]
    live_clients: int
    stack: int


_OWNER = "process"
"""File in a temporary folder: the number of the process that uses it."""


def scratch_folder(kind: str) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder of this process, and remove those that killed processes left."""
    for owner in Path(tempfile.gettempdir()).glob(f"fedgraph-*-*/{_OWNER}"):
        with suppress(OSError, ValueError):  # of another user, or gone
            if not psutil.pid_exists(int(owner.read_text())):
                shutil.rmtree(owner.parent, ignore_errors=True)
    folder = tempfile.TemporaryDirectory(prefix=f"fedgraph-{kind}-", ignore_cleanup_errors=True)
    Path(folder.name, _OWNER).write_text(str(os.getpid()))
    return folder


class ClientActor:
    """Process with a share of a run's clients; it serves several runs in sequence."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def begin(self, run: "_Run", states: States | None, files: Files | None) -> None:
        """Start a run.

        Args:
            run: description of the run.
            states: private state of the clients to start from.
            files: files of this actor's clients, if they are on another machine.
        """
        from fedgraph_flwr.node import clients as node_clients
        from fedgraph_flwr.node.app import app

        if files is not None:
            self.folder = scratch_folder("clients")
            for name, content in files.items():
                Path(self.folder.name, name).write_bytes(content)
            config = json.loads(run.run_config["config"]) | {"graph": self.folder.name}
            run = replace(run, run_config=run.run_config | {"config": json.dumps(config)})
        self.app = app
        self.run = run
        self.contexts: dict[int, Context] = {}
        self.live: dict[int, None] = {}  # built clients, least recently used first
        self.sizes: dict[int, int] = {}  # bytes of private state
        os.environ.update(run.environment)
        reduce_gc()
        keep_freed_memory()
        TaskIdentity.run_id = run.run_id
        TaskIdentity.task_id = 1
        TaskIdentity.node_id = 0
        for node, state in (states or {}).items():
            # Ray's are read-only
            tensors = {name: torch.from_numpy(array.copy()) for name, array in state.items()}
            node_clients.store_state(self._context(node), tensors)
            self.sizes[node] = _size(tensors)

    def reply(
        self, shared: list[Any], letters: list[Letter], keep: bool, plan: Plan | None = None
    ) -> Result:
        """Reply to all letters of an exchange, in order.

        Args:
            shared: records used by several letters.
            letters: messages to this actor's clients.
            keep: whether to return a copy of all private state, however large.
            plan: arrays of the replies to sum here instead of returning them.
        """
        replies: list[Message] = []
        total = PartialSum()
        at_once = (
            min(self.run.live_clients or len(letters), len(letters)) if self.run.stack > 1 else 1
        )
        for start in range(0, len(letters), at_once):
            calls = [
                partial(self._reply, shared, letter) for letter in letters[start : start + at_once]
            ]
            some = get_replies(calls, self.run.stack)
            replies += [_added(reply, plan, total) for reply in some] if plan else some
            self._make_room()
        states = self._states([node for node, *_ in letters], keep)
        contents = [reply.error if reply.has_error() else bared(reply.content) for reply in replies]
        return (contents, states is not None, total), states

    def _reply(self, shared: list[Any], letter: Letter) -> Message:
        node, kind, group, records = letter
        content = RecordDict(
            {key: shared[r] if isinstance(r, int) else r for key, r in records.items()}
        )
        message = Message(content, dst_node_id=node, message_type=kind, group_id=group)
        self.live.pop(node, None)
        self.live[node] = None
        return get_reply(self.app, message, self._context(node))

    def end(self) -> None:
        """End the run and drop its clients."""
        forget(self.run.run_id)
        self.contexts = {}
        self.live = {}
        if self.folder:
            self.folder.cleanup()

    def _context(self, node: int) -> Context:
        run = self.run
        if node not in self.contexts:
            self.contexts[node] = virtual_context(run.run_id, node, run.num_nodes, run.run_config)
        return self.contexts[node]

    def _make_room(self) -> None:
        """Drop the least recently used clients, but keep their state."""
        from fedgraph_flwr.node import clients as node_clients

        while 0 < self.run.live_clients < len(self.live):
            node = next(iter(self.live))
            del self.live[node]
            state = node_clients.stored_state(self.contexts[node])
            node_clients.store_state(self.contexts[node], state)
            if not state:
                del self.contexts[node]

    def _states(self, requested: list[int], keep: bool) -> States | None:
        """Return a copy of all private state, inspecting as few clients as possible; None if it is not due."""
        from fedgraph_flwr.node import clients as node_clients

        for node in requested:
            self.sizes[node] = (
                _size(node_clients.stored_state(self.contexts[node]))
                if node in self.contexts
                else 0
            )
        if not keep and sum(self.sizes.values()) > SMALL:
            return None
        states = {
            node: node_clients.stored_state(self.contexts[node])
            for node, size in self.sizes.items()
            if size
        }
        return {
            node: {k: t.detach().cpu().numpy() for k, t in state.items()}
            for node, state in states.items()
        }


def _added(reply: Message, plan: Plan, total: PartialSum) -> Message:
    """Add the arrays of a reply to a sum and remove them; return an error reply if they are invalid."""
    if reply.has_error():
        return reply
    content = reply.content
    node = reply.metadata.src_node_id
    sent = {group: content[group] for group in plan.groups if group in content}
    arrays = RecordDict({METRICS: MetricRecord(), **sent})
    try:
        groups, _ = plan.schema.read(arrays, f"client {node - 1} replied to phase '{TRAIN}'")
        total.add(node, groups, plan.shares[node])
    except FedGraphError as error:
        records = content.array_records.values()
        total.bytes[REFUSED] += sum(
            len(array.data) for record in records for array in record.values()
        )
        return Message(Error(FAILED, str(error)), reply_to=reply)
    for group in groups:
        del content[group]
    return reply


def _size(state: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


@dataclass
class _Call:
    """Messages of one exchange for one actor."""

    messages: list[Message]
    shared: Any  # records shared by all actors, in the object store
    letters: list[Letter]
    keep: bool
    plan: Plan | None = None
    states: Any = None  # private state after it, in the object store


@dataclass
class _Share:
    """Clients of one actor, and the state needed to restart it."""

    first: int
    actor: Any
    files: Any = None  # client files in the object store, if the actor's machine may not have them
    # the last copy of the private state, in the object store: it outlives the actor
    kept: Any = None
    since: list[_Call] = field(default_factory=list)  # calls completed after it
    flying: dict[Any, _Call] = field(default_factory=dict)  # calls in progress, oldest first
    deaths: int = 0


class RayGrid(BaseGrid):
    """Grid whose nodes are in Ray actors.

    Args:
        pool: source of actors.
        num_nodes: number of virtual nodes; node i holds partition i - 1.
        cfg: the run's configuration.
        stack: maximum number of clients of one actor computed as one.
    """

    blocks = True
    """`pull_messages` waits for replies."""

    def __init__(self, pool: "Pool", num_nodes: int, cfg: RunConfig, stack: int = 0):
        super().__init__(num_nodes, stack)
        self.pool = pool
        self.cfg = cfg
        away = (
            replace(cfg, graph=str(Path(cfg.graph).expanduser().absolute())) if cfg.graph else cfg
        )
        # other machines have other data folders, or none
        ships = bool(cfg.ray.address) and not cfg.strategy.pooled
        places = () if ships else ("FEDGRAPH_DATA", "XDG_CACHE_HOME")
        environment = {key: os.environ[key] for key in places if key in os.environ}
        run_config = {"config": to_json(away), "overrides": ""}
        self.description = _Run(
            self.run_id, num_nodes, run_config, environment, cfg.ray.live_clients, self.stack
        )
        actors = pool.take(cfg, num_nodes)
        self.shares = [_Share(first, actor) for first, actor in enumerate(actors)]
        try:
            if ships:
                paths = partition.files(partition.client_files(cfg))
                for share in self.shares:
                    files = paths[share.first :: len(actors)]
                    share.files = ray.put({path.name: path.read_bytes() for path in files})
            pool.wait(
                [
                    share.actor.begin.remote(self.description, None, share.files)
                    for share in self.shares
                ],
                cfg,
                len(actors),
            )
        except (RunFailed, OSError):
            for actor in actors:
                ray.kill(actor)
            raise
        self._replies: dict[str, Message] = {}
        self.plan: Plan | None = None
        self.added = PartialSum()

    def add_up(self, plan: Plan | None) -> None:
        """Let actors sum the following replies by a plan, or stop with None; the sum is `added`."""
        self.plan = plan
        self.added = PartialSum()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each actor the messages of its clients in one call."""
        sent = list(messages)
        identifiers = [self._name(message) for message in sent]
        uses = Counter(id(record) for message in sent for record in message.content.values())
        records = {id(record): record for message in sent for record in message.content.values()}
        common = [key for key, count in uses.items() if count > 1]
        place = {key: index for index, key in enumerate(common)}
        shared = ray.put([records[key] for key in common])
        for share in self.shares:
            requests = [
                m for m in sent if (m.metadata.dst_node_id - 1) % len(self.shares) == share.first
            ]
            if requests:
                letters = [_letter(message, place) for message in requests]
                # A restarted actor must not repeat reads or writes of files.
                once = any("run" in m.content.config_records.get(CONFIG, {}) for m in requests)
                keep = once or len(share.since) + len(share.flying) + 1 >= KEEP_EVERY
                nodes = [m.metadata.dst_node_id for m in requests]
                plan = self.plan and Plan(
                    self.plan.groups, {node: self.plan.shares[node] for node in nodes}
                )
                self._send(share, _Call(requests, shared, letters, keep, plan))
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return available replies; wait up to a second for some."""
        wanted = list(message_ids)
        if not any(identifier in self._replies for identifier in wanted):
            self._receive()
        return [
            self._replies.pop(identifier) for identifier in wanted if identifier in self._replies
        ]

    def close(self) -> None:
        """Return the actors to the pool, except those still busy."""
        for share in self.shares:
            if share.flying:
                ray.kill(share.actor)
            else:
                self.pool.put(share.actor, self.cfg)

    def _send(self, share: _Share, call: _Call) -> None:
        reply = share.actor.reply.options(num_returns=2)
        replies, call.states = reply.remote(call.shared, call.letters, call.keep, call.plan)
        share.flying[replies] = call

    def _receive(self) -> None:
        waiting = {replies: share for share in self.shares for replies in share.flying}
        if not waiting:
            return
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        for replies in ready:
            share = waiting[replies]
            try:
                contents, kept, total = ray.get(replies)
            except (RayActorError, ObjectLostError) as error:
                self._again(share, error)
                continue
            except RayError as error:
                raise RunFailed(f"{self._label(share)} failed: {_line(error)}") from error
            call = share.flying.pop(replies)
            share.deaths = 0
            share.since.append(call)
            # else of an abandoned exchange
            if self.plan and call.plan and call.plan.groups is self.plan.groups:
                self.added.merge(total)
            if kept:
                share.kept = call.states
                share.since = []
            for message, content in zip(call.messages, contents, strict=True):
                full = content if isinstance(content, Error) else dressed(content)
                self._replies[message.metadata.message_id] = Message(full, reply_to=message)

    def _again(self, share: _Share, error: Exception) -> None:
        """Restart an actor, and repeat the calls after the last copy of its clients' state."""
        share.deaths += 1
        if share.deaths >= LIVES:
            raise RunFailed(
                f"{self._label(share)} died {LIVES} times in the same exchange ({_line(error)}): if memory ran out, start"
                " fewer processes by a higher client_cpus"
            ) from error
        self.pool.check_machines(self.cfg, len(self.shares))
        log(WARNING, "%s died, restarting it: %s", self._label(share), _line(error))
        calls = list(share.flying.values())
        share.flying = {}
        ray.kill(share.actor)
        share.actor = self.pool.new(self.cfg)
        self.pool.wait(
            [share.actor.begin.remote(self.description, share.kept, share.files)],
            self.cfg,
            len(self.shares),
        )
        for call in share.since:
            share.actor.reply.options(num_returns=2).remote(call.shared, call.letters, False)
        for call in calls:
            self._send(share, call)

    def _label(self, share: _Share) -> str:
        actors = len(self.shares)
        first = share.first
        more = (
            f"s {first}, {first + actors}, ... of {self.num_nodes}"
            if actors < self.num_nodes
            else f" {first}"
        )
        return f"the Ray actor of client{more}"


def _letter(message: Message, place: dict[int, int]) -> Letter:
    about = message.metadata
    records = {key: place.get(id(record), record) for key, record in message.content.items()}
    return about.dst_node_id, about.message_type, about.group_id, records


def _line(error: BaseException) -> str:
    """Return the last line of a traceback from another process, else the first line of the error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if "Traceback" in str(error) else 0].strip()


class Pool:
    """Actors of one Ray instance, which serve several runs in sequence.

    Ray is started, or connected to, in a thread. Meanwhile the caller can prepare the client files,
    and a stalled connection does not block the run.

    Args:
        address: address of a cluster; empty for a local instance that ends with `end`.
    """

    def __init__(self, address: str):
        self.address = address
        self.folder = scratch_folder("ray")
        self.idle: dict[tuple[float, float], list[Any]] = {}
        self.made = itertools.count(1)  # numbers in the names of actors
        self.machines: set[str] = set()  # ids of those that were up when the current run started
        self._error: BaseException | None = None
        self._up = threading.Event()
        self._over = threading.Event()
        threading.Thread(target=self._start, daemon=True).start()

    def take(self, cfg: RunConfig, at_most: int) -> list[Any]:
        """Return actors for a run: as many as fit, at most the number of clients and ``ray.actors``.

        Raises:
            RunFailed: Ray did not start or respond, or has no free resources.
        """
        self._wait_up()
        alive = [node for node in ray.nodes() if node["Alive"]]
        self.machines = {node["NodeID"] for node in alive}
        nodes = [node["Resources"] for node in alive]
        room = sum(_room(resources, cfg) for resources in nodes)
        if not room:
            machines = "; ".join(
                f"{n.get('CPU', 0):g} CPUs, {n.get('GPU', 0):g} GPUs" for n in nodes
            )
            raise RunFailed(
                f"no machine has enough resources for {_needs(cfg)}: lower them; Ray has {machines}"
            )
        if (
            not cfg.client_gpus
            and cfg.device != "cpu"
            and (gpus := sum(node.get("GPU", 0) for node in nodes))
        ):
            fix = "set client_gpus, 0.25 for four per GPU, or device=cpu"
            log(WARNING, "clients get none of Ray's %g GPUs: %s", gpus, fix)
        number = min(room, at_most, cfg.ray.actors or room)
        idle = self.idle.setdefault((cfg.client_cpus, cfg.client_gpus), [])
        taken = [idle.pop() for _ in range(min(number, len(idle)))]
        for other in itertools.chain(*self.idle.values()):  # they would occupy resources
            ray.kill(other)
        self.idle.clear()
        return taken + [self.new(cfg) for _ in range(number - len(taken))]

    def new(self, cfg: RunConfig) -> Any:
        """Return a new actor in a separate process."""
        return (
            ray.remote(ClientActor)
            .options(
                name=f"fedgraph-{os.getpid()}-{next(self.made)}",
                num_cpus=cfg.client_cpus,
                num_gpus=cfg.client_gpus,
            )
            .remote()
        )

    def put(self, actor: Any, cfg: RunConfig) -> None:
        """Keep an actor for another run."""
        actor.end.remote()
        self.idle.setdefault((cfg.client_cpus, cfg.client_gpus), []).append(actor)

    def wait(self, begun: list[Any], cfg: RunConfig, actors: int) -> None:
        """Wait until actors have started.

        Args:
            begun: their calls of `ClientActor.begin`.
            cfg: the run's configuration.
            actors: number of actors of the run.

        Raises:
            RunFailed: an actor failed, or did not start within `PATIENCE` seconds, or its machine
                was lost.
        """
        deadline = time.monotonic() + PATIENCE
        ready = list[Any]()
        while len(ready) < len(begun):
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"Ray started {len(ready)} of {len(begun)} processes for clients within {PATIENCE:g} s ({_needs(cfg)},"
                    f" ray.address={self.address or 'none'}): check whether it is busy with other work"
                )
            ready, _ = ray.wait(begun, num_returns=len(begun), timeout=LOOK)
            if len(ready) < len(begun):
                self.check_machines(cfg, actors)
        try:
            ray.get(begun)
        except ObjectLostError as error:
            what = f"clients' private state was lost with the machine that kept it ({_line(error)})"
            raise RunFailed(f"{what}: {_resume_text(cfg)}") from error
        except RayError as error:
            self.check_machines(cfg, actors)
            raise RunFailed(f"a Ray actor could not start: {_line(error)}") from error

    def check_machines(self, cfg: RunConfig, actors: int) -> None:
        """Check that the machines that are left have room for a run's actors, if one was lost since the run started.

        Raises:
            RunFailed: they have not; names the lost machines.
        """
        nodes = ray.nodes()
        lost = [node for node in nodes if node["NodeID"] in self.machines and not node["Alive"]]
        room = sum(_room(node["Resources"], cfg) for node in nodes if node["Alive"])
        if lost and room < actors:
            names = ", ".join(
                sorted(
                    f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in lost
                )
            )
            raise RunFailed(
                f"the Ray cluster lost {names}, and its other machines have room for {room} of {actors} processes for clients"
                f" ({_needs(cfg)}): {_resume_text(cfg)}"
            )

    def end(self) -> None:
        """Stop all started processes, and leave a cluster unchanged."""
        if not self._up.wait(10) or self._error:
            self._over.set()
            self.folder.cleanup()
            return
        family = _family()
        ray.shutdown()
        self._over.set()
        kill_after(family, 5)
        psutil.wait_procs(family, timeout=5)
        self.folder.cleanup()

    def _start(self) -> None:
        # Hide Ray's message about an accelerator variable, and disable its usage reports.
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if self.address:
                if self.address != "auto":  # Ray itself would retry for a long time
                    host, _, port = self.address.rpartition(":")
                    socket.create_connection((host, int(port)), CONNECT).close()
                ray.init(address=self.address, **quiet)
            else:
                self._start_own(quiet)
        except BaseException as error:
            self._error = error
        self._up.set()
        self._over.wait()  # Ray's processes are killed when the thread that started them ends

    def _start_own(self, quiet: dict[str, Any]) -> None:
        os.environ.setdefault("RAY_worker_register_timeout_seconds", f"{PATIENCE:.0f}")
        # Ray's 15 makes a round ten times slower next to other work
        os.environ.setdefault("RAY_worker_niceness", "0")
        store = min(STORE, int(0.3 * psutil.virtual_memory().total))
        for attempt in range(1, STARTS + 1):
            try:
                ray.init(
                    address="local",  # ignore clusters named by the environment or a file
                    include_dashboard=False,
                    object_store_memory=store,
                    _temp_dir=self.folder.name,
                    **quiet,
                )
                return
            except Exception as error:  # Ray raises no more specific class here
                if attempt == STARTS or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()

    def _wait_up(self) -> None:
        tried = f"ray.address={self.address}" if self.address else "the local Ray instance"
        if not self._up.wait(PATIENCE):
            raise RunFailed(f"{tried} did not respond within {PATIENCE:g} s: check `ray status`")
        if threading.current_thread() is threading.main_thread():
            # Ray's library replaced Python's handler
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        if self._error:
            raise RunFailed(
                f"{tried} could not be reached ({_line(self._error)}): check `ray status`"
            ) from self._error


def _needs(cfg: RunConfig) -> str:
    return f"client_cpus={cfg.client_cpus} and client_gpus={cfg.client_gpus:g}"


def _resume_text(cfg: RunConfig) -> str:
    if (Path(cfg.out) / CHECKPOINT).is_file():
        return f"to continue on what is left, run: fedgraph-flwr run resume={cfg.out}"
    return (
        f"no checkpoint was saved (checkpoint_every={cfg.checkpoint_every}), so start the run again"
    )


def _room(resources: dict[str, float], cfg: RunConfig) -> int:
    """Return the number of actors that fit on a machine."""
    room = resources.get("CPU", 0) / cfg.client_cpus
    return int(min(room, resources.get("GPU", 0) / cfg.client_gpus) if cfg.client_gpus else room)


def _family() -> list[psutil.Process]:
    """Return Ray's processes that this one started, with their descendants."""
    processes = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(ray.__path__[0] in word for word in child.cmdline()):
                processes.append(child)
                processes += child.children(recursive=True)
    return processes


_pool: Pool | None = None


@contextmanager
def ray_session(cfg: RayConfig | None = None) -> Iterator[Pool]:
    """Share a Ray instance and its actors between all runs of the block; nested blocks use the outer one."""
    global _pool
    if _pool is not None:
        yield _pool
        return
    _pool = Pool(cfg.address if cfg else "")
    try:
        yield _pool
    finally:
        pool = _pool
        _pool = None
        pool.end()


@contextmanager
def open_grid(
    cfg: RunConfig, client: type[GraphClient], stack: int, on_wait: OnWait | None = None
) -> Iterator[RayGrid]:
    """Serve a run's clients in Ray actors during the block.

    Args:
        cfg: the prepared configuration.
        client: class of the clients.
        stack: maximum number of clients of one actor computed as one.
        on_wait: called with a message while Ray starts.

    Yields:
        The grid of its nodes.
    """
    make_folder(cfg)
    if on_wait:
        on_wait("starting Ray")
    with ray_session(cfg.ray) as pool:
        num_nodes = partition.num_clients(cfg)  # while Ray starts
        grid = RayGrid(pool, num_nodes, cfg, stack)
        load_descriptions(grid, cfg, client)
        try:
            with run_identity(grid.run_id), same_process_state(), freed_memory_kept():
                # as for clients, which set the server's count, too, in one process
                torch.set_num_threads(cfg.threads)
                yield grid
        finally:
            grid.close()
