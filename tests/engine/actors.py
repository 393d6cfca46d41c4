"""Ray's actors as processes."""

import time

import psutil
from ray._private import state

SECONDS = 60.0
"""Until an actor must be seen."""


def actors() -> list[psutil.Process]:
    """The processes that hold clients, by Ray's own table: what the system calls a process varies."""
    table = state.actors(actor_state_name="ALIVE").values()
    return [
        psutil.Process(row["Pid"])
        for row in table
        if row["ActorClassName"] == "ClientActor" and psutil.pid_exists(row["Pid"])
    ]


def kill_an_actor() -> None:
    """Kill one, as a machine without memory does.

    Raises:
        TimeoutError: none lives; with what Ray and the system list.
    """
    deadline = time.monotonic() + SECONDS
    while not (alive := actors()):
        if time.monotonic() > deadline:
            rows = [(row["ActorClassName"], row["State"], row["Pid"]) for row in state.actors().values()]
            children = [(p.pid, p.name(), p.status()) for p in psutil.Process().children(recursive=True)]
            raise TimeoutError(f"no actor in {SECONDS:g} s; Ray lists {rows}, this process has {children}")
        time.sleep(0.05)
    alive[0].kill()
