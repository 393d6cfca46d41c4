"""All run-time patches of Flower, tested with `TESTED`. A version that lacks what they need (`NEEDED`) runs unpatched.

Three processes of a fleet use them. `FEDGRAPH_PLAIN=1` in their environment (``--plain`` of `fedgraph-flwr node` and `server`)
disables all patches.

The **ServerApp**: pending objects are requested again after 20 ms instead of 1 s. This ends after ``strategy.timeout``, because
a node may have died while sending them.

A **SuperNode** with ``--isolation process``. It works as `flower-supernode`, with these changes:

- It polls for messages when one is likely (`PollSchedule`), instead of every 3 s.
- After storing a message and its objects, it writes a byte to a pipe that wakes the executor.
- It sends a reply once its last object is complete, polled every 10 ms instead of 0.5 s. If a task ends without a reply, the
  server learns it within half a second instead of never.
- A second signal, as systemd and a terminal send it to the whole group, does not interrupt its end: the server learns of it.
- A failed TLS handshake is tried again, as other cut connections are, and each answered heartbeat is noted for the node. If it
  gives up for another reason, or sends no heartbeats any more, it ends instead of staying without a connection.

An **executor**, which takes the SuperNode's tasks and forks a process for each. It has imported torch and Flower's client
runtime, but has computed nothing. It has one thread, no CUDA context, and none of this project's modules: they would replace
those of the bundle, which may be signed. For the same reason this file runs as a script and imports no project module. The
child process is equivalent to `flwr-clientapp`. It watches the SuperNode, not the executor, which it may outlive. It holds a
lock that delays the next task until it exits, since a task's context is stored after its reply.
"""

import argparse
import contextlib
import functools
import gc
import hashlib
import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

TESTED = ("1.41.0", "1.42.0")
NEEDED = {
    "supercore/inflatable/inflatable_utils.py": (
        *("def pull_objects(", "def pull_and_inflate_object_from_tree(", "initial_backoff: float =", "max_time: float"),
    ),
    "supercore/inflatable/inflatable_object.py": ("def iterate_object_tree(",),
    "supernode/start_client_internal.py": (
        *("import time", "time.sleep(3)", "run_id = _pull_and_store_message(", "            _push_messages("),
        "    register_signal_handlers(\n",
        "def _push_messages(\n    state: NodeState,\n    object_store: ObjectStore,",
    ),
    "supernode/cli/flower_supernode.py": ("def flower_supernode(",),
    "supernode/fleet_http_connection.py": (
        "= make_simple_http_retry_invoker()",
        "HeartbeatSender(send_node_heartbeat)",
    ),
    "supercore/heartbeat.py": ("def _heartbeat(self)", "def _run(self)", "self._stop_event"),
    "supercore/retry/retry_invoker.py": ("self.should_giveup = should_giveup",),
    "supernode/nodestate/in_memory_nodestate.py": (
        *("self.lock_msg_store", "self.msg_store: dict", "is_retrieved: bool", "CLIENT_APP_CRASHED_ERROR = "),
        *("def delete_messages(", "def _store_error_replies(self, run_ids: set[int], error: Error)"),
    ),
    "supercore/corestate/in_memory_corestate.py": (
        "def get_tasks(",
        "def finish_task(self, task_id: int, sub_status: str, details: str)",
    ),
    "supercore/superexec/run_superexec.py": (
        *("task_poll_interval = _get_task_poll_interval()", "executor = get_executor(", "executor.reconcile()"),
        *("executor.get_eligible_capacity(", "superexec_auth_secret"),
    ),
    "supercore/superexec/executor/types.py": ("class LaunchResult:", "def accepted(cls)"),
    "supercore/exit/exit_handler.py": ("registered_exit_handlers: list",),
    "supernode/runtime/run_clientapp.py": (
        "install_from_fab(fab.content, skip_prompt=True)",
        "message, context, run, fab = pull_task_input(client)",
        "load_client_app_fn = get_load_client_app_fn(",
        "parent_pid: int | None",
        "runtime_dependency_install: bool",
    ),
    "supercore/runtime/runtime_http_client.py": ("def PushTaskOutput(self, request: PushTaskOutputRequest)",),
    "supercore/interceptors/http/runtime_version.py": ("class RuntimeVersionHttpInterceptor",),
    "supercore/interceptors/http/runtime_token.py": ("class RuntimeTokenHttpInterceptor",),
}
"""Text of Flower's files that the patches replace, call or rely on. It is searched, not imported, which would take a second."""

PLAIN = "FEDGRAPH_PLAIN"
"""Environment variable: any value except 0 or empty disables the patches."""

BACKOFF = 0.02
"""Seconds before a missing object is requested again; Flower doubles them at each attempt."""

REPLY_LOOK = 0.01
"""Seconds between polls for a reply."""

IDLE = 3.0
"""Seconds between polls for a message when idle, as in Flower."""

SHORTEST = 0.05
"""Minimum seconds between polls for a message."""

PRELOADED = (
    "torch",
    "numpy",
    "scipy.sparse",
    "safetensors.torch",
    "safetensors.numpy",
    "omegaconf",
    "filelock",
    "psutil",
    "greenlet",
    "cryptography.x509",
    "cryptography.hazmat.primitives.ciphers.aead",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.supernode.runtime.run_clientapp",
)
"""Libraries imported by the executor, none of this project; missing ones are skipped."""


def plain() -> bool:
    """Return whether the patches are disabled."""
    return os.environ.get(PLAIN, "0") not in ("", "0")


@functools.cache
def missing() -> str:
    """Return a warning that names the first text of `NEEDED` that the installed Flower lacks, or ""."""
    spec = find_spec("flwr")
    root = Path((spec.submodule_search_locations or [""])[0]) if spec else Path()
    for name, texts in NEEDED.items():
        source = (root / name).read_text() if (root / name).is_file() else ""
        if text := next((text for text in texts if text not in source), ""):
            return (
                f"Flower {version('flwr')} has no '{text.split(chr(10))[0].strip()}' in flwr/{name} and runs unpatched: rounds"
                f" of a fleet take about 7 times as long. Install flwr=={TESTED[-1]}, or set {PLAIN}=1 (--plain) to hide this"
                " warning"
            )
    return ""


def unmodified(warn: Callable[[str], object]) -> bool:
    """Return whether Flower runs unpatched, by the switch or, after a warning, because something is missing."""
    if plain():
        return True
    if text := missing():
        warn(text)
    return bool(text)


def quicken_pulls(longest: float | None = None) -> None:
    """Make this process request pending objects again after `BACKOFF` seconds.

    Args:
        longest: seconds before giving up; None for Flower's two hours.
    """
    from flwr.supercore.inflatable import inflatable_utils

    functions: Any = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    for function in functions:
        function.__kwdefaults__["initial_backoff"] = BACKOFF
        if longest is not None:
            function.__kwdefaults__["max_time"] = longest


def keep_connection(heartbeat: Path) -> None:
    """Let a SuperNode retry failed handshakes, note answered heartbeats, and end if it sends none any more.

    Args:
        heartbeat: file whose time of change becomes the monotonic time of the last answered heartbeat.
    """
    import httpx
    from flwr.supernode import fleet_http_connection

    connection: Any = fleet_http_connection
    make, sender = connection.make_simple_http_retry_invoker, connection.HeartbeatSender

    def make_patient() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not isinstance(error, httpx.TransportError) and gives_up(error)
        return invoker

    class NotedHeartbeats(sender):  # type: ignore[misc, valid-type]
        def _heartbeat(self) -> None:
            super()._heartbeat()
            os.utime(heartbeat, (now := time.monotonic(), now))

        def _run(self) -> None:
            try:
                super()._run()
            finally:
                if not self._stop_event.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)

    connection.make_simple_http_retry_invoker, connection.HeartbeatSender = make_patient, NotedHeartbeats


def supernode(wake: int, heartbeat: Path) -> None:
    """Become a patched `flower-supernode`; ``sys.argv`` has its options.

    Args:
        wake: file descriptor of a pipe, which gets one byte per stored message.
        heartbeat: see `keep_connection`.
    """
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    loop: Any = start_client_internal
    quicken_pulls()
    keep_connection(heartbeat)
    os.set_blocking(wake, False)
    schedule, parent = PollSchedule(), os.getppid()

    def sleep(seconds: float) -> None:
        if os.getppid() != parent:  # `fedgraph-flwr node` was killed
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(min(seconds, schedule.pause(time.monotonic())))

    pull, push = loop._pull_and_store_message, loop._push_messages

    def pull_and_wake(**arguments: Any) -> int | None:
        run_id: int | None = pull(**arguments)
        if run_id is None:
            _forget(arguments["state"], arguments["object_store"])
        else:
            schedule.came(time.monotonic())
            with contextlib.suppress(BlockingIOError):  # the pipe is full of unread bytes, so the executor will wake
                os.write(wake, b"\0")
        return run_id

    def wait_and_push(*, state: Any, object_store: Any, **arguments: Any) -> None:
        looks = 0
        while True:
            while not _complete(state, object_store):
                sleep(REPLY_LOOK)
                looks += 1  # every 50th poll, since Flower searches all past tasks
                if looks % 50 == 0 and not _open_tasks(state) and not _complete(state, object_store):
                    _reply_for_crashed_task(state, object_store)
            push(state=state, object_store=object_store, **arguments)
            if not _unanswered(state):
                break  # else the reply was to a message of a finished run, which Flower stores and then ignores
        schedule.begin(time.monotonic())
        sleep(IDLE)  # Flower would poll immediately

    register = loop.register_signal_handlers

    def register_once(**arguments: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # what Flower restores at the first signal
        register(**arguments)

    loop.time, loop.register_signal_handlers = SimpleNamespace(sleep=sleep), register_once
    loop._pull_and_store_message, loop._push_messages = pull_and_wake, wait_and_push
    flower_supernode()
    os.kill(os.getpid(), signal.SIGTERM)  # its loop gave up; a thread of its own keeps the process


class PollSchedule:
    """Schedule of polls: rounds take similar times, so the first poll comes after 80 % of the previous wait.

    Each poll costs the SuperLink about 10 ms of CPU. Later polls follow every `SHORTEST` seconds, then after a tenth of the
    elapsed wait, finally every `IDLE` seconds.
    """

    def __init__(self) -> None:
        self.since = -1e9  # idle
        self.took = 0.0
        self.blind = False  # no poll yet

    def begin(self, now: float) -> None:
        """Start waiting."""
        self.since = now

    def came(self, now: float) -> None:
        """Record the arrival of a message."""
        waited = now - self.since
        self.took = 0.7 * waited if self.blind else waited  # at the first poll, its arrival time is unknown

    def pause(self, now: float) -> float:
        """Return the seconds until the next poll."""
        waited = now - self.since
        early = min(0.8 * self.took, IDLE) - waited
        self.blind = early > SHORTEST
        return early if self.blind else min(IDLE, max(SHORTEST, 0.1 * waited))


def _replies(state: Any) -> list[Any]:
    with state.lock_msg_store:
        messages = [entry.message for entry in state.msg_store.values() if not entry.is_retrieved]
    return [message for message in messages if message.metadata.reply_to_message_id]


def _unanswered(state: Any) -> list[Any]:
    """Return entries of messages without a sent reply; a message leaves the store with its reply."""
    with state.lock_msg_store:
        return [entry for entry in state.msg_store.values() if not entry.message.metadata.reply_to_message_id]


def _forget(state: Any, store: Any) -> None:
    """Drop a message that Flower stored and then ignored, because its run ended before all its objects arrived.

    Otherwise its task stays: a client would request those objects for minutes and block all other messages.
    """
    from flwr.common.constant import SubStatus

    left = [entry.message for entry in _unanswered(state)]
    _drop(left, state, store)
    for task in _open_tasks(state) if left else ():
        state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details="the run has ended")


def _drop(messages: list[Any], state: Any, store: Any) -> None:
    for identifier in [message.metadata.message_id for message in messages]:
        state.delete_messages(message_ids=[identifier])
        store.delete(identifier)


def _complete(state: Any, store: Any) -> bool:
    """Return whether a reply is stored with all its objects."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    replies = _replies(state)
    trees = [store.get_object_tree(message.metadata.message_id) for message in replies]
    return bool(replies) and all(store.get(node.object_id) for tree in trees for node in iterate_object_tree(tree))


def _open_tasks(state: Any) -> list[Any]:
    """Return the tasks that can still reply; a claimed task of a dead process counts as open for 30 to 60 s."""
    from flwr.common.constant import Status

    return list(state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING]))


def _reply_for_crashed_task(state: Any, store: Any) -> None:
    """Replace a missing or incomplete reply by Flower's error reply."""
    from flwr.supernode.nodestate.in_memory_nodestate import CLIENT_APP_CRASHED_ERROR

    _drop(_replies(state), state, store)
    asked = _unanswered(state)
    for entry in asked:
        entry.is_retrieved = True  # not actually retrieved, but required for an error reply
    state._store_error_replies({entry.message.metadata.run_id for entry in asked}, CLIENT_APP_CRASHED_ERROR)


Agreed = tuple[Path, Path, Sequence[str]]


class ForkingExecutor:
    """Executor of Flower's tasks that forks this process for each task, one at a time.

    Args:
        wake: file descriptor of a pipe, which gets one byte per message.
        lock: file that a task's child keeps locked, even after this process died.
        supernode_pid: process whose death ends a child.
        parent: process that started this one; this one ends with it.
        agreed: of a node that accepts agreed runs only its agreement, state folder, and the digests that it checked when it
            started; None: it accepts others.
    """

    def __init__(self, wake: int, lock: Path, supernode_pid: int, parent: int, agreed: Agreed | None = None):
        self.agreed = agreed
        self.wake, self.lock, self.supernode_pid, self.parent = wake, lock, supernode_pid, parent
        self.child = 0
        self.held = -1
        self.failed: Callable[[], None] = lambda: None

    def get_eligible_capacity(self, supported_task_types: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        """Return the capacity for one ClientApp."""
        from flwr.supercore.constant import TaskType

        return {TaskType.CLIENT_APP} & supported_task_types, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Return immediately: `reconcile` waits."""

    def reconcile(self) -> None:
        """Before each poll for a task, reap the child, wait for a child of a previous executor, then wait for a message."""
        if self.child:
            _, status = os.waitpid(self.child, 0)
            self.child = 0
            if os.waitstatus_to_exitcode(status):
                self.failed()
        if self.held < 0:
            import fcntl  # missing on some systems, where the ServerApp imports this file, too

            self.held = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self.held, fcntl.LOCK_EX)
        readable, _, _ = select.select([self.wake], [], [], 1.0)  # one second, as between Flower's polls
        if readable:
            os.read(self.wake, 4096)
        if os.getppid() != self.parent:
            os.kill(os.getpid(), signal.SIGTERM)

    def launch(self, spec: Any) -> Any:
        """Fork the process of a task."""
        from flwr.supercore.superexec.executor import LaunchResult

        if threading.active_count() > 1:
            raise RuntimeError(f"the executor has {threading.active_count()} threads, expected 1: forking is not safe")
        sys.stdout.flush()
        sys.stderr.flush()
        if not (child := os.fork()):
            self._be_client(spec)
        self.child, self.failed = child, functools.partial(_fail, spec)
        os.close(self.held)  # now held by the child
        self.held = -1
        return LaunchResult.accepted()

    def close(self) -> None:
        """Do nothing: the child watches the SuperNode."""

    def _be_client(self, spec: Any) -> NoReturn:
        code = 1
        try:
            from flwr.supercore.exit import exit_handler
            from flwr.supernode.runtime import run_clientapp

            client: Any = run_clientapp

            for number in (signal.SIGTERM, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            exit_handler.registered_exit_handlers.clear()
            os.close(self.wake)
            os.truncate(self.held, 0)
            os.pwrite(self.held, str(os.getpid()).encode(), 0)
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()  # from system entropy, since forks would draw equal numbers
            sys.dont_write_bytecode = False  # otherwise each child process would compile the bundle
            sys.pycache_prefix = str(self.lock.with_name("bytecode"))
            client.install_from_fab = functools.partial(_install_once, client.install_from_fab, self.lock.parent)
            if self.agreed:
                _accept_agreed(client, self.agreed)
            client.run_clientapp(
                runtime_api_address=spec.runtime_api_address,
                token=spec.token,
                insecure=spec.insecure,
                parent_pid=self.supernode_pid,
                runtime_dependency_install=spec.runtime_dependency_install,
            )
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


_DECLINED = 1002  # `wire.messages.DECLINED`

SIGNERS = "FEDGRAPH_SIGNERS"
"""Environment variable of a task: names of the members who agreed on its run, for the node's audit log."""


def _beside(name: str) -> Any:
    """Import a file of this folder under another name, so that the bundle's module of its name stays free."""
    spec: Any = spec_from_file_location(f"_installed_{name}", Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _accept_agreed(client: Any, agreed: Agreed) -> None:
    """Let a task reply with an error, before its bundle is unpacked, unless members agreed on its run.

    Args:
        client: Flower's module of a task.
        agreed: see `ForkingExecutor`.
    """
    from flwr.app import Error, Message

    checks, (place, state, digests) = _beside("agreements"), agreed
    pull, load, install = client.pull_task_input, client.get_load_client_app_fn, client.install_from_fab
    reasons: list[str] = []

    def pull_and_check(*args: Any, **kwargs: Any) -> Any:
        message, context, run, bundle = pull(*args, **kwargs)
        try:
            agreement = checks.check(place, context.run_config, bundle.content, state, time.time(), digests)
            os.environ[SIGNERS] = ", ".join(agreement.signers)
        except checks.Refused as error:
            reasons.append(str(error))
        except Exception as error:
            reasons.append(f"this node could not check the run's agreement: {type(error).__name__}")
        if reasons:
            print(f"fedgraph-flwr: refused run {run.run_id}: {reasons[0]}", flush=True)
        return message, context, run, bundle

    def refuse(message: Any, context: Any) -> Any:
        _log_refusal(message, context.run_id, reasons[0], state)
        return Message(Error(_DECLINED, reasons[0]), reply_to=message)

    client.pull_task_input = pull_and_check
    client.install_from_fab = lambda *args, **kwargs: None if reasons else install(*args, **kwargs)
    client.get_load_client_app_fn = lambda *args, **kwargs: (lambda *_: refuse) if reasons else load(*args, **kwargs)


def _log_refusal(message: Any, run_id: int, reason: str, state: Path) -> None:
    """Append a request without enough signatures to the audit log; such a task loads no bundle, so it may import this project."""
    arrays = [array for record in message.content.array_records.values() for array in record.values()]
    entry = {"run": str(run_id), "strategy": "", "phase": str(message.metadata.message_type)[:60], "round": 0}
    entry |= {"exchange": 0, "noise": {}, "received": sum(len(array.data) for array in arrays)}
    try:
        from fedgraph_flwr.fleet.audit_chain import append

        state.mkdir(parents=True, exist_ok=True)
        append(state, entry | {"refused": reason[:300], "sent": {"error": len(reason)}})
    except Exception as error:  # the request is refused all the same
        print(f"fedgraph-flwr: warning: this refusal is not in the audit log: {error}", flush=True)


def _install_once(install: Callable[..., Path], folder: Path, content: bytes, skip_prompt: bool) -> Path:
    """Install a bundle with Flower, unless a task of this node has installed the same one.

    Flower unpacks and checks a bundle for each message, and discards it if one of its name is installed.
    """
    marker = folder / hashlib.sha256(content).hexdigest()
    if marker.is_file() and (installed := Path(marker.read_text())).is_dir():
        return installed
    installed = install(content, skip_prompt=skip_prompt)
    marker.write_text(str(installed))
    return installed


def _fail(spec: Any) -> None:
    """Report to the SuperNode that a task's process died; it ignores this if the task reported its end."""
    import httpx
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    hooks: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        RuntimeTokenHttpInterceptor(spec.token),
    ]
    where = {"server_address": spec.runtime_api_address, "insecure": spec.insecure, "root_certificates": None}
    client = RuntimeHttpClient.from_server_address(**where, interceptors=hooks)
    with contextlib.suppress(httpx.HTTPError, RuntimeError):
        client.PushTaskOutput(PushTaskOutputRequest(sub_status="failed", details="the client's process died"))
    client.close()


def executor(
    wake: int, lock: Path, supernode_pid: int, runtime: str, secret: Path, agreed: Agreed | None = None
) -> None:
    """Execute the tasks of a SuperNode's runtime API until terminated.

    Args:
        wake: see `ForkingExecutor`.
        lock: see `ForkingExecutor`.
        supernode_pid: see `ForkingExecutor`.
        runtime: HOST:PORT of the runtime API.
        secret: the file of ``--superexec-auth-secret-file``.
        agreed: see `ForkingExecutor`.
    """
    parent = os.getppid()
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from flwr.supercore.superexec import run_superexec

    loop: Any = run_superexec
    quicken_pulls()
    gc.collect()
    gc.freeze()  # else garbage collection in each child would copy every page
    one = ForkingExecutor(wake, lock, supernode_pid, parent, agreed)
    loop.get_executor = lambda *_, **__: one
    loop._get_task_poll_interval = lambda: 0.0  # `reconcile` waits
    loop.run_superexec(runtime_api_address=runtime, insecure=True, superexec_auth_secret=secret.read_bytes())


def main() -> None:
    """``flower_patches.py supernode --wake FD ... -- OPTIONS`` or ``flower_patches.py executor --wake FD --lock FILE ...``."""
    args_list = sys.argv[1:]
    end = args_list.index("--") if "--" in args_list else len(args_list)
    parser = argparse.ArgumentParser(description="Parts of `fedgraph-flwr node`, which starts them.")
    parser.add_argument("what", choices=("supernode", "executor"))
    parser.add_argument("--wake", type=int, required=True, help="file descriptor of a pipe")
    parser.add_argument("--heartbeat", type=Path, help="supernode: file that notes answered heartbeats")
    parser.add_argument("--lock", type=Path, help="executor: held by the process of a task")
    parser.add_argument("--supernode-pid", type=int, help="executor: whose tasks")
    parser.add_argument("--runtime", help="executor: HOST:PORT of the SuperNode's runtime API")
    parser.add_argument("--secret", type=Path, help="executor: the file of the runtime API's secret")
    parser.add_argument("--agreement", type=Path, help="executor: the runs that the node accepts")
    parser.add_argument("--state", type=Path, help="executor: state folder, which counts agreed runs")
    parser.add_argument("--digest", action="append", help="executor: of an agreement that the node accepts")
    args = parser.parse_args(args_list[:end])
    if reason := missing():
        sys.exit(f"error: {reason}")
    if args.what == "supernode":
        sys.argv = ["flower-supernode", *args_list[end + 1 :]]
        supernode(args.wake, args.heartbeat)
    else:
        agreed = (args.agreement, args.state, args.digest) if args.agreement else None
        executor(args.wake, args.lock, args.supernode_pid, args.runtime, args.secret, agreed)


if __name__ == "__main__":
    main()
