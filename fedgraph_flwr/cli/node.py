"""Command ``node``: run a party's SuperNode with its graph until it is stopped."""

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
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, system_errors
from fedgraph_flwr.fleet import audit_chain, flower_patches
from fedgraph_flwr.fleet.agreements import RELEASES, Refused, remember, remembered
from fedgraph_flwr.fleet.certificates import WARNED
from fedgraph_flwr.fleet.checking import Finding, admission, reach
from fedgraph_flwr.fleet.keys import check_key
from fedgraph_flwr.fleet.log_lines import LOG_FORMAT
from fedgraph_flwr.fleet.metrics import Metric, exposition, of_certificates, of_memory
from fedgraph_flwr.fleet.monitor import condition, monitor
from fedgraph_flwr.fleet.processes import (
    GRACE,
    PAUSES,
    Process,
    apart,
    check_address,
    free_port,
    log_as,
    monitor_address,
    say,
    tool,
)
from fedgraph_flwr.party.options import add_options

WRONG_INPUT = {302, 303, 304, 600, 603, 604, 605, 606}
"""Flower's exit codes for which a retry is useless."""

SAME = 5
"""How often the same reason of a missing connection is printed."""

QUIET = 30.0
"""Seconds without a failed attempt after which unpatched Flower is connected if the server responds: it tries every 20 s."""

SILENT = 60.0
"""Seconds without an answered heartbeat after which a node is offline, as the server sees it."""

_GAVE_UP = re.compile("Giving up reconnection|SSL/TLS handshake error|ERROR *: *(Client|Server) error '")
"""Lines of a SuperNode whose loop has ended; its process stays."""

SETTLED = 60.0
"""Seconds of uptime after which the retry count is reset."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment of the process that forks; clients set torch's threads themselves (``--threads``)."""

_DAY = 86400.0

_PATHS = ("graph", "state", "policy", "peers", "agreement")
_PROGRAM: list[str | Path] = [sys.executable, "-P", Path(flower_patches.__file__)]


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``node``."""
    parser.description = (__doc__ or "").split("\n", 1)[0]
    required = {name: {"required": True} for name in ("server", "key", "graph")}
    add_options(parser, _OPTIONS, **required, device=_DEVICE, log_format=LOG_FORMAT)


_DEVICE = {"choices": ("auto", "cpu", "cuda"), "default": None}

_OPTIONS = """
--server HOST:PORT  address of the fleet's server
--key FILE  this party's private key (fleet join)
--graph FILE  this party's client file or party.yaml
--ca FILE  certificate authority of the server (default: ca.crt next to the key)
--state DIR  directory for state kept across restarts (default: none)
--policy FILE  policy file with the requests that this party accepts (default: see docs/fleet.md)
--peers DIR  folder of the other parties' pinned public keys
--trusted FILE  run only apps signed by one of these keys
--agreement FILE  accept only runs of this agreement, or of one in a folder (default: party.yaml's, else any run)
--device auto|cpu|cuda  device for training (default: auto)
--threads N  number of torch threads (default: the run's)
--port N  loopback port for this node's processes (default: a free port)
--monitor PORT  answer /live, /ready and /metrics on this loopback port, or on HOST:PORT (default: off)
--log-format text|json  lines of the log (default: text)
--plain  use unpatched Flower: slower, one process per message
--once  exit when the SuperNode ends, without retries
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``node``.

    It starts `flower-supernode` and an executor process with all client imports. A task then costs a fork instead of a new Python
    (`fedgraph_flwr.fleet.flower_patches`). A process that ends is restarted: only the executor, or both. A SuperLink accepts a
    key again only after two missed heartbeats of its previous process (Flower's exit code 305). Until then the node retries.
    """
    log_as(args.log_format, args.key.name)
    plain = args.plain or flower_patches.unmodified(lambda text: say(f"warning: {text}"))
    if not plain and sys.platform != "linux":
        say("forking is only safe on Linux: using unpatched Flower (--plain)")
        plain = True
    server = ServerAddress(*check_address(args.server, "--server"), _authority(args))
    agreed, notes = agreement_options(args, plain)
    options = supernode_options(args)
    watched = monitor_address(args.monitor)
    node = Node(options, plain, args.port or free_port(), server, args.once, agreed, args.key)

    log = (args.state or node.folder) / audit_chain.LOG

    @cache
    def numbers() -> Any:  # its accounting is loaded when there are requests
        from fedgraph_flwr.secure.audit_numbers import AuditNumbers

        return AuditNumbers(log)

    pages = {
        "/live": condition(node.not_live),
        "/ready": condition(node.not_ready, notes),
        "/metrics": lambda: (True, exposition([*node.metrics(), *(numbers().metrics() if log.is_file() else [])])),
    }
    try:
        with monitor(watched, pages):
            node.run()
    except KeyboardInterrupt:
        say("stopping the node")
        return 0
    finally:
        node.end()
    return 1


def supernode_options(args: argparse.Namespace) -> list[str]:
    """Return the options of `flower-supernode`.

    Raises:
        FedGraphError: a file or folder is missing, damaged, or cannot be written.
    """
    authority = _authority(args)
    check_key(args.key)
    files = [("--graph", args.graph), ("--policy", args.policy), ("--trusted", args.trusted)]
    for name, path in [*files, ("--ca", authority)]:
        if path and not path.is_file():
            raise FedGraphError(f"{name} {path}: no such file")
    if args.peers and not args.peers.is_dir():
        raise FedGraphError(f"--peers {args.peers}: no such folder; expected public keys, such as node_0.pub")
    apart(lambda: _check_content(args))
    settings: dict[str, str | int] = {"key": str(args.key.absolute())}
    settings |= {name: str(path.absolute()) for name in _PATHS if (path := getattr(args, name))}
    settings |= {name: value for name in ("device", "threads") if (value := getattr(args, name)) is not None}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    args_list = ["--superlink", args.server, "--root-certificates", str(authority.absolute())]
    args_list += ["--auth-supernode-private-key", str(args.key.absolute()), "--node-config", config]
    return args_list + (["--trusted-entities", str(args.trusted.absolute())] if args.trusted else [])


def agreement_options(args: argparse.Namespace, plain: bool) -> tuple[list[str | Path], list[str]]:
    """Return the executor's options for a node of agreed runs only, empty if it accepts others, and which files it ignores.

    Raises:
        FedGraphError: no agreement is whole and signed, or this node cannot check or count its runs.
    """
    if not args.agreement and args.graph.suffix in (".yaml", ".yml"):
        from fedgraph_flwr.party.party_file import read_party

        args.agreement = read_party(args.graph).path("agreement", args.graph.parent)
    if not args.agreement:
        return [], []
    from fedgraph_flwr.cli.agree import proofs_of
    from fedgraph_flwr.launch.agreed import accepted, refusals

    if not args.state:
        raise FedGraphError("--agreement needs --state DIR, in which the node counts the runs")
    if plain:
        raise FedGraphError("--agreement needs the patches of Flower, which check it: run without --plain, on Linux")
    with refusals():
        versions, ignored = accepted(args.agreement, remembered(args.state))
    digests = []
    for agreement in versions:
        file = agreement.path
        if args.peers:
            proofs_of(agreement, args.peers)
        if agreement.values["code"] == RELEASES and not args.trusted:
            raise FedGraphError(f"{file} has code: {RELEASES}: pass --trusted FILE with the keys that sign them")
        try:
            remember(args.state, agreement)
        except Refused as error:
            ignored.append(str(error))
            continue
        digests.append(agreement.digest)
        others = {one.get("name", "") for one in remembered(args.state).values()} - {"", agreement.values["name"]}
        if agreement.noised and others:
            say(f"{', '.join(sorted(others))} and {file} count ε apart: max_epsilon of a policy bounds all together")
        say(f"this node accepts runs of {file} ({agreement.digest[:12]}), which {', '.join(agreement.signers)} signed")
    if not digests:
        raise FedGraphError("; ".join(ignored))
    notes = [f"ignored: {why}" for why in ignored]
    for note in notes:
        say(f"warning: {note}")
    named: list[str | Path] = [word for digest in digests for word in ("--digest", digest)]
    return ["--agreement", args.agreement.absolute(), "--state", args.state.absolute(), *named], notes


def _authority(args: argparse.Namespace) -> Path:
    path: Path = args.ca or args.key.parent / "ca.crt"
    return path


def _check_content(args: argparse.Namespace) -> None:
    """Check the client file, the policy and the state folder at the start instead of in the first round.

    Raises:
        FedGraphError: one is invalid, or cannot be written.
    """
    from fedgraph_flwr import partition
    from fedgraph_flwr.party.party_file import client_file
    from fedgraph_flwr.secure.policy import read_policy

    option = "--graph"
    try:
        partition.load(client_file(args.graph, linked=True))
        option = "--policy"
        if args.policy:
            read_policy(str(args.policy))
    except FedGraphError as error:
        raise FedGraphError(f"{option}: {error}") from error
    if args.state:
        with system_errors(f"cannot write --state {args.state}"):
            args.state.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=args.state).close()


@dataclass(frozen=True)
class ServerAddress:
    """Address of a fleet's server, and the certificate of its authority."""

    host: str
    port: int
    authority: Path

    def unreachable(self) -> str:
        """Return why the server cannot be reached; empty if it responds."""
        finding = self.reach()
        return "" if finding.right else finding.explanation

    def reach(self) -> Finding:
        """Try to reach the server."""
        return reach(self.host, self.port, self.authority)

    def why_unauthorized(self, key: Path) -> str:
        """Return why the server rejected a signed request of this node."""
        if why := self.unreachable():
            return f"the connection to {self.host}:{self.port} was cut: {why}"
        if why := self.why_not_admitted(key):
            return why
        return (
            f"a request reached {self.host}:{self.port} too late, since the connection was cut, or this machine slept: its"
            " signature had expired. The server admits this key"
        )

    def why_not_admitted(self, key: Path) -> str:
        """Return why the server would not admit this key; empty if it does, or cannot be asked."""
        findings = admission(f"{self.host}:{self.port}", check_key(key), self.authority)
        return next((finding.explanation for finding in findings if finding.right is False), "")


class Node:
    """SuperNode and its executor.

    Args:
        options: options of `flower-supernode`.
        plain: whether to use unpatched Flower.
        port: loopback port of the runtime API.
        server: the fleet's server.
        once: whether to exit when the SuperNode ends.
        agreed: the executor's options for a node that accepts agreed runs only.
        key: this party's private key.
    """

    def __init__(
        self,
        options: list[str],
        plain: bool,
        port: int,
        server: ServerAddress,
        once: bool = False,
        agreed: Sequence[str | Path] = (),
        key: Path | None = None,
    ):
        self.agreed, self.key = agreed, key
        self.options, self.plain, self.port, self.server, self.once = options, plain, port, server, once
        self.folder = Path(tempfile.mkdtemp(prefix="fedgraph-node-"))  # private: mode 700
        self.lock, self.secret, self.heartbeat = (self.folder / name for name in ("task", "secret", "heartbeat"))
        self.wake = os.pipe()
        self.supernode: Process | None = None
        self.executor: Process | None = None
        self.code = 0
        self.reason = "the SuperNode is starting"  # why this node takes part in no run; "" if it is connected
        self.looked = time.monotonic()
        self.restarts = 0
        self.refused = False  # the server's certificate
        self.server_ends = 0.0  # when it ends; 0: unknown
        self.printed: Counter[str] = Counter()  # reasons, since the last connection
        self.lost = threading.Event()  # the SuperNode reported a lost connection
        self.failed: float | None = None  # when an attempt of this SuperNode to connect again last failed
        self.joined = self.looked  # when it last connected
        self.gave_up = False
        self.unauthorized = False  # the server rejected a request of the SuperNode

    def not_live(self) -> str:
        """Return why this process should be restarted, or ""."""
        silent = time.monotonic() - self.looked
        return f"no look at the SuperNode for {silent:.0f} s" if silent > 120.0 else ""

    def not_ready(self) -> str:
        """Return why this node can take part in no run, or ""."""
        return self.not_live() or self.reason or self._silence()

    def _silence(self) -> str:
        """Return that the server answers no heartbeat, or ""; unpatched Flower notes none."""
        silent = 0.0 if self.plain else time.monotonic() - max(self._heard(), self.joined)
        return f"the server has answered no heartbeat for {silent:.0f} s" if silent > SILENT else ""

    def _heard(self) -> float:
        """Return the monotonic time of the last answered heartbeat; 0 if there is none."""
        return self.heartbeat.stat().st_mtime if self.heartbeat.is_file() else 0.0

    def metrics(self) -> list[Metric]:
        """Return the numbers of this node's processes."""
        connected = Metric("node_connected", "1 if this node is connected to the server.")
        restarts = Metric("node_restarts_total", "How often the SuperNode was started again.")
        connected.add(float(not (self.reason or self._silence())))
        restarts.add(self.restarts)
        memory = of_memory({"node": os.getpid()})
        certificates = of_certificates([self.server.authority])
        if self.server_ends:
            certificates.add((self.server_ends - time.time()) / _DAY, certificate="server.crt")
        return [connected, restarts, memory, certificates]

    def run(self) -> None:
        """Keep both processes running until the SuperNode ends for good.

        Raises:
            FedGraphError: the SuperNode rejects its input, so a retry is useless.
        """
        tries = 0
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            while self.refused and not self.once:  # a SuperNode would try for minutes, and its error names no reason
                time.sleep(PAUSES[-1])
                self._look()
                self.looked = time.monotonic()
            began = time.monotonic()
            self._start()
            while self.supernode and not self.supernode.ended() and not self.gave_up:
                self.looked = time.monotonic()
                if self.executor and self.executor.ended():
                    say("the executor ended; restarting it")
                    self.executor.end()
                    self._start_executor()
                time.sleep(0.2)
            self._end_both()
            if self.code in WRONG_INPUT:
                raise FedGraphError(f"flower-supernode ended with code {self.code}; see its last lines above")
            if self.once:
                return
            tries = 0 if time.monotonic() - began > SETTLED else tries + 1
            pause, before, self.reason = PAUSES[min(tries, len(PAUSES) - 1)], self.reason, self._why()
            self.restarts += 1
            if self.reason != before or tries < SAME:
                say(f"{self.reason}; retrying {f'in {pause:g} s' if tries < len(PAUSES) else f'every {pause:g} s'}")
            time.sleep(pause)

    def _look(self) -> None:
        """Say why the server cannot be reached, or that its certificate ends soon."""
        server, finding = self.server, self.server.reach()
        self.refused = finding.certificate
        if finding.days is not None:
            self.server_ends = time.time() + finding.days * _DAY
        if not finding.right:
            self.reason = why = finding.explanation
            self.printed[why] += 1
            if self.printed[why] <= SAME:
                say(f"warning: no connection to the server {server.host}:{server.port}: {why}; the node keeps trying")
        elif finding.days is not None and finding.days < WARNED:
            say(
                f"warning: the certificate of {server.host}:{server.port} ends in {finding.days} days: tell the operator"
            )

    def _watch(self) -> None:
        """Look when the SuperNode loses its connection, and each day."""
        looked = time.monotonic()
        while True:
            cut = self.failed is not None
            lost = self.lost.wait(PAUSES[-1] if cut else _DAY)
            self.lost.clear()
            if self._is_back():
                self._connected()
            elif time.monotonic() - looked > PAUSES[-1] if lost else not cut:
                looked = time.monotonic()
                self._look()

    def _is_back(self) -> bool:
        """Return whether a lost connection works again: Flower does not say so where the reply that it sent is of no use."""
        failed = self.failed
        if failed is None or (self.plain and time.monotonic() - failed < QUIET):
            return False
        if not self.plain:
            return self._heard() > failed
        return bool(self.server.reach().right) and self.failed == failed

    def _connected(self) -> None:
        self.reason, self.failed, self.joined = "", None, time.monotonic()
        self.printed.clear()

    def end(self) -> None:
        """Stop all started processes, including that of a task."""
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
        try:  # a second signal does not interrupt the clean-up
            self._end_both()
            for descriptor in self.wake:
                os.close(descriptor)
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        self.code, self.failed, self.gave_up = 0, None, False
        self.heartbeat.touch(mode=0o600)
        os.utime(self.heartbeat, (0, 0))
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        quiet = {"FLWR_DISABLE_UPDATE_CHECK": "1"}
        if self.plain:
            flower = [tool("flower-supernode"), *self.options, *address]
            self.supernode = Process(flower, {**quiet, flower_patches.PLAIN: "1"}, on_line=self._read)
            return
        self.secret.touch(mode=0o600)
        self.secret.write_bytes(secrets.token_bytes(32))
        isolation = ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        command = [*_PROGRAM, "supernode", "--wake", str(self.wake[1]), "--heartbeat", str(self.heartbeat), "--"]
        command += [*self.options, *address, *isolation]
        self.supernode = Process(command, quiet, (self.wake[1],), on_line=self._read)
        self._start_executor()

    def _start_executor(self) -> None:
        assert self.supernode
        command = [*_PROGRAM, "executor", "--wake", str(self.wake[0]), "--lock", self.lock, "--secret", self.secret]
        command += ["--supernode-pid", str(self.supernode.pid), "--runtime", f"127.0.0.1:{self.port}", *self.agreed]
        self.executor = Process(command, ONE_THREAD | {"FLWR_TELEMETRY_ENABLED": "0"}, (self.wake[0],))

    def _end_both(self) -> None:
        for process in (self.supernode, self.executor):
            if process:
                process.terminate()
        for process in (self.supernode, self.executor):
            if process:
                process.end()
        self.supernode = self.executor = None
        self._end_task()

    def _end_task(self) -> None:
        """Wait for the process of a task to end with the SuperNode; kill it if it does not."""
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
        if match := re.search(r"Exit Code: (\d{1,4})\b", line):
            self.code = int(match[1])
        elif "SuperNode ID:" in line or "Connection successful" in line:
            self._connected()
        elif "401 Unauthorized" in line and "/v1/runtime/" not in line:  # that is on this machine
            self.unauthorized = True
        elif _GAVE_UP.search(line) and "/v1/runtime/" not in line:
            self.gave_up = True
        elif "Connection attempt failed" in line:
            self.reason = self.reason or f"no connection to the server {self.server.host}:{self.server.port}"
            self.failed = time.monotonic()
            self.lost.set()

    def _why(self) -> str:
        unauthorized, self.unauthorized = self.unauthorized, False
        if unauthorized and self.key:
            with contextlib.suppress(FedGraphError):  # of the key, named below
                return f"the SuperNode ended (401 above): {self.server.why_unauthorized(self.key)}"
        if self.gave_up:
            why = self.server.unreachable() or "see the lines above"
            return f"the SuperNode gave up its connection to {self.server.host}:{self.server.port}: {why}"
        if self.code == 305:
            if why := self.server.unreachable():
                return f"no connection to the server {self.server.host}:{self.server.port}: {why}"
            if self.key and (removed := self.server.why_not_admitted(self.key)):
                return removed
            why = "the server does not accept this key yet: after a crash it waits about a minute"
            return f"{why} (for details, run fedgraph-flwr fleet check)"
        return "the SuperNode ended: its key is not admitted, or see the reason above"
