"""Child processes of a command: start, output, supervision and termination."""

import contextlib
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraph_flwr.errors import FedGraphError, located
from fedgraph_flwr.fleet.log_lines import LogLines

if TYPE_CHECKING:
    import psutil

PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds before each retry; the last value repeats."""

GRACE = 10.0
"""Seconds between a request to terminate and a kill."""

LINES = LogLines()
"""Format of the lines that this process prints of its own and forwards."""


def log_as(form: str, party: str = "") -> None:
    """Set the format of the log of this process (see `LogLines`), also of its errors; text has colours in a terminal only."""
    LINES.form, LINES.party = form, party
    if form == "json":
        sys.excepthook = lambda kind, error, trace: _say_error(error)
        threading.excepthook = lambda args: _say_error(args.exc_value or SystemExit())


class Process:
    """Process whose output is forwarded as it arrives.

    Args:
        command: its command line.
        more: additional environment variables.
        pass_fds: inherited file descriptors.
        on_line: called with each printed line.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        more: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        on_line: Callable[[str], None] | None = None,
    ):
        self.command = [str(word) for word in command]
        say("starting: " + shlex.join([f"{key}={value}" for key, value in (more or {}).items()] + self.command))
        self.popen = subprocess.Popen(
            self.command,
            env=environment() | dict(more or {}),
            pass_fds=pass_fds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        self._on_line = on_line or (lambda line: None)
        self._terminated = False
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.popen.pid

    def ended(self) -> bool:
        """Return whether the process has exited."""
        return self.popen.poll() is not None

    def terminate(self) -> None:
        """Send SIGTERM, once: a second one would kill a Flower process before it has told its server."""
        if not self._terminated:
            self.popen.terminate()
        self._terminated = True

    def end(self) -> None:
        """Terminate the process, and kill it after `GRACE` seconds."""
        self.terminate()
        try:
            self.popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._reader.join(1.0)

    def _pass_on(self) -> None:
        lines = LINES.new()
        for raw in self.popen.stdout or ():
            line = raw.decode(errors="replace").rstrip("\r\n")
            _print(lines, line)
            self._on_line(line.rstrip())
        if lines.traceback:
            _print(lines, "")


def say(text: str) -> None:
    """Print a line that is recognisable among the output of Flower's programs."""
    _print(LINES, f"fedgraph-flwr: {text}")


def _say_error(error: BaseException) -> None:
    """Print an exception that ends this process, or a thread of it, in JSON."""
    for line in "".join(traceback.format_exception(error)).splitlines():
        _print(LINES, line)


def _print(lines: LogLines, line: str) -> None:
    lines.colours = sys.stdout.isatty()
    text = lines(line)
    if text or lines.form == "text":
        with contextlib.suppress(OSError, ValueError):  # the reader of the log has gone
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


def healthy(url: str, ended: Callable[[], object], seconds: float, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a server on this machine responds, before its process has ended and within so many seconds."""
    deadline = time.monotonic() + seconds
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    direct = urllib.request.build_opener(*handlers, urllib.request.HTTPSHandler(context=context))
    while time.monotonic() < deadline and not ended():
        with contextlib.suppress(OSError):  # URLError, too
            direct.open(f"{url}/health", timeout=2).close()
            return True
        time.sleep(0.2)
    return False


def kill_after(family: Sequence["psutil.Process"], seconds: float) -> None:
    """Wait for processes to end, and kill those that do not."""
    import psutil

    for member in psutil.wait_procs(family, timeout=seconds)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def environment() -> dict[str, str]:
    """Return the environment for Flower's commands.

    They call each other by name, reach this machine without a proxy, and send usage data only if the environment says so.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {"FLWR_TELEMETRY_ENABLED": "0", **os.environ, "PATH": path, **unproxied()}


def unproxied() -> dict[str, str]:
    """Return the environment variables by which this machine is reached without a proxy; none if there is no proxy."""
    direct = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = ",".join(dict.fromkeys([*filter(None, direct.split(",")), "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts} if urllib.request.getproxies_environment() else {}


def tool(name: str) -> str:
    """Return Flower's command next to this Python, else its name for the PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else name


def without_box(text: str) -> str:
    """Return the text of Flower's command line, without the lines of its boxes, as one line."""
    return " ".join(re.sub("[\u2500-\u257f]+", " ", text).split())


def check_address(text: str, name: str) -> tuple[str, int]:
    """Split HOST:PORT.

    Raises:
        FedGraphError: the text has another form.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):(\d{1,5})", text)
    if not match or not 0 < int(match[2]) < 65536:
        raise FedGraphError(f"{name} {text}: expected HOST:PORT, such as fleet.example.org:9090")
    return match[1], int(match[2])


def monitor_address(text: str) -> tuple[str, int] | None:
    """Return the address of ``--monitor``: PORT, which is on loopback, or HOST:PORT; None if it is off.

    Raises:
        FedGraphError: the text has another form.
    """
    if not text:
        return None
    return check_address(f"127.0.0.1:{text}" if text.isdecimal() else text, "--monitor")


def apart(check: Callable[[], object]) -> None:
    """Run a check in a process of its own, with what it imports: this one, which stays, does not keep it.

    Raises:
        FedGraphError: as the check does, or because its process died.
    """
    reading, writing = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            check()
            code = 0
        except FedGraphError as error:
            os.write(writing, str(error).encode())
        except BaseException as error:
            os.write(writing, located(error).encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read().decode()
    if os.waitpid(child, 0)[1]:
        raise FedGraphError(
            text or "the process that checks this node's files died: the machine may have no memory left"
        )


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate, then kill, a process and all its descendants.

    Flower starts a simulation, and Ray its workers, in new sessions, which a signal to the group does not reach.
    """
    import psutil

    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(process.pid)
        family = [leader, *leader.children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    kill_after(family, 10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
