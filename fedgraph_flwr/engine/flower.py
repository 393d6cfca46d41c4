"""Flower's engines: a simulation on Ray with its own SuperLink, or a fleet behind a SuperLink connection."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fedgraph_flwr.config import RunConfig, to_json
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line, sanitize
from fedgraph_flwr.fleet.flower_commands import check_connection, refusal, run_state
from fedgraph_flwr.fleet.processes import (
    end_group,
    environment,
    free_port,
    healthy,
    tool,
    without_box,
)
from fedgraph_flwr.fleet.run_folders import STATUS, ServerRuns
from fedgraph_flwr.fleet.run_watch import STOPPED
from fedgraph_flwr.store.events import SETUP, OnRound, OnWait
from fedgraph_flwr.store.folder import CHECKPOINT, make_folder
from fedgraph_flwr.store.results import FAILURE, ROUNDS, SUMMARY, read_rounds

APP = "FEDGRAPH_APP"
"""Environment variable: name of a signed app that the fleet's SuperLink fetches instead of a bundle."""

STOP_TIMEOUT = 60.0
"""Seconds to wait until a server confirms that a run stopped."""

STARTS = 3
"""Attempts to start a simulation; Ray waits 30 s for its own start, which a busy machine may exceed."""

LOOK = 10.0
"""Seconds between questions for the state of a run whose log broke off."""

LOST = 600.0
"""Seconds without a response after which the command gives up such a run."""

_STUB = """\
[project]
name = "fedgraph-flwr"
version = "0.2.0"
description = "Federated graph neural networks on Flower."
license = "Apache-2.0"
dependencies = ["fedgraph-flwr"]

[tool.flwr.app]
publisher = "fedgraph"

[tool.flwr.app.components]
serverapp = "fedgraph_flwr.server_app:app"
clientapp = "fedgraph_flwr.client_app:app"

[tool.flwr.app.config]
num-clients = 2
overrides = ""
config = ""
"""


def run_flower(
    cfg: RunConfig, on_round: OnRound | None = None, on_wait: OnWait | None = None
) -> dict[str, Any]:
    """Run a prepared configuration through ``flwr run`` and return the summary.

    Raises:
        FedGraphError: raised by the server app.
        RunFailed: Flower ended without a summary.
    """
    out, say = Path(cfg.out), on_wait or (lambda what: None)
    if cfg.engine not in SIMULATIONS:
        check_connection(cfg.engine, "engine", SIMULATIONS)
    make_folder(cfg)
    for name in (SUMMARY, FAILURE, STATUS):
        (out / name).unlink(missing_ok=True)
    if cfg.engine not in SIMULATIONS:
        copies = _Copies(ServerRuns(cfg.engine, "engine"), out)
        _flwr_run(cfg, cfg.engine, environment(), on_round, say, copies=copies)
        return _result(out)
    from fedgraph_flwr import partition

    resources = (
        f"client-resources-num-cpus={cfg.client_cpus} client-resources-num-gpus={cfg.client_gpus}"
    )
    federation = f"num-supernodes={partition.num_clients(cfg)} {resources}"
    say("starting a SuperLink")
    for attempt in range(1, STARTS + 1):
        with local_superlink(out / "superlink.log") as variables:
            _flwr_run(cfg, "own", variables, on_round, say, ["--federation-config", federation])
        if attempt == STARTS or not _ray_was_late(out):
            break
        say("Ray did not start within 30 s on this busy machine; starting it again")
    return _result(out)


@contextlib.contextmanager
def local_superlink(log_file: Path) -> Iterator[dict[str, str]]:
    """Run a SuperLink for one simulation during the block, on a free port with a separate home folder.

    Yields:
        The environment for ``flwr run APP own``.
    """
    with tempfile.TemporaryDirectory(prefix="fedgraph-flwr-") as home:
        port = free_port()
        variables = {
            **environment(),
            "FLWR_HOME": home,
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_DEDUP_LOGS": "0",
            # Ray's 15 would starve its actors next to other work
            "RAY_worker_niceness": "0",
            # else Ray joins the cluster that was started last on this machine
            "RAY_ADDRESS": "local",
        }
        connection = f'[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        Path(home, "config.toml").write_text(f'[superlink]\ndefault = "own"\n\n{connection}')
        command = [
            tool("flower-superlink"),
            "--insecure",
            "--simulation",
            "--isolation",
            "subprocess",
        ]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--disable-runtime-dependency-installation",
        ]
        with log_file.open("w") as log:
            process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        try:
            if not healthy(f"http://127.0.0.1:{port}", lambda: process.poll() is not None, 300.0):
                raise RunFailed(f"the local SuperLink did not start: see its log {log_file}")
            yield variables
        finally:
            end_group(process)


def app_folder(out: Path) -> Path:
    """Return the folder for ``flwr run``: the checkout, or a stub that refers to the installed package."""
    root = Path(__file__).parents[2]
    if (root / "pyproject.toml").is_file() and (root / "conf").is_dir():
        return root
    stub = out / "app"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "pyproject.toml").write_text(_STUB)
    return stub


class _Copies:
    """Copies of a run's files from the server of a fleet, unless it writes to this very folder.

    Args:
        server: the server's run folders.
        out: the run's folder here; the server's has the same name.
    """

    def __init__(self, server: ServerRuns, out: Path):
        self.server = server
        self.out = out
        self.begun = False

    @property
    def shared(self) -> bool:
        """Whether the server writes to this very folder."""
        return (self.out / STATUS).is_file() and not self.begun

    def ended(self, run_id: str) -> bool:
        """Return whether the server's files, which are copied, have a result of this run."""
        self.take(run_id, [SUMMARY, FAILURE])
        return any((self.out / name).is_file() for name in (SUMMARY, FAILURE))

    def take(self, run_id: str, names: Sequence[str] = ()) -> str:
        """Copy files, and return why that failed, or "".

        Args:
            run_id: Flower's number of the run, which tells this run from an earlier one of that
                name.
            names: the files; default: all.
        """
        if self.shared or not run_id:
            return ""
        run = self.out.name
        try:
            files = self.server.files(run)
            if STATUS not in files or json.loads(self.server.text(run, STATUS))["run_id"] != run_id:
                return ""
            self.begun = True
            if not names:
                self.server.copy(run, self.out)
            for name in files.keys() & {*names}:
                self.server.copy_file(run, name, self.out)
        except (FedGraphError, OSError, ValueError, KeyError, TypeError) as error:
            return f"nothing was copied from the server: {first_line(error)}"
        return ""


def _stop(command: Sequence[str], environment: dict[str, str], log: IO[str]) -> None:
    """Stop a run on a fleet; say how to repeat it if the server does not respond."""
    try:
        subprocess.run(
            command,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=STOP_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(
            f"warning: the server did not confirm within {STOP_TIMEOUT:g} s that the run stopped:"
            f" see `fedgraph-flwr fleet status`, and repeat `flwr {shlex.join(command[1:])}`",
            file=sys.stderr,
        )


def _flwr_run(
    cfg: RunConfig,
    connection: str,
    environment: dict[str, str],
    on_round: OnRound | None,
    say: OnWait,
    options: Sequence[str] = (),
    copies: _Copies | None = None,
) -> None:
    out = Path(cfg.out)
    config = out / "run-config.toml"
    values = {"overrides": "", "config": to_json(cfg)}
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    app = os.environ.get(APP) or str(app_folder(out))
    command = [
        tool("flwr"),
        "run",
        app,
        connection,
        "--run-config",
        str(config),
        "--stream",
        *options,
    ]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    rounds = out / ROUNDS
    shown = 0
    run_id = ""
    followed = False

    def show() -> None:
        nonlocal shown
        if on_round:
            for record in read_rounds(rounds, skip=shown):
                on_round(record)
                shown += 1

    say(f"submitting the app to '{connection}'")
    tail: list[str] = []
    with (out / "flower.log").open("w") as log:
        try:
            for line in process.stdout or ():
                log.write(line)
                log.flush()
                tail = [*tail[-20:], line.rstrip()]
                if started := re.search(r"started run (\d+)", line):
                    run_id = started[1]
                    whom = (
                        "Flower's processes"
                        if cfg.engine in SIMULATIONS
                        else f"{cfg.num_clients} SuperNodes"
                    )
                    say(f"run {run_id} is waiting for {whom}, then for round 1")
                if step := re.search(rf"INFO\b.*?: +{SETUP}(.*)", line):
                    say(sanitize(step[1].rstrip(), 1000))
                if cfg.engine not in SIMULATIONS and (
                    warning := re.search(r"WARNING\b.*?: +(.*)", line)
                ):
                    text = sanitize(warning[1].rstrip(), 1000)
                    print(f"warning: {text}", file=sys.stderr)  # a node may need attention
                if copies and re.search(r"INFO\b.*?: +round \d+:", line):
                    copies.take(run_id, [ROUNDS])
                show()
            if (
                copies
                and run_id
                and not copies.shared
                and (process.wait() or not copies.ended(run_id))
            ):
                followed = _follow(copies, connection, run_id, show)
        except ConnectionLost:
            raise
        except BaseException:
            process.terminate()
            if run_id:  # else the run would continue
                _stop([tool("flwr"), "stop", run_id, connection], environment, log)
                if copies:
                    copies.take(run_id)
            raise
    process.wait()
    if copies and (problem := copies.take(run_id)):
        print(f"warning: {problem}", file=sys.stderr)
    if process.returncode != 0 and not followed and not (out / FAILURE).is_file():
        why = sanitize(_why(tail), 2000)
        if "403 Forbidden" in why:  # Flower's command does not print why
            why = refusal(connection) or why
        what = f"flwr run on '{connection}' ended with code {process.returncode}: {why}"
        raise _failed(out, what + _resume_text(out))
    if copies and run_id and not any((out / name).is_file() for name in (SUMMARY, FAILURE)):
        state, why = run_state(connection, run_id)
        reason = f"the run ended on the server: {sanitize(why or state, 1000)}"
        raise _failed(out, (STOPPED if state == "finished:stopped" else reason) + _resume_text(out))


class ConnectionLost(RunFailed):
    """Error: the server of a run does not respond; the run may continue there."""


def _follow(copies: _Copies, connection: str, run_id: str, show: Callable[[], None]) -> bool:
    """Wait for the end of a run whose log broke off, as by a lost connection.

    Args:
        copies: the run's files.
        connection: name of the connection.
        run_id: Flower's number of the run.
        show: called when further rounds may have arrived.

    Returns:
        Whether the run ended after its log.

    Raises:
        ConnectionLost: the server did not respond for `LOST` seconds.
    """
    waited = False
    answered = time.monotonic()
    while not (state := run_state(connection, run_id)[0]).startswith("finished"):
        if not waited:
            warning = f"the log of run {run_id} broke off: the run continues on the server of '{connection}'"
            print(f"warning: {warning}; waiting for it", file=sys.stderr)
        waited = True
        if state:
            answered = time.monotonic()
            copies.take(run_id, [ROUNDS])
            show()
        elif time.monotonic() - answered > LOST:
            copy = f"fedgraph-flwr runs {copies.out.parent} --name {connection} --copy {copies.out.name}"
            raise ConnectionLost(
                f"the server of '{connection}' did not respond for {LOST / 60:g} min. Run {run_id} may continue"
                f" there; later, copy it with: {copy}"
            )
        time.sleep(LOOK)
    return waited


def _failed(out: Path, what: str) -> RunFailed:
    """Write an error message into a run's folder, and return the error."""
    failure = {"error": what, "exit_code": RunFailed.exit_code}
    write_bytes(out / FAILURE, json.dumps(failure).encode())
    return RunFailed(what)


def _resume_text(out: Path) -> str:
    """Return how to resume a run that its server did not end; empty without a checkpoint."""
    return (
        f"; to continue, run: fedgraph-flwr run resume={out}"
        if (out / CHECKPOINT).is_file()
        else ""
    )


def _why(tail: list[str]) -> str:
    """Return the error box of Flower's command line, else its last lines, as one line."""
    box = max((i for i, line in enumerate(tail) if line.startswith("╭")), default=-3)
    return without_box(" ".join(tail[box:]))


def _ray_was_late(out: Path) -> bool:
    """Return whether a simulation ended because Ray did not start in time."""
    ended = any((out / name).is_file() for name in (SUMMARY, FAILURE))
    return not ended and "timed out during startup" in (out / "flower.log").read_text(
        errors="replace"
    )


def _first_error(log: Path) -> str:
    """Return the first line of a log that names an exception, the cause of those after it, in parentheses, or nothing."""
    lines = re.findall(
        r"^(?:[A-Za-z_][\w.]*(?:Error|Exception)|Exception)\b.*",
        log.read_text(errors="replace"),
        re.MULTILINE,
    )
    return f" ({sanitize(lines[0], 300)})" if lines else ""


EXIT_CODES = (1, 2, 3)
"""Exit codes that a server's error may have; 3 is that of a link in which a party shares nothing."""


def _result(out: Path) -> dict[str, Any]:
    if (out / FAILURE).is_file():
        failure = json.loads((out / FAILURE).read_text())
        code = failure["exit_code"]
        resumable = failure.get("resumable", code == RunFailed.exit_code)  # wrong input fails again
        what = failure["error"] + (_resume_text(out) if resumable is True else "")
        error = FedGraphError(what) if code == FedGraphError.exit_code else RunFailed(what)
        if code in EXIT_CODES:
            error.exit_code = code
        raise error
    if not (out / SUMMARY).is_file():
        log = out / "flower.log"
        resume = _resume_text(out)
        what = f"Flower ended, but wrote no {SUMMARY} to {out}{_first_error(log)}: see its log {log}{resume}"
        where = "and of a fleet the server's run folders: fedgraph-flwr runs --name NAME"
        raise _failed(out, f"{what}, {where}")
    summary: dict[str, Any] = json.loads((out / SUMMARY).read_text())
    return summary
