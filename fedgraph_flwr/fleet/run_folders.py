"""Run folders of a fleet's server: the SuperLink lists and sends them to operators, over the paths of Flower's control API.

Who shows an operator's certificate may read them, unless its roles do not allow it: nginx asks for it on ``/v1/control``
(`fedgraph_flwr.fleet.keys`). The server's log of operators says who copied which file.
"""

import contextlib
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.files import require_space
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line, sanitize, system_errors
from fedgraph_flwr.fleet.flower_commands import check_connection, connection, no_superlink

RUNS = "FEDGRAPH_RUNS"
"""Environment variable of a SuperLink and its ServerApps: the folder of all run folders."""

STATUS = "status.json"
"""File with the state of a run (`fedgraph_flwr.fleet.status`)."""

FOLLOWED = (STATUS, "rounds.jsonl")
"""Files that an operator's command reads again and again while a run works."""

LIST = "/v1/control/list-run-folders"
READ = "/v1/control/read-run-file"
FLEET = "/v1/control/list-fleet"

PATIENCE = 60.0
"""Seconds to wait for the server."""

CHUNK = 2**20
"""Bytes that are copied at once."""

LAST = "summary.json"
"""File that is copied last: if it exists, the others are complete."""

_NAME = re.compile(r"(?!\.)[^/\\\0]{1,200}")

_LISTED = {"run", "strategy", "dataset", "seed", "state", "round", "rounds", "score"}
"""Keys of a run in a list."""

Listing = Callable[[Path, Mapping[str, str]], list[dict[str, Any]]]
"""Returns the runs in a folder that have these values of keys."""


# --- at the server ----------------------------------------------------------------------------------------------------


def run_folder(root: Path, name: str) -> Path:
    """Return the folder of a run.

    Raises:
        FedGraphError: the name is not that of a file.
    """
    if not _NAME.fullmatch(name):
        raise FedGraphError(
            f"run {sanitize(name, 80)!r}: expected the name of a folder, which does not begin with a dot"
        )
    return root / name


def files_of(folder: Path) -> dict[str, int]:
    """Return the files of a run that an operator may copy, with their sizes in bytes; no locks, links, or folders."""
    paths = [path for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return {path.name: path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()}


def add_routes(
    app: Any,
    root: Path,
    listing: Listing,
    note: Callable[[str, str], object],
    fleet: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Add the requests of operators to a SuperLink.

    Args:
        app: its FastAPI application.
        root: folder of the run folders.
        listing: see `Listing`.
        note: called with an action and what it is about, for the server's log.
        fleet: returns ``nodes`` and ``runs``, see `flower_commands.node_values` and `flower_commands.run_values`.
    """
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, Response

    def listed(asked: Mapping[str, Any]) -> Response:
        if "run" not in asked:
            filters = {str(key): str(value) for key, value in dict(asked.get("filters", {})).items()}
            return JSONResponse({"runs": listing(root, filters) if root.is_dir() else []})
        return JSONResponse({"files": files_of(run_folder(root, str(asked["run"])))})

    def read(asked: Mapping[str, Any]) -> Response:
        folder, name = run_folder(root, str(asked.get("run"))), str(asked.get("file"))
        if name not in files_of(folder):
            raise FedGraphError(f"the run {folder.name} has no file {sanitize(name, 80)}")
        if name not in FOLLOWED:
            note("copy", f"{folder.name}/{name}")
        return FileResponse(folder / name)

    def route(respond: Callable[[Mapping[str, Any]], Response]) -> Any:
        async def answer(request: Request) -> Response:
            try:
                asked = json.loads(await request.body() or b"{}")
                return await run_in_threadpool(respond, dict(asked))
            except FedGraphError as error:
                return JSONResponse({"error": str(error)}, 422)
            except OSError as error:  # a name that is too long, or a file that has gone
                return JSONResponse({"error": f"cannot read the run ({first_line(error)})"}, 422)
            except (ValueError, TypeError, RecursionError) as error:
                return JSONResponse({"error": f"expected a JSON object ({first_line(error)})"}, 422)

        return answer

    app.add_route(LIST, route(listed), methods=["POST"])
    app.add_route(FLEET, route(lambda asked: JSONResponse(fleet())), methods=["POST"])
    app.add_route(READ, route(read), methods=["POST"])


# --- at an operator ---------------------------------------------------------------------------------------------------


class ServerRuns:
    """Run folders of the server behind a connection of Flower's configuration.

    Args:
        name: name of the connection.
        kind: option or key that names it, for errors.

    Raises:
        FedGraphError: the connection is missing.
    """

    def __init__(self, name: str, kind: str = "--name"):
        check_connection(name, kind)
        self.name, known = name, connection(name)
        authority = known.get("root-certificates")
        self.context = None if known.get("insecure") else ssl.create_default_context(cafile=authority)
        self.url = f"{'http' if known.get('insecure') else 'https'}://{known.get('address', '')}"
        # like Flower's commands (`environment`), this machine is reached without a proxy
        here = re.fullmatch(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\]):\d+", str(known.get("address", "")))
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=self.context)]
        handlers += [urllib.request.ProxyHandler({})] if here else []
        self.opener = urllib.request.build_opener(*handlers)

    def listing(self, filters: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the runs of the server that have these values of keys, or of ``state``."""
        runs: list[dict[str, Any]] = self._values("runs", list, {"filters": dict(filters)})
        if not all(isinstance(run, dict) and run.keys() >= _LISTED for run in runs):
            raise RunFailed(f"{self.url} lists runs without {', '.join(sorted(_LISTED))}: install the server's version")
        return runs

    def fleet(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the nodes and the newest runs of the server."""
        nodes, runs = (self._values(key, list, {}, FLEET) for key in ("nodes", "runs"))
        return nodes, runs

    def files(self, run: str) -> dict[str, int]:
        """Return the files of a run, with their sizes in bytes; none if the server has no such run."""
        sizes: dict[str, int] = self._values("files", dict, {"run": run})
        if any(not _NAME.fullmatch(str(name)) for name in sizes):
            raise RunFailed(f"the server of '{self.name}' sent names of files with a path: nothing was copied")
        return sizes

    def text(self, run: str, file: str) -> bytes:
        """Return the content of a small file of a run."""
        with self._ask(READ, {"run": run, "file": file}) as reply:
            return reply.read()

    def copy(self, run: str, to: Path) -> list[str]:
        """Copy the files of a run to a folder of this machine, and return their names; the summary comes last."""
        names = sorted(self.files(run), key=lambda name: (name == LAST, name))
        with system_errors(f"cannot write {to}"):
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                self.copy_file(run, name, to)
        return names

    def copy_file(self, run: str, name: str, to: Path) -> None:
        """Copy one file of a run; an incomplete copy replaces nothing.

        Raises:
            FedGraphError: the disk has no room, or the folder cannot be written.
            RunFailed: the connection broke.
        """
        part = to / f".{name}.part"
        part.unlink(missing_ok=True)  # of a killed process; no link may lead elsewhere
        try:
            with self._ask(READ, {"run": run, "file": name}) as reply:
                whole = reply.headers.get("content-length", "")
                if not re.fullmatch(r"\d{1,15}", whole):  # else it could send without an end
                    raise RunFailed(f"{self.url} sent {run}/{name} without its size: nothing was copied")
                require_space(to, int(whole), str(to / name))
                with system_errors(f"cannot write {part}"):
                    file = part.open("xb")
                    part.chmod(0o600)  # as at the server
                with file:
                    while block := reply.read(CHUNK):
                        with system_errors(f"cannot write {part}"):
                            file.write(block)
            if int(whole) != part.stat().st_size:
                raise RunFailed(f"the connection to {self.url} broke within {run}/{name}: repeat the command")
            os.replace(part, to / name)
        finally:
            part.unlink(missing_ok=True)

    def _values(self, key: str, kind: type, asked: Mapping[str, Any], path: str = LIST) -> Any:
        with self._ask(path, asked) as reply:
            content = reply.read()
        try:
            listing = json.loads(content)[key]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFailed(f"{self.url} sent no list of run folders ({first_line(error)})") from error
        if not isinstance(listing, kind):
            raise RunFailed(f"{self.url} sent no list of run folders")
        return listing

    @contextlib.contextmanager
    def _ask(self, path: str, asked: Mapping[str, Any]) -> Iterator[HTTPResponse]:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(asked).encode(), method="POST")
        try:
            with self.opener.open(request, timeout=PATIENCE) as reply:
                yield reply
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, HTTPException) as error:
            if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise no_superlink(self.name) from error
            why = first_line(error)
            raise RunFailed(
                f"{self.url}, the address of connection '{self.name}', sent no run folder ({why})"
            ) from error

    def _refused(self, error: urllib.error.HTTPError) -> FedGraphError:
        if error.code == 404:
            return Unserved(
                f"the server of '{self.name}' serves no run folders: it runs `server --plain`, or an older version"
            )
        if error.code == 403:
            why = sanitize(error.read().decode(errors="replace").strip() or "it accepts operators' certificates only")
            return RunFailed(f"the server of '{self.name}' refuses this: {why}")
        try:
            why = str(json.loads(error.read())["error"])
        except (OSError, ValueError, KeyError, TypeError):
            why = f"status {error.code}"
        return FedGraphError(f"the server of '{self.name}': {sanitize(why, 1000)}")


class Unserved(RunFailed):
    """Error: the server sends no run folders."""
