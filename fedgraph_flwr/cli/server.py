"""Command ``server``: run a fleet's SuperLink, behind nginx if other machines may connect."""

import argparse
import contextlib
import math
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.cli import superlink
from fedgraph_flwr.errors import MALFORMED, FedGraphError, RunFailed, system_errors
from fedgraph_flwr.fleet import flower_patches
from fedgraph_flwr.fleet.certificates import in_use, watch
from fedgraph_flwr.fleet.flower_commands import admit_all, connect, node_infos, runs
from fedgraph_flwr.fleet.keys import FLEET, Places, check_pairs, read_fleet, write_configuration, write_fleet
from fedgraph_flwr.fleet.log_lines import LOG_FORMAT
from fedgraph_flwr.fleet.metrics import Metric, exposition, of_certificates, of_memory, of_parties, of_runs
from fedgraph_flwr.fleet.monitor import condition, monitor
from fedgraph_flwr.fleet.parties import read_parties
from fedgraph_flwr.fleet.processes import PAUSES, Process, healthy, log_as, monitor_address, say, tool
from fedgraph_flwr.fleet.run_folders import RUNS, STATUS
from fedgraph_flwr.fleet.status import read_status
from fedgraph_flwr.party.options import add_options

ENVIRONMENT = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Keeps Flower from installing torch for every run."""

PATIENCE = 120.0
"""Seconds to wait for the SuperLink to respond."""

LIST_EVERY = 15.0
"""Least seconds between two questions for the SuperLink's nodes."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``server``."""
    parser.description = (__doc__ or "").split("\n", 1)[0]
    about = "folder of `fleet init` (default: keys)"
    parser.add_argument("folder", type=Path, nargs="?", default=Path("keys"), help=about)
    add_options(parser, _OPTIONS, name={"default": "fleet"}, runs={"default": Path("runs")}, log_format=LOG_FORMAT)


_OPTIONS = """
--database FILE  database kept across restarts (default: FOLDER/superlink.db)
--runs DIR  folder of the run folders, which operators may list and copy (default: runs)
--name NAME  name of the connection in Flower's configuration (default: fleet)
--monitor PORT  answer /live, /ready and /metrics on this loopback port, or on HOST:PORT (default: off)
--log-format text|json  lines of the log (default: text)
--no-join  do not register the folder's public keys
--plain  use unpatched Flower, including its ServerApps
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``server``."""
    parties = Parties(args.name, args.runs)
    log_as(args.log_format)
    places, _ = read_fleet(args.folder)
    check_pairs(args.folder)
    plain = args.plain or flower_patches.unmodified(lambda text: say(f"warning: {text}"))
    if places.guarded and not shutil.which("nginx"):
        raise FedGraphError(f"listening on {places.listen} requires nginx: install it (apt-get install nginx)")
    with system_errors(f"cannot write --runs {args.runs}"):
        args.runs.mkdir(parents=True, exist_ok=True)
    health = Health(f"https://{places.superlink}", args.folder / "ca.crt", args.runs)
    pages = {
        "/live": condition(health.not_live),
        "/ready": condition(health.not_ready),
        "/metrics": lambda: (True, exposition([*parties.metrics(health.begun), *health.metrics(args.folder)])),
    }
    with monitor(monitor_address(args.monitor), pages):
        return _run(args, places, plain, health, parties)


def _run(args: argparse.Namespace, places: Places, plain: bool, health: "Health", parties: "Parties") -> int:
    """Keep the processes running until one ends."""
    processes: list[Process] = []
    superexec: SuperExec | None = None
    more = environment(args.folder, args.runs, plain)
    try:
        processes += start(args.folder, places, args.database or args.folder / "superlink.db", more, plain)
        watch(args.folder, lambda: _renewed(processes[1:]), lambda text: say(f"warning: {text}"))
        health.superexec = superexec = SuperExec(processes[0], places.superlink, args.folder / "ca.crt", more)
        connect(args.name, places.superlink, args.folder / "ca.crt")
        for text in admit_all(args.folder, args.name, not args.no_join):
            say(text)
        with contextlib.suppress(OSError):  # a folder that is only read
            if write_fleet(args.folder, places):
                say(f"{args.folder / FLEET} has the versions of this server: send it to the parties, for `fleet check`")
        command = f"fedgraph-flwr node --server {places.server} --key FILE --graph FILE"
        say(f"ready on {places.listen}; start nodes with: {command}")
        parties.refresh()
        health.begun = True
        while not (ended := next((process for process in processes if process.ended()), None)):
            superexec.look()
            time.sleep(0.2)
        say(f"{'the SuperLink' if ended is processes[0] else 'nginx'} ended; see its last lines above")
        return 1
    except KeyboardInterrupt:
        say("stopping the server")
        return 0
    finally:
        if superexec:
            superexec.end()
        for process in reversed(processes):
            process.end()


def _renewed(nginx: list[Process]) -> None:
    """Let nginx read replaced certificates and removed operators: it ends no request. The SuperLink reads certificates itself."""
    for process in nginx:
        process.popen.send_signal(signal.SIGHUP)
    say("certificates were replaced, or an operator was removed: this holds for new requests")


class SuperExec:
    """The process that starts those of runs. Flower starts it once, with the SuperLink; this class again when it ended.

    Args:
        superlink: the SuperLink.
        address: its address.
        authority: certificate that verifies it.
        more: additional environment variables.

    Attributes:
        up: whether it works; one that was started again does after `STEADY` seconds.
        restarts: how often it was started again.
    """

    EVERY, STEADY = 2.0, 10.0

    def __init__(self, superlink: Process, address: str, authority: Path, more: Mapping[str, str]):
        self.superlink, self.more = superlink, more
        words = ("--root-certificates", str(authority), "--runtime-api-address", address)
        self.command = [tool("flower-superexec"), *words]
        self.process: Process | None = None
        self.up, self.restarts, self.tries = True, 0, 0
        self.looked = self.began = -math.inf

    def look(self) -> None:
        """Look every `EVERY` seconds whether it works, and start it if it ended."""
        now = time.monotonic()
        if now - self.looked < self.EVERY:
            return
        self.looked, age = now, now - self.began
        runs = self._runs()
        self.up = runs and age >= self.STEADY
        if self.up:
            self.tries = 0
        elif not runs and age >= PAUSES[min(self.tries, len(PAUSES) - 1)]:
            say("warning: the SuperExec ended, which starts the processes of runs; starting it again")
            self.end()
            self.process = Process([*self.command, "--parent-pid", str(self.superlink.pid)], self.more)
            self.began, self.restarts, self.tries = now, self.restarts + 1, self.tries + 1

    def end(self) -> None:
        """End the one that was started here."""
        if self.process:
            self.process.end()

    def _runs(self) -> bool:
        import psutil

        if self.process:
            return not self.process.ended()
        try:
            children = psutil.Process(self.superlink.pid).children()
            return any("flower-superexec" in " ".join(child.cmdline()) for child in children)  # a zombie has no words
        except psutil.Error:  # one of them ended meanwhile
            return False


class Parties:
    """The parties of a fleet by name, and what their runs did.

    Args:
        connection: name of the connection.
        runs: folder of the run folders.
    """

    def __init__(self, connection: str, runs: Path):
        self.connection, self.runs = connection, runs
        self.infos: list[dict[str, Any]] = []
        self.pending = 0
        self.asked = -math.inf

    def names(self) -> dict[str, str]:
        """Return the name of each party by Flower's number of its node, also of removed ones."""
        known = {node: entry["name"] for node, entry in read_parties(self.runs).items() if entry["name"]}
        return known | {info["node"]: info["party"] or info["node"] for info in self.infos}

    def refresh(self) -> None:
        """Ask the SuperLink for its nodes and pending runs, at most every `LIST_EVERY` seconds."""
        if time.monotonic() - self.asked > LIST_EVERY:
            self.asked = time.monotonic()
            with contextlib.suppress(FedGraphError):  # then it is not live
                self.infos = node_infos(self.connection)
                self.pending = sum(run["status"] == "pending" for run in runs(self.connection))

    def metrics(self, begun: bool) -> list[Metric]:
        """Return the numbers of runs and parties."""
        if begun:
            self.refresh()
        names = self.names()
        online = {names[info["node"]]: info["status"] == "online" for info in self.infos}
        pending = Metric("runs_pending", "Runs whose process on the server has not started yet.")
        pending.add(self.pending)
        return [*of_runs(statuses_of(self.runs), names), pending, of_parties(online)]


def statuses_of(runs: Path) -> dict[str, dict[str, Any]]:
    """Return the status of each run by its folder's name, without those that are damaged."""
    statuses = {path.parent.name: read_status(path.parent) for path in runs.glob(f"*/{STATUS}")}
    return {name: status for name, status in statuses.items() if status and _readable(status)}


def _readable(status: dict[str, Any]) -> bool:
    """Return whether the values of a status have their kinds."""
    try:
        exposition(of_runs({"": status}, {}))
        nodes = all(isinstance(entry, dict) for entry in status.get("nodes", {}).values())
        return nodes and float(status.get("updated", 0.0)) >= 0.0
    except MALFORMED:
        return False


class Health:
    """Health of a server.

    Args:
        url: address of the SuperLink.
        authority: certificate that verifies it.
        runs: folder of the run folders.
    """

    def __init__(self, url: str, authority: Path, runs: Path):
        self.url, self.authority, self.runs = url, authority, runs
        self.begun = False
        self.superexec: SuperExec | None = None

    def not_live(self) -> str:
        """Return why the server should be restarted, or ""; never while it starts."""
        if not self.begun:
            return ""
        context = ssl.create_default_context(cafile=str(self.authority))
        responds = healthy(self.url, lambda: False, 3.0, context)
        return "" if responds else f"the SuperLink on {self.url} does not respond within 3 s"

    def not_ready(self) -> str:
        """Return why no run can start, or ""."""
        if not self.begun:
            return "the SuperLink is starting"
        if why := self.not_live():
            return why
        if self.superexec and not self.superexec.up:
            return "the SuperExec ended, so that no run can start; it is started again"
        return "" if os.access(self.runs, os.W_OK) else f"cannot write {self.runs}"

    def metrics(self, folder: Path) -> list[Metric]:
        """Return the numbers of the processes and of the certificates."""
        up = Metric("superexec_up", "1 if the process that starts those of runs works.")
        restarts = Metric("superexec_restarts_total", "How often the SuperExec was started again.")
        if self.superexec:
            up.add(self.superexec.up)
            restarts.add(self.superexec.restarts)
        return [up, restarts, of_certificates(in_use(folder)), of_memory({"server": os.getpid()})]


def environment(folder: Path, runs: Path, plain: bool) -> dict[str, str]:
    """Return the additional environment variables of the SuperLink and the processes of runs.

    Args:
        folder: keys and certificates.
        runs: folder of the run folders.
        plain: whether to use unpatched Flower, which sends no run folders to operators.
    """
    if plain:
        return ENVIRONMENT | {flower_patches.PLAIN: "1"}
    return ENVIRONMENT | {RUNS: str(runs.absolute()), superlink.KEYS: str(folder.absolute())}


def start(folder: Path, places: Places, database: Path, more: Mapping[str, str], plain: bool) -> list[Process]:
    """Start the SuperLink, wait until it responds, and start nginx.

    Args:
        folder: keys and certificates.
        places: addresses.
        database: the SuperLink's database.
        more: additional environment variables.
        plain: whether to use unpatched Flower.

    Raises:
        RunFailed: the SuperLink ended, or does not respond.
    """
    host, _, port = places.superlink.rpartition(":")
    program = [tool("flower-superlink")] if plain else [sys.executable, "-P", "-m", superlink.__name__]
    command = [*program, "--host", host, "--port", port, "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
    command += ["--ssl-keyfile", str(folder / "server.key"), "--database", str(database)]
    started = [Process(command, more)]
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        if not healthy(f"https://{places.superlink}", started[0].ended, PATIENCE, context):
            what = f"the SuperLink on {places.superlink} ended, or did not respond within {PATIENCE:g} s"
            raise RunFailed(f"{what}; see its last lines above")
        if places.guarded:
            # again, since the folder may have moved, for example into a container
            configuration = write_configuration(folder, "server", places)
            started.append(Process(["nginx", "-e", "stderr", "-c", str(configuration)]))
    except BaseException:
        started[0].end()
        raise
    return started
