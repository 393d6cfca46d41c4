"""Ray's actors as processes."""

import psutil

from tests.support import wait_for


def actors() -> list[psutil.Process]:
    """The processes that hold clients."""
    return [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::ClientA")]


def kill_an_actor() -> None:
    """One that is seen: a process may be slow to tell its name."""
    wait_for(lambda: bool(actors()), "an actor that tells its name")
    actors()[0].kill()
