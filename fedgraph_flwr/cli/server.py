"""The command ``server``: a fleet's SuperLink and, where others than this machine may reach it, the nginx before it."""

import argparse
import contextlib
import shutil
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet import flower_patches
from fedgraph_flwr.fleet.keys import Places, read_fleet, write_configuration
from fedgraph_flwr.fleet.operating import admit, connect
from fedgraph_flwr.fleet.processes import Process, say, tool, wait_for_one

ENVIRONMENT = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Else Flower would install torch anew for every run."""

PATIENCE = 120.0
"""Seconds that a SuperLink has to answer."""


def register(commands: Any) -> None:
    """Add ``server`` to the subparsers."""
    parser = commands.add_parser(
        "server", help="a fleet's server, with the keys of `fleet init`", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("keys"), help="of `fleet init` (default: keys)")
    parser.add_argument(
        "--database", type=Path, metavar="FILE", help="what must outlive it (default: FOLDER/superlink.db)"
    )
    parser.add_argument("--name", default="fleet", help="what Flower's configuration calls this fleet (default: fleet)")
    parser.add_argument("--no-join", action="store_true", help="register none of the folder's public keys")
    parser.add_argument("--plain", action="store_true", help="Flower as it is, its ServerApps too")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``server``."""
    places, _ = read_fleet(args.folder)
    plain = args.plain or flower_patches.unmodified(lambda text: say(f"warning: {text}"))
    if places.guarded and not shutil.which("nginx"):
        raise FedGraphError(
            f"nginx stands before a SuperLink that listens on {places.listen}, and is not installed: apt-get install nginx"
        )
    processes: list[Process] = []
    try:
        processes += start(args.folder, places, args.database or args.folder / "superlink.db", plain)
        connect(args.name, places.superlink, args.folder / "ca.crt")
        if not args.no_join:
            _join_all(args.folder, args.name)
        say(f"ready on {places.listen}; nodes say: fedgraph-flwr node --server {places.server} --key FILE --graph FILE")
        ended = wait_for_one(processes)
        say(f"{Path(ended.words[0]).name} has ended; its last lines say why")
        return 1
    except KeyboardInterrupt:
        say("ends the server")
        return 0
    finally:
        for process in reversed(processes):
            process.end()


def start(folder: Path, places: Places, database: Path, plain: bool) -> list[Process]:
    """The SuperLink, which answers when this returns, and nginx.

    Raises:
        RunFailed: it ended, or does not answer.
    """
    host, _, port = places.superlink.rpartition(":")
    words = [tool("flower-superlink"), "--host", host, "--port", port, "--enable-supernode-auth"]
    words += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
    words += ["--ssl-keyfile", str(folder / "server.key"), "--database", str(database)]
    started = [Process(words, ENVIRONMENT | ({flower_patches.PLAIN: "1"} if plain else {}))]
    try:
        _wait_until_it_answers(started[0], places.superlink, folder / "ca.crt")
        if places.guarded:
            configuration = write_configuration(
                folder, "server", places
            )  # the folder may have moved, into a container say
            started.append(Process(["nginx", "-e", "stderr", "-c", str(configuration)]))
    except BaseException:
        started[0].end()
        raise
    return started


def _wait_until_it_answers(process: Process, address: str, authority: Path) -> None:
    context = ssl.create_default_context(cafile=str(authority))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.ended():
            raise RunFailed(f"flower-superlink ended with code {process.popen.returncode}; its last lines say why")
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"https://{address}/health", timeout=2, context=context).close()
            return
        time.sleep(0.2)
    raise RunFailed(f"the SuperLink does not answer on {address} after {PATIENCE:g} s")


def _join_all(folder: Path, name: str) -> None:
    """Register the public keys of a folder."""
    for path in sorted(folder.glob("*.pub")):
        say(admit(path, name))
