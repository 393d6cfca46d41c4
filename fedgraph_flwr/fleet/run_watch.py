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


@dataclass
class App:
    """Task of a ServerApp and its run, and how often its process was not found since it was last seen."""

    task: int
    run: int
    missed: int = 0


class RunWatch:
    """Watch of the ServerApps that a process of this machine started.

    A process counts as ended if two looks in a row do not find it.

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
        tokens = _tokens(self.root)
        for token in tokens - self.apps.keys():
            if task := self.state.get_task_by_token(token):
                self.apps[token] = App(task.task_id, task.run_id)
        for token, app in list(self.apps.items()):
            app.missed = 0 if token in tokens else app.missed + 1
            if app.missed > 1:
                self._report(token, app)
                del self.apps[token]

    def _report(self, token: str, app: App) -> None:
        status = self.state.get_run_info(run_ids=[app.run])[0].status
        if status.status != "finished":
            if not self.state.get_task_by_token(
                token
            ):  # it started too late, and Flower gave its task to another process
                return
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


def _tokens(root: psutil.Process) -> set[str]:
    """Return the tokens of the ServerApps below a process; nobody may wait for those that are zombies."""
    tokens = set()
    for process in root.children(recursive=True):
        try:
            args, status = process.cmdline(), process.status()
        except psutil.Error:  # it has ended
            continue
        named = "--token" in args[:-1] and any(word.endswith(PROGRAM) for word in args[:2])
        if named and status != psutil.STATUS_ZOMBIE:
            tokens.add(args[args.index("--token") + 1])
    return tokens
