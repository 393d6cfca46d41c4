"""Ends of ServerApps, seen by the SuperLink on their machine within a second.

Flower notices a dead ServerApp by its missing heartbeats, after a minute. It starts each as a process of this machine, whose
command line has the token of its task.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

PROGRAM = "flwr-serverapp"

LOOK = 1.0
"""Seconds between looks at the processes."""

DIED = "the run's process on the server ended without a result: it was killed, or the machine had no memory left"
STOPPED = "the run was stopped (flwr stop)"

Ended = Callable[[int, str, str], None]
"""Called with a run's number, its state ``lost``, ``stopped`` or ``failed``, and the reason, after its process has ended."""


@dataclass(frozen=True)
class App:
    """Process of a ServerApp, and the numbers of its task and its run."""

    process: psutil.Process
    task: int
    run: int


class RunWatch:
    """Watch of the ServerApps that a process of this machine started.

    Args:
        state: Flower's state of a SuperLink.
        ended: see `Ended`. For a run that died it is called before Flower ends the run.
        root: the process; default: this one.
    """

    def __init__(self, state: Any, ended: Ended, root: psutil.Process | None = None):
        self.state, self.ended = state, ended
        self.root = root or psutil.Process()
        self.apps: dict[str, App] = {}

    def start(self) -> None:
        """Look every `LOOK` seconds, in a thread."""
        threading.Thread(target=self._keep_looking, daemon=True).start()

    def look(self) -> None:
        """Find new ServerApps, and report those that ended."""
        for process, token in _server_apps(self.root):
            if token not in self.apps and (task := self.state.get_task_by_token(token)):
                self.apps[token] = App(process, task.task_id, task.run_id)
        for token, app in list(self.apps.items()):
            if not _works(app.process):
                self._report(app)
                del self.apps[token]

    def _report(self, app: App) -> None:
        status = self.state.get_run_info(run_ids=[app.run])[0].status
        if status.status != "finished":
            self.ended(app.run, "lost", DIED)
            self.state.finish_task(app.task, "failed", DIED)
        elif status.sub_status == "stopped":
            self.ended(app.run, "stopped", STOPPED)
        elif status.sub_status == "failed":
            self.ended(app.run, "failed", status.details or DIED)

    def _keep_looking(self) -> None:
        while True:
            time.sleep(LOOK)
            try:
                self.look()
            except Exception as error:  # the database is locked, for example: look again
                print(f"fedgraph-flwr: warning: cannot look at the runs ({type(error).__name__}: {error})", flush=True)
                time.sleep(30 * LOOK)


def _server_apps(root: psutil.Process) -> list[tuple[psutil.Process, str]]:
    """Return the ServerApps below a process with the tokens of their tasks, parents before their forks."""
    found = []
    for process in root.children(recursive=True):
        try:
            args, created = process.cmdline(), process.create_time()
        except psutil.Error:  # it has ended
            continue
        if "--token" in args[:-1] and any(word.endswith(PROGRAM) for word in args[:2]):
            found.append((created, process.pid, process, args[args.index("--token") + 1]))
    return [(process, token) for _, _, process, token in sorted(found, key=lambda entry: entry[:2])]


def _works(process: psutil.Process) -> bool:
    """Return whether a process exists and is no zombie: nobody may wait for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
