"""What a run reports while it works: types of the functions that listen, and a mark of log lines."""

from collections.abc import Callable
from typing import Any

OnRound = Callable[[dict[str, Any]], None]
"""Function that takes the record of each finished round."""

OnWait = Callable[[str], None]
"""Function that takes a message while a run waits."""

SETUP = "setup: "
"""Start of a server's log lines that are shown while a run waits for round 1."""
