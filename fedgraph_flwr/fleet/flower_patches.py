"""All that is adjusted of Flower at run time, made for Flower 1.41.0. Any other version runs unmodified, with a warning.

Three processes of a fleet use it. `FEDGRAPH_PLAIN=1` in their environment (``--plain`` of `fedgraph-flwr node` and `server`)
turns all of it off.

The **ServerApp's**: objects that are on their way are asked for again after 20 ms, not after 1 s, and no longer than
``strategy.timeout``: a node may have died while it sent them.

A **SuperNode** with ``--isolation process``. As `flower-supernode`, and:

- it looks for messages again when one may be there (`Rhythm`), in the place of every 3 s;
- once a message and its objects are stored, it writes a byte into a pipe that wakes the executor;
- it sends a reply when the last of its objects is there, looked for every 10 ms in the place of 0.5 s; where a task ended without
  one, the server is told so within half a second, in the place of never.

An **executor**, which takes the SuperNode's tasks and forks a process for each. It has imported torch and Flower's client
runtime, computed nothing, and has one thread, no CUDA context, and none of this project's modules: those that it had would stand
in the place of the bundle's, which the party may have had signed. For the same reason this file is run as a script, and imports
none. The child is what `flwr-clientapp` is. It watches the SuperNode, not the executor, whose death it outlives. A lock that it
holds keeps the next task waiting until it is gone, since a task's context is stored after its reply.
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
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

MADE_FOR = "1.41.0"
PLAIN = "FEDGRAPH_PLAIN"
"""Environment: anything but 0 or nothing leaves Flower as it is."""

BACKOFF = 0.02
"""Seconds before an object that is not there is asked for again; Flower doubles them at each look."""

REPLY_LOOK = 0.01
"""Seconds between looks for a reply."""

IDLE = 3.0
"""Seconds between looks for a message where none came for a while, as in Flower."""

SHORTEST = 0.05
"""Seconds between looks for a message just after one."""

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
"""Imported by the executor: libraries, none of them this project's. One that is missing is left out."""


def plain() -> bool:
    """Whether Flower shall be left as it is."""
    return os.environ.get(PLAIN, "0") not in ("", "0")


def other_version() -> str:
    """A warning if the installed Flower is not the version that this file is made for, else nothing."""
    found = version("flwr")
    if found == MADE_FOR:
        return ""
    return (
        f"Flower {found} is installed and runs unmodified: the changes that make rounds of a fleet faster are for {MADE_FOR}. "
        f"Install flwr=={MADE_FOR}; or set {PLAIN}=1 (--plain) to accept this and hide the warning"
    )


def unmodified(warn: Callable[[str], object]) -> bool:
    """Whether Flower runs as it is: by the switch or, after a warning, because it is another version."""
    if plain():
        return True
    if text := other_version():
        warn(text)
    return bool(text)


def quicken_pulls(longest: float | None = None) -> None:
    """Ask for objects that are on their way again after `BACKOFF` seconds, in this process.

    Args:
        longest: seconds after which they are given up; None: as Flower has it, two hours.
    """
    from flwr.supercore.inflatable import inflatable_utils

    functions: Any = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    for function in functions:
        function.__kwdefaults__["initial_backoff"] = BACKOFF
        if longest is not None:
            function.__kwdefaults__["max_time"] = longest


def supernode(wake: int) -> None:
    """Become a `flower-supernode`, adjusted; ``sys.argv`` has its options.

    Args:
        wake: the file descriptor of a pipe; a byte is written to it for every message that is stored.
    """
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    loop: Any = start_client_internal
    quicken_pulls()
    os.set_blocking(wake, False)
    rhythm, parent = Rhythm(), os.getppid()

    def sleep(seconds: float) -> None:
        if os.getppid() != parent:  # `fedgraph-flwr node` was killed
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(min(seconds, rhythm.pause(time.monotonic())))

    pull, push = loop._pull_and_store_message, loop._push_messages

    def pull_and_wake(**arguments: Any) -> int | None:
        run_id: int | None = pull(**arguments)
        if run_id is None:
            _forget(arguments["state"], arguments["object_store"])
        else:
            rhythm.came(time.monotonic())
            with contextlib.suppress(BlockingIOError):  # full of bytes that nobody has read: it will wake
                os.write(wake, b"\0")
        return run_id

    def wait_and_push(*, state: Any, object_store: Any, **arguments: Any) -> None:
        looks = 0
        while True:
            while not _complete(state, object_store):
                sleep(REPLY_LOOK)
                looks += 1  # each fiftieth time: Flower looks through all tasks that there have been
                if looks % 50 == 0 and _ended(state) and not _complete(state, object_store):
                    _answer_for_the_dead(state, object_store)
            push(state=state, object_store=object_store, **arguments)
            if not _asked(state):
                break  # else the reply was to a message of a run that had ended, which Flower takes in and then calls ignored
        rhythm.begin(time.monotonic())
        sleep(IDLE)  # Flower would look at once

    loop.time = SimpleNamespace(sleep=sleep)
    loop._pull_and_store_message, loop._push_messages = pull_and_wake, wait_and_push
    flower_supernode()


class Rhythm:
    """When to look again for what is awaited: rounds resemble each other, so not before four fifths of what the last wait took.

    Each look costs the SuperLink some 10 ms of CPU. From then on a look every `SHORTEST` seconds, later after a tenth of the time
    that was waited, at last every `IDLE` seconds.
    """

    def __init__(self) -> None:
        self.since = -1e9  # idle
        self.took = 0.0
        self.blind = False  # no look as yet

    def begin(self, now: float) -> None:
        """The wait begins."""
        self.since = now

    def came(self, now: float) -> None:
        """What is awaited has come, or more of it."""
        waited = now - self.since
        self.took = 0.7 * waited if self.blind else waited  # at the first look: who knows since when it was there

    def pause(self, now: float) -> float:
        """Seconds until the next look."""
        waited = now - self.since
        early = min(0.8 * self.took, IDLE) - waited
        self.blind = early > SHORTEST
        return early if self.blind else min(IDLE, max(SHORTEST, 0.1 * waited))


def _replies(state: Any) -> list[Any]:
    with state.lock_msg_store:
        messages = [entry.message for entry in state.msg_store.values() if not entry.is_retrieved]
    return [message for message in messages if message.metadata.reply_to_message_id]


def _asked(state: Any) -> list[Any]:
    """Entries of messages that no reply has been sent to; with its reply a message leaves the store."""
    with state.lock_msg_store:
        return [entry for entry in state.msg_store.values() if not entry.message.metadata.reply_to_message_id]


def _forget(state: Any, store: Any) -> None:
    """Drop a message that Flower took in and then ignored, since its run ended before all of its objects had come.

    Its task stays otherwise: a client would ask for those objects for minutes, and no other message be answered.
    """
    from flwr.common.constant import SubStatus

    for entry in (left := _asked(state)):
        state.delete_messages(message_ids=[entry.message.metadata.message_id])
        store.delete(entry.message.metadata.message_id)
    for task in _open_tasks(state) if left else ():
        state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details="the run has ended")


def _complete(state: Any, store: Any) -> bool:
    """Whether a reply is there with all its objects."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    replies = _replies(state)
    trees = [store.get_object_tree(message.metadata.message_id) for message in replies]
    return bool(replies) and all(store.get(node.object_id) for tree in trees for node in iterate_object_tree(tree))


def _ended(state: Any) -> bool:
    """Whether no task is left that could still reply. A claimed task whose process is gone is among the others for 30 to 60 s."""
    return not _open_tasks(state)


def _open_tasks(state: Any) -> list[Any]:
    from flwr.common.constant import Status

    return list(state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING]))


def _answer_for_the_dead(state: Any, store: Any) -> None:
    """Put Flower's error reply in the place of one that will not come, or not wholly."""
    from flwr.supernode.nodestate.in_memory_nodestate import CLIENT_APP_CRASHED_ERROR

    for message in _replies(state):
        state.delete_messages(message_ids=[message.metadata.message_id])
        store.delete(message.metadata.message_id)
    asked = _asked(state)
    for entry in asked:
        entry.is_retrieved = True  # by nobody: else it would be no message that an error can answer
    state._store_error_replies({entry.message.metadata.run_id for entry in asked}, CLIENT_APP_CRASHED_ERROR)


class ForkingExecutor:
    """Flower's executor of tasks: a fork of this process for each, one at a time.

    Args:
        wake: the file descriptor of a pipe; a byte comes for every message.
        lock: a file that the child of a task holds locked, also when this process has died.
        supernode_pid: whose death ends a child.
        parent: the process that started this one; without it this one ends.
    """

    def __init__(self, wake: int, lock: Path, supernode_pid: int, parent: int):
        self.wake, self.lock, self.supernode_pid, self.parent = wake, lock, supernode_pid, parent
        self.child = 0
        self.held = -1
        self.failed: Callable[[], None] = lambda: None

    def get_eligible_capacity(self, supported_task_types: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        """A ClientApp at a time."""
        from flwr.supercore.constant import TaskType

        return {TaskType.CLIENT_APP} & supported_task_types, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """`reconcile` has waited."""

    def reconcile(self) -> None:
        """Reap the child, wait for one of a former executor, then for a message: before every look for a task."""
        if self.child:
            _, status = os.waitpid(self.child, 0)
            self.child = 0
            if os.waitstatus_to_exitcode(status):
                self.failed()
        if self.held < 0:
            import fcntl  # not on every system, and the ServerApp imports this file on each

            self.held = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self.held, fcntl.LOCK_EX)
        readable, _, _ = select.select([self.wake], [], [], 1.0)  # a second: as long as Flower's own between looks
        if readable:
            os.read(self.wake, 4096)
        if os.getppid() != self.parent:
            os.kill(os.getpid(), signal.SIGTERM)

    def launch(self, spec: Any) -> Any:
        """Fork the process of a task."""
        from flwr.supercore.superexec.executor import LaunchResult

        if threading.active_count() > 1:
            raise RuntimeError(
                f"{threading.active_count()} threads run in the executor, where one may: no fork is safe"
            )
        sys.stdout.flush()
        sys.stderr.flush()
        if not (child := os.fork()):
            self._be_client(spec)
        self.child, self.failed = child, functools.partial(_fail, spec)
        os.close(self.held)  # the child's, from now on
        self.held = -1
        return LaunchResult.accepted()

    def close(self) -> None:
        """Nothing: the child watches the SuperNode."""

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
                numpy.random.seed()  # from the system: forks would draw the same numbers
            sys.dont_write_bytecode = False  # of the bundle, which else each child would compile
            sys.pycache_prefix = str(self.lock.with_name("bytecode"))
            client.install_from_fab = functools.partial(_install_once, client.install_from_fab, self.lock.parent)
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


def _install_once(install: Callable[..., Path], folder: Path, content: bytes, skip_prompt: bool) -> Path:
    """Flower's installation of a bundle, left out where a task of this node has had the same one installed.

    Flower unpacks and checks a bundle for each message, and throws it away where one of its name is installed.
    """
    marker = folder / hashlib.sha256(content).hexdigest()
    if marker.is_file() and (installed := Path(marker.read_text())).is_dir():
        return installed
    installed = install(content, skip_prompt=skip_prompt)
    marker.write_text(str(installed))
    return installed


def _fail(spec: Any) -> None:
    """Tell the SuperNode that a task's process is dead; one that could still speak has told it, and this is refused then."""
    import httpx
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    client = RuntimeHttpClient.from_server_address(
        server_address=spec.runtime_api_address,
        insecure=spec.insecure,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            RuntimeTokenHttpInterceptor(spec.token),
        ],
    )
    with contextlib.suppress(httpx.HTTPError, RuntimeError):
        client.PushTaskOutput(PushTaskOutputRequest(sub_status="failed", details="the client's process died"))
    client.close()


def executor(wake: int, lock: Path, supernode_pid: int, runtime: str, secret: Path) -> None:
    """Take the tasks of a SuperNode's runtime API until told to end.

    Args:
        wake: see `ForkingExecutor`.
        lock: see `ForkingExecutor`.
        supernode_pid: see `ForkingExecutor`.
        runtime: HOST:PORT of the runtime API.
        secret: the file of ``--superexec-auth-secret-file``.
    """
    parent = os.getppid()
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from flwr.supercore.superexec import run_superexec

    loop: Any = run_superexec
    quicken_pulls()
    gc.collect()
    gc.freeze()  # else the collector of each child would touch, and so copy, every page
    one = ForkingExecutor(wake, lock, supernode_pid, parent)
    loop.get_executor = lambda *_, **__: one
    loop._get_task_poll_interval = lambda: 0.0  # `reconcile` waits
    loop.run_superexec(runtime_api_address=runtime, insecure=True, superexec_auth_secret=secret.read_bytes())


def main() -> None:
    """``flower_patches.py supernode --wake FD -- OPTIONS`` or ``flower_patches.py executor --wake FD --lock FILE ...``."""
    words = sys.argv[1:]
    own, rest = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description="Parts of `fedgraph-flwr node`, which starts them.")
    parser.add_argument("what", choices=("supernode", "executor"))
    parser.add_argument("--wake", type=int, required=True, help="file descriptor of a pipe")
    parser.add_argument("--lock", type=Path, help="executor: held by the process of a task")
    parser.add_argument("--supernode-pid", type=int, help="executor: whose tasks")
    parser.add_argument("--runtime", help="executor: HOST:PORT of the SuperNode's runtime API")
    parser.add_argument("--secret", type=Path, help="executor: the file of the runtime API's secret")
    args = parser.parse_args(own)
    if reason := other_version():
        sys.exit(f"error: {reason}")
    if args.what == "supernode":
        sys.argv = ["flower-supernode", *rest]
        supernode(args.wake)
    else:
        executor(args.wake, args.lock, args.supernode_pid, args.runtime, args.secret)


if __name__ == "__main__":
    main()
