"""Program of `fedgraph-flwr server`: `flower-superlink` with the changes that a fleet needs.

- It sends run folders to operators.
- It reads renewed certificates.
- It notices within a second that a run's process has ended, and writes why into the run's folder.
- It registers no key that was removed from the fleet.
- It keeps the names of parties, and a log of what operators did.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError, RunFailed, sanitize
from fedgraph_flwr.fleet.audit_chain import LOCAL, append, operator_of
from fedgraph_flwr.fleet.certificates import REVOKED, reload_in_uvicorn, revoked
from fedgraph_flwr.fleet.flower_commands import REMOVED, node_values, run_values
from fedgraph_flwr.fleet.parties import keep_parties, read_parties
from fedgraph_flwr.fleet.run_folders import RUNS, STATUS, add_routes
from fedgraph_flwr.fleet.run_watch import RunWatch
from fedgraph_flwr.fleet.status import read_status
from fedgraph_flwr.store.folder import CHECKPOINT, owned
from fedgraph_flwr.store.results import FAILURE

KEYS = "FEDGRAPH_KEYS"
"""Environment variable: the folder of `fleet init`."""

ACTIONS = {"start_run": "start", "stop_run": "stop", "register_node": "admit", "unregister_node": "remove"}
"""Flower's handlers of requests that the log of operators has."""


def listing(root: Path, filters: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the runs of the server's folder by their names, without their whole configurations."""
    from fedgraph_flwr.report.as_json import finite
    from fedgraph_flwr.report.listing import listed

    runs = listed(root, filters)
    pairs = [(Path(run["run"]), run) for run in runs]
    return [
        finite({**run, "run": str(path.relative_to(root)), "config": {}, "status": read_status(path)})
        for path, run in pairs
    ]


def record_end(root: Path, run_id: int, state: str, reason: str) -> None:
    """Write the end of a run into its folder, unless its process has written one.

    Args:
        root: folder of the run folders.
        run_id: Flower's number of the run.
        state: ``lost``, ``stopped`` or ``failed``.
        reason: the error message.
    """
    for path in root.glob(f"*/{STATUS}"):
        try:
            status = json.loads(path.read_bytes())
            ours = status["run_id"] == str(run_id) and status["state"] == "running"
        except (OSError, *MALFORMED):
            continue
        if not ours:
            continue
        resumable = (path.parent / CHECKPOINT).is_file()
        text = sanitize(reason, 1000)
        failure = {"error": text, "exit_code": RunFailed.exit_code, "state": state, "resumable": resumable}
        hint = "; resume=RUN continues from its last checkpoint" if resumable else ""
        new = {"state": state, "reason": text + hint, "waiting": [], "updated": time.time()}
        if state == "stopped":
            new["stopped_by"] = operator_of(root, run_id, "stop")
        with contextlib.suppress(FedGraphError), owned(path.parent):  # another run may have the folder by now
            write_bytes(path.parent / FAILURE, json.dumps(failure).encode())
            write_bytes(path, json.dumps(status | new).encode())


def refuse_removed_keys(handlers: Any, folder: Path) -> None:
    """Let a SuperLink refuse to register keys that `fleet remove` has listed, whoever asks.

    Args:
        handlers: Flower's module that handles operators' requests.
        folder: folder of `fleet init`.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key

    register = handlers.register_node

    def register_unless_removed(request: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(ValueError, AttributeError):  # no key: Flower refuses it
            key = bytes_to_public_key(request.public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            if key.decode() in revoked(folder):
                why = f"{folder / REVOKED} lists this key"
                raise FlowerError(ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE, why, REMOVED)
        return register(request, *args, **kwargs)

    handlers.register_node = register_unless_removed


CALLER: ContextVar[tuple[str, str]] = ContextVar("caller", default=("", ""))
"""Subject of the certificate, and address, of who sent the request that is handled; empty without nginx."""


class Caller:
    """Part of a SuperLink's application that reads `CALLER` from what nginx adds to a request."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        headers = dict(scope.get("headers", ()))
        names = (b"x-fedgraph-operator", b"x-fedgraph-address")
        operator, address = (sanitize(headers.get(name, b"").decode("latin-1"), 200) for name in names)
        CALLER.set((operator, address))
        await self.app(scope, receive, send)


def note_action(runs: Path, action: str, subject: str) -> None:
    """Append an action of an operator to the log of the folder of runs (`fleet.audit_chain`)."""
    operator, address = CALLER.get()
    entry = {"action": action, "subject": subject, "operator": operator or LOCAL, "address": address}
    try:
        append(runs, entry)
    except FedGraphError as error:
        print(f"fedgraph-flwr: error: not in the log of operators: {json.dumps(entry)}: {error}", flush=True)


def follow(handlers: Any, runs: Path, state: Any) -> None:
    """Let a SuperLink log what operators do, and store the names of parties.

    Args:
        handlers: Flower's module that handles operators' requests.
        runs: folder of the run folders.
        state: Flower's state of the SuperLink.
    """

    def after(handle: Any, action: str) -> Any:
        def handled(request: Any, *args: Any, **kwargs: Any) -> Any:
            reply = handle(request, *args, **kwargs)
            node = str(getattr(request, "node_id", 0) or getattr(reply, "node_id", 0))
            if action in ("admit", "remove"):
                keep_parties(runs, state.get_node_info())
                subject = f"{read_parties(runs).get(node, {}).get('name', '')} ({node})".strip()
            else:
                subject = str(getattr(request, "run_id", 0) or getattr(reply, "run_id", 0))
            note_action(runs, action, subject)
            return reply

        return handled

    for name, action in ACTIONS.items():
        setattr(handlers, name, after(getattr(handlers, name), action))
    keep_parties(runs, state.get_node_info())


def wait_for_database(mixin: Any) -> None:
    """Let requests wait a minute for a locked database instead of Flower's 5 s, after which a node's reply is lost.

    Twenty nodes that reply at once on a busy machine need longer.

    Args:
        mixin: Flower's module that opens databases.
    """
    mixin.SQLITE_PRAGMAS = (*mixin.SQLITE_PRAGMAS, ("busy_timeout", "60000"))


def nodes_and_runs(state: Any) -> dict[str, Any]:
    """Return the nodes and the newest runs of a SuperLink's state, for `fleet status`."""
    runs = state.get_run_info(order_by="pending_at", ascending=False, limit=20)
    now = datetime.now(UTC).isoformat()
    return {"nodes": node_values(state.get_node_info(), now), "runs": run_values(runs)}


def main() -> None:
    """Run a SuperLink; ``sys.argv`` has its options, and the environment the folder of runs."""
    from flwr.supercore import sql_mixin
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.control import control_handlers

    root, create = Path(os.environ[RUNS]), superlink.create_app

    def create_app(*args: Any, **kwargs: Any) -> Any:
        app = create(*args, **kwargs)
        app.add_middleware(Caller)
        state = app.state.linkstate_factory.state()
        note = partial(note_action, root)
        add_routes(app, root, listing, note, partial(nodes_and_runs, state))
        follow(control_handlers, root, state)
        # below the process that started this one, since `fedgraph-flwr server` starts another SuperExec when Flower's ended
        above = psutil.Process(os.getppid())
        RunWatch(state, lambda run, how, why: record_end(root, run, how, why), above).start()
        return app

    superlink.create_app = create_app
    if keys := os.environ.get(KEYS):
        refuse_removed_keys(control_handlers, Path(keys))
    reload_in_uvicorn()
    wait_for_database(sql_mixin)
    flower_superlink()


if __name__ == "__main__":
    main()
