"""The command ``node``: a party's SuperNode with its graph, kept up until it is told to end.

It starts `flower-supernode` and, beside it, an executor that has imported what a client needs, so that a task costs a fork
instead of a new Python (`fedgraph_flwr.fleet.flower_patches`). Each is started again when it ends: the executor only, or both. A
SuperLink takes a key back only when it has missed two heartbeats of the process that had it (Flower's code 305): until then the
node tries again.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import flower_patches
from fedgraph_flwr.fleet.checking import reach
from fedgraph_flwr.fleet.keys import check_key
from fedgraph_flwr.fleet.processes import GRACE, Process, free_port, say, tool

WRONG_INPUT = {302, 303, 304, 600, 603, 604, 605, 606}
"""Flower's exit codes after which another try would end alike."""

PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds before each further try; the last again and again."""

SETTLED = 60.0
"""Seconds after which a process that ends counts as one that had begun well."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Of a process that forks; a client sets torch's threads itself (``--threads``)."""

_PATHS = {"graph": "FILE", "state": "DIR", "policy": "FILE", "peers": "DIR"}
_ADJUSTED = Path(flower_patches.__file__)


def register(commands: Any) -> None:
    """Add ``node`` to the subparsers."""
    parser = commands.add_parser(
        "node", help="this party's SuperNode, with its graph, on a fleet", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the fleet's server listens")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="this party's private key (fleet join)")
    parser.add_argument("--graph", required=True, type=Path, metavar="FILE", help="this party's client file")
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="the server's authority (default: ca.crt beside the key)"
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="what must outlive this process (default: none)")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="what this party answers (default: docs/fleet.md)")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="the other parties' public keys, pinned")
    parser.add_argument("--trusted", type=Path, metavar="FILE", help="run apps alone that one of these has signed")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where to train (default: auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch's threads (default: the run's)")
    parser.add_argument("--port", type=int, help="of loopback, for this node's own processes (default: a free one)")
    parser.add_argument("--plain", action="store_true", help="Flower as it is: slower, and a process for each message")
    parser.add_argument("--once", action="store_true", help="end when the SuperNode ends, in the place of another try")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``node``."""
    plain = args.plain or flower_patches.unmodified(lambda text: say(f"warning: {text}"))
    if not plain and sys.platform != "linux":
        say("a fork is safe on Linux alone: Flower as it is (--plain)")
        plain = True
    options = supernode_options(args)
    server = Server(*check_address(args.server, "--server"), _authority(args))
    node = Node(options, plain, args.port or free_port(), server, args.once)
    try:
        node.run()
    except KeyboardInterrupt:
        say("ends the node")
        return 0
    finally:
        node.end()
    return 1


def supernode_options(args: argparse.Namespace) -> list[str]:
    """The options of `flower-supernode`.

    Raises:
        FedGraphError: a file or folder that is not there, an address that is none.
    """
    check_address(args.server, "--server")
    authority = _authority(args)
    check_key(args.key)
    files = [("--graph", args.graph), ("--policy", args.policy), ("--trusted", args.trusted)]
    for name, path in [*files, ("--ca", authority)]:
        if path and not path.is_file():
            raise FedGraphError(f"{name} {path}: there is no such file")
    if args.peers and not args.peers.is_dir():
        raise FedGraphError(f"--peers {args.peers}: there is no such folder")
    _check_graph(args.graph)
    told: dict[str, str | int] = {"key": str(args.key.absolute())}
    told |= {name: str(path.absolute()) for name in _PATHS if (path := getattr(args, name))}
    told |= {name: value for name in ("device", "threads") if (value := getattr(args, name)) is not None}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in told.items())
    words = ["--superlink", args.server, "--root-certificates", str(authority.absolute())]
    words += ["--auth-supernode-private-key", str(args.key.absolute()), "--node-config", config]
    return words + (["--trusted-entities", str(args.trusted.absolute())] if args.trusted else [])


def _authority(args: argparse.Namespace) -> Path:
    path: Path = args.ca or args.key.parent / "ca.crt"
    return path


def _check_graph(path: Path) -> None:
    """Refuse a file that is no client's graph now, not in the first round.

    Raises:
        FedGraphError: why it cannot be used.
    """
    from fedgraph_flwr import partition

    try:
        partition.load(path)
    except FedGraphError as error:
        raise FedGraphError(f"--graph: {error}") from error


def check_address(text: str, name: str) -> tuple[str, int]:
    """HOST:PORT as its parts.

    Raises:
        FedGraphError: it is not of that form.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):(\d{1,5})", text)
    if not found or not 0 < int(found[2]) < 65536:
        raise FedGraphError(f"{name} {text}: expected HOST:PORT, such as fleet.example.org:9090")
    return found[1], int(found[2])


@dataclass(frozen=True)
class Server:
    """Address of a fleet's server, and the certificate that vouches for it."""

    host: str
    port: int
    authority: Path

    def unreachable(self) -> str:
        """Why it cannot be reached; empty if it answers."""
        found = reach(self.host, self.port, self.authority)
        return "" if found.right else found.words


class Node:
    """A SuperNode and its executor.

    Args:
        options: of `flower-supernode`.
        plain: whether Flower is left as it is.
        port: of loopback, for the runtime API.
        server: of the fleet.
        once: whether the SuperNode's end is the node's.
    """

    def __init__(self, options: list[str], plain: bool, port: int, server: Server, once: bool = False):
        self.options, self.plain, self.port, self.server, self.once = options, plain, port, server, once
        self.folder = Path(tempfile.mkdtemp(prefix="fedgraph-node-"))  # ours alone: mode 700
        self.lock, self.secret = self.folder / "task", self.folder / "secret"
        self.wake = os.pipe()
        self.supernode: Process | None = None
        self.executor: Process | None = None
        self.code = 0

    def run(self) -> None:
        """Keep both up, until the SuperNode ends for good.

        Raises:
            FedGraphError: it was given something that no further try would mend.
        """
        tries = 0
        if why := self.server.unreachable():
            say(f"no connection to the server {self.server.host}:{self.server.port} yet: {why}; the node keeps trying")
        while True:
            began = time.monotonic()
            self._start()
            while self.supernode and not self.supernode.ended():
                if self.executor and self.executor.ended():
                    say("the executor has ended; it is started again")
                    self.executor.end()
                    self._start_executor()
                time.sleep(0.2)
            self._end_both()
            if self.code in WRONG_INPUT:
                raise FedGraphError(f"flower-supernode ended with code {self.code}; its last lines say why")
            if self.once:
                return
            tries = 0 if time.monotonic() - began > SETTLED else tries + 1
            pause = PAUSES[min(tries, len(PAUSES) - 1)]
            say(f"{self._why()}; next try in {pause:g} s")
            time.sleep(pause)

    def end(self) -> None:
        """End all that was started, the process of a task included."""
        former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
        try:  # a second one does not keep us from it
            self._end_both()
            for descriptor in self.wake:
                os.close(descriptor)
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        self.code = 0
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        quiet = {"FLWR_DISABLE_UPDATE_CHECK": "1"}
        if self.plain:
            self.supernode = Process(
                [tool("flower-supernode"), *self.options, *address],
                {**quiet, flower_patches.PLAIN: "1"},
                on_line=self._read,
            )
            return
        self.secret.touch(mode=0o600)
        self.secret.write_bytes(secrets.token_bytes(32))
        own = ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        words = [sys.executable, "-P", _ADJUSTED, "supernode", "--wake", self.wake[1], "--"]
        self.supernode = Process(
            [*map(str, words), *self.options, *address, *own], quiet, (self.wake[1],), on_line=self._read
        )
        self._start_executor()

    def _start_executor(self) -> None:
        assert self.supernode
        words = [sys.executable, "-P", _ADJUSTED, "executor", "--wake", self.wake[0], "--lock", self.lock]
        words += ["--supernode-pid", self.supernode.pid, "--runtime", f"127.0.0.1:{self.port}", "--secret", self.secret]
        self.executor = Process(list(map(str, words)), ONE_THREAD | {"FLWR_TELEMETRY_ENABLED": "0"}, (self.wake[0],))

    def _end_both(self) -> None:
        for process in (self.supernode, self.executor):
            if process and not process.ended():
                process.popen.terminate()
        for process in (self.supernode, self.executor):
            if process:
                process.end()
        self.supernode = self.executor = None
        self._end_task()

    def _end_task(self) -> None:
        """Wait for the process of a task, which ends with the SuperNode; end it where it does not."""
        if not self.lock.is_file():
            return
        with self.lock.open() as file:
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(0.05)
            if (text := file.read()).isdigit():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(text), signal.SIGKILL)

    def _read(self, line: str) -> None:
        if found := re.search(r"Exit Code: (\d+)", line):
            self.code = int(found[1])

    def _why(self) -> str:
        if self.code == 305:
            if why := self.server.unreachable():
                return f"no connection to the server {self.server.host}:{self.server.port}: {why}"
            why = "the server does not admit this key yet: it waits a minute for a node that died with it"
            return f"{why} (fedgraph-flwr fleet check says more)"
        return "the SuperNode has ended, with a key that the server does not know or for the reason above"
