"""The Ray engine: the same ServerApp, Strategy and ClientApp, joined by a `Grid` over actors that keep their clients.

Client i lives in actor i mod A for the whole run: built when it is first asked, then kept with its inputs and its state. An
exchange is one call an actor with all of its messages; what messages share (the model) goes once to each machine through
Ray's object store. An actor whose process dies is made anew from the last copy of its clients' private state and the
exchanges since, which give the same bits again, and the round goes on.
"""

import itertools
import json
import os
import signal
import socket
import tempfile
import threading
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
from flwr.common.logger import log
from flwr.supercore.task_identity import TaskIdentity
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.schema import RayConfig
from fedgraph_flwr.engine.grid import (
    BaseGrid,
    answer,
    answer_all,
    forget,
    load_descriptions,
    run_identity,
    virtual_context,
)
from fedgraph_flwr.engine.process import freed_memory_kept, keep_freed_memory, reduce_gc, same_process_state
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.numerics.partial_sums import PartialSum, Plan
from fedgraph_flwr.runs.folder import make_folder
from fedgraph_flwr.runs.prepare import Prepared, prepare
from fedgraph_flwr.runs.progress import OnRound, OnWait
from fedgraph_flwr.runs.serving import serve
from fedgraph_flwr.wire.messages import CONFIG, FAILED, METRICS, REFUSED, TRAIN, Bare, bared, dressed

Letter = tuple[int, str, str, dict[str, Any]]
"""A message on its way to an actor: node, type, group, and its records, those shared as their place among the shared ones."""

Answered = tuple[list[Bare | Error], bool, PartialSum]
"""What a call answers: one content or error a letter, whether the private state came with it, and what was added up."""

States = dict[int, dict[str, np.ndarray]]
"""Private state by node."""

Files = dict[str, bytes]
"""Clients' files by their names."""

PATIENCE = 300.0
"""Seconds in which Ray and its processes must start; a busy machine takes minutes."""

CONNECT = 60.0
"""Seconds in which a cluster must accept a connection."""

STARTS = 3
"""Attempts to start a Ray instance, which gives up after half a minute on its own."""

STORE = 2 * 2**30
"""Bytes of the object store of an instance of our own, at most; pages that nothing lies in cost nothing."""

KEEP_EVERY = 10
"""Exchanges between copies of the clients' private state: what an actor that died has to do again, at most."""

SMALL = 2**20
"""Bytes of private state that are copied after every exchange."""

LIVES = 3
"""Times in a row that an actor may die of the same exchange."""


@dataclass(frozen=True)
class _Run:
    """What an actor is told of a run.

    Attributes:
        run_id: of the server's grid.
        num_nodes: M.
        run_config: what Flower would hand to the clients.
        environment: variables of the server's process that say where data lies.
        live_clients: clients to hold at once; 0: all.
        stack: how many of them are computed as one, at most.
    """

    run_id: int
    num_nodes: int
    run_config: dict[str, Any]
    environment: dict[str, str]
    live_clients: int
    stack: int


class ClientActor:
    """One process that holds a share of a run's clients; it serves one run after the other."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def begin(self, run: "_Run", states: States | None, files: Files | None) -> None:
        """Take part in a run.

        Args:
            run: what it is.
            states: what another process kept of the clients, to start from.
            files: of this actor's clients, where they lie on another machine.
        """
        from fedgraph_flwr.client_app import app
        from fedgraph_flwr.clients import session

        if files is not None:
            self.folder = tempfile.TemporaryDirectory(prefix="fedgraph-clients-", ignore_cleanup_errors=True)
            for name, content in files.items():
                Path(self.folder.name, name).write_bytes(content)
            config = json.loads(run.run_config["config"]) | {"graph": self.folder.name}
            run = replace(run, run_config=run.run_config | {"config": json.dumps(config)})
        self.app, self.run = app, run
        self.contexts: dict[int, Context] = {}
        self.live: dict[int, None] = {}  # clients that are built, those asked last at the end
        self.sizes: dict[int, int] = {}  # of private state, in bytes
        os.environ.update(run.environment)
        reduce_gc()
        keep_freed_memory()
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run.run_id, 1, 0
        for node, state in (states or {}).items():
            tensors = {name: torch.from_numpy(array.copy()) for name, array in state.items()}  # Ray's are read-only
            session.give_state(self._context(node), tensors)
            self.sizes[node] = _size(tensors)

    def answer(
        self, shared: list[Any], letters: list[Letter], keep: bool, plan: Plan | None = None
    ) -> tuple[Answered, States | None]:
        """Answer all letters of an exchange, in their order.

        Args:
            shared: records that several letters hold.
            letters: what this actor's clients are asked.
            keep: whether a copy of the private state of all clients is due, however large.
            plan: what of the answers is added up here, and does not go back.
        """
        replies: list[Message] = []
        total = PartialSum()
        at_once = min(self.run.live_clients or len(letters), len(letters)) if self.run.stack > 1 else 1
        for start in range(0, len(letters), at_once):
            asked = [partial(self._answer, shared, letter) for letter in letters[start : start + at_once]]
            answered = answer_all(asked, self.run.stack)
            replies += [_added(reply, plan, total) for reply in answered] if plan else answered
            self._make_room()
        states = self._states([node for node, *_ in letters], keep)
        contents = [reply.error if reply.has_error() else bared(reply.content) for reply in replies]
        return (contents, states is not None, total), states

    def _answer(self, shared: list[Any], letter: Letter) -> Message:
        node, kind, group, records = letter
        content = RecordDict({key: shared[r] if isinstance(r, int) else r for key, r in records.items()})
        message = Message(content, dst_node_id=node, message_type=kind, group_id=group)
        self.live.pop(node, None)
        self.live[node] = None
        return answer(self.app, message, self._context(node))

    def end(self) -> None:
        """The run is over: its clients are dropped."""
        forget(self.run.run_id)
        self.contexts, self.live = {}, {}
        if self.folder:
            self.folder.cleanup()

    def _context(self, node: int) -> Context:
        run = self.run
        if node not in self.contexts:
            self.contexts[node] = virtual_context(run.run_id, node, run.num_nodes, run.run_config)
        return self.contexts[node]

    def _make_room(self) -> None:
        """Drop the clients that were asked longest ago, but keep their state."""
        from fedgraph_flwr.clients import session

        while 0 < self.run.live_clients < len(self.live):
            node = next(iter(self.live))
            del self.live[node]
            state = session.private_state(self.contexts[node])
            session.give_state(self.contexts[node], state)
            if not state:
                del self.contexts[node]

    def _states(self, asked: list[int], keep: bool) -> States | None:
        """A copy of all private state, looking at no more clients than it must; None where it is not due."""
        from fedgraph_flwr.clients import session

        for node in asked:
            self.sizes[node] = _size(session.private_state(self.contexts[node])) if node in self.contexts else 0
        if not keep and sum(self.sizes.values()) > SMALL:
            return None
        states = {node: session.private_state(self.contexts[node]) for node, size in self.sizes.items() if size}
        return {node: {k: t.detach().cpu().numpy() for k, t in state.items()} for node, state in states.items()}


def _added(reply: Message, plan: Plan, total: PartialSum) -> Message:
    """An answer without its arrays, which were added to a sum; or why they were not."""
    if reply.has_error():
        return reply
    content, node = reply.content, reply.metadata.src_node_id
    arrays = RecordDict(
        {METRICS: MetricRecord(), **{group: content[group] for group in plan.groups if group in content}}
    )
    try:
        groups, _ = plan.schema.read(arrays, f"client {node - 1} replied to phase '{TRAIN}'")
        total.add(node, groups, plan.shares[node])
    except FedGraphError as error:
        total.bytes[REFUSED] += sum(
            len(array.data) for record in content.array_records.values() for array in record.values()
        )
        return Message(Error(FAILED, str(error)), reply_to=reply)
    for group in groups:
        del content[group]
    return reply


def _size(state: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


@dataclass
class _Call:
    """All messages of one exchange for one actor."""

    messages: list[Message]
    shared: Any  # of all actors, in the object store
    letters: list[Letter]
    keep: bool
    plan: Plan | None = None
    states: Any = None  # what was kept after it, in the object store


@dataclass
class _Share:
    """The clients of one actor, and what it takes to make it anew."""

    first: int
    actor: Any
    files: Any = (
        None  # of its clients, in the object store, where the actor may be on a machine that does not have them
    )
    kept: Any = None  # the last copy of the private state, in the object store: it outlives the actor
    since: list[_Call] = field(default_factory=list)  # what was answered after it
    flying: dict[Any, _Call] = field(default_factory=dict)  # what is being answered, oldest first
    deaths: int = 0


class RayGrid(BaseGrid):
    """A grid whose nodes live in Ray actors.

    Args:
        pool: where actors come from.
        num_nodes: virtual nodes; node i holds partition i - 1.
        cfg: the run's configuration.
    """

    blocks = True
    """`pull_messages` itself waits until something has come."""

    def __init__(self, pool: "Pool", num_nodes: int, cfg: RunConfig):
        from fedgraph_flwr import partition
        from fedgraph_flwr.config import to_json
        from fedgraph_flwr.runs.checks import at_once

        super().__init__(num_nodes, at_once(cfg))
        self.pool, self.cfg = pool, cfg
        away = replace(cfg, graph=str(Path(cfg.graph).expanduser().absolute())) if cfg.graph else cfg
        ships = (
            bool(cfg.ray.address) and not cfg.strategy.pooled
        )  # to machines that have data folders of their own, or none
        places = () if ships else ("FEDGRAPH_DATA", "XDG_CACHE_HOME")
        environment = {key: os.environ[key] for key in places if key in os.environ}
        run_config = {"config": to_json(away), "overrides": ""}
        self.description = _Run(self.run_id, num_nodes, run_config, environment, cfg.ray.live_clients, self.stack)
        actors = pool.take(cfg, num_nodes)
        self.shares = [_Share(first, actor) for first, actor in enumerate(actors)]
        try:
            if ships:
                paths = partition.files(partition.client_files(cfg))
                for share in self.shares:
                    own = paths[share.first :: len(actors)]
                    share.files = ray.put({path.name: path.read_bytes() for path in own})
            pool.wait([share.actor.begin.remote(self.description, None, share.files) for share in self.shares], cfg)
        except (RunFailed, OSError):
            for actor in actors:
                ray.kill(actor)
            raise
        self._replies: dict[str, Message] = {}
        self.plan: Plan | None = None
        self.added = PartialSum()

    def add_up(self, plan: Plan | None) -> None:
        """Let actors add up what a plan says of the answers to come, or no more; the sum is `added`."""
        self.plan, self.added = plan, PartialSum()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each actor the messages of its clients, in one call."""
        sent = list(messages)
        identifiers = [self._name(message) for message in sent]
        uses = Counter(id(record) for message in sent for record in message.content.values())
        records = {id(record): record for message in sent for record in message.content.values()}
        common = [key for key, count in uses.items() if count > 1]
        place = {key: index for index, key in enumerate(common)}
        shared = ray.put([records[key] for key in common])
        for share in self.shares:
            mine = [m for m in sent if (m.metadata.dst_node_id - 1) % len(self.shares) == share.first]
            if mine:
                letters = [_letter(message, place) for message in mine]
                # What it reads or writes on disk must not be read or written again when an actor is made anew.
                once = any("run" in m.content.config_records.get(CONFIG, {}) for m in mine)
                keep = once or len(share.since) + len(share.flying) + 1 >= KEEP_EVERY
                self._send(share, _Call(mine, shared, letters, keep, self._own_plan(mine)))
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are there; waits for some, but no longer than a second."""
        wanted = list(message_ids)
        if not any(identifier in self._replies for identifier in wanted):
            self._receive()
        return [self._replies.pop(identifier) for identifier in wanted if identifier in self._replies]

    def close(self) -> None:
        """Give the actors back, but for those that are still at work."""
        for share in self.shares:
            if share.flying:
                ray.kill(share.actor)
            else:
                self.pool.put(share.actor, self.cfg)

    def _send(self, share: _Share, call: _Call) -> None:
        answered, states = share.actor.answer.options(num_returns=2).remote(
            call.shared, call.letters, call.keep, call.plan
        )
        call.states = states
        share.flying[answered] = call

    def _own_plan(self, messages: list[Message]) -> Plan | None:
        """The plan as far as it is of the clients that are asked."""
        nodes = [message.metadata.dst_node_id for message in messages]
        return self.plan and Plan(self.plan.groups, {node: self.plan.shares[node] for node in nodes})

    def _receive(self) -> None:
        waiting = {answered: share for share in self.shares for answered in share.flying}
        if not waiting:
            return
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        for answered in ready:
            share = waiting[answered]
            try:
                contents, kept, total = ray.get(answered)
            except (RayActorError, ObjectLostError) as error:
                self._again(share, error)
                continue
            except RayError as error:
                raise RunFailed(f"{self._told(share)} failed: {_line(error)}") from error
            call = share.flying.pop(answered)
            share.deaths = 0
            share.since.append(call)
            if (
                self.plan and call.plan and call.plan.groups is self.plan.groups
            ):  # else it is of an exchange that was given up
                self.added.merge(total)
            if kept:
                share.kept, share.since = call.states, []
            for message, content in zip(call.messages, contents, strict=True):
                told = content if isinstance(content, Error) else dressed(content)
                self._replies[message.metadata.message_id] = Message(told, reply_to=message)

    def _again(self, share: _Share, error: Exception) -> None:
        """Make an actor anew, and let it do again what is not in the last copy of its clients' state."""
        share.deaths += 1
        if share.deaths >= LIVES:
            raise RunFailed(f"{self._told(share)} died {LIVES} times of the same exchange: {_line(error)}") from error
        log(WARNING, "%s died, it is made anew: %s", self._told(share), _line(error))
        calls, share.flying = list(share.flying.values()), {}
        ray.kill(share.actor)
        share.actor = self.pool.new(self.cfg)
        self.pool.wait([share.actor.begin.remote(self.description, share.kept, share.files)], self.cfg)
        for call in share.since:
            share.actor.answer.options(num_returns=2).remote(call.shared, call.letters, False)
        for call in calls:
            self._send(share, call)

    def _told(self, share: _Share) -> str:
        number, clients = len(self.shares), self.num_nodes
        return (
            f"the Ray actor of clients {share.first}, {share.first + number}, ... of {clients}"
            if number < clients
            else (f"the Ray actor of client {share.first}")
        )


def _letter(message: Message, place: dict[int, int]) -> Letter:
    about = message.metadata
    records = {key: place.get(id(record), record) for key, record in message.content.items()}
    return about.dst_node_id, about.message_type, about.group_id, records


def _line(error: BaseException) -> str:
    """The last line of a traceback that came from another process, else the first line of what is said."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if "Traceback" in str(error) else 0].strip()


class Pool:
    """The actors of one Ray instance, which serve one run after the other.

    Ray starts, or is connected to, in a thread: meanwhile the caller may prepare the clients' files, and what never answers
    does not hold the run.

    Args:
        address: of a cluster; empty: an instance of our own, which ends with `end`.
    """

    def __init__(self, address: str):
        self.address = address
        self.folder = tempfile.TemporaryDirectory(prefix="fedgraph-ray-", ignore_cleanup_errors=True)
        self.idle: dict[tuple[float, float], list[Any]] = {}
        self._error: BaseException | None = None
        self._up, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._start, daemon=True).start()

    def take(self, cfg: RunConfig, at_most: int) -> list[Any]:
        """Actors for a run: as many as there is room for, but no more than clients, or ``ray.actors``.

        Raises:
            RunFailed: Ray did not start or answer, or has no room.
        """
        self._wait_up()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(_room(resources, cfg) for resources in nodes)
        if not room:
            told = "; ".join(f"{n.get('CPU', 0):g} CPUs, {n.get('GPU', 0):g} GPUs" for n in nodes)
            raise RunFailed(
                f"no machine has room for client_cpus={cfg.client_cpus} and client_gpus={cfg.client_gpus:g}; Ray sees {told}"
            )
        number = min(room, at_most, cfg.ray.actors or room)
        idle = self.idle.setdefault((cfg.client_cpus, cfg.client_gpus), [])
        taken = [idle.pop() for _ in range(min(number, len(idle)))]
        for other in itertools.chain(*self.idle.values()):  # else they would take the others' room
            ray.kill(other)
        self.idle.clear()
        return taken + [self.new(cfg) for _ in range(number - len(taken))]

    def new(self, cfg: RunConfig) -> Any:
        """An actor in a process of its own."""
        return ray.remote(ClientActor).options(num_cpus=cfg.client_cpus, num_gpus=cfg.client_gpus).remote()

    def put(self, actor: Any, cfg: RunConfig) -> None:
        """Keep an actor for another run."""
        actor.end.remote()
        self.idle.setdefault((cfg.client_cpus, cfg.client_gpus), []).append(actor)

    def wait(self, begun: list[Any], cfg: RunConfig) -> None:
        """Wait until actors have begun.

        Raises:
            RunFailed: one could not, or did not within `PATIENCE` seconds.
        """
        try:
            ray.get(begun, timeout=PATIENCE)
        except GetTimeoutError as error:
            up = len(ray.wait(begun, num_returns=len(begun), timeout=0)[0])
            raise RunFailed(
                f"Ray started {up} of {len(begun)} processes for clients within {PATIENCE:g} s (client_cpus={cfg.client_cpus}, "
                f"client_gpus={cfg.client_gpus:g}, ray.address={self.address or 'none'}): is it busy with other work?"
            ) from error
        except ObjectLostError as error:
            raise RunFailed(f"clients' private state was lost with the machine that kept it: {_line(error)}") from error
        except RayError as error:
            raise RunFailed(f"a Ray actor could not begin: {_line(error)}") from error

    def end(self) -> None:
        """End all that was started, and leave a cluster as it was found."""
        if not self._up.wait(10) or self._error:
            self._over.set()
            self.folder.cleanup()
            return
        daemons = [child for child in psutil.Process().children() if _of_ray(child)]
        family = [member for daemon in daemons for member in (daemon, *_descendants(daemon))]
        ray.shutdown()
        self._over.set()
        for member in psutil.wait_procs(family, timeout=5)[1]:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=5)
        self.folder.cleanup()

    def _start(self) -> None:
        # Ray's message of an accelerator variable; its reports of usage go to its makers.
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if self.address:
                if self.address != "auto":
                    host, _, port = self.address.rpartition(":")
                    socket.create_connection((host, int(port)), CONNECT).close()  # Ray would try for a long time
                ray.init(address=self.address, **quiet)
            else:
                self._start_own(quiet)
        except BaseException as error:
            self._error = error
        self._up.set()
        self._over.wait()  # Ray's processes are killed when the thread that started them ends

    def _start_own(self, quiet: dict[str, Any]) -> None:
        os.environ.setdefault("RAY_worker_register_timeout_seconds", f"{PATIENCE:.0f}")
        store = min(STORE, int(0.3 * psutil.virtual_memory().total))
        for attempt in range(1, STARTS + 1):
            try:
                ray.init(
                    address="local",  # whatever cluster the environment or a file may name
                    include_dashboard=False,
                    object_store_memory=store,
                    _temp_dir=self.folder.name,
                    **quiet,
                )
                return
            except Exception as error:  # Ray raises no narrower class here
                if attempt == STARTS or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()

    def _wait_up(self) -> None:
        tried = f"ray.address={self.address}" if self.address else "a Ray instance of this run's own"
        if not self._up.wait(PATIENCE):
            raise RunFailed(f"{tried} did not answer within {PATIENCE:g} s")
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, signal.getsignal(signal.SIGTERM)
            )  # Ray's library has put its own before Python's
        if self._error:
            raise RunFailed(f"{tried} could not be had: {_line(self._error)}") from self._error


def _room(resources: dict[str, float], cfg: RunConfig) -> int:
    """Actors that a machine has room for."""
    room = resources.get("CPU", 0) / cfg.client_cpus
    return int(min(room, resources.get("GPU", 0) / cfg.client_gpus) if cfg.client_gpus else room)


def _of_ray(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(ray.__path__[0] in word for word in process.cmdline())
    return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


_pool: Pool | None = None


@contextmanager
def ray_session(cfg: RayConfig | None = None) -> Iterator[Pool]:
    """A Ray instance for all runs of the block, and the actors that they share; inside another such block, its."""
    global _pool
    if _pool is not None:
        yield _pool
        return
    _pool = Pool(cfg.address if cfg else "")
    try:
        yield _pool
    finally:
        pool, _pool = _pool, None
        pool.end()


def run_ray(
    run: RunConfig | Prepared, on_round: OnRound | None = None, on_wait: OnWait | None = None
) -> dict[str, Any]:
    """Run a configuration with its clients in Ray actors; returns the summary."""
    from fedgraph_flwr import partition

    prepared = prepare(run)
    cfg = prepared.cfg
    make_folder(cfg)
    if on_wait:
        on_wait("Ray starts")
    with ray_session(cfg.ray) as pool:
        num_nodes = partition.num_clients(cfg)  # while Ray starts
        grid = RayGrid(pool, num_nodes, cfg)
        load_descriptions(grid, cfg)
        try:
            with run_identity(grid.run_id), same_process_state(), freed_memory_kept():
                torch.set_num_threads(cfg.threads)  # as the clients', which in one process set the server's too
                return serve(grid, prepared, on_round)
        finally:
            grid.close()
